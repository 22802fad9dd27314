"""Small reads and writes: when the driver does them itself instead of a Spark job, and all thresholds for that."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from sluice.model import small_frames
from sluice.model.ledger import Entry

if TYPE_CHECKING:
    from pyarrow import Scalar

# Each is named in a condition, whose cost grows with the square of their number: 0.05 s for three, 0.3 s for a hundred.
replaced_rows_max = 100
# Below, it is cheaper to write a file again (0.2 s for 170,000 rows) than to mark rows in it (1.3 s), and to look for
# marks at every read (60 ms for each plan).
deletion_vectors_from_rows_default = 500_000
short_bytes_max = 128 * 1024 * 1024
# Spark lists the files of more paths by a job.
listed_files_max = 32
# Each costs two requests, one after the other.
listed_objects_max = 4
pattern_signs = set("{}[]*?\\%")


def is_replaceable(schema: StructType, rows: pa.Table, grain: Sequence[str]) -> bool:
    """Whether rows of a schema can be named one by one. 0.0 and -0.0 are one key to Spark, and two elsewhere."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    is_keyed = all(kinds[name] not in ("float", "double") for name in grain)
    is_flat = not any(kinds[name].startswith(("struct", "array", "map")) for name in grain)
    return 0 < rows.num_rows <= replaced_rows_max and is_keyed and is_flat and bool(grain)


def any_of(keys: pa.Table) -> str:
    """The condition, for delta-rs, that a row has one of these keys, which are flat."""
    rows = zip(*[[literal(value) for value in column] for column in keys.columns], strict=True)
    return " OR ".join(
        "(" + " AND ".join(f"`{name}` {value}" for name, value in zip(keys.column_names, row, strict=True)) + ")"
        for row in rows
    )


def literal(value: "Scalar[Any]") -> str:
    """That a column has a value, in SQL."""
    if not value.is_valid:
        return "IS NULL"
    form = next((form for holds, form in forms if holds(value.type)), lambda plain: str(plain).lower())
    return f"= {form(value)}"


forms: "tuple[tuple[Callable[[pa.DataType], bool], Callable[[Scalar[Any]], str]], ...]" = (
    # Times as numbers: Python knows no year beyond 9999.
    (pa.types.is_timestamp, lambda it: f"""arrow_cast({it.cast(pa.int64())}, 'Timestamp(Microsecond, Some("UTC"))')"""),
    (pa.types.is_date, lambda it: f"arrow_cast({it.cast(pa.int32())}, 'Date32')"),
    (
        pa.types.is_decimal,
        lambda it: f"arrow_cast('{it.as_py():f}', 'Decimal128({it.type.precision}, {it.type.scale})')",
    ),
    (pa.types.is_binary, lambda it: f"X'{it.as_py().hex()}'"),
    (pa.types.is_string, lambda it: "'" + it.as_py().replace("'", "''") + "'"),
)


def plain_files(table: DeltaTable, path: str, files_max: int) -> list[str] | None:
    """The files of the table at a path; None when there are too many, or they are not all that the table is.

    A table that needs no reader above version 1 has no marked rows and no renamed columns. Spark then need not read
    its log, which is several jobs at every read.
    """
    names = [str(name) for name in table.get_add_actions(flatten=True)["path"].to_pylist()]
    files = [f"{path}/{name}" for name in names]
    is_below = not any(name.startswith("/") or ":" in name for name in names)
    # What Spark takes for a pattern, or unescapes.
    is_literal = not any(pattern_signs & set(file) for file in files)
    is_plain = table.protocol().min_reader_version == 1 and is_below and is_literal
    return files if is_plain and len(files) <= files_max else None


def are_small_changes(commits: Sequence[Mapping[str, Any]], entries: Sequence[Entry | None]) -> bool:
    """Whether commits changed so few rows that the driver reads them: it has written each of them, and counted."""
    is_small = all(each.get("engineInfo", "").startswith("delta-rs") for each in commits)
    return bool(commits) and is_small and None not in entries and rows_in(entries) <= small_frames.rows_max


def rows_in(entries: Sequence[Entry | None]) -> int:
    """How many rows commits changed, by their entries."""
    return sum(entry.rows.total for entry in entries if entry)


def is_short(size_bytes: int, rows: int, deletion_vectors_from_rows: int) -> bool:
    """Whether a table is so short that a small write may rewrite its files."""
    return size_bytes <= short_bytes_max and rows < deletion_vectors_from_rows
