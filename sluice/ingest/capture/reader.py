"""The embedded reader: a snapshot where there is no slot yet, then every committed transaction, into the log."""

import contextlib
import re
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError, UsageError
from sluice.ingest.capture.batch import Batch
from sluice.ingest.capture.database import Database, PostgresError, Slot, Table, quoted, require_slot, slot_of
from sluice.ingest.capture.envelope import Envelopes, Origin, TableName
from sluice.ingest.capture.marks import Mark, is_another, is_followed, marks_in, newest_lsn, set_marks
from sluice.ingest.capture.pgoutput import Commit, Relation, decode
from sluice.ingest.capture.snapshot import Snapshot
from sluice.log import AnyLog, is_reserved
from sluice.log.log import topic_name
from sluice.log.reserved import reserved_prefix

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection
    from psycopg2.extras import ReplicationCursor, ReplicationMessage

# Small transactions that commit within this time share an append.
linger_seconds = 1.0
wait_seconds_max = 0.5


@dataclass(frozen=True)
class Progress:
    """An event for the user or a supervisor: its `kind`, and figures in `detail`."""

    kind: str
    message: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Capture:
    """What is captured, by which slot and publication, and into which log."""

    database: Database
    log: AnyLog
    tables: Sequence[TableName]
    slot: str
    publication: str
    prefix: str | None
    listener: Callable[[Progress], None]
    retained_bytes_warned: int = 1 << 30
    report_seconds: float = 10.0
    batch_records: int = 20_000

    def begin(self, *, new_snapshot: bool = False) -> "Stream":
        """The stream to follow: from where the last one stopped, or after a snapshot, which is then in the log."""
        name = self.database.require_logical()
        prefix = self.prefix if self.prefix is not None else name
        topics = topics_of(prefix, self.tables)
        origin = Origin(prefix, name)
        self.database.publish(self.publication, self.tables)
        self.warn_of_what_is_not_sent()
        slot = self.database.free_slot(self.slot, name)
        self.require_no_way_back(topics)
        if new_snapshot or not self.resumed(slot, topics):
            self.emit("snapshot", "taking a snapshot, once the transactions under way have ended")
            set_marks(self.log, self.slot, topics.values(), Mark.BEGUN)
            Snapshot(
                self.database,
                self.log,
                origin,
                self.publication,
                self.slot,
                topics,
                self.batch_records,
                self.emit_snapshot,
            ).take()
        # Here and not in the snapshot: an older release, or one that was killed before this, set none.
        set_marks(self.log, self.slot, topics.values(), Mark.COMPLETE)
        envelopes = Envelopes(origin, frozenset(self.tables), self.key_of)
        return Stream(self, envelopes, topics, Batch(self.log, self.batch_records))

    def resumed(self, slot: Slot | None, topics: dict[TableName, str]) -> bool:
        """Whether there is a slot to go on from; the slot is there only when its snapshot is in the log."""
        missing = sorted(topic for topic in topics.values() if not self.log.exists(topic))
        present = [topic for topic in topics.values() if topic not in missing]
        marks = marks_in(self.log)
        if slot is None:
            if any(is_followed(self.log, topic, marks.get(topic)) for topic in present):
                require_slot(self.slot, None)
            return False
        require_slot(self.slot, slot)
        if missing:
            raise UsageError(
                f"The slot {self.slot} exists, and the log {self.log} has no topic {', '.join(missing)}: the slot "
                "was made for other tables, or for another log. Capture new tables with another --slot and "
                "--publication, or start again with --new-snapshot."
            )
        made_again = sorted(topic for topic in present if is_another(self.log, topic, marks.get(topic)))
        if made_again:
            raise UsageError(
                f"The topic {', '.join(made_again)} was made again since the snapshot, so it lacks rows. Start again "
                "with --new-snapshot."
            )
        self.emit("resumed", f"going on from {lsn_text(slot.confirmed_lsn)}", confirmed_lsn=slot.confirmed_lsn)
        return True

    def require_no_way_back(self, topics: Mapping[TableName, str]) -> None:
        """A SluiceError for a server whose log ends before what was captured: all it says would count as older."""
        known = newest_lsn(self.log, [topic for topic in topics.values() if self.log.exists(topic)])
        end = self.database.end_of_wal()
        if known > end:
            raise SluiceError(
                f"Changes up to {lsn_text(known)} were captured, and this server's log ends at {lsn_text(end)}: it is "
                "another server, or was restored to an earlier state. Its rows would count as older than those that "
                "were captured. Capture it into topics of their own, with another --topic-prefix."
            )

    def key_of(self, relation: Relation) -> tuple[str, ...]:
        """The primary key of a table whose replica identity is another, as the catalog has it now."""
        with self.database.session() as session:
            (table,) = self.database.tables(session, self.publication, [(relation.schema, relation.table)])
        names = {column.name for column in relation.columns}
        if not names.issuperset(table.key):
            raise SluiceError(
                f"The primary key of {table} was renamed or replaced, and changes from before are still to be "
                "captured. Start from a new snapshot, with --new-snapshot."
            )
        return table.key

    def warn_of_what_is_not_sent(self) -> None:
        """Says which tables have values that an update may leave out, or rows that go without a word."""
        with self.database.session() as session:
            tables = self.database.tables(session, self.publication, self.tables)
        for table in tables:
            if table.is_partitioned:
                self.emit(
                    "warning",
                    f"{table} is partitioned. Postgres does not say when one of its partitions is truncated, dropped, "
                    "detached or attached: the rows stay in the log, or never come to it. DELETE the rows before, or "
                    "take another snapshot afterwards, with --new-snapshot.",
                    table=str(table),
                )
            if table.has_values_apart and table.identity != "f":
                self.emit(
                    "warning",
                    f"{table} has large values, stored apart (TOAST). An update that does not change one omits it, "
                    "and __debezium_unavailable_value stands in its place: silver takes the value "
                    "from before, other readers of the log have none. To have it: "
                    f"ALTER TABLE {table} REPLICA IDENTITY FULL",
                    table=str(table),
                )

    def emit_snapshot(self, table: Table, count: int) -> None:
        self.emit("snapshot", f"{table}: {count:,} rows", table=str(table), rows=count)

    def emit(self, kind: str, message: str, **detail: Any) -> None:
        self.listener(Progress(kind, message, detail))


@dataclass
class Stream:
    """Follows a slot. What it was sent is confirmed only when it is durable in the log, a transaction at a time."""

    capture: Capture
    envelopes: Envelopes
    topics: dict[TableName, str]
    batch: Batch
    appended: int = 0
    transactions: int = 0
    # The end of the last transaction that was read whole, and the position up to which the server may discard WAL.
    read_lsn: int = 0
    confirmed_lsn: int = 0
    warned: set[str] = field(default_factory=set)
    reported: float = 0.0

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Streams until stopped, or (`once`) until all that is committed now is confirmed."""
        database, slot = self.capture.database, self.capture.slot
        until_lsn = database.end_of_wal() if once else None
        try:
            with (
                database.session() as session,
                database.replication() as connection,
                connection.cursor() as cursor,
            ):
                cursor.start_replication(
                    slot_name=slot,
                    decode=False,
                    status_interval=10,
                    options={"proto_version": "1", "publication_names": quoted(self.capture.publication)},
                )
                self.capture.emit("streaming", "following the changes")
                self.follow(cursor, session, stop, until_lsn)
                self.report(session)
        except PostgresError as error:
            # A slot that is invalidated ends the connection of its reader, which does not say why.
            with contextlib.suppress(PostgresError), database.session() as session:
                require_slot(slot, slot_of(session, slot))
            raise SluiceError(f"{error} Start again: the capture goes on where it stopped.") from error
        self.capture.emit("done", f"{self.appended:,} records appended from the stream", records=self.appended)

    def follow(
        self, cursor: "ReplicationCursor", session: "Connection", stop: threading.Event, until_lsn: int | None
    ) -> None:
        while True:
            message = cursor.read_message()
            if message is not None:
                self.take(cursor, message)
            if self.envelopes.transaction is None:
                # Transactions come in the order of their commits; without one to read, the server says how far it is.
                reached_lsn = max(cursor.wal_end or 0, self.read_lsn) if message is None else self.read_lsn
                if stop.is_set() or (until_lsn is not None and reached_lsn >= until_lsn):
                    self.settle(cursor)
                    return
                if message is None:
                    self.idle(cursor, ask=until_lsn is not None)
            if message is None:
                self.wait(cursor)
            if time.monotonic() - self.reported >= self.capture.report_seconds:
                self.report(session)

    def take(self, cursor: "ReplicationCursor", message: "ReplicationMessage") -> None:
        """Takes one message in, and appends what waits when it is much or has waited long."""
        if message.data_start <= self.confirmed_lsn and self.read_lsn > self.confirmed_lsn:
            # A transaction that began before the last confirmed one ended. psycopg2 takes a message before the
            # confirmed position for a processed one, and then confirms by itself all that the server says it has sent:
            # what was read before must be durable first.
            self.settle(cursor)
        decoded = decode(message.payload)
        for table, record in self.envelopes.records(decoded, message.data_start):
            self.batch.add(self.topics[table], record)
        if isinstance(decoded, Commit):
            self.read_lsn = decoded.end_lsn
            self.transactions += 1
            if self.batch.is_full or self.batch.age_seconds >= linger_seconds:
                self.settle(cursor)
        elif self.batch.is_full:
            # A large transaction: it is committed, so it may go to the log in parts, but is confirmed only at its end.
            self.appended += self.batch.append()
        self.warn_of_unavailable()

    def settle(self, cursor: "ReplicationCursor") -> None:
        """Makes durable what was read, and only then confirms it to the server."""
        self.appended += self.batch.append()
        self.confirm(cursor, self.read_lsn)

    def idle(self, cursor: "ReplicationCursor", *, ask: bool) -> None:
        """Nothing to read now: appends what has waited, and confirms what concerned other tables."""
        if self.batch.age_seconds >= linger_seconds:
            self.settle(cursor)
        if not self.batch.count:
            # All that the server has sent is durable, and what it passed over were changes of other tables.
            self.confirm(cursor, max(cursor.wal_end or 0, self.read_lsn))
        if ask:
            # How far it is, when there is nothing to send.
            send_feedback(cursor, reply=True)

    def confirm(self, cursor: "ReplicationCursor", lsn: int) -> None:
        if lsn > self.confirmed_lsn:
            self.confirmed_lsn = lsn
            send_feedback(cursor, write_lsn=lsn, flush_lsn=lsn, apply_lsn=lsn)

    def wait(self, cursor: "ReplicationCursor") -> None:
        """Waits until the server sends something, or something is due here."""
        due = linger_seconds - self.batch.age_seconds if self.batch.count else wait_seconds_max
        select.select([cursor], [], [], max(0.0, min(due, wait_seconds_max)))

    def warn_of_unavailable(self) -> None:
        for column in self.envelopes.unavailable - self.warned:
            table = column.rpartition(".")[0]
            self.capture.emit(
                "warning",
                f"An update of {table} does not carry {column}, which is stored apart and did not change; "
                "__debezium_unavailable_value stands in its place: silver takes the value from before, other readers "
                "of the log have none. To have it: "
                f"ALTER TABLE {table} REPLICA IDENTITY FULL",
                column=column,
            )
        self.warned |= self.envelopes.unavailable

    def report(self, session: "Connection") -> None:
        """Says how far the capture is and how much WAL its slot retains; warns when that is much."""
        self.reported = time.monotonic()
        slot = require_slot(self.capture.slot, slot_of(session, self.capture.slot))
        retained = slot.retained_bytes or 0
        self.capture.emit(
            "progress",
            f"{self.appended:,} records of {self.transactions:,} transactions; confirmed "
            f"{lsn_text(slot.confirmed_lsn)}; the slot retains {megabytes(retained)} of WAL",
            records=self.appended,
            transactions=self.transactions,
            confirmed_lsn=slot.confirmed_lsn,
            retained_wal_bytes=retained,
            wal_status=slot.wal_status,
            wal_bytes_left=slot.left_bytes,
        )
        if retained > self.capture.retained_bytes_warned or slot.wal_status == "unreserved":
            left = "" if slot.left_bytes is None else f", and {megabytes(slot.left_bytes)} more will invalidate it"
            self.capture.emit(
                "warning",
                f"The slot {self.capture.slot} retains {megabytes(retained)} of WAL{left}. Look for a transaction "
                "that is open for long (pg_stat_activity), or for more changes than one reader can write.",
                retained_wal_bytes=retained,
                wal_status=slot.wal_status,
                wal_bytes_left=slot.left_bytes,
            )


def topics_of(prefix: str, tables: Sequence[TableName]) -> dict[TableName, str]:
    """The topic of each table; a UsageError where two would share one, or one cannot be named."""
    topics: dict[TableName, str] = {}
    for table in tables:
        topic = re.sub(r"[^a-z0-9_]", "_", (f"{prefix}_{table[1]}" if prefix else table[1]).lower())
        if is_reserved(topic):
            raise UsageError(
                f"{'.'.join(table)} would go to the topic {topic}, and topics that begin with {reserved_prefix} are "
                "reserved for Sluice; give another --topic-prefix."
            )
        if not topic_name.fullmatch(topic):
            raise UsageError(
                f"{'.'.join(table)} would go to the topic '{topic}', which is no name; give a --topic-prefix."
            )
        if topic in topics.values():
            raise UsageError(
                f"Two tables would go to the topic {topic}. Capture them apart, with a --topic-prefix, --slot and "
                "--publication for each."
            )
        topics[table] = topic
    return topics


def send_feedback(cursor: "ReplicationCursor", **feedback: Any) -> None:
    """Sends feedback now, instead of at the next keepalive."""
    cursor.send_feedback(**feedback, force=True)  # type: ignore[no-untyped-call]


def lsn_text(lsn: int | None) -> str:
    """A position as Postgres writes it."""
    return "nothing" if lsn is None else f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
