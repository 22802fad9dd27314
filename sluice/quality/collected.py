"""Rows brought to Python, whatever times they hold."""

import math
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.model import small_frames

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def collected(df: "DataFrame") -> list[dict[str, Any]]:
    """The rows, structs in them as dictionaries too; when Python cannot hold a time of theirs, each time as text.

    By way of Arrow, which keeps times in UTC: `DataFrame.collect` gives those of the machine's time zone, without it.
    """
    try:
        return small_frames.all_rows(df).to_pylist()
    except (ValueError, OverflowError):
        # Also where a text is no UTF-8, which Arrow cannot read.
        fields = [(field.name, field.dataType) for field in df.schema]
        texts = df.select(*[with_texts(F.col(f"`{name}`"), kind).alias(name) for name, kind in fields])
        return [row.asDict(recursive=True) for row in texts.collect()]


def with_texts(value: "Column", kind: "DataType") -> "Column":
    """A value with its times as text; of an array or a map that has any, all of it."""
    if isinstance(kind, StructType):
        inside = [with_texts(value.getField(each.name), each.dataType).alias(each.name) for each in kind]
        return F.when(value.isNotNull(), F.struct(*inside))
    has_time = any(word in kind.simpleString() for word in ("timestamp", "date"))
    return value.cast("string") if has_time else value


def are_equal(value: object, other: object) -> bool:
    """Whether two such values are the same, as Spark has it: NaN is, also within others."""
    match value, other:
        case dict(), dict():
            return value.keys() == other.keys() and all(are_equal(value[name], other[name]) for name in value)
        case list() | tuple(), list() | tuple():
            return len(value) == len(other) and all(map(are_equal, value, other))
        case float(), float():
            return value == other or (math.isnan(value) and math.isnan(other))
    return value == other
