"""Verbs for frames: the driver, which has the rows, says the same as Spark."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pytest
from pyspark.sql.types import StructType

from sluice.model import scope, small_frames
from sluice.model.frames import dropped, nulled, selected, where_equal, where_null, with_constant
from sluice.model.small_frames import are_light, frame_of, known_rows, small_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Verb = Callable[["DataFrame"], "DataFrame"]
schema = (
    "id bigint, kind string, bytes binary, at timestamp, day date, share double, paid decimal(20,2), "
    "parts struct<a:string,b:array<int>>, tags array<string>"
)
noon = datetime(2999, 12, 31, 12, tzinfo=UTC)
rows: list[tuple[Any, ...]] = [
    (1, "a", b"a", noon, noon.date(), 0.5, Decimal("1.50"), ("x", [1, None]), ["t", None]),
    (2, "it's \\ `é` \U0001f600", b"\xff", noon, None, float("nan"), None, (None, []), []),
    (3, None, None, None, None, None, None, None, None),
    (None, "", b"", noon, noon.date(), -0.0, Decimal("-0.01"), (None, None), None),
    (4, "a", b"a", noon, noon.date(), 0.5, Decimal("1.50"), ("x", [1, None]), ["t", None]),
]
verbs: dict[str, Verb] = {
    "equal": lambda df: where_equal(df, "kind", "a"),
    "equal to hostile text": lambda df: where_equal(df, "kind", "it's \\ `é` \U0001f600"),
    "equal to nothing there": lambda df: where_equal(df, "kind", "z"),
    "null": lambda df: where_null(df, "kind"),
    "not null": lambda df: where_null(df, "day", is_null=False),
    "dropped": lambda df: dropped(df, "bytes", "parts", "no_such_column"),
    "selected": lambda df: selected(df, {"day": "at", "renamed": "parts", "at": "day"}),
    "with a text": lambda df: with_constant(df, "said", "it's \\ `é`"),
    "with a time": lambda df: with_constant(df, "landed_at", noon),
    "nulled": lambda df: nulled(df, ["id", "parts", "tags", "paid", "at"], unless_null="day"),
    "several": lambda df: selected(
        nulled(where_null(df, "at", is_null=False), ["bytes"], unless_null="id"), {"b": "bytes"}
    ),
}


def both(spark: "SparkSession", values: list[tuple[Any, ...]]) -> "tuple[DataFrame, DataFrame]":
    """Rows as the driver has them, and as Spark has."""
    df = spark.createDataFrame(values, schema)
    few = small_rows(df)
    assert few is not None
    return frame_of(spark, few, df.schema), df


def counted(df: "DataFrame") -> Counter[str]:
    return Counter(map(repr, df.collect()))


@pytest.mark.parametrize("name", verbs)
@pytest.mark.parametrize("values", [rows, []], ids=["rows", "no rows"])
def test_the_driver_does_what_spark_does(spark: "SparkSession", name: str, values: list[tuple[Any, ...]]) -> None:
    by_driver, by_spark = (verbs[name](df) for df in both(spark, values))
    assert known_rows(by_driver) is not None, "it has the rows"
    assert known_rows(by_spark) is None
    assert by_driver.dtypes == by_spark.dtypes
    found = known_rows(by_driver)
    assert found is not None
    assert found.schema.names == by_spark.columns
    # As Spark is given them, and as they stay in the driver.
    for df in (by_driver, frame_of(spark, found, StructType([*by_spark.schema]))):
        assert counted(df) == counted(by_spark)


@pytest.mark.parametrize("columns", [("kind",), ("id", "kind"), ("at", "day", "paid", "bytes"), ("id",)])
def test_a_scope_of_the_drivers_rows_is_the_one_of_spark(spark: "SparkSession", columns: tuple[str, ...]) -> None:
    by_driver, by_spark = both(spark, [*rows, *rows])
    mine, its = (scope.collect(selected(df, {name: name for name in columns})) for df in (by_driver, by_spark))
    assert counted(mine.frame) == counted(its.frame)
    assert (mine.count, mine.bounds) == (its.count, its.bounds)


def test_a_scope_by_fractions_is_found_by_spark(spark: "SparkSession") -> None:
    """Two numbers that are none are one to Spark, and so are the two zeros."""
    by_driver, _ = both(spark, [(1, "a", None, None, None, value, None, None, None) for value in (0.0, -0.0)])
    assert scope.collect(selected(by_driver, {"share": "share"})).count == 1


@pytest.mark.parametrize(
    ("column", "is_light"),
    [
        (pa.array(["a" * 8192, None]), True),
        (pa.array(["a" * 8193, None]), False),
        (pa.array([None, b"\xff" * 9000], pa.binary()), False),
        (pa.array([[], ["a" * 9000]]), False),
        (pa.array([[], ["a"]]), True),
        (pa.array([{"a": "a" * 9000}, None]), False),
        (pa.array([[("k", "a" * 9000)], None], pa.map_(pa.string(), pa.string())), False),
        (pa.array([1, None], pa.decimal128(38, 2)), True),
        # Python knows no year beyond 9999, and no text that is not UTF-8.
        (pa.array([{"at": 2**62}, None], pa.struct([("at", pa.timestamp("us", "UTC"))])), True),
        (pa.array([[b"\xff"], None], pa.list_(pa.binary())).view(pa.list_(pa.string())), True),
    ],
)
def test_large_rows_stay_with_spark(spark: "SparkSession", column: "pa.Array[Any]", *, is_light: bool) -> None:
    found = pa.Table.from_arrays([pa.array([1, 2]), column], ["id", "value"])
    assert are_light(found) is is_light
    df = frame_of(spark, found, spark.createDataFrame(found).schema)
    assert (small_rows(df) is not None) is is_light


def test_many_rows_stay_with_spark(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    by_driver, _ = both(spark, rows)
    monkeypatch.setattr(small_frames, "rows_max", len(rows) - 1)
    assert small_rows(by_driver) is None


def test_a_driver_that_keeps_what_is_null_is_found_out(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the law above."""
    monkeypatch.setattr("pyarrow.compute.is_null", pyarrow.compute.is_valid)
    by_driver, by_spark = (verbs["null"](df) for df in both(spark, rows))
    assert counted(by_driver) != counted(by_spark)
