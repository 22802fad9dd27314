"""How values are encoded, as a declaration says it."""

from pathlib import Path

from sluice.errors import DeclarationError
from sluice.model.formats import Avro, Protobuf, WireFormat

wire_formats = ("confluent", "plain")


def avro(*, schema: str | Path | None = None, wire_format: WireFormat = "confluent") -> Avro:
    """The format of values in Avro's binary encoding: `format=silver.avro()`.

    In Confluent's wire format (a zero, four bytes of an id, the body) each record names the schema that it was written
    by, which comes from the schema registry (`SLUICE_SCHEMA_REGISTRY`) or from records of the topic `sluice_schemas`. A
    `schema`, the file of one or its text, is then the reader's: fields of the writer are resolved against it, by its
    names, aliases and defaults. With `wire_format="plain"` values have no id, and all are written by `schema`.
    """
    return Avro(wire_format, checked("silver.avro", schema, wire_format))


def protobuf(
    *, schema: str | Path | None = None, message: str | None = None, wire_format: WireFormat = "confluent"
) -> Protobuf:
    """The format of values in Protobuf's encoding: `format=silver.protobuf()`.

    As with `silver.avro`, records in Confluent's wire format name the schema that they were written by. A `schema`, a
    `.proto` file or its text, is the reader's, and `message` its message, by default the first: it must have the
    writer's name, and its fields are found by their numbers. It imports nothing but Google's own types. With
    `wire_format="plain"` values are nothing but that message.
    """
    if message is not None and schema is None:
        raise DeclarationError(f"silver.protobuf: {message} is a message of the reader's schema; give schema too")
    return Protobuf(wire_format, checked("silver.protobuf", schema, wire_format), message)


def checked(word: str, schema: str | Path | None, wire_format: str) -> str | None:
    """The text of the reader's schema, if there is one; a DeclarationError where it is missing or cannot be read."""
    if wire_format not in wire_formats:
        raise DeclarationError(f"{word}: wire_format is {wire_format!r}; there are 'confluent' and 'plain'")
    if schema is None and wire_format == "plain":
        raise DeclarationError(f"{word}: values without an id of their schema need schema, a file or a text")
    if isinstance(schema, str) and schema.endswith((".avsc", ".proto", ".json")):
        raise DeclarationError(f"{word}: schema is the text {schema!r}; to give a file, write Path({schema!r})")
    if schema is None or isinstance(schema, str):
        return schema
    try:
        return schema.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{word}: {schema} cannot be read: {error}") from error
