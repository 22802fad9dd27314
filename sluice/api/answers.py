"""The rows of a table or of a query, as Arrow, Polars, pandas or DuckDB; read without Spark."""

import importlib
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from duckdb import Error as DuckDBError

from sluice.errors import UsageError, suggestion
from sluice.operate.infinity import with_infinity
from sluice.operate.query import answering, columns_of, connected, executed, is_select
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


class Answer:
    """Rows of one state of the tables: each method returns the same rows, even if more is written later."""

    def __init__(self, connection: "DuckDBPyConnection", sql: str) -> None:
        self.sql = sql
        self._connection = connection
        with answering():
            self._is_select = is_select(sql)
            if self._is_select:
                # Evaluated when its rows are requested; wrong names are an error here already.
                self.columns = connection.sql(sql).columns
            else:
                # Any other statement is executed once.
                answer = executed(connection, sql)
                self.columns, self.rows = columns_of(answer), answer.fetchall()

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The rows as Python values, in the order of `columns`."""
        with answering():
            return self._connection.sql(self.sql).fetchall()

    @cached_property
    def rows_with_infinity(self) -> list[tuple[Any, ...]]:
        """The same, with the text `infinity` or `-infinity` where a time has no end: in `rows`, it is Python's last."""
        if not self._is_select:
            return self.rows
        with answering():
            relation = self._connection.sql(self.sql)
            return self._connection.sql(with_infinity(self.sql, relation.columns, relation.types)).fetchall()

    def arrow(self) -> pa.Table:
        """The rows as a PyArrow table; times are in UTC, with microseconds."""
        if not self._is_select:
            return pa.Table.from_pylist([dict(zip(self.columns, row, strict=True)) for row in self.rows])
        with answering():
            found: pa.Table = self._connection.sql(self.sql).to_arrow_table()
        return found

    def polars(self) -> "pl.DataFrame":
        """The rows as a Polars frame; a UsageError when Polars is not installed."""
        frame: pl.DataFrame = imported("polars").from_arrow(self.arrow())
        return frame

    def pandas(self) -> "pd.DataFrame":
        """The rows as a pandas frame; a UsageError when pandas is not installed."""
        imported("pandas")
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def duckdb(self) -> "DuckDBPyRelation":
        """The rows as a DuckDB relation, which reads only what a filter needs: `.filter("flights > 9").fetchall()`.

        A UsageError for a statement other than SELECT.
        """
        if not self._is_select:
            raise UsageError("Only a SELECT can be read as a relation; read this statement's rows.")
        with answering():
            return self._connection.sql(self.sql)


def table(lake: Lake, name: str, known_at: datetime | None) -> Answer:
    """All rows of a table; a UsageError when it does not exist, or did not at that time."""
    require_table(lake, name)
    connection = connected(lake, known_at, {name: None})
    layer, own = name.split(".")
    if known_at is not None and not has_view(connection, layer, own):
        raise UsageError(absence(lake, name, known_at))
    return Answer(connection, f'SELECT * FROM {layer}."{own}"')


def require_table(lake: Lake, name: str) -> None:
    """A UsageError for a table that does not exist."""
    known = lake.tables()
    if name not in known:
        others = f"there are {', '.join(known)}." if known else "there are none: run the project first."
        raise UsageError(f"There is no table {name}; {suggestion(name, known, others)}")


def query(lake: Lake, sql: str, known_at: datetime | None, *, allow_files: bool) -> Answer:
    """The answer to a query; a UsageError says what is wrong with it."""
    connection = connected(lake, known_at, allow_files=allow_files)
    try:
        return Answer(connection, sql)
    except UsageError as error:
        # DuckDB would suggest another table.
        missing = absent(lake, connection, sql)
        if known_at is None or not missing:
            raise
        raise UsageError(absence(lake, missing[0], known_at)) from error


def absent(lake: Lake, connection: "DuckDBPyConnection", sql: str) -> list[str]:
    """The tables of the lake that a query names and that are not among the views of the connection."""
    try:
        named = {each.lower() for each in connection.get_table_names(sql, qualified=True)}
    except DuckDBError:
        return []
    return [each for each in lake.tables() if each.lower() in named and not has_view(connection, *each.split("."))]


def absence(lake: Lake, name: str, known_at: datetime) -> str:
    """Why a table cannot be read as it was at a time before its oldest version."""
    oldest = lake.commit_file(name, lake.oldest_version(name))
    then, since = (
        f"{each.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC" for each in (known_at, oldest.committed_at)
    )
    if oldest.version:
        return (
            f"What {name} was at {then} is no longer known: its log begins with version {oldest.version}, of {since}."
        )
    return f"{name} was not there yet at {then}: its first version is of {since}."


def has_view(connection: "DuckDBPyConnection", layer: str, name: str) -> bool:
    sql = "SELECT 1 FROM duckdb_views() WHERE schema_name = $layer AND view_name = $name"
    return bool(connection.execute(sql, {"layer": layer, "name": name}).fetchall())


def imported(name: str) -> Any:
    """A library that is not always installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} is not installed: pip install 'sluice-lakehouse[frames]'") from error
