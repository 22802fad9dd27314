"""Kafka, Connect with Debezium, S3, Postgres, and Spark as a cluster and for SQL: on loopback, without containers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.servers import compose, debian
from infra.servers.server import project
from infra.servers.stack import Stack
from sluice.errors import SluiceError, UsageError
from sluice.storage.location import is_bucket

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help=__doc__, rich_markup_mode=None, pretty_exceptions_enable=False
)
Names = Annotated[
    list[str] | None, typer.Argument(help="postgres, kafka, s3, connect or spark; none: all of these; or thrift.")
]
Folder = Annotated[Path, typer.Option(help="Where their data, passwords and logs are.")]
here = project / ".sluice" / "servers"


@app.command()
def install(
    names: Names = None,
    for_tests: Annotated[bool, typer.Option("--for-tests", help="And what only the tests need.")] = False,
) -> None:
    """Fetch what servers are made of, where it is not there yet: jars, a Go module, Debian's packages."""
    stack = Stack(here)
    for kind in dict.fromkeys(type(stack.servers[name]) for name in stack.chosen(names or ())):
        typer.echo(f"{kind.__name__} …", err=True)
        kind.install()
    if for_tests:
        debian.install("rabbitmq-server", "mosquitto", "chromium")


@app.command()
def up(
    names: Names = None,
    folder: Folder = here,
    port: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER, kept for next time.")] = None,
    lake: Annotated[
        str | None, typer.Option(help="The tables of thrift: a folder or s3a://…, kept for next time.")
    ] = None,
    spark: Annotated[
        str | None, typer.Option(help="Where thrift computes: a Spark master, kept for next time.")
    ] = None,
) -> None:
    """Install, start and wait for health; print the settings by which programs find them."""
    stack = Stack(folder)
    if port:
        stack.change_ports(dict(parsed_port(each) for each in port))
    of_thrift = {"lake": lake and absolute(lake), "spark": spark}
    if changed := {name: value for name, value in of_thrift.items() if value}:
        stack.change_thrift(changed)
    install(names)
    started = stack.up(names or ())
    typer.echo(f"Healthy: {', '.join(started)}. Logs: {stack.logs}", err=True)
    typer.echo(f"To use them, passwords included: . {stack.settings_file}", err=True)
    for name, value in stack.settings().items():
        typer.echo(f"{name}={hidden(name, value)}")


@app.command()
def down(names: Names = None, folder: Folder = here) -> None:
    """End them in order; their data stays."""
    Stack(folder).down(names or ())


@app.command()
def status(folder: Folder = here) -> None:
    """Say how each is; exit 1 when one that was started is not healthy."""
    found = Stack(folder).status()
    for each in found:
        health = "healthy" if each.healthy else "-" if each.state == "STOPPED" else "not healthy"
        typer.echo(f"{each.name:<16}{each.state:<10}{health:<13}{each.address:<17}{each.pid or ''}".rstrip())
    if any(each.state != "STOPPED" and not each.healthy for each in found):
        raise typer.Exit(1)


@app.command()
def run(name: str, folder: Folder = here) -> None:
    """Be one server, in the foreground. This is what the supervisor starts."""
    Stack(folder).run(name)


@app.command()
def env() -> None:
    """Write the passwords that docker-compose.yml asks for into .env, where they are not there yet."""
    added = compose.write_environment()
    typer.echo(f"Added to .env: {', '.join(added) or 'nothing; all are there'}.", err=True)


def parsed_port(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdecimal() or not 0 < int(number) < 65536:
        raise UsageError(f"--port {text} cannot be used; write NAME=NUMBER, such as kafka=19092.")
    return name, int(number)


def absolute(lake: str) -> str:
    """The same lake, from whichever folder."""
    return lake if is_bucket(lake) else str(Path(lake).resolve())


def hidden(name: str, value: str) -> str:
    """A setting as it may be shown on a screen: its secrets are only in the file."""
    if name == "AWS_SECRET_ACCESS_KEY":
        return "…"
    scheme, separator, rest = value.rpartition("@")
    return f"{scheme.rpartition(':')[0]}:…@{rest}" if separator else value


def main() -> None:
    """An error is a message and an exit code."""
    try:
        app()
    except SluiceError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
