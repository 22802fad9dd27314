"""Join each fact to the dimension version that was valid at its event time.

Facts and versions are laid in one line per key and the last version seen is carried along, so the cost grows with their
number, however many versions a key has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.model.prepared import shared
from sluice.model.scope import collect
from sluice.shapes.canonical import digest
from sluice.shapes.difference import change_columns, sign

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

interval_columns = ("valid_from", "valid_to", "is_current")


@dataclass(frozen=True)
class Joined:
    """How facts join a dimension: its keys, the facts' columns for them, and the values of an inferred member."""

    keys: tuple[str, ...]
    fact_keys: tuple[str, ...]
    inferred: Mapping[str, str] | None = None

    def __hash__(self) -> int:
        return hash((self.keys, self.fact_keys))


def join_as_of(facts: "DataFrame", versions: "DataFrame", name: str, event_time: str, joined: Joined) -> "DataFrame":
    """The facts with the column `name`: attributes and `valid_from` of the version valid at `event_time`, or null.

    With an inferred member, a fact whose key has no version up to its event time gets that instead.
    """
    attributes = attributes_of(versions, joined.keys)
    version = F.struct(
        *attributes, "valid_from", *([] if joined.inferred is None else [F.lit(False).alias("is_inferred")])
    )
    said = F.struct("valid_to", version.alias("of"))
    begun = with_last_begun(facts, versions, joined, event_time, begin="valid_from", said=said)
    is_valid = F.col("_last.valid_to").isNull() | (F.col("_last.valid_to") > F.col(event_time))
    valid = F.when(F.col("_last").isNotNull() & is_valid, F.col("_last.of"))
    if joined.inferred is not None:
        valid = F.when(
            is_inferred(joined, event_time), inferred_member(versions, attributes, joined.inferred)
        ).otherwise(valid)
    return begun.select(*facts.columns, valid.alias(name))


def with_last_begun(
    facts: "DataFrame", intervals: "DataFrame", joined: Joined, event_time: str, *, begin: str, said: "Column"
) -> "DataFrame":
    """The facts with `_last`: the last interval of their key that has begun by their event time, or null.

    Facts and intervals are laid in one line. An interval that begins at a fact's own instant comes before it: intervals
    are closed at the start.
    """
    starts = intervals.select(
        *[F.col(key).alias(column) for key, column in zip(joined.keys, joined.fact_keys, strict=True)],
        F.col(begin).alias("_at"),
        F.lit(0).alias("_turn"),
        said.alias("_said"),
    )
    moments = facts.withColumns({"_at": F.col(event_time), "_turn": F.lit(1)})
    line = Window.partitionBy(*joined.fact_keys).orderBy("_at", "_turn")
    found = (
        moments.unionByName(starts, allowMissingColumns=True)
        .withColumn("_last", F.last("_said", ignorenulls=True).over(line))
        .where("_turn = 1")
    )
    # Whole numbers of two types are in one line as the wider one.
    kinds, others = dict(facts.dtypes), dict(intervals.dtypes)
    widened = {
        column: F.col(column).cast(kinds[column])
        for key, column in zip(joined.keys, joined.fact_keys, strict=True)
        if kinds[column] != others[key]
    }
    return found.withColumns(widened) if widened else found


def is_inferred(joined: Joined, event_time: str) -> "Column":
    """Whether a fact names a key that is unknown at its time: no version is valid or has ended."""
    named = [F.col(column).isNotNull() for column in (*joined.fact_keys, event_time)]
    return F.col("_last").isNull() & reduce(lambda left, right: left & right, named)


def inferred_member(versions: "DataFrame", attributes: Sequence[str], values: Mapping[str, str]) -> "Column":
    """The placeholder of a member not known yet, of the same type as a version."""
    fields = [
        F.expr(values.get(attribute, "NULL")).cast(versions.schema[attribute].dataType).alias(attribute)
        for attribute in attributes
    ]
    nowhen = F.lit(None).cast(versions.schema["valid_from"].dataType).alias("valid_from")
    return F.struct(*fields, nowhen, F.lit(True).alias("is_inferred"))


def attributes_of(versions: "DataFrame", keys: Sequence[str]) -> list[str]:
    """The columns of a history that say how things were: neither keys, nor interval, nor bookkeeping."""
    return [
        column for column in versions.columns if column not in (*keys, *interval_columns) and not column.startswith("_")
    ]


def changed_intervals(changes: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """The intervals of a change feed in which another version is valid now: keys, `_from`, `_to` (null: open).

    Where only the end of a version moved, the interval is between the old end and the new one. Intervals of a key that
    touch are one.
    """
    attributes = attributes_of(changes.drop(*change_columns), keys)
    moved = (
        changes.withColumn("_state", digest(changes, attributes))
        .groupBy(*keys, "valid_from")
        .agg(
            F.sum(sign()).alias("_balance"),
            F.min("_state").alias("_least"),
            F.max("_state").alias("_greatest"),
            F.min("valid_to").alias("_end"),
            F.max("valid_to").alias("_last_end"),
            F.bool_or(F.col("valid_to").isNull()).alias("_open"),
        )
    )
    only_end_moved = (F.col("_balance") == 0) & (F.col("_least") == F.col("_greatest"))
    intervals = moved.select(
        *keys,
        F.when(only_end_moved, F.col("_end")).otherwise(F.col("valid_from")).alias("_from"),
        F.when(~F.col("_open"), F.col("_last_end")).alias("_to"),
    )
    return merged(intervals, keys)


def newly_known(changes: "DataFrame", versions: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    """The intervals in which a key is known now and was not before, or the reverse: keys, `_from`, `_to` (null: open).

    A key is known from the begin of its first version on, also after that has ended. `changes` is the change feed of a
    history, `versions` the history as it is after it.
    """
    moved = changes.groupBy(*keys, "valid_from").agg(F.sum(sign()).alias("_balance")).where("_balance <> 0")
    touched = collect(moved.select(*keys))
    now = touched.filter(versions, [(key, key) for key in keys]).select(*keys, "valid_from", F.lit(1).alias("_now"))
    begins = now.unionByName(moved, allowMissingColumns=True).groupBy(*keys, "valid_from")
    each = begins.agg(
        F.count("_now").alias("_now"), (F.count("_now") - F.coalesce(F.sum("_balance"), F.lit(0))).alias("_before")
    )
    first = each.groupBy(*keys).agg(
        F.min(F.when(F.col("_now") > 0, F.col("valid_from"))).alias("_now"),
        F.min(F.when(F.col("_before") > 0, F.col("valid_from"))).alias("_before"),
    )
    both = F.col("_now").isNotNull() & F.col("_before").isNotNull()
    return first.where(~F.col("_now").eqNullSafe(F.col("_before"))).select(
        *keys, F.least("_now", "_before").alias("_from"), F.when(both, F.greatest("_now", "_before")).alias("_to")
    )


def last_begun(versions: "DataFrame", keys: Sequence[str], reaches: "Column") -> "DataFrame":
    """The versions that reach into a time, and for each key the last one that ended before it.

    The latter shows that the key is known, even if nothing is valid.
    """
    ended = F.when(~reaches, F.col("valid_from"))
    last_ended = F.max(ended).over(Window.partitionBy(*keys))
    return (
        versions.withColumn("_last_ended", last_ended)
        .where(reaches | (F.col("valid_from") == F.col("_last_ended")))
        .drop("_last_ended")
    )


def merged(intervals: "DataFrame", keys: Sequence[str], keep: "Sequence[Column]" = ()) -> "DataFrame":
    """Intervals of a key that overlap or touch, as one; `keep` are aggregates over those that became one."""
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
            *keep,
        )
        .drop("_island")
    )


def facts_within(facts: "DataFrame", intervals: "DataFrame", joined: Joined, event_time: str) -> "DataFrame":
    """The facts whose key and event time lie in one of the intervals, which do not overlap within a key.

    Bounds skip files and a join by key leaves the facts of these keys; then facts and intervals are laid in one line,
    so that thousands of intervals of a key cost no more than as many facts.
    """
    found = collect(intervals)
    if found.count == 0:
        return facts.limit(0)
    near = found.filter(
        facts, list(zip(joined.fact_keys, joined.keys, strict=True)), during=(event_time, "_from", "_to")
    )
    return shared(lying_within, joined, event_time).of(near, found.frame)


def lying_within(facts: "DataFrame", intervals: "DataFrame", joined: Joined, event_time: str) -> "DataFrame":
    """The facts that lie in one of the intervals of their key."""
    begun = with_last_begun(facts, intervals, joined, event_time, begin="_from", said=F.struct("_to"))
    is_within = F.col("_last._to").isNull() | (F.col(event_time) < F.col("_last._to"))
    return begun.where(F.col("_last").isNotNull() & is_within).select(*facts.columns)
