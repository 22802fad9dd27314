"""The snapshot: every row of the tables at one position of the database's log, from which the slot goes on."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sluice.errors import SluiceError
from sluice.ingest.capture import values
from sluice.ingest.capture.batch import Batch
from sluice.ingest.capture.database import Database, Table, execute, one, psycopg2, quoted, require_slot, rows, slot_of
from sluice.ingest.capture.envelope import Origin, Row, TableName, key_text
from sluice.log import AnyLog

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

fetched_rows = 2000


@dataclass(frozen=True)
class Snapshot:
    """Reads the tables once, and leaves a slot that begins where they were read.

    The slot that keeps the position meanwhile is temporary: it ends with its connection, so a killed snapshot leaves
    nothing behind, and the permanent slot exists only when every row is in the log.
    """

    database: Database
    log: AnyLog
    origin: Origin
    publication: str
    slot: str
    topics: dict[TableName, str]
    batch_records: int
    listener: Callable[[Table, int], None]

    def take(self) -> None:
        """Appends every row, and makes the slot, in the place of one of the same name."""
        temporary = f"{self.slot[:40]}_snapshot_{os.getpid()}"
        with self.database.replication() as keeper, self.database.session() as session:
            with keeper.cursor() as cursor:
                # Waits until the transactions under way have ended.
                cursor.execute(
                    f"CREATE_REPLICATION_SLOT {quoted(temporary)} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')"
                )
                _, _, exported, _ = cursor.fetchone() or ("", "", "", "")
            with self.database.session() as reader:
                self.append_all(reader, exported, *self.position(session, temporary))
            require_slot(temporary, slot_of(session, temporary))
            if slot_of(session, self.slot):
                execute(session, "SELECT pg_drop_replication_slot(%s)", self.slot)
            execute(session, "SELECT pg_copy_logical_replication_slot(%s, %s, false)", temporary, self.slot)

    def position(self, session: "Connection", temporary: str) -> tuple[int, datetime]:
        """The position and time that the rows are given.

        The position is where the slot reads from, not where it is consistent: a transaction under way at that point has
        changes before it, and they come after the rows.
        """
        slot = slot_of(session, temporary)
        if slot is None or slot.restart_lsn is None:
            raise SluiceError(f"The temporary slot {temporary} is gone. Start again; the snapshot is taken again.")
        return slot.restart_lsn, one(session, "SELECT clock_timestamp()")[0]

    def append_all(self, reader: "Connection", exported: str, lsn: int, at: datetime) -> None:
        """Appends the rows of every table as the exported snapshot has them."""
        reader.set_session(isolation_level="REPEATABLE READ", readonly=True, autocommit=False)
        execute(reader, f"SET TRANSACTION SNAPSHOT '{exported}'")
        tables = self.database.tables(reader, self.publication, list(self.topics))
        for table in tables:
            execute(reader, f"LOCK TABLE {source(table)} IN ACCESS SHARE MODE")
        for table in tables:
            require_unchanged(reader, table)
        known = [table for table in tables if self.has_records(table)]
        for table in tables:
            self.append_table(reader, table, lsn, at)
        for table in known:
            # Keys that the snapshot lacks are gone. Said last, so that a snapshot which is killed takes nothing away.
            # Positions are multiples of eight: one less is after all that was captured before, and before every row.
            truncate = self.origin.of_snapshot("t", table.full_name, at, lsn - 1)
            self.log.append(self.topics[table.full_name], [truncate])

    def has_records(self, table: Table) -> bool:
        """Whether the topic of a table, which is made if need be, had records before."""
        topic = self.topics[table.full_name]
        self.log.create(topic)
        return any(self.log.end_offset(topic, partition) for partition in self.log.partitions(topic))

    def append_table(self, reader: "Connection", table: Table, lsn: int, at: datetime) -> None:
        batch, count = Batch(self.log, self.batch_records), 0
        for row in rows_of(reader, table):
            record = self.origin.of_snapshot("r", table.full_name, at, lsn, row=row, key=key_text(table.key, row))
            batch.add(self.topics[table.full_name], record)
            if batch.is_full:
                count += batch.append()
                self.listener(table, count)
        self.listener(table, count + batch.append())


def rows_of(reader: "Connection", table: Table) -> Iterator[Row]:
    """The rows of a table, their values as the stream has them."""
    driver = psycopg2()
    # Those that it converts by itself, ranges and arrays among them, and those that we do.
    converted = (*driver.extensions.string_types, *values.by_oid)
    as_sent = driver.extensions.new_type(converted, "AS_SENT", lambda value, _: value)
    columns = ", ".join(quoted(name) for name in table.columns)
    condition = f" WHERE {table.row_filter}" if table.row_filter else ""
    with reader.cursor(f"sluice_{table.oid}") as cursor:
        driver.extensions.register_type(as_sent, cursor)
        cursor.itersize = fetched_rows
        cursor.execute(f"SELECT {columns} FROM {source(table)}{condition}")
        converts: list[values.Convert] = []
        for found in cursor:
            converts = converts or [values.by_oid.get(column.type_code, str) for column in cursor.description or ()]
            yield {
                name: None if value is None else convert(value)
                for name, value, convert in zip(table.columns, found, converts, strict=True)
            }


def source(table: Table) -> str:
    """The table with its partitions, but without those that inherit from it: their changes have their own names."""
    return f"{'' if table.is_partitioned else 'ONLY '}{quoted(table.schema, table.name)}"


def require_unchanged(reader: "Connection", table: Table) -> None:
    """A SluiceError where the table was rewritten after the snapshot, which would find it empty."""
    files = rows(
        reader,
        "SELECT relfilenode = pg_relation_filenode(oid) FROM pg_class WHERE relfilenode <> 0 AND "
        "(oid = %s OR oid IN (SELECT relid FROM pg_partition_tree(%s::oid)))",
        table.oid,
        table.oid,
    )
    if not all(is_same for (is_same,) in files):
        raise SluiceError(f"{table} was altered or truncated while the snapshot began. Start again.")
