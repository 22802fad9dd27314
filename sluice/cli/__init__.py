"""The command line: data to stdout, progress and errors to stderr; exit 0 done, 1 something is wrong, 2 wrong use."""

import gc

# What an import makes is no garbage, and to look for some takes a tenth of the start of a command.
gc.disable()

import signal
import sys
from importlib import import_module
from importlib.metadata import version
from types import FrameType
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sluice.cli.commands import deciders
from sluice.errors import SluiceError, UsageError
from sluice.runtime.heap import return_freed_memory
from sluice.runtime.pandas_later import postpone_for_pyarrow

# The module of each command or group, and its name there.
commands = {
    "init": "sluice.cli.project:init",
    "plan": "sluice.cli.look:plan",
    "run": "sluice.cli.run:run",
    "doctor": "sluice.cli.project:doctor",
    "prepare": "sluice.cli.project:prepare",
    "status": "sluice.cli.look:status",
    "audit": "sluice.cli.look:audit",
    "check": "sluice.cli.check:check",
    "report": "sluice.cli.check:report",
    "maintain": "sluice.cli.project:maintain",
    "catalogue": "sluice.cli.project:catalogue",
    "lineage": "sluice.cli.documents:lineage",
    "docs": "sluice.cli.documents:docs",
    "query": "sluice.cli.look:query",
    "explain": "sluice.cli.look:explain",
    "erase": "sluice.cli.erase:erase",
    "export": "sluice.cli.export:export",
    "subscribe": "sluice.cli.subscribe:subscribe",
    "publish": "sluice.cli.publish:publish",
    "rollback": "sluice.cli.replay:rollback",
    "ui": "sluice.cli.ui:ui",
    "log": "sluice.cli.log:log_app",
    "listen": "sluice.ingest.receivers.cli:listen_app",
    "serve": "sluice.cli.serve:serve_app",
    "capture": "sluice.ingest.capture.commands:capture_app",
    "quarantine": "sluice.cli.quarantine:quarantine_app",
    "standing": "sluice.cli.standing:standing_app",
    "replay": "sluice.cli.replay:replay_app",
}


class Commands(TyperGroup):
    """Imports a command when it is asked for: a receiver, for example, needs nothing of Spark."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Their names, for the help and for what is suggested to who mistypes one.
        self.commands = cast(Any, dict.fromkeys(commands))

    def get_command(self, _: Any, name: str) -> Any:
        if name not in commands:
            return None
        module, _, attribute = commands[name].partition(":")
        gc.disable()
        try:
            found = getattr(import_module(module), attribute)
            if "pyarrow" in sys.modules:
                postpone_for_pyarrow()
        finally:
            gc.enable()
        alone = typer.Typer(add_completion=False, callback=lambda: None)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=name)
        else:
            alone.command(name)(found)
        return cast(TyperGroup, get_command(alone)).commands[name]


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)


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


gc.enable()


def main() -> None:
    """The entry point: a Sluice error is a message and an exit code, never a traceback."""
    return_freed_memory()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        require_text(sys.argv[1:])
        app()
    except SluiceError as error:
        fail(str(error), error.exit_code)
    except Exception as error:
        # Who can raise one of these has imported them.
        from sluice.api.failures import Foreign, message_of

        if not isinstance(error, Foreign):
            raise
        fail(message_of(error), 1)


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """What Python does by default; PySpark, which would cancel its jobs in the midst of a call, leaves others alone."""
    signal.default_int_handler(number, frame)


def require_text(arguments: list[str]) -> None:
    """A UsageError for an argument that is not UTF-8, which no file, log or terminal could take."""
    for number, each in enumerate(arguments, start=1):
        if any("\ud800" <= letter <= "\udfff" for letter in each):
            raise UsageError(f"Argument {number} is not UTF-8.")


def fail(message: str, exit_code: int) -> NoReturn:
    from rich.markup import escape

    from sluice.cli.printing import err, printable

    lines = "\n".join(printable(line) for line in message.splitlines())
    err.print(f"[red bold]Error:[/] {escape(lines)}", highlight=False, soft_wrap=True)
    sys.exit(exit_code)
