"""`sluice run`: once, continuously, or a backfill range."""

import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sluice.api import Event
from sluice.cli.options import AsJson, ProjectFolder, opened, time_of
from sluice.cli.printing import err, print_changed, print_json
from sluice.cli.progress import summary
from sluice.errors import UsageError

Datasets = Annotated[list[str] | None, typer.Argument(help="Datasets, with everything upstream of them. Default: all.")]


def run(  # noqa: PLR0917 - options, each given by its name
    datasets: Datasets = None,
    project: ProjectFolder = Path(),
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until stopped by Ctrl-C or SIGTERM.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Recompute from bronze; writes what differs.")] = False,
    attached: Annotated[
        bool,
        typer.Option(
            "--attached", help="With --continuous: stop, as on SIGTERM, when the process that started it has ended."
        ),
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(parser=time_of, metavar="TIME", help="Recompute from this event time on (UTC)."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(parser=time_of, metavar="TIME", help="Recompute up to, but not including, this event time."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Land the new records of the log and refresh all that depends on them, until caught up.

    With --since or --until, recompute that range of event time, of the named datasets or of all, in place, and write
    only the rows that differ. If a run is in progress, that run does it.
    """
    names = datasets or []
    if since or until:
        if continuous or rebuild:
            raise UsageError("Give --since and --until without --continuous and --rebuild: a range is recomputed once.")
        with opened(project) as here:
            changed = here.backfill(*names, since=since, until=until)
        print_changed("rows changed", changed, as_json=as_json)
    elif continuous:
        go_on(project, names, attached=attached, as_json=as_json)
    else:
        with opened(project) as here:
            done = here.run(*names, rebuild=rebuild)
        if as_json:
            print_json([plain(event) for event in done.events])
        else:
            err.print(summary(done), highlight=False)
        if done.is_wrong:
            raise typer.Exit(1)


def go_on(project: Path, datasets: list[str], *, attached: bool, as_json: bool) -> None:
    """Runs until a signal, or until the parent has ended."""
    stop = threading.Event()

    def listen(event: Event) -> None:
        if event.kind == "ready":
            # Until here a signal ends the process at once; from now on the step under way ends first.
            stop_by_signal(stop, attached=attached)
        if as_json:
            print_event(event)

    with opened(project, listen, is_quiet=as_json) as here:
        here.continuously(*datasets, stop=stop)


def print_event(event: Event) -> None:
    """What was done, as a line for a supervisor."""
    if event.kind == "waiting":
        err.print(f"[yellow bold]Waiting:[/] {escape(event.name)}", highlight=False)
    if event.kind == "done" and (event.cause or event.blocked):
        print_json(plain(event), indent=None)
        sys.stdout.flush()


def plain(event: Event) -> dict[str, Any]:
    """An event for JSON."""
    return asdict(event) | {"rows": event.rows.model_dump()}


def stop_by_signal(stop: threading.Event, *, attached: bool) -> None:
    """Lets SIGINT and SIGTERM set the event, or the end of the parent, so that the step under way ends first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if attached:
        threading.Thread(target=stop_with_parent, args=(stop, os.getppid()), daemon=True).start()


def stop_with_parent(stop: threading.Event, parent: int) -> None:
    """Sets the event when the parent is another process than it was."""
    while os.getppid() == parent:
        time.sleep(1)
    stop.set()
