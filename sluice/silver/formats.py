"""How values are encoded, as a declaration says it."""

from pathlib import Path

from sluice.errors import DeclarationError
from sluice.model.formats import Avro, WireFormat


def avro(*, schema: str | Path | None = None, wire_format: WireFormat = "confluent") -> Avro:
    """The format of values in Avro's binary encoding: `format=silver.avro()`.

    In Confluent's wire format (a zero, four bytes of an id, the body) each record names the schema that it was written
    by, which comes from the schema registry (`SLUICE_SCHEMA_REGISTRY`) or from records of the topic `sluice_schemas`. A
    `schema`, the file of one or its text, is then the reader's: fields of the writer are resolved against it, by its
    names, aliases and defaults. With `wire_format="plain"` values have no id, and all are written by `schema`.
    """
    if wire_format not in ("confluent", "plain"):
        raise DeclarationError(f"silver.avro: wire_format is {wire_format!r}; there are 'confluent' and 'plain'")
    if schema is None and wire_format == "plain":
        raise DeclarationError("silver.avro: values without an id of their schema need schema, a file or a text")
    return Avro(wire_format, None if schema is None else text_of(schema))


def text_of(schema: str | Path) -> str:
    """The text of a schema: its own, or that of its file."""
    if isinstance(schema, str):
        return schema
    try:
        return schema.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"silver.avro: {schema} cannot be read: {error}") from error
