"""Find a few rows of a large table in the driver: files, row groups and pages are skipped, and no job is started.

Files without a wanted key are left out by their Bloom filters (`sluice.storage.key_filters`). DataFusion, within
delta-rs, reads the others. It skips nothing in a table with deletion vectors, so DuckDB reads the files of such a
table, with the place of each row in its file, and the marked rows are left out here. So it does where few are left.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from sluice.model.found import Among, Condition
from sluice.model.scope import ranges_of
from sluice.model.sql import double_quoted
from sluice.storage import key_filters, small_writes
from sluice.storage.bounds import bounds_of
from sluice.storage.small_writes import files_by_name, has_deletion_vectors

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, Scalar

    Form = Callable[[Scalar[Any]], str]

rows_max = 20_000
bytes_max = 64 * 1024 * 1024
# What the conditions leave of the files: beyond, Spark's tasks share the work.
candidate_bytes_max = 4 * 1024 * 1024 * 1024
candidate_files_max = 2_000
# DataFusion skips pages of files, and reads the Bloom filters of all: about a sixteenth of a table.
read_whole_share_min = 16
# Of larger files all columns are read of those alone that have a wanted row.
holding_bytes_min = 16 * 1024 * 1024
# DataFusion goes deeper into its stack with each literal: some 10,000 of them end the process.
literals_max = 3_000
# Files are skipped by a list of at most so many values, and by ranges.
skipped_by_list_max = 20
settings = {
    "datafusion.execution.parquet.pushdown_filters": "true",
    "datafusion.execution.parquet.reorder_filters": "true",
}
# What is read of files is not kept in memory.
duckdb_config: "dict[str, str | bool | int | float | list[str]]" = {
    "autoinstall_known_extensions": False,
    "enable_external_file_cache": False,
}
place, file_name = "file_row_number", "filename"
placed_rows_sql = (
    f"read_parquet($1, {place} = true, {file_name} = true, union_by_name = true, hive_partitioning = false)"
)


def find_placed(
    table: DeltaTable, schema: pa.Schema, folder: str | None, conditions: Sequence[Condition], files: pa.Table
) -> pa.Table | None:
    """The rows that meet all conditions, in the columns of a schema; None where they are many, or have no such values.

    Arrow has no text that is not UTF-8. `files` are the `candidates`, and `folder` is where they are, None if that is
    not on this machine. Where it is, each row has its `place` in its file too if the table has deletion vectors.
    """
    if files.num_rows > candidate_files_max:
        return None
    try:
        names = files_by_name(table, folder, files["path"].to_pylist()) if folder and is_placeable(schema) else None
        left = files if names is None else files.filter(key_filters.may_have(files, names, conditions))
        if not are_few(left):
            return None
        is_little = bytes_of(left) * read_whole_share_min <= bytes_of(files)
        is_long = sum(len(each.values) for each in conditions if isinstance(each, Among)) > literals_max
        if names is not None and (has_deletion_vectors(table) or is_little or is_long):
            return among_files(table, schema, [f"{folder}/{name}" for name in left["path"].to_pylist()], conditions)
        return None if is_long else among_rows(table, schema, conditions)
    except (OSError, pa.ArrowInvalid, DeltaError, duckdb.Error):
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
    nothing = placed_schema(schema).empty_table()
    if not names:
        return nothing
    wanted = " AND ".join(sql_of(each, duckdb_value_of, table_of(number)) for number, each in enumerate(conditions))
    with connected() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for number, each in enumerate(conditions):
            if isinstance(each, Among):
                # To parse a thousand literals costs more than to read a million rows.
                connection.register(table_of(number), pa.Table.from_arrays([each.values], ["wanted"]))
        if sum(Path(name).stat().st_size for name in names) >= holding_bytes_min:
            names = holding(connection, names, wanted)
        if not names:
            return nothing
        columns = ", ".join(map(double_quoted, nothing.column_names))
        rows = connection.sql(f"SELECT {columns} FROM {placed_rows_sql} WHERE {wanted}", params=[names])  # noqa: S608 - no text from data
        found = taken(cast(pa.RecordBatchReader, rows.to_arrow_reader()), nothing.schema)
    return None if found is None else without_marked(table, found)


def connected() -> duckdb.DuckDBPyConnection:
    """A connection of the caller's own to a database without tables: to make a database takes 17 ms of CPU."""
    return database(os.getpid()).cursor()


@cache
def database(process: int) -> duckdb.DuckDBPyConnection:  # noqa: ARG001 - its threads do not live in a fork
    return duckdb.connect(config=duckdb_config)


def holding(connection: duckdb.DuckDBPyConnection, names: list[str], wanted: str) -> list[str]:
    """Those of the files that have such rows, for which the other columns are not read."""
    listed = f"SELECT DISTINCT {file_name} FROM {placed_rows_sql} WHERE {wanted}"  # noqa: S608 - no text from data
    return [name for (name,) in connection.execute(listed, [names]).fetchall()]


def is_placeable(schema: pa.Schema) -> bool:
    """Whether no column of a table has a name under which DuckDB says where a row is."""
    return not {place, file_name} & {name.lower() for name in schema.names}


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


def table_of(number: int) -> str:
    """What the values of a condition are called."""
    return f"wanted_{number}"


def sql_of(condition: Condition, value_of: "Form", table: str | None = None) -> str:
    """A condition as SQL, in which `value_of` makes a literal; many values are looked for in a `table`, if given."""
    column = double_quoted(condition.column)
    if not isinstance(condition, Among):
        begun = f"{column} >= {value_of(condition.start)}"
        return begun if condition.end is None else f"{begun} AND {column} < {value_of(condition.end)}"
    values = sorted_values(condition)
    is_long = len(values) > skipped_by_list_max
    listed = f"SELECT wanted FROM {table}" if is_long and table else ", ".join(map(value_of, values))  # noqa: S608 - our own name
    found = f"{column} IN ({listed})" if len(values) else "false"
    if is_long:
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
        files = files.filter(can_hold(files, each))
    return files


def are_few(files: pa.Table) -> bool:
    """Whether the driver may search these files."""
    return files.num_rows <= candidate_files_max and bytes_of(files) <= candidate_bytes_max


def bytes_of(files: pa.Table) -> int:
    return int(pc.sum(files["size_bytes"]).as_py() or 0)


def can_hold(files: pa.Table, condition: Condition) -> "pa.Array[Any] | ChunkedArray[Any]":
    """For each file whether its rows can meet a condition; true where nothing is known of it."""
    bounds = bounds_of(files, condition.column)
    if bounds is None:
        return pa.repeat(pa.scalar(True), files.num_rows)
    least, greatest, nulls = bounds
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
