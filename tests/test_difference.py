"""Difference: what must be written so that the rows a table has become those it should have."""

from typing import TYPE_CHECKING

from sluice.shapes.difference import difference
from tests.kit import Row, frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

schema = "key string, value double"


def changed(spark: "SparkSession", own: list[Row], new: list[Row]) -> list[Row]:
    rows = difference(frame(spark, schema, own), frame(spark, schema, new), ("key",))
    return rows_of(rows, "key", "value", "_operation")


def test_rows_appear_change_and_disappear(spark: "SparkSession") -> None:
    own, new = [("a", 1.0), ("b", 1.0), ("c", 1.0)], [("b", 2.0), ("c", 1.0), ("d", 1.0)]
    assert changed(spark, own, new) == [("a", 1.0, "deleted"), ("b", 2.0, "updated"), ("d", 1.0, "inserted")]


def test_a_value_to_or_from_null_is_a_change(spark: "SparkSession") -> None:
    assert changed(spark, [("a", None), ("b", 1.0)], [("a", 1.0), ("b", None)]) == [
        ("a", 1.0, "updated"),
        ("b", None, "updated"),
    ]


def test_null_equals_null_in_keys_and_values(spark: "SparkSession") -> None:
    same = [(None, 1.0), ("b", None)]
    assert changed(spark, same, same) == []


def test_not_a_number_equals_itself(spark: "SparkSession") -> None:
    assert changed(spark, [("a", float("nan"))], [("a", float("nan"))]) == []
