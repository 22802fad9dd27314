"""The note of a day's run: how many rows changed in each table, and what the newest checks of these tables found."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import httpx
from airflow.sdk.bases.hook import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from lakehouse import project

connection_id = "lakehouse_airflow"
# What Airflow takes.
characters_max = 1000
newest_checks = """
SELECT dataset, strftime(checked_at, '%Y-%m-%d %H:%M') AS checked_at, count_if(verdict = 'passed') AS passed,
    string_agg(expectation, ', ' ORDER BY expectation) FILTER (verdict <> 'passed') AS broken
FROM (FROM gold._checks QUALIFY checked_at = max(checked_at) OVER (PARTITION BY dataset)) GROUP BY ALL
"""


def keep(dag: str, run: str, text: str) -> None:
    """Makes a text the note of a run, by Airflow's REST interface: its tasks cannot write its database.

    Without the connection there is no note, and no run fails for the lack of one.
    """
    try:
        connection = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        print(f"There is no connection {connection_id}, so the run gets no note.")
        return
    address = f"{connection.schema or 'http'}://{connection.host}:{connection.port or 8080}"
    try:
        with httpx.Client(base_url=address, timeout=30) as airflow:
            login = {"username": connection.login, "password": connection.password}
            token = airflow.post("/auth/token", json=login).raise_for_status().json()["access_token"]
            airflow.patch(
                f"/api/v2/dags/{dag}/dagRuns/{run}",
                params={"update_mask": "note"},
                json={"note": text},
                headers={"Authorization": f"Bearer {token}"},
            ).raise_for_status()
    except httpx.HTTPError as error:
        print(f"The run gets no note: {error}")


def checks() -> list[dict[str, Any]]:
    """The newest checks of each table; none where nothing was checked yet."""
    try:
        return list(project.call("query", newest_checks))
    except AirflowException as error:
        print(error)
        return []


def of_day(changed: Mapping[str, int | None], checked: Sequence[Mapping[str, Any]], held: Collection[str] = ()) -> str:
    """The note, in Markdown: tables that were not recomputed (None) first, then those that changed the most.

    Those that are `held` are on hold; the others failed.
    """
    of_table = {each["dataset"]: each for each in checked}
    order = sorted(changed, key=lambda name: (changed[name] is not None, name in held, -(changed[name] or 0)))
    total = sum(rows or 0 for rows in changed.values())
    lines = [
        f"**{total:,} rows changed**",
        "",
        *(f"- {line(name, said_of(changed[name], is_held=name in held), of_table.get(name))}" for name in order),
    ]
    while len("\n".join(lines)) > characters_max:
        lines = [*lines[:-2], "- …"]
    return "\n".join(lines)


def said_of(rows: int | None, *, is_held: bool) -> str:
    if rows is not None:
        return f"{rows:,}"
    return "is on hold" if is_held else "was not recomputed"


def line(name: str, said: str, check: Mapping[str, Any] | None) -> str:
    """One table: what changed, and what was found when it was checked last."""
    if check is None:
        return f"{name}: {said}; not checked yet"
    broken = f"broken: {check['broken']}" if check["broken"] else f"{check['passed']} checks passed"
    return f"{name}: {said}; {broken} ({check['checked_at']})"
