"""As-of join: each fact meets the version valid at its event time, and a changed version finds the facts it touches."""

from typing import TYPE_CHECKING

import pytest

from sluice import bronze, silver
from sluice.model.ddl import struct_fields
from sluice.shapes.as_of import Joined, changed_intervals, facts_within, join_as_of
from tests.kit import Lakehouse, Row, frame, rows_of, text
from tests.shop import prices, sales

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


def test_a_member_not_known_yet_is_inferred_and_one_that_ended_is_not(spark: "SparkSession") -> None:
    rule = Joined(keys=("key",), fact_keys=("key",), inferred={"colour": "'unknown'"})
    facts = [(1, "a", 0.5), (2, "a", 2.0), (3, "a", 9.0), (4, "new", 2.0), (5, None, 2.0), (6, "a", None)]
    result = join_as_of(
        frame(spark, facts_schema, facts), frame(spark, versions_schema, [("a", "red", 1.0, 3.0)]), "paint", "at", rule
    )
    assert rows_of(result.selectExpr("id", "paint.colour", "paint.is_inferred")) == [
        (1, "unknown", True),
        (2, "red", False),
        (3, None, None),
        (4, "unknown", True),
        (5, None, None),
        (6, None, None),
    ]


def test_facts_may_name_a_key_by_another_column(spark: "SparkSession") -> None:
    rule = Joined(keys=("key",), fact_keys=("place",))
    facts = frame(spark, "id int, place string, at hours", [(1, "a", 2.0)])
    result = join_as_of(facts, frame(spark, versions_schema, [red, blue]), "paint", "at", rule)
    assert rows_of(result.selectExpr("id", "paint.colour")) == [(1, "red")]
    assert result.columns == ["id", "place", "at", "paint"]


def test_a_key_with_thousands_of_versions_costs_as_many_rows(spark: "SparkSession") -> None:
    """Nothing in the plan compares every fact with every version."""
    facts = spark.range(3000).selectExpr("id", "'a' AS key", "timestamp_seconds(id) AS at")
    versions = spark.range(3000).selectExpr(
        "'a' AS key", "id AS colour", "timestamp_seconds(id) AS valid_from", "timestamp_seconds(id + 1) AS valid_to"
    )
    joined_frame = join_as_of(facts, versions, "paint", "at", by_key)
    assert joined_frame.where("paint.colour = id").count() == 3000
    assert "Join" not in joined_frame._jdf.queryExecution().optimizedPlan().toString()


def test_thousands_of_intervals_of_a_key_are_found_without_comparing_each(spark: "SparkSession") -> None:
    facts = spark.range(4000).selectExpr("id", "'a' AS key", "timestamp_seconds(id) AS at")
    intervals = spark.range(2000).selectExpr(
        "'a' AS key", "timestamp_seconds(2 * id) AS _from", "timestamp_seconds(2 * id + 1) AS _to"
    )
    touched = facts_within(facts, intervals, by_key, "at")
    assert touched.where("id % 2 = 0").count() == touched.count() == 2000


@pytest.mark.parametrize("inferred", [None, {"price": "0"}])
def test_the_type_of_a_dimension_is_declared_as_the_table_has_it(
    lakehouse: Lakehouse, inferred: dict[str, str] | None
) -> None:
    dimensions = {"price": silver.dimension(prices, inferred=inferred)}
    sold = silver.as_of("sold", facts=sales, event_time="sold_at", dimensions=dimensions)
    lakehouse.declare(sold).publish("prices", {"product": "tea", "changed_at": text(0), "price": 3})
    lakehouse.publish("sales", {"id": "s", "product": "tea", "sold_at": text(1), "pieces": 1}).run()
    assert sold.columns is not None
    declared = sold.columns["price"]
    assert declared is not None
    assert struct_fields(declared) == struct_fields(dict(lakehouse.table("silver.sold").dtypes)["price"])


@pytest.mark.parametrize(("of_fact", "of_version"), [("int", "bigint"), ("bigint", "int"), ("tinyint", "int")])
def test_a_key_keeps_the_type_that_it_has_in_the_facts(lakehouse: Lakehouse, of_fact: str, of_version: str) -> None:
    facts = silver.events(
        "facts", source=bronze.topic("facts"), schema=f"id string, part {of_fact}, at timestamp", keys=["id"]
    )
    parts = silver.history(
        "parts",
        source=bronze.topic("parts"),
        schema=f"part {of_version}, changed_at timestamp, colour string",
        keys=["part"],
        sequence_by="changed_at",
    )
    painted = silver.as_of("painted", facts=facts, event_time="at", dimensions={"paint": parts})
    assert (painted.columns or {})["part"] == of_fact
    lakehouse.declare(painted)
    lakehouse.publish("facts", {"id": "a", "part": 7, "at": text(2)}, {"id": "b", "part": None, "at": text(2)}).run()
    lakehouse.publish("parts", {"part": 7, "changed_at": text(1), "colour": "red"}).run()
    lakehouse.publish("facts", {"id": "c", "part": 7, "at": text(3)}).run()
    table = lakehouse.table("silver.painted")
    assert dict(table.dtypes)["part"] == of_fact
    assert rows_of(table.selectExpr("id", "part", "paint.colour")) == [
        ("a", 7, "red"),
        ("b", None, None),
        ("c", 7, "red"),
    ]
