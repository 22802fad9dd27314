"""Law 5: what an update reads and writes depends on the change, not on the size of the table."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice import bronze, silver
from sluice.model.scope import Scope
from tests.kit import Lakehouse, statements, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

rows_per_file = 500
facts_of_base = 2_000
sensors = 10
sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="sale_id string, sensor string, sold_at timestamp",
    keys=["sale_id"],
    event_time="sold_at",
    future_tolerance="100000 days",
)
settings = silver.history(
    "settings",
    source=bronze.topic("settings"),
    schema="sensor string, changed_at timestamp, setting int",
    keys=["sensor"],
    sequence_by="changed_at",
    future_tolerance="100000 days",
)
measured = silver.as_of("measured", facts=sales, event_time="sold_at", dimensions={"setting": settings})


@dataclass
class Cost:
    """What a run did: Parquet files that scans of tables read, and rows that commits wrote or copied, by table."""

    files_read: int
    rows_written: dict[str, int]
    rows_changed: dict[str, int]


@pytest.fixture(autouse=True)
def found_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the driver finds in tables is measured in `tests/test_small_reads.py`."""
    monkeypatch.setattr(Scope, "found", lambda *said: None)


def sale(number: int, hour: float | None = None) -> dict[str, object]:
    """One sale a minute, at one sensor after the other."""
    return {
        "sale_id": f"{number:09}",
        "sensor": f"s{number % sensors}",
        "sold_at": text(number / 60 if hour is None else hour),
    }


def base(spark: "SparkSession", folder: Path, facts: int) -> Lakehouse:
    """A lakehouse with that many facts, which ran once; its files are small, so that few facts fill many."""
    lakehouse = Lakehouse(spark, folder).declare(measured)
    lakehouse.lake = dataclasses.replace(lakehouse.lake, rows_per_file=rows_per_file, deletion_vectors_from_rows=1)
    lakehouse.publish("sales", *[sale(number) for number in range(facts)])
    hours = range(0, facts // 60 + 1, 10)
    lakehouse.publish(
        "settings",
        *[
            {"sensor": f"s{number}", "changed_at": text(hour), "setting": hour}
            for number in range(sensors)
            for hour in hours
        ],
    )
    lakehouse.run()
    # The first change of a table makes it one whose rows can be marked deleted; that is no part of any change.
    lakehouse.publish("settings", {"sensor": "s1", "changed_at": text(5.001), "setting": -2}).run()
    return lakehouse


def cost_of_run(lakehouse: Lakehouse) -> Cost:
    """Runs until caught up, and counts."""
    before = lakehouse.versions()
    with files_read(lakehouse.spark) as files:
        done = lakehouse.run()
    return Cost(
        files_read=sum(files),
        rows_written={table: rows_written(lakehouse, table, before[table]) for table in before if "silver" in table},
        rows_changed={name: event.rows.total for name, event in done.items()},
    )


def rows_written(lakehouse: Lakehouse, table: str, since: int) -> int:
    """The rows that commits after a version put into files, those copied along included."""
    path = Path(lakehouse.lake.path(table), "_delta_log")
    commits = [path / f"{version:020}.json" for version in range(since + 1, lakehouse.lake.newest_version(table) + 1)]
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    # A file that is named again with marks in it was not written again.
    added = [each["add"] for each in actions if "add" in each and "deletionVector" not in each["add"]]
    return sum(json.loads(each["stats"])["numRecords"] for each in added)


@contextmanager
def files_read(spark: "SparkSession") -> Iterator[list[int]]:
    """The files that each scan of Parquet reads, as Spark's own metrics tell."""
    store = spark._jsparkSession.sharedState().statusStore()
    known, found = max(statements(spark, after=-1)), list[int]()
    yield found
    for execution in statements(spark, after=known):
        values = store.executionMetrics(execution)
        nodes = store.planGraph(execution).allNodes()
        for number in range(nodes.size()):
            node = nodes.apply(number)
            if not node.name().startswith("Scan parquet"):
                continue
            for place in range(node.metrics().size()):
                metric = node.metrics().apply(place)
                value = values.get(metric.accumulatorId())
                if metric.name() == "number of files read" and value.isDefined():
                    found.append(int(value.get().replace(",", "")))


@pytest.fixture(scope="module")
def lakehouses(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> dict[int, Lakehouse]:
    """The base, and one of ten times its size."""
    return {times: base(spark, tmp_path_factory.mktemp(f"base{times}"), facts_of_base * times) for times in (1, 10)}


def costs(lakehouses: dict[int, Lakehouse], topic: str, *values: dict[str, object]) -> tuple[Cost, Cost]:
    """What the same records cost on the small base and on the large one."""
    small, large = (cost_of_run(lakehouse.publish(topic, *values)) for lakehouse in lakehouses.values())
    return small, large


def test_new_facts_cost_the_same_on_a_table_ten_times_as_large(lakehouses: dict[int, Lakehouse]) -> None:
    news = [sale(900_000_000 + number, hour=20 + number / 600) for number in range(facts_of_base // 1000)]
    small, large = costs(lakehouses, "sales", *news)
    assert small.rows_changed["silver.measured"] == len(news)
    assert small.rows_written == large.rows_written
    assert large.rows_written["silver.sales"] == large.rows_written["silver.measured"] == len(news)
    assert large.files_read <= small.files_read


def test_a_late_dimension_change_rewrites_the_facts_it_touches_and_no_more(lakehouses: dict[int, Lakehouse]) -> None:
    # From 15:00 until the next setting at 20:00 there are 300 sales, and every tenth is of this sensor.
    late = {"sensor": "s3", "changed_at": text(15.0), "setting": -1}
    small, large = costs(lakehouses, "settings", late)
    for cost in (small, large):
        touched = cost.rows_changed["silver.measured"]
        assert touched == 30
        assert cost.rows_written["silver.measured"] <= 1.1 * touched
    assert 0 < large.files_read <= small.files_read + 4


def test_a_replay_of_duplicates_rewrites_no_row(lakehouses: dict[int, Lakehouse]) -> None:
    again = [sale(number) for number in range(1000, 1020)]
    small, large = costs(lakehouses, "sales", *again)
    for cost in (small, large):
        assert cost.rows_written["silver.sales"] == cost.rows_written["silver.measured"] == 0
        assert "silver.measured" not in cost.rows_changed
    assert 0 < large.files_read <= small.files_read + 4
