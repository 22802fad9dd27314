"""Values of Postgres, from their text to what stands in JSON; a type that is not named here stays text."""

import base64
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

Convert = Callable[[str], Any]

# What Debezium writes for a value that was not sent.
unavailable = "__debezium_unavailable_value"

# How the text of a value is written is a setting of the session; the one of the snapshot and the one of the stream have
# these. A snapshot may take long, so idle connections must not time out.
session_settings = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}


def boolean(text: str) -> bool:
    return text == "t"


def number(text: str) -> float | str:
    """A float; JSON has no numbers for NaN and the infinities, so they are strings, which Spark reads."""
    value = float(text)
    return value if math.isfinite(value) else text


def timestamp(text: str) -> str:
    """RFC 3339 in UTC; `infinity` and years before our era stay as Postgres writes them."""
    if not text[0].isdigit() or text.endswith(" BC"):
        return text
    return f"{text.removesuffix('+00').replace(' ', 'T')}Z"


def binary(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()


token = re.compile(r'[{},]|"((?:[^"\\]|\\.)*)"|[^{},"]+')


def array(element: Convert, text: str) -> list[Any]:
    """A list, of lists where it has more dimensions."""
    # Bounds other than 1 stand in front of the value: [0:1]={a,b}
    tokens = token.finditer(text, text.index("{") + 1)
    return elements(element, tokens)


def elements(element: Convert, tokens: Iterator[re.Match[str]]) -> list[Any]:
    """The elements up to the brace that closes them."""
    found: list[Any] = []
    for each in tokens:
        match each[0]:
            case "}":
                break
            case "{":
                found.append(elements(element, tokens))
            case ",":
                pass
            case "NULL":
                found.append(None)
            case plain:
                quoted = each[1]
                found.append(element(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)))
    return found


# Built-in types by name: the number of the type, of its array, and what makes its text a value.
built_in: dict[str, tuple[int, int, Convert]] = {
    "bool": (16, 1000, boolean),
    "bytea": (17, 1001, binary),
    "int8": (20, 1016, int),
    "int2": (21, 1005, int),
    "int4": (23, 1007, int),
    "oid": (26, 1028, int),
    "float4": (700, 1021, number),
    "float8": (701, 1022, number),
    "timestamp": (1114, 1115, timestamp),
    "timestamptz": (1184, 1185, timestamp),
    "text": (25, 1009, str),
    "bpchar": (1042, 1014, str),
    "varchar": (1043, 1015, str),
    "name": (19, 1003, str),
    "date": (1082, 1182, str),
    "time": (1083, 1183, str),
    "timetz": (1266, 1270, str),
    "interval": (1186, 1187, str),
    "numeric": (1700, 1231, str),
    "money": (790, 791, str),
    "uuid": (2950, 2951, str),
    "json": (114, 199, str),
    "jsonb": (3802, 3807, str),
    "inet": (869, 1041, str),
    "cidr": (650, 651, str),
    "macaddr": (829, 1040, str),
}
by_oid: dict[int, Convert] = {oid: convert for oid, _, convert in built_in.values()} | {
    array_oid: partial(array, convert) for _, array_oid, convert in built_in.values()
}
by_name: dict[str, Convert] = {name: by_oid[oid] for name, (oid, _, _) in built_in.items()} | {
    f"_{name}": by_oid[array_oid] for name, (_, array_oid, _) in built_in.items()
}


def placeholder(convert: Convert) -> Any:
    """What stands for an unavailable value of a type, as Debezium has it."""
    if convert is binary:
        return base64.b64encode(unavailable.encode()).decode()
    return [unavailable] if isinstance(convert, partial) else unavailable
