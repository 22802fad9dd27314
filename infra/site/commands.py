"""Every command of the CLI, from its Typer app."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from typer.main import get_command

from sluice.cli import app


@cache
def commands() -> dict[str, Any]:
    """The commands and groups by their words after `sluice`: `""`, `"run"`, `"log"`, `"log append"`, …"""
    return dict(walk("", get_command(app)))


def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word in getattr(command, "commands", {}):
        each = command.get_command(None, word)
        if not each.hidden:
            yield from walk(f"{name} {word}".strip(), each)


def is_group(command: Any) -> bool:
    return hasattr(command, "commands")


def options_of(command: Any) -> set[str]:
    """All names of a command's options, such as `--records` and `-n`."""
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
