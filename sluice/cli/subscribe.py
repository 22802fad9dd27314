"""`sluice subscribe`: the changes of a table as JSON lines."""

import json
import math
import os
import select
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.options import ProjectFolder, opened
from sluice.cli.printing import as_text
from sluice.cli.run import stop_by_signal


def subscribe(
    table: Annotated[str, typer.Argument(help="The table, for example gold.delays_hourly.")],
    *,
    project: ProjectFolder = Path(),
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="VERSION[:POSITION]",
            help="Go on after this version, or after the `cursor` of a line. By default all changes come.",
        ),
    ] = None,
    where: Annotated[str | None, typer.Option(help="Only rows that meet this SQL condition.")] = None,
    snapshot: Annotated[
        bool,
        typer.Option(help="Begin with the rows as they are. With --from: only if the changes after it are lost."),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow/--once", help="Wait for more, or stop at the newest.")] = False,
) -> None:
    """Print the changes of a table as JSON lines: the old and the new row, the version, and why it was made."""
    stop = threading.Event()
    if follow:
        stop_by_signal(stop, attached=False)
    with opened(project) as here:
        changes = here.subscribe(table, since, where=where, snapshot=snapshot, follow=follow, stop=stop)
        if follow:
            threading.Thread(target=stop_with_reader, args=(stop,), daemon=True).start()
        try:
            for change in changes:
                sys.stdout.write(line_of(change.line) + "\n")
                if follow or change.is_last:
                    sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read this has enough. Python would flush once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def line_of(found: Any) -> str:
    """One line of JSON, with values as `sluice query --json` has them; numbers that JSON does not know are text."""
    try:
        return json.dumps(found, default=as_text, allow_nan=False)
    except ValueError:
        return json.dumps(finite(found), default=as_text)


def finite(value: Any) -> Any:
    """The value with text in place of numbers that are none, or have no end."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: finite(each) for name, each in value.items()}
        case list() | tuple():
            return [finite(each) for each in value]
    return value


def stop_with_reader(stop: threading.Event) -> None:
    """Sets the event when nobody reads what is printed: a pipe says so, also while there is nothing to print."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), select.POLLERR)
    except (OSError, ValueError):
        return
    while not stop.is_set():
        if any(found & (select.POLLERR | select.POLLNVAL) for _, found in poll.poll(1000)):
            stop.set()
