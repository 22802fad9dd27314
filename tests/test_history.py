"""History: changes in any order become versions laid end to end."""

from typing import TYPE_CHECKING

from sluice.history import history
from tests.kit import Row, frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

schema = "key string, at hours, colour string, _timestamp hours, _topic string, _partition int, _offset bigint"


def versions(spark: "SparkSession", *changes: tuple[str, float, str | None]) -> list[Row]:
    """The history of changes that arrive in the order given."""
    arrived = [(*change, float(index), "t", 0, index) for index, change in enumerate(changes)]
    laid = history(frame(spark, schema, arrived), keys=("key",), sequence_by="at", attributes=("colour",))
    return rows_of(laid, "key", "colour", "valid_from", "valid_to", "is_current")


def test_each_change_holds_until_the_next(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 3.0, "blue")) == [
        ("a", "blue", 3.0, None, True),
        ("a", "red", 1.0, 3.0, False),
    ]


def test_a_late_change_slots_between_two_known_versions(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 3.0, "blue"), ("a", 2.0, "green")) == [
        ("a", "blue", 3.0, None, True),
        ("a", "green", 2.0, 3.0, False),
        ("a", "red", 1.0, 2.0, False),
    ]


def test_equal_neighbours_are_one_version(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 2.0, "red")) == [("a", "red", 1.0, None, True)]


def test_a_late_change_between_equal_neighbours_splits_them_again(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 3.0, "red"), ("a", 2.0, "blue")) == [
        ("a", "blue", 2.0, 3.0, False),
        ("a", "red", 1.0, 2.0, False),
        ("a", "red", 3.0, None, True),
    ]


def test_of_two_changes_at_one_instant_the_later_in_the_log_counts(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 1.0, "blue")) == [("a", "blue", 1.0, None, True)]


def test_a_change_to_null_and_back_is_three_versions(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("a", 2.0, None), ("a", 3.0, "red")) == [
        ("a", "red", 1.0, 2.0, False),
        ("a", "red", 3.0, None, True),
        ("a", None, 2.0, 3.0, False),
    ]


def test_a_history_may_begin_with_null(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, None)) == [("a", None, 1.0, None, True)]


def test_keys_do_not_touch_each_other(spark: "SparkSession") -> None:
    assert versions(spark, ("a", 1.0, "red"), ("b", 2.0, "red")) == [
        ("a", "red", 1.0, None, True),
        ("b", "red", 2.0, None, True),
    ]
