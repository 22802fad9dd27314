"""The truth about records in plain Python: which are strict JSON with RFC 3339 times, and what they say.

The schema is `id string, n bigint, ratio double, at timestamp, inner struct<id: string, at: timestamp>,
list array<bigint>`. What is no JSON, and what follows JSON, is one verdict here: a text that begins with a number has
no end that everybody would agree on.
"""

import json
import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

not_json = "not_json"
blank = " \t\n\r"
local_time = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:[0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?", re.ASCII)
instant = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:[0-5]\d)(?::([0-5]\d|60)(?:\.(\d+))?)?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
epoch = datetime(1970, 1, 1, tzinfo=UTC)


class Whole(str):
    """A number without a fraction, as written."""


class Fraction(str):
    """Any other number."""


class Members(list[tuple[str, Any]]):
    """An object: its members in order, also those whose name stands twice."""

    def get(self, name: str) -> Any:
        return dict(self).get(name)


class Refused(Exception):
    """The rule that a record breaks."""


def verdict(value: bytes) -> tuple[str | None, tuple[Any, ...] | None]:
    """The rule that a record breaks, or else the values of its columns, times in microseconds."""
    try:
        row = parsed(value)
        if not isinstance(row, Members) or any(is_of_another_type(row.get(name), name) for name in columns):
            return "wrong_type", None
        return None, tuple(read(row.get(name)) for name, read in columns.items())
    except Refused as refused:
        return str(refused), None


def parsed(value: bytes) -> Any:
    """The JSON of a record; Refused where it is not exactly one strict text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise Refused("invalid_utf8") from None
    if not text.strip(blank):
        raise Refused("empty_value")
    reader = json.JSONDecoder(
        object_pairs_hook=Members, parse_constant=refuse_constant, parse_float=Fraction, parse_int=Whole
    )
    try:
        document, end = reader.raw_decode(text.lstrip(blank))
    except ValueError:
        raise Refused(not_json) from None
    if text.lstrip(blank)[end:].strip(blank):
        raise Refused(not_json)
    found = list(inside(document))
    if any("\ud800" <= character <= "\udfff" for each in found if isinstance(each, str) for character in each):
        raise Refused("lone_surrogate")
    if any(len(dict(each)) < len(each) for each in found if isinstance(each, Members)):
        raise Refused("duplicate_name")
    return document


def refuse_constant(name: str) -> None:
    raise ValueError(name)


def inside(value: Any) -> Any:
    """A value and all that is in it, names included."""
    yield value
    if isinstance(value, Members):
        for name, each in value:
            yield name
            yield from inside(each)
    elif isinstance(value, list):
        for each in value:
            yield from inside(each)


def is_of_another_type(value: Any, column: str) -> bool:
    """Whether a value has not the type of its column; what is then wrong with it, its reader says."""
    if value is None:
        return False
    if column == "n":
        return not isinstance(value, Whole) or not -(2**63) <= int(value) < 2**63
    if column == "ratio":
        return not isinstance(value, Whole | Fraction)
    if column == "inner":
        return not isinstance(value, Members)
    is_list = isinstance(value, list) and not isinstance(value, Members)
    return column == "list" and (not is_list or any(is_of_another_type(each, "n") for each in value))


def text_of(value: Any) -> Any:
    if value is None or isinstance(value, list):
        return None  # how an object is written as text is not compared
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Whole):
        return str(int(value))
    if isinstance(value, Fraction) and value != java_text(float(value)):
        raise Refused("wrong_type")
    return str(value)


def java_text(number: float) -> str:
    """How a double is written by Spark."""
    if not math.isfinite(number) or number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    mantissa, exponent = f"{number:.16e}".split("e")
    for digits in range(1, 17):
        mantissa, exponent = f"{number:.{digits}e}".split("e")
        if float(f"{mantissa}e{exponent}") == number:
            break
    return f"{mantissa}E{int(exponent)}"


def whole_of(value: Any) -> int | None:
    return None if value is None else int(value)


def double_of(value: Any) -> float | None:
    if value is not None and math.isinf(float(value)):
        raise Refused("wrong_type")
    return None if value is None else float(value)


def list_of(value: Any) -> tuple[int | None, ...] | None:
    return None if value is None else tuple(whole_of(each) for each in value)


def time_of(value: Any, column: str = "at") -> int | None:
    """A time in microseconds; Refused by the name of the column that it is in."""
    if value is None:
        return None
    is_text = isinstance(value, str) and not isinstance(value, Whole | Fraction)
    micros = micros_of(value) if is_text else None
    if micros is None:
        lacks_offset = is_text and local_time.fullmatch(value) and not value.startswith("0000")
        raise Refused(f"{'no_offset' if lacks_offset else 'invalid_time'}_{column}")
    return micros


def inner_of(value: Any) -> tuple[Any, ...]:
    return (None, None) if value is None else (text_of(value.get("id")), time_of(value.get("at"), "inner"))


columns = {"id": text_of, "n": whole_of, "ratio": double_of, "at": time_of, "inner": inner_of, "list": list_of}


def micros_of(text: str) -> int | None:
    """Microseconds since 1970; None for what is no RFC 3339 time (seconds may be left out)."""
    found = instant.fullmatch(text)
    if found is None:
        return None
    day, minute, second, fraction, zone = found.groups()
    offset = timedelta()
    if zone not in "Zz":
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:])) * (-1 if zone[0] == "-" else 1)
    try:
        whole = datetime.fromisoformat(f"{day}T{minute}:00+00:00") - offset + timedelta(seconds=int(second or 0))
    except (ValueError, OverflowError):
        return None
    if second == "60" and (whole.day, whole.hour, whole.minute) != (1, 0, 0):
        return None
    return (whole - epoch) // timedelta(microseconds=1) + int(((fraction or "") + "000000")[:6])
