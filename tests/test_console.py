"""The console: what its pages say of the tables, whom it answers, and what people see of it in a real browser."""

import hashlib
import http.client
import json
import math
import re
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import duckdb
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from sluice import Project, console
from sluice.api import SqlOptions, SqlServer
from sluice.console import Options, Server, dashboards
from sluice.console.chart import (
    Chart,
    chart_of,
    chart_of_answer,
    condition_of,
    decimal_places,
    drawn,
    points_max,
    text_of,
)
from sluice.errors import UsageError
from sluice.model.labels import label_of
from sluice.operate.subscribe import Cursor, Subscription
from tests.kit import in_time_zone
from tests.test_project import append_lines
from tests.waiting import patience_seconds

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pyspark.sql import SparkSession

hostile = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>'; --"
token = "a-token-that-is-long-enough-to-be-one"
chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Reader:
    """Asks a console as a program does."""

    def __init__(self, server: Server, **headers: str) -> None:
        self.server, self.headers = server, headers
        self.context = ssl._create_unverified_context() if server.options.certificate else None

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, bytes, Any]:
        """Status, body and headers of an answer; redirects are not followed."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in (self.headers | headers).items()}
        request = urllib.request.Request(f"{self.server.url}{path}", data, sent, method=method)
        opener = urllib.request.build_opener(Unfollowed(), urllib.request.HTTPSHandler(context=self.context))
        try:
            with opener.open(request, timeout=patience_seconds) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def json(self, path: str, body: Any = None, **parameters: Any) -> Any:
        status, found, _ = self.ask(f"{path}?{urlencode(parameters)}" if parameters else path, body)
        assert status in (200, 400), found
        return json.loads(found)

    def page(self, path: str) -> str:
        return self.ask(path)[1].decode()


class Unfollowed(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@contextmanager
def served(project: Project, **options: Any) -> Iterator[Reader]:
    """A console of a project, until the end of the block."""
    server = Server(project, Options(**({"port": 0} | options)))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield Reader(server)
    finally:
        server.close()
        thread.join(patience_seconds)
    assert not thread.is_alive()


def order(number: int, product: str, day: int = 1, quantity: int = 1) -> dict[str, Any]:
    placed_at = datetime(2026, 3, day, 9, tzinfo=UTC).isoformat()
    return {"order_id": f"n{number}", "placed_at": placed_at, "product_id": product, "quantity": quantity}


def declare_a_topic(folder: Path) -> None:
    """All that a project must have whose tables another program wrote."""
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "__init__.py").write_text("from sluice import bronze\n\nothers = bronze.topic('others')\n")


@pytest.fixture(scope="module")
def ran(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project that ran twice: the second time with a late order and a product with a hostile name."""
    folder = tmp_path_factory.mktemp("console") / "shop"
    project = Project.create(folder, spark=spark)
    append_lines(project)
    project.run()
    name = {"product_id": "x", "name": hostile, "price_euro": 2, "changed_at": "2026-02-01T00:00:00Z"}
    project.append("products", [name], key_field="product_id")
    project.append("orders", [order(1, "tea", quantity=10), order(2, "x", day=4)], key_field="order_id")
    project.run()
    (folder / "dashboards").mkdir()
    (folder / "dashboards" / "sales.yaml").write_text(
        "title: Sales\ncharts:\n"
        "  - {title: Revenue, table: gold.revenue_daily, measure: revenue_euro, where: {product: Tea}}\n"
        '  - {title: Orders, sql: "SELECT product, sum(orders) AS orders FROM gold.revenue_daily GROUP BY 1"}\n'
    )
    view = "CREATE OR REPLACE VIEW gold.revenue_daily AS SELECT 666 AS revenue"
    (folder / "dashboards" / "evil.yaml").write_text(f"title: Evil\ncharts:\n  - {{title: All, sql: {view}}}\n")
    (folder / "dashboards" / "wrong.yaml").write_text("title: Wrong\ncharts:\n  - {title: Both, table: a.b, sql: x}\n")
    return folder


@pytest.fixture(scope="module")
def shop(ran: Path, spark: "SparkSession") -> Iterator[Project]:
    with Project(ran, spark=spark) as project:
        yield project


@pytest.fixture(scope="module")
def reader(shop: Project) -> Iterator[Reader]:
    with served(shop) as found:
        yield found


chart_path = "/api/tables/gold.revenue_daily/chart"


def points(figure: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """The values that a series draws, without its gaps, by group and day of March."""
    return {
        (line["name"], datetime.fromtimestamp(time / 1000, UTC).day): value
        for line in figure["series"]
        for time, value in line["points"]
        if value is not None
    }


def test_each_page_answers_and_carries_the_policy(reader: Reader) -> None:
    for path in ("/", "/tables/gold.revenue_daily", "/tables/bronze.orders", "/tables/silver._fates", "/flow", "/sql"):
        status, body, headers = reader.ask(path)
        assert status == 200, (path, body)
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert b"<script>" not in body
        assert b"style=" not in body
    overview = reader.page("/")
    assert "gold.revenue_daily" in overview
    assert "No run is under way." in overview
    assert re.search(r"<td class=\"number\">[\d,.]+ s</td>", overview), "what a refresh took"
    assert reader.json("/api/running") == {"is_running": False}
    assert reader.ask("/nothing")[0] == 404
    assert reader.ask("/flow/")[0] == 404
    assert "There is no table gold.nothing" in reader.page("/tables/gold.nothing")


def test_a_chart_shows_what_the_table_has(reader: Reader, shop: Project) -> None:
    figure = reader.json(chart_path, measure="revenue_euro")
    assert (figure["kind"], figure["label"], figure["unit"]) == ("series", "Revenue", "€")
    sql = "SELECT product, window_start, revenue_euro FROM gold.revenue_daily WHERE revenue_euro IS NOT NULL"
    rows = shop.query(sql).rows
    assert points(figure) == {(product, start.day): float(value) for product, start, value in rows}
    only = reader.json(chart_path, measure="revenue_euro", product="Tea")
    assert {name for name, _ in points(only)} == {"Tea"}
    assert points(reader.json(chart_path, measure="orders", product=hostile)) == {(hostile, 4): 1}
    assert "no measure" in reader.json(chart_path, measure="nothing")["error"]


def test_a_page_says_what_each_column_is_and_is_made_from_and_what_is_tested(reader: Reader) -> None:
    gold, silver = reader.page("/tables/gold.revenue_daily"), reader.page("/tables/silver.priced_orders")
    assert 'href="/tables/silver.priced_orders#column-product.price_euro"' in gold
    assert 'id="column-product.price_euro"' in silver
    assert "decimal(10,2)" in silver
    assert "sum(quantity * product.price_euro)" in gold
    # Its type is known from the table alone.
    assert "decimal(31,2)" in gold
    assert "rows_that_are_there_twice" in gold
    assert "A position" not in reader.page("/tables/silver._fates")


def test_a_figure_as_it_was_known_and_what_changed_since(reader: Reader, shop: Project) -> None:
    first = datetime.fromtimestamp(shop.lake.commits("gold.revenue_daily")[0].timestamp_ms / 1000, UTC).isoformat()
    now, before = (points(reader.json(chart_path, measure="orders", **at)) for at in ({}, {"known_at": first}))
    assert now["Tea", 1] == before["Tea", 1] + 1
    assert (hostile, 4) not in before
    difference = points(reader.json(chart_path, measure="orders", minus=first))
    assert difference == {("Tea", 1): 1, (hostile, 4): 1}
    path = "/api/tables/gold.revenue_daily/state"
    was, is_now = reader.json(path, known_at=first), reader.json(path)
    assert (was["version"], was["rows"]) == (0, len(before))
    assert (is_now["version"], is_now["rows"]) == (shop.lake.newest_version("gold.revenue_daily"), len(now))
    assert "was not there yet" in reader.json(path, known_at="2001-01-01")["error"]
    assert "was not there yet" in reader.json(chart_path, known_at="2001-01-01")["error"]
    assert "is no time" in reader.json(chart_path, known_at="yesterday")["error"]


def test_why_a_row_has_its_values(reader: Reader, shop: Project) -> None:
    key = json.dumps({"product": "Tea", "window_start": "2026-03-01 00:00:00"})
    found = reader.json("/api/tables/gold.revenue_daily/why", key=key)["values"]
    assert [each["cause"] for each in found] == ["first build", "changes"]
    assert int(found[1]["row"]["orders"]) == int(found[0]["row"]["orders"]) + 1
    behind = reader.json("/api/tables/gold.revenue_daily/records", key=key)["values"]
    assert [each["version"] for each in behind] == [each["version"] for each in found]
    ((origin,),) = [each["origins"] for each in behind[1:]]
    (record,) = origin["records"]
    assert record.startswith("orders/")
    key = json.dumps({"product": hostile, "window_start": "2026-03-04 00:00:00"})
    assert len(reader.json("/api/tables/gold.revenue_daily/why", key=key)["values"]) == 1
    for wrong in ("", "[]", '{"product": "Tea"}', "{"):
        assert "Name the row" in reader.json("/api/tables/gold.revenue_daily/why", key=wrong)["error"]


def test_rows_are_read_a_page_at_a_time(reader: Reader, shop: Project) -> None:
    found = reader.json("/api/tables/silver.orders/rows")
    assert len(found["rows"]) == shop.query("SELECT count(*) FROM silver.orders").rows[0][0]
    names = [each["name"] for each in found["columns"]]
    one = found["rows"][0][names.index("order_id")]
    assert len(reader.json("/api/tables/silver.orders/rows", order_id=one)["rows"]) == 1
    assert reader.json("/api/tables/silver.orders/rows", offset=1_000)["rows"] == []
    assert "is no offset" in reader.json("/api/tables/silver.orders/rows", offset="1; DROP")["error"]
    values = [row for row in reader.json("/api/tables/bronze.orders/rows")["rows"] if '"n1"' in str(row)]
    assert len(values) == 1


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("COPY gold.revenue_daily TO '/tmp/stolen.csv'", "disabled"),
        ("SET enable_external_access = true", "locked"),
        ("SELECT * FROM nothing", "nothing"),
        ("", "asks for nothing"),
        ("SELECT repeat('x', 70000000)", "more than 67,108,864 bytes"),
        ("SELECT count(*) FROM range(100000) a, range(100000) b, range(100000) c", "took longer"),
    ],
)
def test_sql_that_is_refused_says_why(shop: Project, sql: str, said: str) -> None:
    # What is refused for something else has time, however busy the machine is.
    with served(shop, statement_seconds=1.0 if said == "took longer" else 60.0) as reader:
        assert said in reader.json("/api/sql", {"sql": sql})["error"]


def test_sql_is_answered_with_a_chart(reader: Reader, shop: Project) -> None:
    sql = "SELECT product, sum(orders)::BIGINT AS orders FROM gold.revenue_daily GROUP BY 1 ORDER BY 1"
    found = reader.json("/api/sql", {"sql": sql})
    assert [tuple(row) for row in found["rows"]] == [(name, str(orders)) for name, orders in shop.query(sql).rows]
    assert found["charts"][0]["kind"] == "bars"
    long = reader.json("/api/sql", {"sql": "SELECT * FROM range(2000)"})
    assert (len(long["rows"]), long["has_more"]) == (1_000, True)
    assert "Send the query as JSON" in reader.json("/api/sql", b"[")["error"]
    first = datetime.fromtimestamp(shop.lake.commits("gold.revenue_daily")[0].timestamp_ms / 1000, UTC).isoformat()
    count = "SELECT count(*) FROM gold.revenue_daily"
    assert (
        reader.json("/api/sql", {"sql": count, "known_at": first})["rows"]
        != reader.json("/api/sql", {"sql": count})["rows"]
    )


def test_the_flow_adds_up_and_quarantined_records_can_be_read(reader: Reader) -> None:
    flow = reader.json("/api/flow")
    assert flow["balanced"]
    (orders,) = [each for each in flow["fates"] if each["dataset"] == "silver.orders"]
    assert orders["landed"] == orders["accepted"] + orders["duplicate"] + orders["quarantined"]
    (rule,) = flow["quarantined"]
    (record,) = reader.json(f"/api/quarantine/{rule['dataset']}", reason=rule["reason"])
    assert record["position"].startswith("orders/")
    assert record["value"]


def test_rows_are_downloaded_as_they_are(reader: Reader, shop: Project) -> None:
    rows = shop.table("silver.priced_orders").arrow()
    status, body, headers = reader.ask("/download/silver.priced_orders.parquet")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="silver.priced_orders.parquet"')
    assert pq.read_table(BytesIO(body)).to_pylist() == rows.to_pylist()
    text = reader.page("/download/silver.priced_orders.csv")
    assert text.count("\n") == rows.num_rows + 1
    # The struct of the product's version is JSON, quoted as CSV does.
    assert '""price_euro"":' in text
    assert reader.ask("/download/silver.priced_orders.exe")[0] == 404


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A console of tables of which one file is damaged: the last one of `gold.late`, the only one of `gold.early`."""
    folder = tmp_path_factory.mktemp("damaged")
    declare_a_topic(folder)
    # Arrow reads up to four files ahead.
    for name, parts in {"late": 10, "early": 1}.items():
        table = folder / "lake" / "gold" / name
        for part in range(parts):
            numbers = range(part * 60_000, (part + 1) * 60_000)
            rows = pa.table({"n": pa.array(numbers), "text": [f"text {n * 7919 % 1_000_003}" for n in numbers]})
            write_deltalake(table, rows, mode="append")
        (file,) = [path for path in table.glob("*.parquet") if pq.read_table(path)["n"][0].as_py() == 0]
        found = bytearray(file.read_bytes())
        middle = len(found) // 2
        found[middle : middle + 50_000] = bytes(50_000)
        file.write_bytes(found)
    with Project(folder, {"lake": str(folder / "lake")}) as project, served(project) as reader:
        yield reader


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_download_that_fails_late_is_broken_off_and_one_that_fails_at_once_is_an_error(
    damaged: Reader, form: str
) -> None:
    with urllib.request.urlopen(f"{damaged.server.url}/download/gold.late.{form}", timeout=patience_seconds) as answer:
        assert answer.read(10_000), "it was to fail late"
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
    status, page, headers = damaged.ask(f"/download/gold.early.{form}")
    assert (status, headers["Content-Disposition"]) == (404, None)
    assert b"Corrupt snappy" in page


def test_a_client_that_could_not_notice_a_download_that_is_broken_off_gets_none(damaged: Reader) -> None:
    address = urlsplit(damaged.server.url)
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as client:
        client.sendall(b"GET /download/gold.late.csv HTTP/1.0\r\nHost: localhost\r\n\r\n")
        with client.makefile("rb") as answer:
            assert answer.readline().split()[1] == b"426"
            assert b"HTTP/1.1" in answer.read()


def test_dashboards_are_files_of_the_project(reader: Reader, shop: Project) -> None:
    assert "Revenue" in reader.page("/dashboards/sales")
    assert {name for name, _ in points(reader.json("/api/dashboards/sales/0"))} == {"Tea"}
    assert reader.json("/api/dashboards/sales/1")["kind"] == "bars"
    stops = shop.lake.commits("gold.revenue_daily")
    assert reader.page("/dashboards/sales").count("&#34;at&#34;") == len(stops)
    first = datetime.fromtimestamp(stops[0].timestamp_ms / 1000, UTC).isoformat()
    assert reader.json("/api/dashboards/sales/0", known_at=first) != reader.json("/api/dashboards/sales/0")
    assert "give either a table or sql" in reader.page("/dashboards/wrong")
    assert "There is no dashboard" in reader.page("/dashboards/nothing")
    assert "There is no such chart" in reader.json("/api/dashboards/sales/9")["error"]


def test_a_dashboard_cannot_replace_a_table_for_others(reader: Reader) -> None:
    before = reader.json("/api/tables/gold.revenue_daily/rows")["rows"]
    assert "only reads" in reader.json("/api/dashboards/evil/0")["error"]
    assert reader.json("/api/tables/gold.revenue_daily/rows")["rows"] == before


def test_only_its_own_pages_and_names_are_answered(reader: Reader) -> None:
    assert reader.ask("/", Host="evil.example")[0] == 421
    assert reader.ask("/", Host="localhost:1234")[0] == 200
    ask = {"sql": "SELECT 1"}
    assert reader.ask("/api/sql", ask, Origin="http://evil.example")[0] == 403
    assert reader.ask("/api/sql", ask, Origin="null")[0] == 403
    assert reader.ask("/api/sql", ask, Sec_Fetch_Site="cross-site")[0] == 403
    assert reader.ask("/api/sql", ask, Origin=reader.server.url)[0] == 200


def test_with_a_token_only_who_has_it_reads(shop: Project, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with served(shop, token=token, certificate=certificate, key=key) as reader:
        assert reader.ask("/api/flow")[0] == 401
        assert reader.ask("/events")[0] == 401
        assert reader.ask("/assets/console.js")[0] == 401
        status, _, headers = reader.ask("/", Accept="text/html")
        assert (status, headers["location"]) == (303, "/login?next=%2F")
        for wanted, target in (
            ("/dashboards/sales", "/dashboards/sales"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
        ):
            _, _, headers = reader.ask(f"/login?{urlencode({'next': wanted})}", f"token={token}".encode())
            assert headers["location"] == target
        assert reader.ask("/login", b"token=wrong")[0] == 401
        status, _, headers = reader.ask("/login", f"token={token}".encode())
        assert status == 303
        given = headers["set-cookie"]
        assert {"HttpOnly", "Secure", "SameSite=strict"} <= set(given.split("; "))
        assert token not in given
        assert reader.ask("/api/flow", Cookie=given.split(";")[0])[0] == 200
        assert reader.ask("/api/flow", Authorization=f"Bearer {token}")[0] == 200
        assert reader.ask("/api/flow", Authorization=f"Bearer {token}x")[0] == 401


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "Other machines could read"),
        ({"host": "0.0.0.0", "token": token}, "Other machines could read"),
        ({"token": "short"}, "can be guessed"),
        ({"certificate": Path("/nothing")}, "needs both"),
        ({"certificate": Path("/nothing"), "key": Path("/nothing")}, "There is no file"),
    ],
)
def test_options_that_would_let_others_read_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Options(**options).require()


def test_new_commits_reach_who_listens(ran: Path, spark: "SparkSession", tmp_path: Path) -> None:
    shutil.copytree(ran, tmp_path / "shop")
    with (
        Project(tmp_path / "shop", spark=spark) as project,
        served(project) as reader,
        urllib.request.urlopen(f"{reader.server.url}/events", timeout=patience_seconds) as events,
    ):
        before = next_versions(events)
        project.append("orders", [order(9, "tea")], key_field="order_id")
        project.run()
        while (now := next_versions(events))["gold.revenue_daily"] == before["gold.revenue_daily"]:
            continue
        assert now["gold.revenue_daily"] > before["gold.revenue_daily"]


def next_versions(events: Any) -> dict[str, int]:
    """The newest versions that an open page hears of, once a pass is over."""
    while not (line := events.readline().decode()).startswith("data: "):
        assert line, "the stream ended"
    return dict(json.loads(line.removeprefix("data: ")))


def test_the_changes_of_a_table_are_events_that_go_on_where_a_reader_was(reader: Reader, shop: Project) -> None:
    path = f"{reader.server.url}/tables/gold.revenue_daily/events"
    expected = [change.cursor for change in shop.subscribe("gold.revenue_daily")]
    assert ids(path, len(expected)) == expected
    assert ids(path, 1, **{"Last-Event-ID": expected[-2]}) == expected[-1:]
    only = "product%20=%20'Tea'"
    assert len(ids(f"{path}?where={only}", 2)) == 2
    assert "is not a place" in reader.json("/tables/gold.revenue_daily/events?since=x")["error"]
    assert "is not an SQL expression" in reader.json("/tables/gold.revenue_daily/events?where=1;2")["error"]


def ids(url: str, number: int, **headers: str) -> list[str]:
    """The ids of the first events of a stream."""
    found: list[str] = []
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=patience_seconds) as stream:
        while len(found) < number:
            line = stream.readline().decode()
            assert line, "the stream ended"
            if line.startswith("id: "):
                found.append(line.removeprefix("id: ").strip())
    return found


def test_twenty_readers_see_whole_passes_while_a_run_writes(ran: Path, spark: "SparkSession", tmp_path: Path) -> None:
    """Each of them, by each way in, finds gold to be what silver gives at every moment."""
    shutil.copytree(ran, tmp_path / "shop")
    question = "SELECT (SELECT count(*) FROM silver.priced_orders), (SELECT sum(orders)::INT FROM gold.revenue_daily)"
    seen: list[tuple[int, int]] = []
    wrong: list[object] = []
    stop = threading.Event()

    def by_page() -> tuple[int, int]:
        ((orders, counted),) = reader.json("/api/sql", {"sql": question})["rows"]
        return int(orders), int(counted)

    def by_protocol() -> tuple[int, int]:
        with psycopg2.connect(host="127.0.0.1", port=sql.port, user="me", dbname="lake") as client:
            cursor = client.cursor()
            cursor.execute(question)
            orders, counted = cursor.fetchone() or (0, 0)
            return int(orders), int(counted)

    def by_subscription() -> tuple[int, int]:
        """All changes up to the end of a version add up to a table of gold that once was."""
        total, whole = 0, 0
        for change in project.subscribe("gold.revenue_daily"):
            total += sum(sign * row["orders"] for sign, row in ((1, change.new), (-1, change.old)) if row)
            whole = total if change.is_last else whole
        return whole, whole if whole in known else -1

    def read(number: int, ask: Callable[[], tuple[int, int]]) -> None:
        # One after the other, each again after four seconds: else the readers of one Python are in each other's way.
        seconds = number / 5
        while not stop.wait(seconds):
            try:
                seen.append(ask())
                asked[number] += 1
            except Exception as error:  # noqa: BLE001 - a reader in a thread reports what went wrong
                wrong.append(error)
            seconds = 4

    with Project(tmp_path / "shop", spark=spark) as project, served(project) as reader:
        sql = SqlServer(project.lake, SqlOptions(port=0))
        first = int(project.query("SELECT count(*) FROM silver.orders").rows[0][0])
        known = {4, *range(first, first + 100)}
        ways = [by_page] * 10 + [by_protocol] * 8 + [by_subscription] * 2
        asked = [0] * len(ways)
        readers = [threading.Thread(target=read, args=each) for each in enumerate(ways)]
        threads = [threading.Thread(target=sql.serve), *readers]
        for thread in threads:
            thread.start()
        for number in range(100, 200):
            project.append("orders", [order(number, "tea", day=1 + number % 5)], key_field="order_id")
            project.run()
            if wrong or (len({orders for orders, _ in [*seen]}) >= 3 and min(asked) >= 2):
                break
        stop.set()
        for thread in threads[1:]:
            thread.join()
        sql.close()
        threads[0].join()
    assert wrong == []
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    assert len({orders for orders, _ in seen}) >= 3, "the readers saw the tables move"


def test_a_broken_table_is_reported_and_hides_no_other(ran: Path, spark: "SparkSession", tmp_path: Path) -> None:
    shutil.copytree(ran, tmp_path / "shop")
    with Project(tmp_path / "shop", spark=spark) as project:
        log = Path(project.lake.path("silver.products"), "_delta_log")
        for file in log.glob("*.json"):
            file.write_text("no JSON")
        with served(project) as reader:
            assert "gold.revenue_daily" in reader.page("/")
            assert reader.ask("/tables/gold.revenue_daily")[0] == 200
            assert reader.ask("/tables/silver.products")[0] in (200, 404)
            assert "error" in reader.json("/api/tables/silver.products/rows")
            flow = reader.json("/api/flow")
            assert not flow["balanced"]
            assert {each["dataset"] for each in flow["broken"]} >= {"silver.products"}


def test_the_charts_are_drawn_by_the_library_that_is_named() -> None:
    assets = Path(console.__file__).parent / "assets"
    digest, name = (assets / "echarts.sha256").read_text().split()
    assert hashlib.sha256((assets / name).read_bytes()).hexdigest() == digest
    assert "Apache" in (assets / "echarts.LICENSE").read_text()


def test_labels_carry_the_units_of_names() -> None:
    assert label_of("departure_delay_minutes_avg").with_unit == "Departure delay, average (min)"
    assert label_of("revenue_euro").with_unit == "Revenue (€)"
    assert label_of("flights").with_unit == "Flights"
    assert label_of("minutes").with_unit == "Minutes"
    assert label_of("").with_unit == ""


def test_a_chart_suits_its_table() -> None:
    windows = {"k": "VARCHAR", "window_start": "TIMESTAMP WITH TIME ZONE", "window_end": "TIMESTAMP", "n": "BIGINT"}
    assert chart_of(windows, ["k", "window_start", "window_end"]) == Chart(
        "series", ("k",), ("n",), "window_start", "window_end", places={"n": 0}
    )
    assert chart_of({"day": "DATE", "k": "VARCHAR", "n": "DECIMAL(10,2)"}, ["k", "day"]) == Chart(
        "series", ("k",), ("n",), "day", places={"n": 2}
    )
    two = chart_of({"a": "VARCHAR", "b": "VARCHAR", "n": "DOUBLE"}, ["a", "b"])
    assert two is not None
    assert two.kind == "heat map"
    assert chart_of({"a": "VARCHAR"}, ["a"]) is None
    assert chart_of_answer({"n": "BIGINT"}) is None


def test_each_group_has_a_label_of_its_own_that_can_be_read() -> None:
    chart = Chart("series", ("zone",), ("n",), "at", None)
    zones = [None, "", "null", "north", "\u202eright", "x" * 300]
    rows = [{"at": datetime(2026, 3, 1, tzinfo=UTC), "zone": zone, "n": 1} for zone in zones]
    found = drawn(chart, "n", rows)["series"]
    labels = {line["group"]["zone"]: line["name"] for line in found}
    assert labels[None] == "null"
    assert (labels[""], labels["null"], labels["north"]) == ('""', '"null"', "north")
    assert labels["\u202eright"] == "right"
    assert len(labels["x" * 300]) == 100


def test_missing_windows_and_values_that_are_none_are_gaps() -> None:
    chart = Chart("series", (), ("n",), "window_start", "window_end")
    days = [datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 6)]
    values = {0: 1, 1: float("nan"), 3: 4}
    rows = [{"window_start": days[at], "window_end": days[at + 1], "n": value} for at, value in values.items()]
    (line,) = drawn(chart, "n", rows)["series"]
    milliseconds = [int(day.timestamp() * 1000) for day in days]
    assert line["points"] == [
        [milliseconds[0], 1],
        [milliseconds[1], None],
        [milliseconds[2], None],
        [milliseconds[3], 4],
    ]
    assert drawn(Chart("series", (), ("n",), "day"), "n", [{"day": date(2026, 3, 1), "n": 1}])["series"][0]["points"]


@pytest.mark.parametrize(
    ("days", "missing"), [((1, 2, 3, 6, 7), [4]), ((1, 8, 15), []), ((1, 2, 9, 20), []), ((1,), [])]
)
def test_days_are_missing_where_most_follow_each_other(days: tuple[int, ...], missing: list[int]) -> None:
    rows = [{"day": date(2026, 3, day), "n": 1} for day in days]
    (line,) = drawn(Chart("series", (), ("n",), "day"), "n", rows)["series"]
    gaps = [datetime.fromtimestamp(at / 1000, UTC).day for at, value in line["points"] if value is None]
    assert gaps == missing


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A console, whose queries may take 5 s, of tables that another program wrote, with values of every kind."""
    folder = tmp_path_factory.mktemp("others")
    declare_a_topic(folder)
    (folder / "dashboards").mkdir()
    (folder / "dashboards" / "long.yaml").write_text(
        "title: Long\ncharts:\n"
        "  - {title: N, sql: \"SELECT DATE '2000-01-01' + range::INT, 1 AS n FROM range(20001)\"}\n"
    )
    (folder / "dashboards" / "wrong.yaml").write_text(
        "title: Wrong\ncharts:\n"
        "  - {title: Measure, sql: \"SELECT 'a' AS k, 1 AS n\", measure: m}\n"
        "  - {title: Text, sql: SELECT 'a' AS k}\n"
    )
    rows: dict[str, Any] = {
        "text": pa.array(["null", None]),
        "local": pa.array([datetime(2026, 1, 1, 5, 30)] * 2, pa.timestamp("us")),  # noqa: DTZ001 - it has no zone
        "real": pa.array([0.1 + 0.2, math.nan]),
        "dates": pa.array([[(date(2026, 1, 1), 1)]] * 2, pa.map_(pa.date32(), pa.int64())),
        "offset": pa.array([1, 2]),
        "known_at": pa.array(["then", "later"]),
    }
    write_deltalake(folder / "lake" / "gold" / "others", pa.table(rows))
    with Project(folder, {"lake": str(folder / "lake")}) as project, served(project, statement_seconds=5) as found:
        yield found


def test_values_are_shown_as_they_are(others: Reader) -> None:
    with in_time_zone("America/New_York"):
        found = others.json("/api/tables/gold.others/rows", offset=0, known_at="2999-01-01")["rows"]
    dates = '{"2026-01-01": 1}'
    assert found == [
        ["null", "2026-01-01 05:30:00", "0.30000000000000004", dates, "1", "then"],
        [None, "2026-01-01 05:30:00", "nan", dates, "2", "later"],
    ]


def test_rows_and_points_of_a_null_are_asked_for_by_its_column(others: Reader) -> None:
    path = "/api/tables/gold.others"
    assert [row[0] for row in others.json(f"{path}/rows", null="text")["rows"]] == [None]
    assert [row[0] for row in others.json(f"{path}/rows", text="null")["rows"]] == ["null"]
    assert others.json(f"{path}/rows", null="nothing")["rows"] == others.json(f"{path}/rows")["rows"]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 'x' AS k, 1 AS n, 2 AS n", [["x", "1", "2"]]),
        ("SELECT [1] AS k, DATE '2026-01-01' AS day, 2 AS n", [["[1]", "2026-01-01", "2"]]),
        ("SELECT NULL::DATE AS day, 1 AS n", [[None, "1"]]),
        ("SELECT '0044-01-01 (BC)'::DATE AS day, 1 AS n", [["0044-01-01 (BC)", "1"]]),
        ("SELECT 'a' AS window_start, 'b' AS window_end, 3 AS n", [["a", "b", "3"]]),
        ("SELECT 'infinity'::TIMESTAMP, '-infinity'::DATE; -- the 'ends'", [["infinity", "-infinity"]]),
        (
            "SELECT ['infinity'::TIMESTAMPTZ] AS a, {'b': '-infinity'::DATE} AS a",
            [['["infinity"]', '{"b": "-infinity"}']],
        ),
        (
            "SELECT 'infinity'::DATE AS day, 1 AS n UNION ALL SELECT '2026-01-01', 2",
            [["infinity", "1"], ["2026-01-01", "2"]],
        ),
        ("SELECT MAP {DATE '2026-01-01': [1, 2]::INT[2]}", [['{"2026-01-01": [1, 2]}']]),
    ],
)
def test_unusual_answers_are_answers(others: Reader, sql: str, rows: list[list[str]]) -> None:
    assert others.json("/api/sql", {"sql": sql})["rows"] == rows


def test_times_without_an_end_are_told_from_all_others_in_rows_and_downloads(tmp_path: Path) -> None:
    declare_a_topic(tmp_path)
    ends = ("'infinity'", "'-infinity'", "'9999-12-31 12:00:00.5'")
    row = "SELECT {0}::TIMESTAMPTZ AS at, {0}::TIMESTAMP::DATE AS day, [{0}::TIMESTAMP] AS many"
    with duckdb.connect() as made:
        made.execute("SET TimeZone = 'UTC'")
        rows = made.sql(" UNION ALL ".join(row.format(end) for end in ends)).to_arrow_table()
    # The writer fails to add up days that have no end.
    no_statistics = {"delta.dataSkippingNumIndexedCols": "0"}
    write_deltalake(tmp_path / "lake" / "gold" / "ends", rows, configuration=no_statistics)
    with Project(tmp_path, {"lake": str(tmp_path / "lake")}) as project, served(project) as reader:
        shown = reader.json("/api/tables/gold.ends/rows")["rows"]
        text = reader.page("/download/gold.ends.csv")
        parquet = tmp_path / "ends.parquet"
        parquet.write_bytes(reader.ask("/download/gold.ends.parquet")[1])
    last = "9999-12-31 12:00:00.500000"
    assert sorted(shown) == [
        ["-infinity", "-infinity", '["-infinity"]'],
        [last, "9999-12-31", f'["{last}"]'],
        ["infinity", "infinity", '["infinity"]'],
    ]
    assert sorted(text.splitlines()) == [
        '"-infinity","-infinity","[""-infinity""]"',
        '"9999-12-31 12:00:00.5+00","9999-12-31","[""9999-12-31 12:00:00.5""]"',
        '"at","day","many"',
        '"infinity","infinity","[""infinity""]"',
    ]
    endless = "isinf(day) AND isinf(many[1]) AND isinf(ends.at)"
    with duckdb.connect() as found:
        assert found.execute(f"SELECT count(*) FROM '{parquet}' ends WHERE {endless}").fetchall() == [(2,)]


def test_a_point_at_a_time_without_an_end_is_counted_and_not_drawn() -> None:
    chart = Chart("series", (), ("n",), "window_start", "window_end")
    day = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {"window_start": "infinity", "window_end": "infinity", "n": 1},
        {"window_start": day, "window_end": "infinity", "n": 2},
    ]
    found = drawn(chart, "n", rows)
    assert [point[1] for line in found["series"] for point in line["points"]] == [2]
    assert found["notes"] == ["1 points without a time are not drawn."]
    many = [rows[0], *[{**rows[1], "window_start": day - timedelta(days=at)} for at in range(points_max)]]
    assert "Only the newest 20,000 points are drawn." in drawn(chart, "n", many, many)["notes"]


def test_what_cannot_be_answered_is_a_message(others: Reader) -> None:
    assert "cannot be shown" in others.json("/api/sql", {"sql": "SELECT INTERVAL 1000000000 days"})["error"]
    assert "too large" in others.json("/api/sql", {"sql": "SELECT repeat('x', 300000) FROM range(100)"})["error"]
    for body in (b"[" * 99_999, b'{"sql": "SELECT \'\\ud800\'"}'):
        assert "Send the query as JSON" in others.json("/api/sql", body)["error"]


def test_a_condition_without_end_is_ended(tmp_path: Path) -> None:
    declare_a_topic(tmp_path)
    write_deltalake(tmp_path / "lake" / "gold" / "one", pa.table({"a": range(200_000)}))
    endless = "list_sum(range(10000 + a)) > 0"
    with (
        Project(tmp_path, {"lake": str(tmp_path / "lake")}) as project,
        served(project, statement_seconds=0.5) as reader,
    ):
        assert "took longer" in reader.json("/tables/gold.one/events", where=endless)["error"]


def test_pages_elsewhere_may_link_here_and_ask_nothing(others: Reader) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert others.ask("/sql", **elsewhere, Sec_Fetch_Mode="navigate")[0] == 200
    assert others.ask("/api/tables/gold.others/rows", **elsewhere, Sec_Fetch_Mode="no-cors")[0] == 403
    assert others.ask("/api/tables/gold.others/rows", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200


def test_an_open_snapshot_is_read_while_another_is_opened(others: Reader) -> None:
    path = "/api/tables/gold.others/rows"
    rows = others.json(path)["rows"]
    with others.server.console.snapshots.opening:
        assert others.json(path)["rows"] == rows


def test_an_error_of_the_console_carries_the_policy_and_tells_nothing(
    others: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(others.server.console.facts, "flow", fail)
    status, body, headers = others.ask("/api/flow")
    assert status == 500
    assert b"secret" not in body
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_what_is_cut_off_is_said(others: Reader) -> None:
    assert "The answer has no measure m" in others.json("/api/dashboards/wrong/0")["error"]
    assert "The answer has no number to draw" in others.json("/api/dashboards/wrong/1")["error"]
    assert "20,000" in others.json("/api/dashboards/long/0")["notes"][0]
    found = others.json("/api/sql", {"sql": "SELECT 'k' || range AS k, 1 AS n FROM range(1001)"})
    assert "1,000 rows" in found["charts"][0]["notes"][0]


def test_events_after_a_position_that_does_not_exist_are_refused_before_they_begin(others: Reader) -> None:
    path = "/tables/gold.others/events"
    for wrong, said in {
        "0:7": "0 to 1; there is no position 7",
        "9": "its newest version is 0",
        "x": "not a place",
    }.items():
        for answer in (others.ask(path, Last_Event_ID=wrong), others.ask(f"{path}?since={wrong}")):
            assert answer[0] == 400
            assert said in answer[1].decode()


def test_a_stream_whose_condition_nothing_meets_goes_on_where_all_was_read(
    others: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    of_version = Subscription.of_version

    def counted(subscription: Subscription, version: int, at: Cursor) -> Any:
        read.append(version)
        return of_version(subscription, version, at)

    monkeypatch.setattr(Subscription, "of_version", counted)
    path = f"{others.server.url}/tables/gold.others/events?where=text%20=%20'none'"
    with urllib.request.urlopen(path, timeout=patience_seconds) as stream:
        lines = [stream.readline().decode().strip() for _ in range(6)]
    assert lines[0].startswith("id: 0:all:")
    assert lines[1:] == ["", ":", "", ":", ""]
    assert read == [0]


def test_a_proxy_may_have_another_scheme(others: Reader) -> None:
    ask = {"sql": "SELECT 1"}
    assert others.ask("/api/sql", ask, Origin="https://127.0.0.1", Sec_Fetch_Site="same-origin")[0] == 200
    assert others.ask("/api/sql", ask, Origin="https://127.0.0.1")[0] == 403


def test_a_point_beyond_the_limit_did_not_disappear() -> None:
    days = [date.fromordinal(number) for number in range(700_000, 700_000 + points_max + 5)]
    series = Chart("series", (), ("n",), "day")
    before = [{"day": day, "n": 1} for day in reversed(days[:-3])]
    now = [{"day": day, "n": 1} for day in reversed(days)]
    figure = drawn(series, "n", now[: points_max + 1], before[: points_max + 1])
    assert len(figure["series"][0]["points"]) == 3
    assert figure["notes"][0] == "Only the newest 20,000 points are drawn."
    assert "3 of these points had a value at only one of the two times" in figure["notes"][1]


def test_bytes_name_a_row_as_they_are_shown() -> None:
    values = {"text": "é'".encode(), "digest": b"\xab\xf3"}
    kinds = dict.fromkeys(values, "BLOB")
    conditions = " AND ".join(condition_of(name, kinds[name], text_of(value)) for name, value in values.items())
    sql = f"SELECT {conditions} FROM (SELECT ?::BLOB AS text, ?::BLOB AS digest)"
    assert duckdb.execute(sql, [*values.values()]).fetchall() == [(True,)]
    assert text_of(values["digest"]) == "ABF3"


def test_differences_of_decimals_are_exact() -> None:
    was, now = ([{"k": "a", "n": Decimal(f"12345678901234567890.0{cents}")}] for cents in (1, 3))
    assert drawn(Chart("bars", ("k",), ("n",)), "n", now, was)["values"] == [0.02]


def test_a_charts_unit_is_the_declared_one_before_that_of_the_name() -> None:
    rows = [{"k": "a", "delay_minutes": 1}]
    bars = Chart("bars", ("k",), ("delay_minutes",))
    assert [drawn(bars, "delay_minutes", rows, unit=unit)["unit"] for unit in ("hours", "", None)] == [
        "hours",
        "",
        "min",
    ]


def test_money_has_its_places_and_days_have_no_hours() -> None:
    types = {"day": "DATE", "price": "DECIMAL(10,2)", "rate": "DOUBLE"}
    chart = chart_of(types, ["day"])
    assert chart is not None
    rows = [{"day": date(2026, 3, day), "price": Decimal("4.50"), "rate": 0.5} for day in (1, 2)]
    price, rate = (drawn(chart, name, rows) for name in ("price", "rate"))
    assert (price["places"], rate["places"], price["is_daily"]) == (2, None, True)
    assert [decimal_places(kind) for kind in ("BIGINT", "DECIMAL(31,2)", "DOUBLE", "VARCHAR")] == [0, 2, None, None]
    hours = Chart("series", (), ("n",), "window_start", "window_end")
    begins = datetime(2026, 3, 1, tzinfo=UTC)
    windows = [
        {"window_start": begins, "window_end": begins + length, "n": 1} for length in (timedelta(1), timedelta(hours=1))
    ]
    assert [drawn(hours, "n", [each])["is_daily"] for each in windows] == [True, False]
    assert [text_of(Decimal(text)) for text in ("4.50", "0E-8", "1E+2")] == ["4.50", "0.00000000", "100"]


def test_a_heat_map_tells_null_from_its_name_and_sorts_numbers() -> None:
    rows = [
        {"a": a, "b": b, "n": n} for n, (a, b) in enumerate([(10, "null"), (9, None), (None, "null"), (None, "null")])
    ]
    figure = drawn(Chart("heat map", ("a", "b"), ("n",)), "n", rows)
    assert (figure["columns"], figure["lines"]) == (["9", "10", "null"], ['"null"', "null"])
    assert figure["cells"] == [[1, 0, 0], [0, 1, 1], [2, 0, 2], [2, 0, 3]]
    assert "several rows" in figure["notes"][0]


def test_a_dashboard_that_is_wrong_says_where(tmp_path: Path) -> None:
    (tmp_path / "dashboards").mkdir()
    for text, said in {
        "title: [": "is not YAML",
        "- 1": "is no dashboard",
        "title: T\ncharts: [{title: A, sql: x, colour: red}]": "charts.0.colour",
    }.items():
        (tmp_path / "dashboards" / "d.yaml").write_text(text)
        with pytest.raises(UsageError, match=said):
            dashboards.read(tmp_path, "d")
    with pytest.raises(UsageError, match="There is no dashboard"):
        dashboards.read(tmp_path, "../d")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    assert chromium, "There is no Chromium. Run: python -m infra.servers install --for-tests"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: "Browser", tmp_path: Path) -> Iterator["Page"]:
    """A page of a real browser; it must report no error, and ask for nothing elsewhere."""
    said: list[str] = []
    asked: list[str] = []
    with browser.new_context(viewport={"width": 1280, "height": 900}) as own:
        found = own.new_page()
        found.set_default_timeout(60_000)
        found.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        found.on("pageerror", lambda error: said.append(str(error)))
        found.on("request", lambda request: asked.append(request.url))
        yield found
        found.screenshot(path=tmp_path / "page.png")
        title = found.title()
    assert said == []
    assert "owned" not in title
    assert all(url.startswith(("http://127.0.0.1:", "data:")) for url in asked), asked


value_of = "point => (point.value ?? point)[1]"
drawn_option = "() => window.echarts?.getInstanceByDom(document.getElementById('chart'))?.getOption() ?? null"


# How many points of the lineage's picture are drawn in its outermost lines.
ink_at_the_edge = """() => {
  const canvas = document.querySelector("#lineage canvas"), { width, height } = canvas;
  const alphas = (...box) => canvas.getContext("2d").getImageData(...box).data.filter((_, at) => at % 4 === 3);
  const ink = (...box) => alphas(...box).reduce((sum, alpha) => sum + (alpha > 0), 0);
  if (!ink(0, 0, width, height)) return -1;
  return ink(0, 0, width, 2) + ink(0, height - 2, width, 2) + ink(0, 0, 2, height) + ink(width - 2, 0, 2, height);
}"""


@pytest.mark.browser
def test_people_see_a_figure_move_and_find_out_why(
    ran: Path, spark: "SparkSession", tmp_path: Path, page: "Page"
) -> None:
    shutil.copytree(ran, tmp_path / "shop")
    with Project(tmp_path / "shop", spark=spark) as project, served(project) as reader:
        page.goto(f"{reader.server.url}/tables/gold.revenue_daily")
        page.wait_for_function(drawn_option, polling=100)
        page.get_by_role("cell", name="img src=x").first.wait_for()
        assert hostile in page.inner_text("#rows"), "what a producer sent is text"
        page.select_option("select[name=measure]", "orders")
        page.select_option("select[name=product]", "Tea")
        page.wait_for_function(
            f"() => ({drawn_option})()?.series.map((line) => line.name).join() === 'Tea'", polling=100
        )
        page.wait_for_function("() => !document.querySelector('#rows').innerText.includes('img src')", polling=100)
        assert page.evaluate(f"({drawn_option})().yAxis[0].name") == "Orders"
        before = tea_of_the_first(page)
        assert "9.50" in page.locator("#rows td.number").all_inner_texts()

        project.append("orders", [order(9, "tea", quantity=3)], key_field="order_id")
        project.run()
        page.wait_for_function(
            f"() => ({drawn_option})().series[0].data.map({value_of})[0] === {before + 1}", polling=100
        )

        page.get_by_role("row").filter(has_text="Tea").filter(has_text="2026-03-01 00:00:00").first.click()
        page.get_by_text("Find the records behind it").click()
        page.get_by_text("because of orders/").first.wait_for()
        assert page.locator("#why li").count() == 3

        # The times of the slider are those of the page when it was opened.
        page.reload()
        page.wait_for_function(drawn_option, polling=100)
        page.select_option("select[name=product]", "Tea")
        page.locator("#known-at").press("Home")
        page.wait_for_function(
            f"() => ({drawn_option})().series[0].data.map({value_of})[0] === {before - 1}", polling=100
        )
        assert "version 0" in page.inner_text("#known-text")
        page.wait_for_function("() => document.querySelector('[data-fact=version]').innerText === '0'", polling=100)


def tea_of_the_first(page: "Page") -> int:
    """The value that is drawn of the first window."""
    return int(page.evaluate(f"({drawn_option})().series[0].data.map({value_of})[0]"))


@pytest.mark.browser
def test_an_answer_that_comes_late_does_not_replace_that_to_a_newer_question(reader: Reader, page: "Page") -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        is_first = "measure=orders" in route.request.url and "product=" not in route.request.url
        held.append(route) if is_first else route.continue_()

    page.goto(f"{reader.server.url}/tables/gold.revenue_daily")
    page.wait_for_function(drawn_option, polling=100)
    page.route("**/chart?*", hold)
    page.select_option("select[name=measure]", "orders")
    page.select_option("select[name=product]", "Tea")
    names = f"({drawn_option})()?.series.map((line) => line.name).join()"
    page.wait_for_function(f"() => {names} === 'Tea'", polling=100)
    (first,) = held
    with page.expect_response(lambda answer: answer.url == first.request.url):
        first.continue_()
    page.wait_for_timeout(500)
    assert page.evaluate(names) == "Tea"


@pytest.mark.browser
def test_people_query_follow_the_flow_and_read_a_dashboard(reader: Reader, page: "Page") -> None:
    page.goto(f"{reader.server.url}/sql")
    page.fill("#sql", "SELECT product, sum(orders)::INT AS orders FROM gold.revenue_d")
    page.locator("#sql").press("Control+Space")
    page.locator("#sql").press("Enter")
    page.locator("#sql").press("End")
    page.keyboard.type(" GROUP BY 1")
    page.locator("#sql").press("Control+Enter")
    page.get_by_role("cell", name="Tea").wait_for()
    assert page.locator("#sql-chart canvas").count() == 1
    page.goto(f"{reader.server.url}/flow")
    page.get_by_text("Everything adds up").wait_for()
    assert page.evaluate(ink_at_the_edge) == 0, "an arrow of the lineage is cut off"
    page.get_by_text("malformed_json").click()
    page.get_by_text("orders/").first.wait_for()
    page.get_by_text("They cannot be used as they are").wait_for()
    page.goto(f"{reader.server.url}/dashboards/sales")
    page.locator("[data-panel] canvas").nth(1).wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/", "/tables/gold.revenue_daily", "/flow", "/sql", "/dashboards/sales"):
        page.goto(f"{reader.server.url}{path}")
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


@pytest.mark.browser
def test_people_get_no_part_of_a_file_for_all_of_it(damaged: Reader, page: "Page") -> None:
    page.goto(f"{damaged.server.url}/tables/gold.late")
    for name in ("csv", "parquet"):
        with page.expect_download() as started:
            page.locator(f"#{name}").click()
        assert started.value.failure()


@pytest.mark.browser
def test_people_choose_the_group_of_null_and_the_one_of_its_name(
    spark: "SparkSession", tmp_path: Path, page: "Page"
) -> None:
    declare_a_topic(tmp_path)
    with (tmp_path / "pipelines" / "__init__.py").open("a") as file:
        file.write(
            "from sluice import gold, silver\n"
            "sold = silver.events('sold', source=others, schema='id int, shop string, place string', keys=['id'])\n"
            "gold.aggregate('by_shop', source=sold, group_by=['shop', 'place'], measures={'n': 'count(*)'})\n"
        )
    sold = [{"shop": "a", "place": "x"}, *[{"shop": "null", "place": "x"}] * 22, *[{}] * 333]
    lines = "() => [...document.querySelectorAll('#rows tbody tr')].map((each) => each.lastChild.innerText).join()"
    with Project(tmp_path, spark=spark) as project, served(project) as reader:
        project.append("others", [{"id": number} | each for number, each in enumerate(sold)])
        project.run()
        page.goto(f"{reader.server.url}/tables/gold.by_shop")
        page.wait_for_function(f"() => ({lines})().length === 8", polling=100)
        assert page.locator("select[name=shop] option").all_inner_texts() == ["all", "null", "a", "null"]
        for place, shop, n in ((0, 3, "22"), (0, 1, "333"), (1, 1, "333"), (1, 3, "No rows.")):
            page.select_option("select[name=place]", index=place)
            page.select_option("select[name=shop]", index=shop)
            page.wait_for_function(f"() => ({lines})() === '{n}'", polling=100)


@pytest.mark.browser
def test_people_see_small_figures_and_what_is_cut_off(others: Reader, page: "Page") -> None:
    page.goto(f"{others.server.url}/sql")
    page.fill("#sql", "SELECT 'k' || range AS k, 0.0013 AS rate FROM range(1001)")
    page.locator("#sql").press("Control+Enter")
    page.get_by_text("Only the first 1,000 rows are drawn.").wait_for()
    assert page.locator("#answer td.number").first.inner_text() == "0.0013"
    page.goto(f"{others.server.url}/dashboards/long")
    page.get_by_text("Only the first 20,000 points are drawn.").wait_for()
