"""Join two streams of rows by key where their times lie within an interval, unmatched rows of either side kept.

A row of the result has the time of its left row, or of its right row where there is no left one. Time is divided into
buckets as long as the interval, so that a changed row touches the result in a few buckets of its key.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F

from sluice.model.scope import Scope
from sluice.shapes.canonical import key_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left", "right", "full"]
bucket = "_bucket"


@dataclass(frozen=True)
class Side:
    """One side of the join: its column in the result, the column of its time, and its grain."""

    name: str
    time: str
    grain: tuple[str, ...]


@dataclass(frozen=True)
class IntervalJoin:
    """A right row matches a left one of its key when its time minus the left's is from `earliest_us` to `latest_us`."""

    keys: tuple[str, ...]
    left: Side
    right: Side
    earliest_us: int
    latest_us: int
    how: How

    @property
    def bucket_us(self) -> int:
        """The length of a bucket: that of the interval, at least one second."""
        return max(self.latest_us - self.earliest_us, 1_000_000)


def interval_join(left: "DataFrame", right: "DataFrame", rule: IntervalJoin) -> "DataFrame":
    """Keys, `event_time`, a struct column per side (null where unmatched), and the grain of both sides.

    Both frames have `_wanted`, which says whether the results at their time are asked for.
    """
    lefts = as_struct(left, rule, rule.left, "left")
    rights = as_struct(right, rule, rule.right, "right")
    # A match lies between 0 and one bucket after the left row, counted from the interval's beginning.
    since = F.col("_right_us") - rule.earliest_us
    near = rights.withColumn("_near", F.explode(F.array(floor(since, rule) - 1, floor(since, rule))))
    apart = F.col("_right_us") - F.col("_left_us")
    matched = (
        lefts.withColumn("_near", floor(F.col("_left_us"), rule))
        .join(near, [*rule.keys, "_near"])
        .where(apart.between(rule.earliest_us, rule.latest_us))
    )
    result = matched.where("_left_wanted")
    if rule.how in ("left", "full"):
        result = result.unionByName(unmatched(lefts, matched, "left"), allowMissingColumns=True)
    if rule.how in ("right", "full"):
        result = result.unionByName(unmatched(rights, matched, "right"), allowMissingColumns=True)
    return result.select(
        *rule.keys,
        F.coalesce("_left_at", "_right_at").alias("event_time"),
        rule.left.name,
        rule.right.name,
        "_left",
        "_right",
        floor(F.coalesce("_left_us", "_right_us"), rule).alias(bucket),
    )


def as_struct(df: "DataFrame", rule: IntervalJoin, side: Side, name: str) -> "DataFrame":
    """The rows of a side, each as one column of the side's name beside its keys, its time and its identity."""
    values = [column for column in df.columns if not column.startswith("_")]
    return df.select(
        *rule.keys,
        F.struct(*values).alias(side.name),
        key_text(df, side.grain).alias(f"_{name}"),
        F.col(side.time).alias(f"_{name}_at"),
        F.unix_micros(side.time).alias(f"_{name}_us"),
        F.col("_wanted").alias(f"_{name}_wanted"),
    )


def unmatched(rows: "DataFrame", matched: "DataFrame", name: str) -> "DataFrame":
    """The wanted rows of a side that match nothing."""
    found = matched.select(F.col(f"_{name}").alias("_matched")).distinct()
    return rows.where(f"_{name}_wanted").join(found, F.col(f"_{name}") == F.col("_matched"), "left_anti")


def floor(microseconds: "Column", rule: IntervalJoin) -> "Column":
    """The bucket that a time is in."""
    length = F.lit(rule.bucket_us)
    return F.call_function("div", microseconds - F.pmod(microseconds, length), length)


def touched_buckets(changed: "DataFrame", rule: IntervalJoin, side: Side) -> "DataFrame":
    """The keys and buckets of the results that changed rows of a side can affect."""
    at = F.unix_micros(side.time)
    # A left row reaches the right ones after it, a right row the left ones before it.
    sign = 1 if side == rule.left else -1
    reached = [floor(at + sign * offset, rule) for offset in (0, rule.earliest_us, rule.latest_us)]
    return changed.select(*rule.keys, F.explode(F.array_distinct(F.array(*reached))).alias(bucket))


def rows_within(df: "DataFrame", scope: Scope, rule: IntervalJoin, side: Side) -> "DataFrame":
    """The rows that can affect the scope's results, with `_wanted` for those that appear in them."""
    placed = df.withColumn(bucket, floor(F.unix_micros(side.time), rule))
    keys = [(key, key) for key in rule.keys]
    if not scope.is_everything:
        bounds, margin_us = scope.bounds[bucket], max(abs(rule.earliest_us), abs(rule.latest_us))
        length, margin, at = F.lit(rule.bucket_us), F.lit(margin_us), F.col(side.time)
        start = F.timestamp_micros(bounds.least * length - margin)
        end = F.timestamp_micros((bounds.greatest + 1) * length + margin)
        placed = placed.where(at.isNull() | at.between(start, end))
        placed = scope.filter(placed, keys)
    return scope.mark(placed, [*keys, (bucket, bucket)], "_wanted").drop(bucket)
