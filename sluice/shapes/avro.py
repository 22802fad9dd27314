"""Avro values as the JSON that the same event would have been, or the rule that they break, in workers of Spark.

Times become RFC 3339, decimals their digits, bytes base64, enumerations their symbols, and maps lists of keys and
values, so that one declaration means the same for every format, and one parser judges all of them.
"""

import base64
import io
import json
import math
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any

from sluice.model.avro import Parsed, UnusableSchema, ours, parsed
from sluice.shapes.avro_bytes import Walk, require_value, walk_of

malformed, incompatible, unusable, unknown = (
    "malformed_avro",
    "incompatible_schema",
    "unusable_schema",
    "unknown_schema",
)
no_schema_id, too_large, invalid_utf8 = "no_schema_id", "record_too_large", "invalid_utf8"
faults = (malformed, incompatible, unusable, too_large, invalid_utf8)
faults_of_wire_format = (no_schema_id, unknown)
header_bytes = 5
# Names of fields are in JSON and not in Avro, so it may be longer; what is much longer is made to be.
text_bytes_per_byte = 8

Decoded = tuple[str | None, str | None]
epoch, first_day = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)


def decoded(body: bytes, writer: str, reader: str | None, bytes_max: int) -> Decoded:
    """The JSON of a value, or the rule that it breaks. `writer` is the record of its schema, `reader` a schema."""
    from fastavro import schemaless_reader
    from fastavro._read_common import SchemaResolutionError

    written_by, read_by = schema_of(writer), None if reader is None else plain_schema(reader)
    if written_by is None:
        return None, unusable
    try:
        require_value(body, walk_through(writer))
        found = schemaless_reader(io.BytesIO(body), written_by.schema, read_by.schema if read_by else None)
        text = text_in_json(in_json(found))
    except Exception as error:  # noqa: BLE001 - bytes of others fail in any way
        named = {UnicodeDecodeError: invalid_utf8, SchemaResolutionError: incompatible}
        return None, named.get(type(error), malformed)
    return (None, too_large) if len(text) > text_bytes_per_byte * bytes_max else (text, None)


def text_in_json(value: Any) -> str:
    """A value as text; a UnicodeEncodeError where a name in it is no Unicode, which JSON's escapes can write."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    return text


def in_json(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, dict):
        return {name: in_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [in_json(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


@lru_cache(maxsize=256)
def schema_of(record: str) -> Parsed | None:
    """The schema in a record of the topic of schemas; None where values cannot be read by it."""
    register()
    try:
        said = json.loads(record)
        if (said.get("type") or "AVRO") != "AVRO":
            return None
        return parsed(said["schema"], [each["schema"] for each in said.get("references") or ()])
    except (UnusableSchema, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@lru_cache(maxsize=256)
def walk_through(record: str) -> Walk:
    """How values of such a schema are walked through; it is one that they can be read by."""
    found = schema_of(record)
    if found is None:
        raise UnusableSchema("no schema that values can be read by")
    return walk_of(found)


@lru_cache(maxsize=64)
def plain_schema(text: str) -> Parsed:
    register()
    return parsed(text)


def of_micros(micros: int, *, is_local: bool) -> str:
    """A time as RFC 3339; beyond the years 1 to 9999 what is no time."""
    try:
        found = epoch + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros} microseconds"
    return (found.replace(tzinfo=None) if is_local else found).isoformat()


def of_days(days: int) -> str:
    try:
        return (first_day + timedelta(days=days)).isoformat()
    except OverflowError:
        return f"{days} days"


def of_decimal(value: bytes, writer: Mapping[str, Any]) -> str:
    """The digits of a decimal; a ValueError where they are more than its type has."""
    if not value:
        raise ValueError("a number of no bytes")
    scale, unscaled = writer.get("scale", 0), int.from_bytes(value, "big", signed=True)
    if abs(unscaled) >= 10 ** writer["precision"]:
        raise ValueError("a number of more digits than its precision")
    digits = str(abs(unscaled)).zfill(scale + 1)
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"


def is_plain(reader: Any) -> bool:
    """Whether a reader's schema has no logical type, and takes a value as it is encoded."""
    if isinstance(reader, dict):
        return "logicalType" not in reader
    return reader in ("int", "long", "float", "double", "bytes", "string")


def promoted(value: Any, kind: str) -> Any:
    """An encoded value as a reader's plain type has it."""
    if kind == "string" and isinstance(value, bytes):
        return value.decode()
    return value.encode() if kind == "bytes" and isinstance(value, str) else value


def require_same(writer: Mapping[str, Any], reader: Any) -> None:
    """Raises an error of resolution where the reader takes the same bytes for something else."""
    from fastavro._read_common import SchemaResolutionError

    if isinstance(reader, dict) and "logicalType" in reader:
        same = [writer.get(name, 0) == reader.get(name, 0) for name in ("logicalType", "scale")]
        is_time = writer["logicalType"].split("-")[1:2] == reader["logicalType"].split("-")[1:2] == ["timestamp"]
        if not all(same) and not is_time:
            raise SchemaResolutionError(f"{writer['logicalType']} is not {reader['logicalType']}")


Reading = Callable[[Any, Any], Any]
units = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}
readings: dict[str, Reading] = {
    "int-date": lambda value, _: of_days(value),
    "bytes-decimal": of_decimal,
    "fixed-decimal": of_decimal,
    "string-uuid": lambda value, _: value,
    "fixed-uuid": lambda value, _: str(uuid.UUID(bytes=value)),
    "map-map": lambda value, _: [{"key": key, "value": value[key]} for key in sorted(value)],
}
for unit, (times, parts) in units.items():
    for local in ("", "local-"):
        readings[f"long-{local}timestamp-{unit}"] = lambda value, _, times=times, parts=parts, local=local: of_micros(  # type: ignore[misc]
            value * times // parts, is_local=bool(local)
        )


@lru_cache(maxsize=1)
def register() -> None:
    """Tells fastavro how values of our logical types are read."""
    from fastavro.read import LOGICAL_READERS

    for name, reading in readings.items():
        kind, logical = name.split("-", 1)
        LOGICAL_READERS[f"{kind}-{ours}{logical}"] = checked(reading)


def checked(reading: Reading) -> Callable[..., Any]:
    def read(value: Any, writer: Any = None, reader: Any = None) -> Any:
        if is_plain(reader):
            return promoted(value, reader if isinstance(reader, str) else reader["type"])
        require_same(writer, reader)
        return reading(value, writer)

    return read
