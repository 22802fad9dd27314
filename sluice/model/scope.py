"""The scope of a refresh: which rows of a dataset the changes upstream touch.

Delta skips files only by literals, so a scope also knows the bounds of its columns, and puts them into every read and
into the MERGE. They come from data, so they are quoted such that SQL cannot take them for anything else.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Pairs = Iterable[tuple[str, str]]

broadcast_rows_max = 200_000
ordered = ("timestamp", "timestamp_ntz", "date", "string", "bigint", "int", "smallint", "tinyint", "boolean")
fractions = ("double", "float")


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value of a scope's column, as text and the type it is of, and whether it has nulls."""

    least_text: str | None
    greatest_text: str | None
    kind: str
    has_nulls: bool

    @property
    def least(self) -> "Column":
        return F.lit(self.least_text).cast(self.kind)

    @property
    def greatest(self) -> "Column":
        return F.lit(self.greatest_text).cast(self.kind)

    def holds(self, column: str) -> "Column":
        """The condition that `column` can be in the scope."""
        return self._or_null(F.col(column).between(self.least, self.greatest), column)

    def holds_sql(self, column: str) -> str:
        """The same as SQL, for MERGE."""
        least, greatest = (literal(text, self.kind) for text in (self.least_text, self.greatest_text))
        condition = f"{column} BETWEEN {least} AND {greatest}"
        return f"({condition} OR {column} IS NULL)" if self.has_nulls else f"({condition})"

    def reaches(self, start: str, end: str) -> "Column":
        """The condition that the half-open interval [start, end) can hold a value of the scope; a null end is open."""
        is_on = F.col(end).isNull() | (F.col(end) > self.least)
        return self._or_null((F.col(start) <= self.greatest) & is_on, start)

    def begun(self, start: str) -> "Column":
        """The condition that what begins at `start` can have begun by a value of the scope."""
        return F.col(start) <= self.greatest

    def _or_null(self, condition: "Column", column: str) -> "Column":
        return condition | F.col(column).isNull() if self.has_nulls else condition


@dataclass(frozen=True)
class Scope:
    """Distinct rows of scope columns; `rows` is None when the scope is everything."""

    rows: "DataFrame | None" = None
    count: int = 0
    bounds: dict[str, Bounds] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        return self.rows is None

    @property
    def frame(self) -> "DataFrame":
        """The rows of a scope that is not everything."""
        if self.rows is None:
            raise ValueError("everything has no rows")
        return self.rows

    def condition(self, pairs: Pairs) -> "Column":
        """The condition that rows of a table can be in the scope; `pairs` are (its column, the scope's column)."""
        known = [bounds.holds(f"`{column}`") for column, bounds in self._bounded(pairs)]
        return reduce(lambda left, right: left & right, known) if known else F.lit(True)

    def condition_sql(self, pairs: Pairs, prefix: str = "") -> str:
        """The same as SQL, for MERGE."""
        known = [bounds.holds_sql(f"{prefix}`{column}`") for column, bounds in self._bounded(pairs)]
        return " AND ".join(known) or "true"

    def _bounded(self, pairs: Pairs) -> list[tuple[str, Bounds]]:
        """The columns whose values in the scope have bounds."""
        return [(column, self.bounds[name]) for column, name in pairs if name in self.bounds]

    def filter(self, df: "DataFrame", match: Pairs, prune: Pairs = ()) -> "DataFrame":
        """The rows of `df` in the scope; `match` and `prune` pair a column of `df` with one of the scope."""
        if self.rows is None:
            return df
        match = list(match)
        df = df.where(self.condition([*match, *prune]))
        if not match:
            return df
        return df.join(*self._wanted(match), "left_semi")

    def mark(self, df: "DataFrame", match: Pairs, name: str) -> "DataFrame":
        """All rows of `df`, with a column `name` that says whether they are in the scope."""
        if self.rows is None:
            return df.withColumn(name, F.lit(True))
        wanted, same = self._wanted(list(match))
        found = df.join(wanted.withColumn(name, F.lit(True)), same, "left")
        return found.select(*df.columns, F.coalesce(name, F.lit(False)).alias(name))

    def _wanted(self, match: "list[tuple[str, str]]") -> "tuple[DataFrame, list[Column]]":
        """The distinct scope columns that must match, and the null-safe conditions that they do."""
        wanted = self.frame.select(
            *[F.col(scope_column).alias(f"_scope_{column}") for column, scope_column in match]
        ).distinct()
        if self.count <= broadcast_rows_max:
            wanted = F.broadcast(wanted)
        return wanted, [F.col(column).eqNullSafe(F.col(f"_scope_{column}")) for column, _ in match]


everything = Scope()


def collect(rows: "DataFrame") -> Scope:
    """Computes the scope's distinct rows once and brings only its bounds to the driver."""
    rows = rows.distinct().localCheckpoint()
    figures = ["count(*) AS count"]
    bounded = [(name, kind) for name, kind in rows.dtypes if is_ordered(kind)]
    for name, _ in bounded:
        figures += [
            # As text: Python knows no year beyond 9999 and would shift times by its own zone.
            f"CAST(min(`{name}`) AS string) AS `least_{name}`",
            f"CAST(max(`{name}`) AS string) AS `greatest_{name}`",
            f"max(`{name}` IS NULL) AS `has_nulls_{name}`",
        ]
    found = rows.selectExpr(*figures).collect()[0]
    bounds = {
        name: bounds_of(found[f"least_{name}"], found[f"greatest_{name}"], kind, bool(found[f"has_nulls_{name}"]))
        for name, kind in bounded
        # Where files say the least and the greatest of their numbers, some leave out what is not a number.
        if not (kind in fractions and found[f"greatest_{name}"] == "NaN")
    }
    return Scope(rows, found["count"], bounds)


def bounds_of(least: str | None, greatest: str | None, kind: str, has_nulls: bool) -> Bounds:
    """The bounds of a column; a reader of files may take -0.0 for less than 0.0, which are one number."""
    if kind in fractions:
        least = "-0.0" if least == "0.0" else least
        greatest = "0.0" if greatest == "-0.0" else greatest
    return Bounds(least, greatest, kind, has_nulls)


def literal(text: str | None, kind: str) -> str:
    """A value as SQL of its type, written in hexadecimal: no quote, escape or variable in it means anything."""
    value = "NULL" if text is None else f"CAST(X'{text.encode().hex()}' AS string)"
    return f"CAST({value} AS {kind})"


def is_ordered(kind: str) -> bool:
    """Whether a type has a least and a greatest value that text can say."""
    return kind in (*ordered, *fractions) or kind.startswith("decimal(")
