"""Conditions of DuckDB's SQL that depend on a row alone, so that what was sent of a row can be taken back."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sluice.errors import UsageError
from sluice.operate.query import parsed, parser, parts_of

# They make several rows of one.
rows_from_one = {"unnest", "unlist", "generate_subscripts", "regexp_split_to_table"}
# Written without parentheses, or macros, of which DuckDB does not say that their value changes.
changing_otherwise = {
    *("ago", "current_catalog", "current_database", "current_query", "current_schema", "current_schemas"),
    *("current_time", "current_timestamp", "localtime", "localtimestamp", "pg_sleep"),
}


def require_of_row(where: str, columns: Sequence[str]) -> None:
    """A UsageError where an expression reads other rows, or has another value at another time."""
    named = {name.lower() for name in columns}
    for part in parts_of(parsed(f"SELECT ({where}\n)")):
        reason = fault(part, named) if "class" in part else None
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
    of_other_rows = {
        "SUBQUERY": "has a query within it (= ANY(…) is one, too: list_contains)",
        "WINDOW": f"looks at other rows ({name} … OVER)",
        "STAR": "has a *",
    }
    if kind in of_other_rows:
        return of_other_rows[kind]
    if name in rows_from_one:
        return f"makes several rows of one ({name})"
    return f"has another value at another time ({name})" if name in changing() else None


@cache
def changing() -> frozenset[str]:
    """The functions whose value is not always the same for the same arguments."""
    sql = "SELECT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT' AND function_type = 'scalar'"
    return frozenset(name for (name,) in parser().cursor().execute(sql).fetchall()) | changing_otherwise
