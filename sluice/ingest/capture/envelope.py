"""Changes as records in Debezium's envelope, as its Postgres connector sends them in JSON without schemas."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import orjson

from sluice.errors import SluiceError
from sluice.ingest.capture import values
from sluice.ingest.capture.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Type,
    Unchanged,
    Update,
    Values,
)
from sluice.log import Record

own_version = version("sluice-lakehouse")
unix_epoch = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
TableName = tuple[str, str]


@dataclass(frozen=True)
class Origin:
    """Where changes come from, as `source` says it."""

    prefix: str
    database: str

    def source(self, table: TableName, at: datetime, lsn: int, **more: Any) -> Row:
        """The envelope's `source`."""
        micros = micros_of(at)
        return {
            "version": own_version,
            "connector": "postgresql",
            "name": self.prefix,
            "ts_ms": micros // 1000,
            "snapshot": "false",
            "db": self.database,
            "sequence": None,
            "ts_us": micros,
            "ts_ns": micros * 1000,
            "schema": table[0],
            "table": table[1],
            "txId": None,
            "lsn": lsn,
            "xmin": None,
            **more,
        }

    def of_snapshot(
        self, op: str, table: TableName, at: datetime, lsn: int, *, row: Row | None = None, key: str | None = None
    ) -> Record:
        """A row of a snapshot; or without a row, something about the whole table."""
        return Record(envelope(op, None, row, self.source(table, at, lsn, snapshot="true"), None), key=key)


def envelope(op: str, before: Row | None, after: Row | None, source: Row, transaction: Row | None) -> bytes:
    now = time.time_ns()
    return orjson.dumps(
        {
            "before": before,
            "after": after,
            "source": source,
            "transaction": transaction,
            "op": op,
            "ts_ms": now // 1_000_000,
            "ts_us": now // 1000,
            "ts_ns": now,
        }
    )


def key_text(key: Iterable[str], row: Mapping[str, Any]) -> str:
    """The key of a record: the primary key as JSON."""
    return orjson.dumps({name: row[name] for name in key}).decode()


def micros_of(at: datetime) -> int:
    elapsed = at - unix_epoch
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds


@dataclass(frozen=True)
class Captured:
    """A captured table as the changes that follow have it."""

    table: TableName
    relation: Relation
    key: tuple[str, ...]
    converts: tuple[values.Convert, ...]


@dataclass
class Envelopes:
    """Turns the messages of a stream into records, by table; it tracks the tables and the current transaction.

    `key_of` gives the primary key of a table whose replica identity does not contain it. `unavailable` collects the
    columns whose value was left out of an update, because it is stored apart and did not change.
    """

    origin: Origin
    tables: frozenset[TableName]
    key_of: Callable[[Relation], tuple[str, ...]]
    unavailable: set[str] = field(default_factory=set)
    transaction: Begin | None = None
    last_commit_lsn: int | None = None
    total_order: int = 0
    orders: Counter[TableName] = field(default_factory=Counter)
    relations: dict[int, Captured] = field(default_factory=dict)
    types: dict[int, values.Convert] = field(default_factory=dict)

    def records(self, message: Message | None, lsn: int) -> list[tuple[TableName, Record]]:
        """The records that a message at a position of the log stands for, in order."""
        match message:
            case Begin():
                self.transaction, self.total_order = message, 0
                self.orders.clear()
            case Commit():
                self.transaction, self.last_commit_lsn = None, message.end_lsn
            case Type():
                if message.schema == "pg_catalog":
                    self.types[message.oid] = values.by_name.get(message.name, str)
            case Relation():
                self.learn(message)
            case Truncate():
                found = (self.relations.get(oid) for oid in message.relation_oids)
                return [self.record(each, "t", None, None, lsn, key=None) for each in found if each]
            case Insert() | Update() | Delete() if message.relation_oid in self.relations:
                return self.change(self.relations[message.relation_oid], message, lsn)
        return []

    def learn(self, relation: Relation) -> None:
        """Remembers a table as it is from here on; tables that are not captured are passed over."""
        table = (relation.schema, relation.table)
        if table not in self.tables:
            if known := self.relations.get(relation.oid):
                raise SluiceError(
                    f"{'.'.join(known.table)} was renamed to {'.'.join(table)}. Rename it back, or capture it by its "
                    "new name from a new snapshot on, with --new-snapshot."
                )
            return
        if relation.identity == "default":
            key = tuple(column.name for column in relation.columns if column.in_identity)
        else:
            key = self.key_of(relation)
        require_key(relation, key)
        converts = tuple(self.convert(column.type_oid) for column in relation.columns)
        self.relations[relation.oid] = Captured(table, relation, key, converts)

    def convert(self, oid: int) -> values.Convert:
        return values.by_oid.get(oid) or self.types.get(oid, str)

    def change(self, captured: Captured, message: Insert | Update | Delete, lsn: int) -> list[tuple[TableName, Record]]:
        """The records of one changed row."""
        match message:
            case Insert():
                after = self.row(captured, message.new, None)
                return [self.record(captured, "c", None, after, lsn, key=key_text(captured.key, after))]
            case Delete():
                return self.deleted(captured, self.row(captured, message.old, None), lsn)
            case Update():
                available = None if message.old is None else available_old(captured, message)
                after = self.row(captured, message.new, available)
                before = None if message.old is None else self.row(captured, message.old, None)
                key = key_text(captured.key, after)
                if before is None or key_text(captured.key, before) == key:
                    return [self.record(captured, "u", before, after, lsn, key=key)]
                # A new key is a new row: the old one is deleted, with a note of its new key, and the new one created.
                gone = self.deleted(captured, before, lsn, {"__debezium.newkey": key})
                headers = {"__debezium.oldkey": key_text(captured.key, before)}
                return [*gone, self.record(captured, "c", None, after, lsn, key=key, headers=headers)]

    def deleted(
        self, captured: Captured, before: Row, lsn: int, headers: Mapping[str, str] | None = None
    ) -> list[tuple[TableName, Record]]:
        """A delete, and the tombstone after it, by which a log that is compacted forgets the key."""
        key = key_text(captured.key, before)
        delete = self.record(captured, "d", before, None, lsn, key=key, headers=headers)
        return [delete, (captured.table, Record(None, key=key))]

    def record(
        self,
        captured: Captured,
        op: str,
        before: Row | None,
        after: Row | None,
        lsn: int,
        *,
        key: str | None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[TableName, Record]:
        """A record with its place in the transaction under way."""
        if self.transaction is None:
            raise SluiceError("Postgres sent a change outside of a transaction, which pgoutput never does.")
        transaction = self.transaction
        self.total_order += 1
        self.orders[captured.table] += 1
        source = self.origin.source(
            captured.table,
            transaction.committed_at,
            lsn,
            sequence=orjson.dumps([self.last_commit_lsn and str(self.last_commit_lsn), str(lsn)]).decode(),
            txId=transaction.transaction_id,
        )
        place = {
            "id": f"{transaction.transaction_id}:{transaction.commit_lsn}",
            "total_order": self.total_order,
            "data_collection_order": self.orders[captured.table],
        }
        return captured.table, Record(envelope(op, before, after, source, place), key=key, headers=headers or {})

    def row(self, captured: Captured, found: Values, available: Values | None) -> Row:
        """The row of a tuple; a value that was not sent is taken from the old row, where that has it."""
        row: Row = {}
        for index, (column, convert) in enumerate(zip(captured.relation.columns, captured.converts, strict=True)):
            value = found[index]
            if isinstance(value, Unchanged) and available is not None:
                value = available[index]
            if isinstance(value, Unchanged):
                self.unavailable.add(f"{captured.relation.schema}.{captured.relation.table}.{column.name}")
                row[column.name] = values.placeholder(convert)
            else:
                row[column.name] = None if value is None else convert(value)
        return row


def available_old(captured: Captured, message: Update) -> Values:
    """The old values that were sent; what is not in the replica identity is null there, and is not known."""
    old = message.old or ()
    if message.old_is_whole:
        return old
    columns = captured.relation.columns
    return tuple(
        value if column.in_identity else Unchanged.UNCHANGED for value, column in zip(old, columns, strict=True)
    )


def require_key(relation: Relation, key: tuple[str, ...]) -> None:
    """A SluiceError where the key of a change cannot be known."""
    name = f"{relation.schema}.{relation.table}"
    if not key:
        raise SluiceError(
            f"{name} has no primary key, so its rows cannot be told apart. Give it one: ALTER TABLE {name} "
            "ADD PRIMARY KEY (…), and take a new snapshot with --new-snapshot."
        )
    identity = {column.name for column in relation.columns if column.in_identity}
    if relation.identity in ("index", "nothing") and not identity.issuperset(key):
        raise SluiceError(
            f"The replica identity of {name} lacks its primary key ({', '.join(key)}), so a delete does not say "
            f"which row it was. Set another: ALTER TABLE {name} REPLICA IDENTITY FULL, or DEFAULT, and take "
            "a new snapshot with --new-snapshot."
        )
