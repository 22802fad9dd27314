"""Maintenance of the tables' files, and the release of quarantined records."""

from __future__ import annotations

from airflow.sdk import Param, dag, task
from airflow.sdk.exceptions import AirflowFailException
from lakehouse import project
from lakehouse.defaults import start_date, with_alerts

names = [node["name"] for node in project.datasets()]


@dag(
    schedule="@weekly",
    start_date=start_date,
    catchup=False,
    max_active_runs=1,
    tags=["lakehouse", "maintenance"],
    default_args=with_alerts("maintenance"),
    params={
        "log_keep_days": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Forget records of the log that landed and are older than this (days)",
        )
    },
)
def maintenance():
    """### Writes small files together, and deletes those that no version of the last 30 days refers to

    Bronze has every byte of the log, so landed segments of the embedded log can be deleted; none are unless days are
    given.
    """

    @task
    def maintain(params=None) -> dict:
        keep = [f"--log-keep-days={params['log_keep_days']}"] if params["log_keep_days"] else []
        return project.call("maintain", *keep)

    maintain()


@dag(
    schedule=None,
    catchup=False,
    tags=["lakehouse", "quarantine"],
    default_args=with_alerts("a release from quarantine"),
    params={
        "dataset": Param(
            names[0] if names else "", type="string", enum=names, title="The dataset that quarantined them"
        ),
        "reason": Param(
            None, type=["null", "string"], pattern=r"^[a-z0-9_,]+$", title="All records of this rule, for example late"
        ),
        "record": Param(
            None,
            type=["null", "string"],
            pattern=r"^[a-z][a-z0-9_]*/\d+/\d+$",
            title="or one record: topic/partition/offset",
        ),
        "because": Param(
            "", type="string", minLength=3, maxLength=500, title="Why", description="It stays in the log."
        ),
    },
)
def release_quarantine():
    """### Releases quarantined records; the continuous run accepts them as if they had never been quarantined"""

    @task(retries=0)
    def release(params=None) -> None:
        if bool(params["reason"]) == bool(params["record"]):
            raise AirflowFailException("Give a reason or a record, not both.")
        which = [f"--{name}={params[name]}" for name in ("reason", "record") if params[name]]
        project.call("quarantine", "release", params["dataset"], f"--because={params['because']}", *which)

    release()


maintenance()
release_quarantine()
