"""Find a few rows of a large table by delta-rs: files, row groups and pages are skipped, and nothing of it is a job."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from sluice.model.found import Among, Condition
from sluice.model.scope import ranges_of
from sluice.storage.small_writes import value_of

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, Scalar

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


def find(table: DeltaTable, schema: pa.Schema, conditions: Sequence[Condition]) -> pa.Table | None:
    """The rows that meet all conditions, in the columns of a schema; None where they are many, or have no such values.

    Arrow has no text that is not UTF-8.
    """
    if not is_light(table, conditions):
        return None
    wanted = " AND ".join(sql_of(each) for each in conditions)
    query = QueryBuilder(settings).register("rows", table).execute(f"SELECT * FROM rows WHERE {wanted}")  # noqa: S608 - literals alone
    batches, rows, size_bytes = [], 0, 0
    try:
        for batch in pa.RecordBatchReader.from_stream(query):
            batches.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
            if rows > rows_max or size_bytes > bytes_max:
                return None
    except (pa.ArrowInvalid, DeltaError):
        return None
    if not batches:
        return schema.empty_table()
    return pa.Table.from_batches(batches).select(schema.names).cast(schema)


def sql_of(condition: Condition) -> str:
    """A condition as SQL."""
    column = quoted(condition.column)
    if not isinstance(condition, Among):
        begun = f"{column} >= {value_of(condition.start)}"
        return begun if condition.end is None else f"{begun} AND {column} < {value_of(condition.end)}"
    values = sorted_values(condition)
    found = f"{column} IN ({', '.join(map(value_of, values))})" if len(values) else "false"
    if len(values) > skipped_by_list_max:
        within = [f"{column} BETWEEN {value_of(least)} AND {value_of(greatest)}" for least, greatest in ranges(values)]
        found = f"{found} AND ({' OR '.join(within)})"
    return f"({found} OR {column} IS NULL)" if condition.values.null_count else f"({found})"


def sorted_values(condition: Among) -> "Array[Any]":
    distinct = pc.unique(condition.values).drop_null()
    return cast("Array[Any]", distinct.take(pc.array_sort_indices(distinct)))


def ranges(values: "Array[Any]") -> "tuple[tuple[Scalar[Any], Scalar[Any]], ...]":
    return ranges_of(values, list(values))


def is_light(table: DeltaTable, conditions: Sequence[Condition]) -> bool:
    """Whether the files that can have such rows, by what the log says of each, are for one program to read."""
    files = pa.table(table.get_add_actions(flatten=True))
    for each in conditions:
        known = {f"{which}.{each.column}" for which in ("min", "max", "null_count")} <= set(files.column_names)
        files = files.filter(can_hold(files, each)) if known else files
    size_bytes = pc.sum(files["size_bytes"]).as_py() or 0
    return files.num_rows <= candidate_files_max and size_bytes <= candidate_bytes_max


def can_hold(files: pa.Table, condition: Condition) -> "ChunkedArray[Any]":
    """For each file whether its rows can meet a condition; true where nothing is known of it."""
    least, greatest, nulls = (files[f"{which}.{condition.column}"] for which in ("min", "max", "null_count"))
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


def quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
