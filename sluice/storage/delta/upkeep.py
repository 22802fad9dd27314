"""Keep tables small: compact their files, and delete those that are no longer needed."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from sluice.storage import secondary_index
from sluice.storage.delta.bloom import bloom_filters, writer_properties
from sluice.storage.delta.opened import Tables, file_sizes, spark_types
from sluice.storage.files import Files
from sluice.storage.small_writes import has_deletion_vectors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Cursors, replays and queries of what was known at a time read versions as old as this.
retention_days = 30
# More small files cost every read; they are written together before there are `listed_files_max`.
small_files_max = 24
compacted_file_bytes = 8 * 1024 * 1024


@dataclass(frozen=True)
class Upkeep(Tables):
    """Compaction and vacuum."""

    def compact(self, spark: "SparkSession", table: str, find_by: Sequence[str] = ()) -> dict[str, int]:
        """Writes small files together into larger ones, in one commit that changes no row, or none."""
        if len(self.open(table).file_uris()) < 2:
            return {"compacted": 0, "into": 0}
        with bloom_filters(spark, spark_types(self.open(table)), find_by):
            (row,) = spark.sql(f"OPTIMIZE delta.`{self.path(table)}`").select("metrics.*").collect()
        return {"compacted": row["numFilesRemoved"], "into": row["numFilesAdded"]}

    def compact_small(self, table: str, find_by: Sequence[str] = ()) -> int:
        """Writes the small files of a table together without Spark, where they are many; returns how many they were.

        In one commit that changes no row, and in bounded work, as a run does it between two passes. Files that have as
        many rows as a file can stay as they are. Tables with marked rows are left to `compact`; what cannot be written
        now, to the next time.
        """
        with suppress(DeltaError, OSError):
            found = self.open(table)
            sizes = file_sizes(found) or []
            full = [size_bytes for rows, size_bytes in sizes if (rows or 0) >= self.rows_per_file]
            target_bytes = min([compacted_file_bytes, *full])
            # Any two of them that are neighbours become one file.
            small = [rows or 0 for rows, size_bytes in sizes if size_bytes <= target_bytes // 2]
            if len(small) > small_files_max and not has_deletion_vectors(found):
                like_these = writer_properties(spark_types(found), find_by, sum(small))
                own = self.open_own(table)
                done = own.optimize.compact(target_size=target_bytes - 1, writer_properties=like_these)
                return int(done["numFilesRemoved"])
        return 0

    def vacuum(self, spark: "SparkSession", table: str) -> int:
        """Deletes the files that no version within the retention refers to, and unused indexes.

        Returns how many files.
        """
        if self.location.folder is not None:
            secondary_index.delete_unused(self.path(table), retention_days)
        # Spark's vacuum takes half a minute for any table. If this finds nothing to delete, Spark finds nothing either.
        if not self.open_own(table).vacuum(retention_days * 24, dry_run=True):
            return 0
        before = self.file_count(table)
        spark.sql(f"VACUUM delta.`{self.path(table)}`").collect()
        return before - self.file_count(table)

    def compact_added(self, table: str) -> dict[str, int]:
        """The same for a table to which several processes append without Spark."""
        found = self.open_own(table)
        compacted = found.optimize.compact()
        deleted = found.vacuum(retention_days * 24, dry_run=False)
        return {
            "compacted": compacted["numFilesRemoved"],
            "into": compacted["numFilesAdded"],
            "deleted": len(deleted),
        }

    def file_count(self, table: str) -> int:
        """How many files of data lie below a table, in use or not."""
        names = Files(self.path(table)).below("")
        others = ("_delta_log/", f"{secondary_index.indexes_folder}/")
        return sum(name.endswith(".parquet") and not name.startswith(others) for name in names)
