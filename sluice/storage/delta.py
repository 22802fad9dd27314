"""Every read and write of a Delta table: the one module that knows the format.

Rows go through Spark. Versions, the ledger and small looks (status, audit, query) go through delta-rs, which needs no
JVM.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import PrimitiveType
from pyarrow import RecordBatchReader
from pyarrow import Table as ArrowTable
from pyarrow import compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.errors import SluiceError, Superseded
from sluice.model.ledger import Commit, Entry, InputVersion
from sluice.shapes.difference import feed, operation
from sluice.storage.files import Files
from sluice.storage.s3 import S3, is_s3
from sluice.storage.small_writes import any_of, is_replaceable, rows_max

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset as ArrowDataset
    from pyspark.sql import DataFrame, SparkSession

# A file of a table that is written as a whole; the fewer rows, the more files a scope can skip.
rows_per_file_default = 250_000
# Below, it is cheaper to write a file again (0.2 s for 170,000 rows) than to mark rows in it (1.3 s), and to look for
# marks at every read (60 ms for each plan).
deletion_vectors_from_rows_default = 500_000
short_bytes_max = 128 * 1024 * 1024
concurrent_commits_max = 20
# Spark lists the files of more paths by a job.
listed_files_max = 32
# Each costs two requests, one after the other.
listed_objects_max = 4
pattern_signs = set("{}[]*?\\%")
# Cursors, replays and looks at what was known then read versions as old as this.
retention_days = 30
table_properties = {
    "delta.enableChangeDataFeed": "true",
    # The change feed lives as long as the log that points to it, so a cursor is either readable or known to be too old.
    "delta.logRetentionDuration": f"interval {retention_days} days",
    "delta.deletedFileRetentionDuration": f"interval {retention_days} days",
    # Spark's default, for delta-rs too, which has another.
    "delta.checkpointInterval": "10",
}
creation = threading.Lock()
table_name = re.compile(r"\w+", re.ASCII)
is_commit = re.compile(r"\d+\.json")
user_metadata = "spark.databricks.delta.commitInfo.userMetadata"
# Delta writes nothing for an application whose number is not above the last that the table has of it.
application, number = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


def has_deletion_vectors(table: DeltaTable) -> bool:
    return "deletionVectors" in (table.protocol().reader_features or [])


def count_rows(table: DeltaTable) -> int:
    deleted = 0
    if has_deletion_vectors(table):
        for batch in RecordBatchReader.from_stream(table.deletion_vectors()):
            kept = pc.list_flatten(batch["selection_vector"])
            deleted += len(kept) - int(pc.sum(kept).as_py() or 0)
    return int(sum(table.get_add_actions(flatten=True)["num_records"].to_pylist())) - deleted


def signed(entry: Entry, fence: int) -> dict[str, str]:
    """What a commit says of itself, as options of the one write; as settings of a session they outlive it."""
    return {"userMetadata": entry.to_json(), "txnAppId": entry.dataset, "txnVersion": str(fence + 1)}


def in_turn(table: str, write: Callable[[], None]) -> None:
    """Writes without Spark, and again when another made the table or committed between our look and our commit."""
    for _ in range(concurrent_commits_max):
        try:
            write()
        except (CommitFailedError, FileExistsError):
            continue
        return
    raise SluiceError(f"{table} is written by so many at once that a commit never got its turn; try again.")


def plain_files(table: DeltaTable, path: str) -> list[str] | None:
    """The files that are the table at a path; None when it is more than the rows of a few files.

    A table that needs no reader above version 1 has no marked rows and no renamed columns. Spark then need not read
    its log, which is several jobs at every read.
    """
    names = [str(name) for name in table.get_add_actions(flatten=True)["path"].to_pylist()]
    files = [f"{path}/{name}" for name in names]
    is_below = not any(name.startswith("/") or ":" in name for name in names)
    # What Spark takes for a pattern, or unescapes.
    is_literal = not any(pattern_signs & set(file) for file in files)
    is_plain = table.protocol().min_reader_version == 1 and is_below and is_literal
    few = listed_objects_max if is_s3(path) else listed_files_max
    return files if is_plain and 0 < len(files) <= few else None


def spark_schema(table: DeltaTable) -> StructType:
    schema: StructType = StructType.fromJson(json.loads(table.schema().to_json()))
    return schema


def entries_of(commits: Sequence[Mapping[str, Any]]) -> list[Entry | None]:
    """What commits say of themselves; None where one is not ours."""
    return [Entry.from_json(each.get("userMetadata")) for each in commits]


def rows_told(entries: Sequence[Entry | None]) -> int:
    return sum(entry.rows.total for entry in entries if entry)


def is_handful_of_changes(commits: Sequence[Mapping[str, Any]]) -> bool:
    """Whether commits changed so few rows that the driver takes them in: it has written each of them, and counted."""
    entries = entries_of(commits)
    is_alone = all(each.get("engineInfo", "").startswith("delta-rs") for each in commits)
    return bool(commits) and is_alone and None not in entries and rows_told(entries) <= rows_max


@dataclass(frozen=True)
class Scan:
    """A table with deletion vectors as an Arrow stream, which can be read any number of times."""

    table: DeltaTable

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.scan().__arrow_c_stream__(requested_schema)


@dataclass(frozen=True)
class Lake:
    """The tables below one root: `<root>/<layer>/<name>`."""

    root: str
    rows_per_file: int = rows_per_file_default
    deletion_vectors_from_rows: int = deletion_vectors_from_rows_default
    opened: "dict[tuple[str, int], DeltaTable] | None" = field(default=None, compare=False, repr=False)

    def path(self, table: str) -> str:
        return f"{self.root}/{table.replace('.', '/')}"

    @cached_property
    def files(self) -> Files:
        """What stands below the root beside the tables' rows."""
        return Files(self.root)

    @cached_property
    def storage_options(self) -> dict[str, str] | None:
        """What delta-rs must know of an object store."""
        return S3.of(self.root).delta_options() if is_s3(self.root) else None

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """A table, as it is or at a version; a TableNotFoundError when it does not exist."""
        key = (self.path(table), -1 if version is None else version)
        found = self.opened.get(key) if self.opened else None
        if found is None:
            found = DeltaTable(self.path(table), version, storage_options=self.storage_options)
        if version is not None and self.opened is not None:
            self.opened[key] = found
        return found

    def remembering(self) -> Self:
        """The same lake, which opens a version of a table once: for one refresh, not for a driver of days."""
        return replace(self, opened={})

    def exists(self, table: str) -> bool:
        return DeltaTable.is_deltatable(self.path(table), self.storage_options)

    def last_commit(self, table: str) -> Commit | None:
        """The newest ledger entry of a table, or None when the table does not exist."""
        try:
            found = self.open(table)
        except TableNotFoundError:
            return None
        for limit in (1, 20, None):
            for commit in found.history(limit):
                entry = Entry.from_json(commit.get("userMetadata"))
                if entry is not None:
                    return Commit(
                        table_id=str(found.metadata().id),
                        version=commit["version"],
                        timestamp_ms=commit["timestamp"],
                        entry=entry,
                        fence=found.transaction_version(entry.dataset) or 0,
                    )
        return None

    def fence(self, table: str, dataset: str) -> int:
        """The number of the newest commit that a dataset made to a table, which it may share; 0: none.

        A commit names the number after the one that was read with what it was computed from, and Delta lets one
        commit have it. So two drivers cannot both write what follows the same state, however late one of them is.
        """
        try:
            return self.open(table).transaction_version(dataset) or 0
        except TableNotFoundError:
            return 0

    def commits(self, table: str) -> list[Commit]:
        """Every commit of a table that the ledger knows, the oldest first."""
        try:
            found = self.open(table)
        except TableNotFoundError:
            return []
        table_id = str(found.metadata().id)
        return [
            Commit(table_id=table_id, version=each["version"], timestamp_ms=each["timestamp"], entry=entry)
            for each in reversed(found.history())
            if (entry := Entry.from_json(each.get("userMetadata"))) is not None
        ]

    def rows_changed(self, table: str, since: int, until: int) -> int:
        """How many rows the ledger says were changed after version `since`, up to `until`."""
        return rows_told(entries_of(self.told(table, since, until)))

    def told(self, table: str, since: int, until: int) -> list[dict[str, Any]]:
        """What the log tells of the commits after version `since`, up to `until`, the newest first."""
        return self.open(table, until).history(until - since) if until > since else []

    def written_by_others(self, table: str, after: int) -> list[dict[str, Any]]:
        """The commits after a version that no ledger entry explains, the newest first: another program wrote them."""
        found = self.told(table, after, self.newest_version(table))
        return [each for each in found if Entry.from_json(each.get("userMetadata")) is None]

    def newest_version(self, table: str) -> int:
        """The newest version of a table, whoever committed it."""
        return self.open(table).version()

    def version_at(self, table: str, timestamp_ms: int) -> int:
        """The newest version of a table that the ledger knows from a time or before it; 0 when it knows none."""
        known = [each.version for each in self.commits(table) if each.timestamp_ms <= timestamp_ms]
        return known[-1] if known else 0

    def oldest_version(self, table: str) -> int:
        """The oldest version whose commit the log still holds."""
        return min(map(int, self.log_files(table)), default=0)

    def log_files(self, table: str) -> list[str]:
        """The versions whose commits the log still holds, as they are written there."""
        names = [name.rsplit("/", 1)[-1] for name in Files(self.path(table)).below("_delta_log")]
        return [name.removesuffix(".json") for name in names if is_commit.fullmatch(name)]

    def row_count(self, table: str, version: int | None = None) -> int:
        """The number of rows, from the log and the deletion vectors."""
        return count_rows(self.open(table, version))

    def arrow(
        self, table: str, known_at: datetime | None = None, version: int | None = None
    ) -> "ArrowDataset | Scan | None":
        """The table as it is, or was known at a time or at a version, for engines that read Arrow.

        None when it was not there yet.
        """
        found = self.open(table, version)
        if known_at is not None:
            first = min(each["timestamp"] for each in found.history())
            if known_at.timestamp() * 1000 < first:
                return None
            found.load_as_version(known_at)
        return Scan(found) if has_deletion_vectors(found) else found.to_pyarrow_dataset()

    def tables(self) -> list[str]:
        """The names of all tables that exist, bronze first."""
        layers = ("bronze", "silver", "gold")
        return [
            table
            for layer in layers
            for name in self.files.folders(layer)
            # Other programs leave folders too; and one that is being made has a log without a commit.
            if table_name.fullmatch(name) and self.log_files(table := f"{layer}.{name}")
        ]

    def read(self, spark: "SparkSession", table: str, version: int | None = None) -> "DataFrame":
        """The rows of a table, at a version when one is given."""
        found = self.open(table, version)
        files = plain_files(found, self.path(table))
        if files is None:
            return spark.read.format("delta").option("versionAsOf", found.version()).load(self.path(table))
        schema = spark_schema(found)
        reader = spark.read.schema(schema).option("basePath", self.path(table))
        df = reader.parquet(*files)
        # Spark puts the columns that are in the paths last.
        return df.select(*schema.names) if found.metadata().partition_columns else df

    def changes(self, spark: "SparkSession", table: str, since: int, until: int) -> "DataFrame":
        """The old and new images of the rows changed after version `since`, up to `until`, with `_change_type`."""
        if is_handful_of_changes(self.told(table, since, until)):
            found = self.open(table, until)
            schema = StructType([*spark_schema(found), *feed])
            rows = RecordBatchReader.from_stream(found.load_cdf(since + 1, until)).read_all()
            # PySpark knows no Arrow table without batches.
            return spark.createDataFrame(rows.select(schema.names) if rows else [], schema)
        return (
            spark.read.format("delta")
            .option("readChangeFeed", "true")
            .option("startingVersion", since + 1)
            .option("endingVersion", until)
            .load(self.path(table))
        )

    def holds_changes(self, table: str, then: InputVersion, now: InputVersion) -> bool:
        """False when the changes from `then` to `now` cannot be read.

        So it is when the table was made anew in between or went back to a state before `then`, and when the log no
        longer reaches back.
        """
        if then.epoch != now.epoch or then.version > now.version or self.oldest_version(table) > then.version + 1:
            return False
        return then.commit_ms is None or then.commit_ms == self.commit_ms(table, then.version)

    def commit_ms(self, table: str, version: int) -> int | None:
        """The time that the commit of a version says of itself; None when the log no longer has the commit."""
        try:
            actions = Files(self.path(table)).read(f"_delta_log/{version:020}.json").splitlines()
        except FileNotFoundError:
            return None
        found = [json.loads(action)["commitInfo"] for action in actions if '"commitInfo"' in action]
        return int(found[0]["timestamp"]) if found else None

    def replace_rows(
        self,
        df: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        only: Mapping[str, str] | None = None,
        cluster_by: Sequence[str] = (),
    ) -> None:
        """Writes all rows of a table, or of `only` one slice of it, in one commit; makes the table if need be.

        Of this and the other ways to write rows: Superseded when another driver was faster (`fence`).
        """
        if only:
            self.create_shared(df, table, partition_by=list(only))
            self.retype_shared(df, table, partition_by=list(only))
            condition = " AND ".join(f"`{name}` = '{value}'" for name, value in only.items())
            options = {"replaceWhere": condition}
        elif self.exists(table):
            options = {"overwriteSchema": "true"}
        else:
            options = table_properties
        if cluster_by:
            df = df.sortWithinPartitions(*cluster_by)
        writer = df.write.format("delta").mode("overwrite").options(**options)
        writer = writer.option("maxRecordsPerFile", self.rows_per_file)
        writer.options(**signed(entry, fence)).save(self.path(table))
        self.require_written(table, entry)

    def create_shared(self, df: "DataFrame", table: str, partition_by: Sequence[str]) -> None:
        """Makes an empty table for the rows of several datasets, which may all want it at once."""
        with creation:
            if not self.exists(table):
                writer = df.limit(0).write.format("delta").options(**table_properties)
                writer.partitionBy(*partition_by).save(self.path(table))

    def retype_shared(self, df: "DataFrame", table: str, partition_by: Sequence[str]) -> None:
        """Gives a shared table the columns of `df`, in a commit of its own: one slice cannot have types of its own.

        Rows of the other datasets lose the values of another type, until they are computed by the same code again.
        """
        with creation:
            known = df.sparkSession.read.format("delta").load(self.path(table))
            if known.dtypes == df.dtypes:
                return
            kept = {name for name, _ in set(known.dtypes) & set(df.dtypes)}
            rows = known.select(
                *[
                    F.col(each.name) if each.name in kept else F.lit(None).cast(each.dataType).alias(each.name)
                    for each in df.schema
                ]
            )
            writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            writer.partitionBy(*partition_by).save(self.path(table))

    def add(self, rows: ArrowTable, table: str) -> None:
        """Adds rows in one commit without Spark; any number of processes may do it at once."""

        def write() -> None:
            path, options = self.path(table), self.storage_options
            write_deltalake(path, rows, mode="append", schema_mode="merge", storage_options=options)

        in_turn(table, write)

    def append_rows(self, df: "DataFrame", table: str, entry: Entry, fence: int, few: ArrowTable | None = None) -> None:
        """Adds rows in one commit; `few` are the same rows where they are a handful, and are written without Spark."""
        if few is not None and self.is_written_alone(table):
            self.commit_alone(table, entry, fence, few)
            return
        df.write.format("delta").mode("append").options(**signed(entry, fence)).save(self.path(table))
        self.require_written(table, entry)

    def merge_rows(
        self,
        difference: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        grain: Iterable[str],
        condition: str = "true",
        few: ArrowTable | None = None,
    ) -> None:
        """Applies a difference in one commit; `condition` holds literal bounds on `own` columns that skip files.

        `few` are the same rows where they are a handful, and are written without Spark if the table is short enough.
        """
        spark, grain = difference.sparkSession, list(grain)
        found = self.open(table)
        self.mark_deleted_rows(spark, table, found)
        if few is not None and is_replaceable(difference.schema, few, grain) and self.is_short(table, found):
            new = few.filter(pc.field(operation) != "deleted").drop_columns([operation])
            self.commit_alone(table, entry, fence, new, instead_of=any_of(few.select(grain)))
            return
        columns = [name for name in difference.columns if name != operation]
        matched = " AND ".join(f"own.`{name}` <=> new.`{name}`" for name in grain)
        updates = ", ".join(f"own.`{name}` = new.`{name}`" for name in columns)
        names = ", ".join(f"`{name}`" for name in columns)
        values = ", ".join(f"new.`{name}`" for name in columns)
        view = f"_difference_{table.replace('.', '_')}"
        difference.createOrReplaceTempView(view)
        settings = {user_metadata: entry.to_json(), application: entry.dataset, number: str(fence + 1)}
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            spark.sql(
                f"MERGE INTO delta.`{self.path(table)}` AS own USING {view} AS new ON {matched} AND {condition} "
                f"WHEN MATCHED AND new.{operation} = 'deleted' THEN DELETE "
                f"WHEN MATCHED THEN UPDATE SET {updates} "
                f"WHEN NOT MATCHED AND new.{operation} <> 'deleted' THEN INSERT ({names}) VALUES ({values})"
            ).collect()
        finally:
            for name in settings:
                spark.conf.unset(name)
            spark.catalog.dropTempView(view)
        self.require_written(table, entry)

    def is_written_alone(self, _table: str) -> bool:
        """Whether a handful of rows may be written without Spark."""
        return True

    def is_short(self, table: str, found: DeltaTable) -> bool:
        """Whether a table is short enough that its files may be written again for a handful of rows."""
        size = sum(found.get_add_actions(flatten=True)["size_bytes"].to_pylist())
        is_light = size <= short_bytes_max and count_rows(found) < self.deletion_vectors_from_rows
        return self.is_written_alone(table) and not has_deletion_vectors(found) and is_light

    def commit_alone(
        self,
        table: str,
        entry: Entry,
        fence: int,
        rows: ArrowTable,
        *,
        instead_of: str | None = None,
    ) -> None:
        """Adds rows, or puts them in the place of others, without Spark; like Spark nothing when another was faster."""
        said = CommitProperties(
            custom_metadata={"userMetadata": entry.to_json()},
            app_transactions=[Transaction(entry.dataset, fence + 1)],
        )

        def write() -> None:
            found = self.open(table)
            if (found.transaction_version(entry.dataset) or 0) != fence:
                self.require_written(table, entry)
                return
            if instead_of is None:
                write_deltalake(found, rows, mode="append", commit_properties=said)
                return
            write_deltalake(
                found,
                rows,
                mode="overwrite",
                predicate=instead_of,
                target_file_size=self.replaced_file_bytes(found),
                commit_properties=said,
            )

        in_turn(table, write)

    def replaced_file_bytes(self, found: DeltaTable) -> int | None:
        """How large files should be when rows are put in the place of others, so that the next time few are read."""
        files = found.get_add_actions(flatten=True)
        size, rows = (sum(files[name].to_pylist()) for name in ("size_bytes", "num_records"))
        return size * self.rows_per_file // rows if rows else None

    def require_written(self, table: str, entry: Entry) -> None:
        """Delta does not tell that it wrote nothing, because another had the number already; the ledger does.

        One that says the very same was made of the same, and is as good as ours.
        """
        # The rows of a table that is shared follow from the dataset's own.
        if table != entry.dataset:
            return
        commit = self.last_commit(table)
        if commit is None or commit.entry.to_json() != entry.to_json():
            raise Superseded(f"Another sluice wrote {table} at the same time, and this one wrote nothing. Run again.")

    def mark_deleted_rows(self, spark: "SparkSession", table: str, found: DeltaTable) -> None:
        """From a certain size on, a changed row of silver is marked deleted, and the rest of its file is not rewritten.

        Gold stays as it is: it is read by programs that know no deletion vectors.
        """
        if not table.startswith("silver.") or has_deletion_vectors(found):
            return
        if count_rows(found) >= self.deletion_vectors_from_rows:
            vectors = "'delta.enableDeletionVectors' = 'true'"
            spark.sql(f"ALTER TABLE delta.`{self.path(table)}` SET TBLPROPERTIES ({vectors})")

    def clone(self, spark: "SparkSession", source: str, version: int, table: str, entry: Entry) -> None:
        """Makes the table a copy of the one at the path `source` at a version; the data files stay where they are."""
        target = f"delta.`{self.path(table)}`"
        # delta-rs cannot read the log of a table that began as a clone.
        nothing = Schema([Field("nothing", PrimitiveType("integer"))])
        DeltaTable.create(self.path(table), nothing, storage_options=self.storage_options)
        spark.conf.set(user_metadata, entry.to_json())
        try:
            spark.sql(f"CREATE OR REPLACE TABLE {target} SHALLOW CLONE delta.`{source}` VERSION AS OF {version}")
        finally:
            spark.conf.unset(user_metadata)

    def compact(self, spark: "SparkSession", table: str) -> dict[str, int]:
        """Writes small files together into larger ones, in one commit that changes no row, or none."""
        if len(self.open(table).file_uris()) < 2:
            return {"compacted": 0, "into": 0}
        (row,) = spark.sql(f"OPTIMIZE delta.`{self.path(table)}`").select("metrics.*").collect()
        return {"compacted": row["numFilesRemoved"], "into": row["numFilesAdded"]}

    def vacuum(self, spark: "SparkSession", table: str) -> int:
        """Deletes the files that no version within the retention refers to; returns how many."""
        # Spark's takes half a minute for any table. What finds nothing to delete here has nothing there.
        if not self.open(table).vacuum(retention_days * 24, dry_run=True):
            return 0
        before = self.file_count(table)
        spark.sql(f"VACUUM delta.`{self.path(table)}`").collect()
        return before - self.file_count(table)

    def compact_added(self, table: str) -> dict[str, int]:
        """The same for a table that is added to without Spark, by any number of processes, and so only ever by this."""
        found = self.open(table)
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
        return sum(name.endswith(".parquet") and not name.startswith("_delta_log/") for name in names)

    def move_cursor(self, table: str, entry: Entry, fence: int) -> None:
        """Moves the cursor of a table whose rows stay as they are: a commit of nothing but its entry.

        Superseded when another driver was faster: it would say that the rows which that one wrote are not there yet.
        """
        said = CommitProperties(
            custom_metadata={"userMetadata": entry.to_json()},
            app_transactions=[Transaction(entry.dataset, fence + 1)],
        )

        def write() -> None:
            found = self.open(table)
            if (found.transaction_version(entry.dataset) or 0) != fence:
                self.require_written(table, entry)
                return
            partition_by = found.metadata().partition_columns
            found.create_write_transaction([], "append", found.schema(), partition_by, commit_properties=said)

        in_turn(table, write)
