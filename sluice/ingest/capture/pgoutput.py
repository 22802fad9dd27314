"""Decode the messages of pgoutput, the logical decoding that Postgres has by itself (protocol 1); pure functions."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Literal

from sluice.errors import SluiceError

epoch = datetime(2000, 1, 1, tzinfo=UTC)


class Unchanged(Enum):
    """Stands for a value that was not sent: it is stored apart from its row (TOAST), and did not change."""

    UNCHANGED = "unchanged"


unchanged = Unchanged.UNCHANGED
Values = tuple[str | Unchanged | None, ...]
Identity = Literal["default", "nothing", "full", "index"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the changes after it have it; `in_identity` when its old value comes with updates and deletes."""

    name: str
    type_oid: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message of a committed transaction."""

    commit_lsn: int
    committed_at: datetime
    transaction_id: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The last message of a transaction; `end_lsn` is the position to confirm."""

    commit_lsn: int
    end_lsn: int
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table looks like from here on; it comes before its first change, and again when the table was altered."""

    oid: int
    schema: str
    table: str
    identity: Identity
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """A type that is not built in; for a domain the name of the type beneath it."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation_oid: int
    new: Values


@dataclass(frozen=True, slots=True)
class Update:
    """`old` is the whole row (`old_is_whole`), or nulls around the identity's columns, or was not sent."""

    relation_oid: int
    old: Values | None
    old_is_whole: bool
    new: Values


@dataclass(frozen=True, slots=True)
class Delete:
    relation_oid: int
    old: Values
    old_is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_oids: tuple[int, ...]


Message = Begin | Commit | Relation | Type | Insert | Update | Delete | Truncate


def decode(payload: bytes) -> Message | None:
    """The message of a payload; None for those that do not concern tables (origins, messages of applications).

    Raises a SluiceError for bytes that protocol 1 does not know.
    """
    reader, kind = Reader(payload), payload[:1]
    reader.place = 1
    if kind in (b"O", b"M"):
        return None
    if kind not in decoders:
        raise SluiceError(f"Postgres sent a message of the kind {kind!r}, which pgoutput's protocol 1 does not have.")
    try:
        message = decoders[kind](reader)
    except (struct.error, ValueError, KeyError, OverflowError) as error:
        raise unreadable(kind, str(error)) from error
    if reader.place != len(payload):
        raise unreadable(kind, f"{len(payload) - reader.place} bytes follow it")
    return message


def unreadable(kind: int | bytes, why: str) -> SluiceError:
    return SluiceError(
        f"Postgres sent a message of the kind {kind!r} that pgoutput's protocol 1 does not allow: {why}. "
        "Nothing was acknowledged; start again, and report it if it comes again."
    )


class Reader:
    """Takes numbers, texts and rows from the front of a payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.place = 0

    def number(self, form: str) -> int:
        return int(self.take(form))

    def take(self, form: str) -> "int | bytes":
        """One value of a struct format, in network order."""
        (value,) = struct.unpack_from(f">{form}", self.payload, self.place)
        self.place += struct.calcsize(f">{form}")
        return value  # type: ignore[no-any-return]

    def bytes(self, count: int) -> bytes:
        """So many bytes; a ValueError when there are fewer."""
        found = self.payload[self.place : self.place + count]
        if len(found) < count:
            raise ValueError(f"it has {len(found)} of {count} bytes")
        self.place += count
        return found

    def text(self) -> str:
        """A text that ends with a zero byte."""
        end = self.payload.index(b"\0", self.place)
        found = decoded(self.payload[self.place : end])
        self.place = end + 1
        return found

    def schema(self) -> str:
        """The name of a schema; that of the built-in one is not spelled out."""
        return self.text() or "pg_catalog"

    def time(self) -> datetime:
        return epoch + timedelta(microseconds=self.number("q"))

    def values(self) -> Values:
        return tuple(self.value() for _ in range(self.number("H")))

    def value(self) -> str | Unchanged | None:
        match self.take("c"):
            case b"n":
                return None
            case b"u":
                return unchanged
            case b"t":
                return decoded(self.bytes(self.number("I")))
            case kind:
                raise SluiceError(f"Postgres sent a value of the kind {kind!r}; only text was asked for.")


def decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise SluiceError(
            "Postgres sent text that is not UTF-8, as a database with the encoding SQL_ASCII may. "
            "Put the text right, or move the tables to a database with the encoding UTF8."
        ) from error


def begin(reader: Reader) -> Begin:
    return Begin(reader.number("Q"), reader.time(), reader.number("I"))


def commit(reader: Reader) -> Commit:
    reader.take("B")  # flags, of which there are none
    return Commit(reader.number("Q"), reader.number("Q"), reader.time())


def relation(reader: Reader) -> Relation:
    oid, schema, table = reader.number("I"), reader.schema(), reader.text()
    identities: dict[int | bytes, Identity] = {b"d": "default", b"n": "nothing", b"f": "full", b"i": "index"}
    identity = identities[reader.take("c")]
    return Relation(oid, schema, table, identity, tuple(column(reader) for _ in range(reader.number("H"))))


def column(reader: Reader) -> Column:
    flags, name, type_oid = reader.number("B"), reader.text(), reader.number("I")
    reader.take("i")  # the type's modifier: the text of a value has its length and scale already
    return Column(name, type_oid, in_identity=bool(flags & 1))


def type_(reader: Reader) -> Type:
    return Type(reader.number("I"), reader.schema(), reader.text())


def insert(reader: Reader) -> Insert:
    oid = reader.number("I")
    reader.take("c")
    return Insert(oid, reader.values())


def update(reader: Reader) -> Update:
    oid, kind = reader.number("I"), reader.take("c")
    old = None
    if kind in (b"K", b"O"):
        old = reader.values()
        reader.take("c")
    return Update(oid, old, kind == b"O", reader.values())


def delete(reader: Reader) -> Delete:
    oid, kind = reader.number("I"), reader.take("c")
    return Delete(oid, reader.values(), kind == b"O")


def truncate(reader: Reader) -> Truncate:
    count = reader.number("I")
    reader.take("B")  # whether it cascades: the tables that it reached are named
    return Truncate(tuple(reader.number("I") for _ in range(count)))


decoders: dict[int | bytes, Callable[[Reader], Message]] = {
    b"B": begin,
    b"C": commit,
    b"R": relation,
    b"Y": type_,
    b"I": insert,
    b"U": update,
    b"D": delete,
    b"T": truncate,
}
