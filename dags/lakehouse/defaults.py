"""What every DAG of the lakehouse has: an owner, retries, assets by the names of the datasets, and alerts."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta
from typing import Any

import pendulum
from airflow.sdk import Asset, AsyncCallback, DeadlineAlert, DeadlineReference
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.module_loading import import_string

start_date = pendulum.datetime(2013, 1, 1, tz="UTC")
pool = "lakehouse"
writes = {"pool": pool, "owner": os.environ.get("LAKEHOUSE_OWNER", "lakehouse")}


def asset(node: dict[str, Any]) -> Asset:
    """A dataset as an asset of the same name, with what its declaration says of it."""
    name = node["name"]
    return Asset(name=name, uri=f"sluice://lakehouse/{name.replace('.', '/')}", group=node["layer"], extra=said(node))


def said(node: dict[str, Any]) -> dict[str, Any]:
    """What people want to know of a dataset, as far as it is declared, and its page in the console."""
    console = os.environ.get("LAKEHOUSE_CONSOLE_URL", "").rstrip("/")
    found = {
        "meaning": node.get("meaning"),
        "owner": node.get("owner"),
        "columns": {each["name"]: column(each) for each in node.get("columns") or ()},
        "grain": node.get("grain"),
        "console": f"{console}/tables/{node['name']}" if console else None,
    }
    return {name: value for name, value in found.items() if value}


def column(each: dict[str, Any]) -> str:
    """A column's type, unit and meaning, as far as they are declared."""
    kind = " in ".join(text for text in (each.get("type"), each.get("unit")) if text)
    return ": ".join(text for text in (kind, each.get("meaning")) if text)


def notifiers(text: str) -> list[BaseNotifier]:
    """The notifier that `LAKEHOUSE_NOTIFIER` names, with the arguments in `LAKEHOUSE_NOTIFIER_ARGUMENTS`.

    The class is any of Airflow's notifiers, the arguments are JSON; `{text}` in one becomes what happened.
    """
    name = os.environ.get("LAKEHOUSE_NOTIFIER")
    if not name:
        return []
    arguments = json.loads(os.environ.get("LAKEHOUSE_NOTIFIER_ARGUMENTS", "{}"))
    filled = {
        key: value.replace("{text}", text) if isinstance(value, str) else value for key, value in arguments.items()
    }
    return [import_string(name)(**filled)]


def notify(text: str, context: Any = None) -> None:
    """Calls the notifier, if there is one."""
    for notifier in notifiers(text):
        notifier.notify(context or {})


async def notify_late(text: str, context: Any = None) -> None:
    """What a missed deadline calls, in the triggerer."""
    await asyncio.to_thread(notify, text, context)


def deadline(dag_id: str) -> DeadlineAlert:
    """Notifies of a run that is not done `LAKEHOUSE_DEADLINE_MINUTES` (an hour) after it was queued."""
    interval = timedelta(minutes=float(os.environ.get("LAKEHOUSE_DEADLINE_MINUTES", "60")))
    text = f"{dag_id}: a run is not done {interval} after it was queued"
    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=interval,
        callback=AsyncCallback("lakehouse.defaults.notify_late", kwargs={"text": text}),
        name=f"{dag_id} is late",
    )


def with_alerts(what: str) -> dict[str, Any]:
    """Default arguments of tasks: the notifier is called when one fails for good."""
    return {
        **writes,
        "retries": 2,
        "retry_delay": timedelta(seconds=10),
        "on_failure_callback": notifiers(f"{what}: {{{{ dag.dag_id }}}}.{{{{ ti.task_id }}}} failed, {{{{ run_id }}}}"),
    }
