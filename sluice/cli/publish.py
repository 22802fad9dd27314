"""`sluice publish`: keeps tables of gold equal in Postgres and Kafka."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import AsJson, ProjectFolder, opened
from sluice.cli.printing import print_json, print_table
from sluice.cli.run import stop_by_signal


def publish(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables that gold.publish names; by default all.")] = None,
    *,
    project: ProjectFolder = Path(),
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on with new commits, or stop at the newest.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Write all rows again, whatever the targets have.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the changes of the tables that gold.publish declares to their targets, each once, from where these are."""
    with opened(project) as here:
        if follow:
            if again:
                raise typer.BadParameter("--again is for --once.")
            stop = threading.Event()
            stop_by_signal(stop, attached=False)
            here.publish_continuously(*tables or (), stop=stop)
            return
        found = here.publish(*tables or (), again=again)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        rows = [[each.table, each.target, each.version, each.changes, each.error or ""] for each in found]
        print_table(["table", "target", "version", "changes", "error"], rows)
    if any(each.error for each in found):
        raise typer.Exit(1)
