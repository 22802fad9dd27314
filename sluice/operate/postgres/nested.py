"""Lists, structs and maps of Arrow as Postgres prints them: as an array, or as JSON."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Values = Any
Text = Callable[[Values], Values]
needs_quotes = re.compile(r'[\s{},"\\]|^$|^null$', re.IGNORECASE)


def is_nested(kind: pa.DataType) -> bool:
    return pa.types.is_nested(kind)


def array_texts(column: Values, text_of: Text) -> list[str | None]:
    """Lists of simple values as arrays; `text_of` gives the text of simple values."""
    elements = [quoted(each) for each in leaf_texts(column.flatten(), text_of)]
    return [None if part is None else "{" + ",".join(elements[part]) + "}" for part in parts_of(column)]


def quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' if needs_quotes.search(text) else text


def json_texts(column: Values, text_of: Text) -> list[str | None]:
    """Any values as JSON; null is None."""
    kind = column.type
    if pa.types.is_struct(kind):
        names = [json.dumps(kind.field(number).name) for number in range(kind.num_fields)]
        fields = [[each or "null" for each in json_texts(field, text_of)] for field in column.flatten()]
        rows = zip(*fields, strict=True) if fields else [()] * len(column)
        pairs = (", ".join(f"{name}: {value}" for name, value in zip(names, row, strict=True)) for row in rows)
        return [f"{{{row}}}" if valid else None for row, valid in zip(pairs, valid_in(column), strict=True)]
    if pa.types.is_map(kind):
        keys = [json.dumps(each) for each in leaf_texts(column.keys, text_of)]
        values = [each or "null" for each in json_texts(column.items, text_of)]
        pairs_of = [f"{key}: {value}" for key, value in zip(keys, values, strict=True)]
        offsets = column.offsets.to_pylist()
        parts = (slice(*bounds) for bounds in pairwise(offsets))
        maps = ("{" + ", ".join(pairs_of[part]) + "}" for part in parts)
        return [each if valid else None for each, valid in zip(maps, valid_in(column), strict=True)]
    if is_nested(kind):
        elements = [each or "null" for each in json_texts(column.flatten(), text_of)]
        return [None if part is None else "[" + ", ".join(elements[part]) + "]" for part in parts_of(column)]
    return [None if each is None else of_json(each, kind) for each in leaf_texts(column, text_of)]


def of_json(text: str, kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "true" if text == "t" else "false"
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if is_number and not text.endswith(("y", "N")):
        return text
    if pa.types.is_timestamp(kind):
        text = re.sub(r"\+00( BC)?$", r"+00:00\1", text.replace(" ", "T", 1))
    return json.dumps(text)


def leaf_texts(column: Values, text_of: Text) -> list[str | None]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return leaf_texts(column.dictionary_decode(), text_of)
    if pa.types.is_binary(kind):
        return [None if each is None else "\\x" + each.hex() for each in column.to_pylist()]
    if pa.types.is_time(kind):
        return [None if each is None else str(each) for each in column.to_pylist()]
    return text_of(column).cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def parts_of(column: Values) -> Sequence[slice | None]:
    """Which of the elements each list has."""
    found: list[slice | None] = []
    end = 0
    for each in pc.list_value_length(column).to_pylist():
        found.append(None if each is None else slice(end, end + each))
        end += each or 0
    return found


def valid_in(column: Values) -> list[bool]:
    return column.is_valid().to_pylist()  # type: ignore[no-any-return]
