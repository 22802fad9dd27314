"""Verbs for frames: the driver does them itself with rows that it has, in Arrow, and Spark with all others."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType, TimestampType

from sluice.model.few_rows import replaced
from sluice.model.small_frames import frame_of, known_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def where_equal(df: "DataFrame", column: str, value: str) -> "DataFrame":
    """The rows with this text in a column."""
    known = known_rows(df)
    if known is None:
        return df.where(F.col(column) == value)
    return of_rows(df, known.filter(pc.equal(known[column], pa.scalar(value))))


def where_null(df: "DataFrame", column: str, *, is_null: bool = True) -> "DataFrame":
    """The rows that have no value in a column, or those that have one."""
    known = known_rows(df)
    if known is None:
        return df.where(F.col(column).isNull() if is_null else F.col(column).isNotNull())
    return of_rows(df, known.filter(pc.is_null(known[column]) if is_null else pc.is_valid(known[column])))


def dropped(df: "DataFrame", *columns: str) -> "DataFrame":
    """The rows without some columns; one that they lack is no error."""
    if known_rows(df) is None:
        return df.drop(*columns)
    return selected(df, {name: name for name in df.columns if name not in columns})


def selected(df: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
    """The rows in the columns that `columns` names, each with the column that it is of."""
    known = known_rows(df)
    if known is None:
        return df.select(*[F.col(column).alias(name) for name, column in columns.items()])
    kinds = {field.name: field.dataType for field in df.schema}
    schema = StructType()
    for name, column in columns.items():
        schema = schema.add(name, kinds[column])
    return frame_of(df.sparkSession, known.select(list(columns.values())).rename_columns(list(columns)), schema)


def with_constant(df: "DataFrame", name: str, value: str | datetime) -> "DataFrame":
    """The rows with one more column, of a name that they lack, which has this value in each."""
    known = known_rows(df)
    if known is None:
        return df.withColumn(name, F.lit(value))
    kind = StringType() if isinstance(value, str) else TimestampType()
    values = pa.array([value] * known.num_rows, to_arrow_type(kind, timezone="UTC"))
    return frame_of(df.sparkSession, known.append_column(name, values), StructType([*df.schema]).add(name, kind))


def nulled(df: "DataFrame", columns: Sequence[str], *, unless_null: str) -> "DataFrame":
    """The rows, with nothing in some columns where there is something in another."""
    known = known_rows(df)
    if known is None:
        is_null = F.col(unless_null).isNull()
        return df.withColumns({name: F.when(is_null, F.col(name)) for name in columns})
    kept, compute = pc.is_null(known[unless_null]), cast(Any, pc)
    values = {name: compute.if_else(kept, known[name], pa.scalar(None, known[name].type)) for name in columns}
    return of_rows(df, replaced(known, values))


def of_rows(df: "DataFrame", rows: pa.Table) -> "DataFrame":
    """Other rows of the same columns, which the driver has."""
    return frame_of(df.sparkSession, rows, df.schema)
