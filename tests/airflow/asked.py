"""Runs lines of Python in Airflow's environment, each request in a fork, which has Airflow imported already."""

from __future__ import annotations

import json
import os
import sys
import traceback

import airflow.sdk  # noqa: F401
import httpx  # noqa: F401
from lakehouse import defaults, notes, project  # noqa: F401


def run(lines: str, environment: dict[str, str], to: str) -> None:
    """Runs lines in this process, and ends it; what they print, or the commands that they run, goes to a file."""
    code = 1
    try:
        os.dup2(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.environ.update(environment)
        exec(lines, {"__name__": "asked"})
        code = 0
    except BaseException:  # noqa: BLE001 - the test that asked has it in its output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


said = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    child = os.fork()
    if not child:
        run(**json.loads(line))
    said.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
    said.flush()
