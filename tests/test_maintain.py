"""Maintenance changes no row and no cursor; a range is recomputed in place; the log forgets only what landed."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice import gold
from sluice.engine import touched
from sluice.engine.backfill import BackfillRange
from sluice.engine.catalogue import Catalogue, expecting, ordered
from sluice.engine.runner import Runner
from sluice.errors import SluiceError, UsageError
from sluice.expect import expect, suite
from sluice.log import Log
from sluice.model.ledger import Entry, RowCounts
from sluice.model.small_frames import are_small_changes
from sluice.operate import replay
from sluice.operate.maintain import Retained, maintain, retain
from sluice.storage.delta import Lake, upkeep
from sluice.windows import Window, window
from tests.damage import computed_wrong, damage
from tests.kit import Lakehouse, Row, at, text
from tests.shop import sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sold_by_day: list[str | Window] = ["product", window("sold_at", "1 day")]
first_three_days_wrong = "UPDATE SET pieces = 99 WHERE window_start < '2026-01-04T00:00:00Z'"
sold_daily = gold.aggregate("sold_daily", source=sales, group_by=sold_by_day, measures={"pieces": "sum(pieces)"})


def sale(number: int, day: int, count: int = 1) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea", "sold_at": text(24 * day + 1), "pieces": count}


@pytest.fixture(scope="module")
def of_three_runs(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A sale on each of three days, which came in three runs."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("three-runs")).declare(sold_daily)
    for number in range(3):
        lakehouse.publish("sales", sale(number, number)).run()
    return lakehouse


@pytest.fixture
def sold_thrice(of_three_runs: Lakehouse, tmp_path: Path) -> Lakehouse:
    return of_three_runs.copied_to(tmp_path)


@pytest.fixture(scope="module")
def of_four_days(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A sale on each of four days, which came in one run."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("four-days")).declare(sold_daily)
    lakehouse.publish("sales", *[sale(number, number) for number in range(4)]).run()
    return lakehouse


@pytest.fixture
def four_days(of_four_days: Lakehouse, tmp_path: Path) -> Lakehouse:
    return of_four_days.copied_to(tmp_path)


def test_maintenance_changes_no_row_and_the_next_run_goes_on_from_there(sold_thrice: Lakehouse) -> None:
    tables = [name for name in sold_thrice.lake.tables() if not name.startswith("silver._")]
    before = {name: sold_thrice.rows(name) for name in tables}
    done = maintain(sold_thrice.spark, sold_thrice.lake, sold_thrice.catalogue, tables)
    assert done["silver.sales"]["compacted"] >= 2
    assert done["silver.sales"]["into"] == 1
    assert {name: sold_thrice.rows(name) for name in tables} == before
    assert sold_thrice.run() == {}
    sold_thrice.publish("sales", sale(4, 1))
    changed = sold_thrice.run()
    assert (changed["gold.sold_daily"].cause, changed["gold.sold_daily"].rows) == ("changes", RowCounts(updated=1))


@pytest.mark.parametrize("is_continuous", [False, True])
def test_a_run_writes_small_files_together_and_its_readers_go_on(
    sold_thrice: Lakehouse, monkeypatch: pytest.MonkeyPatch, *, is_continuous: bool
) -> None:
    monkeypatch.setattr(upkeep, "small_files_max", 2)
    sold_thrice.publish("sales", sale(3, 3))
    if is_continuous:
        one_pass_continuously(sold_thrice)
    else:
        sold_thrice.run()
    assert {name: files_of(sold_thrice, name) for name in ("bronze.sales", "silver.sales")} == {
        "bronze.sales": 1,
        "silver.sales": 1,
    }
    assert sold_thrice.run() == {}
    sold_thrice.publish("sales", sale(4, 1))
    changed = sold_thrice.run()
    assert (changed["gold.sold_daily"].cause, changed["gold.sold_daily"].rows) == ("changes", RowCounts(updated=1))
    assert all(event.rows.total == 0 for event in sold_thrice.run(rebuild=True).values())


def test_files_that_are_full_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many files that are small only because a file has so many rows costs nothing between two passes."""
    monkeypatch.setattr(upkeep, "small_files_max", 2)
    lake = Lake(str(tmp_path), rows_per_file=1_000)
    path = lake.path("bronze.sales")
    for start in range(0, 4_000, 1_000):
        full = pa.table({"offset": pa.array(range(start, start + 1_000)), "value": [f"{n:032x}" for n in range(1_000)]})
        write_deltalake(path, full, mode="append")
    assert lake.compact_small("bronze.sales") == 0
    for start in range(4_000, 4_003):
        write_deltalake(path, pa.table({"offset": [start], "value": ["one"]}), mode="append")
    assert lake.compact_small("bronze.sales") == 3
    found = lake.open("bronze.sales")
    assert len(found.file_uris()) == 5
    assert set(found.to_pyarrow_table()["offset"].to_pylist()) == set(range(4_003))
    assert found.to_pyarrow_table().num_rows == 4_003
    assert lake.compact_small("bronze.sales") == 0


@pytest.mark.parametrize("spoil", [lambda log: log.write_text("{"), lambda log: log.symlink_to(log)])
def test_a_table_that_cannot_be_read_now_does_not_end_the_run_that_writes_its_files_together(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("bronze.sales"), pa.table({"offset": [0]}))
    spoil(Path(lake.path("bronze.sales"), "_delta_log", f"{1:020}.json"))
    assert lake.compact_small("bronze.sales") == 0


def one_pass_continuously(lakehouse: Lakehouse) -> None:
    """A continuous run that is stopped in its first pass."""
    stop = threading.Event()

    def renewed(runner: Runner) -> Catalogue:
        stop.set()
        return runner.catalogue

    lakehouse.runner().continuously(1.0, stop, renewed)


def files_of(lakehouse: Lakehouse, table: str) -> int:
    return len(lakehouse.lake.open(table).file_uris())


def test_the_changes_beside_a_compaction_are_still_small() -> None:
    entry = Entry(dataset="silver.sales", rows=RowCounts(inserted=1))
    written: dict[str, str] = {"engineInfo": "delta-rs:py-1", "operation": "WRITE"}
    compacted = {**written, "operation": "OPTIMIZE"}
    assert are_small_changes([written, compacted], [entry, None])
    assert not are_small_changes([written, written], [entry, None])
    assert not are_small_changes([written, {**compacted, "engineInfo": "Spark"}], [entry, None])


def test_files_that_an_old_replay_refers_to_are_not_removed(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sold_daily)
    lakehouse.publish("sales", sale(1, 1))
    lakehouse.run()
    planned = replay.plan(lakehouse.lake, lakehouse.catalogue, ["gold.sold_daily"], None, "long ago")
    long_ago = planned.created_at - timedelta(days=31)
    replay.save(lakehouse.lake, planned.model_copy(update={"created_at": long_ago}))
    with pytest.raises(UsageError, match=f"The replays {planned.name} are older than 30 days"):
        maintain(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, ["gold.sold_daily"])


def test_the_log_forgets_what_landed_long_ago_and_nothing_else(lakehouse: Lakehouse) -> None:
    lakehouse.log = Log(lakehouse.log.root, partitions=1)
    lakehouse.declare(sold_daily)
    for number in range(4):
        lakehouse.publish("sales", sale(number, number), hours=24 * number)
    lakehouse.run()
    lakehouse.publish("sales", sale(4, 0), hours=0)
    # The newest segment that landed stays, and so does what has not landed, however old.
    keep = datetime.now(UTC) - at(24 * 2.5)
    assert retain(lakehouse.log, lakehouse.lake, lakehouse.catalogue, keep) == {"sales": Retained(3, 0)}
    assert (lakehouse.log.start_offset("sales", 0), lakehouse.log.end_offset("sales", 0)) == (3, 5)
    assert retain(lakehouse.log, lakehouse.lake, lakehouse.catalogue, keep) == {"sales": Retained(0, 0)}
    lakehouse.run()
    assert len(lakehouse.rows("bronze.sales", "offset")) == 5
    before = lakehouse.rows("gold.sold_daily")
    lakehouse.run(rebuild=True)
    assert lakehouse.rows("gold.sold_daily") == before


def test_a_part_is_recomputed_in_place_and_what_is_outside_stays(four_days: Lakehouse) -> None:
    computed_wrong(four_days.lake, "gold.sold_daily", "UPDATE SET pieces = 99")
    runner = four_days.runner()
    part = BackfillRange(since=at(24), until=at(72))
    (dataset,) = [each for each in four_days.catalogue.datasets if each.name == "gold.sold_daily"]
    assert runner.recompute_range([dataset], part) == {"gold.sold_daily": 2}
    assert four_days.rows("gold.sold_daily", "pieces", "window_start") == [(1, 24.0), (1, 48.0), (99, 0.0), (99, 72.0)]
    assert runner.recompute_range([dataset], part) == {"gold.sold_daily": 0}

    before = four_days.rows("gold.sold_daily", "pieces", "window_start")
    twice = gold.aggregate("sold_daily", source=sales, group_by=sold_by_day, measures={"pieces": "2 * sum(pieces)"})
    four_days.declare(twice)
    with pytest.raises(SluiceError, match=r"gold\.sold_daily changed .*cannot follow two declarations"):
        four_days.runner().recompute_range(four_days.catalogue.datasets[-1:], part)
    assert four_days.rows("gold.sold_daily", "pieces", "window_start") == before

    few = expect("column_values_to_be_between", column="pieces", max_value=50, severity="critical", name="few")
    four_days.catalogue = expecting(ordered([sold_daily]), {"gold.sold_daily": suite("gold.sold_daily", few)})
    with pytest.raises(SluiceError, match=r"gold\.sold_daily was refused: it would break few"):
        four_days.runner().recompute_range([dataset], BackfillRange(since=at(0), until=at(24)))


def test_a_flow_goes_on_between_the_pieces_of_a_range(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "piece_rows_max", 2)
    lakehouse.declare(sold_daily)
    lakehouse.publish("sales", *[sale(number, number % 4) for number in range(12)])
    lakehouse.run()
    computed_wrong(lakehouse.lake, "gold.sold_daily", first_three_days_wrong)
    seen: list[list[Row]] = []
    runner = lakehouse.runner()

    def between() -> None:
        lakehouse.publish("sales", sale(100 + len(seen), 3))
        runner.turn()
        seen.append(lakehouse.rows("gold.sold_daily", "window_start", "pieces"))

    part = BackfillRange(since=at(0), until=at(72))
    changed = runner.recompute_range(lakehouse.catalogue.datasets, part, between)
    # A sale is one of its day at once, and the days of the range are right one after the other.
    assert seen[1] == [(0.0, 3), (24.0, 99), (48.0, 99), (72.0, 5)]
    assert seen[-1] == [(0.0, 3), (24.0, 3), (48.0, 3), (72.0, 3 + len(seen))]
    assert len(seen) >= 4
    assert changed == {"silver.sales": 0, "gold.sold_daily": 3}


def test_what_only_all_pieces_of_a_range_repair_is_repaired(
    four_days: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "piece_rows_max", 1)
    computed_wrong(four_days.lake, "gold.sold_daily", first_three_days_wrong)
    few = expect("column_values_to_be_between", column="pieces", max_value=50, severity="critical", name="few")
    four_days.catalogue = expecting(ordered([sold_daily]), {"gold.sold_daily": suite("gold.sold_daily", few)})
    part = BackfillRange(since=at(0), until=at(72))
    runner = four_days.runner()
    assert runner.recompute_range(four_days.catalogue.datasets[-1:], part, runner.turn) == {"gold.sold_daily": 3}
    days = [(1, 0.0), (1, 24.0), (1, 48.0), (1, 72.0)]
    assert four_days.rows("gold.sold_daily", "pieces", "window_start") == days


def test_a_range_that_is_refused_beside_a_flow_says_what_of_it_is_there(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(touched, "piece_rows_max", 1)
    lakehouse.declare(sold_daily)
    lakehouse.publish("sales", sale(1, 0), sale(2, 1), sale(3, 2), sale(4, 2))
    lakehouse.run()
    damage(lakehouse.lake, "gold.sold_daily", "UPDATE SET pieces = 0")
    few = expect("column_values_to_be_between", column="pieces", max_value=1, severity="critical", name="few")
    lakehouse.catalogue = expecting(ordered([sold_daily]), {"gold.sold_daily": suite("gold.sold_daily", few)})
    runner, part = lakehouse.runner(), BackfillRange(since=at(0), until=at(72))
    said = r"was refused: it would break few\. Before that, it changed 2 rows of gold\.sold_daily"
    with pytest.raises(SluiceError, match=said):
        runner.recompute_range(lakehouse.catalogue.datasets[-1:], part, runner.turn)
    assert lakehouse.rows("gold.sold_daily", "pieces", "window_start") == [(0, 48.0), (1, 0.0), (1, 24.0)]


@pytest.mark.parametrize(
    ("hours", "rows_max", "pieces"),
    [
        ([1, 2, 3], 3, [(0, 9)]),
        ([1, 2, 3, 4], 2, [(0, 2), (2, 9)]),
        # Rows of one time are in one piece.
        ([4, 4, 4, 4, 5], 2, [(0, 4), (4, 9)]),
        ([0, 0, 0, 0], 2, [(0, 9)]),
        ([None, None, 7], 1, [(0, 9)]),
        ([], 1, [(0, 9)]),
    ],
)
def test_a_range_is_split_by_its_rows(
    spark: "SparkSession", hours: list[int | None], rows_max: int, pieces: list[tuple[int, int]]
) -> None:
    rows = spark.createDataFrame([(None if hour is None else at(hour),) for hour in hours], "sold_at timestamp")
    found = BackfillRange(since=at(0), until=at(9)).split(rows, "sold_at", rows_max)
    assert [(each.since, each.until) for each in found] == [(at(since), at(until)) for since, until in pieces]


def test_a_range_without_ends_is_split_too(spark: "SparkSession") -> None:
    rows = spark.createDataFrame([(at(hour),) for hour in range(4)], "sold_at timestamp")
    found = BackfillRange(since=None, until=at(9)).split(rows, "sold_at", 2)
    assert [(each.since, each.until) for each in found] == [(None, at(1)), (at(1), at(9))]


def test_a_count_that_another_program_set_to_null_is_put_right(four_days: Lakehouse) -> None:
    counted = gold.aggregate("counted", source=sales, group_by=["product"], measures={"sales": "count(*)"})
    four_days.declare(counted).run()
    damage(four_days.lake, "gold.counted", "UPDATE SET sales = NULL")
    assert four_days.changed_by_rebuild() == {"gold.counted": 1}
    assert four_days.rows("gold.counted", "product", "sales") == [("tea", 4)]
