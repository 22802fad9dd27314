"""Column lineage: which columns of other tables each column is made from, and how.

Declarations state it, and a parser reads it from their SQL; no row is read. What cannot be followed, as a function of
the project, is said to be unknown.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from sluice.model.sql import column_parts, fold, literal_functions, parse, reading, time_units

if TYPE_CHECKING:
    from sqlglot import exp

# The words of OpenLineage. The values of a column come from its direct sources; the others decide which value or row.
Direct = Literal["identity", "transformation", "aggregation"]
Indirect = Literal["conditional", "filter", "group by", "join", "sort", "window"]
How = Direct | Indirect
direct: tuple[How, ...] = ("identity", "transformation", "aggregation")
# Stands for the columns of a table that are not known one by one.
every_column = "*"


@dataclass(frozen=True, order=True)
class Source:
    """A column of a table, or a field of one (`weather.wind_speed_mph`), and what part it has in another column."""

    table: str
    column: str
    how: How

    @property
    def is_direct(self) -> bool:
        """True where values come from it; False where it decides which value, or which rows there are."""
        return self.how in direct

    @property
    def is_of_values(self) -> bool:
        """True where a value depends on it; False where only the choice of rows does."""
        return self.is_direct or self.how == "conditional"

    def __str__(self) -> str:
        return f"{self.table}.{self.column}"


@dataclass(frozen=True)
class Made:
    """What a column is made from, and `by` which SQL or rule. `unknown` says why there may be other sources."""

    sources: tuple[Source, ...] = ()
    by: str = ""
    unknown: str = ""

    def also(self, sources: Iterable[Source]) -> "Made":
        """The same with further sources."""
        return replace(self, sources=unique([*self.sources, *sources]))


@dataclass(frozen=True)
class Lineage:
    """The lineage of a table: of its columns and fields, and which columns decide what rows it has.

    Columns that are not listed are those of the table `passes`, unchanged; or else `by` makes them from the `inputs`,
    in a way that is not known.
    """

    columns: Mapping[str, Made] = field(default_factory=dict)
    rows: tuple[Source, ...] = ()
    passes: str | None = None
    by: str = "something that is not declared"
    inputs: tuple[str, ...] = ()

    def of(self, column: str) -> Made:
        """The lineage of a column, or of a field of one; `*` are the columns that are not listed."""
        named = {fold(name): made for name, made in self.columns.items()}
        for name in (column, column.split(".", 1)[0]):
            if fold(name) in named:
                return named[fold(name)]
        if self.passes:
            return Made((Source(self.passes, column, "identity"),))
        from_inputs = f" from {', '.join(self.inputs)}" if self.inputs else ""
        sources = tuple(Source(name, every_column, "transformation") for name in self.inputs)
        return Made(sources, by=self.by, unknown=f"Computed by {self.by}{from_inputs}; it cannot be followed further.")


def unique(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Each source once, in the order given."""
    return tuple(dict.fromkeys(sources))


def taken(table: str, columns: Iterable[str], how: How = "identity") -> tuple[Source, ...]:
    """Columns of a table as sources, bookkeeping aside."""
    return tuple(Source(table, name, how) for name in columns if not name.startswith("_"))


def same(table: str, columns: Iterable[str]) -> dict[str, Made]:
    """The lineage of columns that are those of a table, unchanged."""
    return {each.column: Made((each,)) for each in taken(table, columns)}


def as_struct(name: str, table: str, fields: Collection[str] | None) -> dict[str, Made]:
    """The lineage of a struct of a table's columns, and of each of its fields; None: they are not known."""
    known = {f"{name}.{inner}": made for inner, made in same(table, fields or ()).items()}
    whole = taken(table, fields if fields is not None else (every_column,), "transformation")
    return {name: Made(whole, by=f"a row of {table}"), **known}


def from_sql(text: str, table: str, columns: Collection[str] | None, how: Direct = "transformation") -> Made:
    """What an expression over the rows of a table is made from; `columns` are the table's, None where not known."""
    parsed, found = parse(text), reading(text)
    if parsed is None or found is None or found.is_everything:
        whole = tuple(columns) if columns is not None else (every_column,)
        return Made(taken(table, whole, how), text, "The parser cannot tell which columns this SQL reads.")
    known = None if columns is None else {fold(name): name for name in columns}
    if column_parts(of_field(parsed)[0]) is not None and how == "transformation":
        how = "identity"
    sources = [
        Source(table, name, "conditional" if decides else how)
        for parts, decides in columns_in(parsed)
        if (name := named(parts, known)) is not None
    ]
    return Made(unique(sources), text)


def read_by(texts: Iterable[str], table: str, columns: Collection[str] | None, how: How) -> tuple[Source, ...]:
    """The columns that expressions read, as sources of one kind."""
    found = (each for text in texts for each in from_sql(text, table, columns).sources)
    return unique(replace(each, how=how) for each in found)


def columns_in(parsed: "exp.Expr") -> Iterator[tuple[tuple[str, ...], bool]]:
    """The columns that an expression reads, by the parts of their names, and whether one only decides between values.

    Of a struct that is made in the expression and of which one field is taken, only that field is read.
    """
    from sqlglot import exp

    # Not by recursion: a sum of ten thousand terms is as deep.
    waiting: list[tuple[exp.Expr, tuple[str, ...], bool]] = [(parsed, (), False)]
    while waiting:
        node, fields, decides = waiting.pop()
        node, fields = of_field(node, fields)
        parts = column_parts(node)
        if parts is not None:
            yield (*parts, *fields), decides
            continue
        if fields and isinstance(node, exp.Max | exp.Min | exp.Greatest | exp.Least):
            # The largest struct is chosen by all of its fields.
            waiting += [(each, (), True) for each in node.iter_expressions(reverse=True)]
        if not hands_on(node):
            fields = ()
        for child in node.iter_expressions(reverse=True):
            only_decides = is_condition(child)
            waiting.append((child, () if only_decides else fields, decides or only_decides))


def of_field(node: "exp.Expr", fields: tuple[str, ...] = ()) -> "tuple[exp.Expr, tuple[str, ...]]":
    """What `struct(a, b).b` is: b. The `fields` are those taken of what is returned, the outermost first."""
    from sqlglot import exp

    while True:
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
            node, fields = node.this, (node.expression.name, *fields)
        elif isinstance(node, exp.Paren):
            node = node.this
        elif isinstance(node, exp.Struct) and fields and (found := field_of(node, fields[0])) is not None:
            node, fields = found, fields[1:]
        else:
            return node, fields


def field_of(struct: "exp.Struct", name: str) -> "exp.Expr | None":
    from sqlglot import exp

    pairs = (each for each in struct.expressions if isinstance(each, exp.PropertyEQ))
    return next((each.expression for each in pairs if fold(each.this.name) == fold(name)), None)


def hands_on(node: "exp.Expr") -> bool:
    """Whether a field of the result is that field of what is chosen from."""
    from sqlglot import exp

    choices = exp.If | exp.Case | exp.Nvl2 | exp.Coalesce | exp.DecodeCase | exp.Nullif | exp.Filter
    largest = exp.Max | exp.Min | exp.Greatest | exp.Least | exp.ArgMax | exp.ArgMin
    return isinstance(node, choices | largest | exp.First | exp.Last | exp.AnyValue)


def named(parts: tuple[str, ...], known: Mapping[str, str] | None) -> str | None:
    """A column, or a field of one, by its name in the table; None for what is no column of it."""
    root = fold(parts[0])
    if known is None:
        return None if len(parts) == 1 and root in literal_functions | time_units else ".".join(parts)
    return ".".join([known[root], *parts[1:]]) if root in known else None


def is_condition(node: "exp.Expr") -> bool:
    """Whether a part of an expression only decides between values: `CASE WHEN here`, `nvl2(here, a, b)`, `m[here]`."""
    from sqlglot import exp

    of, place = node.parent, node.arg_key
    if isinstance(of, exp.If | exp.Case | exp.Nvl2 | exp.CountIf):
        return place == "this"
    if isinstance(of, exp.Filter | exp.ArgMax | exp.ArgMin | exp.Nullif | exp.ArrayFilter):
        return place == "expression"
    if isinstance(of, exp.Bracket | exp.Elt):
        return place == ("expressions" if isinstance(of, exp.Bracket) else "this")
    if isinstance(of, exp.Ordered):
        # A percentile is a value of what it is ordered by.
        group = of.find_ancestor(exp.WithinGroup)
        return group is None or isinstance(group.this, exp.ArrayAgg)
    if isinstance(of, exp.DecodeCase):
        # The value, then pairs of what it may be and what it then becomes, and perhaps a default.
        at, last = node.index or 0, len(of.expressions) - 1
        return at == 0 or (at % 2 == 1 and at < last)
    return False
