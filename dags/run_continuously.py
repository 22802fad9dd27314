"""Keeps `sluice run --continuous` alive."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowException
from lakehouse import project
from lakehouse.defaults import notify, start_date, tried, with_alerts, writes

status_seconds = 60
lag_records_max = int(os.environ.get("LAKEHOUSE_LAG_RECORDS_MAX", "1000000"))


@dag(
    schedule="@continuous",
    start_date=start_date,
    catchup=False,
    max_active_runs=1,
    tags=["lakehouse", "continuous"],
    default_args=with_alerts("the continuous run"),
)
def run_continuously():
    """### The driver: lands new records of the log and refreshes all that depends on them, for ever

    Unpause it to start, pause it to stop: the driver finishes its current step first. When it dies it is started again
    after 10 seconds, then 20, 40, … up to 5 minutes. A second driver on the same lake is refused by the lake's lock,
    which ends with the process that owns it. What it did last, the lag of every table, and the tables that are blocked
    with the reason, are in the task's state; a table that becomes blocked is an alert.

    The other DAGs ask this driver for what they need, so they need not start Spark.
    """

    @task(
        retries=1_000_000,
        retry_delay=timedelta(seconds=10),
        retry_exponential_backoff=2.0,
        max_retry_delay=timedelta(minutes=5),
        **{**writes, "pool": "default_pool"},
    )
    def supervise() -> None:
        context = get_current_context()
        instance, state = context["ti"], context["task_state_store"]
        reported: dict[str, Any] = {"status": 0.0, "behind": False, "blocked": set()}

        def heard(line: str) -> None:
            print(line, end="", flush=True)
            if line.startswith("{"):
                tried(lambda: state.set("progress", json.loads(line)))

        def report() -> None:
            if time.monotonic() - reported["status"] > status_seconds:
                reported["status"] = time.monotonic()
                tables = project.call("status")
                state.set("lag", {table["dataset"]: table["lag"] for table in tables})
                behind = sum(table["lag"] for table in tables if table["dataset"].startswith("bronze."))
                if behind > lag_records_max and not reported["behind"]:
                    notify(f"the lakehouse is {behind:,} records behind its log", context)
                reported["behind"] = behind > lag_records_max
                blocked = {
                    table["dataset"]: table["held"] for table in tables if (table["held"] or "").startswith("blocked")
                }
                state.set("blocked", blocked)
                for name in sorted(set(blocked) - reported["blocked"]):
                    notify(f"{name} is {blocked[name]}", context)
                reported["blocked"] = set(blocked)
                print("lag", {table["dataset"]: table["lag"] for table in tables if table["lag"]}, flush=True)

        def beat() -> bool:
            tried(report)
            return not tried(lambda: instance.get_dag(instance.dag_id).is_paused)

        done = project.follow(["run", "--continuous", "--attached", "--json"], heard, beat)
        if done.returncode:
            raise AirflowException(f"the driver ended with {done.returncode}; it is started again")

    supervise()


run_continuously()
