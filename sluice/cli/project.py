"""`sluice init`, `doctor`, `prepare`, `maintain` and `catalogue`: a project as a whole."""

import os
import signal
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from sluice import scaffold
from sluice.api import prepared
from sluice.cli.options import AsJson, ProjectFolder, opened
from sluice.cli.printing import out, print_json, print_table


def init(directory: Annotated[Path, typer.Argument(help="A new or empty folder.")] = Path()) -> None:
    """Write a small project of your own: a topic, silver, gold, and the commands to run it."""
    scaffold.write(directory)
    out.print(f"Wrote a project to {directory.resolve()}. Its README.md says what to do next.", highlight=False)


def doctor(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """Test all that a run needs: Java, jars, log, the tables' storage and its guarantees; exit 1 if one fails."""
    with opened(project) as here:
        found = here.doctor()
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table(["check", "ok", "found"], [[each.check, "yes" if each.ok else "NO", each.found] for each in found])
    if not all(each.ok for each in found):
        raise typer.Exit(1)


def prepare(project: ProjectFolder = Path()) -> None:
    """Fetch Spark's jars and make the archive of its classes, which the first command else does on each machine.

    It takes half a minute, and runs with the lowest priority. Run it where an image is built.
    """
    os.nice(19)
    # Ended so, it leaves nothing half done.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with opened(project, is_quiet=True) as here:
        archive = prepared(here.settings)
    out.print(f"The jars and {archive.name} are in {archive.parent}.", highlight=False)


def maintain(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables; none: all.")] = None,
    project: ProjectFolder = Path(),
    log_keep_days: Annotated[
        int | None, typer.Option(min=1, help="Topics without a retention: remove landed records that are older.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compact the tables' files and delete those that no version of the last 30 days refers to.

    Also remove landed records from the log, as each topic's retention says: sluice log retain
    """
    keep = None if log_keep_days is None else timedelta(days=log_keep_days)
    with opened(project) as here:
        done = here.maintain(*tables or [], log_keep=keep)
    if as_json:
        print_json(asdict(done))
        return
    print_table(
        ["table", "files compacted", "into", "files deleted"],
        [[name, *each.values()] for name, each in done.tables.items()],
    )
    left = [[topic, count, done.records_compacted[topic]] for topic, count in done.segments_removed.items()]
    if any(each[1] or each[2] for each in left):
        print_table(["topic", "segments removed", "records compacted"], left)


def catalogue(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """List the topics and datasets, upstream first: kind, inputs, owner; with --json also columns and tests."""
    with opened(project) as here:
        found = here.catalogue()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ["dataset", "kind", "made from", "event time", "suite", "owner", "meaning"],
        [
            [
                each.name,
                each.kind,
                " ".join(each.sources),
                each.event_time,
                each.has_suite,
                each.owner or None,
                each.meaning,
            ]
            for each in found
        ],
    )
