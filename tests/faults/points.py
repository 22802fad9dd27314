"""Faults at named points of a program: `python -m tests.faults.points KIND POINT COUNT -- sluice's arguments`.

The points are the calls by which something becomes durable or is promised: writing, syncing and naming a file of the
log, committing a table, and telling a producer. Each has a moment before and one after. At the given count of it the
fault strikes: a SIGKILL of this process or of its JVM, an error of the disk, or a write that is cut short.
"""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sluice.ingest.receivers import records
from sluice.log import log as logs
from sluice.log import segments
from sluice.storage import delta

calls: dict[str, tuple[Any, str]] = {
    "write a segment": (segments, "write_lines"),
    "sync a segment": (os, "fsync"),
    "name a segment": (os, "link"),
    "sync a folder": (segments, "sync"),
    "publish a segment": (logs, "publish"),
    "append": (records, "append"),
    "commit rows": (delta.Lake, "replace_rows"),
    "commit an append": (delta.Lake, "append_rows"),
    "commit a merge": (delta.Lake, "merge_rows"),
    "move a cursor": (delta.Lake, "move_cursor"),
}
points = [f"{moment} {call}" for call in calls for moment in ("before", "after")]
of_log = [point for point in points if point.split(" ", 1)[1] in list(calls)[:5]]


class Struck(OSError):
    """An error of the disk that was made here."""


def strike(kind: str) -> None:
    """Does what the fault does; an error is raised, a killed process is gone."""
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "kill the JVM":
        # The shells and the JVM below this process; its own children would be gone with it.
        subprocess.run(["pkill", "-KILL", "-P", str(os.getpid()), "java"], check=False)
        return
    number = {"eio": errno.EIO, "no space": errno.ENOSPC}[kind]
    raise Struck(number, os.strerror(number))


def arm(kind: str, point: str, count: int) -> None:
    """Lets the fault strike when the point is reached for the `count`th time."""
    moment, call = point.split(" ", 1)
    place, name = calls[call]
    original = getattr(place, name)
    setattr(place, name, struck(original, moment, kind, count))


def struck(original: Callable[..., Any], moment: str, kind: str, count: int) -> Callable[..., Any]:
    left = [count]

    def called(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and moment == "before":
            strike(kind)
        done = original(*arguments, **options)
        if left[0] == 0 and moment == "after":
            strike(kind)
        return done

    return called


def run(kind: str, point: str, count: int, arguments: Sequence[str]) -> None:
    """The command, with a fault armed."""
    from sluice.cli import main

    arm(kind, point, count)
    sys.argv = ["sluice", *arguments]
    main()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[5:])
