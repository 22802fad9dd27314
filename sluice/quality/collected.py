"""Rows brought to Python, whatever times they hold."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row
    from pyspark.sql.types import DataType


def collected(df: "DataFrame") -> "list[Row]":
    """The rows; when Python, whose years are 1 to 9999 in any zone, cannot hold a time of theirs, each time as text."""
    try:
        return df.collect()
    except (ValueError, OverflowError):
        fields = [(field.name, field.dataType) for field in df.schema]
        return df.select(*[with_texts(F.col(f"`{name}`"), kind).alias(name) for name, kind in fields]).collect()


def with_texts(value: "Column", kind: "DataType") -> "Column":
    """A value with its times as text; of an array or a map that has any, all of it."""
    if isinstance(kind, StructType):
        inside = [with_texts(value.getField(each.name), each.dataType).alias(each.name) for each in kind]
        return F.when(value.isNotNull(), F.struct(*inside))
    has_time = any(word in kind.simpleString() for word in ("timestamp", "date"))
    return value.cast("string") if has_time else value
