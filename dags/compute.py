"""One DAG a layer that recomputes days: for Airflow's own backfill, and each night for the day before."""

from __future__ import annotations

from airflow.sdk import CronDataIntervalTimetable, dag, get_current_context, task, teardown
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from lakehouse import notes, project
from lakehouse.defaults import asset, deadline, start_date, with_alerts

meaning = """### Recomputes the days of {layer} from its inputs as they are now

Each run is one day of event time. Only rows that differ are written, so a run that is repeated, or overlaps with the
continuous one, changes nothing twice. To go over a range of days: **Trigger → Backfill**, or `airflow backfill create`.
As many tasks as the pool `lakehouse` has slots run at once; with a continuous run under way they ask it, else one of
them starts Spark for all.

A table that is on hold is skipped, because that is somebody's decision, and what is made from it is recomputed from the
rows that it has; a table that cannot be computed fails, and stops what is made from it.

Tables without an event time, and aggregates by something else than a unit of it, are not here: they have no days, and
follow their inputs.
"""


def compute(layer: str):
    nodes = [node for node in project.datasets() if node["layer"] == layer and node["has_days"]]

    @dag(
        dag_id=f"compute_{layer}",
        schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
        start_date=start_date,
        catchup=False,
        max_active_runs=4,
        deadline=deadline(f"compute_{layer}"),
        tags=["lakehouse", layer, "backfill"],
        doc_md=meaning.format(layer=layer),
        default_args=with_alerts(f"recomputing {layer}"),
    )
    def days():
        tasks = {}
        for node in nodes:

            @task(
                task_id=node["name"],
                outlets=[asset(node)],
                inlets=[asset(source) for source in upstream(node)],
                doc_md=node["meaning"],
                trigger_rule="none_failed",
            )
            def recompute(name: str, data_interval_start=None, data_interval_end=None) -> dict[str, int]:
                since, until = (each.strftime("%Y-%m-%dT%H:%M:%S") for each in (data_interval_start, data_interval_end))
                changed = recomputed(name, since, until)
                events = get_current_context()["outlet_events"]
                events[asset({"name": name, "layer": layer})].extra = {"since": since, "until": until, "rows": changed}
                return changed

            tasks[node["name"]] = recompute(node["name"])

        # A teardown, so that a run whose table failed is failed, note or not.
        @teardown(on_failure_fail_dagrun=False)
        @task(pool="default_pool", retries=0)
        def note(ti=None, dag_run=None) -> None:
            changed = {node["name"]: ti.xcom_pull(task_ids=node["name"]) for node in nodes}
            rows = {name: found[name] if found else None for name, found in changed.items()}
            held = {node["name"] for node in nodes if ti.xcom_pull(task_ids=node["name"], key="on_hold")}
            notes.keep(dag_run.dag_id, dag_run.run_id, notes.of_day(rows, notes.checks(), held))

        list(tasks.values()) >> note()
        for node in nodes:
            for source in node["sources"]:
                if source in tasks:
                    tasks[source] >> tasks[node["name"]]

    return days()


def recomputed(name: str, since: str, until: str) -> dict[str, int]:
    """How many rows of a day changed in a table; an AirflowSkipException when the table is on hold."""
    try:
        return project.call("run", name, "--since", since, "--until", until)
    except AirflowException:
        because = project.on_hold(name)
        if because is None:
            raise
        get_current_context()["ti"].xcom_push("on_hold", because)
        raise AirflowSkipException(f"{name} is on hold: {because}. A replay that is promoted ends that.") from None


def upstream(node: dict) -> list[dict]:
    """What a dataset is made from."""
    return [each for each in project.catalogue() if each["name"] in node["sources"]]


for each_layer in ("silver", "gold"):
    compute(each_layer)
