"""Bloom filters in Parquet files: whether a file has a value is known from a megabyte of it, not from a column."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    """The same for files of so many rows that delta-rs writes."""
    names = [name for name in find_by if types.get(name) in kinds] if rows >= rows_min else []
    each = ColumnProperties(
        bloom_filter_properties=BloomFilterProperties(set_bloom_filter_enabled=True, fpp=false_positives, ndv=rows)
    )
    return WriterProperties(compression="SNAPPY", column_properties=dict.fromkeys(names, each))
