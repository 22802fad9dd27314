"""What all receivers do: append, find a key in a value, and put an identifier where a declaration can reach it."""

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import orjson

from sluice.errors import LogError
from sluice.log import AnyLog, Record

# Of a decimal in Parquet.
scale_max = 76


def append(log: AnyLog, topic: str, records: Sequence[Record]) -> dict[int, int]:
    """Appends records, and returns the next offset of each partition that got some; a LogError when it cannot."""
    try:
        return log.append(topic, records)
    except OSError as error:
        raise LogError(f"The log cannot be written: {error.strerror or error}.") from error


def key_in(value: bytes, field: str) -> str | None:
    """The key in a field of a JSON object; None for anything else, and for an object without the field.

    A number is a key as it is written. An object or array is one as its JSON text; one that is nested too deeply to be
    written again is none, nor is one beside a number that no float holds, nor text that is no UTF-8.
    """
    fields, is_text = read(value)
    found = (fields or {}).get(field)
    if isinstance(found, float):
        found = (as_written(value) or {}).get(field, found)
    if is_text and (isinstance(found, dict | list) or not is_utf8(found)):
        return None
    return key_text(found)


def is_utf8(found: Any) -> bool:
    """Whether a value is no text that Python reads, and UTF-8 cannot have."""
    return not isinstance(found, str) or not any("\ud800" <= each <= "\udfff" for each in found)


def as_written(value: bytes) -> Any:
    """A value of JSON with its numbers as text: else they may lose digits, or be too large; None for anything else."""
    try:
        return json.loads(value, parse_int=str, parse_float=str, parse_constant=refused)
    except (ValueError, RecursionError):
        return None


def refused(name: str) -> Any:
    """Python takes NaN and the infinities for JSON."""
    raise ValueError(name)


def key_text(found: Any) -> str | None:
    """A value of JSON as a key."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if not isinstance(found, dict | list):
        return None if found is None else str(found)
    try:
        return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:
        return None


def exact(value: Any) -> orjson.Fragment:
    """A Decimal as a JSON number with every digit, for orjson; without an exponent where it has a scale (`0E-10`)."""
    if isinstance(value, Decimal) and value.is_finite():
        has_scale = -scale_max <= int(value.as_tuple().exponent) <= 0
        return orjson.Fragment(f"{value:f}" if has_scale else str(value))
    raise TypeError


def non_finite(value: float) -> str:
    """NaN or an infinity as change capture writes it: JSON has no such numbers."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def with_field(value: bytes, field: str, text: str) -> bytes:
    """A JSON object with one more field at its beginning; one that has the field, or is no object, stays as it is.

    The field is put into the bytes: to write the whole object again would change its numbers.
    """
    found = object_in(value)
    if found is None or field in found:
        return value
    before, brace, rest = value.partition(b"{")
    comma = b"," if found else b""
    return b"".join([before, brace, orjson.dumps(field), b":", orjson.dumps(text), comma, rest])


def object_in(value: bytes) -> dict[str, Any] | None:
    """The JSON object that a value is; None for anything else."""
    return read(value)[0]


def read(value: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The JSON object that a value is, None for anything else; and whether its numbers are text: one is too large."""
    try:
        found, is_text = orjson.loads(value), False
    except ValueError:
        found, is_text = as_written(value), True
    return found if isinstance(found, dict) else None, is_text
