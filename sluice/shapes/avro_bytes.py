"""Whether bytes are one value of an Avro schema, and nothing else.

fastavro takes more: it reads an index below zero from the end of a list, cuts numbers to 64 bits, and any byte but 0
is true.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sluice.model.avro import Parsed, Schema, kind_of, resolved

# Where a value ends that begins at a place; an IndexError or ValueError where there is none.
Walk = Callable[[bytes, int], int]
varint_bytes_max = 10


def require_value(body: bytes, walk: Walk) -> None:
    """A ValueError or IndexError where the bytes are not one whole value."""
    if walk(body, 0) != len(body):
        raise ValueError("other bytes follow the value, or some are missing")


def walk_of(parsed: Parsed) -> Walk:
    """How values of a schema are walked through."""
    return walk_in(parsed.schema, parsed.names, {})


def walk_in(schema: Schema, names: Mapping[str, Schema], known: dict[str, Walk]) -> Walk:
    """The same of a part of a schema; `known` are the walks of named types, which may be within themselves."""
    schema = resolved(schema, names)
    inner = partial(walk_in, names=names, known=known)
    if isinstance(schema, list):
        return partial(union, [inner(each) for each in schema])
    kind = kind_of(schema)
    if kind in ("array", "map"):
        return partial(blocks, inner(schema["items"])) if kind == "array" else partial(entries, inner(schema["values"]))
    return plain[kind] if kind in plain else named(kind, schema, inner, known)


def named(kind: str, schema: Any, inner: Callable[[Schema], Walk], known: dict[str, Walk]) -> Walk:
    name = schema["name"]
    if kind == "fixed":
        return partial(fixed, schema["size"])
    if kind == "enum":
        return partial(symbol, len(schema["symbols"]))
    if name not in known:
        # Within itself it is asked for before its fields are known.
        fields: list[Walk] = []
        known[name] = partial(record, fields)
        fields += [inner(each["type"]) for each in schema["fields"]]
    return known[name]


def fixed(size: int, body: bytes, at: int) -> int:  # noqa: ARG001 - where it ends does not depend on the bytes
    return at + size


def boolean(body: bytes, at: int) -> int:
    if body[at] > 1:
        raise ValueError("neither true nor false")
    return at + 1


def number(body: bytes, at: int) -> tuple[int, int]:
    """A number in variable length and zigzag, and where it ends; an IndexError where it does not."""
    found = 0
    for place in range(varint_bytes_max):
        byte = body[at + place]
        found |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if found >> 64:
                break
            return (found >> 1) ^ -(found & 1), at + place + 1
    raise ValueError("a number of more than 64 bits")


def whole(bits: int, body: bytes, at: int) -> int:
    found, end = number(body, at)
    if not -(1 << bits - 1) <= found < 1 << bits - 1:
        raise ValueError(f"{found} has more than {bits} bits")
    return end


def sized(body: bytes, at: int) -> int:
    size, begin = number(body, at)
    if size < 0:
        raise ValueError("a length below zero")
    return begin + size


def index(count: int, body: bytes, at: int) -> tuple[int, int]:
    found, end = number(body, at)
    if not 0 <= found < count:
        raise ValueError(f"{found} is none of {count}")
    return found, end


def symbol(count: int, body: bytes, at: int) -> int:
    return index(count, body, at)[1]


def union(branches: list[Walk], body: bytes, at: int) -> int:
    found, begin = index(len(branches), body, at)
    return branches[found](body, begin)


def record(fields: list[Walk], body: bytes, at: int) -> int:
    for walk in fields:
        at = walk(body, at)
    return at


def blocks(item: Walk, body: bytes, at: int) -> int:
    while True:
        count, at = number(body, at)
        if count == 0:
            return at
        if count < 0:
            # Followed by the size of the block in bytes.
            count, at = -count, number(body, at)[1]
        for _ in range(count):
            at = item(body, at)


def entries(value: Walk, body: bytes, at: int) -> int:
    """Those of a map, each key once: JSON refuses a name that is there twice, too."""
    keys: set[bytes] = set()

    def entry(body: bytes, at: int) -> int:
        begin = number(body, at)[1]
        end = sized(body, at)
        if body[begin:end] in keys:
            raise ValueError("a key is there twice")
        keys.add(body[begin:end])
        return value(body, end)

    return blocks(entry, body, at)


plain: dict[str, Walk] = {
    "null": partial(fixed, 0),
    "boolean": boolean,
    "int": partial(whole, 32),
    "long": partial(whole, 64),
    "float": partial(fixed, 4),
    "double": partial(fixed, 8),
    "bytes": sized,
    "string": sized,
}
