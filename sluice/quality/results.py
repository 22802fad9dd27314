"""Results: what every check found, kept in the table `gold._checks` beside the figures that it is about."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from sluice.model import expectations
from sluice.quality.measure import Outcome
from sluice.storage.delta import Lake

checks_table = "gold._checks"
columns: dict[str, pa.DataType] = {
    "checked_at": pa.timestamp("us", tz="UTC"),
    "run": pa.string(),
    "dataset": pa.string(),
    "version": pa.int64(),
    "refused_over": pa.int64(),
    "table_id": pa.string(),
    "expectation": pa.string(),
    "type": pa.string(),
    "arguments": pa.string(),
    "meaning": pa.string(),
    "severity": pa.string(),
    "verdict": pa.string(),
    "observed": pa.string(),
    "unexpected_rows": pa.int64(),
    "rows": pa.int64(),
    "message": pa.string(),
    "examples": pa.string(),
}
schema = pa.schema(columns)


def record(lake: Lake, rows: Sequence[Mapping[str, Any]]) -> None:
    """Keeps the rows of one check, in one commit."""
    if rows:
        lake.add(pa.Table.from_pylist(list(rows), schema=schema), checks_table)


def forget_examples(lake: Lake, others: Iterable[str]) -> None:
    """Removes what the results of checks quote of rows, but of these other tables; also of tables that are gone."""
    names = ", ".join(f"'{each}'" for each in sorted(others))
    where = f"dataset NOT IN ({names})" if names else "true"
    lake.blank(checks_table, ["observed", "message", "examples"], where)


def as_rows(
    dataset: str,
    version: int | None,
    outcomes: Sequence[Outcome],
    meanings: Mapping[str, str] | None = None,
    *,
    refused_over: int | None = None,
    table_id: str | None = None,
) -> list[dict[str, Any]]:
    """The outcomes of one check as rows of the table; `version` is null for rows that were refused.

    `meanings` say what built-in checks look at, by their names. `refused_over` is the version that stayed instead of
    the rows, or -1 where there is none, and `table_id` tells its table from another of that name.
    """
    checked_at, run = datetime.now(UTC), uuid.uuid4().hex
    return [
        {
            "checked_at": checked_at,
            "run": run,
            "dataset": dataset,
            "version": version,
            "refused_over": refused_over,
            "table_id": table_id,
            "expectation": each.expectation.name,
            "type": each.expectation.type,
            "arguments": json.dumps(each.expectation.arguments, default=str),
            "meaning": (meanings or {}).get(each.expectation.name),
            "severity": each.expectation.severity,
            "verdict": each.verdict,
            "observed": None if each.observed is None else str(each.observed),
            "unexpected_rows": each.unexpected,
            "rows": each.rows,
            "message": each.message,
            "examples": json.dumps(each.examples, default=str) if each.examples else None,
        }
        for each in outcomes
    ]


def is_critical(row: Mapping[str, Any]) -> bool:
    """True of a result that makes a table unfit to be read."""
    return expectations.is_critical(row["verdict"], row["severity"])


def severity_of(row: Mapping[str, Any]) -> str:
    """The severity of a result; an expectation that could not be evaluated is critical, whatever was declared."""
    return expectations.critical if is_critical(row) else row["severity"]


def state_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """'good', 'warning' or 'critical' for the results of one check; 'unchecked' when nothing is expected."""
    failed = sum(row["verdict"] != "passed" for row in rows)
    return state_of_counts(len(rows), failed, sum(is_critical(row) for row in rows))


def state_of_counts(checked: int, failed: int, critical: int) -> str:
    """The state of a check of which so many expectations were checked, not passed, and critical."""
    if not checked:
        return "unchecked"
    if critical:
        return expectations.critical
    return "warning" if failed else "good"
