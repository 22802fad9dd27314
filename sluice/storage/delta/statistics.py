"""Columns whose least and greatest values are kept out of the log, because delta-rs writes them wrong (decision 57).

It takes whole numbers of a decimal for 64-bit integers, and others for doubles. So a file may be said not to have a
value that it has, and whoever skips files by that, delta-rs or Spark, does not find the rows.
"""

import re
from collections.abc import Iterator

from deltalake import DeltaTable
from pyspark.sql import types as T

from sluice.storage.delta.opened import once, spark_schema

# The property of Delta that lists the columns with statistics; without it, they are the first columns.
listed, first = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
columns_max = 32
# A double has all digits of decimals of so many, and a 64-bit integer those of whole ones of so many.
digits_max, whole_digits_max = 15, 18
Path = tuple[str, ...]
part = re.compile(r"([,.])|`((?:[^`]|``)*)`|([^,.`]+)")
# Delta refuses others in the list.
skippable = (T.NumericType, T.StringType, T.DateType, T.TimestampType, T.TimestampNTZType)


def properties_of(schema: T.StructType) -> dict[str, str]:
    """The properties of a table with these columns; none where all of them may have statistics."""
    if not long_decimals(schema):
        return {}
    exact = [path for path, kind in leaves_of(schema) if isinstance(kind, skippable) and not is_long_decimal(kind)]
    # An empty list would not be one.
    return {listed: ",".join(map(quoted, exact[:columns_max]))} if exact else {first: "0"}


def properties_in(table: DeltaTable) -> dict[str, str]:
    """The properties of this kind that an opened table has, by Sluice or by its owner."""
    return {name: text for name, text in table.metadata().configuration.items() if name in (listed, first)}


def has_wrong_bounds(table: DeltaTable) -> bool:
    """Whether the log of an opened table may have bounds of long decimals."""

    def found() -> bool:
        decimals, known = long_decimals(spark_schema(table)), properties_in(table)
        if listed in known:
            return any(is_within(path, of) for path in decimals for of in paths_in(known[listed]))
        return bool(decimals) and known.get(first) != "0"

    return once(table, "wrong bounds", found)


def to_unset(table: DeltaTable, schema: T.StructType) -> list[str]:
    """The properties of an opened table that do not fit other columns: Sluice's own, and a list that Delta refuses."""
    known = properties_in(table)
    own = properties_of(spark_schema(table)).items() - properties_of(schema).items()
    leaves = [path for path, kind in leaves_of(schema) if isinstance(kind, skippable)]
    is_possible = all(any(is_within(path, of) for path in leaves) for of in paths_in(known.get(listed, "")))
    return [name for name, text in known.items() if (name, text) in own or (name == listed and not is_possible)]


def long_decimals(schema: T.StructType) -> list[Path]:
    return [path for path, kind in leaves_of(schema) if is_long_decimal(kind)]


def is_long_decimal(kind: T.DataType) -> bool:
    if not isinstance(kind, T.DecimalType):
        return False
    return kind.precision > (digits_max if kind.scale else whole_digits_max)


def leaves_of(schema: T.StructType, path: Path = ()) -> Iterator[tuple[Path, T.DataType]]:
    """The columns, and the fields of those that are structs."""
    for each in schema:
        if isinstance(each.dataType, T.StructType):
            yield from leaves_of(each.dataType, (*path, each.name))
        else:
            yield (*path, each.name), each.dataType


def is_within(path: Path, of: Path) -> bool:
    """Names are the same whatever their case, as they are to Spark."""
    return [name.casefold() for name in path[: len(of)]] == [name.casefold() for name in of]


def quoted(path: Path) -> str:
    """A path as the property names it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


def paths_in(text: str) -> list[Path]:
    """The paths in a list, of which others do not quote all names."""
    found: list[list[str]] = [[]]
    for sign, name, plain in part.findall(text):
        if sign == ",":
            found.append([])
        elif name or plain.strip():
            found[-1].append(name.replace("``", "`") or plain.strip())
    return [tuple(path) for path in found if path]
