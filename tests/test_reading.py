"""A table is read as Delta would read it, whichever way; the files of a small one without its log."""

import dataclasses
import shutil
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sluice import bronze, gold, silver
from sluice.engine.refresh import refresh
from sluice.model import small_frames
from sluice.model.ledger import Entry
from sluice.operate.shadow import Shadow, clone_version
from sluice.storage.delta import Lake, writer
from sluice.storage.delta.opened import Newest
from tests.kit import Lakehouse, rows_of, statements, text
from tests.shop import sales

sold = gold.aggregate("sold", source=sales, group_by=["product"], measures={"pieces": "sum(pieces)"})


def sale(number: int, pieces: int = 1) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea", "sold_at": text(number), "pieces": pieces}


@pytest.fixture(scope="module")
def built(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Tables with a first build, rows that were added, rows that were replaced, and a shared table with slices."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("built")).declare(sales, sold)
    lakehouse.publish("sales", sale(1), sale(1)).run()
    lakehouse.publish("sales", sale(2), sale(1)).run()
    return lakehouse


@pytest.fixture
def shop(built: Lakehouse, tmp_path: Path) -> Lakehouse:
    return built.copied_to(tmp_path / "shop")


@pytest.fixture
def standing(built: Lakehouse) -> Lakehouse:
    """The tables where they are, for tests that change none; nothing of them is known yet."""
    return Lakehouse(built.spark, built.folder)


def by_delta(lakehouse: Lakehouse, table: str) -> DataFrame:
    return lakehouse.spark.read.format("delta").load(lakehouse.lake.path(table))


def is_same(left: DataFrame, right: DataFrame) -> bool:
    """Whether two frames have the same columns, in order, and the same rows."""
    maps = [name for name, kind in left.dtypes if kind.startswith("map")]
    one, other = (
        df.withColumns({name: F.map_entries(name) for name in maps}).withColumn("_side", F.lit(side))
        for df, side in ((left, 1), (right, -1))
    )
    rows = one.union(other).groupBy(*[f"`{name}`" for name in left.columns])
    return left.dtypes == right.dtypes and rows.agg(F.sum("_side").alias("_more")).where("_more <> 0").isEmpty()


def way_of(df: DataFrame) -> str:
    """Who reads the rows of a table: the driver, or Spark by the files it is given or by the table's log."""
    plan = df._jdf.queryExecution().executedPlan().toString()
    return "driver" if "LocalTableScan" in plan else "files" if "InMemoryFileIndex" in plan else "log"


def only(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tables be read in one way alone."""
    if way != "driver":
        monkeypatch.setattr(small_frames, "rows_max", -1)
    if way == "log":
        monkeypatch.setattr(small_frames, "listed_files_max", 0)


@pytest.mark.parametrize("way", ["driver", "files", "log"])
@pytest.mark.parametrize("table", ["bronze.sales", "silver.sales", "silver._fates", "gold.sold"])
def test_rows_are_those_that_delta_reads(
    standing: Lakehouse, monkeypatch: pytest.MonkeyPatch, table: str, way: str
) -> None:
    only(way, monkeypatch)
    read = standing.table(table)
    assert read.count() > 0
    assert is_same(read, by_delta(standing, table))
    assert way_of(read) == way


odd_columns = "text, at, `Number`, zero, pairs, amount, `nested.one`, bytes, day"
odd_values = """
    (NULL, timestamp'0001-01-01 00:00:00Z', double('NaN'), -0.0D, map('a', CAST(NULL AS int)), 1.50BD,
        named_struct('a', CAST(NULL AS int), 'b', array('')), X'', date'0001-01-01'),
    ('', timestamp'9999-12-31 23:59:59.999999Z', double('Infinity'), 0.0D, map(), -0.01BD,
        NULL, X'00ff', date'9999-12-31'),
    ('\\u0000 \\u2028 \\U0001F600', NULL, NULL, 1e-320D, NULL, NULL,
        named_struct('a', 1, 'b', array(CAST(NULL AS string))), NULL, NULL),
    ('no more', timestamp'1969-12-31 23:59:59.999999Z', 1D, 2D, map('b', 2), 0BD,
        named_struct('a', 2, 'b', CAST(NULL AS array<string>)), X'61', date'1970-01-01')
"""


@pytest.fixture(scope="module")
def odd(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with a table of such values, of two commits."""
    lake, name = Lake(str(tmp_path_factory.mktemp("odd"))), "gold.odd"
    for number in range(2):
        rows = spark.sql(f"SELECT *, {number} AS part FROM VALUES {odd_values} AS t({odd_columns})")
        lake.append_rows(rows, name, Entry(dataset=name, because=str(number)), number)
    return Path(lake.root)


@pytest.mark.parametrize("way", ["driver", "files", "log"])
def test_odd_values_are_read_as_they_are(
    spark: SparkSession, odd: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    lake, name = Lake(str(odd)), "gold.odd"
    only(way, monkeypatch)
    read = lake.read(spark, name)
    assert is_same(read, spark.read.format("delta").load(lake.path(name)))
    assert way_of(read) == way


@pytest.mark.parametrize("value", ["timestamp_ntz'2026-01-01 00:00:00'", "CAST(X'ff61' AS string)"])
def test_what_arrow_has_not_is_read_by_spark(spark: SparkSession, tmp_path: Path, value: str) -> None:
    lake, name = Lake(str(tmp_path)), "gold.odd"
    lake.append_rows(spark.sql(f"SELECT {value} AS value"), name, Entry(dataset=name), 0)
    read = lake.read(spark, name)
    assert way_of(read) != "driver"
    assert is_same(read, spark.sql(f"SELECT {value} AS value"))


@pytest.mark.parametrize("is_small", [True, False])
def test_a_late_record_reaches_gold_and_no_job_asks_a_tables_log(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    if not is_small:
        only("log", monkeypatch)
    before = max(statements(shop.spark, -1))
    done = shop.publish("sales", sale(0, pieces=5)).run()
    assert done["gold.sold"].rows.updated == 1
    ran = statements(shop.spark, before).values()
    assert ran
    assert any("Delta" in said for said in ran) is not is_small


def test_an_older_version_is_as_it_was(standing: Lakehouse) -> None:
    assert [row[0] for row in standing.rows("gold.sold", "pieces")] == [2]
    assert [row[0] for row in standing.lake.read(standing.spark, "gold.sold", 0).select("pieces").collect()] == [1]


def test_what_is_pinned_stays_while_another_commits(shop: Lakehouse) -> None:
    pinned = shop.table("silver.sales")
    shop.publish("sales", sale(3)).run()
    assert (pinned.count(), shop.table("silver.sales").count()) == (2, 3)


@pytest.mark.parametrize("way", ["driver", "files"])
def test_spark_knows_a_table_only_when_its_rows_are_asked_for(
    standing: Lakehouse, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    only(way, monkeypatch)
    read = standing.table("silver.sales")
    assert read.dtypes == by_delta(standing, "silver.sales").dtypes
    assert "_jdf" not in vars(read)
    assert read.count() == 2
    assert read.schema == standing.spark.createDataFrame([], read.schema).schema == read.select("*").schema
    assert way_of(read) == way


@pytest.mark.parametrize("way", ["driver", "files"])
def test_whoever_changes_a_schema_changes_no_table(
    standing: Lakehouse, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    only(way, monkeypatch)
    read = standing.table("silver.sales")
    read.schema["pieces"].dataType = StringType()
    read.schema.add("more", "string")
    assert read.select("*").dtypes == by_delta(standing, "silver.sales").dtypes
    assert read.count() == 2


def test_a_frame_is_made_once_whoever_asks_at_the_same_time(spark: SparkSession) -> None:
    made = list[DataFrame]()

    def make() -> DataFrame:
        made.append(spark.range(3).toDF("number"))
        return made[-1]

    df = small_frames.made_when_asked(spark, spark.range(0).toDF("number").schema, make)
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: df._jdf, range(4)))
    assert len(made) == 1
    assert all(plan is plans[0] for plan in plans)


def test_a_frame_that_could_not_be_made_is_tried_again(spark: SparkSession) -> None:
    make = mock.Mock(side_effect=[OSError("gone"), spark.range(3)])
    df = small_frames.made_when_asked(spark, spark.range(0).schema, make)
    with pytest.raises(OSError, match="gone"):
        df.count()
    assert df.count() == 3


def test_a_frame_that_is_not_made_yet_can_be_copied(spark: SparkSession) -> None:
    df = small_frames.made_when_asked(spark, spark.range(0).schema, lambda: spark.range(3))
    assert copy(df).count() == df.count() == 3
    assert copy(df).columns == ["id"]


def test_comments_are_in_the_schema_before_the_rows_are_read(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    path = lake.path("gold.said")
    spark.sql(f"CREATE TABLE delta.`{path}` (id INT COMMENT 'which', at STRUCT<x: INT COMMENT 'where'>) USING delta")
    spark.sql(f"INSERT INTO delta.`{path}` SELECT 1, named_struct('x', 2)")
    with mock.patch.object(small_frames, "rows_max", -1):
        read = lake.read(spark, "gold.said")
    assert read.schema == read.select("*").schema
    assert read.schema["id"].metadata == {"comment": "which"}


def test_a_table_of_many_files_is_read_by_its_log_which_skips_files(
    standing: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_frames, "read_files_max", 1)
    read = standing.table("silver.sales")
    assert way_of(read) == "log"
    assert read.count() == 2


@pytest.mark.parametrize(("bound", "most"), [("rows_max", 1), ("read_bytes_max", 100)])
def test_more_rows_and_larger_ones_are_read_by_spark(
    standing: Lakehouse, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    assert way_of(standing.table("silver.sales")) == "driver"
    monkeypatch.setattr(small_frames, bound, most)
    assert way_of(standing.table("silver.sales")) == "files"


def test_a_commit_of_another_process_is_seen_and_one_that_replaced_the_newest(shop: Lakehouse) -> None:
    assert shop.rows("gold.sold", "pieces") == [(2,)]
    other = Lake(shop.lake.root)
    other.open_own("gold.sold").update(updates={"pieces": "7"})
    assert shop.rows("gold.sold", "pieces") == [(7,)]
    # Put one commit back, and another one in its place: the version is the same, and the rows are not.
    newest = Path(shop.lake.path("gold.sold"), "_delta_log", f"{shop.lake.newest_version('gold.sold'):020}.json")
    newest.unlink()
    assert shop.rows("gold.sold", "pieces") == [(2,)]
    Lake(shop.lake.root).open_own("gold.sold").update(updates={"pieces": "8"})
    assert newest.exists()
    assert shop.rows("gold.sold", "pieces") == [(8,)]


def test_a_table_that_is_made_again_is_opened_again(spark: SparkSession, tmp_path: Path) -> None:
    lake, name = Lake(str(tmp_path)), "gold.numbers"
    for count in (2, 3):
        lake.replace_rows(spark.range(count), name, Entry(dataset=name), 0)
        assert lake.read(spark, name).count() == count
        shutil.rmtree(lake.path(name))
        assert lake.last_commit(name) is None


def test_mutant_a_table_stays_as_it_was_opened(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Newest, "is_newest", lambda self, location: True)
    with pytest.raises(AssertionError):
        test_a_commit_of_another_process_is_seen_and_one_that_replaced_the_newest(shop)


def test_a_table_that_has_not_changed_is_opened_and_read_once(shop: Lakehouse) -> None:
    with mock.patch("sluice.storage.delta.opened.DeltaTable", side_effect=DeltaTable) as opened:
        for _ in range(3):
            assert shop.rows("gold.sold", "pieces") == [(2,)]
            assert shop.lake.last_commit("gold.sold") is not None
    assert opened.call_count <= 1
    assert shop.lake.open("gold.sold") is shop.lake.open("gold.sold")


def test_rows_that_are_marked_deleted_are_not_read(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    lakehouse.lake = dataclasses.replace(lakehouse.lake, deletion_vectors_from_rows=1)
    lakehouse.declare(sales).publish("sales", sale(1), sale(2)).run()
    path = lakehouse.lake.path("silver.sales")
    lakehouse.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    lakehouse.spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 's1'")
    read = lakehouse.table("silver.sales")
    assert [row["id"] for row in read.collect()] == ["s2"]
    assert way_of(read) == "driver"
    monkeypatch.setattr(small_frames, "rows_max", -1)
    read = lakehouse.table("silver.sales")
    assert [row["id"] for row in read.collect()] == ["s2"]
    assert way_of(read) == "log"


def test_a_copy_whose_files_are_elsewhere_is_read_by_its_log(
    standing: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "is_read_by_driver", lambda *_: False)
    shadow = Shadow(str(tmp_path / "shadow"), live=standing.lake, copied=frozenset(["gold.sold"]))
    shadow.clone(standing.spark, standing.lake.path("gold.sold"), 1, "gold.sold", Entry(dataset="gold.sold"))
    read = shadow.read(standing.spark, "gold.sold")
    assert is_same(read, by_delta(standing, "gold.sold"))
    assert way_of(read) == "log"
    assert not shadow.allows_small_writes("gold.sold")


@pytest.mark.parametrize("table", ["bronze.sales", "silver.sales", "silver._fates", "gold.sold", "gold.odd"])
def test_a_small_table_is_copied_with_its_rows_and_properties(
    standing: Lakehouse, odd: Path, tmp_path: Path, table: str
) -> None:
    if table == "gold.odd":
        standing.lake = Lake(str(odd))
    expected, live = by_delta(standing, table), DeltaTable(standing.lake.path(table))
    shadow = Shadow(str(tmp_path / "shadow"), live=standing.lake, copied=frozenset([table]))
    shadow.clone(
        standing.spark, standing.lake.path(table), live.version(), table, Entry(dataset=table, because="a test")
    )
    assert shadow.newest_version(table) == clone_version
    commit = shadow.last_commit(table)
    assert commit is not None
    assert commit.entry.because == "a test"
    copied = DeltaTable(shadow.path(table))
    assert copied.schema() == live.schema()
    assert copied.metadata().configuration == live.metadata().configuration
    assert copied.metadata().partition_columns == live.metadata().partition_columns
    assert shadow.allows_small_writes(table)
    read = shadow.read(standing.spark, table)
    assert read.count() == expected.count() > 0
    assert is_same(read, expected)
    assert is_same(standing.spark.read.format("delta").load(shadow.path(table)), expected)


def test_a_table_with_local_times_is_copied(shop: Lakehouse, tmp_path: Path) -> None:
    """Delta refuses a clone of one onto a table that has none, also within a struct."""
    rows = shop.spark.sql("SELECT 1 AS id, struct(TIMESTAMP_NTZ'2026-03-29 02:30:00' AS at) AS place")
    shop.lake.append_rows(rows, "gold.local", Entry(dataset="gold.local"), 0)
    shadow = Shadow(str(tmp_path / "shadow"), live=shop.lake, copied=frozenset(["gold.local"]))
    shadow.clone(shop.spark, shop.lake.path("gold.local"), 0, "gold.local", Entry(dataset="gold.local"))
    assert is_same(shadow.read(shop.spark, "gold.local"), rows)


def test_an_older_version_is_copied_and_one_without_rows(shop: Lakehouse, tmp_path: Path) -> None:
    shadow = Shadow(str(tmp_path / "shadow"), live=shop.lake, copied=frozenset(["gold.sold", "gold.nothing"]))
    shadow.clone(shop.spark, shop.lake.path("gold.sold"), 0, "gold.sold", Entry(dataset="gold.sold"))
    assert [row["pieces"] for row in shadow.read(shop.spark, "gold.sold").collect()] == [1]
    nothing = shop.spark.range(1).where("false")
    shop.lake.replace_rows(nothing, "gold.nothing", Entry(dataset="gold.nothing"), 0)
    shadow.clone(shop.spark, shop.lake.path("gold.nothing"), 0, "gold.nothing", Entry(dataset="gold.nothing"))
    assert shadow.newest_version("gold.nothing") == clone_version
    assert shadow.read(shop.spark, "gold.nothing").count() == 0


def test_a_path_that_looks_like_a_pattern_is_a_path(spark: SparkSession, tmp_path: Path) -> None:
    for folder in ("l[a]ke", "{lake}", "the lake*", "50% lake", "year=2026"):
        lake = Lake(str(tmp_path / folder))
        lake.replace_rows(spark.range(2), "gold.numbers", Entry(dataset="gold.numbers"), 0)
        read = lake.read(spark, "gold.numbers")
        assert (read.dtypes, rows_of(read)) == ([("id", "bigint")], [(0,), (1,)]), folder


def test_a_table_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.replace_rows(spark.range(1).where("false"), "gold.nothing", Entry(dataset="gold.nothing"), 0)
    spark.sql(f"DELETE FROM delta.`{lake.path('gold.nothing')}`")
    assert lake.read(spark, "gold.nothing").dtypes == [("id", "bigint")]
    assert lake.read(spark, "gold.nothing").count() == 0


@pytest.mark.parametrize("table", ["bronze.sales", "silver.sales", "silver._fates", "gold.sold"])
@pytest.mark.parametrize("is_small", [True, False])
def test_a_feed_says_what_deltas_says(
    standing: Lakehouse, monkeypatch: pytest.MonkeyPatch, table: str, *, is_small: bool
) -> None:
    if not is_small:
        monkeypatch.setattr(small_frames, "rows_max", 0)
    newest = standing.lake.newest_version(table)
    read = standing.lake.changes(standing.spark, table, newest - 1, newest)
    reader = standing.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", newest)
    # When a commit was made is a matter of its file there, and of its entry here.
    assert is_same(read.drop("_commit_timestamp"), reader.load(standing.lake.path(table)).drop("_commit_timestamp"))
    assert read.schema["_commit_timestamp"].dataType.simpleString() == "timestamp"
    plan = read._jdf.queryExecution().executedPlan().toString()
    assert ("LocalTableScan" in plan) == is_small


def test_a_feed_of_commits_without_rows_is_empty(shop: Lakehouse) -> None:
    fence = shop.lake.fence("gold.sold", "gold.sold")
    shop.lake.move_cursor("gold.sold", Entry(dataset="gold.sold", because="nothing"), fence)
    newest = shop.lake.newest_version("gold.sold")
    read = shop.lake.changes(shop.spark, "gold.sold", newest - 1, newest)
    fed = [("_change_type", "string"), ("_commit_version", "bigint"), ("_commit_timestamp", "timestamp")]
    assert read.dtypes == [*by_delta(shop, "gold.sold").dtypes, *fed]
    assert read.isEmpty()


def test_a_feed_that_spark_wrote_is_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    lakehouse = Lakehouse(spark, tmp_path).declare(sales)
    with mock.patch.object(small_frames, "rows_max", -1):
        lakehouse.publish("sales", sale(1), sale(2)).run()
    read = lakehouse.lake.changes(spark, "silver.sales", -1, lakehouse.lake.newest_version("silver.sales"))
    assert "LocalTableScan" not in read._jdf.queryExecution().executedPlan().toString()
    assert read.count() == 2


def test_a_feed_of_another_program_is_not_taken_into_the_driver(shop: Lakehouse) -> None:
    shop.lake.open("gold.sold").delete()
    newest = shop.lake.newest_version("gold.sold")
    read = shop.lake.changes(shop.spark, "gold.sold", newest - 1, newest)
    assert "LocalTableScan" not in read._jdf.queryExecution().executedPlan().toString()
    assert [row["_change_type"] for row in read.collect()] == ["delete"]


def test_a_table_keeps_its_small_files_when_rows_in_it_are_replaced(spark: SparkSession, tmp_path: Path) -> None:
    lake, name = Lake(str(tmp_path), rows_per_file=20_000), "gold.long"
    rows = spark.range(0, 100_000, 1, 1).selectExpr("id", "sha2(CAST(id AS string), 256) AS said")
    lake.replace_rows(rows, name, Entry(dataset=name), 0)
    files = []
    for number in range(3):
        changed = rows.where(f"id % 40000 = {number}").selectExpr("id", "'new' AS said", "'updated' AS _operation")
        entry = Entry(dataset=name, because=str(number))
        small = small_frames.small_rows(changed)
        lake.merge_rows(changed, name, entry, lake.fence(name, name), grain=["id"], small=small)
        files.append(lake.open(name).get_add_actions(flatten=True)["num_records"].to_pylist())
    assert lake.row_count(name) == 100_000
    assert lake.read(spark, name).where("said = 'new'").count() == 9
    # The first one divides the file, and the next ones find files that they need not divide.
    assert all(max(written) <= 1.5 * lake.rows_per_file for written in files)
    assert 5 <= len(files[0]) <= 100_000 // lake.replaced_rows + 1
    # Each writes three files together, read side by side, and in some orders leaves one of a few rows at the end; a run
    # writes such files together between its passes.
    assert all(5 <= len(after) <= len(before) + 1 for before, after in pairwise(files))


@pytest.mark.parametrize("rows_max", [20_000, -1], ids=["by the driver", "by Spark"])
def test_old_times_are_the_same_in_a_change_feed(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """Java's older objects for times lack the days that the calendar of 1582 left out."""
    monkeypatch.setattr(small_frames, "rows_max", rows_max)
    births = silver.events(
        "births",
        source=bronze.topic("births"),
        schema="id string, at timestamp, day date",
        keys=["id"],
        event_time="at",
        event_time_min=None,
    )
    lakehouse.declare(births, gold.aggregate("days", source=births, group_by=["at", "day"], measures={"n": "count(*)"}))
    # The first one is there when the others come as changes.
    for days in (["2000-01-01"], ["1582-10-10", "0001-01-01", "1883-11-18"]):
        lakehouse.publish("births", *[{"id": day, "at": f"{day}T16:57:00Z", "day": day} for day in days]).run()
    shown = lakehouse.table("gold.days").selectExpr("CAST(at AS string)", "CAST(day AS string)").collect()
    assert {tuple(row) for row in shown} == {
        (f"{day} 16:57:00", day) for day in ("2000-01-01", "1582-10-10", "0001-01-01", "1883-11-18")
    }
    assert lakehouse.changed_by_rebuild() == {}


@pytest.mark.parametrize("rows_max", [20_000, -1], ids=["by the driver", "by Spark"])
def test_text_that_is_not_utf8_is_the_same_in_a_change_feed(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    """Java has another text in its place, and so has Spark's data source of changes."""
    monkeypatch.setattr(small_frames, "rows_max", rows_max)
    raw = silver.events("raw", source=bronze.topic("raw"), schema="id int, at timestamp, said binary", keys=["id"])
    texts = silver.join("texts", inputs={"raw": raw}, shape="SELECT id, at, CAST(said AS string) AS said FROM raw")
    newest = silver.history("newest", source=texts, keys=["said"], sequence_by="at", column_list=["id"])
    counted = gold.aggregate("counted", source=texts, group_by=["said"], measures={"n": "count(*)"})
    lakehouse.declare(newest, counted)
    said = [b"\xff", b"\xff", b"\xed\xa0\x80", b"plain", b"\xff"]
    records = [{"id": number, "at": text(number), "said": b64encode(each).decode()} for number, each in enumerate(said)]
    for batch in (records[:1], records[1:3], records[3:]):
        lakehouse.publish("raw", *batch, key="k").run()
    shown = lakehouse.table("gold.counted").selectExpr("hex(said)", "n").collect()
    assert {tuple(row) for row in shown} == {("FF", 3), ("EDA080", 1), (b"plain".hex().upper(), 1)}
    versions = lakehouse.table("silver.newest").selectExpr("id", "hex(said)", "is_current").collect()
    assert sorted(tuple(row) for row in versions) == [
        (number, each.hex().upper(), number not in (0, 1)) for number, each in enumerate(said)
    ]
    rebuilt = [refresh(lakehouse.spark, lakehouse.lake, each, rebuild=True) for each in (texts, newest, counted)]
    assert [each.rows.total for each in rebuilt] == [0, 0, 0]
