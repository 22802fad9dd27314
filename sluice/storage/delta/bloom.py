"""What a Parquet file says of its values: Bloom filters, which are a megabyte instead of a column, and bounds."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties

from sluice.storage.key_filters import rows_min

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where a filter says wrongly that a file has one of the values, columns of the whole file are read. A thousand values
# are asked of each file, so of a hundred files one would be read. With a thousandth, it would be every second one.
false_positives = 0.00001
size_bytes_max = 4 * 1024 * 1024
# The types of keys that may have as many values as a table has rows.
kinds = ("string", "binary", "bigint", "int")
# delta-rs leaves NaN out of the bounds that it writes; for Spark it is greater than any number, and would be skipped.
fractions, fraction_within = ("float", "double"), re.compile(r"struct<.*\b(float|double)\b")


@contextmanager
def bloom_filters(spark: "SparkSession", types: Mapping[str, str], find_by: Sequence[str]) -> Iterator[None]:
    """Spark writes files with filters for the columns `find_by`; `types` are those of the table's columns."""
    names = [name for name in find_by if types.get(name) in kinds]
    settings = {f"parquet.bloom.filter.enabled#{name}": "true" for name in names}
    if names:
        # As large as the values of a file need.
        settings["parquet.bloom.filter.adaptive.enabled"] = "true"
        settings["parquet.bloom.filter.max.bytes"] = str(size_bytes_max)
        settings |= {f"parquet.bloom.filter.fpp#{name}": str(false_positives) for name in names}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


def writer_properties(types: Mapping[str, str], find_by: Sequence[str], rows: int) -> WriterProperties:
    """The same for files of so many rows that delta-rs writes, and which columns have bounds there."""
    names = [name for name in find_by if types.get(name) in kinds] if rows >= rows_min else []
    bloom = BloomFilterProperties(set_bloom_filter_enabled=True, fpp=false_positives, ndv=rows)
    without_bounds = ColumnProperties(statistics_enabled="NONE")
    # A field of a struct cannot be named, so all that are within have none.
    has_within = any(map(fraction_within.match, types.values()))
    bounded: Literal["PAGE"] | None = "PAGE" if has_within else None
    found = {
        name: ColumnProperties(
            statistics_enabled="NONE" if kind in fractions else bounded,
            bloom_filter_properties=bloom if name in names else None,
        )
        for name, kind in types.items()
        if kind in fractions or bounded or name in names
    }
    return WriterProperties(
        compression="SNAPPY",
        default_column_properties=without_bounds if has_within else None,
        column_properties=found,
    )
