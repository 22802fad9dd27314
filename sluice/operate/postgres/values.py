"""Values of DuckDB as Postgres writes them, as text and in binary, and the parameters of a client as SQL."""

import json
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from sluice.operate.postgres.wire import Column, ProtocolError, decoded

epoch = datetime(2000, 1, 1)  # noqa: DTZ001 - timestamps of Postgres count from here, with and without a zone
text_oid, json_oid, numeric_oid, interval_oid, single_oid = 25, 114, 1700, 1186, 700
# By the name that DuckDB has for a type: the one of Postgres, and the bytes of a value.
types: dict[str, tuple[int, int]] = {
    "BOOLEAN": (16, 1),
    "TINYINT": (21, 2),
    "SMALLINT": (21, 2),
    "UTINYINT": (21, 2),
    "USMALLINT": (23, 4),
    "INTEGER": (23, 4),
    "UINTEGER": (20, 8),
    "BIGINT": (20, 8),
    "UBIGINT": (numeric_oid, -1),
    "HUGEINT": (numeric_oid, -1),
    "UHUGEINT": (numeric_oid, -1),
    "FLOAT": (700, 4),
    "DOUBLE": (701, 8),
    "VARCHAR": (text_oid, -1),
    "BLOB": (17, -1),
    "DATE": (1082, 4),
    "TIME": (1083, 8),
    "TIMESTAMP": (1114, 8),
    "TIMESTAMP WITH TIME ZONE": (1184, 8),
    "INTERVAL": (interval_oid, 16),
    "UUID": (2950, 16),
    "JSON": (json_oid, -1),
}
names = {
    16: "bool",
    17: "bytea",
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    114: "json",
    700: "float4",
    701: "float8",
}
names |= {1082: "date", 1083: "time", 1114: "timestamp", 1184: "timestamptz", 1186: "interval", 1700: "numeric"}
names |= {2950: "uuid"}
arrays = {16: 1000, 17: 1001, 21: 1005, 23: 1007, 20: 1016, 700: 1021, 701: 1022, 25: 1009, 1082: 1182}
arrays |= {1114: 1115, 1184: 1185, 1700: 1231, 2950: 2951}
# Of the types of Postgres, those by which a parameter gets a type in SQL. Others are typed by where they stand.
sql_types = {16: "BOOLEAN", 20: "BIGINT", 21: "SMALLINT", 23: "INTEGER", 700: "FLOAT", 701: "DOUBLE"}
sql_types |= {1082: "DATE", 1114: "TIMESTAMP", 1184: "TIMESTAMPTZ", 2950: "UUID"}


def column_of(name: str, kind: str) -> Column:
    """A column of a result, from the name that DuckDB has for its type."""
    if kind.endswith("[]") and not kind.endswith("[][]"):
        inner = column_of(name, kind.removesuffix("[]"))
        if inner.oid in arrays:
            return Column(name, arrays[inner.oid], -1)
    if kind.startswith("DECIMAL"):
        return Column(name, numeric_oid, -1)
    if kind.startswith("TIMESTAMP_"):
        return Column(name, *types["TIMESTAMP"])
    # A struct or a map, and lists of them, are JSON.
    nested = kind.startswith(("STRUCT", "MAP", "UNION")) or kind.endswith("]")
    return Column(name, *types.get(kind, (json_oid if nested else text_oid, -1)))


def as_text(value: Any, oid: int) -> bytes | None:
    """A value as Postgres prints it."""
    if value is None:
        return None
    if oid == json_oid:
        return (value if isinstance(value, str) else json.dumps(value, default=plain)).encode()
    if oid == single_oid and isinstance(value, float) and math.isfinite(value):
        return shortest(value).encode()
    return printed(value).encode()


def encoder(oid: int, form: int) -> Callable[[Any], bytes | None]:
    """What encodes the values of a column, other than null; chosen once for a column, since values are many."""
    if form:
        return partial(as_binary, oid=oid)
    return plain_texts.get(oid, partial(as_text, oid=oid))


plain_texts: dict[int, Callable[[Any], bytes | None]] = {
    16: lambda value: b"t" if value else b"f",
    20: lambda value: b"%d" % value,
    21: lambda value: b"%d" % value,
    23: lambda value: b"%d" % value,
    text_oid: lambda value: (value if isinstance(value, str) else printed(value)).encode(),
}


def shortest(value: float) -> str:
    """The shortest text of a number of single precision."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 10))
    return next(text for text in texts if struct.pack("!f", float(text)) == struct.pack("!f", value))


def printed(value: Any) -> str:  # noqa: PLR0911 - a line for each kind
    match value:
        case bool():
            return "t" if value else "f"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return repr(value).removesuffix(".0")
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            text = (value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)).isoformat(" ")
            return (text.rstrip("0") if value.microsecond else text) + ("" if value.tzinfo is None else "+00")
        case timedelta():
            return f"{value.days} days {value.seconds // 3600:02}:{value.seconds // 60 % 60:02}:{seconds_of(value)}"
        case list() | tuple():
            return "{" + ",".join("NULL" if each is None else element(printed(each)) for each in value) + "}"
    return str(value)


def seconds_of(value: timedelta) -> str:
    return f"{value.seconds % 60:02}" + (f".{value.microseconds:06}" if value.microseconds else "")


def element(text: str) -> str:
    """An element of an array, quoted."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def as_binary(value: Any, oid: int) -> bytes | None:
    """A value in Postgres' binary form; a ProtocolError for a type that is sent as text alone."""
    if value is None:
        return None
    if oid in (text_oid, json_oid):
        return as_text(value, oid)
    if oid not in binary:
        raise ProtocolError(f"the type {oid} is sent as text, not in binary", "0A000")
    return binary[oid](value)


def microseconds(value: datetime) -> bytes:
    since = (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value) - epoch
    return struct.pack("!q", since // timedelta(microseconds=1))


def numeric(value: Any) -> bytes:
    """A number as groups of four decimal digits, as Postgres keeps it."""
    found = Decimal(value)
    if found.is_nan():
        return struct.pack("!hhHh", 0, 0, 0xC000, 0)
    sign, digits, exponent = found.as_tuple()
    scale = max(0, -int(exponent))
    # Both sides of the point are filled up to whole groups.
    text = "".join(map(str, digits)) + "0" * max(0, int(exponent))
    whole, fraction = (text[: len(text) - scale], text[len(text) - scale :].rjust(scale, "0")) if scale else (text, "")
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int((whole + fraction)[at : at + 4]) for at in range(0, len(whole + fraction), 4)]
    return struct.pack(f"!hhHh{len(groups)}h", len(groups), len(whole) // 4 - 1, 0x4000 if sign else 0, scale, *groups)


binary: dict[int, Callable[[Any], bytes]] = {
    16: lambda value: b"\1" if value else b"\0",
    17: bytes,
    20: lambda value: struct.pack("!q", value),
    21: lambda value: struct.pack("!h", value),
    23: lambda value: struct.pack("!i", value),
    700: lambda value: struct.pack("!f", value),
    701: lambda value: struct.pack("!d", value),
    1082: lambda value: struct.pack("!i", (value - epoch.date()).days),
    1114: microseconds,
    1184: microseconds,
    numeric_oid: numeric,
    2950: lambda value: value.bytes,
}


def literal(value: bytes | None, oid: int, form: int) -> str:
    """A parameter as a literal of SQL, whatever is in it."""
    if value is None:
        return "NULL"
    found = decoded(value) if form == 0 else from_binary(value, oid)
    if "\0" in found:
        raise ProtocolError("a parameter has a zero byte", "22021")
    quoted = "'" + found.replace("'", "''") + "'"
    return f"CAST({quoted} AS {sql_types[oid]})" if oid in sql_types else quoted


def null_of(oid: int) -> str:
    """A parameter of a type, which has no value yet."""
    return f"CAST(NULL AS {sql_types[oid]})" if oid in sql_types else "NULL"


def from_binary(value: bytes, oid: int) -> str:
    """The text of a parameter that was sent in binary."""
    form = {16: "!?", 20: "!q", 21: "!h", 23: "!i", 26: "!I", 700: "!f", 701: "!d", 1082: "!i", 1114: "!q", 1184: "!q"}
    if oid in (0, text_oid, 1043, json_oid):
        return decoded(value)
    if oid == 2950 and len(value) == 16:
        return str(UUID(bytes=value))
    if oid not in form:
        raise ProtocolError(f"a parameter of the type {oid} must be sent as text", "0A000")
    try:
        (found,) = struct.unpack(form[oid], value)
        if oid == 1082:
            return str(epoch.date() + timedelta(days=found))
        if oid in (1114, 1184):
            return str(epoch + timedelta(microseconds=found)) + ("+00" if oid == 1184 else "")
    except (struct.error, OverflowError):
        raise ProtocolError(f"a parameter is no value of the type {oid}", "22P03") from None
    return str(found)


__all__ = ["as_binary", "as_text", "column_of", "encoder", "literal", "null_of"]
