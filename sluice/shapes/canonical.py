"""One canonical text for values of any type, so that two rows have the same text only when they have the same values.

Each value's text marks its own end: a leaf ends with the sign U+0001, an array begins with its size, a
struct has as many values as its type has fields, and null has a distinct text. The sign is escaped where text has it.
So the values of different columns cannot run together. Equal numbers have one text: 0.0 is -0.0, and NaN
is NaN.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Few texts have these signs, so escaping is rare; and U+0001 sorts before other characters.
end, escape = "'\x01'", "'\x02'"
escaped_end, escaped_escape, null = "'\x021'", "'\x022'", "'\x02N'"
# Of SHA-256's 32: among a trillion payloads of one key, two have one digest with a probability of 10^-15.
digest_bytes = 16


def key_text(df: "DataFrame", columns: Iterable[str]) -> "Column":
    """The values of these columns as one text that sorts like the first of them, where that is text itself."""
    return F.expr(text_of(df.schema, columns))


def digest(df: "DataFrame", columns: Sequence[str]) -> "Column":
    """A cryptographic digest of the values of these columns, and of the columns' names, types and order."""
    schema = StructType([df.schema[name] for name in columns])
    types = hashlib.sha256(schema.simpleString().encode()).hexdigest()[: 2 * digest_bytes]
    text = joined([f"'{types}'", text_of(schema, columns)])
    return F.expr(f"unhex(left(sha2({text}, 256), {2 * digest_bytes}))")


def text_of(schema: StructType, columns: Iterable[str]) -> str:
    """The SQL of the canonical text; as SQL, since each expression that Python builds is a call to the JVM."""
    return joined(part for name in columns for part in parts(quoted(name), schema[name].dataType))


def parts(value: str, kind: DataType, depth: int = 0) -> list[str]:
    """The SQL of texts, none of which is null, that are the value's when they are joined."""
    match kind:
        case StructType():
            fields = [part for each in kind for part in parts(f"{value}.{quoted(each.name)}", each.dataType, depth)]
            text = joined(["'('", *fields])
        case ArrayType():
            text = items(value, f"transform({value}, {lambda_of(kind.elementType, depth)})")
        case MapType():
            entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
            # Maps have no order, and the texts of their entries always have one.
            text = items(value, f"array_sort(transform(map_entries({value}), {lambda_of(entry, depth)}))")
        case FloatType() | DoubleType():
            # Of a single number this hash is one-to-one; Java's text of a number depends on Java's version.
            text = f"CAST(xxhash64({value}) AS string)"
        case _:
            return [f"coalesce({leaf(value, kind)}, {null})", end]
    return [f"if({value} IS NULL, {null}, {text})", end]


def items(value: str, texts: str) -> str:
    """The SQL of the text of several values."""
    return joined([f"size({value})", end, f"array_join({texts}, '')"])


def lambda_of(kind: DataType, depth: int) -> str:
    return f"item{depth} -> {joined(parts(f'item{depth}', kind, depth + 1))}"


def leaf(value: str, kind: DataType) -> str:
    """The SQL of a text without the sign of the end, another for each value of the type and null for null."""
    match kind:
        case StringType():
            return escaped(value)
        case BinaryType():
            return f"hex({value})"
        case TimestampType():
            # Where clocks are put back, one local time is two instants.
            return f"CAST(unix_micros({value}) AS string)"
        case VariantType():
            return escaped(f"to_json({value})")
    return f"CAST({value} AS string)"


def escaped(text: str) -> str:
    return f"replace(replace({text}, {escape}, {escaped_escape}), {end}, {escaped_end})"


def joined(texts: Iterable[str]) -> str:
    return f"concat({', '.join(texts)})"


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return "`" + name.replace("`", "``") + "`"
