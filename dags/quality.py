"""Checks of every table, upstream first: a critical failure stops the downstream tables, and only these."""

from __future__ import annotations

import json

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException
from lakehouse import project
from lakehouse.defaults import asset, deadline, start_date, with_alerts

recomputed_share = "1%"


@dag(
    schedule="@hourly",
    start_date=start_date,
    catchup=False,
    max_active_runs=1,
    deadline=deadline("quality"),
    tags=["lakehouse", "quality"],
    default_args={**with_alerts("the quality of tables"), "retries": 0},
)
def quality():
    """### Checks the expectations of each table, on exactly its newest version

    A task fails when something critical is broken, and what is made from its table is not checked then. Every result is
    in `gold._checks`. Then the audit recomputes a sample of the rows, other rows every day; the report for people is
    written at the end.
    """

    @task
    def check(name: str) -> dict[str, int]:
        done = project.follow(["check", name, "--no-report", "--json"], heard=lambda line: None, beat=lambda: True)
        rows = json.loads(done.stdout or "[]")
        broken = [row for row in rows if row["verdict"] != "passed"]
        for row in broken:
            print(row["severity"], row["expectation"], row["verdict"], row["message"] or row["observed"] or "")
        if done.returncode:
            raise AirflowException(
                f"{name}: {', '.join(row['expectation'] for row in broken) or 'the check did not run'}"
            )
        return {"kept": len(rows) - len(broken), "broken": len(broken)}

    @task(trigger_rule="all_done")
    def recompute() -> dict[str, int]:
        done = project.follow(
            ["audit", "--recompute", recomputed_share, "--json"], heard=lambda line: None, beat=lambda: True
        )
        found = json.loads(done.stdout or "[]")
        wrong = [each for each in found if not each["balanced"]]
        for each in wrong:
            print(json.dumps(each))
        if done.returncode:
            names = ", ".join(sorted({each["dataset"] for each in wrong}))
            raise AirflowException(f"The audit does not balance: {names or 'it did not run'}")
        return {"recomputed": sum(each.get("rows", 0) for each in found)}

    @task(trigger_rule="all_done")
    def report() -> str:
        return project.call("report")["index"]

    nodes = project.datasets()
    tasks = {
        node["name"]: check.override(task_id=node["name"], inlets=[asset(node)], doc_md=node["meaning"])(node["name"])
        for node in nodes
    }
    for node in nodes:
        for source in node["sources"]:
            if source in tasks:
                tasks[source] >> tasks[node["name"]]
    list(tasks.values()) >> recompute() >> report()


quality()
