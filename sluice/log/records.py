"""Records and their lines: what a producer hands over, what a reader sees, and the text between them."""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from sluice.errors import LogError, UsageError


@dataclass(frozen=True, slots=True)
class Record:
    """What a producer hands over. Without a timestamp (with a time zone) it gets the time of its append."""

    value: bytes | None
    key: str | None = None
    timestamp: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """What a reader sees: a record and its place."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: bytes | None
    timestamp: datetime
    headers: Mapping[str, str]


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key: the same for ever, as long as the number of partitions stays."""
    return zlib.crc32(key.encode()) % partitions


def encode(offset: int, record: Record) -> bytes:
    """The line of a record, with its newline."""
    try:
        line = {
            "offset": offset,
            "key": record.key,
            **encoded_value(record.value),
            "timestamp": in_utc(record.timestamp or datetime.now(UTC)),
            "headers": headers_of(dict(record.headers)),
        }
        # A copy: orjson returns its whole buffer, which is many times the length of a line.
        return bytes(memoryview(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)))
    except TypeError as error:
        raise UsageError(f"A record cannot be written: {error}. Keys and headers must be valid text.") from error


def encoded_value(value: bytes | None) -> dict[str, str | None]:
    """The value as text where it is UTF-8, else as base64."""
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def in_utc(timestamp: datetime) -> datetime:
    """The same instant; a UsageError for a time without a zone."""
    if timestamp.tzinfo is None:
        raise UsageError(f"The timestamp {timestamp} has no time zone; give it one, such as UTC.")
    found = timestamp.astimezone(UTC)
    # Subclasses, such as those of pandas, are no JSON.
    return found if type(found) is datetime else datetime.combine(found.date(), found.timetz())


def decode(topic: str, partition: int, line: bytes, where: str) -> StoredRecord:
    """The record of a line; a LogError that says `where` when the line is none."""
    try:
        found: dict[str, Any] = orjson.loads(line)
        return StoredRecord(
            topic=topic,
            partition=partition,
            offset=offset_of(found["offset"]),
            key=text_or_none("key", found.get("key")),
            value=decoded_value(found),
            timestamp=instant(found["timestamp"]),
            headers=headers_of(found.get("headers")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"{where} is no record of the log: {error}. Restore the segment from a copy.") from error


def offset_of(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise ValueError("its offset is no whole number")
    return found


def text_or_none(name: str, found: Any) -> str | None:
    if found is not None and not isinstance(found, str):
        raise TypeError(f"its {name} is no text")
    return found


def instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("its timestamp has no time zone")
    return found


def headers_of(found: Any) -> Mapping[str, str]:
    if found is None or found == {}:
        return {}
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise TypeError("its headers are not texts by name")
    return found


def decoded_value(line: Mapping[str, Any]) -> bytes | None:
    """The value's bytes, from the text or the base64 field."""
    if line.get("value_base64") is not None:
        if line.get("value") is not None:
            raise ValueError("it has two values")
        return base64.b64decode(line["value_base64"], validate=True)
    if "value" not in line and "value_base64" not in line:
        raise ValueError("it has no value")
    value = text_or_none("value", line.get("value"))
    return None if value is None else value.encode()
