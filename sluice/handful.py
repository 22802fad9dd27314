"""A handful of rows: so few and so small that the driver takes them in, and writes them without a job of Spark."""

from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

rows_max = 1_000
bytes_max = 16 * 1024 * 1024
# What Spark and Arrow mean the same by.
numbers = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp"}
texts = {"string", "binary"}


def is_handful(df: "DataFrame", rows: int) -> bool:
    """Whether a frame of so many rows is small enough; looks at them only if they are few."""
    if rows > rows_max or not is_plain(df.schema):
        return False
    sizes = [f"coalesce(octet_length(CAST(`{name}` AS string)), 0L)" for name, kind in df.dtypes if kind not in numbers]
    (total,) = df.selectExpr(f"sum({' + '.join(['0L', *sizes])})").collect()[0]
    return (total or 0) <= bytes_max


def is_plain(kind: DataType) -> bool:
    """Whether a type is known to go through Arrow as it is."""
    match kind:
        case StructType():
            return all(is_plain(field.dataType) for field in kind.fields)
        case ArrayType():
            return is_plain(kind.elementType)
        case MapType():
            return is_plain(kind.keyType) and is_plain(kind.valueType)
    return kind.simpleString() in numbers | texts or kind.simpleString().startswith("decimal(")
