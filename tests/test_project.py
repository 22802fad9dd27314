"""The API: what `sluice` does, from Python, with a session of the tests or one of its own."""

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import Project
from sluice.api import Message, Record
from sluice.errors import LakeLocked, SluiceError, UsageError
from sluice.operate import recompute, requests
from sluice.runtime.settings import Settings
from sluice.storage.lock import is_locked, lake_lock
from tests.waiting import patience_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

tea = {"product_id": "tea", "name": "Tea"}
revenue_sql = "SELECT product, sum(revenue_euro) AS revenue FROM gold.revenue_daily GROUP BY 1 ORDER BY 1"


def append_lines(project: Project) -> None:
    """The records that a new project comes with."""
    for topic, key in (("products", "product_id"), ("orders", "order_id")):
        lines = (project.settings.project / f"{topic}.jsonl").read_bytes().splitlines()
        project.append(topic, lines, key_field=key)


@pytest.fixture(scope="module")
def ran(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project that ran once."""
    folder = tmp_path_factory.mktemp("projects") / "shop"
    project = Project.create(folder, spark=spark)
    append_lines(project)
    done = project.run()
    assert not done.is_wrong
    assert (done.records_landed, done.changed["silver.orders"]) == (9, 4)
    return folder


@pytest.fixture
def shop(ran: Path, spark: "SparkSession", tmp_path: Path) -> Iterator[Project]:
    """A copy of it."""
    shutil.copytree(ran, tmp_path / "shop")
    with Project(tmp_path / "shop", spark=spark) as project:
        yield project


def test_a_second_run_has_nothing_to_do(shop: Project) -> None:
    done = shop.run()
    assert done.events == ()
    assert done.up_to_date == len(shop.catalogue())
    assert {state.dataset: state.lag for state in shop.status()}["bronze.orders"] == 0


def test_a_table_is_read_in_each_format(shop: Project) -> None:
    table = shop.table("gold.revenue_daily")
    rows = table.rows
    arrow = table.arrow()
    assert len(rows) == arrow.num_rows > 0
    assert arrow.column_names == table.columns
    assert str(arrow.schema.field("window_start").type) == "timestamp[us, tz=UTC]"
    assert sum(row["revenue_euro"] for row in arrow.to_pylist()) == Decimal("54.50")
    assert table.polars()["revenue_euro"].sum() == Decimal("54.50")
    assert table.pandas()["revenue_euro"].sum() == Decimal("54.50")
    assert table.duckdb().aggregate("sum(revenue_euro)").fetchall() == [(Decimal("54.50"),)]
    relation = shop.table("gold.revenue_daily").duckdb()
    assert len(relation.fetchall()) == len(rows), "it outlives the table that it came from"


def test_a_query_is_answered_or_refused_at_once(shop: Project) -> None:
    answer = shop.query(revenue_sql)
    assert answer.columns == ["product", "revenue"]
    assert answer.arrow().to_pylist() == [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    for wrong in ("SELECT * FROM gold.nothing", "SELECT", ""):
        with pytest.raises(UsageError):
            shop.query(wrong)
    with pytest.raises(UsageError, match="cannot be answered"):
        shop.query(f"COPY (SELECT 1) TO '{shop.settings.project}/out.csv'")
    with pytest.raises(UsageError, match=r"There is no table gold.revenue_dayly; did you mean gold.revenue_daily\?"):
        shop.table("gold.revenue_dayly")
    shop.query(f"COPY (SELECT 1) TO '{shop.settings.project}/out.csv'", allow_files=True)
    assert (shop.settings.project / "out.csv").exists()


def test_what_is_not_installed_is_named(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    table = shop.table("gold.revenue_daily")
    for name in ("polars", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UsageError, match=f"{name} is not installed: pip install"):
            getattr(table, name)()


def test_a_late_price_changes_a_figure_and_is_named(shop: Project) -> None:
    before = shop.query(revenue_sql).rows
    first = shop.table("gold.revenue_daily")
    known_at = datetime.now(UTC)
    price = tea | {"changed_at": "2026-03-02T11:00:00Z", "price_euro": Decimal("9.00")}
    shop.append("products", [price], key_field="product_id")
    done = shop.run()
    assert {"bronze.products": 1, "gold.revenue_daily": 1}.items() <= done.changed.items()
    after = shop.query(revenue_sql).rows
    assert before != after
    assert shop.query(revenue_sql, known_at=known_at).rows == before
    assert shop.table("gold.revenue_daily", known_at).arrow() == first.arrow(), "one state, whatever is written later"
    changed = set(shop.table("gold.revenue_daily").rows) - set(first.rows)
    row = dict(zip(first.columns, changed.pop(), strict=True))
    values = shop.explain("gold.revenue_daily", product=row["product"], window_start=row["window_start"])
    assert [each.cause for each in values] == ["first build", "changes"]
    (origin,) = values[-1].origins
    assert [record.split("/")[0] for record in origin.records] == ["products"]
    with pytest.raises(UsageError, match=r"gold.revenue_daily was not there yet at 2000"):
        shop.table("gold.revenue_daily", datetime(2000, 1, 1, tzinfo=UTC))


def test_what_does_not_exist_is_named(shop: Project) -> None:
    for ask in (
        lambda: shop.run("gold.nothing"),
        lambda: shop.table("gold.nothing"),
        lambda: shop.table("nothing"),
        lambda: shop.explain("gold.nothing"),
        lambda: shop.check("gold.nothing"),
        lambda: shop.backfill("gold.nothing", since=datetime(2026, 1, 1, tzinfo=UTC)),
        lambda: shop.rollback("gold.nothing", because="a test"),
        lambda: shop.maintain("gold.nothing"),
        lambda: shop.replays.show("nothing"),
        lambda: shop.quarantine.records("gold.nothing"),
        lambda: shop.log.skip("nothing", because="a test"),
    ):
        with pytest.raises(UsageError, match="nothing"):
            ask()


def test_what_cannot_be_meant_is_refused(shop: Project) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - what is refused
    with pytest.raises(UsageError, match="without a time zone"):
        shop.table("gold.revenue_daily", naive)
    with pytest.raises(UsageError, match=r"valid_from is .*, without a time zone"):
        shop.standing.add("silver.alerts", "one", "price > 1", valid_from=naive)
    with pytest.raises(UsageError, match="without a time zone"):
        shop.backfill(since=naive)
    with pytest.raises(UsageError, match="Which event times"):
        shop.backfill()
    with pytest.raises(UsageError, match="no share"):
        shop.audit(recompute=2)
    with pytest.raises(UsageError, match="Say what to release"):
        shop.quarantine.release("silver.orders", because="a test")
    with pytest.raises(UsageError, match="say which row by product, window_start"):
        shop.explain("gold.revenue_daily", product="Tea")


def test_a_folder_that_is_no_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a Sluice project"):
        Project(tmp_path)
    assert list(tmp_path.iterdir()) == []
    bare = Project(tmp_path, any_folder=True)
    assert bare.append("t", ["a"]) == {0: 1}
    with pytest.raises(UsageError, match="not a Sluice project"):
        bare.run()
    with pytest.raises(UsageError, match="is not empty"):
        Project.create(tmp_path)


def test_settings_are_overridden(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "a", {"lake": "elsewhere", "parallel": 4})
    assert project.settings.lake_root == str(tmp_path / "a" / "elsewhere")
    assert Project(settings=Settings(project=tmp_path / "a", parallel=3)).settings.parallel == 3
    with pytest.raises(UsageError, match="laek is not a setting; did you mean lake"):
        Project(tmp_path / "a", {"laek": "x"})
    with pytest.raises(UsageError, match="SLUICE_PARALLEL='0'"):
        Project(tmp_path / "a", {"parallel": 0})


def test_numbers_that_json_lacks_are_appended_as_text_and_not_as_null(tmp_path: Path) -> None:
    project = Project(tmp_path, any_folder=True)
    values: list[Any] = [
        {"a": math.nan, "b": None},
        {"a": [1.5, (-math.inf,)], "b": {"c": math.inf, "d": Decimal("0E-10")}},
    ]
    project.append("t", values)
    assert [each.value for each in project.log.tail("t")] == [
        b'{"a":"NaN","b":null}',
        b'{"a":[1.5,["-Infinity"]],"b":{"c":"Infinity","d":0.0000000000}}',
    ]
    with pytest.raises(UsageError, match="it is 5, and neither a mapping nor text, bytes or None"):
        project.append("t", values + [5])  # noqa: RUF005 - the types of a list that has anything


def test_records_of_every_kind_are_appended(tmp_path: Path) -> None:
    project = Project(tmp_path, any_folder=True)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    own = Record(b"r", key="own", timestamp=at)
    project.append("t", [{"id": 1, "at": at, "price": Decimal("1.50")}, '{"id":2}', b"\xff", None, own], key="k")
    found = {record.value: record for record in project.log.tail("t", 10)}
    assert found[b'{"id":1,"at":"2026-01-01T00:00:00+00:00","price":1.50}'].key == "k"
    assert {b'{"id":2}', b"\xff", None} < set(found)
    assert (found[b"r"].key, found[b"r"].timestamp) == ("own", at)
    project.append("by_field", [{"id": 7}, {}], key_field="id")
    assert {record.key for record in project.log.tail("by_field")} == {"7", None}
    assert {each.topic: each.end_offset for each in project.log.topics() if each.end_offset > 1} == {"t": 5}
    assert not [fault for each in project.log.verify() for fault in each.faults]
    for value in (object(), Decimal("NaN")):
        with pytest.raises(UsageError, match="cannot be written"):
            project.append("t", [{"id": value}])
    for one in ({"id": 1}, "text", b"bytes", own):
        with pytest.raises(UsageError, match="give a list"):
            project.append("t", one)  # type: ignore[arg-type]
    project.append("texts", [Record("é", key="k")])  # type: ignore[arg-type]
    assert [each.value for each in project.log.tail("texts")] == ["é".encode()]
    with pytest.raises(UsageError, match="reserved for Sluice"):
        project.append("sluice_releases", [{}])
    with pytest.raises(UsageError, match="not both"):
        project.append("t", [{}], key="k", key_field="id")


def test_the_audit_adds_up_and_recomputes(shop: Project) -> None:
    found = shop.audit(recompute=1, seed=1)
    assert found.balanced
    orders = next(each for each in found.fates if each.dataset == "silver.orders")
    assert (orders.landed, orders.accepted, orders.quarantined) == (6, 4, 1)
    assert sum(each.rows for each in found.recomputed) > 0
    shutil.rmtree(Path(shop.lake.path("silver._fates")))
    assert not shop.audit().balanced


def test_tables_are_checked_and_reported(shop: Project) -> None:
    checked = shop.check("silver.orders")
    assert list(checked.found) == ["silver.orders"]
    assert not checked.is_critical
    assert {row["expectation"] for row in checked.broken} == {"usable_records"}
    assert "silver.orders" in Path(shop.report(checked)).read_text()
    assert "silver.orders" in shop.report_file("index.html")


def test_a_held_record_is_released(shop: Project) -> None:
    order = {"order_id": "late", "placed_at": "2999-01-01T00:00:00Z", "product_id": "tea", "quantity": 1}
    shop.append("orders", [order], key_field="order_id")
    rejected = {event.name: event.rejected for event in shop.run("silver.orders").events}
    assert rejected == {"bronze.orders": 0, "silver.orders": 1}
    held = {each.reason: each for each in shop.quarantine.list()}
    assert held["placed_at_in_the_future"].can_be_released
    (record,) = shop.quarantine.records("silver.orders", reason="placed_at_in_the_future")
    released = shop.quarantine.release("silver.orders", because="a test", positions=[record.position])
    assert (released.dataset, released.records) == ("silver.orders", 1)
    assert shop.run("silver.orders").changed["silver.orders"] == 1


def test_a_replay_is_promoted_and_rolled_back(shop: Project) -> None:
    pipelines = shop.settings.project / "pipelines" / "gold.py"
    pipelines.write_text(pipelines.read_text().replace('"sum(quantity)"', '"2 * sum(quantity)"'))
    assert shop.replays.plan(because="a test").tables == ("gold.revenue_daily",)
    steps: list[str] = []
    listening = Project(shop.settings.project, spark=shop.spark, on_event=lambda event: steps.append(event.name))
    replay = listening.replays.start(because="twice as many")
    assert steps == ["copying", "gold.revenue_daily"]
    assert replay.state == "built"
    rows = shop.table("gold.revenue_daily").arrow().num_rows
    assert shop.replays.promote(replay.name) == {"gold.revenue_daily": rows}
    assert [each.state for each in shop.replays.list()] == ["promoted"]
    assert shop.rollback(replay.name, because="not so") == {"gold.revenue_daily": rows}
    assert shop.run().held == ("gold.revenue_daily",)
    shop.replays.drop(replay.name)
    assert shop.replays.list() == ()


def test_a_range_is_recomputed_and_tables_are_maintained(shop: Project) -> None:
    since, until = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC)
    assert shop.backfill("gold.revenue_daily", since=since, until=until) == {"gold.revenue_daily": 0}
    done = shop.maintain("gold.revenue_daily", log_keep=timedelta(days=1))
    assert list(done.tables) == ["gold.revenue_daily"]
    assert set(done.segments_removed) == {"orders", "products"}


def test_a_lake_that_another_writes_is_refused(shop: Project) -> None:
    with lake_lock(shop.settings.lake_root), pytest.raises(LakeLocked, match=f"process {os.getpid()}"):
        shop.run()
    assert shop.run().events == ()


def test_a_request_that_cannot_be_served_ends_no_run(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("nobody expects it")

    # As killed commands leave them. One is about a table that somebody removed since, so that it is made again.
    asked = requests.Request(do="maintain", datasets=("gold.revenue_daily",))
    for each in (asked, asked.model_copy(update={"do": "recompute"})):
        requests.ask(shop.lake.files, each)
    table = shop.table("gold.revenue_daily").arrow()
    shutil.rmtree(Path(shop.settings.lake_root, "gold/revenue_daily"))
    monkeypatch.setattr(recompute, "recompute", breaks)
    heard: list[Message] = []
    with Project(shop.settings.project, spark=shop.spark, on_message=heard.append) as other:
        other.run()
    (warning,) = (each.text for each in heard if each.kind == "warning")
    assert warning.startswith("recompute gold.revenue_daily: RuntimeError: nobody expects it")
    assert requests.waiting(shop.lake.files) == []
    assert shop.table("gold.revenue_daily").arrow().equals(table)


def test_a_rollback_of_a_replay_takes_back_what_a_killed_promotion_had_left_to_do(shop: Project) -> None:
    declared = shop.settings.project / "pipelines/gold.py"
    declared.write_text(declared.read_text().replace('"sum(quantity)"', '"sum(quantity * 12)"'))
    before = shop.table("gold.revenue_daily").arrow().column("quantity")
    started = shop.replays.start(because="dozens")
    requests.ask(shop.lake.files, requests.Request(do="promote", replay=started.name))
    assert shop.rollback(started.name, because="no dozens") == {"gold.revenue_daily": len(before)}
    assert requests.waiting(shop.lake.files) == []
    assert shop.table("gold.revenue_daily").arrow().column("quantity").equals(before)
    with pytest.raises(SluiceError, match="already rolled back"):
        shop.rollback(started.name, because="once more")


def test_a_run_in_a_thread_does_what_others_ask(shop: Project, spark: "SparkSession") -> None:
    stop, ready = threading.Event(), threading.Event()
    told: list[Message] = []
    with Project(shop.settings.project, spark=spark, on_event=lambda event: ready.set()) as running:
        thread = threading.Thread(target=running.continuously, kwargs={"stop": stop})
        thread.start()
        try:
            assert ready.wait(patience_seconds)
            other = Project(shop.settings.project, spark=spark, on_message=told.append)
            since = datetime(2026, 3, 1, tzinfo=UTC)
            # By another project, and by the one that runs.
            for project in (other, running):
                with pytest.raises(LakeLocked):
                    project.run()
                assert project.backfill("gold.revenue_daily", since=since) == {"gold.revenue_daily": 0}
                assert project.check("gold.revenue_daily").found
            assert [(each.kind, "under way" in each.text) for each in told] == [("notice", True)] * len(told) != []
            with pytest.raises(SluiceError, match="was not promoted or rebuilt"):
                other.rollback("gold.revenue_daily", because="a test")
        finally:
            stop.set()
            thread.join(patience_seconds)
    assert not thread.is_alive()
    assert not is_locked(shop.settings.lake_root)


def test_two_projects_of_one_process_keep_apart(shop: Project, spark: "SparkSession", tmp_path: Path) -> None:
    with Project.create(tmp_path / "other", spark=spark) as other:
        pipelines = other.settings.project / "pipelines" / "gold.py"
        pipelines.write_text(pipelines.read_text().replace("revenue_daily", "takings"))
        (other.settings.project / "expectations" / "gold" / "revenue_daily.py").unlink()
        append_lines(other)
        assert "gold.takings" in other.run().changed
        assert shop.run().events == ()
        assert "gold.takings" not in {each.name for each in shop.catalogue()}
        assert other.table("gold.takings").arrow().num_rows == shop.table("gold.revenue_daily").arrow().num_rows
    assert spark.range(1).count() == 1, "a session that was given is left open"


def test_a_session_that_would_make_other_rows_is_refused(shop: Project, spark: "SparkSession") -> None:
    zone = "spark.sql.session.timeZone"
    spark.sparkContext._jsc.sc().conf().set(zone, "Europe/Paris")
    try:
        with pytest.raises(UsageError, match=f"started without {zone}=UTC"):
            Project(shop.settings.project, spark=spark)
    finally:
        spark.sparkContext._jsc.sc().conf().set(zone, "UTC")


# What is asked of its sessions does not depend on the tables.
one_topic = "from sluice import bronze\n\norders = bronze.topic('orders')\n"
own_session = """
import json, os, signal, sys
from pathlib import Path
from sluice import Project
from sluice.errors import UsageError
from sluice.storage.lock import is_locked

def mine(*_): ...

interrupted = []

def interrupt(event):
    if interrupted and event.kind == "started" and event.name == "bronze.orders":
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, mine)
said = {}
with Project(sys.argv[1]) as first, Project(sys.argv[1], on_event=interrupt) as second:
    first.run()
    jvm = first.spark.sparkContext._gateway.proc
    said["locked between runs"] = is_locked(first.settings.lake_root)
    files = [os.path.realpath(each) for each in Path(f"/proc/{jvm.pid}/fd").iterdir()]
    said["the JVM has the lock's file"] = f"{first.settings.lake_root}/.lock" in files
    said["second"] = ""
    try:
        second.run()
    except UsageError as error:
        said["second"] = str(error)
    first.close()
    said["the JVM has ended"] = jvm.poll() is not None
    said["another starts"] = second.run().up_to_date
    # As when it is killed for memory.
    other = second.spark.sparkContext._gateway.proc
    other.kill()
    other.wait()
    said["and after it was killed"] = second.run().up_to_date
    said["signals"] = signal.getsignal(signal.SIGINT) is mine
    last = second.spark.sparkContext._gateway.proc
    interrupted.append(True)
    try:
        second.run()
    except KeyboardInterrupt:
        has_ended = last.poll() is not None
        said["an interrupt ends it before the lock"] = has_ended and not is_locked(second.settings.lake_root)

third = Project(sys.argv[1])
# Nobody closes this one.
said["left open"] = third.spark.range(3).count()
print(json.dumps(said))
"""


@pytest.mark.spark
def test_a_project_starts_keeps_and_ends_a_session_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text(one_topic)
    (tmp_path / ".sluice" / "log").mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", own_session, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert "share it: Project(path, spark=other.spark)" in said.pop("second")
    assert said == {
        "locked between runs": False,
        "the JVM has the lock's file": True,
        "the JVM has ended": True,
        "another starts": 1,
        "and after it was killed": 1,
        "signals": True,
        "an interrupt ends it before the lock": True,
        "left open": 3,
    }
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_declarations_import_none_of_it() -> None:
    heavy = ("sluice.api", "sluice.storage", "duckdb", "deltalake")
    look = f"import sys; from sluice import bronze, gold; print([each for each in {heavy} if each in sys.modules])"
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout == "[]\n"
