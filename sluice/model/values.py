"""Values of a type that are known exactly without Spark: read from JSON, kept within the type, and written as JSON.

The types are those for which Python and Spark agree in every value: booleans, whole numbers, decimals, text, dates,
times, and arrays of them. A `float` of either is not among them, because its sums depend on the order.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import orjson

integer_bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
integer_digits = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
digits_max = 38
others = ("boolean", "string", "date", "timestamp")
# More digits than two decimals of Spark can have in their product, so nothing is ever rounded here.
exact = Context(prec=160, rounding=ROUND_HALF_UP)
decimal_type = re.compile(r"decimal\((\d+),(\d+)\)")
array_type = re.compile(r"array<(.*)>")
time_text = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
date_text = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class OutOfRange(ValueError):
    """A value does not fit its type, or a division has no result: what Spark, too, refuses to compute."""


class NotOfType(ValueError):
    """A value of JSON is none of a type."""


def is_known(kind: str) -> bool:
    """Whether values of a type are known exactly here."""
    inner = element_of(kind)
    if inner is not None:
        return element_of(inner) is None and is_known(inner)
    return kind in integer_bits or kind in others or bool(decimal_type.fullmatch(kind))


def element_of(kind: str) -> str | None:
    """The type of an array's elements; None for another type."""
    found = array_type.fullmatch(kind)
    return found and found[1]


def digits_of(kind: str) -> tuple[int, int] | None:
    """How many digits a number has before its point and after; None for what is no number."""
    if kind in integer_digits:
        return integer_digits[kind], 0
    found = decimal_type.fullmatch(kind)
    return found and (int(found[1]) - int(found[2]), int(found[2]))


def are_one_to_one(kind: str, other: str) -> bool:
    """Whether no value of either type equals two of the other: they are the same, or one decimal has both exactly."""
    if kind == other:
        return True
    one, two = digits_of(kind), digits_of(other)
    return one is not None and two is not None and max(one[0], two[0]) + max(one[1], two[1]) <= digits_max


def in_range(kind: str) -> Callable[[int], int]:
    """A function that returns a whole number of a type, and raises OutOfRange for another one."""
    most = 1 << (integer_bits[kind] - 1)

    def checked(number: int) -> int:
        if -most <= number < most:
            return number
        raise OutOfRange(f"{shortened(number)} is no {kind}")

    return checked


def fitted(kind: str) -> Callable[[Decimal], Decimal]:
    """A function that rounds to the digits of a decimal type, half away from zero, and raises OutOfRange."""
    before, after = digits_of(kind) or (0, 0)
    unit, most = Decimal(1).scaleb(-after, exact), Decimal(1).scaleb(before, exact)

    def rounded(number: Decimal) -> Decimal:
        if number.adjusted() > before:
            raise OutOfRange(f"{shortened(number)} is no {kind}")
        found = number.quantize(unit, context=exact)
        # `abs` would round to the 28 digits of the default context.
        if found.copy_abs() >= most:
            raise OutOfRange(f"{shortened(number)} is no {kind}")
        # There is no negative zero in Spark.
        return found if found else found.copy_abs()

    return rounded


def whole(number: Decimal) -> int:
    """A number without its digits after the point."""
    return int(number.to_integral_value(ROUND_DOWN, exact))


def shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} characters)"


def reader_of(kind: str) -> Callable[[Any], Any]:
    """A function that gives the value of a type that JSON says, numbers read as int and Decimal; raises NotOfType."""
    element = element_of(kind)
    if element is not None:
        return optional(array_of(kind, reader_of(element)))
    if decimal_type.fullmatch(kind):
        return optional(decimal_of(kind))
    if kind in integer_bits:
        return optional(integer_of(kind))
    return optional({"boolean": boolean, "string": text, "date": day, "timestamp": instant}[kind])


def read_as(name: str, read: Callable[[Any], Any], found: Any) -> Any:
    """What a reader makes of a field; a NotOfType that names the field."""
    try:
        return read(found)
    except NotOfType as error:
        raise NotOfType(f"{name} {error}") from error


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: None if found is None else read(found)


def array_of(kind: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def values(found: Any) -> list[Any]:
        if not isinstance(found, list):
            raise NotOfType(f"is no {kind}")
        return [read(each) for each in found]

    return values


def decimal_of(kind: str) -> Callable[[Any], Decimal]:
    fit = fitted(kind)

    def number(found: Any) -> Decimal:
        if isinstance(found, bool) or not isinstance(found, int | Decimal):
            raise NotOfType(f"is no number: write {kind} as a number of JSON")
        given = Decimal(found)
        try:
            value = fit(given)
        except (OutOfRange, InvalidOperation) as error:
            raise NotOfType(f"is no {kind}") from error
        if value != given:
            raise NotOfType(f"is no {kind}: it has more digits after the point")
        return value

    return number


def integer_of(kind: str) -> Callable[[Any], int]:
    fit = in_range(kind)

    def number(found: Any) -> int:
        if isinstance(found, bool) or not isinstance(found, int):
            raise NotOfType(f"is no {kind}")
        try:
            return fit(found)
        except OutOfRange as error:
            raise NotOfType(f"is no {kind}: it is too large") from error

    return number


def boolean(found: Any) -> bool:
    if not isinstance(found, bool):
        raise NotOfType("is no boolean")
    return found


def text(found: Any) -> str:
    if not isinstance(found, str):
        raise NotOfType("is no string")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise NotOfType("is no text: it has half of a character") from error
    return found


def day(found: Any) -> date:
    try:
        if not isinstance(found, str) or not date_text.fullmatch(found):
            raise NotOfType("is no date: write it as 2026-01-31")
        return date.fromisoformat(found)
    except ValueError as error:
        raise NotOfType("is no date: write it as 2026-01-31") from error


def instant(found: Any) -> datetime:
    wrong = "is no timestamp: write it as 2026-01-31T12:00:00Z, with at most six digits of a second"
    if not isinstance(found, str) or not time_text.fullmatch(found):
        raise NotOfType(wrong)
    try:
        return datetime.fromisoformat(found.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise NotOfType(wrong) from error


def as_json(value: Any) -> Any:
    """A value as orjson writes it: a decimal with all of its digits, a time as RFC 3339."""
    if isinstance(value, Decimal):
        return orjson.Fragment(format(value, "f"))
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return [as_json(each) for each in value] if isinstance(value, list) else value


def json_object(value: bytes) -> dict[str, Any]:
    """An object of JSON with its numbers as int and Decimal; raises NotOfType for anything else."""
    try:
        found = decoder.decode(value.decode())
    except (ValueError, RecursionError) as error:
        raise NotOfType(f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotOfType("it is no object of JSON")
    return found


def number_of(written: str) -> Decimal:
    """A number with all of its digits."""
    try:
        return Decimal(written)
    except InvalidOperation as error:
        raise ValueError(f"{shortened(written)} is out of the range of numbers") from error


def no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"it has {shortened(name)} twice")
            seen.add(name)
    return found


decoder = json.JSONDecoder(parse_float=number_of, parse_constant=no_constant, object_pairs_hook=once)
