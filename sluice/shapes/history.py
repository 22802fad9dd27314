"""Lay the changes of each key end to end: the history of a dimension (SCD type 2), or its latest state (type 1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from sluice.shapes.deduplicate import order
from sluice.shapes.difference import sign
from sluice.shapes.parse import position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Debezium's placeholder, by type, for a large value that an update did not change and Postgres did not send.
unavailable = "__debezium_unavailable_value"
placeholders: "dict[str, Callable[[], Column]]" = {
    "string": lambda: F.lit(unavailable),
    "binary": lambda: F.lit(unavailable.encode()),
    "array<string>": lambda: F.array(F.lit(unavailable)),
}

# The `_change` of a record that is read for the key that it moved away from, and not for the one that it has.
left = "left"


@dataclass(frozen=True)
class History:
    """How changes become versions.

    `sequence_by` orders the changes of a key, and the log's order those of one sequence. A version begins at
    `valid_from`, and never before the one that precedes it. A change in `tracked` attributes opens a version; in others
    it updates the version it falls into. Where `fill_nulls` names an attribute, null means: as before, and where
    `unavailable` does, so does Debezium's placeholder. `updated` names the column that lists the attributes a change
    sets; null means all of them.
    """

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    valid_from: str
    attributes: tuple[str, ...]
    tracked: tuple[str, ...]
    fill_nulls: tuple[str, ...] = ()
    updated: str | None = None
    unavailable: tuple[str, ...] = ()
    has_truncates: bool = False
    has_moves: bool = False


def history(changes: "DataFrame", rule: History) -> "DataFrame":
    """Deduplicated changes → versions: keys, attributes, `valid_from`, `valid_to` (null: current), `is_current`.

    Neighbours with equal tracked attributes are one version. Its position is that of the change which opened it.
    """
    line = Window.partitionBy(*rule.keys).orderBy(*rule.sequence_by, *order)
    state = F.when(is_set(), F.struct(*rule.tracked))
    lines = begun(filled(per_key(changes, rule), rule), rule)
    # Of several changes at one instant, the last one counts.
    instants = lines.withColumn("_next", F.lead("_begin").over(line)).where(~F.col("_next").eqNullSafe(F.col("_begin")))
    marked = instants.withColumn("_opens", ~F.lag(state).over(line).eqNullSafe(state))
    if rule.tracked != rule.attributes:
        marked = updated_in_place(marked, rule)
    opening = marked.where("_opens").withColumn("valid_to", F.lead("_begin").over(line))
    return opening.where(is_set()).select(
        *rule.keys,
        *rule.attributes,
        F.col("_begin").alias("valid_from"),
        "valid_to",
        F.col("valid_to").isNull().alias("is_current"),
        *position,
    )


def latest(changes: "DataFrame", rule: History) -> "DataFrame":
    """Deduplicated changes → one row for each key that is not deleted: keys, attributes, `sequence_by` (SCD type 1)."""
    line = Window.partitionBy(*rule.keys).orderBy(*rule.sequence_by, *order)
    last = filled(per_key(changes, rule), rule).withColumn("_is_last", F.lead(F.lit(True)).over(line).isNull())
    columns = dict.fromkeys([*rule.keys, *rule.attributes, *rule.sequence_by])
    return last.where(F.col("_is_last") & is_set()).select(*columns, *position)


def is_set() -> "Column":
    return F.col("_change") == "set"


def per_key(changes: "DataFrame", rule: History) -> "DataFrame":
    """One row for each key and change: a truncate deletes every key, and a key that moved is deleted where it was."""
    direct = changes.where(F.col("_change").isin("set", "delete"))
    lines = direct
    if rule.has_moves:
        lines = lines.unionByName(left_behind(changes, rule))
    if rule.has_truncates:
        moments = list(dict.fromkeys([*rule.sequence_by, rule.valid_from, *order]))
        truncates = changes.where("_change = 'truncate'").select(*moments, F.lit("delete").alias("_change"))
        known = direct.where(is_set()).select(*rule.keys).distinct()
        lines = lines.unionByName(known.crossJoin(F.broadcast(truncates)), allowMissingColumns=True)
    return lines


def left_behind(changes: "DataFrame", rule: History) -> "DataFrame":
    """The deletes of the keys that records moved away from."""
    old = {key: F.col(f"_moved_from.{key}") for key in rule.keys}
    moved = changes.where(F.col("_moved_from").isNotNull() & F.col("_change").isin("set", "delete", left))
    return moved.withColumns({"_change": F.lit("delete"), **old})


def filled(lines: "DataFrame", rule: History) -> "DataFrame":
    """The changes with every unchanged attribute filled in from the previous change, up to a delete."""
    if not rule.fill_nulls and not rule.unavailable and rule.updated is None:
        return lines
    line = Window.partitionBy(*rule.keys).orderBy(*rule.sequence_by, *order)
    lives = lines.withColumn("_life", F.count_if(~is_set()).over(line))
    life = Window.partitionBy(*rule.keys, "_life").orderBy(*rule.sequence_by, *order)

    def is_unavailable(name: str) -> "Column":
        if name not in rule.unavailable:
            return F.lit(False)
        return F.col(name).eqNullSafe(placeholders[lives.schema[name].dataType.simpleString()]())

    def last_set(name: str) -> "Column":
        is_known = ~is_unavailable(name)
        if rule.updated is not None:
            # A null among the names is none of them.
            is_named = F.coalesce(F.array_contains(F.col(rule.updated), name), F.lit(False))
            is_known &= F.col(rule.updated).isNull() | is_named
        box = F.last(F.when(is_set() & is_known, F.struct(F.col(name).alias("value"))), ignorenulls=True).over(life)
        # A value that was never sent keeps the placeholder.
        return F.when(box.isNull() & is_unavailable(name), F.col(name)).otherwise(box.getField("value"))

    def last_known(column: "Column", kind: DataType) -> "Column":
        if isinstance(kind, StructType):
            fields = [last_known(column.getField(each.name), each.dataType).alias(each.name) for each in kind]
            was_known = F.max(is_set() & column.isNotNull()).over(life)
            return F.when(was_known, F.struct(*fields))
        return F.last(F.when(is_set(), column), ignorenulls=True).over(life)

    to_set = rule.attributes if rule.updated is not None else rule.unavailable
    merged = lives.withColumns({name: last_set(name) for name in to_set}) if to_set else lives
    return merged.withColumns({name: last_known(F.col(name), merged.schema[name].dataType) for name in rule.fill_nulls})


def begun(lines: "DataFrame", rule: History) -> "DataFrame":
    """Adds `_begin`: when a change takes effect, never before the change that precedes it."""
    if rule.valid_from == rule.sequence_by[0]:
        return lines.withColumn("_begin", F.col(rule.valid_from))
    line = Window.partitionBy(*rule.keys).orderBy(*rule.sequence_by, *order)
    return lines.withColumn("_begin", F.max(rule.valid_from).over(line))


def updated_in_place(marked: "DataFrame", rule: History) -> "DataFrame":
    """Every change with the attributes that the last change of its version has."""
    line = Window.partitionBy(*rule.keys).orderBy(*rule.sequence_by, *order)
    version = Window.partitionBy(*rule.keys, "_version").orderBy(*rule.sequence_by, *order)
    whole = version.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    numbered = marked.withColumn("_version", F.count_if("_opens").over(line))
    return numbered.withColumns({name: F.last(name).over(whole) for name in rule.attributes})


def with_missing_deleted(changes: "DataFrame", snapshots: "DataFrame", rule: History) -> "DataFrame":
    """Rows of full snapshots → changes: a key that the next whole snapshot lacks is deleted by it.

    `snapshots` has a row for each snapshot, see `whole_snapshots`. Rows of snapshots that are not whole are left out.
    """
    taken_at = rule.sequence_by[0]
    line = Window.partitionBy(*rule.keys).orderBy(taken_at)
    present = (
        changes.where(is_set())
        .join(F.broadcast(snapshots), [taken_at])
        .select(*rule.keys, taken_at, "_following")
        .distinct()
        .withColumn("_next", F.lead(taken_at).over(line))
    )
    is_gone = F.col("_following").isNotNull() & ~F.col("_next").eqNullSafe(F.col("_following"))
    known = changes.join(F.broadcast(snapshots), [taken_at], "left_semi")
    gone = present.where(is_gone).select(
        *rule.keys, F.col("_following").alias(taken_at), F.lit("delete").alias("_change")
    )
    return known.unionByName(gone, allowMissingColumns=True)


def bearing_snapshots(
    rows: "DataFrame", changed: "DataFrame", keys: tuple[str, ...], taken_at: str, row_count: str | None
) -> "DataFrame":
    """The times of the snapshots in which a change feed of their `rows` may touch every key.

    These are the snapshots that became whole or are no longer whole, and the last whole one before each: what a
    snapshot lacks is deleted from that one. In all others only the keys of the changed rows are touched.
    """
    turned = turned_snapshots(rows, changed, keys, taken_at, row_count).select(taken_at, F.lit(True).alias("_turned"))
    whole = whole_snapshots(rows, keys, taken_at, row_count).select(taken_at, F.lit(True).alias("_whole"))
    line = turned.unionByName(whole, allowMissingColumns=True).groupBy(taken_at)
    before_it = Window.orderBy(taken_at).rowsBetween(Window.unboundedPreceding, -1)
    last_whole = F.last(F.when(F.col("_whole"), F.col(taken_at)), ignorenulls=True).over(before_it)
    marked = line.agg(F.bool_or("_turned").alias("_turned"), F.bool_or("_whole").alias("_whole"))
    pairs = marked.withColumn("_before", last_whole).where("_turned")
    return pairs.select(taken_at).unionByName(pairs.select(F.col("_before").alias(taken_at)).dropna()).distinct()


def turned_snapshots(
    rows: "DataFrame", changed: "DataFrame", keys: tuple[str, ...], taken_at: str, row_count: str | None
) -> "DataFrame":
    """The times of the snapshots that became whole, or stopped being whole, by a change feed of their `rows`."""
    times = changed.select(taken_at).distinct()
    if "_change_type" not in changed.columns:
        # The current rows of a recomputed range do not show their former state.
        return times
    now = rows.join(F.broadcast(times), [taken_at], "left_semi")
    before = undone(now, changed, (*keys, taken_at, "_change", *([row_count] if row_count else [])))
    states = [whole_snapshots(each, keys, taken_at, row_count).select(taken_at) for each in (now, before)]
    return states[0].unionByName(states[1]).groupBy(taken_at).count().where("count = 1").select(taken_at)


def undone(rows: "DataFrame", changed: "DataFrame", columns: tuple[str, ...]) -> "DataFrame":
    """The `columns` of rows as they were before the changes of a feed."""
    now = rows.select(*columns, F.lit(1).alias("_times"))
    back = changed.select(*columns, (-sign()).alias("_times"))
    return now.unionByName(back).groupBy(*columns).agg(F.sum("_times").alias("_times")).where("_times > 0")


def whole_snapshots(changes: "DataFrame", keys: tuple[str, ...], taken_at: str, row_count: str | None) -> "DataFrame":
    """The times of the snapshots that are whole, each with that of the next (`_following`, null for the last)."""
    found = changes.groupBy(taken_at).agg(
        F.count_distinct(F.when(is_set(), F.struct(*keys))).alias("_rows"),
        F.max(row_count if row_count else F.lit(None)).alias("_rows_wanted"),
    )
    if row_count is not None:
        found = found.where("_rows >= _rows_wanted")
    return found.select(taken_at, F.lead(taken_at).over(Window.orderBy(taken_at)).alias("_following"))
