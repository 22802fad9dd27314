"""Small writes go without a Spark job: the same rows, the same ledger, and never twice."""

import dataclasses
import errno
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice import bronze, gold
from sluice.errors import Superseded
from sluice.model import small_frames
from sluice.model.ledger import Entry, RowCounts
from sluice.model.small_frames import is_plain, small_rows
from sluice.shapes.difference import operation, sign
from sluice.storage.delta import Lake
from sluice.storage.delta.writer import in_turn
from tests.kit import Lakehouse, frame, rows_of, text
from tests.shop import sales

sold = gold.aggregate("sold", source=sales, group_by=["product"], measures={"pieces": "sum(pieces)"})


def sale(number: int) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea", "sold_at": text(number), "pieces": number}


def writers(lakehouse: Lakehouse, table: str) -> list[str]:
    """What wrote each version of a table, the oldest first."""
    return [each["engineInfo"].split(":")[0].split("/")[0] for each in reversed(lakehouse.lake.open(table).history())]


@pytest.fixture(scope="module")
def first_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that ran once, with a sale and its duplicate."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("first-run")).declare(sales, sold)
    lakehouse.publish("sales", sale(1), sale(1)).run()
    return lakehouse


@pytest.fixture
def begun(first_run: Lakehouse, tmp_path: Path) -> Lakehouse:
    return first_run.copied_to(tmp_path)


def test_a_few_rows_are_written_without_spark(begun: Lakehouse) -> None:
    begun.publish("sales", sale(2), sale(1))
    begun.run()
    for table in ("bronze.sales", "silver.sales", "gold.sold"):
        assert writers(begun, table) == ["delta-rs", "delta-rs"]
    assert set(writers(begun, "silver._fates")) == {"delta-rs"}
    assert [row[0] for row in begun.rows("silver.sales", "id")] == ["s1", "s2"]
    assert begun.audit()["silver.sales"].duplicate == 2
    assert begun.run() == {}


def test_tables_that_the_driver_makes_are_like_those_that_spark_makes(
    lakehouse: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakehouse.declare(sales, sold)
    lakehouse.publish("sales", sale(1), sale(1), b"no JSON")
    by_spark = Lakehouse(lakehouse.spark, tmp_path / "spark").declare(sales, sold)
    by_spark.log = lakehouse.log
    lakehouse.run()
    with monkeypatch.context() as patched:
        patched.setattr(small_frames, "rows_max", -1)
        by_spark.run()
    for table in ("bronze.sales", "silver.sales", "silver._fates", "gold.sold"):
        ours, theirs = lakehouse.lake.open(table), by_spark.lake.open(table)
        assert (ours.schema(), ours.metadata().configuration) == (theirs.schema(), theirs.metadata().configuration)
        assert ours.metadata().partition_columns == theirs.metadata().partition_columns
        assert ours.protocol().min_reader_version == theirs.protocol().min_reader_version == 1
        assert rows_of(lakehouse.table(table).drop("landed_at")) == rows_of(by_spark.table(table).drop("landed_at"))
    # Either goes on where the other stopped.
    lakehouse.publish("sales", sale(2))
    with monkeypatch.context() as patched:
        patched.setattr(small_frames, "rows_max", -1)
        lakehouse.run()
    assert writers(lakehouse, "silver.sales") == ["delta-rs", "Apache-Spark"]
    assert lakehouse.rows("gold.sold", "pieces") == [(3,)]


@pytest.mark.parametrize(("bound", "most"), [("rows_max", 0), ("row_bytes_max", 10)])
def test_more_rows_and_larger_ones_are_written_by_spark(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(small_frames, bound, most)
    lakehouse.declare(bronze.topic("sales"))
    for number in (1, 2):
        lakehouse.publish("sales", sale(number)).run()
    assert writers(lakehouse, "bronze.sales") == ["Apache-Spark", "Apache-Spark"]


def test_a_group_of_a_time_that_no_condition_can_say_is_replaced(lakehouse: Lakehouse) -> None:
    far = "timestamp_micros(CAST(9e18 AS bigint) + 0 * pieces) AS far"
    lakehouse.declare(gold.aggregate("far", source=sales, group_by=[far], measures={"sales": "count(*)"}))
    for number in (1, 2):
        lakehouse.publish("sales", sale(number)).run()
    assert lakehouse.table("gold.far").select("sales").collect() == [(2,)]
    assert lakehouse.changed_by_rebuild() == {}


def test_of_two_that_follow_the_same_state_one_writes(begun: Lakehouse) -> None:
    lake, rows = begun.lake, begun.lake.read(begun.spark, "silver.sales")
    fence = lake.fence("silver.sales", "silver.sales")
    entry = Entry(dataset="silver.sales", rows=RowCounts(inserted=1), because="the first")
    lake.append_rows(rows, "silver.sales", entry, fence, in_arrow=small_rows(rows))
    version = lake.newest_version("silver.sales")
    second = entry.model_copy(update={"because": "the second"})
    with pytest.raises(Superseded):
        lake.append_rows(rows, "silver.sales", second, fence, in_arrow=small_rows(rows))
    assert lake.newest_version("silver.sales") == version


def test_a_late_note_does_not_hide_rows_that_another_driver_wrote(begun: Lakehouse) -> None:
    lake, name = begun.lake, "silver.sales"
    known = lake.last_commit(name)
    assert known is not None
    late = known.unchanged(known.entry.model_copy(update={"because": "nothing changed"}))
    rows = lake.read(begun.spark, name)
    lake.append_rows(
        rows, name, Entry(dataset=name, rows=RowCounts(inserted=1)), known.fence, in_arrow=small_rows(rows)
    )
    written = lake.last_commit(name)
    assert written is not None
    with pytest.raises(Superseded):
        lake.move_cursor(name, late, known.fence)
    assert lake.last_commit(name) == written, "readers go on from the rows, and from nothing before them"
    # A note takes a number too: rows that follow the state before it come too late.
    lake.move_cursor(name, written.unchanged(written.entry.model_copy(update={"because": "now"})), written.fence)
    noted = lake.last_commit(name)
    assert noted is not None
    assert noted.as_input == written.as_input
    with pytest.raises(Superseded):
        lake.append_rows(rows, name, Entry(dataset=name, because="late"), written.fence, in_arrow=small_rows(rows))


def test_what_is_added_to_a_shared_table_meanwhile_only_delays_it(begun: Lakehouse) -> None:
    lake, table = begun.lake, "silver._fates"
    rows = lake.read(begun.spark, table)
    opened = iter([lake.open(table)])

    @dataclasses.dataclass(frozen=True)
    class Late(type(lake)):  # type: ignore[misc]
        """A lake whose first look at the table is from before another's commit."""

        def open(self, name: str, version: int | None = None) -> object:
            return next(opened, None) or super().open(name, version)

    small = small_rows(rows)
    lake.append_rows(rows, table, Entry(dataset="silver.others", rows=RowCounts(inserted=1)), 0, in_arrow=small)
    Late(lake.root).append_rows(
        rows, table, Entry(dataset="silver.third", rows=RowCounts(inserted=1)), 0, in_arrow=small
    )
    assert lake.row_count(table) == 3
    assert (lake.fence(table, "silver.others"), lake.fence(table, "silver.third")) == (1, 1)


keys = {
    "string": ["'it''s'", "'back\\\\slash'", "'Zürich 🛫'", "''", "'new'"],
    "binary": ["X'00'", "X'FF00'", "X''", "X'27'", "X'5C'"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "0", "1", "2"],
    "tinyint": ["-128", "127", "0", "1", "2"],
    "boolean": ["true", "NULL", "false"],
    "decimal(38,10)": ["-0.0000000001", "12345678901234567890.5", "0", "1", "2"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'1970-01-01'", "'2026-01-01'", "'2026-01-02'"],
    "timestamp": ["'0001-01-01'", "'9999-12-31'", "'1969-12-31 23:59:59.999999'", "'2026-01-01'", "'294247-01-10'"],
}


grain = ["kind", *[f"key_{number}" for number in range(len(keys))], "part"]


def said(kind: str, value: str, part: int, number: int, *more: str) -> str:
    """A row in SQL: its key is in the column of its kind, and those of the other kinds are null."""
    of_kinds = [f"CAST({value if each == kind else 'NULL'} AS {each})" for each in keys]
    rest = [str(part), f"named_struct('n', {number})", *map(repr, more)]
    return f"({', '.join([repr(kind), *of_kinds, *rest])})"


@pytest.mark.parametrize("is_small", [True, False])
def test_rows_are_replaced_by_keys_of_any_plain_kind(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    """Of each kind one row is updated, one deleted, and one new."""
    if not is_small:
        monkeypatch.setattr(small_frames, "replaced_terms_max", 0)

    def rows(texts: list[str], *more: str) -> DataFrame:
        return spark.sql(f"SELECT * FROM VALUES {', '.join(texts)}").toDF(*grain, "st", *more)

    lake, name = Lake(str(tmp_path)), "gold.kinds"
    before, changes, after = list[str](), list[str](), list[str]()
    for kind, values in keys.items():
        *known, new = dict.fromkeys([*values, "NULL"])
        of_kind = [said(kind, value, number, number) for number, value in enumerate(known)]
        before += of_kind
        changes += [
            said(kind, known[0], 0, -1, "updated"),
            said(kind, known[1], 1, 1, "deleted"),
            said(kind, new, 9, 9, "inserted"),
        ]
        after += [said(kind, known[0], 0, -1), *of_kind[2:], said(kind, new, 9, 9)]
    lake.replace_rows(rows(before), name, Entry(dataset=name), 0)
    changed = rows(changes, operation)
    count = len(keys)
    entry = Entry(dataset=name, rows=RowCounts(inserted=count, updated=count, deleted=count))
    lake.merge_rows(changed, name, entry, lake.fence(name, name), grain=grain, small=small_rows(changed))

    now, expected = lake.read(spark, name), rows(after)
    differing = now.exceptAll(expected).unionByName(expected.exceptAll(now))
    assert rows_of(differing, "kind", "part") == []
    feed = lake.changes(spark, name, 0, 1).withColumn("_sign", sign())
    changed_rows = feed.groupBy(*grain, "st").agg({"_sign": "sum"}).where("`sum(_sign)` <> 0")
    assert rows_of(changed_rows.groupBy("kind").count()) == sorted((kind, 4) for kind in keys)
    assert lake.open(name).history(1)[0]["engineInfo"].startswith("delta-rs" if is_small else "Apache-Spark")


def test_what_is_replaced_can_be_filtered_by_text_with_pyarrow(begun: Lakehouse) -> None:
    begun.publish("sales", sale(2), sale(3)).run()
    assert writers(begun, "gold.sold")[-1] == "delta-rs"
    dataset = begun.lake.open("gold.sold").to_pyarrow_dataset()
    assert dataset.to_table(filter=pc.field("product") == "tea").to_pylist() == [{"product": "tea", "pieces": 6}]


def test_a_small_write_is_of_few_rows_small_ones_and_of_plain_types(spark: SparkSession) -> None:
    few = frame(spark, "id string, at hours", [("a", 1.0), ("b", 2.0)])
    rows = small_rows(few)
    assert rows is not None
    assert rows.equals(few.toArrow())
    nothing = small_rows(few.limit(0))
    assert nothing is not None
    assert nothing.schema == rows.schema
    assert small_rows(spark.range(small_frames.rows_max)) is not None
    assert small_rows(spark.range(small_frames.rows_max + 1)) is None
    long = few.selectExpr("repeat(id, 200 * 1024) AS id")
    assert small_rows(long) is None
    assert small_rows(long.selectExpr("named_struct('id', id) AS nested")) is None


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("a string, b binary, c decimal(38,10), d timestamp, e map<string,array<struct<f:date>>>", True),
        ("a timestamp_ntz", False),
        ("a interval day to second", False),
        ("a struct<b:variant>", False),
    ],
)
def test_types_that_may_mean_something_else_outside_of_spark_stay_there(kinds: str, *, expected: bool) -> None:
    assert is_plain(StructType.fromDDL(kinds)) is expected


@pytest.mark.parametrize(
    ("lost", "is_fenced", "writes"), [(1, True, 2), (3, True, 4), (4, True, None), (1, False, None)]
)
def test_a_commit_whose_answer_an_object_store_lost_is_looked_for_again(
    lost: int, is_fenced: bool, writes: int | None
) -> None:
    """`test_s3.py` kills the store; here it is away exactly so often."""
    written = []

    def write() -> int:
        written.append(1)
        if len(written) <= lost:
            raise DeltaError("Generic S3 error: Error performing PUT: error sending request")
        return len(written)

    if writes is None:
        with pytest.raises(DeltaError, match="S3 error"):
            in_turn("gold.x", write, is_fenced=is_fenced)
    else:
        assert in_turn("gold.x", write, is_fenced=is_fenced) == writes


def test_other_errors_end_a_write() -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        in_turn("gold.x", write)
