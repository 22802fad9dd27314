"""The messages of the Postgres protocol 3.0, read from bytes and written to them."""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Found = TypeVar("Found")
startup_bytes_max = 10_000
message_bytes_max = 16 * 2**20
int32 = struct.Struct("!i").pack
protocol_3, cancel_code, tls_code, gss_code = 3, 80877102, 80877103, 80877104


class ProtocolError(Exception):
    """The client sent what is no message of the protocol; `state` is the SQLSTATE."""

    def __init__(self, text: str, state: str = "08P01") -> None:
        super().__init__(text)
        self.state = state


class Fields:
    """Reads the fields of a message; a ProtocolError when there are too few bytes, or some are left."""

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.body):
            raise ProtocolError("the message is too short")
        self.at += count
        return self.body[self.at - count : self.at]

    def int16(self) -> int:
        return int(struct.unpack("!h", self.take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack("!i", self.take(4))[0])

    def text(self) -> str:
        """Text up to a zero byte."""
        end = self.body.find(b"\0", self.at)
        if end < 0:
            raise ProtocolError("a text in the message has no end")
        found = self.take(end - self.at)
        self.at += 1
        return decoded(found)

    def value(self) -> bytes | None:
        length = self.int32()
        return None if length == -1 else self.take(length)

    def many(self, read: "Callable[[], int]") -> list[int]:
        return [read() for _ in range(self.count())]

    def count(self) -> int:
        found = self.int16()
        if found < 0:
            raise ProtocolError("a count in the message is negative")
        return found

    def end(self) -> None:
        if self.at != len(self.body):
            raise ProtocolError("the message is too long")


def decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a text in the message is not UTF-8", "22021") from None


@dataclass(frozen=True)
class Startup:
    """The first message: what it asks for (`code`), the parameters, and the key of what is to be cancelled."""

    code: int
    parameters: dict[str, str]
    key: bytes = b""


def startup(body: bytes) -> Startup:
    """The first message of a connection, without its length."""
    fields = Fields(body)
    code = fields.int32()
    if code == cancel_code:
        found = Startup(code, {}, fields.take(8))
    elif code in (tls_code, gss_code):
        found = Startup(code, {})
    elif code >> 16 == protocol_3:
        parameters = {}
        while name := fields.text():
            parameters[name] = fields.text()
        found = Startup(protocol_3, parameters)
    else:
        raise ProtocolError(f"the protocol {code >> 16}.{code & 0xFFFF} is not known here", "0A000")
    fields.end()
    return found


@dataclass(frozen=True)
class Parse:
    name: str
    sql: str
    types: Sequence[int]


@dataclass(frozen=True)
class Bind:
    portal: str
    statement: str
    formats: Sequence[int]
    values: Sequence[bytes | None]
    result_formats: Sequence[int]


@dataclass(frozen=True)
class Named:
    """Describe and Close: of a statement (`S`) or a portal (`P`)."""

    kind: str
    name: str


@dataclass(frozen=True)
class Execute:
    portal: str
    rows_max: int


def query_of(body: bytes) -> str:
    return whole(body, lambda fields: fields.text())


def parse_of(body: bytes) -> Parse:
    return whole(body, lambda fields: Parse(fields.text(), fields.text(), fields.many(fields.int32)))


def bind_of(body: bytes) -> Bind:
    def read(fields: Fields) -> Bind:
        portal, statement, formats = fields.text(), fields.text(), fields.many(fields.int16)
        values = [fields.value() for _ in range(fields.count())]
        return Bind(portal, statement, formats, values, fields.many(fields.int16))

    found = whole(body, read)
    if {*found.formats, *found.result_formats} - {0, 1}:
        raise ProtocolError("a format is neither text nor binary")
    if len(found.formats) not in (0, 1, len(found.values)):
        raise ProtocolError("there are not as many formats as parameters")
    return found


def named_of(body: bytes) -> Named:
    found = whole(body, lambda fields: Named(chr(fields.take(1)[0]), fields.text()))
    if found.kind not in ("S", "P"):
        raise ProtocolError("it is neither a statement nor a portal")
    return found


def execute_of(body: bytes) -> Execute:
    return whole(body, lambda fields: Execute(fields.text(), fields.int32()))


def whole(body: bytes, read: Callable[[Fields], Found]) -> Found:
    fields = Fields(body)
    found = read(fields)
    fields.end()
    return found


def message(kind: str, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    return value.replace("\0", "").encode(errors="replace") + b"\0"


def error(severity: str, state: str, said: str, hint: str = "") -> bytes:
    fields = {"S": severity, "V": severity, "C": state, "M": said} | ({"H": hint} if hint else {})
    return message("E", *[name.encode() + text(value) for name, value in fields.items()], b"\0")


@dataclass(frozen=True)
class Column:
    """A column of a result: its type as Postgres numbers it, and the bytes of a value (-1: they vary)."""

    name: str
    oid: int
    size: int


def row_description(columns: Sequence[Column], formats: Sequence[int]) -> bytes:
    parts = [struct.pack("!h", len(columns))]
    for column, form in zip(columns, formats, strict=True):
        parts += [text(column.name), struct.pack("!ihihih", 0, 0, column.oid, column.size, -1, form)]
    return message("T", *parts)


def data_row(values: Iterable[bytes | None]) -> bytes:
    parts = [b"\xff\xff\xff\xff" if each is None else int32(len(each)) + each for each in values]
    return message("D", struct.pack("!h", len(parts)), *parts)
