"""Find a few rows of a large table in the driver: files, row groups and pages are skipped, and no job is started.

DataFusion does it, within delta-rs. It skips nothing in a table with deletion vectors, so DuckDB reads the files of
such a table, with the place of each row in its file, and the marked rows are left out here.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from sluice.model.found import Among, Condition
from sluice.model.scope import ranges_of
from sluice.model.sql import double_quoted
from sluice.storage import small_writes
from sluice.storage.small_writes import has_deletion_vectors, paths_of

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, Scalar

    Form = Callable[[Scalar[Any]], str]

rows_max = 20_000
bytes_max = 64 * 1024 * 1024
# What the conditions leave of the files: beyond, Spark's tasks share the work.
candidate_bytes_max = 4 * 1024 * 1024 * 1024
candidate_files_max = 2_000
# Files are skipped by a list of at most so many values, and by ranges.
skipped_by_list_max = 20
settings = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.reorder_filters": "true",
}
# Of these types a file's bounds are as exact in the log as the values are.
bounded = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_string)
place, file_name = "file_row_number", "filename"
placed_rows_sql = (
    f"read_parquet($1, {place} = true, {file_name} = true, union_by_name = true, hive_partitioning = false)"
)
duckdb_config: "dict[str, str | bool | int | float | list[str]]" = {"autoinstall_known_extensions": False}


def find_placed(
    table: DeltaTable, schema: pa.Schema, folder: str | None, conditions: Sequence[Condition], files: pa.Table
) -> pa.Table | None:
    """The rows that meet all conditions, in the columns of a schema; None where they are many, or have no such values.

    Arrow has no text that is not UTF-8. `files` are the `candidates`, and `folder` is where they are, None if that is
    not on this machine. Where it is and the table has deletion vectors, each row has its `place` in its file too.
    """
    if not are_few(files):
        return None
    names = None if folder is None else paths_of(folder, files["path"].to_pylist())
    try:
        if names is not None and has_deletion_vectors(table) and not table.metadata().partition_columns:
            return among_files(table, schema, names, conditions)
        return among_rows(table, schema, conditions)
    except (pa.ArrowInvalid, DeltaError, duckdb.Error):
        return None


def among_rows(table: DeltaTable, schema: pa.Schema, conditions: Sequence[Condition]) -> pa.Table | None:
    """The rows that meet all conditions, by DataFusion; None where they are many."""
    wanted = " AND ".join(sql_of(each, small_writes.value_of) for each in conditions)
    query = QueryBuilder(settings).register("rows", table).execute(f"SELECT * FROM rows WHERE {wanted}")  # noqa: S608 - literals alone
    return taken(pa.RecordBatchReader.from_stream(query), schema)


def among_files(
    table: DeltaTable, schema: pa.Schema, names: list[str], conditions: Sequence[Condition]
) -> pa.Table | None:
    """The rows of these files that meet all conditions and are not marked, by DuckDB; None where they are many."""
    if not names:
        return schema.empty_table()
    wanted = " AND ".join(sql_of(each, duckdb_value_of) for each in conditions)
    with duckdb.connect(config=duckdb_config) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        rows = connection.sql(f"SELECT * FROM {placed_rows_sql} WHERE {wanted}", params=[names])  # noqa: S608 - literals alone
        found = taken(cast(pa.RecordBatchReader, rows.to_arrow_reader()), placed_schema(schema))
    return None if found is None else without_marked(table, found)


def placed_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a table, and the place of each row."""
    return schema.append(pa.field(place, pa.int64())).append(pa.field(file_name, pa.string()))


def taken(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table | None:
    """All rows, in the columns of a schema; None as soon as they are many."""
    found, rows, size_bytes = [], 0, 0
    for batch in batches:
        # Rows that were filtered out are still in the buffers of a batch until it is copied.
        found.append(batch.select(schema.names).cast(schema))
        rows, size_bytes = rows + batch.num_rows, size_bytes + found[-1].nbytes
        if rows > rows_max or size_bytes > bytes_max:
            return None
    return pa.Table.from_batches(found, schema)


def without_marked(table: DeltaTable, rows: pa.Table) -> pa.Table:
    """The rows that no deletion vector of the table marks; a file's vector ends after its last mark at the earliest."""
    kept = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for file, vector in zip(batch["filepath"], batch["selection_vector"], strict=True):
            kept[str(file).rsplit("/", 1)[-1]] = vector.values
    return rows.filter(pa.array(is_kept(rows, kept), pa.bool_()))


def is_kept(rows: pa.Table, kept: "dict[str, Any]") -> list[bool]:
    vectors = [kept.get(str(file).rsplit("/", 1)[-1], ()) for file in rows[file_name]]
    places = [int(each.as_py()) for each in rows[place]]
    return [at >= len(each) or each[at].as_py() for each, at in zip(vectors, places, strict=True)]


def sql_of(condition: Condition, value_of: "Form") -> str:
    """A condition as SQL, in which `value_of` makes a literal."""
    column = double_quoted(condition.column)
    if not isinstance(condition, Among):
        begun = f"{column} >= {value_of(condition.start)}"
        return begun if condition.end is None else f"{begun} AND {column} < {value_of(condition.end)}"
    values = sorted_values(condition)
    found = f"{column} IN ({', '.join(map(value_of, values))})" if len(values) else "false"
    if len(values) > skipped_by_list_max:
        within = [f"{column} BETWEEN {value_of(least)} AND {value_of(greatest)}" for least, greatest in ranges(values)]
        found = f"{found} AND ({' OR '.join(within)})"
    return f"({found} OR {column} IS NULL)" if condition.values.null_count else f"({found})"


def duckdb_value_of(value: "Scalar[Any]") -> str:
    """A value that is not null, in DuckDB's SQL; times by their number, and texts by their bytes."""
    kind = value.type
    if pa.types.is_timestamp(kind):
        return f"make_timestamptz({value.cast(pa.int64())})"
    if pa.types.is_date(kind):
        return f"(DATE '1970-01-01' + ({value.cast(pa.int32())}))"
    if pa.types.is_binary(kind):
        return f"unhex('{value.as_py().hex()}')"
    if pa.types.is_string(kind):
        return f"decode(unhex('{value.as_py().encode().hex()}'))"
    if pa.types.is_decimal(kind):
        return f"CAST('{value.as_py():f}' AS DECIMAL({kind.precision}, {kind.scale}))"
    return f"CAST('{value}' AS {'BOOLEAN' if pa.types.is_boolean(kind) else 'BIGINT'})"


def candidates(table: DeltaTable, conditions: Sequence[Condition]) -> pa.Table:
    """The files that can have such rows, by what the log says of each."""
    files = pa.table(table.get_add_actions(flatten=True))
    for each in conditions:
        names = [f"{which}.{each.column}" for which in ("min", "max", "null_count")]
        if set(names) <= set(files.column_names) and any(of(files[names[1]].type) for of in bounded):
            files = files.filter(can_hold(files, each))
    return files


def are_few(files: pa.Table) -> bool:
    """Whether the driver may search these files."""
    return files.num_rows <= candidate_files_max and (pc.sum(files["size_bytes"]).as_py() or 0) <= candidate_bytes_max


def can_hold(files: pa.Table, condition: Condition) -> "ChunkedArray[Any]":
    """For each file whether its rows can meet a condition; true where nothing is known of it."""
    least, greatest, nulls = (files[f"{which}.{condition.column}"] for which in ("min", "max", "null_count"))
    if pa.types.is_timestamp(greatest.type):
        # Spark writes the milliseconds of the greatest, rounded down.
        greatest = pc.add(greatest, pa.scalar(999, pa.duration("us")))
    within: tuple[tuple[Scalar[Any], Scalar[Any] | None], ...]
    if isinstance(condition, Among):
        within = ranges(sorted_values(condition))
        has_nulls = condition.values.null_count > 0
    else:
        within, has_nulls = ((condition.start, condition.end),), False
    least_nulls: Any = pa.scalar(1)
    found: Any = pc.greater_equal(nulls, least_nulls) if has_nulls else pc.is_null(files["path"])
    for start, end in within:
        reaches: Any = pc.greater_equal(greatest, start)
        found = pc.or_kleene(found, reaches if end is None else pc.and_kleene(reaches, pc.less_equal(least, end)))
    return cast("ChunkedArray[Any]", pc.fill_null(found, True))


def sorted_values(condition: Among) -> "Array[Any]":
    distinct = pc.unique(condition.values).drop_null()
    return cast("Array[Any]", distinct.take(pc.array_sort_indices(distinct)))


def ranges(values: "Array[Any]") -> "tuple[tuple[Scalar[Any], Scalar[Any]], ...]":
    return ranges_of(values, list(values))
