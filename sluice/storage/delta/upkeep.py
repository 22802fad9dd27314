"""Keep tables small: compact their files, and delete those that are no longer needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.storage import secondary_index
from sluice.storage.delta.bloom import bloom_filters
from sluice.storage.delta.opened import Tables, spark_types
from sluice.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Cursors, replays and queries of what was known at a time read versions as old as this.
retention_days = 30


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
