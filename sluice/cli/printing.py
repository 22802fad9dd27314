"""What commands print: data on stdout, as JSON or as tables for people; messages on stderr."""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.api import Message, as_text, counted, json_line, plain

# Control characters and halves of characters, and the marks that turn the direction of writing.
control_categories = ("Cc", "Cs")
direction_marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

# A pipe has no width: rows must not be folded to fit a screen that is not there.
out = Console(width=None if sys.stdout and sys.stdout.isatty() else 100_000)
err = Console(stderr=True, soft_wrap=True)


def print_json(value: Any, indent: int | None = 2) -> None:
    typer.echo(json_line(value, indent))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table for people: numbers to the right, with thousands apart."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        is_number = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(printable(column), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*[shown(value) for value in row])
    out.print(table, highlight=False, markup=False)


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) >= 1 or not value else f"{value:.3g}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}" + (f".{value:%f}".rstrip("0") if value.microsecond else "")
    if isinstance(value, dict | list):
        value = json.dumps(plain(value), ensure_ascii=False, default=as_text)
    return printable(as_text(value))


def exact(value: Any) -> str:
    """A value of a row with all of its digits, as `sluice explain` takes it."""
    if value is None:
        return "null"
    return printable(value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else as_text(value))


def to_the_second(time: datetime | None) -> datetime | None:
    """When something was done, as people read it."""
    return time and time.replace(microsecond=0)


def printable(text: str) -> str:
    """Text without characters that would steer a terminal or turn the direction of writing: they are escaped."""
    return "".join(escaped(each) if is_steering(each) else each for each in text)


def is_steering(character: str) -> bool:
    return unicodedata.category(character) in control_categories or character in direction_marks


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def print_changed(what: str, rows: Mapping[str, int], *, as_json: bool, by: str = "dataset") -> None:
    """How many rows changed in each table."""
    if as_json:
        print_json(rows)
    else:
        print_table([by, what], [[name, count] for name, count in rows.items()])


def with_null(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a row, null as SQL and `sluice explain` write it."""
    return {name: "null" if value is None else value for name, value in values.items()}


def up_to_date(tables: int) -> str:
    return f"{counted(tables, 'table')} {'is' if tables == 1 else 'are'} up to date"


def print_message(message: Message) -> None:
    """Prints a message for the user, while the work continues."""
    match message.kind:
        case "notice":
            err.print(message.text, highlight=False, markup=False)
        case "warning":
            err.print(f"[yellow bold]Warning:[/] {escape(printable(message.text))}", highlight=False)
        case "error":
            err.print(f"[red bold]Error:[/] {escape(message.text)}", highlight=False)
