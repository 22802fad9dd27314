"""As-of join: each fact meets the version valid at its event time, and a changed version finds the facts it touches."""

from typing import TYPE_CHECKING

from sluice.as_of import Joined, changed_intervals, facts_within, join_as_of
from tests.kit import Row, frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

facts_schema = "id int, key string, at hours"
versions_schema = "key string, colour string, valid_from hours, valid_to hours"
by_key = Joined(keys=("key",), fact_keys=("key",))
changes_schema = f"{versions_schema}, _change_type string"


def joined(spark: "SparkSession", facts: list[Row], versions: list[Row]) -> list[Row]:
    """The facts with the colour and the beginning of the version they met."""
    result = join_as_of(
        frame(spark, facts_schema, facts), frame(spark, versions_schema, versions), "paint", "at", by_key
    )
    return rows_of(result.selectExpr("id", "paint.colour", "paint.valid_from"))


red, blue = ("a", "red", 1.0, 3.0), ("a", "blue", 3.0, None)


def test_a_fact_meets_the_version_valid_at_its_event_time(spark: "SparkSession") -> None:
    assert joined(spark, [(1, "a", 2.0), (2, "a", 9.0)], [red, blue]) == [(1, "red", 1.0), (2, "blue", 3.0)]


def test_a_version_holds_at_its_own_beginning_and_not_at_its_end(spark: "SparkSession") -> None:
    assert joined(spark, [(1, "a", 1.0), (2, "a", 3.0)], [red, blue]) == [(1, "red", 1.0), (2, "blue", 3.0)]


def test_facts_that_nothing_was_valid_for_are_kept(spark: "SparkSession") -> None:
    facts: list[Row] = [(1, "a", 0.5), (2, "unknown", 2.0), (3, None, 2.0), (4, "a", None), (5, "a", 7.0)]
    closed = ("a", "red", 1.0, 3.0)
    assert joined(spark, facts, [closed]) == [(number, None, None) for number in (1, 2, 3, 4, 5)]


def test_a_gap_between_versions_is_no_version(spark: "SparkSession") -> None:
    assert joined(spark, [(1, "a", 4.0)], [red, ("a", "blue", 5.0, None)]) == [(1, None, None)]


def intervals(spark: "SparkSession", *changes: Row) -> list[Row]:
    return rows_of(changed_intervals(frame(spark, changes_schema, changes), ("key",)), "key", "_from", "_to")


def test_a_version_that_comes_between_touches_only_its_own_interval(spark: "SparkSession") -> None:
    assert intervals(
        spark,
        ("a", "red", 1.0, None, "update_preimage"),
        ("a", "red", 1.0, 4.0, "update_postimage"),
        ("a", "blue", 4.0, 6.0, "insert"),
        ("a", "red", 6.0, None, "insert"),
    ) == [("a", 4.0, None)]


def test_an_end_that_moves_touches_what_is_between_the_ends(spark: "SparkSession") -> None:
    assert intervals(spark, ("a", "red", 1.0, 9.0, "update_preimage"), ("a", "red", 1.0, 4.0, "update_postimage")) == [
        ("a", 4.0, 9.0)
    ]


def test_a_version_that_says_something_else_touches_its_whole_interval(spark: "SparkSession") -> None:
    assert intervals(spark, ("a", "red", 1.0, 3.0, "update_preimage"), ("a", "pink", 1.0, 3.0, "update_postimage")) == [
        ("a", 1.0, 3.0)
    ]


def test_a_version_from_null_to_a_value_touches_its_interval(spark: "SparkSession") -> None:
    assert intervals(spark, ("a", None, 1.0, 3.0, "update_preimage"), ("a", "red", 1.0, 3.0, "update_postimage")) == [
        ("a", 1.0, 3.0)
    ]


def test_intervals_that_lie_apart_stay_apart(spark: "SparkSession") -> None:
    assert intervals(
        spark,
        ("a", "red", 1.0, 2.0, "insert"),
        ("a", "red", 5.0, 6.0, "delete"),
        ("b", "red", 1.0, 2.0, "insert"),
    ) == [("a", 1.0, 2.0), ("a", 5.0, 6.0), ("b", 1.0, 2.0)]


def test_only_facts_in_an_interval_of_their_key_are_touched(spark: "SparkSession") -> None:
    facts = frame(spark, facts_schema, [(1, "a", 3.9), (2, "a", 4.0), (3, "a", 8.9), (4, "a", 9.0), (5, "b", 5.0)])
    touched = frame(spark, "key string, _from hours, _to hours", [("a", 4.0, 9.0)])
    assert rows_of(facts_within(facts, touched, by_key, "at"), "id") == [(2,), (3,)]
