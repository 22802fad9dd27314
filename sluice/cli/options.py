"""Options that several commands have, and the project that they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sluice.api import Event, Listener, Project
from sluice.cli.printing import err, print_message
from sluice.cli.progress import RunProgress
from sluice.errors import UsageError

ProjectFolder = Annotated[Path, typer.Option("--project", help="The project's folder.", show_default="here")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
of_spark = ("starting", "ready", "step")


@contextmanager
def opened(folder: Path, listener: Listener = lambda event: None, *, is_quiet: bool = False) -> Iterator[Project]:
    """The project, with its progress on stderr; when it `is_quiet`, only that of Spark's start."""
    with RunProgress(err) as progress:

        def heard(event: Event) -> None:
            if event.kind in of_spark or not is_quiet:
                progress(event)
            listener(event)

        project = Project(folder, keep_spark=False, any_folder=True, on_event=heard, on_message=print_message)
        progress.spark_tasks = project.spark_tasks
        yield project


def names_in(text: str | None) -> list[str]:
    """The names that an option gives, with commas between them; a UsageError for one that is empty."""
    found = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(found):
        raise UsageError(f"'{text}' gives an empty name; write names with commas between them.")
    return found


def time_of(text: str) -> datetime:
    """A time that an option gives, as ISO 8601 has it; in UTC where it has no offset."""
    try:
        found = datetime.fromisoformat(text.strip())
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        example = "2026-03-28, '2026-03-28 10:00' or 2026-03-28T10:00:00+02:00"
        raise typer.BadParameter(f"{text!r} is no time such as {example} (UTC where it has no offset).") from error
