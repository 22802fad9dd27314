"""Aggregate the rows of each group, and no others when only some groups are touched."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.scope import Scope
from sluice.windows import Window, group_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

named_expression = re.compile(r"(?s)(?P<expression>.+)\s+[aA][sS]\s+`?(?P<name>\w+)`?\s*")


@dataclass(frozen=True)
class Groups:
    """What rows are grouped by: columns, SQL expressions with a name, and at most one window."""

    expressions: Mapping[str, str]
    window: Window | None

    @classmethod
    def of(cls, group_by: Sequence[str | Window]) -> "Groups":
        """Reads a declaration such as `["origin", "year(scheduled_at) AS year", window("scheduled_at", "1 hour")]`."""
        expressions = {}
        windows = [each for each in group_by if isinstance(each, Window)]
        for each in group_by:
            if isinstance(each, str):
                named = named_expression.fullmatch(each)
                expressions[named["name"] if named else each] = named["expression"] if named else each
        return cls(expressions, windows[0] if windows else None)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.expressions, *(("window_start", "window_end") if self.window else ()))

    @property
    def scope_columns(self) -> tuple[str, ...]:
        """The columns that tell groups apart; a window's end follows from its start."""
        return (*self.expressions, *(("window_start",) if self.window else ()))

    @property
    def clustered(self) -> tuple[str, ...]:
        """Windows first: what changes is mostly near in time."""
        return tuple(sorted(self.scope_columns, key=lambda name: name != "window_start"))

    def grouped(self, df: "DataFrame") -> "DataFrame":
        """The rows with the columns of their group, under names that cannot meet the rows' own."""
        return df.withColumns({f"_group_{name}": F.expr(text) for name, text in self.expressions.items()})

    def touched(self, changed: "DataFrame", own: "DataFrame") -> "DataFrame":
        """The groups that changed rows are in, or were."""
        grouped = self.grouped(changed)
        if self.window:
            return self.window.touched(grouped, own, tuple(self.expressions))
        return grouped.select(*group_names(tuple(self.expressions)))

    def scope_of(self, own: "DataFrame") -> "DataFrame":
        """The scope of rows of the table itself."""
        return self.window.scope_of(own, tuple(self.expressions)) if self.window else own.select(*self.expressions)

    def within(self, df: "DataFrame", scope: Scope) -> "DataFrame":
        """The rows in the scope's groups, with the columns of their group: a row once for each group that it is in."""
        grouped, names = self.grouped(df), tuple(self.expressions)
        if self.window is None:
            return scope.filter(grouped, [(f"_group_{name}", name) for name in names])
        if scope.is_everything:
            return self.window.place(grouped, names)
        return self.window.within(grouped, scope, names)


def aggregate(grouped: "DataFrame", groups: Groups, measures: Mapping[str, str]) -> "DataFrame":
    """One row per group: its columns, then each measure, a SQL aggregate over the group's rows."""
    figures = [F.expr(text).alias(name) for name, text in measures.items()]
    return grouped.groupBy(*group_names(groups.columns)).agg(*figures)
