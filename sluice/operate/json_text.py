"""Values of rows as JSON, the same wherever Sluice prints or sends them, and counts for people."""

import json
import math
from typing import Any


def json_line(found: Any, indent: int | None = None) -> str:
    """JSON, in one line unless there is an `indent`; numbers and keys that JSON does not know are text."""
    try:
        return json.dumps(found, indent=indent, default=as_text, allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(plain(found), indent=indent, default=as_text)


def as_text(value: Any) -> str:
    """A value that JSON has no type for; bytes in hexadecimal, as they are typed."""
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


def plain(value: Any) -> Any:
    """The value with text in place of numbers that are none, or have no end, and of keys that JSON does not know."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name if isinstance(name, str) else as_text(name): plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    return value


def counted(number: int, noun: str) -> str:
    """`1 row`, `1,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
