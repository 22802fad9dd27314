"""The scope of a refresh: which rows of a dataset the changes upstream touch.

Files are skipped by literals alone, so a scope also knows the values of its columns where they are few, and else the
ranges that they are in, and puts them into every read and into the MERGE. They come from data, so no text is made of
them that SQL could take for anything else.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from sluice.model.few_rows import are_keys, distinct, matching
from sluice.model.found import Among, Condition, During, finders
from sluice.model.prepared import shared
from sluice.model.small_frames import is_local, known_rows, local, small_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Pairs = Iterable[tuple[str, str]]
Said = TypeVar("Said")

broadcast_rows_max = 200_000
# Beyond, values are one list, by which Parquet's filters skip pages, and ranges, by which files are skipped.
compared_max = 16
# Beyond, no list names all values: a plan with so many literals costs more than what it skips.
named_max = 1_000
# Parquet's filters nest the values of a list: of a thousand the stack of a task overflows, and the JVM ends.
listed_max = 32
ordered = ("timestamp", "timestamp_ntz", "date", "string", "bigint", "int", "smallint", "tinyint", "boolean")
fractions = ("double", "float")


@dataclass(frozen=True)
class Bounds:
    """What is known of the values of a scope's column, in SQL: the ranges that they are in, in order, from the least
    to the greatest of each; all `values` where they are few; and whether there are nulls.
    """

    ranges: tuple[tuple[str, str], ...]
    has_nulls: bool
    values: tuple[str, ...] | None = None

    @property
    def least(self) -> "Column":
        return F.expr(self.ranges[0][0] if self.ranges else "NULL")

    @property
    def greatest(self) -> "Column":
        return F.expr(self.ranges[-1][1] if self.ranges else "NULL")

    def holds(self, column: str) -> str:
        """The condition, in SQL, that `column` can be in the scope; exactly that it is, where all values are known."""
        compared = [f"{column} = {value}" for value in self.values or ()]
        within = [f"{column} BETWEEN {least} AND {greatest}" for least, greatest in self.ranges]
        found = any_of(compared if 0 < len(compared) <= compared_max else within)
        if len(compared) > compared_max:
            found = f"({found} AND {listed(column, self.values or ())})"
        return f"({found} OR {column} IS NULL)" if self.has_nulls else found

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
    """Distinct rows of scope columns; `rows` is None when the scope is everything.

    Where they are few, `few` are the same rows in Arrow, and `literals` in SQL, without the columns that no literal can
    be written of.
    """

    rows: "DataFrame | None" = None
    count: int = 0
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    literals: Sequence[Mapping[str, str | None]] | None = None
    few: pa.Table | None = None

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
        """The condition, in SQL, that rows of a table can be in the scope.

        `pairs` are (its column, the scope's column), and `prefix` stands before each of its columns.
        """
        known = [self.bounds[name].holds(f"{prefix}`{column}`") for column, name in pairs if name in self.bounds]
        return " AND ".join(known) or "true"

    def filter(
        self, df: "DataFrame", match: Pairs, prune: Pairs = (), during: "tuple[str, str, str] | None" = None
    ) -> "DataFrame":
        """The rows of `df` in the scope; `match` and `prune` pair a column of `df` with one of the scope.

        `during` is a column of `df`, and two of the scope for the intervals that its value may be in: their bounds
        skip files, and rows outside of all intervals may be left.
        """
        if self.rows is None:
            return df
        match, prune = list(match), list(prune)
        found = self.found(df, match, prune, during)
        if found is not None:
            return found
        df = df.where(self.condition([*match, *prune]))
        if during is not None:
            df = df.where(self.within(*during))
        if not match or self.is_exact(match):
            return df
        if compared := self.compared(match):
            return df.where(compared)
        wanted = self._wanted(match) if self.count <= broadcast_rows_max else self._wanted_of_many(match)
        return df.join(wanted, are_equal(match), "left_semi")

    def within(self, column: str, start: str, end: str) -> "Column":
        """The condition that `column` lies between the first start and the last end; a null end is open."""
        begun, ended = F.col(column) >= self.bounds[start].least, F.col(column) < self.bounds[end].greatest
        return begun if self.bounds[end].has_nulls else begun & ended

    def found(
        self,
        df: "DataFrame",
        match: "list[tuple[str, str]]",
        prune: "list[tuple[str, str]]",
        during: "tuple[str, str, str] | None",
    ) -> "DataFrame | None":
        """The same rows where the driver finds them in a table; None where it does not."""
        finder = finders.get(df)
        if finder is None or self.few is None or not match or not self.count:
            return None
        # Spark takes no notice of case, and others do.
        if during is not None and during[0] not in df.columns:
            return None
        kinds, theirs = dict(self.frame.dtypes), dict(df.dtypes)
        literals = {name: kind for name, kind in kinds.items() if is_literal(kind) and name in self.bounds}
        if any(name not in literals or kinds[name] != theirs.get(column) for column, name in match):
            return None
        named = [(column, name) for column, name in prune if literals.get(name, "") == theirs.get(column)]
        conditions: list[Condition] = [Among(column, self.few[name]) for column, name in [*match, *named]]
        if during is not None:
            conditions.append(interval(self.few, *during))
        rows = finder(conditions)
        if rows is None:
            return None
        # In each column the rows have values of the few alone, so nothing is left to compare where there is one.
        return local(df, rows if len(match) == 1 else matching(rows, self.few, match))

    def is_exact(self, match: "list[tuple[str, str]]") -> bool:
        """Whether the condition holds for the scope's rows and no others: one column, and all of its values known."""
        names = [name for _, name in match]
        return len(names) == 1 and names[0] in self.bounds and self.bounds[names[0]].values is not None

    def compared(self, match: "list[tuple[str, str]]") -> str | None:
        """The condition that a row is one of the scope, each named by its values; None where that cannot be said."""
        names = [name for _, name in match]
        if self.literals is None or any(name not in self.bounds or self.bounds[name].values is None for name in names):
            return None
        rows = dict.fromkeys(tuple(row[name] for name in names) for row in self.literals)
        if len(rows) > compared_max:
            return None
        columns = [column for column, _ in match]
        return any_of(
            [
                " AND ".join(
                    f"`{column}` IS NULL" if value is None else f"`{column}` = {value}"
                    for column, value in zip(columns, row, strict=True)
                )
                for row in rows
            ]
        )

    def mark(self, df: "DataFrame", match: Pairs, name: str) -> "DataFrame":
        """All rows of `df`, with a column `name` that says whether they are in the scope."""
        if self.rows is None:
            return df.withColumn(name, F.lit(True))
        match = list(match)
        found = df.join(self._wanted(match).withColumn(name, F.lit(True)), are_equal(match), "left")
        return found.select(*df.columns, F.coalesce(name, F.lit(False)).alias(name))

    def _wanted(self, match: "list[tuple[str, str]]") -> "DataFrame":
        """The distinct scope columns that must match; broadcast where they are few."""
        wanted = self._columns(match).distinct()
        return F.broadcast(wanted) if self.count <= broadcast_rows_max else wanted

    def _wanted_of_many(self, match: "list[tuple[str, str]]") -> "DataFrame":
        """The same for a semi-join of a scope too large to broadcast, where they need not be distinct.

        Spark makes Bloom filters of them, so that few other rows are shuffled. It does so only of rows that a condition
        selects; the one here is true of all.
        """
        wanted = self._columns(match)
        for column, name in match:
            if name in self.bounds and self.bounds[name].ranges:
                least = self.bounds[name].least
                wanted = wanted.where(F.coalesce(f"_scope_{column}", least) >= least)
        return wanted

    def _columns(self, match: "list[tuple[str, str]]") -> "DataFrame":
        """The scope columns that must match, named by the columns that they are compared with."""
        return self.frame.select(*[F.col(name).alias(f"_scope_{column}") for column, name in match])


def are_equal(match: "list[tuple[str, str]]") -> "list[Column]":
    """The null-safe conditions that a row has the scope columns that must match."""
    return [F.col(column).eqNullSafe(F.col(f"_scope_{column}")) for column, _ in match]


everything = Scope()


def collect(rows: "DataFrame") -> Scope:
    """Computes the scope's distinct rows once; brings them to the driver where they are few, and else their bounds."""
    known = known_rows(rows)
    if known is not None and are_keys(known.schema, rows.columns):
        return of_few(rows, distinct(known))
    rows = shared(distinct_rows).of(rows)
    # What is made of rows that the driver has is computed there at once.
    few = small_rows(rows) if is_local(rows) else None
    if few is None:
        rows = rows.localCheckpoint()
        few = small_rows(rows)
    return of_many(rows) if few is None else of_few(rows, few)


def distinct_rows(rows: "DataFrame") -> "DataFrame":
    return rows.distinct()


def of_few(rows: "DataFrame", few: pa.Table) -> Scope:
    """The scope of distinct rows that the driver has."""
    kinds = dict(rows.dtypes)
    named = {name: kind for name, kind in kinds.items() if is_literal(kind) and is_sayable(few[name])}
    bounds: dict[str, Bounds | None] = {name: bounds_of_values(few[name], kind) for name, kind in named.items()}
    bounds |= {name: bounds_of_fractions(few[name], kind) for name, kind in kinds.items() if kind in fractions}
    literals = literals_of(few, named) if few.num_rows <= named_max else None
    known = {name: each for name, each in bounds.items() if each is not None}
    return Scope(local(rows, few), few.num_rows, known, literals, few)


def literals_of(few: pa.Table, kinds: Mapping[str, str]) -> list[Mapping[str, str | None]]:
    """The rows in SQL."""
    columns = [[literal(each, kind) for each in few[name]] for name, kind in kinds.items()]
    return [dict(zip(kinds, each, strict=True)) for each in zip(*columns, strict=True)]


def is_sayable(column: "pa.ChunkedArray[Any]") -> bool:
    """Whether the values are no text that is not UTF-8: where Spark looks for that in files, it finds nothing."""
    if not pa.types.is_string(column.type):
        return True
    try:
        column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def interval(few: pa.Table, column: str, start: str, end: str) -> During:
    """What holds all intervals between two columns."""
    last = None if few[end].null_count else pc.max(few[end])
    return During(column, pc.min(few[start]), last)


def bounds_of_values(column: "pa.ChunkedArray[Any]", kind: str) -> Bounds:
    """All values of a column, in order, where they are few enough to name, and the ranges that they are in."""
    distinct = pc.unique(column).drop_null()
    values = cast("pa.Array[Any]", distinct.take(pc.array_sort_indices(distinct)))
    ranges = tuple((said(least, kind), said(most, kind)) for least, most in ranges_of(values, list(values)))
    texts = tuple(said(each, kind) for each in values) if len(values) <= named_max else None
    return Bounds(ranges, column.null_count > 0, texts)


def ranges_of(values: "pa.Array[Any]", said: Sequence[Said]) -> tuple[tuple[Said, Said], ...]:
    """At most `compared_max` ranges that hold all values, which are sorted: parted at the widest gaps between them.

    Each is given as what is said of its first value and of its last.
    """
    if not said:
        return ()
    gaps = list(range(1, len(said)))
    if len(said) > compared_max:
        gaps = widest_gaps(values) or [len(said) * at // compared_max for at in range(1, compared_max)]
    return tuple((said[start], said[end - 1]) for start, end in pairwise([0, *gaps, len(said)]))


def widest_gaps(values: "pa.Array[Any]") -> list[int] | None:
    """Where the widest gaps between sorted values end; None where values have no distance."""
    if not (pa.types.is_integer(values.type) or pa.types.is_temporal(values.type)):
        return None
    bits = pa.int32() if values.type.bit_width == 32 else pa.int64()
    places = [int(each) for each in values.cast(bits).to_pylist() if each is not None]
    gaps = sorted(range(1, len(places)), key=lambda at: places[at] - places[at - 1])
    return sorted(gaps[1 - compared_max :])


def bounds_of_fractions(column: "pa.ChunkedArray[Any]", kind: str) -> Bounds | None:
    """The least and the greatest number; None where one is not a number, since some files leave these out."""
    numbers = [each for each in column.to_pylist() if each is not None]
    if any(math.isnan(each) for each in numbers):
        return None
    least, greatest = (str(each(numbers)) if numbers else None for each in (min, max))
    return bounds_of(least, greatest, kind, has_nulls=column.null_count > 0)


def of_many(rows: "DataFrame") -> Scope:
    """The scope of distinct rows that were computed already."""
    figures = ["count(*) AS count"]
    bounded = [(name, kind) for name, kind in rows.dtypes if is_ordered(kind)]
    for name, _ in bounded:
        figures += [
            # As text: Python knows no year beyond 9999 and would shift times by its own zone.
            f"CAST(min(`{name}`) AS string) AS `least_{name}`",
            f"CAST(max(`{name}`) AS string) AS `greatest_{name}`",
            f"max(`{name}` IS NULL) AS `has_nulls_{name}`",
        ]
    texts = [name for name, kind in bounded if kind == "string"]
    figures += [f"is_valid_utf8(min(`{name}`)) AND is_valid_utf8(max(`{name}`)) AS `is_text_{name}`" for name in texts]
    found = rows.selectExpr(*figures).collect()[0]
    bounds = {
        name: bounds_of(
            found[f"least_{name}"], found[f"greatest_{name}"], kind, has_nulls=bool(found[f"has_nulls_{name}"])
        )
        for name, kind in bounded
        # Where files say the least and the greatest of their numbers, some leave out what is not a number.
        if not (kind in fractions and found[f"greatest_{name}"] == "NaN")
        and not (name in texts and found[f"is_text_{name}"] is False)
    }
    return Scope(rows, found["count"], bounds)


def bounds_of(least: str | None, greatest: str | None, kind: str, *, has_nulls: bool) -> Bounds:
    """The bounds of a column; a reader of files may take -0.0 for less than 0.0, which are one number."""
    if least is None or greatest is None:
        return Bounds((), has_nulls)
    if kind in fractions:
        least, greatest = ("-0.0" if least == "0.0" else least), ("0.0" if greatest == "-0.0" else greatest)
    return Bounds(((typed(least, kind), typed(greatest, kind)),), has_nulls)


def literal(value: "pa.Scalar[Any]", kind: str) -> str | None:
    """A value as SQL of its type; None for null."""
    return said(value, kind) if value.is_valid else None


def said(value: "pa.Scalar[Any]", kind: str) -> str:
    """A value that is not null as SQL of its type."""
    if kind == "timestamp":
        return f"timestamp_micros({value.cast(pa.int64())})"
    if kind == "date":
        return f"date_from_unix_date({value.cast(pa.int32())})"
    if isinstance(value, pa.StringScalar | pa.BinaryScalar):
        text = f"X'{value.as_buffer().to_pybytes().hex()}'"
        return text if kind == "binary" else f"CAST({text} AS string)"
    return typed(str(value.as_py()), kind)


def typed(text: str, kind: str) -> str:
    """A text as SQL of a type, written in hexadecimal: no quote, escape or variable in it means anything."""
    return f"CAST(CAST(X'{text.encode().hex()}' AS string) AS {kind})"


def listed(column: str, values: Sequence[str]) -> str:
    """The condition that a column has one of the values."""
    lists = [values[start : start + listed_max] for start in range(0, len(values), listed_max)]
    return any_of([f"{column} IN ({', '.join(each)})" for each in lists])


def any_of(conditions: Sequence[str]) -> str:
    return f"({' OR '.join(f'({each})' for each in conditions)})" if conditions else "false"


def is_literal(kind: str) -> bool:
    """Whether every value of a type can be written in SQL so that it is equal to itself alone."""
    return kind in (*ordered, "binary") or kind.startswith("decimal(")


def is_ordered(kind: str) -> bool:
    """Whether a type has a least and a greatest value that text can say."""
    return kind in (*ordered, *fractions) or kind.startswith("decimal(")
