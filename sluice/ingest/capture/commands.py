"""`sluice capture`: progress goes to stderr, or as lines of JSON to stdout."""

import json
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sluice.errors import UsageError
from sluice.ingest.capture.database import Database
from sluice.ingest.capture.envelope import TableName
from sluice.ingest.capture.reader import Capture, Progress
from sluice.runtime.settings import read_settings

capture_app = typer.Typer(no_args_is_help=True, help="Capture the changes of a database into the log.")
err = Console(stderr=True, soft_wrap=True)


@capture_app.command()
def postgres(  # noqa: PLR0917 - options, each given by its name
    tables: Annotated[str, typer.Option(help="Tables, with commas between: public.products,public.orders")],
    project: Annotated[Path, typer.Option("--project", help="The project's folder.", show_default="here")] = Path(),
    once: Annotated[bool, typer.Option("--once", help="Capture what is committed now, and end.")] = False,
    slot: Annotated[str, typer.Option(help="The replication slot; it holds the position.")] = "sluice",
    publication: Annotated[str | None, typer.Option(help="The publication.", show_default="the slot's name")] = None,
    topic_prefix: Annotated[
        str | None,
        typer.Option(help="Topics are PREFIX_TABLE; '' for just TABLE.", show_default="the database's name"),
    ] = None,
    new_snapshot: Annotated[
        bool, typer.Option("--new-snapshot", help="Give up the slot's position, and begin with every row again.")
    ] = False,
    warn_retained_mb: Annotated[
        int, typer.Option(min=1, help="Warn when the slot retains more WAL than this (MiB).")
    ] = 1024,
    report_seconds: Annotated[float, typer.Option(min=0.1, help="How often to say how far it is.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print progress as lines of JSON.")] = False,
) -> None:
    """Read the tables once, then follow every change; a start after a stop or a kill goes on where it was.

    The database is SLUICE_POSTGRES, an address of libpq; its own variables (PGPASSWORD …) work too.
    """
    settings = read_settings(project)
    database = Database(settings.postgres.get_secret_value())
    made = Capture(
        database=database,
        log=settings.open_log(),
        tables=table_names(tables),
        slot=checked_slot(slot),
        publication=publication or slot,
        prefix=topic_prefix,
        listener=print_json if as_json else print_line,
        retained_bytes_warned=warn_retained_mb << 20,
        report_seconds=report_seconds,
    )
    # A signal ends a snapshot at once: the next start takes it again. From here on a transaction is finished first.
    stream = made.begin(new_snapshot=new_snapshot)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    stream.run(stop, once=once)


def table_names(text: str) -> list[TableName]:
    """Names of tables; without a schema they are in public."""
    found: list[TableName] = []
    for name in text.split(","):
        schema, _, table = name.strip().rpartition(".")
        if not table:
            raise UsageError(f"--tables '{text}' names no table; write public.products,public.orders")
        found.append((schema or "public", table))
    return list(dict.fromkeys(found))


def checked_slot(name: str) -> str:
    if not name or len(name) > 63 or not all(each in "abcdefghijklmnopqrstuvwxyz0123456789_" for each in name):
        raise UsageError(f"'{name}' cannot name a slot; use at most 63 lower-case letters, digits and _.")
    return name


def print_line(progress: Progress) -> None:
    style = "yellow bold" if progress.kind == "warning" else "bold"
    err.print(f"[{style}]{progress.kind}[/]  {escape(progress.message)}", highlight=False)


def print_json(progress: Progress) -> None:
    typer.echo(json.dumps({"kind": progress.kind, "message": progress.message, **progress.detail}))
