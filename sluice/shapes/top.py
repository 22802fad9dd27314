"""Keep the first rows of each group by an order, and recompute no other group when some rows change."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F

from sluice.model.join import column_of
from sluice.model.sql import backticked, columns_read, fold
from sluice.shapes.aggregate import Groups, consolidated
from sluice.shapes.windows import group_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The SQL functions that rank rows; they differ in how they treat ties.
Ties = Literal["row_number", "rank", "dense_rank"]
order_pattern = re.compile(r"(?is)\s*(?P<sql>.*?)(?P<direction>(\s+(ASC|DESC))?(\s+NULLS\s+(FIRST|LAST))?)\s*")


@dataclass(frozen=True)
class Order:
    """What rows are ordered by, in SQL, and a direction such as `DESC NULLS LAST`, where one is given."""

    sql: str
    direction: str = ""

    @classmethod
    def of(cls, text: str, columns: Collection[str] = ()) -> "Order":
        """Reads a declaration such as `"departures DESC"`; one of the source's `columns` needs no backticks."""
        found = order_pattern.fullmatch(text)
        sql, direction = (found["sql"], found["direction"]) if found else (text, "")
        is_column = fold(sql) in {fold(name) for name in columns}
        return cls(backticked(sql) if is_column else sql, " ".join(direction.upper().split()))

    def __str__(self) -> str:
        return f"({self.sql}) {self.direction}".rstrip()


@dataclass(frozen=True)
class Top:
    """The first `rows` rows of each group by `order`; `ties` is the function of SQL that gives them their `rank`.

    `columns` are those of the source that are kept, None for all except bookkeeping; `source_grain` is its grain.
    """

    groups: Groups
    order: tuple[Order, ...]
    rows: int
    ties: Ties
    rank: str
    columns: tuple[str, ...] | None
    source_grain: tuple[str, ...]

    @property
    def plain_groups(self) -> set[str]:
        """The groups that are columns of the source, by their own names."""
        return {name for name, text in self.groups.expressions.items() if column_of(text) == name}

    @property
    def has_ties(self) -> bool:
        return self.ties != "row_number"

    @property
    def grain(self) -> tuple[str, ...]:
        """The grain of the result, chosen so that few rows differ after a change.

        Without ties it is the place in the group: a new leader updates the places below it, and no row is inserted or
        deleted. Rows that tie share a rank, so the source's grain identifies them, and one more of them is one insert.
        """
        names = self.source_grain if self.has_ties else (self.rank,)
        return tuple(dict.fromkeys([*self.groups.columns, *names]))

    def kept(self, columns: Sequence[str]) -> list[str]:
        """The source's columns that the result has, beside those that are groups; `columns` are all of the source's."""
        public = [name for name in columns if not name.startswith("_")] if self.columns is None else self.columns
        needed = self.source_grain if self.has_ties else ()
        return [name for name in dict.fromkeys([*public, *needed]) if name not in self.plain_groups]

    def used(self, columns: Sequence[str]) -> list[str]:
        """The columns that bear on the result: groups, the order, what is kept, and what breaks ties."""
        named = [backticked(name) for name in (*self.kept(columns), *self.source_grain)]
        named += [self.groups.where] if self.groups.where else []
        return columns_read([*self.groups.expressions.values(), *[each.sql for each in self.order], *named], columns)

    def touched(self, changed: "DataFrame") -> "DataFrame":
        """The groups that changed rows are in, or were, as far as the change can be seen in the result."""
        grouped = self.groups.grouped(consolidated(changed, self.used(changed.columns)))
        return grouped.select(*self.scope_columns(group_names(self.groups.columns)))

    def scope_of(self, own: "DataFrame") -> "DataFrame":
        """The scope of rows of the table itself."""
        return own.select(*self.scope_columns([F.col(name) for name in self.groups.columns]))

    def scope_columns(self, groups: "list[Column]") -> "list[Column]":
        """The columns of a scope: the groups, or a constant where the whole table is one group."""
        return groups or [F.lit(True).alias("_is_whole")]


def top(grouped: "DataFrame", rule: Top) -> "DataFrame":
    """The first rows of each group: the columns of their group, their rank, and the columns that are kept."""
    partition = ", ".join(backticked(f"_group_{name}") for name in rule.groups.columns)
    # Where rows may not tie, the source's grain makes the order total.
    last = [] if rule.has_ties else [backticked(name) for name in rule.source_grain]
    order = ", ".join([*map(str, rule.order), *last])
    ranked = f"{rule.ties}() OVER ({f'PARTITION BY {partition} ' if partition else ''}ORDER BY {order})"
    return grouped.select(
        *group_names(rule.groups.columns),
        F.expr(ranked).alias(rule.rank),
        *[F.col(backticked(name)) for name in rule.kept(grouped.columns)],
    ).where(F.col(rule.rank) <= rule.rows)
