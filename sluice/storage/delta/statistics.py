"""Columns whose least and greatest values are kept out of the log, because delta-rs writes them wrong (decision 57).

It takes whole numbers of a decimal for 64-bit integers, and others for doubles. So a file may be said not to have a
value that it has, and whoever skips files by that, delta-rs or Spark, does not find the rows.
"""

from collections.abc import Iterator

from deltalake import DeltaTable
from pyspark.sql import types as T

from sluice.storage.delta.opened import once, spark_schema

# The property of Delta that lists the columns with statistics; without it, they are the first columns.
listed, first = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
columns_max = 32
# A double has all digits of decimals of so many, and a 64-bit integer those of whole ones of so many.
digits_max, whole_digits_max = 15, 18
# Delta refuses others in the list.
skippable = (T.NumericType, T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType)


def properties_of(schema: T.StructType) -> dict[str, str]:
    """The properties of a table with these columns; none where all of them may have statistics."""
    leaves = dict(leaves_of(schema))
    if not any(map(is_long_decimal, leaves.values())):
        return {}
    exact = [name for name, kind in leaves.items() if isinstance(kind, skippable) and not is_long_decimal(kind)]
    # An empty list would not be one.
    return {listed: ",".join(exact[:columns_max])} if exact else {first: "0"}


def properties_in(table: DeltaTable) -> dict[str, str]:
    """The properties of this kind that an opened table has."""
    return {name: text for name, text in table.metadata().configuration.items() if name in (listed, first)}


def has_wrong_bounds(table: DeltaTable) -> bool:
    """Whether the log of an opened table may have wrong values: it lacks the properties that its columns ask for."""

    def found() -> bool:
        wanted = properties_of(spark_schema(table))
        return bool(wanted) and not wanted.items() <= properties_in(table).items()

    return once(table, "wrong bounds", found)


def is_long_decimal(kind: T.DataType) -> bool:
    if not isinstance(kind, T.DecimalType):
        return False
    return kind.precision > (digits_max if kind.scale else whole_digits_max)


def leaves_of(schema: T.StructType, path: str = "") -> Iterator[tuple[str, T.DataType]]:
    """The columns, and the fields of those that are structs, each with its path as the property names it."""
    for each in schema:
        name = f"{path}{quoted(each.name)}"
        if isinstance(each.dataType, T.StructType):
            yield from leaves_of(each.dataType, f"{name}.")
        else:
            yield name, each.dataType


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
