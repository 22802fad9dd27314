"""Difference: what must be written so that the rows a table has become those it should have."""

from collections import Counter
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from sluice.model import few_rows
from sluice.model.few_rows import are_comparable, comparable, nullable
from sluice.model.small_frames import frame_of, small_rows
from sluice.shapes.difference import difference, difference_of_few, operation
from tests.kit import Row, frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Differ = Callable[[DataFrame, DataFrame, tuple[str, ...]], DataFrame]

schema = "key string, value double"


def by_driver(own: "DataFrame", new: "DataFrame", grain: tuple[str, ...]) -> "DataFrame":
    """What the driver says of rows that it has."""
    had, has = small_rows(own), small_rows(new)
    assert had is not None
    assert has is not None
    found = difference_of_few(had, has, grain)
    assert found is not None
    return frame_of(own.sparkSession, found, StructType([*new.schema]).add(operation, "string"))


nan = float("nan")
# The rows that a table has, those that it should have, and the difference.
cases: dict[str, tuple[list[Row], list[Row], list[Row]]] = {
    "rows appear, change and disappear": (
        [("a", 1.0), ("b", 1.0), ("c", 1.0)],
        [("b", 2.0), ("c", 1.0), ("d", 1.0)],
        [("a", 1.0, "deleted"), ("b", 2.0, "updated"), ("d", 1.0, "inserted")],
    ),
    "a value to or from null is a change": (
        [("a", None), ("b", 1.0)],
        [("a", 1.0), ("b", None)],
        [("a", 1.0, "updated"), ("b", None, "updated")],
    ),
    "null equals null in keys and values": ([(None, 1.0), ("b", None)], [(None, 1.0), ("b", None)], []),
    "not a number equals itself": ([("a", nan)], [("a", nan)], []),
    "zero has no sign": ([("a", 0.0)], [("a", -0.0)], []),
}


@pytest.mark.parametrize("differ", [difference, by_driver])
def test_rows_that_differ_are_found_and_no_others(spark: "SparkSession", differ: "Differ") -> None:
    """By Spark, or by the driver; the cases lie side by side."""
    own, new = (
        frame(spark, f"name string, {schema}", [(name, *row) for name, case in cases.items() for row in case[side]])
        for side in (0, 1)
    )
    rows = differ(own, new, ("name", "key"))
    found: dict[str, list[Row]] = {name: [] for name in cases}
    for name, *values in rows_of(rows, "name", "key", "value", operation):
        found[name].append(tuple(values))
    assert found == {name: expected for name, (*_, expected) in cases.items()}


texts = st.sampled_from(["", "a", "b", "é", "\x00", "'"])
times = st.sampled_from([-62_135_596_800_000_000, -1, 0, 1, 253_402_300_799_999_999])
# Values that differ little, so that rows are often the same.
values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): texts,
    pa.binary(): st.binary(max_size=1),
    pa.int64(): st.sampled_from([-(2**63), 0, 1]),
    pa.int8(): st.sampled_from([-128, 1]),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 0.1]),
    pa.float32(): st.sampled_from([0.0, -0.0, float("nan"), 1.0]),
    pa.decimal128(20, 2): st.sampled_from([Decimal("0.00"), Decimal("-0.01")]),
    pa.date32(): st.sampled_from([date(1, 1, 1), date(9999, 12, 31)]),
    pa.timestamp("us", "UTC"): times,
    pa.list_(pa.timestamp("us", "UTC")): st.lists(st.none() | times, max_size=2),
    pa.struct([("a", pa.string()), ("b", pa.list_(pa.int32()))]): st.fixed_dictionaries(
        {"a": st.none() | texts, "b": st.none() | st.lists(st.integers(0, 1), max_size=2)}
    ),
}
keys: list[pa.DataType] = [
    pa.string(),
    pa.int64(),
    pa.timestamp("us", "UTC"),
    pa.date32(),
    pa.decimal128(20, 2),
    pa.bool_(),
    pa.binary(),
]
World = tuple[pa.Table, pa.Table, tuple[str, ...]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """The rows that a table has, those that it should have, and its keys, of which some are null."""
    grain: list[pa.DataType] = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3))
    kinds = [*grain, *draw(st.lists(st.sampled_from(list(values)), max_size=3))]
    row = st.tuples(*[st.none() | values[kind] for kind in kinds])

    def first_by_key(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return list({each[: len(grain)]: each for each in rows}.values())

    own = first_by_key(draw(st.lists(row, max_size=12)))
    kept = [each for each in own if draw(st.integers(0, 3))]
    new = first_by_key([*kept, *draw(st.lists(row, max_size=6))])
    names = [f"c{at}" for at in range(len(kinds))]

    def table(rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = zip(*rows, strict=True) if rows else [[] for _ in kinds]
        return pa.table([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], names=names)

    return table(own), table(new), tuple(names[: len(grain)])


def rows_in(found: pa.Table) -> Counter[str]:
    """The rows, in any order, with the operation of each. Zeros and what is no number have one form."""
    columns = [comparable(found[name]) for name in sorted(found.column_names)]
    return Counter(repr(row).replace("-0.0", "0.0") for row in zip(*columns, strict=True))


def by_spark(spark: "SparkSession", world: World) -> pa.Table:
    own, new, grain = world
    frames = [spark.createDataFrame(rows) for rows in (own, new)]
    return difference(frames[0], frames[1], grain).toArrow()


searched = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@searched
@given(world=worlds())
def test_the_driver_finds_the_same_difference_as_spark(spark: "SparkSession", world: World) -> None:
    found = difference_of_few(*world)
    assert found is not None
    assert rows_in(found) == rows_in(by_spark(spark, world))
    assert found.schema.names == [*world[1].schema.names, operation]


def forgets_nulls(left: Any, right: Any) -> Any:
    return pc.equal(left, right).fill_null(False)


def test_a_driver_that_takes_null_for_unlike_is_found_out(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the law above."""
    rows = pa.table({"c0": ["a"], "c1": pa.array([None], pa.int64())})
    monkeypatch.setattr(few_rows, "is_same", forgets_nulls)
    found = difference_of_few(rows, rows, ("c0",))
    assert found is not None
    assert rows_in(found) != rows_in(by_spark(spark, (rows, rows, ("c0",))))


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"c0": ["a", "a"], "c1": [1, 2]}),
        pa.table({"c0": [0.0]}),
        pa.table({"c0": [["a"]]}),
        pa.table({"c0": ["a"], "c1": [[0.0]]}),
        pa.table({"c0": ["a"], "c1": [{"x": float("nan")}]}),
        pa.table({"c0": ["a"], "c1": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}),
    ],
    ids=["a key twice", "numbers as keys", "arrays as keys", "numbers in arrays", "numbers in structs", "maps"],
)
def test_what_the_driver_does_not_compare_as_spark_does_is_left_to_it(rows: pa.Table) -> None:
    is_compared = are_comparable(rows.schema, ("c0",)) and difference_of_few(rows, rows, ("c0",)) is not None
    assert not is_compared


def test_text_that_is_not_utf_8_is_compared() -> None:
    def rows(text: bytes) -> pa.Table:
        return pa.table({name: pa.array([each]).view(pa.string()) for name, each in (("c0", b"\xff"), ("c1", text))})

    found = difference_of_few(rows(b"\xfe"), rows(b"\xfd"), ("c0",))
    assert found is not None
    assert found[operation].to_pylist() == ["updated"]


@pytest.mark.parametrize("sizes", [(0, 2), (2, 0), (1, 0, 1), (0, 1, 0, 1)])
def test_a_frame_has_the_rows_of_all_chunks(spark: "SparkSession", sizes: tuple[int, ...]) -> None:
    """Spark's own way from Arrow leaves out what comes after an empty one, such as the updates of a difference."""
    rows = pa.table({"c0": ["a", "b"]})
    chunked = pa.concat_tables([rows.slice(0, size) for size in sizes])
    assert frame_of(spark, chunked, StructType().add("c0", "string")).count() == sum(sizes)


def test_a_null_that_can_be_there_no_more_is_updated() -> None:
    """A count is never null, and a table that another program wrote may have one all the same."""
    counted = pa.field("c1", pa.struct([pa.field("n", pa.int64(), nullable=False)]), nullable=False)
    own = pa.table({"c0": ["a", "b", "c"], "c1": pa.array([None, {"n": None}, {"n": 1}], nullable(counted.type))})
    new = pa.table({"c0": ["a", "b", "c"], "c1": [{"n": 1}, {"n": 1}, {"n": 1}]}).cast(
        pa.schema([pa.field("c0", pa.string()), counted])
    )
    found = difference_of_few(own, new, ("c0",))
    assert found is not None
    assert found.select(["c0", operation]).to_pylist() == [
        {"c0": "a", operation: "updated"},
        {"c0": "b", operation: "updated"},
    ]
