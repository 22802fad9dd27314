"""The command line: data goes to stdout, progress and errors to stderr; exit 0 done, 1 a law is broken, 2 wrong use."""

import gc

# What an import makes is no garbage, and to look for some takes a tenth of the start of a command.
gc.disable()

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from sluice.api.failures import Foreign, message_of
from sluice.cli import check, documents, look, project, run
from sluice.cli.commands import deciders
from sluice.cli.erase import erase
from sluice.cli.export import export
from sluice.cli.log import log_app
from sluice.cli.printing import err, printable
from sluice.cli.publish import publish
from sluice.cli.quarantine import quarantine_app
from sluice.cli.replay import replay_app, rollback
from sluice.cli.serve import serve_app
from sluice.cli.standing import standing_app
from sluice.cli.subscribe import subscribe
from sluice.cli.ui import ui
from sluice.errors import SluiceError
from sluice.ingest.capture.commands import capture_app
from sluice.ingest.receivers.cli import listen_app

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
commands: dict[str, Callable[..., None]] = {
    "init": project.init,
    "plan": look.plan,
    "run": run.run,
    "doctor": project.doctor,
    "status": look.status,
    "audit": look.audit,
    "check": check.check,
    "report": check.report,
    "maintain": project.maintain,
    "catalogue": project.catalogue,
    "lineage": documents.lineage,
    "docs": documents.docs,
    "query": look.query,
    "explain": look.explain,
    "erase": erase,
    "export": export,
    "subscribe": subscribe,
    "publish": publish,
    "rollback": rollback,
    "ui": ui,
}
groups = {
    "log": log_app,
    "listen": listen_app,
    "serve": serve_app,
    "capture": capture_app,
    "quarantine": quarantine_app,
    "standing": standing_app,
    "replay": replay_app,
}


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("sluice-lakehouse"))
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What every command takes; its help is that of the app."""
    context.obj = deciders


for name, command in commands.items():
    app.command(name)(command)
for name, group in groups.items():
    app.add_typer(group, name=name)
gc.enable()


def main() -> None:
    """The entry point: a Sluice error is a message and an exit code, never a traceback."""
    try:
        app()
    except SluiceError as error:
        fail(str(error), error.exit_code)
    except Foreign as error:
        fail(message_of(error), 1)


def fail(message: str, exit_code: int) -> NoReturn:
    lines = "\n".join(printable(line) for line in message.splitlines())
    err.print(f"[red bold]Error:[/] {escape(lines)}", highlight=False, soft_wrap=True)
    sys.exit(exit_code)
