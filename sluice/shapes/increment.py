"""Adjust the measures of groups by the rows that were added to them and removed, without reading their other rows.

A measure is adjusted where its value before and the changed rows determine its new value: a count always, a sum of
exact numbers unless it may have lost its last value (then it is zero), the least and the greatest unless that value
itself has left, an average where sum and count of the same are measures too. A group in which this fails for one
measure is marked, and is recomputed from its rows like any other.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.model.prepared import expressions
from sluice.model.sql import backticked, parse
from sluice.model.values import digits_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from sqlglot import exp

# Tests compare both ways.
is_used = True
is_known = "_is_known"
# How many times more a row was added than removed.
balance = "_balance"
call = re.compile(r"(?is)\s*\w+\s*\((.*)\)\s*")
# How large the values of a type can be.
magnitudes = {"tinyint": 2**7, "smallint": 2**15, "int": 2**31}
# Up to here a sum of whole numbers is the same in fractions, in any order.
exact_max = 2**53
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

    @property
    def probe(self) -> str:
        """The aggregate whose type says whether the measure is exact, if that is not the measure itself."""
        return ""

    def suits(self, kind: str) -> "Measure | None":
        """The measure, if one of this type is exact, whatever the order of the rows."""
        return self if kind in comparable or kind.startswith("decimal(") else None

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


@dataclass(frozen=True)
class Sum(Measure):
    """`sum(x)` of exact numbers, of a `kind`; null where no row has a value."""

    kind: str = ""

    def suits(self, kind: str) -> Measure | None:
        # Of a decimal that is as long as can be, the product with a balance would lose digits.
        is_exact = kind == "bigint" or (kind.startswith("decimal(") and not kind.startswith("decimal(38"))
        return replace(self, kind=kind) if is_exact else None

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
        part = self.part("sum")
        # A part has up to 38 digits. Added to as many, Spark would round what comes after the point.
        exact = part if self.kind == "bigint" else f"try_cast({part} AS {self.kind})"
        return f"IF({self.part('changed')} = 0, {self.own}, try_add(coalesce({self.own}, 0), {exact}))"

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
    """`min(x)` or `max(x)`; `before` is the sign between one value and another that it is chosen before.

    Where the changed rows are not `is_net`, one that was added may have been removed again.
    """

    function: str
    before: str
    is_net: bool = True

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
        if not self.is_net:
            is_replaced += f" AND coalesce({added} {self.before} {removed}, false)"
        return (
            f"{removed} IS NULL OR ({self.own} IS NOT NULL AND ({is_replaced} OR {self.own} {self.before} {removed}))"
        )

    @property
    def shows_rows(self) -> str:
        return f"({self.holds}) AND {self.value} IS NOT NULL"


@dataclass(frozen=True)
class Average(Measure):
    """`avg(x)`, which follows from the sum and the count of the same; of `bigint` also its extremes must be known.

    `quotient` is the average as Spark divides, and `rows_max` how many values it is exact for, both as SQL; they depend
    on the type.
    """

    total: Sum
    count: Measure
    extremes: tuple[Measure, ...]
    quotient: str = ""
    rows_max: str = ""

    @property
    def probe(self) -> str:
        return f"max({self.argument})"

    def suits(self, kind: str) -> Measure | None:
        count, total = self.count.value, self.sum_of(kind)
        if kind.startswith("decimal("):
            before, scale = digits_of(kind) or (0, 0)
            precision = before + scale
            # Spark divides the sum, which has ten digits more. A quotient is rounded twice without harm if it has at
            # least as many digits behind the average's as the count has, and all of them fit into a decimal.
            digits, divided = 23 - precision, f"try_cast({total} AS decimal({precision + 14},{scale + 4}))"
            quotient = f"try_divide({divided}, try_cast({count} AS decimal({digits},0)))"
            return replace(self, quotient=quotient, rows_max=str(10**digits - 1)) if digits > 0 else None
        quotient = f"try_divide(CAST({total} AS double), CAST({count} AS double))"
        if kind in magnitudes:
            return replace(self, quotient=quotient, rows_max=str(exact_max // magnitudes[kind]))
        if kind == "bigint" and len(self.extremes) == 2:
            sizes = ", ".join(f"abs(CAST({each.value} AS decimal(20,0)))" for each in self.extremes)
            return replace(self, quotient=quotient, rows_max=f"coalesce({exact_max} / greatest(1, {sizes}), 0)")
        return None

    def sum_of(self, kind: str) -> str:
        """The sum of values of this type, which has ten digits more if these are decimals."""
        before, scale = digits_of(kind) or (0, 0)
        is_decimal = kind.startswith("decimal(")
        return replace(self.total, kind=f"decimal({before + scale + 10},{scale})" if is_decimal else "bigint").value

    @property
    def parts(self) -> Mapping[str, str]:
        return {}

    @property
    def value(self) -> str:
        return f"IF({self.count.value} = 0, NULL, {self.quotient})"

    @property
    def holds(self) -> str:
        """Where sum, count and extremes do, which are measures themselves."""
        return f"{self.count.value} <= {self.rows_max}"

    @property
    def shows_rows(self) -> str:
        return "false"


def measures_of(texts: Mapping[str, str]) -> tuple[Measure, ...]:
    """The measures, if all of them can be adjusted; else none."""
    plain = {name: measure for name, text in texts.items() if (measure := measure_of(name, text))}
    found = [plain.get(name) or average_of(name, text, plain.values()) for name, text in texts.items()]
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else ()


def average_of(name: str, text: str, others: Iterable[Measure]) -> Average | None:
    """Reads an average; None where the other measures do not say what it is of."""
    from sqlglot import exp

    parsed, found = parse(text), call.fullmatch(text)
    if not isinstance(parsed, exp.Avg) or found is None or isinstance(parsed.this, exp.Distinct):
        return None
    of_same = [each for each in others if each.argument and parse(each.argument) == parsed.this]
    total = next((each for each in of_same if isinstance(each, Sum)), None)
    count = next((each for each in of_same if isinstance(each, Count)), None)
    extremes = {each.function: each for each in of_same if isinstance(each, Extreme)}
    return Average(name, found[1], total, count, tuple(extremes.values())) if total and count else None


def measure_of(name: str, text: str) -> Measure | None:
    """Reads a SQL aggregate; None where only all rows of a group, or other measures, say what it is."""
    from sqlglot import exp

    parsed = parse(text)
    argument = None if parsed is None else argument_of(text, parsed)
    if argument is None:
        return None
    match parsed:
        case exp.Count():
            return Count(name, argument) if argument else Rows(name, "")
        case exp.CountIf():
            return Count(name, f"IF({argument}, 1, NULL)")
        case exp.Sum():
            return Sum(name, argument)
        case exp.Min() | exp.Max():
            function, before = ("min", "<") if isinstance(parsed, exp.Min) else ("max", ">")
            return Extreme(name, argument, function, before)
    return None


def argument_of(text: str, parsed: "exp.Expr") -> str | None:
    """The one expression that a call is of, empty for `count(*)`; None where there is none, as in `sum(ALL x)`."""
    from sqlglot import exp

    found = call.fullmatch(text)
    if found is None or parsed.expressions or isinstance(parsed.this, exp.Distinct):
        return None
    if isinstance(parsed, exp.Count) and isinstance(parsed.this, exp.Star):
        return ""
    return found[1] if parse(found[1]) == parsed.this and not parsed.find(exp.Star) else None


def adjusted(
    changed: "DataFrame", own: "DataFrame", groups: "Sequence[Column]", measures: Sequence[Measure], having: str = ""
) -> "DataFrame":
    """The groups of `own`, and those of the changed rows, as they are now: group columns, measures and `_is_known`.

    `changed` has the `_balance` of each row, and `groups` name the columns of its group as in `own`. A group that lost
    its last row is left out, if that is certain, and so is one for which `having` is not true. Where that is given, a
    group that `own` lacks may have rows all the same.
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
    is_new = "false" if having else "_removed = 0"
    is_counted = f"{left} >= 0 AND (_own IS NOT NULL OR {is_new})"
    known = f"_news IS NULL OR ({is_counted} AND ({left} = 0 OR ({' AND '.join(hold)})))"
    made = expressions(
        *[f"coalesce(_key.{name}, _news.{name}) AS {name}" for name in map(backticked, keys)],
        *[f"IF(_news IS NULL, {each.own}, {value}) AS {backticked(each.name)}" for each, value in now.items()],
        f"coalesce({known}, false) AS {is_known}",
        f"{left} AS _rows_left",
    )
    now_there = made.of(both).where(f"NOT ({is_known} AND _rows_left = 0)").drop("_rows_left")
    return now_there.where(f"NOT {is_known} OR ({having})") if having else now_there


def rows_left(measures: Sequence[Measure]) -> str:
    """How many rows a group has now, as far as that matters: 0 for none, and below zero where it is not known."""
    are_left = " OR ".join(["_net >= 0", *[f"({each.shows_rows})" for each in measures]])
    counted = next((each.value for each in measures if isinstance(each, Rows)), f"IF({are_left}, 1L, -1L)")
    return f"CASE WHEN _news IS NULL THEN 1L WHEN _own IS NULL THEN _net ELSE {counted} END"
