"""Rows of a table, in a total order, as the changes of a history or as events with a key."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.shapes.deduplicate import order, order_in
from sluice.shapes.parse import position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

tie = "_tie"


def total_order(rows: "DataFrame", grain: Sequence[str]) -> "Column":
    """A total order of rows: by their time and place in the log where they have both, then by their grain."""
    return F.struct(*dict.fromkeys([*order_in(rows.columns), *grain]))


def usable(required: Sequence[str]) -> str:
    """The condition that a row has a value in every required column."""
    return " AND ".join(f"`{name}` IS NOT NULL" for name in required)


def changes_of(rows: "DataFrame", required: Sequence[str], grain: Sequence[str], deletes: str | None) -> "DataFrame":
    """Each row as a change of its key, with `_change`, and `_tie` to order the changes of one sequence."""
    kind = F.lit("set") if deletes is None else F.when(F.expr(deletes), "delete").otherwise("set")
    unplaced = [name for name in order if name not in rows.columns]
    return rows.where(usable(required)).withColumns(
        {"_change": kind, tie: total_order(rows, grain), **{name: F.lit(None).cast("string") for name in unplaced}}
    )


def without_order(laid: "DataFrame", rows: "DataFrame") -> "DataFrame":
    """Rows made from changes, without the bookkeeping columns that the table they come from has not."""
    return laid.drop(tie, *[name for name in position if name not in rows.columns])


def first_rows(
    rows: "DataFrame", keys: Sequence[str], required: Sequence[str], sequence: Sequence[str], grain: Sequence[str]
) -> "DataFrame":
    """The first row of each key, by `sequence` and then by the total order of rows."""
    line = Window.partitionBy(*keys).orderBy(*sequence, total_order(rows, grain))
    numbered = rows.where(usable(required)).withColumn("_number", F.row_number().over(line))
    return numbered.where("_number = 1").drop("_number")
