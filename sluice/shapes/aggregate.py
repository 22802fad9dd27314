"""Aggregate the rows of each group, and no others when only some groups are touched."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.model.prepared import Prepared, columns_of
from sluice.model.scope import Scope
from sluice.model.sql import backticked, columns_read, fold, named_expression
from sluice.model.truncation import finest, times_of
from sluice.shapes.difference import sign
from sluice.shapes.increment import Extreme, Measure, adjusted, balance, is_known, measures_of
from sluice.shapes.windows import Window, group_names

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Groups:
    """What rows are grouped by (columns, SQL expressions with a name, at most one window) and what is measured.

    Rows for which the SQL condition `where` is not true are in no group; groups for which `having` is not are left out.
    """

    expressions: Mapping[str, str]
    window: Window | None
    measures: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    having: str = ""

    @classmethod
    def of(
        cls,
        group_by: Sequence[str | Window],
        measures: Mapping[str, str],
        columns: Collection[str] = (),
        where: str = "",
        having: str = "",
    ) -> "Groups":
        """Reads a declaration such as `["origin", "year(scheduled_at) AS year", window("scheduled_at", "1 hour")]`.

        One of the source's `columns`, where these are known, needs no backticks.
        """
        expressions = {}
        windows = [each for each in group_by if isinstance(each, Window)]
        known = {fold(name) for name in columns}
        for each in group_by:
            if isinstance(each, str):
                name, expression = (each, backticked(each)) if fold(each) in known else named_expression(each)
                expressions[name or each] = expression
        return cls(expressions, windows[0] if windows else None, dict(measures), where, having)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.expressions, *(("window_start", "window_end") if self.window else ()))

    @property
    def scope_columns(self) -> tuple[str, ...]:
        """The columns that identify a group; a window's end follows from its start."""
        return (*self.expressions, *(("window_start",) if self.window else ()))

    @property
    def clustered(self) -> tuple[str, ...]:
        """Windows first: what changes is mostly near in time."""
        return tuple(sorted(self.scope_columns, key=lambda name: name != "window_start"))

    def grouped(self, df: "DataFrame") -> "DataFrame":
        """The rows that count, with the columns of their group under names that cannot meet the rows' own."""
        counted = df.where(F.expr(self.where)) if self.where else df
        return counted.withColumns({f"_group_{name}": F.expr(text) for name, text in self.expressions.items()})

    def touched(self, changed: "DataFrame", own: "DataFrame") -> "DataFrame":
        """The groups that changed rows are in, or were, as far as the change can be seen in the measures."""
        if self.window is None or self.window.is_by_row:
            return self.prepared["touched"].of(changed)
        return self.window.touched(self.changed(changed), own, tuple(self.expressions))

    @cached_property
    def prepared(self) -> "dict[str, Prepared]":
        """What depends on the columns of rows alone."""
        return {"touched": Prepared(self.touched_by_row), "adjusted": Prepared(self.adjusted_exactly)}

    def touched_by_row(self, changed: "DataFrame") -> "DataFrame":
        """The same where the groups of a row depend on that row alone."""
        names, rows = tuple(self.expressions), self.changed(changed)
        return self.window.touched(rows, rows, names) if self.window else rows.select(*group_names(names))

    def changed(self, changed: "DataFrame") -> "DataFrame":
        """The changed rows that count, with the columns of their group."""
        return self.grouped(consolidated(changed, self.used(changed.columns)))

    @property
    def is_adjustable(self) -> bool:
        """Whether changed rows can say what becomes of their groups."""
        return bool(measures_of(self.measures)) and (self.window is None or self.window.is_by_row)

    def adjusted(self, changed: "DataFrame | None", own: "DataFrame") -> "DataFrame | None":
        """The groups of `own` and of changed rows, as the change makes them (see `increment`); None: it cannot say.

        Without `changed` no row has changed.
        """
        names = [*self.columns, *self.measures]
        if changed is None:
            return own.select(*map(backticked, names)).withColumn(is_known, F.lit(True))
        return self.prepared["adjusted"].of(changed, own) if self.adjustable_measures(changed, own) else None

    def adjustable_measures(self, changed: "DataFrame", own: "DataFrame") -> tuple[Measure, ...]:
        """The measures, if all of them are exact; else none. It is found out once for frames of the same columns."""
        kinds = columns_of(changed), columns_of(own)
        if kinds not in self.adjustable:
            self.adjustable[kinds] = self.exact_measures(self.placed(changed), own)
        return self.adjustable[kinds]

    @cached_property
    def adjustable(self) -> "dict[tuple[str, str], tuple[Measure, ...]]":
        """The measures that are exact, by the columns of changed rows and of the table."""
        return {}

    def adjusted_exactly(self, changed: "DataFrame", own: "DataFrame") -> "DataFrame":
        """The groups of `own` and of changed rows, where all measures are exact."""
        placed, measures = self.placed(changed), self.adjustable_measures(changed, own)
        if not can_be_net(changed, self.used(changed.columns)):
            measures = tuple(replace(each, is_net=False) if isinstance(each, Extreme) else each for each in measures)
        return adjusted(placed, own, group_names(self.columns), measures, self.having)

    def placed(self, changed: "DataFrame") -> "DataFrame":
        """The changed rows with their balance, their group and their window."""
        grouped = self.grouped(balanced(changed, self.used(changed.columns)))
        return self.window.place(grouped, tuple(self.expressions)) if self.window else grouped

    def exact_measures(self, placed: "DataFrame", own: "DataFrame") -> tuple[Measure, ...]:
        """The measures, if those of the placed rows have the types that the table has, and all are exact; else none."""
        measures = measures_of(self.measures)
        probes = {f"_probe_{each.name}": each.probe for each in measures if each.probe}
        now = dict(aggregate(placed, replace(self, measures={**self.measures, **probes})).dtypes)
        before = dict(own.dtypes)
        if any(now[name] != before.get(name) for name in (*self.columns, *self.measures)):
            return ()
        typed = [each.suits(now.get(f"_probe_{each.name}", now[each.name])) for each in measures]
        found = tuple(each for each in typed if each is not None)
        return found if len(found) == len(typed) else ()

    def used(self, columns: Sequence[str]) -> list[str]:
        """The columns that groups, window, measures and the condition may read."""
        others = [*([backticked(self.window.column)] if self.window else []), *([self.where] if self.where else [])]
        return columns_read([*self.expressions.values(), *self.measures.values(), *others], columns)

    def widened(self, scope: "DataFrame", own: "DataFrame") -> "DataFrame":
        """A scope with all of the windows that lie in it by now."""
        return self.window.widened(scope, own, tuple(self.expressions)) if self.window else scope

    def scope_of(self, own: "DataFrame") -> "DataFrame":
        """The scope of rows of the table itself."""
        return self.window.scope_of(own, tuple(self.expressions)) if self.window else own.select(*self.expressions)

    def in_range(self, event_time: str | None) -> "Callable[[datetime | None, datetime | None], str] | None":
        """The condition that a group can hold event times of a range; None where no group is a unit of event time."""
        found = finest(self.expressions, event_time) if event_time and not self.window else None
        return partial(found[1].holding, backticked(found[0])) if found else None

    def within(self, df: "DataFrame", scope: Scope) -> "DataFrame":
        """The rows in the scope's groups, with the columns of their group: a row once for each group that it is in."""
        grouped, names = self.grouped(df.where(self.reach(scope, df))), tuple(self.expressions)
        if self.window is None:
            return scope.filter(grouped, [(f"_group_{name}", name) for name in names])
        if scope.is_everything:
            return self.window.place(grouped, names)
        return self.window.within(grouped, scope, names)

    def reach(self, scope: Scope, df: "DataFrame") -> str:
        """The condition, of literals, that a row can be in the scope's groups by the times that these are made of."""
        bounds = {text: scope.bounds[name] for name, text in self.expressions.items() if name in scope.bounds}
        known = [times_of(text, each, dict(df.dtypes)) for text, each in bounds.items()]
        return " AND ".join(each for each in known if each) or "true"


def consolidated(changed: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """The rows of a change feed that changed in these columns: values removed as often as added are no change."""
    if "_change_type" not in changed.columns:
        return changed
    return balanced(changed, columns).drop(balance)


def balanced(changed: "DataFrame", columns: Sequence[str]) -> "DataFrame":
    """The values in these columns that changed, each with how many times more it was added than removed.

    Of fractions each row for itself: grouping takes 0.0 and -0.0 for one value, and an expression may not.
    """
    if not can_be_net(changed, columns):
        return changed.select(*columns, sign().cast("bigint").alias(balance))
    return changed.groupBy(*columns).agg(F.sum(sign()).alias(balance)).where(F.col(balance) != 0)


def can_be_net(changed: "DataFrame", columns: Sequence[str]) -> bool:
    """Whether rows that were added and removed again can be left out: equal values are the same value."""
    kinds = dict(changed.dtypes)
    return not any(fraction in kinds[name] for name in columns for fraction in ("double", "float"))


def aggregate(grouped: "DataFrame", groups: Groups) -> "DataFrame":
    """One row per group: its columns, then each measure, a SQL aggregate over the group's rows."""
    figures = [F.expr(text).alias(name) for name, text in groups.measures.items()]
    names = group_names(groups.columns)
    found = grouped.groupBy(*names).agg(*figures) if figures else grouped.select(*names).distinct()
    return found.where(F.expr(groups.having)) if groups.having else found
