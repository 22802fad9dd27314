"""Columns that are not fields of a record's value: its key, its headers, where and when the log has it, or that it has
no value.

They are written as SQL of a bronze table: `key`, `key['id']`, `headers['trace-id']`, `timestamp`, `value IS NULL`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import DeclarationError

# What has one type, which is that of bronze.
type_of = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "value IS NULL": "boolean",
}
scalars = re.compile(
    r"boolean|tinyint|smallint|int|bigint|float|double|string|date|timestamp|timestamp_ntz|decimal\(.*\)"
)
named = re.compile(r"(?i:(key|headers))\s*\[\s*'((?:[^'\\]|'')+)'\s*\]")
examples = "key, key['id'], headers['trace-id'], timestamp, topic, partition, offset or value IS NULL"
Texts = Mapping[str, str]


@dataclass(frozen=True)
class RecordColumn:
    """One such column: `of` is what of the record, and `name` that of a header, or of a member of the key."""

    of: str
    name: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether it comes as text, whatever its type."""
        return self.of == "headers" or (self.of == "key" and self.name is None)

    @property
    def is_delivery(self) -> bool:
        """Whether it differs each time that the same is sent."""
        return self.of in ("topic", "partition", "offset", "timestamp")


def record_column(text: str) -> RecordColumn | None:
    """What a text names; None where it names nothing of a record."""
    if found := named.fullmatch(text.strip()):
        return RecordColumn(found[1].lower(), found[2].replace("''", "'"))
    plain = " ".join(text.split()).lower()
    known = {each.lower(): each for each in (*type_of, "key")}
    return RecordColumn(known[plain]) if plain in known else None


def columns_of(texts: Texts) -> dict[str, RecordColumn]:
    """What each column is, of texts that were checked."""
    return {name: found for name, text in texts.items() if (found := record_column(text)) is not None}


def tombstones(texts: Texts) -> list[str]:
    """The columns that say whether a record has no value; with one, such records are rows."""
    return [name for name, each in columns_of(texts).items() if each.of == "value IS NULL"]


def require_record_columns(dataset: str, texts: Texts, types: Mapping[str, str], required: tuple[str, ...]) -> None:
    """A DeclarationError for a column that the schema lacks, that names nothing of a record, or is of another type."""
    for name, text in texts.items():
        if name not in types:
            raise DeclarationError(
                f"{dataset}: from_record names {name}, which the schema lacks; declare there of which type it is"
            )
        found = record_column(text) if isinstance(text, str) else None
        if found is None:
            raise DeclarationError(f"{dataset}: from_record: {name} is {text!r}; write {examples}")
        require_type(f"{dataset}: {name} is {text}", found, types[name])
    if {*types} <= {*texts}:
        raise DeclarationError(f"{dataset}: all columns are from_record; declare at least one field of the value too")
    unplaced = [name for name in required if name not in texts]
    if tombstones(texts) and unplaced:
        raise DeclarationError(
            f"{dataset}: a record without a value has no {', '.join(unplaced)}, which every row needs; take it from "
            f"what such a record has: from_record={{'{unplaced[0]}': 'key'}}, or a header, or the timestamp"
        )


def require_type(what: str, column: RecordColumn, kind: str) -> None:
    """A DeclarationError where a column cannot be of this type."""
    if column.of in type_of and kind != type_of[column.of]:
        raise DeclarationError(f"{what}, which is of type {type_of[column.of]}, not {kind}")
    is_bytes = column == RecordColumn("key") and kind == "binary"
    if column.is_text and not is_bytes and not scalars.fullmatch(kind):
        raise DeclarationError(f"{what}, which is text, and cannot be {kind}; declare string, a number or a time")
