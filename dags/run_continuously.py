"""Keeps `sluice run --continuous` alive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.sdk import dag, get_current_context, task
from airflow.sdk.exceptions import AirflowException
from lakehouse import project
from lakehouse.defaults import notify, start_date, with_alerts, writes

status_seconds = 60
lag_records_max = int(os.environ.get("LAKEHOUSE_LAG_RECORDS_MAX", "1000000"))


class Reporter:
    """Reports what the driver does. A report that fails is printed and tried again; the driver goes on."""

    def __init__(self, context: Any) -> None:
        self.context, self.instance, self.state = context, context["ti"], context["task_state_store"]
        self.reported, self.behind = 0.0, False
        self.blocked: set[str] = set()

    def heard(self, line: str) -> None:
        print(line, end="", flush=True)
        if line.startswith("{"):
            with going_on("to keep the progress"):
                self.state.set("progress", json.loads(line))

    def beat(self) -> bool:
        """Whether the driver is to go on, which it is unless the DAG is known to be paused."""
        if (now := time.monotonic()) - self.reported > status_seconds:
            with going_on("to report"):
                self.report()
                self.reported = now
        with going_on("to ask whether the DAG is paused"):
            return not self.instance.get_dag(self.instance.dag_id).is_paused
        return True

    def report(self) -> None:
        tables = project.call("status")
        self.state.set("lag", {table["dataset"]: table["lag"] for table in tables})
        behind = sum(table["lag"] for table in tables if table["dataset"].startswith("bronze."))
        if behind > lag_records_max and not self.behind:
            notify(f"the lakehouse is {behind:,} records behind its log", self.context)
        self.behind = behind > lag_records_max
        blocked = {table["dataset"]: table["held"] for table in tables if (table["held"] or "").startswith("blocked")}
        self.state.set("blocked", blocked)
        self.blocked &= blocked.keys()
        for name in sorted(blocked.keys() - self.blocked):
            notify(f"{name} is {blocked[name]}", self.context)
            # A notifier that succeeded is not called again when the next one fails.
            self.blocked.add(name)
        print("lag", {table["dataset"]: table["lag"] for table in tables if table["lag"]}, flush=True)


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """An error inside is printed, and ends nothing else."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - Airflow's, the database's, the notifier's, or the command's
        print(f"It failed {what}, and is tried again: {type(error).__name__}: {error}", flush=True)


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
        reporter = Reporter(get_current_context())
        done = project.follow(["run", "--continuous", "--attached", "--json"], reporter.heard, reporter.beat)
        if done.returncode:
            raise AirflowException(f"the driver ended with {done.returncode}; it is started again")

    supervise()


run_continuously()
