"""Conditions of DuckDB's SQL that depend on a row alone, so that what was sent of a row can be taken back."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from sluice.errors import UsageError
from sluice.operate.query import parsed, parser

# They make several rows of one.
rows_from_one = {"unnest", "unlist", "generate_subscripts", "regexp_split_to_table"}
# Written without parentheses, or macros, of which DuckDB does not say that their value changes.
changing_otherwise = {
    *("ago", "current_catalog", "current_database", "current_query", "current_schema", "current_schemas"),
    *("current_time", "current_timestamp", "localtime", "localtimestamp", "pg_sleep"),
}


def require_of_row(where: str, columns: Sequence[str]) -> None:
    """A UsageError where an expression reads other rows, or has another value at another time."""
    for node in nodes(parsed(f"SELECT ({where}\n)")):
        reason = fault(node, {name.lower() for name in columns})
        if reason:
            raise UsageError(
                f"The condition {where!r} {reason}, so what was sent of a row could not be taken back; write a "
                "condition on the columns of the row alone."
            )


def fault(node: dict[str, Any], columns: set[str]) -> str | None:
    """Why a part of an expression is none of the row; None where it is."""
    kind = node["class"]
    name = str(node.get("function_name") or (node.get("column_names") or [""])[-1]).lower()
    if kind == "COLUMN_REF" and (len(node["column_names"]) > 1 or name in columns):
        return None
    if kind == "SUBQUERY":
        return "has a query within it (= ANY(…) is one, too: list_contains)"
    if kind == "WINDOW":
        return f"looks at other rows ({name} … OVER)"
    if kind == "STAR":
        return "has a *"
    if name in rows_from_one:
        return f"makes several rows of one ({name})"
    if name in changing():
        return f"has another value at another time ({name})"
    return None


def nodes(found: Any) -> Iterator[dict[str, Any]]:
    """The parts of a parsed expression."""
    if isinstance(found, list):
        for each in found:
            yield from nodes(each)
    elif isinstance(found, dict):
        if "class" in found:
            yield found
        for each in found.values():
            yield from nodes(each)


@cache
def changing() -> frozenset[str]:
    """The functions whose value is not always the same for the same arguments."""
    sql = "SELECT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT' AND function_type = 'scalar'"
    return frozenset(name for (name,) in parser().cursor().execute(sql).fetchall()) | changing_otherwise
