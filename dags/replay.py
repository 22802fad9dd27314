"""Replays and rollbacks, by a form."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag, task
from airflow.sdk.exceptions import AirflowFailException
from lakehouse import project
from lakehouse.defaults import with_alerts
from lakehouse.markdown import difference

names = [node["name"] for node in project.datasets()]
maybe_text = ["null", "string"]
time_pattern = r"^\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}(:\d{2})?)?$"
chosen = Param(
    [],
    type="array",
    items={"type": "string", "enum": names},
    examples=names,
    title="Datasets",
    description="None: those whose declaration changed.",
)
because = Param("", type="string", minLength=3, maxLength=500, title="Why", description="It stays in the ledger.")


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lakehouse", "replay"],
    default_args=with_alerts("a replay"),
    params={
        "datasets": chosen,
        "since": Param(None, type=maybe_text, pattern=time_pattern, title="Event times from (UTC)", section="Part"),
        "until": Param(None, type=maybe_text, pattern=time_pattern, title="until before (UTC)", section="Part"),
        "records": Param(
            None,
            type=maybe_text,
            pattern=r"^[a-z][a-z0-9_]*/\d+/\d+(-\d+)?$",
            title="or records: topic/partition/first-last",
            section="Part",
        ),
        "mode": Param(
            "compare",
            type="string",
            enum=["dry run", "compare", "compare, then promote"],
            title="How far",
            description_md="**dry run** lists tables, **compare** computes them in a shadow, **promote** asks first.",
        ),
        "because": because,
    },
)
def replay():
    """### Recomputes tables beside the live ones, and promotes them when a person approves

    The live tables stay readable, and the continuous run goes on. What would change is the result of the task
    `compare`, and stands in the approval. `rollback` undoes a promotion.
    """

    @task
    def compare(params=None) -> dict:
        part = [f"--{name}={params[name]}" for name in ("since", "until") if params[name]]
        if params["records"]:
            part.append(f"--records={params['records']}")
        if params["mode"] == "dry run":
            part.append("--dry-run")
        found = project.call("replay", "start", f"--because={params['because']}", *part, *params["datasets"])
        print(difference(found))
        return {"name": found["name"], "difference": difference(found)}

    @task.short_circuit
    def to_be_promoted(params=None) -> bool:
        return params["mode"] == "compare, then promote"

    approve = ApprovalOperator(
        task_id="approve",
        subject="Put this replay in place?",
        body="{{ ti.xcom_pull(task_ids='compare')['difference'] }}",
        defaults="Reject",
        response_timeout=timedelta(days=1),
    )

    @task(retries=0)
    def promote(found: dict) -> dict[str, int]:
        return project.call("replay", "promote", found["name"])

    compared = compare()
    compared >> to_be_promoted() >> approve >> promote(compared)


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["lakehouse", "replay"],
    default_args=with_alerts("a rollback"),
    params={
        "datasets": Param([], type="array", items={"type": "string", "enum": names}, examples=names, title="Datasets"),
        "replay": Param(
            None, type=maybe_text, pattern=r"^\d{8}-\d{6}$", title="or all tables of one replay, by its name"
        ),
        "because": because,
    },
)
def rollback():
    """### Gives tables back the rows that they had before they were last promoted or rebuilt"""

    @task(retries=0)
    def restore(params=None) -> dict[str, int]:
        what = [params["replay"]] if params["replay"] else params["datasets"]
        if not what:
            raise AirflowFailException("Name datasets, or a replay.")
        return project.call("rollback", f"--because={params['because']}", *what)

    restore()


replay()
rollback()
