"""Protobuf values as the JSON that the same event would have been, or the rule that they break, in workers of Spark.

A field that has presence and is not set is null, and one that has none has its default. Fields that the schema does not
know are skipped, as Protobuf means it.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sluice.model.avro import UnusableSchema
from sluice.model.protobuf import Compiled, Descriptor, compiled, is_map, timestamp, wider, wrappers
from sluice.shapes.avro import (
    Decoded,
    in_json,
    incompatible,
    of_micros,
    text_bytes_per_byte,
    text_in_json,
    too_large,
    unusable,
)
from sluice.shapes.avro_bytes import number

malformed = "malformed_protobuf"
# As in `"a":0,`.
field_characters_min = 6
faults = (malformed, incompatible, unusable)


def decoded(body: bytes, writer: str, reader: str | None, bytes_max: int, message: str | None = None) -> Decoded:
    """The JSON of a value in Confluent's wire format, behind the id: the places of its message, and the message.

    With a `reader` it is read by the message of that schema, which has the writer's name.
    """
    from google.protobuf.message import DecodeError

    written_by = schema_of(writer)
    if written_by is None:
        return None, unusable
    try:
        places, start = places_of(body)
        kind = written_by.at(places)
        if reader is not None:
            wanted = plain_schema(reader).message(message)
            if wanted.full_name != kind.full_name or not takes(wanted, kind):
                return None, incompatible
            kind = wanted
        return text_of(body[start:], kind, bytes_max)
    except TooManyValues:
        return None, too_large
    except (DecodeError, IndexError, ValueError, RecursionError):
        return None, malformed


@lru_cache(maxsize=256)
def takes(reader: Descriptor, writer: Descriptor) -> bool:
    """Whether the values of a writer's message can be read by a reader's, field by field of the same number."""
    return is_taken(writer, reader, set())


def is_taken(writer: Descriptor, reader: Descriptor, seen: set[tuple[str, str]]) -> bool:
    pair = writer.full_name, reader.full_name
    if pair in seen:
        return True
    seen.add(pair)
    both = [(each, reader.fields_by_number.get(each.number)) for each in writer.fields]
    return all(is_field_taken(one, other, seen) for one, other in both if other is not None)


def is_field_taken(writer: Descriptor, reader: Descriptor, seen: set[tuple[str, str]]) -> bool:
    # Of several values one would be left.
    if (writer.is_repeated and not reader.is_repeated) or is_map(writer) != is_map(reader):
        return False
    if writer.type != reader.type:
        return reader.type in wider.get(writer.type, ())
    return writer.message_type is None or is_taken(writer.message_type, reader.message_type, seen)


def decoded_plain(body: bytes, schema: str, bytes_max: int, message: str | None) -> Decoded:
    """The JSON of a value that is nothing but the message."""
    from google.protobuf.message import DecodeError

    try:
        return text_of(body, plain_schema(schema).message(message), bytes_max)
    except TooManyValues:
        return None, too_large
    except (DecodeError, ValueError, RecursionError):
        return None, malformed


class TooManyValues(Exception):
    """A message whose text is longer than it may be, whatever its values are."""


@dataclass
class Left:
    """How many values a text can still have."""

    values: int

    def take(self, values: int) -> None:
        self.values -= values
        if self.values < 0:
            raise TooManyValues


def text_of(body: bytes, kind: Descriptor, bytes_max: int) -> Decoded:
    from google.protobuf.message_factory import GetMessageClass

    longest = text_bytes_per_byte * bytes_max
    left = Left(longest // field_characters_min)
    text = text_in_json(of_message(GetMessageClass(kind).FromString(body), kind, left))
    return (None, too_large) if len(text) > longest else (text, None)


def of_message(message: Any, kind: Descriptor, left: Left) -> Any:
    """A message of a kind as JSON has it; a few bytes of an array can be messages of many fields."""
    name = kind.full_name
    left.take(len(kind.fields))
    if name == timestamp:
        return of_micros(message.seconds * 1_000_000 + message.nanos // 1000, is_local=False)
    if name in wrappers:
        return in_json(message.value)
    return {each.name: of_field(message, each, left) for each in kind.fields}


def of_field(message: Any, field: Descriptor, left: Left) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        inside = field.message_type.fields_by_name["value"]
        return [{"key": in_json(key), "value": of_value(value[key], inside, left)} for key in sorted(value)]
    if field.is_repeated:
        return [of_value(each, field, left) for each in value]
    # Not the message's own: a field may be called HasField.
    if field.has_presence and not type(message).HasField(message, field.name):
        return None
    return of_value(value, field, left)


def of_value(value: Any, field: Descriptor, left: Left) -> Any:
    if field.message_type is not None:
        return of_message(value, field.message_type, left)
    if field.type == field.TYPE_STRING and isinstance(value, bytes):
        raise ValueError("a string of proto2 that is no UTF-8")
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return in_json(value)


def places_of(body: bytes) -> tuple[list[int], int]:
    """The places of a message among those of its file, each inside of the one before, and where the message begins."""
    count, start = number(body, 0)
    if count == 0:
        return [0], start
    places = []
    if not 0 < count <= len(body):
        raise ValueError("no number of places")
    for _ in range(count):
        place, start = number(body, start)
        if place < 0:
            raise ValueError("no place")
        places.append(place)
    return places, start


@lru_cache(maxsize=256)
def schema_of(record: str) -> Compiled | None:
    """The schema in a record of the topic of schemas; None where values cannot be read by it."""
    try:
        said = json.loads(record)
        if said.get("type") != "PROTOBUF":
            return None
        return compiled(said["schema"], {each["name"]: each["schema"] for each in said.get("references") or ()})
    except (UnusableSchema, ValueError, KeyError, TypeError, AttributeError):
        return None


@lru_cache(maxsize=64)
def plain_schema(text: str) -> Compiled:
    return compiled(text)
