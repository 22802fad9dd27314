"""Avro's schemas: read, checked against declared columns, and changed so that values are read as JSON has them."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.errors import DeclarationError
from sluice.model.ddl import column_types

Schema = Any

# What Avro's types can be declared as. What only some values fit is quarantined where it does not.
text_kinds = "string|timestamp|timestamp_ntz|date|binary|decimal"
whole_kinds = "tinyint|smallint|int|bigint|double|decimal|string"
fitting = {
    "boolean": "boolean|string",
    "int": whole_kinds,
    "long": whole_kinds.replace("|double", ""),
    "float": "float|double",
    "double": "double",
    "string": text_kinds,
    "enum": "string",
    "bytes": "binary",
    "fixed": "binary",
    "date": "date|string",
    "timestamp-millis": "timestamp|string",
    "timestamp-micros": "timestamp|string",
    "timestamp-nanos": "timestamp|string",
    "local-timestamp-millis": "timestamp_ntz|string",
    "local-timestamp-micros": "timestamp_ntz|string",
    "local-timestamp-nanos": "timestamp_ntz|string",
    "uuid": "string",
    "decimal": "decimal|string",
}
# The types that a logical type may be of; on others it means nothing.
logical_types = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
}
whole = ("int", "long")
# A record of records of records is as large as it likes, and takes no bytes.
parts_max = 10_000
# So are nulls: in an array, where there can be any number, a byte stands for no more values than these.
values_per_byte = 8
# Before the names of logical types: fastavro's own readers make values of Python, which have other ranges.
ours = "sluice-"


class UnusableSchema(Exception):
    """A schema that is none, or that values cannot be read by safely."""


@dataclass(frozen=True)
class Parsed:
    """A schema as fastavro reads it, and the named types in it."""

    schema: Schema
    names: Mapping[str, Schema]


def parsed(text: str, references: Iterable[str] = ()) -> Parsed:
    """The schema in a text, with those that it refers to. Raises UnusableSchema."""
    fastavro = imported()
    names: dict[str, Any] = {}
    try:
        for each in references:
            fastavro.parse_schema(renamed(json.loads(each)), named_schemas=names)
        found = fastavro.parse_schema(renamed(json.loads(text)), named_schemas=names)
        extent(found, names, {})
    except UnusableSchema:
        raise
    except Exception as error:
        raise UnusableSchema(f"{type(error).__name__}: {error}"[:300]) from error
    return Parsed(found, names)


def imported() -> Any:
    """The library that reads Avro; a DeclarationError where it is not installed."""
    try:
        import fastavro
    except ImportError as error:
        raise DeclarationError(
            "format is Avro, and fastavro is not installed: pip install 'sluice-lakehouse[formats]'"
        ) from error
    return fastavro


def renamed(schema: Schema) -> Schema:
    """The schema with our own names of logical types; a map is a logical type too: a list of its keys and values."""
    if isinstance(schema, list):
        return [renamed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    made = {name: each for name, each in schema.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in made:
            made[name] = renamed(made[name])
    if isinstance(schema.get("fields"), list):
        made["fields"] = [renamed(each) for each in schema["fields"]]
    logical = schema.get("logicalType")
    if isinstance(kind, str) and kind in logical_types.get(str(logical), ()):
        made["logicalType"] = f"{ours}{logical}"
    if kind == "map":
        made["logicalType"] = f"{ours}map"
    return made


@dataclass(frozen=True)
class Extent:
    """How large values of a type are.

    `excess` is by how many values one can have more than its bytes stand for, and `parts` how many it has at most.
    """

    excess: int
    parts: int


def extent(schema: Schema, names: Mapping[str, Schema], known: dict[str, Extent | None]) -> Extent:
    """The extent of a type; `known` are those of named types, None while one is being measured.

    Raises UnusableSchema where a few bytes could be values without end.
    """
    schema = resolved(schema, names)
    if isinstance(schema, list):
        branches = [extent(each, names, known) for each in schema]
        largest = max((each.excess for each in branches), default=0)
        return Extent(largest - values_per_byte, 1 + sum(each.parts for each in branches))
    kind = kind_of(schema)
    if kind == "record":
        return extent_of_record(schema, names, known)
    if kind in ("array", "map"):
        inside = extent(schema["items" if kind == "array" else "values"], names, known)
        key = values_per_byte if kind == "map" else 0
        if inside.excess > key:
            raise UnusableSchema(
                f"a value of {kind} type could have any number of elements of many values in few bytes, or none"
            )
        return Extent(1 - values_per_byte, 1 + inside.parts)
    takes_no_bytes = kind == "null" or (kind == "fixed" and schema["size"] == 0)
    return Extent(1 if takes_no_bytes else 1 - values_per_byte, 1)


def extent_of_record(schema: Schema, names: Mapping[str, Schema], known: dict[str, Extent | None]) -> Extent:
    name = schema["name"]
    if name not in known:
        known[name] = None
        inside = [extent(each["type"], names, known) for each in schema["fields"]]
        known[name] = Extent(1 + sum(each.excess for each in inside), 1 + sum(each.parts for each in inside))
    found = known[name]
    if found is None:
        raise UnusableSchema(f"{name} is inside of itself")
    if found.parts > parts_max:
        raise UnusableSchema(f"{name} is made of more than {parts_max:,} values")
    return found


def resolved(schema: Schema, names: Mapping[str, Schema]) -> Schema:
    """The type that a name stands for."""
    while isinstance(schema, str) and schema in names:
        schema = names[schema]
    return schema


def kind_of(schema: Schema) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return "record" if kind == "error" else str(kind)


def require_readable(dataset: str, text: str) -> Parsed:
    """The schema that a declaration gives; a DeclarationError says what is wrong with it."""
    try:
        found = parsed(text)
    except UnusableSchema as error:
        raise DeclarationError(f"{dataset}: the schema of its format cannot be used: {error}") from error
    if kind_of(found.schema) != "record":
        raise DeclarationError(
            f"{dataset}: the schema of its format is of type {described(found.schema)}, not a record"
        )
    for each in (field for schema in found.names.values() for field in fields_of(schema)):
        if "default" in each and not is_plain_default(each["default"], resolved(each["type"], found.names)):
            raise DeclarationError(
                f"{dataset}: the default of the field {each['name']} cannot be used, because its type is "
                f"{described(each['type'])}; let it be null"
            )
    return found


def fields_of(schema: Schema) -> list[Any]:
    return list(schema["fields"]) if isinstance(schema, dict) and kind_of(schema) == "record" else []


def is_plain_default(default: Any, schema: Schema) -> bool:
    """Whether a default in JSON is what the value would be in JSON."""
    first = schema[0] if isinstance(schema, list) else schema
    if default is None or (default == [] and kind_of(first) == "array"):
        return True
    has_logical = isinstance(first, dict) and "logicalType" in first
    return not has_logical and kind_of(first) in ("boolean", "int", "long", "float", "double", "string", "enum")


def require_columns_fit(dataset: str, found: Parsed, types: Mapping[str, str], epochs: Iterable[str] = ()) -> None:
    """A DeclarationError for columns that a schema has no field for, or a field of a type that does not fit.

    `epochs` are the paths of times that are numbers.
    """
    wrong = list(misfits(found.schema, found.names, types, "", frozenset(each.lower() for each in epochs)))
    if wrong:
        raise DeclarationError(f"{dataset}: its columns do not fit the schema of its format: {'; '.join(wrong)}")


def misfits(
    schema: Schema, names: Mapping[str, Schema], types: Mapping[str, str], before: str, epochs: frozenset[str]
) -> Iterator[str]:
    """What is wrong with the columns, or the fields of a struct."""
    fields = {each["name"]: each["type"] for each in schema["fields"]}
    for name, kind in types.items():
        if name not in fields:
            known = ", ".join(f"{each} {described(field)}" for each, field in fields.items())
            yield f"{before}{name} {kind} is no field of it; it has {known}"
        else:
            yield from misfit(fields[name], names, kind, f"{before}{name}", epochs)


def misfit(schema: Schema, names: Mapping[str, Schema], kind: str, path: str, epochs: frozenset[str]) -> Iterator[str]:
    """What is wrong with one column, or with what is inside of it."""
    schema = resolved(schema, names)
    if isinstance(schema, list):
        for each in schema:
            if each != "null":
                yield from misfit(each, names, kind, path, epochs)
        return
    avro, array, struct = kind_of(schema), matched("array", kind), matched("struct", kind)
    if avro == "array" and array:
        yield from misfit(schema["items"], names, array, path, epochs)
    elif avro == "map" and array and (pair := matched("struct", array)):
        entry = {"type": "record", "name": "", "fields": [{"name": "key", "type": schema.get("keys", "string")}]}
        entry["fields"].append({"name": "value", "type": schema["values"]})  # type: ignore[attr-defined]
        yield from misfits(entry, names, column_types(pair), f"{path}.", epochs)
    elif avro == "record" and struct:
        yield from misfits(schema, names, column_types(struct), f"{path}.", epochs)
    elif avro in ("array", "map", "record") and kind == "string":
        return
    elif not fits(schema, avro, kind, path.lower() in epochs):
        yield f"{path} is declared as {kind}, and is {described(schema)}"


def matched(outer: str, kind: str) -> str | None:
    found = re.fullmatch(rf"(?s){outer}\s*<(.*)>", kind.strip())
    return found[1] if found else None


def fits(schema: Schema, avro: str, kind: str, is_epoch: bool) -> bool:
    """Whether values of a simple type can be a column's."""
    if avro == "null":
        return True
    logical = schema.get("logicalType", "").removeprefix(ours) if isinstance(schema, dict) else ""
    if is_epoch:
        return avro in whole and not logical
    if logical == "decimal" and (found := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)):
        scale = schema.get("scale", 0)
        whole_digits = int(found[1]) - int(found[2])
        return bool(int(found[2]) >= scale and whole_digits >= schema["precision"] - scale)
    return re.fullmatch(fitting.get(logical or avro, ""), kind.split("(", maxsplit=1)[0]) is not None


def described(schema: Schema) -> str:
    """A type in words."""
    if isinstance(schema, list):
        return " or ".join(described(each) for each in schema)
    if not isinstance(schema, dict):
        return str(schema)
    logical = schema.get("logicalType", "").removeprefix(ours)
    if logical == "decimal":
        return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
    return logical if logical and logical != "map" else kind_of(schema)
