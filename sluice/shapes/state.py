"""Fold the events of each key, in order, into its state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.model.ddl import column_types
from sluice.shapes.deduplicate import order_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Reducer:
    """How a state begins, and what each event makes of it.

    `schema` is DDL for the state's columns; `initial` and `reduce` give SQL for each of them, `reduce` over `state` and
    `event`.
    """

    schema: str
    initial: Mapping[str, str]
    reduce: Mapping[str, str]

    def struct(self, values: Mapping[str, str]) -> str:
        """SQL for a state with these values, each of its declared type."""
        # A comment at the end of a value ends with its line.
        fields = [f"'{name}', CAST({values[name]}\n AS {kind})" for name, kind in column_types(self.schema).items()]
        return f"named_struct({', '.join(fields)})"


def fold(
    events: "DataFrame", keys: tuple[str, ...], sequence_by: tuple[str, ...], reducer: Reducer, where: str = ""
) -> "DataFrame":
    """One row per key: the state that its events leave, one after the other by `sequence_by` and then as in the log.

    Only the events count for which the SQL condition `where` is true. Rows that have no place in the log, such as those
    of a view of some columns, are in the order of their values.
    """
    names = [name for name in events.columns if not name.startswith("_")]
    places = order_in(events.columns)
    line = F.array_sort(F.collect_list(F.struct(*sequence_by, *places, F.struct(*names).alias("_event"))))
    reduced = reducer.struct(reducer.reduce)
    state = f"aggregate(_line._event, {reducer.struct(reducer.initial)}, (state, event) -> {reduced})"
    return (
        (events.where(where) if where else events)
        .groupBy(*keys)
        .agg(line.alias("_line"))
        .select(*keys, F.expr(state).alias("_state_of"), F.size("_line").alias("_events"))
        .select(*keys, "_state_of.*", "_events")
    )
