"""`sluice ui`: the tables in a browser."""

import logging
import signal
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import ProjectFolder
from sluice.cli.printing import err
from sluice.errors import UsageError


def ui(
    project: ProjectFolder = Path(),
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 8090,
    certificate: Annotated[Path | None, typer.Option(help="A certificate for TLS, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's private key.")] = None,
    serve_as: Annotated[
        list[str] | None, typer.Option(help="A host name that readers may use, beside the address.")
    ] = None,
    statement_seconds: Annotated[float, typer.Option(min=0.1, max=86_400, help="The longest a query may take.")] = 30,
    memory: Annotated[str, typer.Option(help="The memory that a query may use.")] = "1GB",
    server_memory: Annotated[str, typer.Option(help="The memory that the whole server may take.")] = "4GB",
    open_browser: Annotated[bool, typer.Option("--open", help="Also open it in this machine's browser.")] = False,
) -> None:
    """Show the tables in a browser: figures, how fresh and complete they are, and why they changed."""
    try:
        from sluice.console import Options, Server
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install 'sluice-lakehouse[ui]'") from error
    from sluice.api import Project

    here = Project(project)
    token = here.settings.ui_token.get_secret_value()
    options = Options(
        host, port, token, certificate, key, tuple(serve_as or ()), statement_seconds, memory, server_memory
    )
    server = Server(here, options)
    # It warns of each reader that left before its answer was sent.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: server.close())
    err.print(f"The console is at {server.url} (Ctrl+C ends it)", highlight=False)
    if open_browser:
        typer.launch(server.url)
    with here:
        server.serve()
