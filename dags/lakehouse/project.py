"""The project, through its command line: Airflow has a separate environment and never imports the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowException

declared_in = ("pipelines", "expectations")
ends_within_seconds = 120
# Raise it when the DAGs need more of the catalogue: what was kept before is then asked again.
form = 3


def folder() -> Path:
    """The project's folder."""
    return Path(os.environ.get("LAKEHOUSE_PROJECT", Path(__file__).parents[2]))


def command(*arguments: str) -> list[str]:
    """A `sluice` command line; a list, so that no value is ever read by a shell."""
    return [os.environ.get("LAKEHOUSE_SLUICE", "sluice"), *arguments, "--project", str(folder())]


def catalogue() -> list[dict[str, Any]]:
    """What `sluice catalogue` says; asked again only when a declaration changed: DAGs are parsed all the time."""
    newest = max(
        (
            path.stat().st_mtime_ns
            for name in declared_in
            for path in (folder() / name).rglob("*")
            if path.suffix in (".py", ".sql")
        ),
        default=0,
    )
    kept = Path(os.environ["AIRFLOW_HOME"], "catalogue.json")
    if kept.exists():
        known = json.loads(kept.read_text())
        if (known["newest"], known.get("form")) == (newest, form):
            return list(known["nodes"])
    found = subprocess.run(command("catalogue", "--json"), capture_output=True, text=True, check=False)
    if found.returncode:
        raise AirflowException(found.stderr.strip())
    nodes = json.loads(found.stdout)
    aside = kept.with_suffix(f".{uuid.uuid4().hex}")
    aside.write_text(json.dumps({"newest": newest, "form": form, "nodes": nodes}))
    aside.replace(kept)
    return list(nodes)


def datasets() -> list[dict[str, Any]]:
    """The tables of silver and gold, upstream first."""
    return [node for node in catalogue() if node["layer"] != "bronze"]


def on_hold(name: str) -> str | None:
    """Why a table waits for a person on purpose; None for one that does not, or that a failure has blocked."""
    steps = {step["name"]: step for step in call("plan")}
    step = steps.get(name, {})
    return step["because"] if step.get("action") == "hold" and not step["blocked"] else None


def call(*arguments: str) -> Any:
    """Runs a command to its end and returns the JSON that it prints; its messages go to the task's log."""
    done = follow([*arguments, "--json"], heard=lambda line: None, beat=lambda: True)
    if done.returncode:
        raise AirflowException(f"sluice {arguments[0]} ended with {done.returncode}; see the log above")
    return json.loads(done.stdout or "null")


def follow(
    arguments: Sequence[str],
    heard: Callable[[str], None],
    beat: Callable[[], bool],
    beat_seconds: float = 5.0,
) -> subprocess.CompletedProcess[str]:
    """Runs a command, hands on each line that it prints, and stops it when `beat` says so or the task is ended."""
    print("$", *command(*arguments), flush=True)
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=sys.stdout, text=True, start_new_session=True
    )
    lines: list[str] = []

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            heard(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while True:
            try:
                process.wait(beat_seconds)
                break
            except subprocess.TimeoutExpired:
                if not beat():
                    end(process)
                    break
    finally:
        end(process)
        signal.signal(signal.SIGTERM, before)
        reader.join(ends_within_seconds)
    return subprocess.CompletedProcess(arguments, process.returncode, "".join(lines))


def end(process: subprocess.Popen[str]) -> None:
    """Interrupts a command, so that it finishes its current step; kills it only if it does not react."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(ends_within_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
