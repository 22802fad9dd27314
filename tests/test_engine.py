"""Refresh: what changed upstream is all that is recomputed, and only what differs is written."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, gold, silver
from sluice.engine import land as land_module
from sluice.engine.land import land
from sluice.engine.refresh import refresh
from sluice.errors import LogError, LogGap, LogRecreated, Superseded
from sluice.log import Record, segment_batch
from sluice.model import small_frames
from sluice.model.datasets import Dataset, Topic
from sluice.shapes import fates
from sluice.shapes.parse import parse
from sluice.storage.delta import Lake
from sluice.windows import window
from tests.damage import damage
from tests.kit import Lakehouse, Row, at, before_each_commit, rows_of, statements, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

readings = bronze.topic("readings")


events = silver.events(
    "events",
    source=readings,
    schema="id string, hour timestamp, value int",
    keys=["id"],
    event_time="hour",
    future_tolerance="1000 days",
)


def declared(measure: str = "sum(value)") -> Dataset:
    """Readings once each, and their sum by hour."""
    return gold.aggregate(
        "hours", source=events, group_by=[window("hour", "1 hour")], measures={"readings": "count(*)", "value": measure}
    )


def reading(name: str, hour: float, value: int | None = 1) -> dict[str, object]:
    return {"id": name, "hour": text(hour), "value": value}


@pytest.fixture(scope="module")
def first_run(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that ran once, with one reading."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("first-run")).declare(declared())
    lakehouse.publish("readings", reading("a", 0.5)).run()
    return lakehouse


@pytest.fixture
def begun(first_run: Lakehouse, tmp_path: Path) -> Lakehouse:
    return first_run.copied_to(tmp_path)


@pytest.fixture(scope="module")
def mixed_run(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that ran once, with two readings, one of them twice, and what is none."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("mixed-run")).declare(declared())
    values: list[dict[str, object] | bytes] = [reading("a", 0.5), b"{", b"}", reading("a", 7.5), reading("b", 7.5)]
    lakehouse.publish("readings", *values, key="k").run()
    return lakehouse


@pytest.fixture
def mixed(mixed_run: Lakehouse, tmp_path: Path) -> Lakehouse:
    return mixed_run.copied_to(tmp_path)


def contents(lakehouse: Lakehouse) -> dict[str, list[Row]]:
    """The rows of silver and gold."""
    return {name: lakehouse.rows(name) for name in ("silver.events", "gold.hours", "silver._fates")}


def test_a_table_gets_its_first_column_of_local_times(begun: Lakehouse) -> None:
    """Delta adds the feature that such a column needs to new tables only; a rebuild is the same table."""
    local = "CAST(max(hour) AS timestamp_ntz)"
    done = begun.declare(declared(local)).run()
    assert done["gold.hours"].blocked is None
    assert dict(begun.table("gold.hours").dtypes)["value"] == "timestamp_ntz"
    begun.publish("readings", reading("b", 0.75)).run()
    (row,) = begun.table("gold.hours").select("readings", "value").collect()
    assert (row["readings"], row["value"]) == (2, at(0.75).replace(tzinfo=None))
    assert begun.changed_by_rebuild() == {}


def test_a_second_run_commits_nothing(begun: Lakehouse) -> None:
    before = begun.versions()
    assert begun.run() == {}
    assert begun.versions() == before


def test_a_late_record_touches_only_its_own_window(lakehouse: Lakehouse) -> None:
    lakehouse.declare(declared()).publish("readings", *[reading(str(n), n + 0.5) for n in range(20)]).run()
    lakehouse.publish("readings", reading("late", 3.1, 10))
    done = lakehouse.run()
    assert done["gold.hours"].rows.model_dump() == {"inserted": 0, "updated": 1, "deleted": 0}
    assert (3.0, 2, 11) in lakehouse.rows("gold.hours", "window_start", "readings", "value")


def test_duplicates_alone_change_no_row_and_nothing_downstream(lakehouse: Lakehouse) -> None:
    lakehouse.declare(declared()).publish("readings", reading("a", 0.5), hours=1).run()
    gold_before = lakehouse.versions()["gold.hours"]
    lakehouse.publish("readings", reading("a", 0.5), hours=2)
    done = lakehouse.run()
    assert done["silver.events"].rows.total == 0
    assert lakehouse.versions()["gold.hours"] == gold_before
    assert lakehouse.fates() == [("duplicate", "same_payload", "readings/0/0")]
    assert lakehouse.run() == {}


@pytest.mark.parametrize("rows_max", [20_000, 0])
def test_new_records_are_parsed_once_whoever_compares_them(
    begun: Lakehouse, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(small_frames, "rows_max", rows_max)
    parsed: list[DataFrame] = []

    def counted(records: "DataFrame", *given: Any) -> "DataFrame":
        parsed.append(records)
        return parse(records, *given)

    monkeypatch.setattr(fates, "parse", counted)
    begun.publish("readings", reading("a", 0.5, 2), reading("b", 0.5, 5), b"{").run()
    assert begun.rows("silver.events") == [("a", 0.5, 1), ("b", 0.5, 5)]
    assert [row[0] for row in begun.fates()] == ["duplicate", "quarantined"]
    assert begun.rows("gold.hours", "readings", "value") == [(2, 6)]
    assert len(parsed) == 1


def test_an_earlier_record_that_arrives_later_takes_the_place_of_the_winner(begun: Lakehouse) -> None:
    begun.publish("readings", reading("a", 1.5, 2), hours=1).run()
    begun.publish("readings", reading("a", 2.5, 3), hours=-1).run()
    assert begun.rows("silver.events") == [("a", 2.5, 3)]
    # Both losers point to the new winner, and the hour that the old one was counted in is gone.
    assert begun.fates() == [("duplicate", "other_payload", "readings/0/2")] * 2
    assert begun.rows("gold.hours", "window_start", "value") == [(2.0, 3)]
    assert begun.audit()["silver.events"].balanced


def test_a_changed_declaration_is_noticed_and_rebuilt(begun: Lakehouse) -> None:
    done = begun.declare(declared("5 * max(value)")).run()
    assert {name: event.cause for name, event in done.items()} == {"gold.hours": "declaration changed"}
    assert begun.rows("gold.hours", "value") == [(5,)]


def test_a_column_that_changes_its_type_is_rebuilt_and_followed(begun: Lakehouse) -> None:
    begun.declare(declared("cast(sum(value) AS string)")).run()
    assert begun.rows("gold.hours", "value") == [("1",)]
    begun.publish("readings", reading("b", 0.6, 4)).run()
    assert begun.rows("gold.hours", "value") == [("5",)]


def test_the_scope_is_everything_when_most_rows_change(begun: Lakehouse) -> None:
    begun.publish("readings", *[reading(f"n{n}", n + 0.5) for n in range(10)]).run()
    assert len(begun.rows("gold.hours", "window_start")) == 10


def test_an_empty_log_makes_empty_tables(lakehouse: Lakehouse) -> None:
    lakehouse.declare(declared()).run()
    assert lakehouse.rows("gold.hours") == []
    lakehouse.publish("readings", reading("a", 0.5)).run()
    assert len(lakehouse.rows("gold.hours")) == 1


def test_records_land_in_bounded_batches_each_once(lakehouse: Lakehouse) -> None:
    lakehouse.declare(readings)
    for number in range(3):
        lakehouse.publish("readings", reading(str(number), number))
    runner = lakehouse.runner(batch_records_max=1)
    runner.until_caught_up()
    assert lakehouse.rows("bronze.readings", "partition", "offset") == [(0, 0), (0, 1), (0, 2)]
    assert lakehouse.versions()["bronze.readings"] == 2


def test_many_records_land_without_spark_as_they_do_with_it(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first landing and in the next; hostile records too, some of which Arrow leaves to the log's reader."""
    monkeypatch.setattr(small_frames, "rows_max", 2)
    monkeypatch.setattr(land_module, "rows_max", 2)
    monkeypatch.setattr(segment_batch, "few_records_max", 2)
    monkeypatch.setattr(segment_batch, "arrow_bytes_min", 0)
    by_driver, by_spark = Lakehouse(spark, tmp_path / "driver"), Lakehouse(spark, tmp_path / "spark")
    for each in (by_driver, by_spark):
        each.declare(readings)
        for hour in range(2):
            each.publish("readings", reading("a", hour), b"\x00\xff", None, key='"\u2028').log.append(
                "readings", [Record(b"{}", headers={"h": "1"}, timestamp=at(hour)), Record(b"", timestamp=at(hour))]
            )
            each.publish("readings", *[reading(str(number), number) for number in range(9)], hours=hour)
            if each is by_spark:
                monkeypatch.setattr(segment_batch.SegmentBatch, "stream", lambda _: None)
            newest = max(statements(spark, -1), default=-1)
            each.run()
            assert any("readings" in said for said in statements(spark, newest).values()) == (each is by_spark)
    columns = ("partition", "offset", "key", "value", "timestamp", "headers")
    found = by_driver.table("bronze.readings")
    assert rows_of(found, *columns) == rows_of(by_spark.table("bronze.readings"), *columns)
    assert found.dtypes == by_spark.table("bronze.readings").dtypes
    assert found.where("landed_at IS NULL").count() == 0
    assert by_driver.versions() == by_spark.versions()
    configurations = [each.lake.open("bronze.readings").metadata().configuration for each in (by_driver, by_spark)]
    assert configurations[0] == configurations[1]


def test_a_segment_that_is_damaged_while_it_lands_is_named_and_nothing_lands(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(land_module, "rows_max", 0)
    lakehouse.declare(readings)
    for number in range(3):
        lakehouse.publish("readings", reading(str(number), number), key="k")
    path = lakehouse.log.segments("readings")[1].path

    def damage_it() -> None:
        path.write_bytes(path.read_bytes().replace(b'value\\": 1', b'value\\": 2'))

    with (
        before_each_commit("bronze.readings", damage_it),
        pytest.raises(LogError, match="line 1, has another checksum"),
    ):
        lakehouse.run()
    assert "bronze.readings" not in lakehouse.versions()


def test_a_segment_that_is_gone_before_it_landed_is_an_error_that_names_the_offsets(begun: Lakehouse) -> None:
    begun.publish("readings", reading("b", 1)).publish("readings", reading("c", 2))
    begun.log.segments("readings")[1].path.unlink()
    with pytest.raises(LogGap, match="partition 0: offsets 1 to 1 are missing"):
        begun.run()
    assert len(begun.rows("bronze.readings", "offset")) == 1


def test_a_recreated_log_is_an_error_even_when_it_is_longer(begun: Lakehouse) -> None:
    begun.log.segments("readings")[0].path.unlink()
    begun.publish("readings", reading("x", 0.5), reading("y", 0.5), reading("z", 0.5))
    with pytest.raises(LogRecreated, match="created again"):
        begun.run()


def test_records_that_the_log_has_forgotten_after_they_landed_are_not_missed(begun: Lakehouse) -> None:
    begun.publish("readings", reading("b", 1.5))
    begun.log.segments("readings")[0].path.unlink()
    begun.run()
    assert len(begun.rows("silver.events")) == 2


def test_a_line_that_is_no_record_is_named_and_nothing_lands(lakehouse: Lakehouse) -> None:
    lakehouse.declare(declared()).publish("readings", reading("a", 0.5))
    path = lakehouse.log.segments("readings")[0].path
    path.write_bytes(b'{"offset":0,"value":rubbish}\n')
    with pytest.raises(LogError, match=r"line 1, is no record"):
        lakehouse.run()
    assert "bronze.readings" not in lakehouse.versions()


def test_tables_of_silver_and_gold_can_be_deleted_and_come_back_the_same(mixed: Lakehouse) -> None:
    before = contents(mixed)
    for layer in ("silver", "gold"):
        shutil.rmtree(Path(mixed.lake.root, layer))
    mixed.run()
    assert contents(mixed) == before


def test_fates_alone_can_be_deleted_and_come_back_the_same(mixed: Lakehouse) -> None:
    before = contents(mixed)
    shutil.rmtree(mixed.lake.path("silver._fates"))
    assert mixed.run()["silver.events"].cause == "unfinished"
    assert contents(mixed) == before
    shutil.rmtree(mixed.lake.path("silver._fates"))
    mixed.run(rebuild=True)
    assert contents(mixed) == before
    assert mixed.run() == {}


def test_a_20_megabyte_record_lands_whole_and_is_set_aside_by_its_rule(lakehouse: Lakehouse) -> None:
    huge = b'{"id":"' + b"x" * 20_000_000 + b'"}'
    lakehouse.declare(events).publish("readings", huge, reading("a", 0.5)).run()
    assert lakehouse.table("bronze.readings").where(f"octet_length(value) = {len(huge)}").count() == 1
    assert lakehouse.fates() == [("quarantined", "record_too_large", None)]
    assert len(lakehouse.rows("silver.events")) == 1


def test_the_audit_notices_a_fate_that_is_missing_doubled_or_invented(mixed: Lakehouse) -> None:
    assert mixed.audit()["silver.events"].balanced

    damage(mixed.lake, "silver._fates", 'DELETE WHERE "offset" = 1')
    assert mixed.audit()["silver.events"].missing == 1

    damage(mixed.lake, "silver._fates", 'UPDATE SET offset = 0 WHERE "offset" = 2')
    found = mixed.audit()["silver.events"]
    assert (found.missing, found.doubled, found.balanced) == (2, 1, False)

    damage(mixed.lake, "silver._fates", 'UPDATE SET offset = 99 WHERE "offset" = 0')
    assert mixed.audit()["silver.events"].unknown == 1


def test_a_driver_that_is_late_writes_nothing(begun: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the ledger, another does the same work, and only then it begins to write."""
    waiting: set[str] = set()
    arriving: list[str] = []

    def begins_late(write: Callable[..., None]) -> Callable[..., None]:
        def late(lake: Lake, df: "DataFrame", table: str, *rest: Any, **options: Any) -> None:
            if table in waiting:
                waiting.remove(table)
                begun.publish("readings", *[reading(name, 2.5) for name in arriving])
                done_by_another(begun, table)
            write(lake, df, table, *rest, **options)

        return late

    for verb in ("append_rows", "merge_rows"):
        monkeypatch.setattr(Lake, verb, begins_late(getattr(Lake, verb)))
    tables = {"bronze.readings", "silver.events", "gold.hours"}
    before = begun.versions()
    waiting |= tables
    begun.publish("readings", reading("b", 1.5), reading("c", 0.7)).run()
    assert not waiting
    after = begun.versions()
    assert {name: after[name] - before[name] for name in tables} == dict.fromkeys(tables, 1)

    # Where the other has done more, the late one must not think that what it did is there.
    waiting.add("bronze.readings")
    arriving.append("e")
    with pytest.raises(Superseded, match=r"Another sluice wrote bronze\.readings at the same time"):
        begun.publish("readings", reading("d", 0.8)).run()
    begun.run()
    assert len(begun.rows("bronze.readings")) == 5
    assert begun.rows("gold.hours", "window_start", "readings") == [(0.0, 3), (1.0, 1), (2.0, 1)]
    assert all(each.balanced for each in begun.audits())


def done_by_another(lakehouse: Lakehouse, table: str) -> None:
    """What a second driver does meanwhile: it brings the one table up to date."""
    node = next(each for each in lakehouse.catalogue.nodes if each.name == table)
    if isinstance(node, Topic):
        assert land(lakehouse.spark, lakehouse.lake, lakehouse.log, node, records_max=100)
    else:
        assert refresh(lakehouse.spark, lakehouse.lake, node).rows.total
