"""The driver finds the rows of a small scope in a large table as Spark would, whatever their values are."""

import tempfile
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from itertools import compress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sluice.model import small_frames
from sluice.model.found import Among, Condition, During
from sluice.model.scope import collect
from sluice.model.small_frames import terms_in
from sluice.storage import key_filters, small_reads
from sluice.storage.delta import Lake
from sluice.storage.delta.bloom import writer_properties
from sluice.storage.delta.opened import spark_schema
from sluice.storage.small_writes import any_of
from tests.kit import rows_of

first_us, last_us = -62_135_596_800_000_000, 253_402_300_799_999_999
values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(st.sampled_from("ab'\"\\%_$\x00\n;-é🛫"), max_size=3),
    pa.binary(): st.binary(max_size=2),
    pa.int64(): st.sampled_from([-(2**63), 2**63 - 1, *range(40)]),
    pa.int8(): st.sampled_from([-128, 127, 0, 1]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 10): st.sampled_from([Decimal("-0.0000000001"), Decimal("12345678901234567890.5"), Decimal(0)]),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us", "UTC"): st.sampled_from([first_us, -1, 0, 1, 1_767_225_600_123_456, last_us]),
}
searched = settings(max_examples=40, deadline=None)
Form = Callable[["pa.Scalar[Any]"], str]
World = tuple[pa.Table, list[pa.Table], pa.Table]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """All rows of a table of one or two columns, its files, and the rows of a scope, of which some are there."""
    kinds = draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=2))
    rows = st.tuples(*[st.none() | values[kind] for kind in kinds])
    files = draw(st.lists(st.lists(rows, min_size=1, max_size=30), min_size=1, max_size=3))
    there = [row for file in files for row in file]
    wanted = draw(st.lists(st.sampled_from(there), max_size=30)) + draw(st.lists(rows, max_size=3))
    made = [table_of(kinds, file, start) for start, file in zip(starts(files), files, strict=True)]
    return pa.concat_tables(made), made, table_of(kinds, wanted, 0).drop_columns(["n"])


def table_of(kinds: list[pa.DataType], rows: list[tuple[Any, ...]], start: int) -> pa.Table:
    """Rows in columns `c0`, `c1`, and their number in `n`."""
    columns = {f"c{at}": pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)}
    return pa.table({**columns, "n": pa.array(range(start, start + len(rows)), pa.int64())})


def starts(files: list[list[Any]]) -> list[int]:
    return [sum(map(len, files[:at])) for at in range(len(files))]


def found_in(world: World) -> list[int]:
    """The numbers of the rows that the driver finds for each column of the scope by itself."""
    everything, files, wanted = world
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            write_deltalake(folder, file, mode="append")
        conditions: list[Condition] = [Among(name, wanted[name]) for name in wanted.column_names]
        rows = find(DeltaTable(folder), everything.schema, folder, conditions)
    assert rows is not None
    assert rows.select(everything.schema.names).schema == everything.schema
    return sorted(cast("list[int]", rows["n"].to_pylist()))


def find(table: DeltaTable, schema: pa.Schema, folder: str | None, conditions: list[Condition]) -> pa.Table | None:
    return small_reads.find_placed(table, schema, folder, conditions, small_reads.candidates(table, conditions))


def implied_by(world: World) -> list[int]:
    everything, _, wanted = world
    among = {name: set(texts(wanted[name])) for name in wanted.column_names}
    given = zip(*[texts(everything[name]) for name in among], strict=True)
    return [at for at, row in enumerate(given) if all(map(set.__contains__, among.values(), row))]


def texts(column: "pa.ChunkedArray[Any]") -> list[Any]:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


@searched
@given(world=worlds())
def test_the_driver_finds_the_rows_of_a_scope_and_no_others(world: World) -> None:
    assert found_in(world) == implied_by(world)


@searched
@given(world=worlds())
def test_so_does_it_by_files_where_some_rows_are_marked(world: World) -> None:
    _, files, wanted = world
    conditions: list[Condition] = [Among(name, wanted[name]) for name in wanted.column_names]
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            write_deltalake(folder, file, mode="append")
        table = DeltaTable(folder)
        names = [f"{folder}/{name}" for name in small_reads.candidates(table, conditions)["path"].to_pylist()]
        found = small_reads.among_files(table, files[0].schema, names, conditions)
    assert found is not None
    assert sorted(cast("list[int]", found["n"].to_pylist())) == implied_by(world)


@searched
@given(world=worlds())
def test_keys_are_named_by_few_terms_and_no_other_row_is(world: World) -> None:
    everything, files, wanted = world
    if not wanted.num_rows:
        return
    names = wanted.column_names
    keys = {tuple(row) for row in zip(*[texts(wanted[name]) for name in names], strict=True)}
    given = zip(*[texts(everything[name]) for name in names], strict=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            write_deltalake(folder, file, mode="append")
        found = pa.RecordBatchReader.from_stream(DeltaTable(folder).scan(predicate=any_of(wanted))).read_all()
    assert set(found["n"].to_pylist()) == {at for at, row in enumerate(given) if row in keys}
    assert any_of(wanted).count(" AND ") <= terms_in(wanted) <= len(keys)


def forget_nulls(condition: Among, form: Form) -> str:
    return f'"{condition.column}" IN ({", ".join(map(form, small_reads.sorted_values(condition)))})'


def forget_a_value(condition: Among, form: Form) -> str:
    return known_sql(Among(condition.column, condition.values.slice(1)), form)


known_sql = small_reads.sql_of


@pytest.mark.parametrize("mutant", [forget_nulls, forget_a_value])
def test_a_finder_that_forgets_is_found_out(
    mutant: Callable[[Among, Form], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants of the law above."""
    monkeypatch.setattr(small_reads, "sql_of", mutant)
    everything = table_of([pa.string()], [("a",), ("b",), (None,)], 0)
    world = everything, [everything], everything.drop_columns(["n"])
    assert found_in(world) != implied_by(world)


def test_many_values_skip_files_by_their_ranges(tmp_path: Path) -> None:
    for start in range(0, 40_000, 1_000):
        write_deltalake(tmp_path, pa.table({"id": range(start, start + 1_000)}), mode="append")
    table = DeltaTable(tmp_path)
    wanted = pa.chunked_array([[*range(300), *range(39_900, 40_000)]], pa.int64())
    files = pa.table(table.get_add_actions(flatten=True))
    condition = Among("id", wanted)
    assert files.filter(small_reads.can_hold(files, condition)).num_rows == 2
    found = find(table, pa.schema([("id", pa.int64())]), None, [condition])
    assert found is not None
    assert set(found["id"].to_pylist()) == set(wanted.to_pylist())


@pytest.mark.parametrize(
    ("limit", "value"), [("rows_max", 9), ("bytes_max", 9), ("candidate_files_max", 0), ("candidate_bytes_max", 9)]
)
def test_what_is_much_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    rows = table_of([pa.int64()], [(number % 2,) for number in range(20)], 0)
    write_deltalake(tmp_path, rows)
    ones: list[Condition] = [Among("c0", pa.chunked_array([[1]], pa.int64()))]
    assert find(DeltaTable(tmp_path), rows.schema, None, ones) is not None
    monkeypatch.setattr(small_reads, limit, value)
    assert find(DeltaTable(tmp_path), rows.schema, None, ones) is None


@pytest.mark.parametrize("is_here", [True, False])
def test_many_keys_with_a_null_among_them_end_no_process(tmp_path: Path, *, is_here: bool) -> None:
    """Each is a step deeper in the stack of DataFusion, which ended the process from some 10,000 on."""
    keys = [None, *[f"{number:06}" for number in range(0, 40_000, 2)]]
    rows = table_of([pa.string()], [(key,) for key in keys], 0)
    write_deltalake(tmp_path, rows)
    wanted = pa.chunked_array([[None, *[f"{number:06}" for number in range(0, 36_000, 3)]]], pa.string())
    found = find(DeltaTable(tmp_path), rows.schema, str(tmp_path) if is_here else None, [Among("c0", wanted)])
    if not is_here:
        assert found is None
        return
    assert found is not None
    assert set(found["c0"].to_pylist()) == set(keys) & set(wanted.to_pylist())


@pytest.mark.parametrize(("end", "numbers"), [(None, [3, 4, 5]), (5, [3, 4])])
def test_a_time_within_an_interval(tmp_path: Path, end: int | None, numbers: list[int]) -> None:
    kind = pa.timestamp("us", "UTC")
    rows = table_of([kind], [(number,) for number in range(6)], 0)
    write_deltalake(tmp_path, rows)
    last = None if end is None else pa.scalar(end, kind)
    found = find(DeltaTable(tmp_path), rows.schema, None, [During("c0", pa.scalar(3, kind), last)])
    assert found is not None
    assert found["n"].to_pylist() == numbers


@pytest.mark.parametrize("column", ["filename", "file_row_number", "FileName"])
def test_columns_may_be_called_as_the_place_of_a_row_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(key_filters, "rows_min", 1)
    lake = filtered(tmp_path, pa.table({"id": ["a", "c"], column: ["x", "y"]}))
    assert [found_by_id(lake, each) for each in "abc"] == [[{"id": "a", column: "x"}], [], [{"id": "c", column: "y"}]]


def test_where_all_files_that_are_left_lack_a_column_spark_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_filters, "rows_min", 1)
    monkeypatch.setattr(small_reads, "read_whole_share_min", 1)
    lake = filtered(tmp_path, pa.table({"id": ["a", "c"]}), pa.table({"id": ["a", "b"], "n": [1, 2]}))
    assert found_by_id(lake, "c") is None
    assert found_by_id(lake, "b") == [{"id": "b", "n": 2}]


def filtered(folder: Path, *files: pa.Table) -> Lake:
    """A table of these files, with filters of `id`."""
    lake = Lake(str(folder))
    for rows in files:
        properties = writer_properties({"id": "string"}, ["id"], 10_000)
        path = lake.path("silver.filtered")
        write_deltalake(path, rows, mode="append", schema_mode="merge", writer_properties=properties)
    return lake


def found_by_id(lake: Lake, wanted: str) -> list[dict[str, Any]] | None:
    table = lake.open("silver.filtered")
    among = Among("id", pa.chunked_array([[wanted]]))
    found = lake.find("silver.filtered", table, spark_schema(table), [among])
    return None if found is None else found.to_pylist()


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Facts with random keys in the order of their time: twenty thousand of them, and a hundred times as many."""
    folder = tmp_path_factory.mktemp("bases")
    for count in (20_000, 2_000_000):
        for start in range(0, count, 250_000):
            facts = facts_of(start, min(start + 250_000, count))
            properties = writer_properties({"id": "string"}, ["id"], len(facts))
            write_deltalake(folder / str(count), facts, mode="append", writer_properties=properties)
    return {count: folder / str(count) for count in (20_000, 2_000_000)}


def facts_of(start: int, end: int) -> pa.Table:
    numbers = range(start, end)
    ids = [key_of(number) for number in numbers]
    times = pa.array([number * 1_000_000 for number in numbers], pa.timestamp("us", "UTC"))
    return pa.table({"id": ids, "at": times, "customer": [f"c{number % 50_000}" for number in numbers], "n": numbers})


def key_of(number: int) -> str:
    return f"{number * 7_919_000_003 % 10_000_000_019:016d}"


@pytest.mark.parametrize(
    ("numbers", "columns", "megabytes_max"),
    [
        ([1_000], ("id",), 12),
        ([*range(1_000, 19_000, 1_000)], ("id",), 12),
        ([*range(1_000, 1_100)], ("id", "at"), 8),
    ],
    ids=["one key", "scattered keys", "keys of some minutes"],
)
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_hundred_times_the_rows_cost_a_few_megabytes_more(
    bases: dict[int, Path], numbers: list[int], columns: tuple[str, ...], megabytes_max: float, *, is_marked: bool
) -> None:
    """The footers and the filters of all files, and the pages of few: the larger table has 70 MB."""
    wanted = pa.concat_tables([facts_of(number, number + 1) for number in numbers])
    conditions: list[Condition] = [Among(name, wanted[name]) for name in columns]
    read = {}
    for count, path in bases.items():
        table = DeltaTable(path)
        before = bytes_read()
        if is_marked:
            files = small_reads.candidates(table, conditions)
            names = [f"{path}/{name}" for name in files["path"].to_pylist()]
            held = key_filters.may_have(files, names, conditions).to_pylist()
            found = small_reads.among_files(table, wanted.schema, [*compress(names, held)], conditions)
        else:
            found = small_reads.among_rows(table, wanted.schema, conditions)
        read[count] = (bytes_read() - before) / 1e6
        assert found is not None
        assert sorted(cast("list[int]", found["n"].to_pylist())) == numbers
    assert read[2_000_000] - read[20_000] <= megabytes_max, read


def test_a_thousand_keys_that_no_row_has_read_pages_of_the_filters_once(
    bases: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have eight megabytes of filters. A filter may be wrong of one key; then its file is searched."""
    path = str(bases[2_000_000])
    table, schema = DeltaTable(path), facts_of(0, 1).schema
    ids = [[f"{number * 10_000_000:016d}{kind}" for number in range(1_000)] for kind in "abcdef"]
    absent: list[list[Condition]] = [[Among("id", pa.chunked_array([each]))] for each in ids]

    def megabytes_read(conditions: list[Condition]) -> float:
        before = bytes_read()
        found = find(table, schema, path, conditions)
        assert found is not None
        assert found.num_rows == 0
        return (bytes_read() - before) / 1e6

    first, *later = map(megabytes_read, absent)
    assert first < 25
    assert min(later) < 0.1
    # A reader of Parquet reads the filters each time.
    monkeypatch.setattr(key_filters, "may_have", lambda files, *_: pa.array([True] * files.num_rows))
    assert min(map(megabytes_read, absent)) > 8


def bytes_read() -> int:
    """What this process has asked the system for so far."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads only shorter tables than these as a whole."""
    monkeypatch.setattr(small_frames, "rows_max", 1_000)


@pytest.fixture
def large(spark: SparkSession, tmp_path: Path, few_at_once: None) -> Lake:
    """A table that is written by Spark, and larger than the driver reads as a whole."""
    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "id",
        "concat('k', id) AS k",
        "timestamp_micros(id * 1001) AS at",
        "named_struct('a', id, 'b', string(id)) AS s",
        "if(id % 100 = 0, NULL, id % 10 / 2D) AS x",
    )
    lake = Lake(str(tmp_path / "lake"))
    rows.write.format("delta").save(lake.path("silver.large"))
    return lake


@pytest.mark.parametrize("is_marked", [False, True])
def test_the_rows_are_those_that_spark_finds(spark: SparkSession, large: Lake, *, is_marked: bool) -> None:
    if is_marked:
        path = large.path("silver.large")
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
        spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2998")
    df = large.read(spark, "silver.large")
    # The greatest of a file has microseconds, and its statistics have none.
    wanted = df.where("id IN (0, 7, 1499, 1500, 2998, 2999)").select("k", "at")
    few = collect(wanted.unionByName(spark.sql("SELECT 'k1' AS k, timestamp_micros(0) AS at")))
    found = few.found(df, [("k", "k"), ("at", "at")], [("at", "at")], None)
    assert found is not None
    assert found.schema == df.schema
    assert rows_of(found, *df.columns) == rows_of(df.join(few.frame, ["k", "at"], "left_semi"), *df.columns)
    assert found.count() == 6 - is_marked


@pytest.mark.usefixtures("few_at_once")
def test_text_that_is_not_utf8_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    rows = spark.range(3_000).selectExpr("id", "if(id = 7, CAST(X'FF' AS string), string(id)) AS text")
    rows.write.format("delta").save(lake.path("silver.odd"))
    df = lake.read(spark, "silver.odd")
    few = collect(spark.sql("SELECT 7L AS id"))
    assert few.found(df, [("id", "id")], [], None) is None
    assert few.filter(df, [("id", "id")]).selectExpr("hex(text) AS text").collect()[0].text == "FF"


@pytest.mark.parametrize("kind", ["double", "struct<a:bigint>", "int"])
def test_what_is_compared_otherwise_is_left_to_spark(spark: SparkSession, large: Lake, kind: str) -> None:
    df = large.read(spark, "silver.large")
    value = "named_struct('a', 1L)" if kind.startswith("struct") else f"CAST(1 AS {kind})"
    few = collect(spark.sql(f"SELECT {value} AS wanted"))
    column = {"double": "x", "int": "id"}.get(kind, "s")
    assert few.found(df, [(column, "wanted")], [], None) is None
