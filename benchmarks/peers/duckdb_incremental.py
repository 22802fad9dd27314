"""DuckDB and delta-rs as a careful engineer writes a small update by hand.

Each table is made right from what the new records touch, read from the tables before it: a customer's versions from
all of its changes, the sales of these customers and the new ones, and the days that they are on. So a run that was
killed is repaired by the next, and rows that are right are not written. What is only new is appended, all else is
merged by key.

What it does not do: a second, different record of a sale that comes in a later run does not win, wherever it is in the
log; tables are not committed together; and nothing is kept that says why a row changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow
from deltalake import DeltaTable, WriterProperties, write_deltalake

from benchmarks.peers.duckdb_from_nothing import as_of, by_segment_and_day, end_to_end, first_of_each, records
from benchmarks.peers.shared import Refresh, database, unread

# Rows in the order of time, in groups that are small enough to skip.
properties = WriterProperties(max_row_group_size=100_000)


@contextmanager
def driver(log: Path, lake: Path) -> Iterator[Refresh]:
    with database() as connection:

        def refresh() -> None:
            with unread(log, lake) as files:
                if files["sales"] or files["customers"]:
                    update(connection, lake, files["sales"], files["customers"])

        yield refresh


def update(connection: duckdb.DuckDBPyConnection, lake: Path, sales: Sequence[str], customers: Sequence[str]) -> None:
    def made(name: str, query: str) -> None:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    made(
        "arrived", first_of_each(records("sales", sales)) if sales else f"FROM {stored(lake / 'silver/sales')} LIMIT 0"
    )
    add(connection, lake / "silver/sales", ["id"], "FROM arrived")
    made("touched", "SELECT NULL::VARCHAR AS customer LIMIT 0")
    if customers:
        made("changes", f"SELECT DISTINCT customer, changed_at, segment FROM ({records('customers', customers)})")
        made("touched", "SELECT DISTINCT customer FROM changes")
        add(connection, lake / "silver/customer_changes", ["customer", "changed_at", "segment"], "FROM changes")
        versions = end_to_end(f"FROM {stored(lake / 'silver/customer_changes')} SEMI JOIN touched USING (customer)")
        keep(connection, lake / "silver/customers", ["customer", "valid_from"], versions, "touched USING (customer)")
    sale, version = stored(lake / "silver/sales"), stored(lake / "silver/customers")
    made("facts", f"(FROM {sale} SEMI JOIN arrived USING (id)) UNION (FROM {sale} SEMI JOIN touched USING (customer))")
    made("versions", f"FROM {version} SEMI JOIN facts USING (customer)")
    joined = f"FROM ({as_of('FROM facts', 'FROM versions')}) ORDER BY sold_at"
    keep(connection, lake / "silver/sold", ["id"], joined, "facts USING (id)")
    made("days", "SELECT DISTINCT CAST(sold_at AS DATE) AS day FROM facts")
    # The first and the last day skip parts of files.
    [(first, after)] = connection.execute("SELECT min(day), max(day) + 1 FROM days").fetchall()
    sold = f"FROM {stored(lake / 'silver/sold')} WHERE sold_at >= '{first}' AND sold_at < '{after}'"
    if first is not None:
        groups = by_segment_and_day(f"{sold} AND CAST(sold_at AS DATE) IN (FROM days)")
        keep(connection, lake / "gold/revenue", ["segment", "day"], groups, "days USING (day)")


def stored(table: Path) -> str:
    return f"read_parquet({[name.removeprefix('file://') for name in DeltaTable(table).file_uris()]})"


def add(connection: duckdb.DuckDBPyConnection, table: Path, keys: Sequence[str], rows: str) -> None:
    """Appends the rows whose keys a table has not."""
    if DeltaTable.is_deltatable(str(table)):
        rows += f" ANTI JOIN {stored(table)} USING ({', '.join(keys)})"
    append(table, connection.sql(rows).to_arrow_table())


def append(table: Path, rows: pyarrow.Table) -> None:
    if rows.num_rows:
        write_deltalake(table, rows, mode="append", writer_properties=properties)


def keep(connection: duckdb.DuckDBPyConnection, table: Path, keys: Sequence[str], rows: str, touched: str) -> None:
    """Makes the rows of a table that are touched equal to these; writes nothing where they are."""
    if not DeltaTable.is_deltatable(str(table)):
        append(table, connection.sql(rows).to_arrow_table())
        return
    key = ", ".join(keys)
    connection.execute(f"CREATE OR REPLACE TEMP TABLE right_rows AS {rows}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE known AS FROM {stored(table)} SEMI JOIN {touched}")
    difference = connection.sql(
        f"""
            SELECT *, false AS gone FROM (FROM right_rows EXCEPT FROM known)
            UNION ALL SELECT *, true FROM known ANTI JOIN right_rows USING ({key})
        """
    ).to_arrow_table()
    new = connection.sql(f"FROM right_rows ANTI JOIN known USING ({key})").to_arrow_table()
    if new.num_rows == difference.num_rows:
        append(table, new)
    else:
        merge(table, keys, difference)


def merge(table: Path, keys: Sequence[str], difference: pyarrow.Table) -> None:
    columns = {name: f"source.{name}" for name in difference.column_names if name != "gone"}
    matched = " AND ".join(f"target.{name} = source.{name}" for name in keys)
    merger = DeltaTable(table).merge(
        difference, matched, source_alias="source", target_alias="target", writer_properties=properties
    )
    merger = merger.when_matched_delete("source.gone").when_matched_update(columns)
    merger.when_not_matched_insert(columns).execute()
