"""Small reads and writes by delta-rs: the rows that a condition names, and the files that a table is."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Scalar

pattern_signs = set("{}[]*?\\%")


def any_of(keys: pa.Table) -> str:
    """The condition, for delta-rs, that a row has one of these keys, which are flat.

    Keys that share values are one term, since the cost grows with the square of the number of terms.
    """
    if not keys.num_columns:
        return "true"
    name, *others = sorted(keys.column_names, key=lambda each: len(pc.unique(keys[each])))
    if not others:
        return among(name, keys[name])
    terms = []
    for value in pc.unique(keys[name]):
        same = pc.equal(keys[name], value) if value.is_valid else pc.is_null(keys[name])
        terms.append(f"(`{name}` {literal(value)} AND {any_of(keys.filter(same).select(others))})")
    return f"({' OR '.join(terms)})"


def among(name: str, values: "ChunkedArray[Any]") -> str:
    """The condition that a column has one of these values."""
    texts = [value_of(each) for each in pc.unique(values) if each.is_valid]
    terms = [f"`{name}` IN ({', '.join(texts)})"] if texts else []
    return f"({' OR '.join([*terms, f'`{name}` IS NULL'] if values.null_count else terms)})"


def literal(value: "Scalar[Any]") -> str:
    """That a column has a value, in SQL."""
    return f"= {value_of(value)}" if value.is_valid else "IS NULL"


def value_of(value: "Scalar[Any]") -> str:
    """A value that is not null, in SQL of its type."""
    form = next((form for holds, form in forms if holds(value.type)), lambda plain: str(plain).lower())
    return form(value)


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


def plain_files(table: DeltaTable, path: str) -> list[str] | None:
    """The files of the table at a path; None when they are not all that the table is.

    A table that needs no reader above version 1 has no marked rows and no renamed columns. Spark then need not read
    its log, which is several jobs at every read.
    """
    names = table.get_add_actions(flatten=True)["path"].to_pylist()
    return paths_of(path, names) if table.protocol().min_reader_version == 1 else None


def paths_of(folder: str, names: Iterable[object]) -> list[str] | None:
    """The paths of files; None where a reader would take one for a pattern, or unescape it."""
    files = [f"{folder}/{name}" for name in names]
    return None if any(pattern_signs & set(file) for file in files) else files


def files_by_name(table: DeltaTable, folder: str, names: Iterable[object]) -> list[str] | None:
    """The paths of files that have all columns of the table, under its own names; None where they may not."""
    metadata = table.metadata()
    is_renamed = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
    return None if metadata.partition_columns or is_renamed else paths_of(folder, names)


def has_deletion_vectors(table: DeltaTable) -> bool:
    return "deletionVectors" in (table.protocol().reader_features or [])
