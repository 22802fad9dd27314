"""Aggregate the rows of each group, and no others when only some groups are touched."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.scope import Scope
from sluice.windows import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

named_expression = re.compile(r"(?s)(?P<expression>.+)\s+[aA][sS]\s+`?(?P<name>\w+)`?\s*")


@dataclass(frozen=True)
class Groups:
    """What rows are grouped by: columns, SQL expressions with a name, and at most one window."""

    expressions: Mapping[str, str]
    window: Tumbling | None

    @classmethod
    def of(cls, group_by: Sequence[str | Tumbling]) -> "Groups":
        """Reads a declaration such as `["origin", "year(scheduled_at) AS year", window("scheduled_at", "1 hour")]`."""
        expressions = {}
        windows = [each for each in group_by if isinstance(each, Tumbling)]
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

    def add_to(self, df: "DataFrame") -> "DataFrame":
        """The rows with the columns of their group, under names that cannot meet the rows' own."""
        columns = {name: F.expr(text) for name, text in self.expressions.items()}
        if self.window:
            columns |= self.window.columns()
        return df.withColumns({f"_group_{name}": column for name, column in columns.items()})

    def of_rows(self, df: "DataFrame") -> "DataFrame":
        """The scope columns of the groups that the rows are in."""
        return self.add_to(df).select(*[F.col(f"_group_{name}").alias(name) for name in self.scope_columns])

    def within(self, df: "DataFrame", scope: Scope) -> "DataFrame":
        """The rows in the scope's groups."""
        if scope.is_everything:
            return df
        if self.window:
            df = df.where(self.window.condition(scope))
        grouped = self.add_to(df)
        return scope.filter(grouped, [(f"_group_{name}", name) for name in self.scope_columns]).select(*df.columns)


def aggregate(df: "DataFrame", groups: Groups, measures: Mapping[str, str]) -> "DataFrame":
    """One row per group: its columns, then each measure, a SQL aggregate over the group's rows."""
    figures = [F.expr(text).alias(name) for name, text in measures.items()]
    named = [F.col(f"_group_{name}").alias(name) for name in groups.columns]
    return groups.add_to(df).groupBy(*named).agg(*figures)
