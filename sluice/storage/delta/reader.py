"""Read rows: through Spark, or without it for small changes and for engines that read Arrow."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import ArrowInvalid, RecordBatchReader
from pyarrow import Table as ArrowTable
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.model.few_rows import meeting
from sluice.model.found import Condition, with_finder
from sluice.model.narrowing import Narrowing
from sluice.model.small_frames import (
    are_small_changes,
    frame_of,
    is_listed,
    is_plain,
    is_read_by_driver,
    kept_bytes_max,
    made_when_asked,
    nullable,
    requires_within,
)
from sluice.shapes.difference import feed
from sluice.storage import secondary_index, small_reads
from sluice.storage.delta.history import History, entries_of
from sluice.storage.delta.opened import count_rows, file_sizes, in_types_of_spark, once, spark_schema
from sluice.storage.small_reads import place
from sluice.storage.small_writes import has_deletion_vectors, plain_files

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset as ArrowDataset
    from pyspark.sql import DataFrame, SparkSession

# What delta-rs says of text that Arrow does not know.
not_utf8 = "non UTF-8 data"


@dataclass(frozen=True)
class Reader(History):
    """The rows of tables, and their change feeds."""

    def row_count(self, table: str, version: int | None = None) -> int:
        """The number of rows, from the log and the deletion vectors."""
        found = self.open(table, version)
        return once(found, "rows", lambda: count_rows(found))

    def types(self, table: str) -> dict[str, str]:
        """The types of a table's columns as Spark writes them; of a struct's fields too, by names with a dot."""
        found: dict[str, str] = {}
        for column in spark_schema(self.open(table)):
            found[column.name] = column.dataType.simpleString()
            for inner in column.dataType if isinstance(column.dataType, StructType) else ():
                found[f"{column.name}.{inner.name}"] = inner.dataType.simpleString()
        return found

    def arrow(
        self, table: str, known_at: datetime | None = None, version: int | None = None
    ) -> "ArrowDataset | Scan | None":
        """The table as it is, or was known at a time or at a version, for engines that read Arrow.

        None when it was not there yet.
        """
        if known_at is not None:
            version = self.known_version(table, known_at)
            if version is None:
                return None
        found = self.open(table, version)
        return Scan(found) if has_deletion_vectors(found) else found.to_pyarrow_dataset()

    def scan(self, table: str, version: int) -> "Scan":
        """A version of a table as an Arrow stream, in little memory."""
        return Scan(self.open(table, version))

    def known_version(self, table: str, known_at: datetime) -> int | None:
        """The newest version of a table that was there at a time; None when it was not there yet.

        By what the commits say: the files' own times, which delta-rs asks, are later, and others in a copy.
        """
        known = self.open(table).history()
        return max(
            (each["version"] for each in known if each["timestamp"] / 1000 <= known_at.timestamp()), default=None
        )

    def plain_files(self, table: str, version: int | None = None) -> list[str] | None:
        """The files on this machine that are all of a table; None where they are not, or are elsewhere."""
        found = self.open(table, version)
        if self.location.folder is None or found.metadata().partition_columns:
            return None
        return plain_files(found, self.path(table))

    def read(self, spark: "SparkSession", table: str, version: int | None = None) -> "DataFrame":
        """The rows of a table, at a version when one is given; those of a small table are read by the driver."""
        found, files_max = self.open(table, version), self.location.read_files_max
        schema, sizes = spark_schema(found), once(found, "file sizes", lambda: file_sizes(found))
        if sizes is not None and is_read_by_driver(schema, sizes, files_max):
            rows = self.rows_of_few(table, found)
            if rows is not None:
                return with_finder(frame_of(spark, rows, schema), partial(meeting, rows))
        files = plain_files(found, self.path(table)) if sizes is not None and is_listed(sizes, files_max) else None
        if files is not None and not files:
            return frame_of(spark, None, schema)
        if files is None:
            df = spark.read.format("delta").option("versionAsOf", found.version()).load(self.path(table))
        else:
            as_read = cast(StructType, nullable(schema, with_metadata=True))
            df = made_when_asked(spark, as_read, partial(self.read_files, spark, table, found, files))
        if not is_plain(schema) or requires_within(schema):
            return df
        return with_finder(df, Narrowing(partial(self.find, table, found, schema)))

    def read_files(self, spark: "SparkSession", table: str, found: DeltaTable, files: Sequence[str]) -> "DataFrame":
        """The rows of an opened table in its files, by Spark."""
        schema, partitions = spark_schema(found), found.metadata().partition_columns
        df = spark.read.schema(schema).option("basePath", self.path(table)).parquet(*files)
        # Spark puts the columns that are in the paths last.
        return df.select(*schema.names) if partitions else df

    def find(
        self, table: str, found: DeltaTable, schema: StructType, conditions: Sequence[Condition]
    ) -> ArrowTable | None:
        """The rows of an opened table that meet all conditions; None where Spark had better look for them."""
        rows = self.find_placed(table, found, schema, conditions)
        if rows is None:
            return None
        if place in rows.column_names and rows.nbytes <= kept_bytes_max:
            # They may be replaced next.
            self.placed[table] = found, rows
        return rows.select(schema.names)

    def find_placed(
        self, table: str, found: DeltaTable, schema: StructType, conditions: Sequence[Condition]
    ) -> ArrowTable | None:
        """The same, with the place of each row in its file where that can be said."""
        folder = None if self.location.folder is None else self.path(table)
        columns = to_arrow_schema(schema, timezone="UTC")
        files = small_reads.candidates(found, conditions)
        if folder is not None:
            rows = secondary_index.find_placed(found, columns, folder, conditions, files)
            if rows is not None:
                return rows
        return small_reads.find_placed(found, columns, folder, conditions, files)

    def changes(self, spark: "SparkSession", table: str, since: int, until: int) -> "DataFrame":
        """The old and new images of the rows changed after version `since`, up to `until`, with `_change_type`."""
        commits = self.commits_between(table, since, until)
        # The first of these may stand for older ones that were removed, and has their rows.
        first = commits[-1]["version"] if commits else since + 1
        if are_small_changes(commits, entries_of(commits)):
            found = self.open(table, until)
            schema = StructType([*spark_schema(found), *feed])
            with suppress(ArrowInvalid, DeltaError):
                # Arrow knows no text that is not UTF-8.
                rows = RecordBatchReader.from_stream(found.load_cdf(first, until)).read_all()
                return frame_of(spark, in_types_of_spark(rows, schema), schema)
        return self.changes_by_spark(spark, table, first, until)

    def changes_by_spark(self, spark: "SparkSession", table: str, first: int, until: int) -> "DataFrame":
        """The same from version `first` on, read by Spark.

        Where Spark has a JVM here, without its data source of changes: that makes Java's strings of texts, in which
        what is not UTF-8 is another text.
        """
        if is_classic(spark):
            from pyspark.sql.classic.dataframe import DataFrame

            feed_reader = cast(Any, spark)._jvm.org.apache.spark.sql.delta.commands.cdc.CDCReader
            defaults = [getattr(feed_reader, f"changesToBatchDF$default${number}")() for number in (5, 6, 7, 8)]
            session = spark._jsparkSession
            log = delta_log(spark).forTable(session, self.path(table))
            return DataFrame(feed_reader.changesToBatchDF(log, first, until, session, *defaults), spark)
        return (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", first)
            .option("endingVersion", until)
            .load(self.path(table))
        )


def is_classic(spark: "SparkSession") -> bool:
    """Whether a session has a JVM that can be asked by itself; one of Spark Connect has none."""
    return getattr(spark, "_jvm", None) is not None


def delta_log(spark: "SparkSession") -> Any:
    return cast(Any, spark)._jvm.org.apache.spark.sql.delta.DeltaLog


@dataclass(frozen=True)
class Scan:
    """A table as an Arrow stream, which can be read any number of times."""

    table: DeltaTable

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.scan().__arrow_c_stream__(requested_schema)
