"""`sluice subscribe`: the changes of a table as JSON lines."""

import os
import select
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from sluice.api import json_line
from sluice.cli.options import ProjectFolder, opened
from sluice.cli.printing import err
from sluice.cli.run import stop_by_signal
from sluice.errors import UsageError


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
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Send each change there as a signed request; print nothing.")
    ] = None,
    webhook_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The variable that has the URL. Use it if the URL contains a token."),
    ] = None,
    secret_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variable with the webhook's secret, whsec_….")
    ] = None,
    position: Annotated[
        Path | None, typer.Option(help="The file that stores the webhook's position; delivery continues there.")
    ] = None,
    give_up_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds to retry a change that the webhook did not accept.")
    ] = 3600.0,
) -> None:
    """Print the changes of a table as JSON lines: the old and the new row, the version, and why it was made."""
    stop = threading.Event()
    if webhook_env is not None:
        if webhook is not None:
            raise UsageError("Give the webhook's address by --webhook or by --webhook-env, not by both.")
        webhook = value_of(webhook_env, "address")
    if follow or webhook:
        stop_by_signal(stop, attached=False)
    with opened(project) as here:
        if webhook is not None:
            if position is None:
                raise UsageError("Where is the webhook's position kept? Give --position FILE.")
            count = here.deliver(
                table, webhook, secret=secret_of(secret_env), position=position, since=since, where=where,
                snapshot=snapshot, follow=follow, give_up_seconds=give_up_seconds, stop=stop,
            )  # fmt: skip
            err.print(f"{count} changes were delivered.")
            return
        changes = here.subscribe(table, since, where=where, snapshot=snapshot, follow=follow, stop=stop)
        if follow:
            threading.Thread(target=stop_with_reader, args=(stop,), daemon=True).start()
        try:
            for change in changes:
                sys.stdout.write(json_line(change.line) + "\n")
                if follow or change.is_last:
                    sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read this has enough. Python would flush once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def secret_of(variable: str | None) -> str:
    """The secret that a variable has; a UsageError where none is named. An option would be in the list of processes."""
    if variable is None:
        raise UsageError("Where is the webhook's secret? Give --secret-env NAME of a variable that has it.")
    return value_of(variable, "secret")


def value_of(variable: str, what: str) -> str:
    """What a variable has; a UsageError where it is not set."""
    if not os.environ.get(variable):
        raise UsageError(f"The variable {variable}, which should have the webhook's {what}, is not set.")
    return os.environ[variable]


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
