"""Two states of a table compared, where their columns have other types."""

from typing import TYPE_CHECKING

import pytest

from sluice.operate.compare import Compared, compare
from sluice.quality.collected import are_equal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compared(spark: "SparkSession", before: str, after: str, key: str = "1") -> Compared:
    were, are = (spark.sql(f"SELECT {key} AS key, {value} AS value, 1 AS n") for value in (before, after))
    return compare("gold.t", ["key"], were, are)


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ("CAST(1.25 AS decimal(38,2))", "CAST(1.250 AS decimal(38,30))", False),
        ("CAST(1.25 AS decimal(38,2))", "CAST(1.254 AS decimal(38,30))", True),
        ("CAST(1.25 AS decimal(20,2))", "CAST('1.25000000000000000000000001' AS decimal(38,30))", True),
        ("CAST(1.250 AS decimal(38,30))", "CAST(1.25 AS decimal(12,2))", False),
        ("9007199254740992L", "9007199254740992D", False),
        ("9007199254740993L", "9007199254740992D", True),
        ("CAST('12345678901234567890123' AS decimal(38,0))", "12345678901234567890120D", True),
        ("16777217L", "CAST(16777216 AS float)", True),
        ("3", "3L", False),
        ("3000000000L", "CAST(NULL AS int)", True),
        ("CAST(NULL AS int)", "CAST(NULL AS double)", False),
        ("CAST('NaN' AS double)", "CAST(NULL AS int)", True),
        ("1.5D", "CAST(1 AS bigint)", True),
        ("0.1D", "CAST(0.1 AS decimal(3,2))", False),
    ],
)
def test_numbers_of_two_types_are_equal_if_no_digit_differs(
    spark: "SparkSession", before: str, after: str, differs: bool
) -> None:
    for one, other in ((before, after), (after, before)):
        found = compared(spark, one, other)
        assert (found.inserted, found.updated, found.deleted) == (0, int(differs), 0)
        assert [each.column for each in found.measures] == ["value"] * differs


def test_an_example_has_each_number_as_it_was_and_as_it_is(spark: "SparkSession") -> None:
    found = compared(spark, "CAST('0.12345678901234567899' AS decimal(38,20))", "CAST(0.5 AS decimal(38,18))")
    (example,) = found.examples
    assert (example.before, example.after) == (
        {"value": "0.12345678901234567899"},
        {"value": "0.500000000000000000"},
    )
    assert found.columns_retyped == ("value: decimal(38,20) → decimal(38,18)",)
    (measure,) = found.measures
    assert measure.mean_before == pytest.approx(0.123456789)
    assert measure.mean_after == 0.5


@pytest.mark.parametrize(
    ("before", "after", "is_one"),
    [
        ("CAST(1.5 AS decimal(10,2))", "CAST(1.5 AS decimal(12,3))", True),
        ("CAST(1.5 AS decimal(10,2))", "CAST(1.501 AS decimal(12,3))", False),
        ("9007199254740993L", "9007199254740992D", False),
        ("1", "1L", True),
    ],
)
def test_keys_of_two_types_of_numbers_are_one_if_no_digit_differs(
    spark: "SparkSession", before: str, after: str, is_one: bool
) -> None:
    were, are = (spark.sql(f"SELECT {key} AS key, {value} AS value") for key, value in ((before, 1), (after, 2)))
    found = compare("gold.t", ["key"], were, are)
    assert (found.inserted, found.updated, found.deleted) == ((0, 1, 0) if is_one else (1, 0, 1))
    assert all(set(each.key) == {"key"} and "{" not in str(each.key["key"]) for each in found.examples)


def test_nan_that_stays_is_no_value_that_differs(spark: "SparkSession") -> None:
    were, are = (
        spark.sql(f"SELECT 1 AS key, double('NaN') AS x, struct(float('NaN') AS y) AS s, {n} AS n") for n in (1, 2)
    )
    (example,) = compare("gold.t", ["key"], were, are).examples
    assert (example.before, example.after) == ({"n": "1"}, {"n": "2"})


def test_values_are_equal_as_they_are_to_spark() -> None:
    nan = float("nan")
    assert are_equal({"a": [nan, None], "b": (0.0,)}, {"a": [float("nan"), None], "b": (-0.0,)})
    assert not are_equal(nan, None)
    assert not are_equal([nan], [nan, nan])
    assert not are_equal({"a": nan}, {"b": nan})
