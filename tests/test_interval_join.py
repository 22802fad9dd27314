"""Interval join: rows of one key whose times lie within an interval are pairs; the others stay alone."""

from typing import TYPE_CHECKING

import pytest

from sluice import bronze, silver
from sluice.errors import DeclarationError
from sluice.model.datasets import Dataset, microseconds
from sluice.shapes.interval_join import How, IntervalJoin, Side, interval_join, touched_buckets
from tests.kit import Lakehouse, Row, frame, rows_of, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

hour_us = 3_600_000_000
left_schema, right_schema = "user string, click string, at hours", "user string, buy string, at hours"


def rule(how: How, earliest_hours: int = 0, latest_hours: int = 2) -> IntervalJoin:
    return IntervalJoin(
        keys=("user",),
        left=Side("click", "at", ("click",)),
        right=Side("buy", "at", ("buy",)),
        earliest_us=earliest_hours * hour_us,
        latest_us=latest_hours * hour_us,
        how=how,
    )


def joined(spark: "SparkSession", how: How, clicks: list[Row], buys: list[Row], *hours: int) -> list[Row]:
    left = frame(spark, left_schema, clicks).selectExpr("*", "true AS _wanted")
    right = frame(spark, right_schema, buys).selectExpr("*", "true AS _wanted")
    found = interval_join(left, right, rule(how, *hours))
    return rows_of(found.selectExpr("click.click", "buy.buy", "event_time"))


def test_a_pair_matches_within_the_interval_its_bounds_included(spark: "SparkSession") -> None:
    clicks = [("u", "c", 1.0)]
    buys = [("u", "early", 0.9), ("u", "first", 1.0), ("u", "last", 3.0), ("u", "late", 3.1), ("v", "other", 2.0)]
    assert joined(spark, "inner", clicks, buys) == [("c", "first", 1.0), ("c", "last", 1.0)]


def test_an_interval_may_lie_before_the_left_row(spark: "SparkSession") -> None:
    buys = [("u", "long before", -4.1), ("u", "before", -4.0), ("u", "just before", -2.0), ("u", "at", 0.0)]
    assert joined(spark, "inner", [("u", "c", 0.0)], buys, -4, -2) == [("c", "before", 0.0), ("c", "just before", 0.0)]


@pytest.mark.parametrize(
    ("how", "alone"),
    [
        ("inner", []),
        ("left", [("c2", None, 9.0), ("c3", None, None)]),
        ("right", [(None, "b2", 5.0)]),
        ("full", [("c2", None, 9.0), ("c3", None, None), (None, "b2", 5.0)]),
    ],
)
def test_rows_without_a_match_are_kept_by_outer_joins(spark: "SparkSession", how: How, alone: list[Row]) -> None:
    clicks = [("u", "c1", 1.0), ("u", "c2", 9.0), (None, "c3", None)]
    buys = [("u", "b1", 2.0), ("u", "b2", 5.0)]
    assert joined(spark, how, clicks, buys) == sorted([("c1", "b1", 1.0), *alone], key=repr)


def test_a_changed_row_touches_the_few_buckets_that_it_can_reach(spark: "SparkSession") -> None:
    at_ten = frame(spark, left_schema, [("u", "c", 10.0)])
    touched = touched_buckets(at_ten, rule("full"), rule("full").left)
    # 10:00 to 12:00, in buckets of two hours.
    assert touched.count() == 2


def test_a_length_is_read_with_its_sign() -> None:
    assert (microseconds("-2 hours"), microseconds("30 seconds"), microseconds("a while")) == (
        -2 * hour_us,
        30_000_000,
        None,
    )


def events(name: str) -> Dataset:
    return silver.events(
        name,
        source=bronze.topic(name),
        schema=f"user string, {name}_id string, {name}_at timestamp",
        keys=[f"{name}_id"],
        event_time=f"{name}_at",
        future_tolerance="1000 days",
    )


def event(name: str, number: str, hours: float) -> dict[str, object]:
    return {"user": "u", f"{name}_id": number, f"{name}_at": text(hours)}


def test_a_late_match_ends_the_loneliness_of_both(lakehouse: Lakehouse) -> None:
    paid = silver.interval_join(
        "paid",
        left={"click": events("click")},
        right={"buy": events("buy")},
        keys=["user"],
        between=("0 hours", "2 hours"),
        how="full",
    )
    ids = ["click.click_id AS click_id", "buy.buy_id AS buy_id"]

    def pairs() -> list[Row]:
        return rows_of(lakehouse.table("silver.paid").selectExpr(*ids))

    lakehouse.declare(paid)
    for day in range(5):
        lakehouse.publish("click", event("click", f"alone {day}", 24 * day + 5.0))
    lakehouse.publish("click", event("click", "c", 1.0)).publish("buy", event("buy", "x", 9.0)).run()
    assert ("c", None) in pairs()
    assert (None, "x") in pairs()

    lakehouse.publish("buy", event("buy", "b", 2.0))
    done = lakehouse.run()
    assert ("c", "b") in pairs()
    assert ("c", None) not in pairs()
    # The lonely click goes, the pair comes, and nothing else is written.
    assert done["silver.paid"].rows.model_dump() == {"inserted": 1, "updated": 0, "deleted": 1}
    assert [each for each in lakehouse.laws() if not each.balanced] == []


def test_wrong_declarations_are_refused() -> None:
    click, buy = events("click"), events("buy")
    with pytest.raises(DeclarationError, match="write two durations"):
        silver.interval_join("x", left={"a": click}, right={"b": buy}, keys=["user"], between=("2 hours", "1 hour"))
    with pytest.raises(DeclarationError, match="name one dataset on each side"):
        silver.interval_join("x", left={"a": click}, right={"a": buy}, keys=["user"], between=("0 hours", "1 hour"))
