"""Join each fact to the dimension version that was valid at its event time.

Facts and versions are laid in one line per key and the last version seen is carried along, so the cost grows with their
number, however many versions a key has.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

interval_columns = ("valid_from", "valid_to", "is_current")


def as_of(
    facts: "DataFrame",
    dimensions: "Mapping[str, DataFrame]",
    *,
    event_time: str,
    keys: Mapping[str, Sequence[str]],
) -> "DataFrame":
    """The facts with one struct column per dimension: its attributes and `valid_from`, null where nothing was valid."""
    for name, versions in dimensions.items():
        facts = join_as_of(facts, versions, name, event_time, keys[name])
    return facts


def join_as_of(
    facts: "DataFrame", versions: "DataFrame", name: str, event_time: str, keys: Sequence[str]
) -> "DataFrame":
    """The facts with the column `name`, the version valid at `event_time` of the dimension with these `keys`."""
    attributes = attributes_of(versions, keys)
    starts = versions.select(
        *keys,
        F.col("valid_from").alias("_at"),
        F.lit(0).alias("_turn"),
        F.struct("valid_to", F.struct(*attributes, "valid_from").alias("version")).alias("_version"),
    )
    moments = facts.withColumns({"_at": F.col(event_time), "_turn": F.lit(1)})
    # A version that begins at a fact's own instant comes before it: intervals are closed at the start.
    line = Window.partitionBy(*keys).orderBy("_at", "_turn")
    last = F.last("_version", ignorenulls=True).over(line)
    is_valid = F.col("_last.valid_to").isNull() | (F.col("_last.valid_to") > F.col("_at"))
    return (
        moments.unionByName(starts, allowMissingColumns=True)
        .withColumn("_last", last)
        .where("_turn = 1")
        .select(*facts.columns, F.when(is_valid, F.col("_last.version")).alias(name))
    )


def attributes_of(versions: "DataFrame", keys: Sequence[str]) -> list[str]:
    """The columns of a history that say how things were: neither keys, nor interval, nor bookkeeping."""
    return [
        column for column in versions.columns if column not in (*keys, *interval_columns) and not column.startswith("_")
    ]


def changed_intervals(changes: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """From a history's change feed the intervals in which another version holds now: keys, `_from`, `_to` (null: open).

    Where only the end of a version moved, the interval is between the old end and the new one. Intervals of a key that
    touch are one.
    """
    attributes = attributes_of(changes.drop("_change_type", "_commit_version", "_commit_timestamp"), keys)
    is_edit = F.col("_change_type").isin("update_preimage", "update_postimage")
    moved = (
        changes.withColumn("_state", F.xxhash64(*attributes))
        .groupBy(*keys, "valid_from")
        .agg(
            F.every(is_edit).alias("_edited"),
            F.min("_state").alias("_least"),
            F.max("_state").alias("_greatest"),
            F.min("valid_to").alias("_end"),
            F.max("valid_to").alias("_last_end"),
            F.bool_or(F.col("valid_to").isNull()).alias("_open"),
        )
    )
    only_end_moved = F.col("_edited") & (F.col("_least") == F.col("_greatest"))
    intervals = moved.select(
        *keys,
        F.when(only_end_moved, F.col("_end")).otherwise(F.col("valid_from")).alias("_from"),
        F.when(~F.col("_open"), F.col("_last_end")).alias("_to"),
    )
    return merged(intervals, keys)


def merged(intervals: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """Intervals of a key that overlap or touch, as one."""
    by_start = Window.partitionBy(*keys).orderBy("_from", F.col("_to").asc_nulls_last())
    before = by_start.rowsBetween(Window.unboundedPreceding, -1)
    reached = F.max("_to").over(before)
    is_open = F.coalesce(F.bool_or(F.col("_to").isNull()).over(before), F.lit(False))
    begins = ~is_open & (reached.isNull() | (F.col("_from") > reached))
    return (
        intervals.withColumn("_begins", begins)
        .withColumn("_island", F.count_if("_begins").over(by_start))
        .groupBy(*keys, "_island")
        .agg(
            F.min("_from").alias("_from"),
            F.when(~F.bool_or(F.col("_to").isNull()), F.max("_to")).alias("_to"),
        )
        .drop("_island")
    )


def facts_within(facts: "DataFrame", intervals: "DataFrame", event_time: str, keys: Sequence[str]) -> "DataFrame":
    """The facts whose key and event time lie in one of the intervals."""
    moment = facts[event_time]
    same_key = [facts[key] == intervals[key] for key in keys]
    is_within = (moment >= intervals["_from"]) & (intervals["_to"].isNull() | (moment < intervals["_to"]))
    return facts.join(F.broadcast(intervals), [*same_key, is_within], "left_semi")
