"""In a real browser: what a producer sends is text in the report, and a page that listens to a table misses nothing."""

import json
import shutil
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice import Project
from sluice.engine.catalogue import expecting, ordered
from sluice.expect import expect, suite
from sluice.operate import checks, report
from tests.kit import Lakehouse, text
from tests.shop import sales
from tests.test_console import declare_a_topic, served
from tests.test_receivers import listening, token
from tests.waiting import patience_seconds

pytestmark = [pytest.mark.browser, pytest.mark.servers]
chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
hostile = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">tea"


def test_a_script_that_was_posted_is_read_as_text(lakehouse: Lakehouse, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    assert chromium, "There is no Chromium. Run: python -m infra.servers install --for-tests"
    with listening(tmp_path, "http", "--port", "0", "--create") as receiver:
        address = receiver.hears(r"(http://127\.0\.0\.1:\d+)")
        sale = {"id": "s1", "product": hostile, "sold_at": text(1), "pieces": 3}
        headers = {"Authorization": f"Bearer {token}"}
        post = urllib.request.Request(f"{address}/topics/sales", json.dumps(sale).encode(), headers)
        with urllib.request.urlopen(post) as answer:
            assert answer.status == 201
    known = expect("column_values_to_be_in_set", column="product", value_set=["tea"], severity="warn", name="known")
    lakehouse.catalogue = expecting(ordered([sales]), {"silver.sales": suite("silver.sales", known)})
    lakehouse.run()
    checked = checks.check(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, lakehouse.catalogue.datasets)
    index = Path(report.write(lakehouse.lake, lakehouse.catalogue, checked))
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1200})
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: asked.append(f"dialog {dialog.message}"))
        page.goto(index.as_uri())
        page.get_by_text("silver.sales").first.click()
        page.wait_for_load_state("networkidle")
        seen = page.inner_text("body")
        page.screenshot(path=tmp_path / "hostile.png", full_page=True)
        title, scripts, images = page.title(), page.locator("script").count(), page.locator("img").count()
        browser.close()
    assert hostile in seen
    assert title != "owned"
    assert (scripts, images) == (0, 0)
    # The pages and their styles alone, which lie beside them.
    assert all(url.startswith(index.parent.as_uri()) for url in asked), asked


listen = """table => {
  Object.assign(window, { heard: [], opened: 0 });
  const source = new EventSource(`/tables/${table}/events`);
  source.onopen = () => { opened += 1; };
  for (const kind of ["insert", "update", "delete", "schema", "reset"])
    source.addEventListener(kind, (event) => heard.push([event.lastEventId, kind, JSON.parse(event.data).new?.id]));
}"""


def test_a_page_that_was_cut_off_hears_each_change_once(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    assert chromium, "There is no Chromium. Run: python -m infra.servers install --for-tests"
    declare_a_topic(tmp_path)
    sold = tmp_path / "lake" / "gold" / "sold"

    def sell(*ids: int) -> None:
        write_deltalake(sold, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")

    sell(1)
    with Project(tmp_path, {"lake": str(tmp_path / "lake")}) as project, sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        with served(project) as reader:
            address = reader.server.url
            page.goto(f"{address}/tables/gold.sold")
            page.evaluate(listen, "gold.sold")
            page.wait_for_function("() => heard.length === 1", polling=100)
            sell(2, 3)
            page.wait_for_function("() => heard.length === 3", polling=100)
        # Nobody answers while this is committed; the browser asks again, with the id of the last event.
        sell(4)
        DeltaTable(sold).delete("id = 2")
        with served(project, port=int(address.rpartition(":")[2])):
            page.wait_for_function("() => heard.length >= 5", polling=100, timeout=patience_seconds * 1000)
            sell(5)
            page.wait_for_function("() => heard.at(-1)[2] === 5", polling=100, timeout=patience_seconds * 1000)
            heard, opened = page.evaluate("[heard, opened]")
        expected = [
            [each.cursor, each.operation, (each.new or {}).get("id")] for each in project.subscribe("gold.sold")
        ]
    assert heard == expected
    assert [each[2] for each in heard] == [1, 2, 3, 4, None, 5]
    assert opened == 2
