"""What a producer sends is text in the report, in a real browser: it runs nothing and asks for nothing."""

import json
import shutil
import urllib.request
from pathlib import Path

import pytest

from sluice.engine.catalogue import expecting, ordered
from sluice.expect import expect, suite
from sluice.operate import checks, report
from tests.kit import Lakehouse, text
from tests.shop import sales
from tests.test_receivers import listening, token

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
