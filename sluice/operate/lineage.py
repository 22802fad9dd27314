"""The lineage of columns across tables: all that one is made from, down to the log, and all that is made from it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sluice.errors import UsageError, suggestion
from sluice.model.lineage import How, Source, every_column
from sluice.model.sql import fold
from sluice.operate.describe import Described, made_from


@dataclass(frozen=True)
class Link:
    """One step: `column` of `table` is made from `source_column` of `source_table`.

    `by` is the SQL or the rule that makes it, and `unknown` says why there may be other sources.
    """

    table: str
    column: str
    source_table: str
    source_column: str
    how: How
    by: str = ""
    unknown: str = ""

    @property
    def is_of_values(self) -> bool:
        """True where a value depends on it; the others decide only which rows there are, or which row is joined."""
        return Source(self.source_table, self.source_column, self.how).is_of_values

    @property
    def target(self) -> str:
        return f"{self.table}.{self.column}"

    @property
    def source(self) -> str:
        return f"{self.source_table}.{self.source_column}"


@dataclass(frozen=True)
class Traced:
    """The lineage of a column, or of all columns of a table (`column` None): each link once, the nearest first.

    `upstream` leads to what it is made from, and `downstream` to what is made from it. `rows` are the columns that
    decide what rows the table has.
    """

    table: str
    column: str | None
    upstream: tuple[Link, ...]
    downstream: tuple[Link, ...]
    rows: tuple[Source, ...]


def trace(catalogue: Iterable[Described], name: str) -> Traced:
    """The lineage of `TABLE`, or of `TABLE.column`; a UsageError names what there is."""
    known = {each.name: each for each in catalogue}
    table, column = found_in(known, name)
    starts = [column] if column else [each.name for each in known[table].columns]
    up = {link: None for start in starts for link in reached(start_links(known, table, start), known)}
    down = {link: None for start in starts for link in followers(known, table, start)}
    return Traced(table, column, tuple(up), tuple(down), known[table].rows)


def found_in(known: Mapping[str, Described], name: str) -> tuple[str, str | None]:
    """The table and the column that are named."""
    layer, _, rest = name.partition(".")
    own, _, column = rest.partition(".")
    table = f"{layer}.{own}"
    if table not in known:
        named = table if rest else name
        raise UsageError(f"There is no table {named}; {hint(named, list(known))}")
    names = [each.name for each in known[table].columns]
    if column and column not in names:
        raise UsageError(f"{table} has no column {column}; {hint(column, names)}")
    return table, column or None


def hint(name: str, known: list[str]) -> str:
    return suggestion(name, known, f"there are {', '.join(known) or 'none yet'}.")


def links_of(table: Described) -> Iterator[Link]:
    """The links from the columns of a table to what they are made from."""
    for each in table.columns:
        for source in each.made.sources:
            yield linked(table.name, each.name, source, each.made.by, each.made.unknown)


def linked(table: str, column: str, source: Source, by: str, unknown: str) -> Link:
    return Link(table, column, source.table, source.column, source.how, by, unknown)


def start_links(known: Mapping[str, Described], table: str, column: str) -> list[Link]:
    made = made_from(known, table, column)
    return [linked(table, column, source, made.by, made.unknown) for source in made.sources]


def reached(links: list[Link], known: Mapping[str, Described]) -> list[Link]:
    """The links and all that lead on from their sources; not from what only decides which rows there are."""
    found: dict[Link, None] = {}
    waiting = list(links)
    while waiting:
        link = waiting.pop(0)
        if link not in found:
            found[link] = None
            if link.is_of_values:
                waiting += start_links(known, link.source_table, link.source_column)
    return list(found)


def followers(known: Mapping[str, Described], table: str, column: str) -> list[Link]:
    """The links that lead to a column, and to what is made from it; not from what it only decides the rows of."""
    links = [link for each in known.values() for link in links_of(each)]
    found: dict[Link, None] = {}
    waiting = [(table, column)]
    while waiting:
        at, name = waiting.pop(0)
        # A struct that one field led to is followed by that field; the others are not made from the column.
        has_fields = (at, name) != (table, column) and known[at].has_fields(name)
        for link in links:
            if link in found or link.source_table != at or not is_read(name, link.source_column, fields=not has_fields):
                continue
            found[link] = None
            if link.is_of_values:
                waiting.append((link.table, link.column))
    return list(found)


def is_read(column: str, source: str, *, fields: bool) -> bool:
    """Whether what reads `source` reads the column: itself, the struct that it is in, or one of its `fields`."""
    column, source = fold(column), fold(source)
    if every_column in (column, source) or column == source or column.startswith(f"{source}."):
        return True
    return fields and source.startswith(f"{column}.")
