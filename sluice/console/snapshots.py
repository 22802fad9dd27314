"""The tables as the pages read them: one consistent set of versions, or what was known at a time."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from sluice.errors import UsageError
from sluice.operate.consistent import Newest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from sluice.api import Project

look_seconds = 0.5
kept_snapshots = 8
answer_bytes_max = 64 * 2**20


@dataclass(frozen=True)
class Rows:
    """The answer to a query: the type of each column by its name, and the rows."""

    types: Mapping[str, str]
    rows: Sequence[Sequence[Any]]

    @property
    def by_name(self) -> list[dict[str, Any]]:
        return [dict(zip(self.types, row, strict=True)) for row in self.rows]


@dataclass
class Snapshot:
    """One state of all tables. `versions` are None for what was known at a time."""

    connection: "DuckDBPyConnection"
    versions: Mapping[str, int | None] | None
    seconds_max: float
    # One query at a time: what is registered belongs to one connection.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def query(self, sql: str, parameters: Sequence[Any] = (), rows_max: int | None = None) -> Rows:
        """The rows of a query, at most `rows_max` of them; a UsageError when it is wrong or takes too long.

        Times without an end are the texts `infinity` and `-infinity`.
        """
        from sluice.operate.infinity import with_infinity
        from sluice.operate.query import answering, ended_after, executed, is_select, size_of

        with self.lock, answering(), ended_after(self.connection, self.seconds_max):
            described: DuckDBPyRelation | DuckDBPyConnection
            if is_select(sql) and not parameters:
                described = self.connection.sql(sql)
                found = self.connection.execute(with_infinity(sql, described.columns, described.types))
            else:
                found = self.connection.execute(sql, list(parameters)) if parameters else executed(self.connection, sql)
                described = found
            columns = described.description or []
            names = distinct([column[0] for column in columns])
            types = dict(zip(names, (str(column[1]) for column in columns), strict=True))
            try:
                rows = found.fetchall() if rows_max is None else found.fetchmany(rows_max)
            except (OverflowError, ValueError) as error:
                raise UsageError(f"A value cannot be shown: {error}. Cast it to text.") from error
            if sum(map(size_of, rows)) > answer_bytes_max:
                raise UsageError(f"The answer has more than {answer_bytes_max:,} bytes. Ask for less.")
            return Rows(types, rows)

    def types(self, table: str) -> dict[str, str]:
        """The DuckDB type of each column of a table; a UsageError when it was not there."""
        layer, name = table.split(".")
        sql = "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = ? AND table_name = ?"
        found = self.query(f"{sql} ORDER BY column_index", [layer, name]).rows
        if not found:
            raise UsageError(f"{table} was not there yet.")
        return {str(column): str(kind) for column, kind in found}


def require_query(sql: str) -> None:
    """A UsageError for a text that is not one query, or that would do more than read."""
    from sluice.operate.query import answering, only_reads

    with answering():
        does_read = only_reads(sql)
    if not does_read:
        raise UsageError("A chart shows the answer of one query that only reads: SELECT …")


def distinct(names: Sequence[str]) -> list[str]:
    """The names of an answer's columns, numbered as DuckDB does where two are the same."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in count(1))
        found.append(next(each for each in chain([name], others) if each not in found))
    return found


class Snapshots:
    """The newest consistent versions, opened once for all readers, and the last few times that were asked for."""

    def __init__(self, project: "Project", memory: str, seconds_max: float) -> None:
        self.project, self.memory, self.seconds_max = project, memory, seconds_max
        self.lock, self.opening = threading.Lock(), threading.Lock()
        self.known: OrderedDict[object, Snapshot] = OrderedDict()
        self.newest = Newest(project.lake, look_seconds)

    def newest_versions(self) -> Mapping[str, int | None]:
        """The newest versions that belong together."""
        return self.newest.versions()

    def at(self, known_at: datetime | None = None) -> Snapshot:
        """What is known, or was known at a time."""
        versions = self.newest_versions()
        # What was known at a time may change with a commit: the time may be one to come.
        key = known_at, frozenset(versions.items())
        if (found := self.kept(key)) is not None:
            return found
        # One at a time, while those that are open already are read.
        with self.opening:
            found = self.kept(key) or self.opened(known_at, None if known_at else versions)
            with self.lock:
                self.known[key] = found
                while len(self.known) > kept_snapshots:
                    self.known.popitem(last=False)
        return found

    def kept(self, key: object) -> Snapshot | None:
        with self.lock:
            if key in self.known:
                self.known.move_to_end(key)
            return self.known.get(key)

    def opened(self, known_at: datetime | None, versions: Mapping[str, int | None] | None) -> Snapshot:
        """A connection of its own, which reads the tables alone."""
        from sluice.operate.query import connected, serve_within

        limit = partial(serve_within, memory_limit=self.memory)
        connection = connected(self.project.lake, known_at, versions, prepare=limit)
        return Snapshot(connection, versions, self.seconds_max)
