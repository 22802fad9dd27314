"""Rows of a large table are replaced by marks that the driver makes, as Spark's MERGE would replace them."""

import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

from sluice.errors import SluiceError, Superseded
from sluice.model.found import Among
from sluice.model.ledger import Entry, RowCounts
from sluice.model.small_frames import frame_of, small_rows
from sluice.shapes.difference import operation
from sluice.storage.delta import Lake, marked
from sluice.storage.delta.added import added
from sluice.storage.delta.history import ChangesLost
from sluice.storage.delta.marked import Transaction

name = "silver.large"
columns = (
    "id string, part int, at timestamp, amount decimal(12,2), buyer struct<segment: string, rank: bigint>, note binary"
)
grain = ["id", "part"]
Row = tuple[Any, ...]
Known = dict[tuple[Any, ...], Row]
texts = ["'it''s'", "back\\slash", "Zürich 🛫", "", "%41", "a/b", "x\x00y"]


def row(chance: random.Random, number: int) -> Row:
    key = f"{texts[number % len(texts)]}{number}", chance.choice([None, 1]) if number % 5 == 0 else number
    buyer = None if chance.random() < 0.2 else (chance.choice([None, "s1", "s2"]), chance.randrange(9))
    at = chance.choice([None, 0, 1_767_225_600_123_456])
    return *key, at, Decimal(chance.randrange(10**6)) / 100, buyer, bytes([chance.randrange(256)])


def table_of(rows: Sequence[Row], operations: Sequence[str] = ()) -> pa.Table:
    kinds = {
        "id": pa.string(),
        "part": pa.int32(),
        "at": pa.timestamp("us", "UTC"),
        "amount": pa.decimal128(12, 2),
        "buyer": pa.struct([("segment", pa.string()), ("rank", pa.int64())]),
        "note": pa.binary(),
    }
    values = [[each[at] for each in rows] for at in range(len(kinds))]
    values[4] = [None if each is None else dict(zip(("segment", "rank"), each, strict=True)) for each in values[4]]
    found = pa.table([pa.array(each, kind) for each, kind in zip(values, kinds.values(), strict=True)], list(kinds))
    return found.append_column(operation, pa.array(operations, pa.string())) if operations else found


def key_of(values: Row) -> tuple[Any, ...]:
    return values[:2]


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference, and the rows as they are after it."""

    rows: tuple[Row, ...]
    operations: tuple[str, ...]
    after: Known

    @property
    def counts(self) -> RowCounts:
        return RowCounts(**{each: self.operations.count(each) for each in set(self.operations)})

    def frame(self, spark: SparkSession) -> DataFrame:
        schema = spark.createDataFrame([], f"{columns}, {operation} string").schema
        return frame_of(spark, table_of(self.rows, self.operations), schema)


def change_of(chance: random.Random, known: Known, first_new: int, most: int = 8) -> Change:
    """Rows of which some are new, some others, and some gone."""
    changed = chance.sample(sorted(known, key=repr), min(most, len(known)))
    kinds = [chance.choice(["updated", "deleted"]) for _ in changed]
    rows = [
        known[key] if kind == "deleted" else (*key, *row(chance, 0)[2:])
        for key, kind in zip(changed, kinds, strict=True)
    ]
    new = [row(chance, first_new + number) for number in range(chance.randrange(3))]
    gone = {key for key, kind in zip(changed, kinds, strict=True) if kind == "deleted"}
    after = {key: values for key, values in known.items() if key not in gone}
    after |= {key_of(each): each for each, kind in zip(rows, kinds, strict=True) if kind == "updated"}
    return Change((*rows, *new), (*kinds, *["inserted"] * len(new)), after | {key_of(each): each for each in new})


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    """A table of several small files whose rows may be marked, and its rows."""
    chance = random.Random(7)
    rows = [row(chance, number) for number in range(60)]
    folder = tmp_path_factory.mktemp("made")
    lake = Lake(str(folder), rows_per_file=20, deletion_vectors_from_rows=1)
    schema = spark.createDataFrame([], columns).schema
    lake.replace_rows(frame_of(spark, table_of(rows), schema), name, Entry(dataset=name), 0)
    lake.mark_deleted_rows(spark, name, lake.open(name))
    return folder, {key_of(each): each for each in rows}


@pytest.fixture
def lake(made: tuple[Path, Known], tmp_path: Path) -> Lake:
    return lake_at(made[0], tmp_path / "lake")


def lake_at(made: Path, folder: Path) -> Lake:
    shutil.copytree(made, folder)
    return Lake(str(folder), rows_per_file=20, deletion_vectors_from_rows=1)


def merge(spark: SparkSession, lake: Lake, change: Change, because: str = "") -> None:
    df = change.frame(spark)
    entry = Entry(dataset=name, rows=change.counts, because=because)
    lake.merge_rows(df, name, entry, lake.fence(name, name), grain=grain, small=small_rows(df))


@pytest.fixture
def roads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each difference that is applied, whether the driver marked the rows."""
    taken = list[bool]()
    known = Lake.replace_marked

    def noted(*said: Any, **more: Any) -> bool:
        taken.append(known(*said, **more))
        return taken[-1]

    monkeypatch.setattr(Lake, "replace_marked", noted)
    return taken


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> "Callable[[Callable[[], None]], None]":
    """Applies a difference by Spark's MERGE."""

    def run(apply: Callable[[], None]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Lake, "replace_marked", lambda *said, **more: False)
            apply()

    return run


def seen(df: DataFrame, *, without: Sequence[str] = ()) -> list[str]:
    """All rows, as text in their order."""
    return sorted(map(repr, df.drop(*without).collect()))


def contents(spark: SparkSession, lake: Lake) -> list[str]:
    """The rows that Spark reads."""
    return seen(spark.read.format("delta").load(lake.path(name)))


def feed_by_spark(spark: SparkSession, lake: Lake, since: int) -> list[str]:
    """The change feed that Spark reads after a version."""
    reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", since + 1)
    return seen(reader.load(lake.path(name)), without=["_commit_timestamp"])


def feed_by_driver(spark: SparkSession, lake: Lake, since: int) -> list[str]:
    return seen(lake.changes(spark, name, since, lake.newest_version(name)), without=["_commit_timestamp"])


def rows_expected(spark: SparkSession, after: Known) -> list[str]:
    return seen(frame_of(spark, table_of(list(after.values())), spark.createDataFrame([], columns).schema))


def test_marks_give_the_rows_and_the_change_feed_that_a_merge_gives(
    spark: SparkSession,
    made: tuple[Path, Known],
    tmp_path: Path,
    roads: list[bool],
    by_spark: "Callable[[Callable[[], None]], None]",
) -> None:
    """Also after Spark marked rows of the same files, and down to files without rows."""
    chance = random.Random(0)
    marked_by_driver, merged = lake_at(made[0], tmp_path / "driver"), lake_at(made[0], tmp_path / "spark")
    since, after = merged.newest_version(name), made[1]
    for turn in range(4):
        change = change_of(chance, after, 100 * (turn + 1), most=25)
        after = change.after
        by_spark(lambda: merge(spark, merged, change))  # noqa: B023 - called at once
        if turn == 1:
            by_spark(lambda: merge(spark, marked_by_driver, change))  # noqa: B023
        else:
            merge(spark, marked_by_driver, change)
    assert roads == [True] * 3
    assert contents(spark, marked_by_driver) == contents(spark, merged) == rows_expected(spark, after)
    assert marked_by_driver.row_count(name) == len(after)
    feeds = [
        feed(spark, each, since) for feed in (feed_by_spark, feed_by_driver) for each in (marked_by_driver, merged)
    ]
    assert feeds == [feeds[0]] * 4
    assert marked_by_driver.fence(name, name) == merged.fence(name, name)
    entries = [[each.entry for each in lake.commits(name)] for lake in (marked_by_driver, merged)]
    assert entries[0] == entries[1]


def is_law_kept(spark: SparkSession, lake: Lake, known: Known) -> bool:
    """Whether a change of some rows gives the rows and the feed that it should."""
    change = change_of(random.Random(3), known, 100)
    since = lake.newest_version(name)
    try:
        merge(spark, lake, change)
    except SluiceError:
        return False
    images = {"inserted": 1, "updated": 2, "deleted": 1}
    fed = sum(images[each] for each in change.operations)
    is_right = contents(spark, lake) == rows_expected(spark, change.after)
    return is_right and len(feed_by_spark(spark, lake, since)) == fed


def test_the_law_is_kept_without_a_mutant(spark: SparkSession, lake: Lake, made: tuple[Path, Known]) -> None:
    assert is_law_kept(spark, lake, made[1])


known_places, known_images = marked.places_of, marked.changed_images


def forget_a_mark(*said: Any) -> Any:
    first, *others = known_places(*said).items()
    return dict([(first[0], first[1][1:]), *others])


def mark_a_neighbour(*said: Any) -> Any:
    first, *others = known_places(*said).items()
    free = next(number for number in range(60) if number not in first[1])
    return dict([(first[0], [free, *first[1][1:]]), *others])


def lose_the_old_images(*said: Any) -> Any:
    found = known_images(*said)
    assert found is not None
    return found.filter(pa.array([kind != "update_preimage" for kind in found[marked.change_type].to_pylist()]))


@pytest.mark.parametrize(
    ("part", "mutant"),
    [
        ("places_of", forget_a_mark),
        ("places_of", mark_a_neighbour),
        ("changed_images", lose_the_old_images),
    ],
)
def test_mutants_break_the_law(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    lake: Lake,
    made: tuple[Path, Known],
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    mutant: Callable[..., Any],
) -> None:
    monkeypatch.setattr(marked, part, mutant)
    assert not is_law_kept(spark, lake, made[1])


def test_marks_that_are_there_are_kept(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant that begins with no marks brings deleted rows back."""
    first = change_of(random.Random(1), made[1], 100)
    merge(spark, lake, first)

    def no_marks(self: Transaction, *said: object) -> Any:
        return self.delta.deletionvectors.RoaringBitmapArray()

    monkeypatch.setattr(Transaction, "marks_of", no_marks)
    assert not is_law_kept(spark, lake, first.after)


def interrupt(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Does something once, after the new rows were written and before their commit."""
    known, pending = Transaction.written, [meanwhile]

    def written(self: Transaction, rows: DataFrame) -> list[Any]:
        found = known(self, rows)
        if pending:
            pending.pop()()
        return found

    monkeypatch.setattr(Transaction, "written", written)


def test_of_two_drivers_one_writes(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, late = change_of(random.Random(1), made[1], 100), change_of(random.Random(2), made[1], 200)
    interrupt(monkeypatch, lambda: merge(spark, Lake(lake.root), other, "the first"))
    with pytest.raises(Superseded):
        merge(spark, lake, late, "the second")
    assert contents(spark, lake) == rows_expected(spark, other.after)


def test_a_driver_that_moves_the_cursor_meanwhile_wins(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit without rows is in the way of none that adds some, but this one is the dataset's."""

    def move_cursor() -> None:
        Lake(lake.root).move_cursor(name, Entry(dataset=name, because="the first"), lake.fence(name, name))

    interrupt(monkeypatch, move_cursor)
    with pytest.raises(Superseded):
        merge(spark, lake, change_of(random.Random(2), made[1], 200), "the second")
    assert contents(spark, lake) == rows_expected(spark, made[1])


@pytest.mark.parametrize("by", ["rows added", "files written together", "a row of a file marked"])
def test_what_another_program_commits_meanwhile_only_delays_it(  # noqa: PLR0917
    spark: SparkSession,
    lake: Lake,
    made: tuple[Path, Known],
    monkeypatch: pytest.MonkeyPatch,
    roads: list[bool],
    by: str,
) -> None:
    change = change_of(random.Random(2), made[1], 200)
    after, gone = (
        dict(change.after),
        next(key for key in made[1] if key not in map(key_of, change.rows) and (key[1] or 0) > 1),
    )
    added = row(random.Random(3), 900)
    path = lake.path(name)

    def meanwhile() -> None:
        if by == "rows added":
            write_deltalake(path, table_of([added]), mode="append")
            after[key_of(added)] = added
        elif by == "files written together":
            spark.sql(f"OPTIMIZE delta.`{path}`").collect()
        else:
            spark.sql(f"DELETE FROM delta.`{path}` WHERE part = {gone[1]}").collect()
            del after[gone]

    interrupt(monkeypatch, meanwhile)
    merge(spark, lake, change)
    assert roads == [True]
    assert contents(spark, lake) == rows_expected(spark, after)
    assert lake.row_count(name) == len(after)


def test_a_driver_that_ends_before_its_commit_leaves_files_that_no_table_has(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], monkeypatch: pytest.MonkeyPatch
) -> None:
    change, version = change_of(random.Random(2), made[1], 200), lake.newest_version(name)
    before = files_below(lake)

    def end(*said: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", end)
        with pytest.raises(KeyboardInterrupt):
            merge(spark, lake, change)
    left = files_below(lake) - before
    assert {path.suffix for path in left if not path.name.startswith(".")} == {".parquet", ".bin"}
    assert lake.newest_version(name) == version
    assert contents(spark, lake) == rows_expected(spark, made[1])
    merge(spark, lake, change)
    assert contents(spark, lake) == rows_expected(spark, change.after)


def files_below(lake: Lake) -> set[Path]:
    return {path for path in Path(lake.path(name)).rglob("*") if path.is_file()}


def without_feed(spark: SparkSession, lake: Lake) -> Lake:
    spark.sql(f"ALTER TABLE delta.`{lake.path(name)}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    return lake


def without_vectors(spark: SparkSession, lake: Lake) -> Lake:
    spark.sql(f"ALTER TABLE delta.`{lake.path(name)}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    return lake


def with_renamed_columns(spark: SparkSession, lake: Lake) -> Lake:
    spark.sql(f"ALTER TABLE delta.`{lake.path(name)}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    return lake


def in_partitions(spark: SparkSession, lake: Lake) -> Lake:
    rows = spark.read.format("delta").load(lake.path(name)).localCheckpoint()
    writing = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy("at")
    writing.option("userMetadata", Entry(dataset=name).to_json()).save(lake.path(name))
    return lake


def in_an_odd_folder(spark: SparkSession, lake: Lake) -> Lake:
    folder = Path(lake.root).with_name("lake [50%] ü")
    shutil.copytree(lake.root, folder)
    return dataclasses.replace(lake, root=str(folder), newest={}, rows={}, placed={})


def with_rows_twice(spark: SparkSession, lake: Lake) -> Lake:
    """Each row is there twice, which no table of ours is."""
    spark.read.format("delta").load(lake.path(name)).write.format("delta").mode("append").save(lake.path(name))
    return lake


def actions_by_delta(spark: SparkSession, lake: Lake) -> dict[str, Any]:
    """What Delta finds about each file of a table by adding up its log."""
    files = Transaction(spark, lake.path(name)).begun.snapshot().allFiles().collectAsList()
    return {each.path(): json.loads(each.json()) for each in files}


def test_the_log_is_read_as_delta_reads_it(spark: SparkSession, lake: Lake, made: tuple[Path, Known]) -> None:
    """At each version, among them those before and after checkpoints of Spark's and of the driver's."""
    spark.sql(f"ALTER TABLE delta.`{lake.path(name)}` SET TBLPROPERTIES ('delta.checkpointInterval' = '4')")
    known, checkpoints = made[1], 0
    for seed in range(11):
        change = change_of(random.Random(seed), known, 1000 + 10 * seed)
        merge(spark, lake, change)
        known = change.after
        if seed == 3:
            lake.open(name).create_checkpoint()
        expected, version = actions_by_delta(spark, lake), lake.newest_version(name)
        found = {path: json.loads(line) for path, line in added(lake, name, version, expected).items()}
        for each in (*expected.values(), *found.values()):
            # Whether a commit changed rows is nothing that a file keeps.
            del each["add"]["dataChange"]
        assert found == expected
        folder = Path(lake.path(name), "_delta_log")
        checkpoints = len(list(folder.glob("*.checkpoint.parquet")))
    assert checkpoints > 3
    assert contents(spark, lake) == rows_expected(spark, known)


def test_without_the_commit_that_added_a_file_spark_merges(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], roads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Any:
        raise ChangesLost("the commit is no longer in the log")

    change = change_of(random.Random(2), made[1], 200)
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit_file", gone)
        merge(spark, lake, change)
    assert roads == [False]
    assert contents(spark, lake) == rows_expected(spark, change.after)


@pytest.mark.parametrize(
    "altered",
    [without_feed, without_vectors, with_renamed_columns, in_partitions, in_an_odd_folder, with_rows_twice],
)
def test_what_the_driver_does_not_know_how_to_mark_is_merged_by_spark(
    spark: SparkSession,
    lake: Lake,
    made: tuple[Path, Known],
    roads: list[bool],
    altered: Callable[[SparkSession, Lake], Lake],
) -> None:
    lake = altered(spark, lake)
    change = change_of(random.Random(2), made[1], 200)
    merge(spark, lake, change)
    assert roads == [False]
    expected = rows_expected(spark, change.after)
    assert (sorted(set(contents(spark, lake))) if altered is with_rows_twice else contents(spark, lake)) == expected


def test_a_folder_with_a_space_is_a_folder(
    spark: SparkSession, made: tuple[Path, Known], tmp_path: Path, roads: list[bool]
) -> None:
    lake, change = lake_at(made[0], tmp_path / "my lake"), change_of(random.Random(2), made[1], 200)
    merge(spark, lake, change)
    assert roads == [True]
    assert contents(spark, lake) == rows_expected(spark, change.after)


@pytest.mark.parametrize("wrong", ["an inserted row that is there", "an updated row that is not there"])
def test_a_difference_that_is_not_that_of_the_table_is_merged_by_spark(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], roads: list[bool], wrong: str
) -> None:
    known = next(iter(made[1].values()))
    change = (
        Change((known,), ("inserted",), made[1])
        if wrong.startswith("an inserted")
        else Change((new := row(random.Random(1), 700),), ("updated",), made[1] | {key_of(new): new})
    )
    merge(spark, lake, change)
    assert roads == [False]
    assert contents(spark, lake) == rows_expected(spark, change.after)


def test_rows_that_were_found_for_the_difference_are_not_looked_for_again(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], monkeypatch: pytest.MonkeyPatch, roads: list[bool]
) -> None:
    change = change_of(random.Random(2), made[1], 200)
    rows, schema = table_of(change.rows), spark.createDataFrame([], columns).schema
    assert lake.find(name, lake.open(name), schema, [Among(each, rows[each]) for each in grain]) is not None
    monkeypatch.setattr(Lake, "find_placed", lambda *said: None)
    merge(spark, lake, change)
    assert roads == [True]
    assert contents(spark, lake) == rows_expected(spark, change.after)
    # Of another version nothing is known.
    merge(spark, lake, change_of(random.Random(3), change.after, 300))
    assert roads == [True, False]


def test_rows_that_were_found_and_stay_as_they_are_are_not_marked(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], roads: list[bool]
) -> None:
    """A scope has more rows than change, as that of many copies of known records of which few are others' first."""
    change = change_of(random.Random(2), made[1], 200)
    df, schema = change.frame(spark), spark.createDataFrame([], columns).schema
    scope = pa.chunked_array([pa.array([key[0] for key in made[1]], pa.string())])
    found = lake.find(name, lake.open(name), schema, [Among("id", scope)])
    assert found is not None
    assert found.num_rows == len(made[1])
    entry = Entry(dataset=name, rows=change.counts)
    lake.merge_rows(df, name, entry, lake.fence(name, name), grain=["id"], small=small_rows(df))
    assert roads == [True]
    assert contents(spark, lake) == rows_expected(spark, change.after)


def test_rows_of_a_table_that_began_small_are_marked(spark: SparkSession, tmp_path: Path, roads: list[bool]) -> None:
    lake = Lake(str(tmp_path), deletion_vectors_from_rows=1)
    chance = random.Random(7)
    rows = [row(chance, number) for number in range(20)]
    lake.create(name, table_of(rows).schema, [])
    lake.add(table_of(rows), name)
    known = {key_of(each): each for each in rows}
    for turn in range(3):
        change = change_of(chance, known, 100 * (turn + 1))
        known = change.after
        merge(spark, lake, change)
    assert roads == [True] * 3
    assert contents(spark, lake) == rows_expected(spark, known)


def test_an_empty_checkpoint_leaves_the_change_to_spark(
    spark: SparkSession, lake: Lake, made: tuple[Path, Known], roads: list[bool]
) -> None:
    """Delta passes it over, as of a machine that lost power."""
    Path(lake.path(name), f"_delta_log/{lake.newest_version(name):020}.checkpoint.parquet").touch()
    change = change_of(random.Random(2), made[1], 200)
    merge(spark, lake, change)
    assert roads == [False]
    assert contents(spark, lake) == rows_expected(spark, change.after)
