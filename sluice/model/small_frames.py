"""Small frames: when the driver reads or writes itself instead of a Spark job, and every threshold of that."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cache, partial, reduce
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from sluice.model.ledger import Entry
from sluice.model.prepared import Prepared, is_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Together at most 160 MB. As many as come in some seconds of a steady flow: Spark's way costs more for those.
rows_max = 20_000
row_bytes_max = 8 * 1024
# All rows of a longer table are a constant that costs more than to look for some.
whole_rows_max = 8_000
# Of a table of so many rows those of a small scope are read by one task.
read_alone_max = 1_000_000
# The cost of a condition grows with the square of its terms: 0.05 s for three, 0.3 s for a hundred.
replaced_terms_max = 100
# The commit of a replacement names the key of each row.
replaced_rows_max = 8_000
# Below, it is cheaper to write a file again (0.2 s for 170,000 rows) than to mark rows in it (1.3 s), and to look for
# marks at every read (60 ms for each plan).
deletion_vectors_from_rows_default = 500_000
short_bytes_max = 128 * 1024 * 1024
# A value that a file has once may be in all of its rows, so those of a file are at most its bytes for each of them.
read_bytes_max = 100 * 1024 * 1024
# The rows of so small a table stay in memory while it is the newest.
kept_bytes_max = 1024 * 1024
# Each takes the driver a millisecond.
read_files_max = 256
# Spark would list more by a job, where the table's log tells which of them to skip.
listed_files_max = 32
# Each costs two requests, one after the other.
read_objects_max = 4
# As Spark has it.
arrow_batch_rows = 10_000
# What Spark and Arrow mean the same by.
numbers = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp"}
texts = {"string", "binary"}


def small_rows(
    df: "DataFrame", count: int = 0, sized: "Callable[[DataFrame], AbstractContextManager[object]]" = nullcontext
) -> pa.Table | None:
    """The rows of a frame; None when they are many, or large, or of types unlike Arrow's.

    `count` is how many they are, where that is known. The plan is optimised as the session is set, and run as within
    `sized`, which is given the frame that is run.
    """
    if count > rows_max or not is_plain(df.schema):
        return None
    known = known_rows(df)
    if known is not None:
        return known if known.num_rows <= rows_max and are_light(known) else None
    rows = each_if_light.of(df.limit(rows_max + 1))
    optimize(rows)
    with sized(rows):
        found = collected(rows)["row"].combine_chunks()
    kept = cast(pa.StructArray, cast("pa.ListArray[Any]", found).flatten())
    return pa.Table.from_struct_array(kept) if len(kept) == len(found) <= rows_max else None


def if_light(df: "DataFrame") -> "DataFrame":
    """Each row in an array, or an empty one for a row that is large: what is too large never leaves Spark."""
    sizes = [f"coalesce(octet_length(CAST(`{name}` AS string)), 0L)" for name, kind in df.dtypes if kind not in numbers]
    rows = df.selectExpr(f"IF({' + '.join(['0L', *sizes])} <= {row_bytes_max}, array(struct(*)), array()) AS row")
    if not requires_within(df.schema):
        return rows
    # Arrow takes what lies within a null for a null of its own.
    return rows.select(F.col("row").cast(ArrayType(nullable(df.schema))).alias("row"))


each_if_light = Prepared(if_light, made_first=1)


def all_rows(df: "DataFrame") -> pa.Table:
    """The rows of a frame that has few."""
    known = known_rows(df)
    return collected(df) if known is None else known


def are_light(rows: pa.Table) -> bool:
    """Whether no row has more bytes of text and the like than `row_bytes_max`."""
    sizes = [bytes_of(column) for column in rows.columns if not has_fixed_width(column.type)]
    total = reduce(cast(Any, pc).add, sizes) if sizes and rows.num_rows else None
    return total is None or pc.max(total).as_py() <= row_bytes_max


def bytes_of(column: "pa.ChunkedArray[Any]") -> "pa.Array[Any]":
    """How many bytes each value has; of nested ones, about."""
    if pa.types.is_nested(column.type):
        whole = column.combine_chunks()
        return pa.array([whole.slice(row, 1).nbytes for row in range(len(whole))], pa.int64())
    found = pc.binary_length(column).cast(pa.int64()).combine_chunks()
    return cast("pa.Array[Any]", pc.fill_null(found, 0))


def has_fixed_width(kind: pa.DataType) -> bool:
    return pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)


def collected(df: "DataFrame") -> pa.Table:
    """The rows of a frame. `toArrow` also asks for settings that we know, at thirty calls to the JVM each time."""
    if not is_classic(df):
        return df.toArrow()
    return pa.Table.from_batches(cast(Any, df)._collect_as_arrow(empty_list_if_zero_records=False))


def requires_within(kind: DataType, *, is_within: bool = False) -> bool:
    """Whether a struct within another has a field that is never null."""
    match kind:
        case StructType():
            return any(
                (is_within and not each.nullable) or requires_within(each.dataType, is_within=True) for each in kind
            )
        case ArrayType():
            return requires_within(kind.elementType, is_within=True)
        case MapType():
            return requires_within(kind.valueType, is_within=True)
    return False


def nullable(kind: DataType, *, with_metadata: bool = False) -> DataType:
    """The same type, in which everything may be null but the keys of maps."""
    within = partial(nullable, with_metadata=with_metadata)
    match kind:
        case StructType():
            return StructType(
                [
                    StructField(each.name, within(each.dataType), metadata=each.metadata if with_metadata else None)
                    for each in kind
                ]
            )
        case ArrayType():
            return ArrayType(within(kind.elementType))
        case MapType():
            return MapType(kind.keyType, within(kind.valueType))
    return kind


def optimize(df: "DataFrame") -> None:
    """Optimizes a frame now: what Delta asks its tables' logs meanwhile is small, whatever the frame's own size."""
    if is_classic(df):
        df._jdf.queryExecution().optimizedPlan()


def is_local(df: "DataFrame") -> bool:
    """Whether a frame is made of rows that the driver has, and of nothing else, so that it costs little to compute."""
    if is_known_local(df):
        return True
    if not is_classic(df):
        return False
    plans = df._jdf.queryExecution()
    # What has no other leaf as it was written is not optimised to find that out.
    return has_local_leaves(plans.analyzed()) or has_local_leaves(plans.optimizedPlan())


def is_known_local(df: "DataFrame") -> bool:
    """The same where it is known without asking the JVM: such a frame is in one partition."""
    return bool(vars(df).get("_is_local"))


def has_local_leaves(plan: Any) -> bool:
    """Whether all rows that a plan of the JVM reads are in it."""
    leaves = plan.collectLeaves()
    return all(leaves.apply(index).nodeName() == "LocalRelation" for index in range(leaves.size()))


def local(df: "DataFrame", rows: pa.Table) -> "DataFrame":
    """The rows of `df` that were taken, as a frame that computes nothing."""
    return frame_of(df.sparkSession, rows, cast(StructType, nullable(df.schema)))


def frame_of(spark: "SparkSession", rows: pa.Table | None, schema: StructType) -> "DataFrame":
    """A frame of rows that the driver has, in one partition, so that nothing of it is shuffled."""
    if rows is None and is_plain(schema):
        rows = to_arrow_schema(schema, timezone="UTC").empty_table()
    few = rows if rows is not None and rows.num_rows else None
    if hasattr(spark, "_jsparkSession"):
        found = made_when_asked(spark, schema, partial(relation, spark, few, schema), is_local=True)
    else:
        whole = None if few is None else few.combine_chunks()
        found = spark.createDataFrame([], schema) if whole is None else spark.createDataFrame(whole, schema).coalesce(1)
    vars(found)["_known_rows"] = rows
    return found


def known_rows(df: "DataFrame") -> pa.Table | None:
    """The rows that a frame was made of by `frame_of`, in its columns; None where it was made otherwise."""
    return vars(df).get("_known_rows")


def relation(spark: "SparkSession", rows: pa.Table | None, schema: StructType) -> "DataFrame":
    """The same, made now."""
    if rows is not None:
        return from_arrow(spark, rows, schema).coalesce(1)
    from pyspark.sql.classic.dataframe import DataFrame

    # PySpark makes an RDD of no rows, whose size Spark does not know.
    session, jvm = spark._jsparkSession, cast(Any, spark._jvm)
    nothing = session.createDataFrame(jvm.java.util.ArrayList(), session.parseDataType(schema.json()))
    return DataFrame(nothing, spark).coalesce(1)


def is_known_empty(df: "DataFrame") -> bool:
    """Whether a frame was made of no rows."""
    known = known_rows(df)
    return known is not None and known.num_rows == 0


def made_when_asked(
    spark: "SparkSession", schema: StructType, make: "Callable[[], DataFrame]", *, is_local: bool = False
) -> "DataFrame":
    """A frame with a schema whose plan is made when it is first computed or built upon, and not where it never is.

    `is_local` says that it is made of rows that the driver has.
    """
    return cast("DataFrame", unmade()(spark, schema, make, is_local)) if hasattr(spark, "_jsparkSession") else make()


@cache
def unmade() -> Any:
    """The class of such frames; Spark Connect comes without what it is derived from."""
    from pyspark.sql.classic.dataframe import DataFrame

    class Unmade(DataFrame):
        def __init__(
            self, spark: "SparkSession", schema: StructType, make: "Callable[[], DataFrame]", is_local: bool
        ) -> None:
            super().__init__(None, spark)
            del self._jdf
            # A schema can be changed in place, by whoever asks for it.
            vars(self).update(schema=deepcopy(schema), _make=make, _making=Lock(), _is_local=is_local)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                # Asked of a copy before it has anything.
                raise AttributeError(name)
            if name != "_jdf":
                return super().__getattr__(name)
            with vars(self)["_making"]:
                if "_jdf" not in vars(self):
                    vars(self).update(_jdf=vars(self)["_make"]()._jdf, _make=None)
            return vars(self)["_jdf"]

    return Unmade


def from_arrow(spark: "SparkSession", rows: pa.Table, schema: StructType) -> "DataFrame":
    """What `createDataFrame` makes of rows, with the session's settings as we know them: it asks for each.

    It silently leaves out all rows after a chunk that has none, so there are no chunks.
    """
    make = cast(Any, spark)._create_from_arrow_table
    return cast("DataFrame", make(rows.combine_chunks(), schema, "UTC", False, False, arrow_batch_rows))


def is_plain(kind: DataType) -> bool:
    """Whether a type is known to go through Arrow as it is."""
    match kind:
        case StructType():
            return all(is_plain(field.dataType) for field in kind.fields)
        case ArrayType():
            return is_plain(kind.elementType)
        case MapType():
            return is_plain(kind.keyType) and is_plain(kind.valueType)
    return kind.simpleString() in numbers | texts or kind.simpleString().startswith("decimal(")


def is_replaceable(schema: StructType, rows: pa.Table, grain: Sequence[str]) -> bool:
    """Whether rows of a schema are so few that a condition names them one by one."""
    is_few = rows.num_rows <= replaced_rows_max
    return is_few and is_named(schema, rows, grain) and terms_in(rows.select(list(grain))) <= replaced_terms_max


def is_markable(schema: StructType, rows: pa.Table, grain: Sequence[str]) -> bool:
    """Whether the driver finds rows of a schema in their files and marks them there, where a table allows marks."""
    return is_named(schema, rows, grain) and is_plain(schema) and not requires_within(schema)


def is_named(schema: StructType, rows: pa.Table, grain: Sequence[str]) -> bool:
    """Whether a few rows have keys that mean the same everywhere. 0.0 and -0.0 are one to Spark, and two elsewhere."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    is_keyed = all(kinds[name] not in ("float", "double") for name in grain)
    is_flat = not any(kinds[name].startswith(("struct", "array", "map")) for name in grain)
    return is_keyed and is_flat and bool(grain) and 0 < rows.num_rows <= rows_max


def terms_in(keys: pa.Table) -> int:
    """Of how many terms the condition is that names these keys: those that share all values but one are in one."""
    distinct = sorted(len(pc.unique(column)) for column in keys.columns)
    return min(keys.num_rows, math.prod(distinct[:-1]))


def is_read_by_driver(schema: StructType, files: Sequence[tuple[int | None, int]], files_max: int) -> bool:
    """Whether the driver reads a table itself, given the rows and bytes of each of its files."""
    if len(files) > files_max or any(rows is None for rows, _ in files):
        return False
    is_short = sum(rows or 0 for rows, _ in files) <= min(rows_max, whole_rows_max)
    is_light = sum((rows or 0) * size_bytes for rows, size_bytes in files) <= read_bytes_max
    return is_short and is_light and is_plain(schema) and not requires_within(schema)


def is_listed(files: Sequence[tuple[int | None, int]], files_max: int) -> bool:
    """Whether Spark gets the files of a table as a list, instead of the table whose log it would have to read."""
    return len(files) <= min(files_max, listed_files_max)


def are_small_changes(commits: Sequence[Mapping[str, Any]], entries: Sequence[Entry | None]) -> bool:
    """Whether commits changed so few rows that the driver reads them: they are counted, and delta-rs reads them right.

    It takes all rows of a file that Spark removed for deleted, also those that a deletion vector had marked before; a
    MERGE removes none without a list of the rows. Its own compaction changes none, and states no entry.
    """
    entries = [entry for entry, each in zip(entries, commits, strict=True) if not is_compaction(each)]
    is_readable = all(
        each.get("engineInfo", "").startswith("delta-rs") or each.get("operation") == "MERGE" for each in commits
    )
    return bool(commits) and is_readable and None not in entries and rows_in(entries) <= rows_max


def is_compaction(commit: Mapping[str, Any]) -> bool:
    """Whether delta-rs wrote files together in a commit, and changed no row."""
    return commit.get("operation") == "OPTIMIZE" and commit.get("engineInfo", "").startswith("delta-rs")


def rows_in(entries: Sequence[Entry | None]) -> int:
    """How many rows commits changed, by their entries."""
    return sum(entry.rows.total for entry in entries if entry)


def is_short(size_bytes: int, rows: int, deletion_vectors_from_rows: int) -> bool:
    """Whether a table is so short that a small write may rewrite its files."""
    return size_bytes <= short_bytes_max and rows < deletion_vectors_from_rows
