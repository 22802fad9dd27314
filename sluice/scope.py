"""The scope of a refresh: which rows of a dataset the changes upstream touch.

Delta skips files only by literals, so a scope also knows the bounds of its columns as SQL literals, and puts them into
every read and into the MERGE.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Pairs = Iterable[tuple[str, str]]

broadcast_rows_max = 200_000
literal_forms = {
    "timestamp": "TIMESTAMP '{}'",
    "timestamp_ntz": "TIMESTAMP_NTZ '{}'",
    "date": "DATE '{}'",
    "string": "'{}'",
    "bigint": "{}L",
    "int": "{}",
    "smallint": "{}S",
    "tinyint": "{}Y",
    "boolean": "{}",
}


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest value of a scope's column as SQL literals, and whether it also holds nulls."""

    least: str
    greatest: str
    has_nulls: bool

    def holds(self, column: str) -> str:
        """The condition that `column` can be in the scope."""
        return self._or_null(f"{column} BETWEEN {self.least} AND {self.greatest}", column)

    def reaches(self, start: str, end: str) -> str:
        """The condition that the half-open interval [start, end) can hold a value of the scope; a null end is open."""
        within = f"{start} <= {self.greatest} AND ({end} IS NULL OR {end} > {self.least})"
        return self._or_null(within, start)

    def _or_null(self, condition: str, column: str) -> str:
        return f"({condition} OR {column} IS NULL)" if self.has_nulls else f"({condition})"


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

    def condition(self, pairs: Pairs, prefix: str = "") -> str:
        """The SQL condition that rows of a table can be in the scope; `pairs` are (its column, the scope's column)."""
        if self.is_everything:
            return "true"
        known = [
            self.bounds[scope_column].holds(f"{prefix}`{column}`")
            for column, scope_column in pairs
            if scope_column in self.bounds
        ]
        return " AND ".join(known) or "true"

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
    for name in rows.columns:
        figures += [
            # As text: Python knows no year beyond 9999 and would shift times by its own zone.
            f"CAST(min(`{name}`) AS string) AS `least_{name}`",
            f"CAST(max(`{name}`) AS string) AS `greatest_{name}`",
            f"max(`{name}` IS NULL) AS `has_nulls_{name}`",
        ]
    found = rows.selectExpr(*figures).collect()[0]
    bounds = {
        name: Bounds(
            literal(found[f"least_{name}"], kind),
            literal(found[f"greatest_{name}"], kind),
            bool(found[f"has_nulls_{name}"]),
        )
        for name, kind in rows.dtypes
        if is_ordered(kind)
    }
    return Scope(rows, found["count"], bounds)


def literal(text: str | None, kind: str) -> str:
    """A value as a SQL literal of its type."""
    if text is None:
        return "NULL"
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return literal_forms.get(kind, f"CAST('{{}}' AS {kind})").format(quoted)


def is_ordered(kind: str) -> bool:
    """Whether the least and the greatest of a type can be written as literals."""
    return kind in literal_forms or kind in ("double", "float") or kind.startswith("decimal(")
