"""A scope names its rows exactly where they are few, and files are skipped by what it says, whatever the values are."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isnan
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.model import scope as scopes
from sluice.model import small_frames
from sluice.model.scope import collect
from sluice.model.truncation import times_of
from tests.kit import rows_of

values: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.sampled_from("ab'\"\\%_$\x00é🛫"), max_size=3),
    "binary": st.binary(max_size=2),
    "bigint": st.sampled_from([-(2**63), 2**63 - 1, *range(40)]),
    "tinyint": st.sampled_from([-128, 127, 0, 1]),
    "boolean": st.booleans(),
    "decimal(38,10)": st.sampled_from([Decimal("-0.0000000001"), Decimal("12345678901234567890.5"), Decimal(0)]),
    "date": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": st.integers(-62_135_510_400, 253_402_214_400).map(lambda each: datetime.fromtimestamp(each, UTC)),
    "double": st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, 0.1]),
    "struct<a:string,b:int>": st.tuples(st.sampled_from(["x", None]), st.integers(0, 2)),
}
searched = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[StructType, list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The types of two columns, the rows of a table, and those of a scope, of which some are in the table."""
    kinds = draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=2))
    rows = st.tuples(*[st.none() | values[kind] for kind in kinds])
    table = draw(st.lists(rows, min_size=1, max_size=60))
    wanted = draw(st.lists(st.sampled_from(table), max_size=40)) + draw(st.lists(rows, max_size=3))
    schema = cast(StructType, StructType.fromDDL(", ".join(f"c{at} {kind}" for at, kind in enumerate(kinds))))
    return schema, table, wanted


def of_bytes(spark: SparkSession, *said: str) -> DataFrame:
    """Texts of any bytes."""
    rows = spark.createDataFrame([(each,) for each in said], "was string")
    return rows.selectExpr("was", "CAST(unhex(was) AS string) AS text")


@pytest.fixture(scope="module")
def file_of_texts(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path = str(tmp_path_factory.mktemp("texts") / "rows")
    of_bytes(spark, "FD", "FF", "EDA080", "41", "62", "EFBFBD").coalesce(1).write.parquet(path)
    return spark.read.parquet(path)


@pytest.mark.parametrize("wanted", [["FD"], ["41", "FF"], ["EDA080", "62"]])
@pytest.mark.parametrize("is_few", [True, False])
def test_a_scope_finds_text_that_is_not_utf8_in_files(
    file_of_texts: DataFrame, monkeypatch: pytest.MonkeyPatch, wanted: list[str], *, is_few: bool
) -> None:
    if not is_few:
        monkeypatch.setattr(small_frames, "rows_max", -1)
    scope = collect(of_bytes(file_of_texts.sparkSession, *wanted).select("text"))
    found = scope.filter(file_of_texts, [("text", "text")])
    assert [row.was for row in found.select("was").orderBy("was").collect()] == sorted(wanted)


@searched
@given(drawn=worlds())
@pytest.mark.parametrize("rows", ["few", "many", "too many to broadcast"])
def test_a_scope_finds_its_rows_and_no_others(
    spark: SparkSession, drawn: tuple[StructType, list[tuple[Any, ...]], list[tuple[Any, ...]]], rows: str
) -> None:
    schema, table, wanted = drawn
    with pytest.MonkeyPatch.context() as patched, filtered(spark, is_used=rows == "too many to broadcast"):
        if rows != "few":
            patched.setattr(small_frames, "rows_max", -1)
        if rows == "too many to broadcast":
            patched.setattr(scopes, "broadcast_rows_max", -1)
        scope = collect(spark.createDataFrame(wanted, schema))
        numbered = [(*row, number) for number, row in enumerate(table)]
        df = spark.createDataFrame(numbered, StructType([*schema]).add("_n", "integer"))
        found = scope.filter(df, [(name, name) for name in schema.names])
        known = set(map(comparable, wanted))
        expected = [(number,) for number, row in enumerate(table) if comparable(row) in known]
        assert rows_of(found, "_n") == sorted(expected, key=repr)
        # What only prunes may keep more, and loses nothing.
        pruned = scope.filter(df, [], [(name, name) for name in schema.names])
        assert set(expected) <= set(rows_of(pruned, "_n"))


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as Spark compares it: NaN is itself, and zero has no sign."""
    numbers = {at: "NaN" if isnan(each) else each or 0.0 for at, each in enumerate(row) if isinstance(each, float)}
    return tuple(numbers.get(at, each) for at, each in enumerate(row))


@contextmanager
def filtered(spark: SparkSession, *, is_used: bool = True) -> Iterator[None]:
    """Nothing is broadcast, and tables of any size have Bloom filters before a join."""
    names = (
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold",
    )
    before: dict[str, str | None] = {name: spark.conf.get(name) for name in names} if is_used else {}
    try:
        for name, value in zip(before, ("-1", "0"), strict=False):
            spark.conf.set(name, value)
        yield
    finally:
        for name, was in before.items():
            spark.conf.set(name, str(was))


@pytest.mark.parametrize(("keys", "found"), [(["a", "b"], 2), (["a", None], 2), ([None], 1)])
def test_few_other_rows_are_compared_with_a_scope_of_many(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, keys: list[str | None], found: int
) -> None:
    """Spark joins only what a Bloom filter of the scope lets through."""
    monkeypatch.setattr(small_frames, "rows_max", -1)
    monkeypatch.setattr(scopes, "broadcast_rows_max", -1)
    scope = collect(spark.createDataFrame([(each,) for each in keys], "key string"))
    table = spark.range(1_000).selectExpr("CAST(id AS string) AS key")
    table = table.unionByName(spark.createDataFrame([("a",), ("b",), (None,)], "key string"))
    with filtered(spark):
        looked_up = scope.filter(table, [("key", "key")])
        plan = looked_up._jdf.queryExecution().optimizedPlan().toString()
        assert ("might_contain" in plan) == (keys != [None])
        assert looked_up.count() == found


def test_a_scope_that_forgets_its_nulls_is_found_out(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the law above."""
    table = spark.createDataFrame([("a",), (None,)], "c string")
    known = scopes.bounds_of_values
    monkeypatch.setattr(
        scopes, "bounds_of_values", lambda *said: scopes.Bounds(known(*said).ranges, False, known(*said).values)
    )
    assert collect(table).filter(table, [("c", "c")]).count() == 1


@pytest.fixture(scope="module")
def forty_files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A table whose files each have a range of ids and times."""
    path = str(tmp_path_factory.mktemp("table"))
    rows = spark.range(40_000).selectExpr("id", "timestamp_seconds(id * 3600) AS at", "sha2(string(id), 256) AS key")
    rows.repartitionByRange(40, "id").write.format("delta").save(path)
    return spark.read.format("delta").load(path)


@pytest.mark.parametrize("count", [1, scopes.compared_max, scopes.compared_max + 1, 400])
def test_files_are_skipped_by_each_value_or_range(forty_files: DataFrame, count: int) -> None:
    # At the beginning and at the end, and nothing between.
    half = max(count // 2, 1)
    scope = collect(forty_files.where(f"id < {half} OR id >= 40000 - {count - half}").select("id", "at"))
    for name in ("id", "at"):
        found = scope.filter(forty_files, [(name, name)])
        assert found.count() == count
        assert len(found.inputFiles()) <= 2, name


truncations = [
    ("to_date(at)", "date"),
    ("date(`at`)", "date"),
    ("CAST(at AS date)", "date"),
    ("date_trunc('hour', at)", "timestamp"),
    ("date_trunc('WEEK', at)", "timestamp"),
    ("date_trunc('quarter', at)", "timestamp"),
    ("to_date(from_utc_timestamp(at, 'Pacific/Kiritimati'))", "date"),
    ("date_trunc('month', to_utc_timestamp(at, 'America/New_York'))", "timestamp"),
]
odd_times = [
    "0001-01-01",
    "1969-12-31 23:59:59.999999",
    "2026-01-31 23:30:00",
    "9999-12-31 23:59:59",
    "294247-01-10 03:00:00",
]


@pytest.mark.parametrize(("expression", "kind"), truncations)
def test_the_rows_of_a_truncated_time_are_within_its_bounds(spark: SparkSession, expression: str, kind: str) -> None:
    # Spark cannot move the last of all times to a zone.
    times = odd_times if "utc" not in expression else odd_times[1:-1]
    rows = spark.createDataFrame([(each,) for each in [*times, None]], "t string").selectExpr("CAST(t AS timestamp) at")
    groups = rows.selectExpr(f"{expression} AS g").distinct().localCheckpoint()
    texts = [row[0] for row in groups.selectExpr("CAST(g AS string)").collect()]
    counts = list[str]()
    for text in texts:
        group = f"CAST({'NULL' if text is None else repr(text)} AS {kind})"
        scope = collect(groups.where(f"g <=> {group}"))
        assert scope.count == 1
        condition = times_of(expression, scope.bounds["g"], dict(rows.dtypes))
        assert condition is not None
        inside = f"{expression} <=> {group}"
        counts.append(f"array(count_if({inside}), count_if({inside} AND ({condition})))")
    for text, (inside_of_all, inside_of_bounds) in zip(texts, rows.selectExpr(*counts).collect()[0], strict=True):
        assert inside_of_bounds == inside_of_all > 0, text


@pytest.fixture(scope="module")
def bounds(spark: SparkSession) -> scopes.Bounds:
    return collect(spark.range(1)).bounds["id"]


@pytest.mark.parametrize(
    "expression", ["to_date(name)", "year(at)", "to_date(at, 'yyyy')", "date_trunc(unit, at)", "at", "to_date(gone)"]
)
def test_what_is_no_truncation_of_a_known_time_says_nothing_of_it(bounds: scopes.Bounds, expression: str) -> None:
    assert times_of(expression, bounds, {"at": "timestamp", "name": "string", "unit": "string"}) is None


def test_a_list_is_no_longer_than_parquets_filters_can_be_nested(spark: SparkSession) -> None:
    """They nest the values of a list; with a thousand the stack of a task overflows, and the JVM ends."""
    scope = collect(spark.range(scopes.named_max).selectExpr("CAST(id * 7 AS string) AS k"))
    first, *lists = scope.condition([("k", "k")]).split(" IN (")
    assert "BETWEEN" in first
    assert sum(each.count("AS string)") for each in lists) == scopes.named_max
    assert max(each.count("AS string)") for each in lists) == scopes.listed_max
    assert spark.conf.get("spark.sql.parquet.pushdown.inFilterThreshold") == str(scopes.listed_max)


def test_beyond_that_a_scope_says_ranges_alone_and_has_the_same_rows(spark: SparkSession) -> None:
    """A plan with thousands of literals costs more than what it skips."""
    scope = collect(spark.range(scopes.named_max + 1).selectExpr("CAST(id * 7 AS string) AS k"))
    assert scope.few is not None
    assert scope.literals is None
    assert " IN (" not in scope.condition([("k", "k")])
    found = scope.filter(spark.range(100).selectExpr("CAST(id AS string) AS k"), [("k", "k")])
    assert sorted(int(row.k) for row in found.collect()) == list(range(0, 100, 7))
