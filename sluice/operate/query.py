"""SQL over the tables of a lake, without Spark: as they are, or as they were known at a time."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

import duckdb
from pyarrow.lib import ArrowException
from pyarrow.parquet import read_schema

from sluice.errors import UsageError
from sluice.storage.delta import Lake

# DuckDB looks into each file at each query.
files_max = 100
# What a parsed query is made of that reads and does nothing else. DuckDB lets INSERT, UPDATE, DELETE and COPY stand in
# a WITH, and calls the whole a SELECT; anywhere else they are no SQL.
reading_nodes = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
kept_characters_max = 10_000
# What DuckDB says of a statement that would change the view that a table is.
writes = re.compile(r"Can only \w+( \w+)? base table|is not an table")
# What a value takes that is kept by Python, about; of longer lists it is not added up.
value_bytes, elements_counted_max = 100, 5000


@dataclass(frozen=True)
class Table:
    """The answer to a query."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@contextmanager
def connection(
    lake: Lake,
    known_at: datetime | None = None,
    versions: Mapping[str, int | None] | None = None,
    *,
    allow_files: bool = False,
) -> "Iterator[duckdb.DuckDBPyConnection]":
    """The same as `connected`, closed at the end."""
    with connected(lake, known_at, versions, allow_files=allow_files) as found:
        yield found


def connected(
    lake: Lake,
    known_at: datetime | None = None,
    versions: Mapping[str, int | None] | None = None,
    *,
    allow_files: bool = False,
    reads_only: bool = False,
    prepare: "Callable[[duckdb.DuckDBPyConnection], None]" = lambda found: None,
) -> "duckdb.DuckDBPyConnection":
    """A DuckDB connection in which every table of the lake is a view of its name, as it is or as it was known.

    With `versions` there are only these tables, at these versions, or as they are (None). A query cannot reach other
    files or addresses, unless `allow_files`. `prepare` is called before the settings are locked. Who executes only what
    `only_reads` lets DuckDB read the files of tables itself (`reads_only`), which is faster; it could write them, too.
    """
    found = duckdb.connect()
    files: list[str] = []
    try:
        found.execute("SET TimeZone = 'UTC'")
        for layer in ("bronze", "silver", "gold"):
            found.execute(f"CREATE SCHEMA {layer}")
        for table in lake.tables() if versions is None else versions:
            layer, name = table.split(".")
            try:
                rows = lake.arrow(table, known_at, None if versions is None else versions[table])
            except Exception as error:  # noqa: BLE001 - one broken table hides no other
                said = f"{table} cannot be read: {' '.join(str(error).split())[:500]}".replace("'", "''")
                found.execute(f"CREATE VIEW {layer}.\"{name}\" AS SELECT error('{said}')")
                continue
            if rows is None:
                continue
            found.register(f"_{layer}_{name}", rows)
            source = f'"_{layer}_{name}"'
            if reads_only and known_at is None:
                own = lake.plain_files(table, None if versions is None else versions[table])
                if own and len(own) <= files_max and columns_in(own) == described(found, source):
                    source, files = parquet(own), [*files, *own]
            found.execute(f'CREATE VIEW {layer}."{name}" AS SELECT * FROM {source}')
        if files:
            # Files of Delta never change, so that what is in them is looked up once.
            found.execute("SET parquet_metadata_cache = true")
        prepare(found)
        lock_down(found, files, allow_files=allow_files)
    except BaseException:
        found.close()
        raise
    return found


def parquet(files: Sequence[str]) -> str:
    """Parquet files as a table; a column that one lacks is null there."""
    by_name = "" if have_one_schema(tuple(files)) else ", union_by_name = true"
    return f"read_parquet({listed(files)}{by_name})"


def listed(texts: Sequence[str]) -> str:
    return "[" + ", ".join("'" + each.replace("'", "''") + "'" for each in texts) + "]"


@lru_cache(maxsize=1000)
def have_one_schema(files: tuple[str, ...]) -> bool:
    first, *others = (read_schema(each).remove_metadata() for each in files)
    return all(each.equals(first) for each in others)


@lru_cache(maxsize=1000)
def columns_in_files(files: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    with duckdb.connect() as found:
        found.execute("SET TimeZone = 'UTC'")
        return described(found, parquet(files))


def columns_in(files: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The columns of Parquet files, which never change, as DuckDB reads them; none where it cannot."""
    try:
        return columns_in_files(tuple(files))
    except (duckdb.Error, ArrowException, OSError):
        return ()


def described(connection: "duckdb.DuckDBPyConnection", source: str) -> tuple[tuple[str, str], ...]:
    """The columns of a table, each with its type."""
    found = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
    return tuple((each[0], each[1]) for each in found)


def serve_within(connection: "duckdb.DuckDBPyConnection", memory_limit: str) -> None:
    """Sets what a server's connection may use; before its settings are locked."""
    connection.execute(f"SET memory_limit = '{memory_limit}'")
    # It would be drawn in the server's terminal.
    connection.execute("SET enable_progress_bar = false")


def lock_down(connection: "duckdb.DuckDBPyConnection", files: Sequence[str] = (), *, allow_files: bool = False) -> None:
    """From now on queries reach what is registered and, unless `allow_files`, nothing but `files`, whatever is set."""
    # Otherwise a name in a query could also mean a variable of this program.
    connection.execute("SET python_enable_replacements = false")
    if not allow_files:
        # No spill folder either: a query could use it.
        connection.execute("SET temp_directory = ''")
        if files:
            connection.execute(f"SET allowed_paths = {listed(files)}")
        connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def query(
    lake: Lake,
    sql: str,
    known_at: datetime | None = None,
    *,
    tables: Sequence[str] | None = None,
    allow_files: bool = False,
) -> Table:
    """The rows that a SQL query gives, from what is known or was known at a time; a UsageError says what is wrong.

    With `tables` it finds these alone; to open all others takes longer than most queries.
    """
    versions = None if tables is None else dict.fromkeys(tables)
    with connection(lake, known_at, versions, allow_files=allow_files) as found, answering():
        answer = executed(found, sql)
        return Table(columns_of(answer), answer.fetchall())


def only_reads(sql: str) -> bool:
    """Whether a text is one query that reads, all of its parts included; DuckDB's error for a text that is not SQL."""
    if not is_select(sql):
        return False
    # Most queries have no WITH, and need not be parsed once more.
    if "with" not in sql.lower():
        return True
    return reads_again(sql) if len(sql) <= kept_characters_max else reads(sql)


def is_select(sql: str) -> bool:
    """Whether a text is one statement that DuckDB calls a SELECT; its error for a text that is not SQL."""
    return [each.type for each in duckdb.extract_statements(sql)] == [duckdb.StatementType.SELECT]


@cache
def parser() -> "duckdb.DuckDBPyConnection":
    """The database that parses queries; most commands have none."""
    return duckdb.connect()


def reads(sql: str) -> bool:
    statements = parsed(sql)
    return len(statements) == 1 and kinds_of_nodes(statements) <= reading_nodes


def parsed(sql: str) -> list[Any]:
    """The statements of a text as DuckDB parses them; none where it is not SQL. A UsageError where it is too deep."""
    (text,) = parser().cursor().execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone() or ("{}",)
    try:
        return list(json.loads(text).get("statements", []))
    except RecursionError as error:
        raise UsageError("The SQL is nested too deeply.") from error


# Tools ask the same again and again, and to parse a query takes as long as to answer a small one.
reads_again = lru_cache(maxsize=1000)(reads)


def kinds_of_nodes(parsed: Any) -> set[str]:
    """The kinds of queries that a parsed one is made of."""
    kinds = (each.get("type") for each in parts_of(parsed))
    return {kind for kind in kinds if isinstance(kind, str) and kind.endswith("_NODE")}


def parts_of(parsed: Any) -> Iterator[dict[str, Any]]:
    """All that parsed SQL is made of, in no order."""
    waiting = [parsed]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def executed(found: "duckdb.DuckDBPyConnection", sql: str) -> "duckdb.DuckDBPyConnection":
    """The answer to a query, not fetched yet."""
    statements = duckdb.extract_statements(sql)
    if not statements:
        raise UsageError("The query asks for nothing; write for example SELECT * FROM gold.sold LIMIT 5")
    if any(each.type == duckdb.StatementType.SELECT for each in statements[:-1]):
        raise UsageError("The query asks for several answers; write one SELECT, and the next in a query of its own.")
    return found.execute(sql)


def columns_of(answer: "duckdb.DuckDBPyConnection") -> list[str]:
    return [column[0] for column in answer.description or []]


@contextmanager
def ended_after(connection: "duckdb.DuckDBPyConnection", seconds: float | None) -> Iterator[None]:
    """Interrupts a query that takes longer; None: it may take as long as it does."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, connection.interrupt)
    timer.start()
    try:
        yield
    except duckdb.InterruptException as error:
        raise UsageError(f"The query took longer than {seconds:g} s and was ended.") from error
    finally:
        timer.cancel()


@contextmanager
def answering() -> Iterator[None]:
    """A UsageError says what is wrong with a query."""
    try:
        yield
    except duckdb.Error as error:
        raise UsageError(refusal(error)) from error
    except MemoryError as error:
        raise UsageError("The query cannot be answered: the memory is used up. Ask for less.") from error


def refusal(error: duckdb.Error) -> str:
    """What is wrong with a query."""
    said = str(error)
    if writes.search(said):
        return "A query reads the tables and changes none: what they hold follows from the log."
    if not isinstance(error, duckdb.CatalogException):
        return f"The query cannot be answered: {said}"
    # A table that is only declared is unknown to DuckDB, which then guesses at its own.
    plain = re.sub(r"\nDid you mean \"(information_schema|pg_catalog)\..*", "", said)
    return (
        f"The query cannot be answered: {plain}\n"
        "A declared table is there after its first run (sluice run), unless it is blocked: sluice status"
    )


def size_of(value: Any) -> int:
    """What a value takes that is kept by Python, about, with all that is in it."""
    match value:
        case str() | bytes():
            return value_bytes + len(value)
        case dict():
            return sum(size_of(each) for each in value.values())
        case list() | tuple():
            return sum(map(size_of, value)) if len(value) < elements_counted_max else len(value) * value_bytes
    return value_bytes
