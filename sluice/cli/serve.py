"""`sluice serve`: the tables for other programs."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from sluice.api import Project, SqlComment, SqlOptions, SqlServer
from sluice.cli.options import ProjectFolder, opened
from sluice.cli.printing import err
from sluice.errors import SluiceError, UsageError

serve_app = typer.Typer(no_args_is_help=True, help="Serve the tables to other programs, read-only.")


@serve_app.callback()
def serve() -> None:
    """There may be more to serve by than SQL."""


@serve_app.command("sql")
def serve_sql(
    project: ProjectFolder = Path(),
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 5433,
    certificate: Annotated[Path | None, typer.Option(help="A certificate for TLS, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    statement_seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="The longest a statement may take.")
    ] = 60,
    memory: Annotated[str, typer.Option(help="The memory that the statements of one connection may use.")] = "1GB",
    server_memory: Annotated[str, typer.Option(help="The memory that the whole server may take.")] = "4GB",
    connections: Annotated[int, typer.Option(min=1, help="How many connections there may be.")] = 50,
) -> None:
    """Serve the tables by the Postgres protocol, for psql, JDBC, SQLAlchemy and BI tools."""
    with opened(project) as here:
        users = users_of(here.settings.sql_users.get_secret_value())
        options = SqlOptions(host, port, users, certificate, key, statement_seconds, memory, connections, server_memory)
        server = SqlServer(here.lake, options, comments_of(here))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: threading.Thread(target=server.close).start())
        user = f" -U {next(iter(users))}" if users else ""
        example = f"psql -h {host} -p {server.port}{user} lake"
        err.print(
            f"Listening on {host}:{server.port}; connect for example with: {example}", highlight=False, markup=False
        )
        server.serve()


def comments_of(project: Project) -> list[SqlComment]:
    """What the declarations say of tables and columns; nothing where they cannot be read."""
    try:
        tables = project.catalogue()
    except SluiceError as error:
        err.print(f"The tables have no comments: {error}", highlight=False, markup=False)
        return []
    found = [SqlComment(table.name, None, table.meaning) for table in tables if table.meaning]
    for table in tables:
        found += [SqlComment(table.name, each.name, each.comment) for each in table.columns if each.comment]
    return found


def users_of(text: str) -> dict[str, str]:
    """The passwords by name; a UsageError that does not repeat them."""
    found = {}
    for number, each in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, _, password = each.partition(":")
        if not name or not password:
            raise UsageError(
                "The users of SQL (SLUICE_SQL_USERS) are NAME:PASSWORD, with a comma between two; "
                f"number {number} is not."
            )
        if name in found:
            raise UsageError(f"The users of SQL (SLUICE_SQL_USERS) have {name} twice.")
        found[name] = password
    return found
