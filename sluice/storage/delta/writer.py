"""Write rows, each time in one commit that states its inputs, or not at all if another driver was faster.

The engine calls these with what its gate has judged (`sluice.engine.commit`).
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from pyarrow import Schema as ArrowSchema
from pyarrow import Table as ArrowTable
from pyarrow import compute as pc
from pyspark.sql import functions as F

from sluice.errors import SluiceError, Superseded
from sluice.model.arrow_stream import ArrowStream
from sluice.model.few_rows import matching, nullable
from sluice.model.found import Among
from sluice.model.ledger import Entry
from sluice.model.prepared import is_classic
from sluice.model.small_frames import is_markable, is_read_by_driver, is_replaceable, is_short
from sluice.shapes.difference import operation
from sluice.storage.bucket import is_of_store
from sluice.storage.delta.added import added
from sluice.storage.delta.bloom import bloom_filters, writer_properties
from sluice.storage.delta.marked import (
    allows_marks,
    commit_marked,
    replacement_of,
    set_for_now,
    user_metadata,
)
from sluice.storage.delta.opened import (
    count_rows,
    file_sizes,
    rows_in,
    spark_schema,
    spark_schema_of,
    spark_types,
)
from sluice.storage.delta.reader import Reader, not_utf8
from sluice.storage.delta.statistics import has_wrong_bounds, properties_of, to_unset
from sluice.storage.delta.upkeep import retention_days
from sluice.storage.small_reads import place
from sluice.storage.small_writes import any_of, has_deletion_vectors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Written = TypeVar("Written")
ArrowRows = ArrowTable | ArrowStream
concurrent_commits_max = 20
# A store that is away is waited for by what reads it, for minutes each time.
answers_lost_max = 3
# A replacement writes the files again in which rows change: of sixteen columns, 0.7 CPU s for 250,000 rows, and 0.1 for
# as many as these.
replaced_rows_per_file = 50_000
# Of the files of a stream; how many rows fit is not known before they are written.
streamed_file_bytes = 64 * 1024 * 1024
table_properties = {
    "delta.enableChangeDataFeed": "true",
    # The change feed lives as long as the log that points to it, so a cursor is either readable or known to be too old.
    "delta.logRetentionDuration": f"interval {retention_days} days",
    "delta.deletedFileRetentionDuration": f"interval {retention_days} days",
    # Spark's default, for delta-rs too, which has another.
    "delta.checkpointInterval": "10",
    # They have the types of their day: delta-rs writes no checkpoint after one with a column that is another today.
    "delta.checkpoint.writeStatsAsStruct": "false",
}
# What delta-rs says of a condition with a time beyond the year 262143.
not_sayable = "Unable to convert expression to string"
creation = threading.Lock()
# Delta writes nothing for an application unless its number is above the last one in the table.
application, number = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class Writer(Reader):
    """Writes the rows of tables."""

    def replace_rows(
        self,
        df: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        only: Mapping[str, str] | None = None,
        cluster_by: Sequence[str] = (),
        find_by: Sequence[str] = (),
        in_arrow: ArrowRows | None = None,
    ) -> None:
        """Writes all rows of a table, or of `only` one slice of it, in one commit; makes the table if need be.

        `in_arrow` are the same rows if they can be written without Spark. Of this and the other ways to write rows:
        Superseded when another driver was faster (`fence`).
        """
        if (
            in_arrow is not None
            and self.allows_small_writes(table)
            and self.is_makeable(table, in_arrow, is_shared=bool(only))
        ):
            self.replace_small(table, entry, fence, in_arrow, only or {})
            return
        if only:
            self.create_shared(df, table, partition_by=list(only))
            self.retype_shared(df, table, partition_by=list(only))
            condition = " AND ".join(f"`{name}` = '{value}'" for name, value in only.items())
            options = {"replaceWhere": condition}
        elif self.exists(table):
            self.forget_statistics(df, table)
            self.allow_local_times(df, table)
            options = {"overwriteSchema": "true"}
        else:
            options = table_properties | properties_of(df.schema)
        if cluster_by:
            df = df.sortWithinPartitions(*cluster_by)
        writer = df.write.format("delta").mode("overwrite").options(**options)
        writer = writer.option("maxRecordsPerFile", self.rows_per_file)
        with bloom_filters(df.sparkSession, dict(df.dtypes), find_by):
            writer.options(**signed(entry, fence)).save(self.path(table))
        self.require_written(table, entry)
        if not only:
            self.state_statistics(df, table)

    def forget_statistics(self, df: "DataFrame", table: str) -> None:
        """Before other columns replace those of a table: Delta refuses a list of columns that are gone."""
        names = ", ".join(f"'{name}'" for name in to_unset(self.open(table), df.schema))
        if names:
            df.sparkSession.sql(f"ALTER TABLE delta.`{self.path(table)}` UNSET TBLPROPERTIES ({names})")

    def allow_local_times(self, df: "DataFrame", table: str) -> None:
        """Before a table gets its first column of local times: Delta adds that feature to new tables only."""
        if has_local_times(df.schema) and not has_local_times(spark_schema(self.open(table))):
            supported = "SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
            df.sparkSession.sql(f"ALTER TABLE delta.`{self.path(table)}` {supported}")

    def state_statistics(self, df: "DataFrame", table: str) -> None:
        """States which columns have statistics, once all rows are those of `df`, which Spark has written."""
        if has_wrong_bounds(self.open(table)):
            wanted = properties_of(df.schema).items()
            texts = ", ".join(f"{sql_text(name)} = {sql_text(text)}" for name, text in wanted)
            df.sparkSession.sql(f"ALTER TABLE delta.`{self.path(table)}` SET TBLPROPERTIES ({texts})")

    def create_shared(self, df: "DataFrame", table: str, partition_by: Sequence[str]) -> None:
        """Makes an empty table for the rows of several datasets, which may all want it at once."""
        with creation:
            if not self.exists(table):
                writer = df.limit(0).write.format("delta").options(**table_properties)
                writer.partitionBy(*partition_by).save(self.path(table))

    def retype_shared(self, df: "DataFrame", table: str, partition_by: Sequence[str]) -> None:
        """Gives a shared table the columns of `df`, in a separate commit: a slice cannot have its own types.

        Rows of the other datasets lose the values of another type, until they are computed by the same code again.
        """
        with creation:
            known = df.sparkSession.read.format("delta").load(self.path(table))
            if known.dtypes == df.dtypes:
                return
            self.allow_local_times(df, table)
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

        in_turn(table, write, is_fenced=False)

    def append_rows(
        self,
        df: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        cluster_by: Sequence[str] = (),
        find_by: Sequence[str] = (),
        in_arrow: ArrowRows | None = None,
    ) -> None:
        """Adds rows in one commit; `in_arrow` are the same rows if they can be written without Spark."""
        if in_arrow is not None and self.allows_small_writes(table):
            self.commit_small(table, entry, fence, in_arrow)
            return
        if cluster_by:
            df = df.sortWithinPartitions(*cluster_by)
        writer = df.write.format("delta").mode("append").option("maxRecordsPerFile", self.rows_per_file)
        with bloom_filters(df.sparkSession, dict(df.dtypes), find_by):
            writer.options(**signed(entry, fence)).save(self.path(table))
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
        find_by: Sequence[str] = (),
        small: ArrowTable | None = None,
    ) -> None:
        """Applies a difference in one commit; `condition` has literal bounds on `own` columns, to skip files.

        For a small write `small` has the same rows, which are written without Spark if the table is short enough.
        """
        spark, grain = difference.sparkSession, list(grain)
        found = self.open(table)
        self.mark_deleted_rows(spark, table, found)
        if (
            small is not None
            and is_replaceable(difference.schema, small, grain)
            and self.allows_small_replacements(table, found)
        ):
            new = small.filter(pc.field(operation) != "deleted").drop_columns([operation])
            try:
                self.commit_small(table, entry, fence, new, instead_of=any_of(small.select(grain)), find_by=find_by)
            except UnicodeDecodeError:
                # Text is any bytes to Spark, and so cannot be said in a condition,
                pass
            except DeltaError as error:
                # nor can Arrow read it in the other rows of the files; a time is of any year to Spark.
                if not any(each in str(error) for each in (not_utf8, not_sayable)):
                    raise
            else:
                return
        if small is not None and self.replace_marked(difference, table, entry, fence, grain=grain, small=small):
            return
        columns = [name for name in difference.columns if name != operation]
        matched = " AND ".join(f"own.`{name}` <=> new.`{name}`" for name in grain)
        updates = ", ".join(f"own.`{name}` = new.`{name}`" for name in columns)
        names = ", ".join(f"`{name}`" for name in columns)
        values = ", ".join(f"new.`{name}`" for name in columns)
        view = f"_difference_{table.replace('.', '_')}"
        difference.createOrReplaceTempView(view)
        settings = {user_metadata: entry.to_json(), application: entry.dataset, number: str(fence + 1)}
        try:
            with set_for_now(spark, settings), bloom_filters(spark, dict(difference.dtypes), find_by):
                spark.sql(
                    f"MERGE INTO delta.`{self.path(table)}` AS own USING {view} AS new ON {matched} AND {condition} "
                    f"WHEN MATCHED AND new.{operation} = 'deleted' THEN DELETE "
                    f"WHEN MATCHED THEN UPDATE SET {updates} "
                    f"WHEN NOT MATCHED AND new.{operation} <> 'deleted' THEN INSERT ({names}) VALUES ({values})"
                ).collect()
        finally:
            spark.catalog.dropTempView(view)
        self.require_written(table, entry)

    def replace_marked(
        self,
        difference: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        grain: Sequence[str],
        small: ArrowTable,
    ) -> bool:
        """Applies a small difference, whose rows `small` has too, by marking rows where the driver finds them.

        False, and nothing written, where only Spark can.
        """
        is_here = self.location.folder is not None and is_classic(difference)
        if not (is_here and self.allows_small_writes(table)):
            return False

        def write() -> bool:
            found = self.open(table)
            if (found.transaction_version(entry.dataset) or 0) != fence:
                self.require_written(table, entry)
                return True
            if not (allows_marks(found) and is_markable(spark_schema(found), small, grain)):
                return False
            placed = self.rows_to_replace(table, found, small, grain)
            if placed is None:
                return False
            replacement = replacement_of(found, self.path(table), small, placed, grain)
            if replacement is None:
                return False
            files = added(self, table, replacement.version, replacement.places)
            if files.keys() != replacement.places.keys():
                return False
            replacement = replace(replacement, files=files)
            commit_marked(difference.sparkSession, self.path(table), replacement, entry, fence)
            return True

        return in_turn(table, write)

    def rows_to_replace(
        self, table: str, found: DeltaTable, small: ArrowTable, grain: Sequence[str]
    ) -> ArrowTable | None:
        """The rows with the keys of a difference, and their places in files; None where the driver cannot find them."""
        of, rows = self.placed.get(table, (None, None))
        if of is not found or rows is None:
            conditions = [Among(name, small[name]) for name in grain]
            rows = self.find_placed(table, found, spark_schema(found), conditions)
        if rows is None or place not in rows.column_names:
            return None
        return matching(rows, small, [(name, name) for name in grain])

    def allows_small_writes(self, table: str) -> bool:  # noqa: ARG002 - a shadow looks at it
        """Whether small writes to a table may go without Spark."""
        return True

    def allows_small_replacements(self, table: str, found: DeltaTable) -> bool:
        """Whether a table is so short that a small write may rewrite its files."""
        size_bytes = sum(found.get_add_actions(flatten=True)["size_bytes"].to_pylist())
        is_light = is_short(size_bytes, count_rows(found), self.deletion_vectors_from_rows)
        return self.allows_small_writes(table) and not has_deletion_vectors(found) and is_light

    def commit_small(
        self,
        table: str,
        entry: Entry,
        fence: int,
        rows: ArrowRows,
        *,
        instead_of: str | None = None,
        find_by: Sequence[str] = (),
    ) -> None:
        """Adds rows, or puts them in the place of others, without Spark; like Spark nothing when another was faster."""
        said = properties(entry, fence)

        def write() -> None:
            found = self.open_own(table)
            if (found.transaction_version(entry.dataset) or 0) != fence:
                self.require_written(table, entry)
                return
            if instead_of is None:
                write_deltalake(found, rows, mode="append", commit_properties=said, **self.form(rows))
            else:
                count = count_rows(found)
                groups = writer_properties(spark_types(found), find_by, min(count, 2 * self.replaced_rows))
                write_deltalake(
                    found,
                    rows,
                    mode="overwrite",
                    predicate=instead_of,
                    target_file_size=self.replaced_file_bytes(found, count),
                    writer_properties=groups,
                    commit_properties=said,
                )
            self.keep_newest(table, found)

        in_turn(table, write)

    def form(self, rows: ArrowRows) -> dict[str, Any]:
        """How new files are written; those of a stream, which are rows of the log, are about as large as Spark's."""
        if isinstance(rows, ArrowStream):
            groups = WriterProperties(compression="SNAPPY", max_row_group_size=self.rows_per_file)
            return {"target_file_size": streamed_file_bytes, "writer_properties": groups}
        # Arrow has the same names for fractions and structs as Spark, and types that Spark does not know.
        types = {each.name: str(each.type) for each in rows.schema}
        return {"writer_properties": writer_properties(types, (), rows.num_rows)}

    def is_makeable(self, table: str, rows: ArrowRows, *, is_shared: bool) -> bool:
        """Whether a table is made without Spark: it is not there yet, or shared and has columns as these are."""
        is_long = isinstance(rows, ArrowTable) and rows.num_rows > self.rows_per_file
        if not self.allows_small_writes(table) or is_long:
            return False
        if not self.exists(table):
            return True
        return is_shared and self.open(table).schema() == Schema.from_arrow(as_spark_writes(rows.schema))

    def replace_small(self, table: str, entry: Entry, fence: int, rows: ArrowRows, only: Mapping[str, str]) -> None:
        """Makes a table of these rows, or puts them in the place of `only` one slice of a shared one."""
        rows = rows if isinstance(rows, ArrowStream) else rows.cast(as_spark_writes(rows.schema))
        if only:
            with creation:
                if not self.exists(table):
                    self.create(table, rows.schema, list(only))
            # Before its first commit a dataset has no rows in a shared table.
            condition = " AND ".join(f"`{name}` = '{value}'" for name, value in only.items()) if fence else None
            self.commit_small(table, entry, fence, rows, instead_of=condition)
            return
        configuration: Any = table_properties | properties_of(spark_schema_of(Schema.from_arrow(rows.schema)))

        def write() -> None:
            if self.exists(table):
                self.require_written(table, entry)
                return
            write_deltalake(
                self.path(table),
                rows,
                mode="error",
                configuration=configuration,
                storage_options=self.storage_options,
                commit_properties=properties(entry, fence),
                **self.form(rows),
            )

        in_turn(table, write)

    def create(self, table: str, schema: "ArrowSchema", partition_by: Sequence[str]) -> None:
        """Makes an empty table."""
        configuration: Any = table_properties
        DeltaTable.create(
            self.path(table),
            Schema.from_arrow(schema),
            partition_by=list(partition_by),
            configuration=configuration,
            storage_options=self.storage_options,
        )

    @property
    def replaced_rows(self) -> int:
        """How many rows a file has at least that a replacement divides; at most twice as many."""
        return min(replaced_rows_per_file, self.rows_per_file // 2)

    def replaced_file_bytes(self, found: DeltaTable, rows: int) -> int | None:
        """The size of the files that a replacement writes: small, so that the next one reads and writes little."""
        sizes = found.get_add_actions(flatten=True)["size_bytes"].to_pylist()
        if not rows:
            return None
        least = sum(sizes) * self.replaced_rows // rows
        # Room for some more rows: else each replacement in such a file would leave another, of a few.
        return int(least if max(sizes) > 2 * least else 2 * least)

    def require_written(self, table: str, entry: Entry) -> None:
        """Delta does not report that it wrote nothing because the number was taken; the ledger shows it.

        An identical entry was computed from the same inputs, and is as good as ours.
        """
        # The rows of a shared table follow from the dataset's own.
        if table != entry.dataset:
            return
        commit = self.last_commit(table)
        if commit is None:
            raise SluiceError(
                f"The log of {table} has no entry of Sluice's left: other programs wrote to it for longer than Delta "
                f"keeps commits. Delete the folder {self.path(table)}, and the next run makes the table again."
            )
        if not entry.says_the_same(commit.entry):
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

    def move_cursor(self, table: str, entry: Entry, fence: int) -> None:
        """Moves the cursor of a table whose rows stay as they are: a commit of nothing but its entry.

        Superseded if another driver was faster: the cursor would deny the rows which that one wrote.
        """
        said = properties(entry, fence)

        def write() -> None:
            found = self.open_own(table)
            if (found.transaction_version(entry.dataset) or 0) != fence:
                self.require_written(table, entry)
                return
            partition_by = found.metadata().partition_columns
            found.create_write_transaction([], "append", found.schema(), partition_by, commit_properties=said)
            found.update_incremental()
            self.keep_newest(table, found)

        in_turn(table, write)

    def clone(self, spark: "SparkSession", source: str, version: int, table: str, entry: Entry) -> None:
        """Makes the table a copy of the one at the path `source` at a version, in two commits.

        The data files of a large table stay where they are; the rows of a small one are written again.
        """
        found = DeltaTable(source, version, storage_options=self.storage_options)
        sizes = file_sizes(found)
        is_plain = sizes is not None and found.protocol().min_reader_version == 1
        if is_plain and is_read_by_driver(spark_schema(found), sizes or [], self.location.read_files_max):
            rows = rows_in(found)
            if rows is not None:
                self.copy_small(found, rows, table, entry)
                return
        target = f"delta.`{self.path(table)}`"
        # delta-rs cannot read the log of a table that began as a clone, and Delta adds no feature to one that is there.
        kind = "timestamp_ntz" if has_local_times(spark_schema(found)) else "integer"
        nothing = Schema([Field("nothing", PrimitiveType(kind))])
        DeltaTable.create(self.path(table), nothing, storage_options=self.storage_options)
        with set_for_now(spark, {user_metadata: entry.to_json()}):
            spark.sql(f"CREATE OR REPLACE TABLE {target} SHALLOW CLONE delta.`{source}` VERSION AS OF {version}")

    def copy_small(self, found: DeltaTable, rows: ArrowTable, table: str, entry: Entry) -> None:
        """Makes a table like another one, of its rows."""
        metadata: Any = found.metadata()
        made = DeltaTable.create(
            self.path(table),
            found.schema(),
            partition_by=metadata.partition_columns,
            configuration=metadata.configuration,
            # Properties that another program gave the table.
            raise_if_key_not_exists=False,
            storage_options=self.storage_options,
        )
        said = CommitProperties(custom_metadata={"userMetadata": entry.to_json()})
        write_deltalake(made, rows, mode="append", commit_properties=said, **self.form(rows))


def has_local_times(kind: "StructType") -> bool:
    """Whether a column is a time without a zone, also within another."""
    return "timestamp_ntz" in kind.simpleString()


def signed(entry: Entry, fence: int) -> dict[str, str]:
    """A commit's metadata as options of one write; session settings would outlive it."""
    return {"userMetadata": entry.to_json(), "txnAppId": entry.dataset, "txnVersion": str(fence + 1)}


def properties(entry: Entry, fence: int) -> CommitProperties:
    """The same of a commit without Spark."""
    return CommitProperties(
        custom_metadata={"userMetadata": entry.to_json()}, app_transactions=[Transaction(entry.dataset, fence + 1)]
    )


def sql_text(text: str) -> str:
    """A text in Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def as_spark_writes(schema: "ArrowSchema") -> "ArrowSchema":
    """The columns as Spark writes them: any may be null, and so may any field in one."""
    return pa.schema([pa.field(each.name, nullable(each.type)) for each in schema])


def in_turn(table: str, write: Callable[[], Written], *, is_fenced: bool = True) -> Written:
    """Writes, and retries if another process created the table or committed in between.

    Where the answer of an object store to a commit is lost, nobody knows whether it was written, so nobody below this
    repeats it. A write that `is_fenced` begins by looking for its own commit, and is repeated.
    """
    answers_lost = 0
    for _ in range(concurrent_commits_max):
        try:
            return write()
        except (CommitFailedError, FileExistsError):
            continue
        except (DeltaError, OSError) as error:
            answers_lost += 1
            if not (is_fenced and is_of_store(error)) or answers_lost > answers_lost_max:
                raise
    raise SluiceError(f"{table} has too many concurrent writers: no commit succeeded; try again.")
