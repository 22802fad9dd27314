"""Replace rows of a large table: the old ones are marked as deleted in their files, and the new ones are written.

Where the old rows are, by file and number, the driver has found out (`sluice.storage.small_reads`). Delta's own
transaction writes the marks, the new rows and the change feed, and notices whoever commits meanwhile.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from sluice.errors import SluiceError
from sluice.model.few_rows import keys_of
from sluice.model.ledger import Entry
from sluice.model.small_frames import frame_of
from sluice.shapes.difference import operation
from sluice.storage.delta.opened import spark_schema
from sluice.storage.small_reads import file_name, place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

change_type = "_change_type"
user_metadata = "spark.databricks.delta.commitInfo.userMetadata"
# The entry counts the rows; the figures that Delta expects of a MERGE are those of its own plan. No code that is
# generated for the table's log, or for a few rows, earns back what it takes.
settings = {
    "spark.databricks.delta.history.metricsEnabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
# A table that needs more of a writer than the transaction below does is left to Spark's MERGE.
writer_features = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "deletionVectors"}
# Delta names it for each table that was made by a version of the protocol, as small ones are.
generated_columns, generated_by = "generatedColumns", "delta.generationExpression"
properties = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}
conflicts = "io.delta.exceptions."


@dataclass(frozen=True)
class Replacement:
    """What is to change in a version of a table: the `places` of the old rows by file, and the `images` to write.

    Of each file, `files` has what the log says of it.
    """

    table_id: str
    version: int
    places: Mapping[str, Sequence[int]]
    images: pa.Table
    schema: StructType
    files: Mapping[str, str] = field(default_factory=dict)


def replacement_of(
    table: DeltaTable, folder: str, small: pa.Table, placed: pa.Table, grain: Sequence[str]
) -> Replacement | None:
    """What a difference changes in a table, whose rows with the same keys were found at their places.

    None where the table has other columns, or other rows than the difference updates and deletes, each once.
    """
    schema = spark_schema(table)
    images = changed_images(small, placed, grain)
    if images is None or set(images.column_names) != {*schema.names, change_type}:
        return None
    schema = StructType([*schema, StructField(change_type, StringType())])
    places, table_id = places_of(placed, folder), str(table.metadata().id)
    return Replacement(table_id, table.version(), places, images.select(schema.names), schema)


def allows_marks(table: DeltaTable) -> bool:
    """Whether rows of a table can be marked, and the change feed keeps what they were."""
    metadata = table.metadata()
    is_generated = any(generated_by in each.metadata for each in table.schema().fields)
    known = writer_features if is_generated else {*writer_features, generated_columns}
    is_known = set(table.protocol().writer_features or []) <= known
    has_all = all(metadata.configuration.get(name) == value for name, value in properties.items())
    return is_known and has_all and not metadata.partition_columns


def changed_images(small: pa.Table, placed: pa.Table, grain: Sequence[str]) -> pa.Table | None:
    """The rows to write: the new ones, and for the change feed all images, each with its `_change_type`.

    `small` is a difference, and `placed` are the rows that a table has for its keys. None where these are not just
    those that the difference updates and deletes, each once.
    """
    kinds = dict(zip(keys_of(small, grain), small[operation].to_pylist(), strict=True))
    there = keys_of(placed, grain)
    replaced = {key for key, kind in kinds.items() if kind != "inserted"}
    if len(kinds) != small.num_rows or len(there) != len(set(there)) or set(there) != replaced:
        return None
    rows = small.drop_columns([operation])
    old = placed.select(rows.column_names).cast(rows.schema)
    new = rows.filter(pa.array([kind != "deleted" for kind in kinds.values()], pa.bool_()))
    before = ["delete" if kinds[key] == "deleted" else "update_preimage" for key in there]
    after = ["insert" if kind == "inserted" else "update_postimage" for kind in kinds.values() if kind != "deleted"]
    # Delta writes what has no type into the table, and the rest into its feed.
    return pa.concat_tables([typed(new, [None] * len(after)), typed(old, before), typed(new, after)])


def typed(rows: pa.Table, types: Sequence[str | None]) -> pa.Table:
    return rows.append_column(change_type, pa.array(types, pa.string()))


def places_of(placed: pa.Table, folder: str) -> dict[str, list[int]]:
    """For each file, as the log names it, the numbers of the rows that were found in it."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for file, number in zip(placed[file_name].to_pylist(), placed[place].to_pylist(), strict=True):
        found[str(file).removeprefix(f"{folder}/")].append(number)
    return dict(found)


def commit_marked(spark: "SparkSession", path: str, replacement: Replacement, entry: Entry, fence: int) -> None:
    """Marks the old rows and writes the images, in one commit.

    A CommitFailedError, and nothing committed, when the table has another version, or gets one meanwhile. `fence` is
    the number of the dataset's last commit in that version.
    """
    with set_for_now(spark, {**settings, user_metadata: entry.to_json()}):
        transaction = Transaction(spark, path)
        transaction.require(replacement, entry.dataset)
        rows = frame_of(spark, replacement.images, replacement.schema)
        try:
            marked, written = transaction.marked(replacement), transaction.written(rows)
            transaction.commit([*marked, *written], entry.dataset, fence)
        except (Py4JJavaError, PySparkException) as error:
            if conflicts not in f"{error} {getattr(error, '_desc', '')}":
                raise
            raise CommitFailedError(str(error)) from error


@contextmanager
def set_for_now(spark: "SparkSession", wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while, and then those that it had."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, had in before.items():
            if had is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, had)


class Transaction:
    """A transaction of Delta on the table at a path, in the JVM."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        self.spark = spark
        self.jvm = cast(Any, spark._jvm)
        self.delta = self.jvm.org.apache.spark.sql.delta
        # It takes the settings of the session that is active.
        getattr(self.jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(spark._jsparkSession)
        self.log = self.delta.DeltaLog.forTable(spark._jsparkSession, path)
        self.begun = self.log.startTransaction()

    def require(self, replacement: Replacement, dataset: str) -> None:
        """A CommitFailedError unless it begins at the version that is changed; a later commit of rows conflicts."""
        if (self.begun.metadata().id(), self.begun.readVersion()) != (replacement.table_id, replacement.version):
            raise CommitFailedError(f"version {replacement.version} is no longer the newest")
        self.begun.readWholeTable()
        # So does one of this dataset. `txnVersion` would say so too, and have Spark add up the log for a number that is
        # known.
        self.begun.readTxn().append(dataset)

    def marked(self, replacement: Replacement) -> list[Any]:
        """The actions that mark the old rows, beside those that are marked already."""
        store = singleton(self.delta.storage.dv, "DeletionVectorStore").createInstance(self.log.newDeltaHadoopConf())
        identity = self.jvm.java.util.UUID.fromString(str(uuid.uuid4()))
        actions = singleton(self.delta.actions, "Action")
        home = store.pathWithFileSystem(self.log.dataPath())
        writer = store.createWriter(store.generateFileNameInTable(home, identity, ""))
        try:
            return [
                action
                for path, numbers in replacement.places.items()
                for action in self.marked_in(
                    actions.fromJson(replacement.files[path]), numbers, store, writer, identity
                )
            ]
        finally:
            writer.close()

    def marked_in(self, file: Any, numbers: Sequence[int], store: Any, writer: Any, identity: Any) -> list[Any]:
        """The actions for one file: it goes where no row is left in it, and else is named again with its marks."""
        marks = self.marks_of(file, store)
        count = marks.cardinality() + len(numbers)
        for number in numbers:
            marks.add(number)
        if marks.cardinality() != count:
            raise SluiceError(f"Rows of {file.path()} that are marked as deleted were found; nothing was written.")
        rows = file.numPhysicalRecords()
        if rows.isDefined() and rows.get() == count:
            return [file.remove()]
        marks.runOptimize()
        content = marks.serializeAsByteArray(self.portable)
        within = self.some(writer.write(content).offset())
        vector = self.delta.actions.DeletionVectorDescriptor.onDiskWithRelativePath(
            identity, "", len(content), count, within, self.nothing
        )
        both = file.removeRows(vector, True, True)
        return [both._1(), both._2()]

    def marks_of(self, file: Any, store: Any) -> Any:
        """The marks that a file has already."""
        known = file.deletionVector()
        if known is None:
            return self.delta.deletionvectors.RoaringBitmapArray()
        return self.delta.deletionvectors.StoredBitmap.create(known, self.log.dataPath()).load(store)

    def written(self, rows: "DataFrame") -> list[Any]:
        """The actions that add the files of new rows and of the change feed, which are written now."""
        return list(self.listed(self.begun.writeFiles(rows._jdf)))

    def commit(self, actions: Iterable[Any], dataset: str, fence: int) -> None:
        now = self.jvm.java.lang.System.currentTimeMillis()
        number = self.delta.actions.SetTransaction(dataset, fence + 1, self.some(now))
        nothing, none = self.nothing, self.sequence([])
        merge = getattr(self.delta, "DeltaOperations$Merge")(nothing, nothing, nothing, nothing, none, none, none)
        self.begun.commit(self.sequence([number, *actions]), merge)

    def sequence(self, values: Iterable[Any]) -> Any:
        """A sequence of Scala."""
        found = self.jvm.java.util.ArrayList()
        for each in values:
            found.add(each)
        return self.jvm.org.apache.spark.api.python.PythonUtils.toSeq(found)

    def listed(self, sequence: Any) -> Iterable[Any]:
        """The elements of a sequence of Scala."""
        return [sequence.apply(at) for at in range(sequence.size())]

    def some(self, value: object) -> Any:
        return self.jvm.scala.Option.apply(value)

    @property
    def nothing(self) -> Any:
        return self.jvm.scala.Option.empty()

    @property
    def portable(self) -> Any:
        """The form of marks that every reader of Delta knows."""
        return singleton(self.delta.deletionvectors, "RoaringBitmapArrayFormat").Portable()


def singleton(package: Any, name: str) -> Any:
    """An object of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
