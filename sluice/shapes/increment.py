"""Adjust the measures of groups by the rows that were added to them and removed, without reading their other rows.

A measure is adjusted where its value before and the changed rows determine its new value: a count always, a sum of
exact numbers unless it may have lost its last value (then it is zero), the least and the greatest unless that value
itself has left. A group in which this fails for one measure is marked, and is recomputed from its rows like any other.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.model.sql import backticked, parse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Tests compare both ways.
is_used = True
is_known = "_is_known"
# How many times more a row was added than removed.
balance = "_balance"
call = re.compile(r"(?is)\s*\w+\s*\((.*)\)\s*")
# Types of which two different values are never equal.
comparable = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "string", "binary", "boolean")


@dataclass(frozen=True)
class Measure(ABC):
    """A measure by its name, and the SQL that it is taken of.

    Where its group has changed, `parts` are what the changed rows must say, as aggregates; the measure is now `value`,
    if that `holds`. Both are SQL over the parts and the group's row before.
    """

    name: str
    argument: str

    @property
    def own(self) -> str:
        """The value before; null where the group is new."""
        return f"_own.{backticked(self.name)}"

    @property
    def there(self) -> str:
        return f"({self.argument}) IS NOT NULL"

    def part(self, what: str) -> str:
        return backticked(f"_{what}_{self.name}")

    def suits(self, kind: str) -> bool:
        """Whether a measure of this type is exact, whatever the order of the rows."""
        return kind in comparable or kind.startswith("decimal(")

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, str]: ...

    @property
    @abstractmethod
    def value(self) -> str: ...

    @property
    @abstractmethod
    def holds(self) -> str: ...

    @property
    @abstractmethod
    def shows_rows(self) -> str:
        """Whether the value, if it holds, is one that a group without rows cannot have."""


class Rows(Measure):
    """`count(*)`"""

    @property
    def parts(self) -> Mapping[str, str]:
        return {}

    @property
    def value(self) -> str:
        return f"coalesce({self.own}, 0L) + _net"

    @property
    def holds(self) -> str:
        return f"{self.value} >= 0"

    @property
    def shows_rows(self) -> str:
        return f"{self.value} > 0"


class Count(Measure):
    """`count(x)`"""

    @property
    def parts(self) -> Mapping[str, str]:
        return {"values": f"sum(IF({self.there}, {balance}, 0L))"}

    @property
    def value(self) -> str:
        return f"coalesce({self.own}, 0L) + {self.part('values')}"

    @property
    def holds(self) -> str:
        return f"{self.value} >= 0"

    @property
    def shows_rows(self) -> str:
        return f"{self.value} > 0"


class Sum(Measure):
    """`sum(x)` of exact numbers; null where no row has a value."""

    def suits(self, kind: str) -> bool:
        # Of a decimal that is as long as can be, the product with a balance would lose digits.
        return kind == "bigint" or (kind.startswith("decimal(") and not kind.startswith("decimal(38"))

    @property
    def parts(self) -> Mapping[str, str]:
        return {
            "values": f"sum(IF({self.there}, {balance}, 0L))",
            "changed": f"count_if({self.there})",
            "removed": f"count_if({self.there} AND {balance} < 0)",
            "sum": f"try_sum(({self.argument}) * CAST({balance} AS decimal(10,0)))",
        }

    @property
    def value(self) -> str:
        added = f"try_add(coalesce({self.own}, 0), {self.part('sum')})"
        return f"IF({self.part('changed')} = 0, {self.own}, {added})"

    @property
    def holds(self) -> str:
        """Whether at least one value is left. The sum of none would be 0, so any other number shows that."""
        has_values = f"({self.part('values')} >= 0 OR {self.shows_rows})"
        is_left = f"IF({self.own} IS NULL, {self.part('removed')} = 0, {has_values})"
        return f"{self.part('changed')} = 0 OR ({self.value} IS NOT NULL AND {is_left})"

    @property
    def shows_rows(self) -> str:
        return f"coalesce({self.value} <> 0, false)"


@dataclass(frozen=True)
class Extreme(Measure):
    """`min(x)` or `max(x)`; `before` is the sign between one value and another that it is chosen before."""

    function: str
    before: str

    @property
    def parts(self) -> Mapping[str, str]:
        signs = {"added": ">", "removed": "<"}
        return {
            what: f"{self.function}({self.argument}) FILTER (WHERE {balance} {sign} 0)" for what, sign in signs.items()
        }

    @property
    def value(self) -> str:
        added = self.part("added")
        return f"IF({self.own} IS NULL OR coalesce({added} {self.before} {self.own}, false), {added}, {self.own})"

    @property
    def holds(self) -> str:
        """Whether the value before is still there, or one that was added is chosen before it or equal to it."""
        added, removed = self.part("added"), self.part("removed")
        is_replaced = f"coalesce(NOT {self.own} {self.before} {added}, false)"
        return (
            f"{removed} IS NULL OR ({self.own} IS NOT NULL AND ({is_replaced} OR {self.own} {self.before} {removed}))"
        )

    @property
    def shows_rows(self) -> str:
        return f"({self.holds}) AND {self.value} IS NOT NULL"


def measures_of(texts: Mapping[str, str]) -> tuple[Measure, ...]:
    """The measures, if all of them can be adjusted; else none."""
    found = [measure_of(name, text) for name, text in texts.items()]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else ()


def measure_of(name: str, text: str) -> Measure | None:
    """Reads a SQL aggregate; None where only all rows of a group say what it is."""
    from sqlglot import exp

    parsed, found = parse(text), call.fullmatch(text)
    if parsed is None or found is None or parsed.expressions or isinstance(parsed.this, exp.Distinct):
        return None
    match parsed:
        case exp.Count():
            return Rows(name, "") if isinstance(parsed.this, exp.Star) else Count(name, found[1])
        case exp.Sum():
            return Sum(name, found[1])
        case exp.Min():
            return Extreme(name, found[1], "min", "<")
        case exp.Max():
            return Extreme(name, found[1], "max", ">")
    return None


def adjusted(
    changed: "DataFrame", own: "DataFrame", groups: "Sequence[Column]", measures: Sequence[Measure]
) -> "DataFrame":
    """The groups of `own`, and those of the changed rows, as they are now: group columns, measures and `_is_known`.

    `changed` has the `_balance` of each row, and `groups` name the columns of its group as in `own`. A group that lost
    its last row is left out, if that is certain.
    """
    parts = [F.expr(text).alias(f"_{what}_{each.name}") for each in measures for what, text in each.parts.items()]
    net = [F.expr(f"sum({balance})").alias("_net"), F.expr(f"count_if({balance} < 0)").alias("_removed")]
    counted = changed.groupBy(*groups).agg(*net, *parts)
    keys = counted.columns[: len(groups)]
    key = f"struct({', '.join(map(backticked, keys))})"
    news = counted.selectExpr(f"{key} AS _news", *[backticked(name) for name in counted.columns[len(groups) :]])
    before = own.selectExpr("struct(*) AS _own", f"{key} AS _key")
    both = before.join(news, F.col("_key").eqNullSafe(F.col("_news")), "full_outer")
    kinds = dict(own.dtypes)
    now = {each: f"try_cast({each.value} AS {kinds[each.name]})" for each in measures}
    hold = [f"({each.holds}) AND ({each.value} IS NULL) = ({value} IS NULL)" for each, value in now.items()]
    left = rows_left(measures)
    is_counted = f"{left} >= 0 AND (_own IS NOT NULL OR _removed = 0)"
    known = f"_news IS NULL OR ({is_counted} AND ({left} = 0 OR ({' AND '.join(hold)})))"
    return (
        both.selectExpr(
            *[f"coalesce(_key.{name}, _news.{name}) AS {name}" for name in map(backticked, keys)],
            *[f"IF(_news IS NULL, {each.own}, {value}) AS {backticked(each.name)}" for each, value in now.items()],
            f"coalesce({known}, false) AS {is_known}",
            f"{left} AS _rows_left",
        )
        .where(f"NOT ({is_known} AND _rows_left = 0)")
        .drop("_rows_left")
    )


def rows_left(measures: Sequence[Measure]) -> str:
    """How many rows a group has now, as far as that matters: 0 for none, and below zero where it is not known."""
    are_left = " OR ".join(["_net >= 0", *[f"({each.shows_rows})" for each in measures]])
    counted = next((each.value for each in measures if isinstance(each, Rows)), f"IF({are_left}, 1L, -1L)")
    return f"CASE WHEN _news IS NULL THEN 1L WHEN _own IS NULL THEN _net ELSE {counted} END"
