"""The database that is captured: what it must be set to, its tables, the publication, the slot, and the snapshot."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError, UsageError
from sluice.ingest.capture.envelope import TableName
from sluice.ingest.capture.values import session_settings
from sluice.runtime import lost_server

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection
    from psycopg2.extras import LogicalReplicationConnection

version_least = 15
active_seconds_max = 10.0
watch_seconds = 60.0
example = "postgresql://user@host:5432/database"


class PostgresError(SluiceError):
    """Postgres refused something, or is not there."""


class SlotLost(SluiceError):
    """The slot no longer has the changes since the last one captured."""


@dataclass(frozen=True)
class Table:
    """A table of the database: its published columns, and its key."""

    oid: int
    schema: str
    name: str
    is_partitioned: bool
    identity: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    row_filter: str | None
    has_values_apart: bool

    @property
    def full_name(self) -> TableName:
        return self.schema, self.name

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Slot:
    """The state of a slot: who reads it, and how much of the write-ahead log (WAL) it retains."""

    database: str
    plugin: str
    active_pid: int | None
    wal_status: str | None
    restart_lsn: int | None
    confirmed_lsn: int | None
    retained_bytes: int | None
    left_bytes: int | None


@dataclass(frozen=True)
class Database:
    """A database by its address; nothing in here keeps a connection open.

    Everything raises a SluiceError that says what Postgres said, and what to do.
    """

    # It may contain a password.
    address: str = field(repr=False)

    @contextlib.contextmanager
    def session(self) -> "Iterator[Connection]":
        """A connection that commits by itself, and has values written as the stream has them."""
        with (
            self.explained(),
            contextlib.closing(self.connect()) as connection,
            lost_server.watched(connection, self.address, watch_seconds),
        ):
            yield connection

    @contextlib.contextmanager
    def replication(self) -> "Iterator[LogicalReplicationConnection]":
        """A connection that can also create slots and be streamed to."""
        from psycopg2.extras import LogicalReplicationConnection

        with (
            self.explained(),
            contextlib.closing(self.connect(connection_factory=LogicalReplicationConnection)) as connection,
            lost_server.watched(connection, self.address, watch_seconds),
        ):
            yield connection

    def connect(self, **options: Any) -> Any:
        driver = psycopg2()
        try:
            connection = driver.connect(
                self.address,
                fallback_application_name="sluice capture",
                connect_timeout=lost_server.connect_seconds_max,
                **lost_server.lost_network,
                **options,
            )
        except driver.ProgrammingError as error:
            # What the driver says quotes the address, and with it the password.
            raise UsageError(f"SLUICE_POSTGRES is no address of a database; write it as {example}") from error
        except driver.OperationalError as error:
            raise PostgresError(
                f"Postgres cannot be reached: {said(error)}. Set SLUICE_POSTGRES, for example to {example}, and the "
                "password as PGPASSWORD or in ~/.pgpass."
            ) from error
        if not options:
            connection.autocommit = True
        for name, value in session_settings.items():
            execute(connection, f"SET {name} TO '{value}'")
        return connection

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns what Postgres says into an error that says what to do."""
        driver = psycopg2()
        try:
            yield
        except driver.Error as error:
            raise PostgresError(f"Postgres: {said(error)}.{advice(error)}") from error
        except lost_server.ServerLost as error:
            raise PostgresError(f"Postgres: {error}") from error

    def require_logical(self) -> str:
        """The database's name; an error where its server cannot be captured."""
        with self.session() as connection:
            (server_version, level, in_recovery, name) = one(
                connection,
                "SELECT current_setting('server_version_num')::int / 10000, current_setting('wal_level'), "
                "pg_is_in_recovery(), current_database()::text",
            )
        if server_version < version_least:
            raise SluiceError(f"This is Postgres {server_version}; capture needs {version_least} or newer.")
        if in_recovery:
            raise SluiceError("This server is a standby; set SLUICE_POSTGRES to the primary.")
        if level != "logical":
            raise SluiceError(
                f"The server's wal_level is {level}, and capture needs logical. As a superuser: "
                "ALTER SYSTEM SET wal_level = 'logical'; then restart the server."
            )
        return str(name)

    def publish(self, publication: str, tables: Sequence[TableName]) -> None:
        """Makes the publication where it is missing; a UsageError for one that leaves something out."""
        with self.session() as connection:
            for table in tables:
                require_table(connection, table)
            found = rows(
                connection,
                "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s",
                publication,
            )
            if not found:
                names = ", ".join(f"TABLE ONLY {quoted(*table)}" for table in tables)
                execute(
                    connection,
                    f"CREATE PUBLICATION {quoted(publication)} FOR {names} WITH (publish_via_partition_root = true)",
                )
                return
            published = {
                (schema, name)
                for schema, name in rows(
                    connection,
                    "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = %s",
                    publication,
                )
            }
        if missing := [table for table in tables if table not in published]:
            raise UsageError(
                f"The publication {publication} lacks {', '.join(map('.'.join, missing))}. A table that is added to a "
                "capture needs its own snapshot: capture it with another --slot and --publication."
            )
        if not found[0][0]:
            raise UsageError(
                f"The publication {publication} leaves out some kinds of changes. Capture all: ALTER PUBLICATION "
                f"{quoted(publication)} SET (publish = 'insert, update, delete, truncate')"
            )

    def tables(self, connection: "Connection", publication: str, tables: Sequence[TableName]) -> list[Table]:
        """The published tables as a transaction sees them; a UsageError for one whose rows cannot be told apart."""
        found = [described(connection, publication, table) for table in tables]
        for table in found:
            require_identity(table)
        return found

    def free_slot(self, name: str, database: str) -> Slot | None:
        """The slot if it exists; waits a while until the server notices that a killed reader is gone."""
        deadline = time.monotonic() + active_seconds_max
        with self.session() as connection:
            while (slot := slot_of(connection, name)) and slot.active_pid and time.monotonic() < deadline:
                time.sleep(0.1)
        if slot is None:
            return None
        if slot.plugin != "pgoutput" or slot.database != database:
            raise UsageError(
                f"The slot {name} is one for {slot.plugin} in the database {slot.database}; choose another --slot."
            )
        if slot.active_pid:
            raise SluiceError(
                f"Another process reads the slot {name} (its server process is {slot.active_pid}). Stop it, or choose "
                "another --slot and --publication."
            )
        return slot

    def end_of_wal(self) -> int:
        """The position up to which the server's log is written."""
        with self.session() as connection:
            return int(one(connection, "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint")[0])


def psycopg2() -> Any:
    """The driver; a SluiceError where it is not installed."""
    try:
        import psycopg2.extensions
        import psycopg2.extras
    except ImportError as error:
        raise SluiceError(
            "Capture needs psycopg2, which is in the extra capture: pip install 'sluice-lakehouse[capture]'"
        ) from error
    return psycopg2


def said(error: Exception) -> str:
    """What Postgres says, on one line and without a full stop."""
    return " ".join(str(error).split()).removesuffix(".") or type(error).__name__


def advice(error: Any) -> str:
    """What to do about an error, by its SQLSTATE; nothing where the message says it all."""
    return {
        "42501": " Give the role what it lacks: ALTER ROLE … REPLICATION; SELECT on the tables; and to make the "
        "publication, let it own them.",
        "53400": " Raise max_replication_slots and max_wal_senders, or drop unused slots.",
        "53300": " Raise max_connections or max_wal_senders.",
        "28000": " Let the role replicate: ALTER ROLE … REPLICATION, and check pg_hba.conf.",
    }.get(error.pgcode or "", "")


def execute(connection: "Connection", statement: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)


def rows(connection: "Connection", query: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values or None)
        return cursor.fetchall()


def one(connection: "Connection", query: str, *values: Any) -> tuple[Any, ...]:
    return rows(connection, query, *values)[0]


def quoted(*names: str) -> str:
    """Identifiers as SQL."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def require_table(connection: "Connection", table: TableName) -> None:
    kinds = rows(
        connection,
        "SELECT relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE nspname = %s AND relname = %s",
        *table,
    )
    if not kinds:
        raise UsageError(f"There is no table {'.'.join(table)} in the database; --tables takes names as SCHEMA.TABLE.")
    if kinds[0][0] not in ("r", "p"):
        raise UsageError(f"{'.'.join(table)} is no table whose changes are logged; only tables can be captured.")


def described(connection: "Connection", publication: str, table: TableName) -> Table:
    """A published table as the catalog has it."""
    found = one(
        connection,
        """
        SELECT c.oid::bigint, c.relkind = 'p', c.relreplident::text,
            ARRAY(
                SELECT a.attname::text
                FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
                WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY a.attnum
            ),
            ARRAY(
                SELECT a.attname::text FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                    AND a.attname = ANY (p.attnames) ORDER BY a.attnum
            ),
            p.rowfilter,
            c.reltoastrelid <> 0 AND pg_relation_size(c.reltoastrelid) > 0
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            JOIN pg_publication_tables p ON p.schemaname = n.nspname AND p.tablename = c.relname
        WHERE n.nspname = %s AND c.relname = %s AND p.pubname = %s
        """,
        *table,
        publication,
    )
    oid, is_partitioned, identity, key, columns, row_filter, has_values_apart = found
    return Table(oid, *table, is_partitioned, identity, tuple(key), tuple(columns), row_filter, bool(has_values_apart))


def require_identity(table: Table) -> None:
    """A UsageError for a table whose changes would not say which row they are of."""
    if not table.key:
        raise UsageError(
            f"{table} has no primary key, so its rows cannot be told apart. Give it one: ALTER TABLE {table} "
            "ADD PRIMARY KEY (…)"
        )
    if table.identity == "n":
        raise UsageError(
            f"{table} has REPLICA IDENTITY NOTHING, so that a delete does not say which row it was. "
            f"Set another: ALTER TABLE {table} REPLICA IDENTITY DEFAULT, or FULL"
        )
    if missing := [name for name in table.key if name not in table.columns]:
        raise UsageError(f"The publication leaves out {', '.join(missing)}, of the primary key of {table}; add it.")


def slot_of(connection: "Connection", name: str) -> Slot | None:
    found = rows(
        connection,
        """
        SELECT database::text, plugin::text, active_pid, wal_status, (restart_lsn - '0/0')::bigint,
            (confirmed_flush_lsn - '0/0')::bigint, (pg_current_wal_lsn() - restart_lsn)::bigint, safe_wal_size
        FROM pg_replication_slots WHERE slot_name = %s
        """,
        name,
    )
    return Slot(*found[0]) if found else None


def require_slot(name: str, slot: Slot | None) -> Slot:
    """The slot; a SlotLost where changes since the last that was captured are gone."""
    if slot is None or slot.wal_status == "lost":
        how = "is gone" if slot is None else "was invalidated: it retained more WAL than max_slot_wal_keep_size allows"
        raise SlotLost(
            f"The slot {name} {how}, so changes after the last that was captured are lost. Start from a new snapshot, "
            "with --new-snapshot: the tables are right from then on, and what happened in between is not in the log."
        )
    return slot
