"""Small frames: rows that are few enough for the driver to take them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

rows_max = 1_000
row_bytes_max = 128 * 1024
# Of a table of so many rows those of a small scope are read by one task.
read_alone_max = 1_000_000
# What Spark and Arrow mean the same by.
numbers = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp"}
texts = {"string", "binary"}


def small_rows(
    df: "DataFrame", count: int = 0, sized: "Callable[[], AbstractContextManager[None]]" = nullcontext
) -> pa.Table | None:
    """The rows of a frame; None when they are many, or large, or of types unlike Arrow's.

    `count` is how many they are, where that is known. The plan is optimised as the session is set, and run as within
    `sized`.
    """
    if count > rows_max or not is_plain(df.schema):
        return None
    sizes = [f"coalesce(octet_length(CAST(`{name}` AS string)), 0L)" for name, kind in df.dtypes if kind not in numbers]
    # What is too large never leaves Spark.
    row = f"IF({' + '.join(['0L', *sizes])} <= {row_bytes_max}, array(struct(*)), array()) AS row"
    rows = df.limit(rows_max + 1).selectExpr(row)
    optimize(rows)
    with sized():
        found = rows.toArrow()["row"].combine_chunks()
    kept = cast(pa.StructArray, cast("pa.ListArray[Any]", found).flatten())
    return pa.Table.from_struct_array(kept) if len(kept) == len(found) <= rows_max else None


def optimize(df: "DataFrame") -> None:
    """Optimizes a frame now: what Delta asks its tables' logs meanwhile is small, whatever the frame's own size."""
    if is_classic(df):
        df._jdf.queryExecution().optimizedPlan()


def is_classic(df: "DataFrame") -> bool:
    """Whether a frame's plan is in a JVM of this process; else a Spark Connect server has it."""
    return hasattr(df, "_jdf")


def is_local(df: "DataFrame") -> bool:
    """Whether a frame is made of rows that the driver has, and of nothing else, so that it costs little to compute."""
    if not is_classic(df):
        return False
    leaves = df._jdf.queryExecution().optimizedPlan().collectLeaves()
    return all(leaves.apply(index).nodeName() == "LocalRelation" for index in range(leaves.size()))


def local(df: "DataFrame", rows: pa.Table) -> "DataFrame":
    """The rows of `df` that were taken, as a frame that computes nothing."""
    return frame_of(df.sparkSession, rows, df.schema)


def frame_of(spark: "SparkSession", rows: pa.Table | None, schema: StructType) -> "DataFrame":
    """A frame of rows that the driver has, in one partition, so that nothing of it is shuffled."""
    if rows is not None and rows.num_rows:
        return spark.createDataFrame(rows, schema).coalesce(1)
    if not hasattr(spark, "_jsparkSession"):
        return spark.createDataFrame([], schema)
    from pyspark.sql.classic.dataframe import DataFrame

    # PySpark makes an RDD of no rows, whose size Spark does not know.
    session, jvm = spark._jsparkSession, cast(Any, spark._jvm)
    nothing = session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(schema.json()))
    return DataFrame(nothing, spark).coalesce(1)


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
