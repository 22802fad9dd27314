"""Times that are `infinity` or `-infinity`, as text: DuckDB gives Python its last or first time for them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sluice.model.sql import double_quoted

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

nested = {"struct", "map", "list", "array"}


def with_infinity(sql: str, names: Sequence[str], kinds: "Sequence[DuckDBPyType]") -> str:
    """The SQL of the rows of a query with these columns, in which such times are text; all other values stay.

    So do those in a union or in a row without names, which no table has.
    """
    if not any(map(has_times, kinds)):
        return sql
    own = [f"_{number}" for number in range(len(names))]
    columns = [
        f"{as_text(value, kind)} AS {double_quoted(name)}" for value, name, kind in zip(own, names, kinds, strict=True)
    ]
    quoted = sql.replace("'", "''")
    return f"SELECT {', '.join(columns)} FROM query('{quoted}') AS _answer({', '.join(own)})"  # noqa: S608 - quoted


def is_time(kind: "DuckDBPyType") -> bool:
    return kind.id == "date" or kind.id.startswith("timestamp")


def has_times(kind: "DuckDBPyType") -> bool:
    return is_time(kind) or any(map(has_times, inner_of(kind).values()))


def inner_of(kind: "DuckDBPyType") -> "dict[str, DuckDBPyType]":
    """The types of which a nested type is made, by name; an array has its size, too."""
    children: Any = kind.children if kind.id in nested else []
    return {name: each for name, each in children if not isinstance(each, int)}


def endless_as_text(value: str, kind: "DuckDBPyType") -> str:
    """The SQL of a time that is text where it is `infinity` or `-infinity`."""
    either = f"UNION(finite {kind}, endless VARCHAR)"
    text = f"CAST(CAST({value} AS VARCHAR) AS {either})"
    return f"CASE WHEN isinf({value}) THEN {text} ELSE CAST({value} AS {either}) END"


def as_text(
    value: str,
    kind: "DuckDBPyType",
    depth: int = 0,
    of_time: "Callable[[str, DuckDBPyType], str]" = endless_as_text,
) -> str:
    """The SQL of a value in which each time that is `infinity` or `-infinity` is this text; or what `of_time` makes."""
    if not has_times(kind):
        return value
    inner, each = inner_of(kind), f"_each_{depth}"
    match kind.id:
        case "struct":
            fields = {double_quoted(name): of for name, of in inner.items()}
            parts = [f"{name} := {as_text(f'{value}.{name}', of, depth, of_time)}" for name, of in fields.items()]
            return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(parts)}) END"
        case "map":
            key, of = (as_text(f"{each}.{name}", inner[name], depth + 1, of_time) for name in ("key", "value"))
            entries = f"list_transform(map_entries({value}), lambda {each}: struct_pack(key := {key}, value := {of}))"
            return f"CASE WHEN {value} IS NOT NULL THEN map_from_entries({entries}) END"
        case "list" | "array":
            return f"list_transform({value}, lambda {each}: {as_text(each, inner['child'], depth + 1, of_time)})"
    return of_time(value, kind)
