"""`sluice lineage` and `docs`: what each column is and is made from."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sluice.api import Described, Link, Traced, trace
from sluice.cli.options import AsJson, ProjectFolder, opened
from sluice.cli.printing import out, print_json, print_table, printable


def lineage(
    name: Annotated[
        str | None, typer.Argument(help="A table, or a column of one: gold.delays_hourly.flights. None: every table.")
    ] = None,
    project: ProjectFolder = Path(),
    as_json: AsJson = False,
) -> None:
    """Say what each column is made from, down to the log, and what is made from it.

    It is read from the declarations and their SQL. Columns that a Python function computes are marked as unknown.
    """
    with opened(project) as here:
        known = here.catalogue(tables=True)
        found = trace(known, name) if name else known
    if isinstance(found, Traced):
        table = next(each for each in known if each.name == found.table)
        print_json(asdict(found)) if as_json else print_traced(found, table)
    elif as_json:
        print_json([{"table": each.name, "columns": asdict(each)["columns"], "rows": each.rows} for each in found])
    else:
        print_columns(found)


def print_columns(tables: Sequence[Described]) -> None:
    """The columns of tables, each with what it is made from directly."""
    rows = [
        [
            f"{table.name}.{each.name}",
            " ".join(str(source) for source in each.made.sources if source.is_of_values),
            " ".join((each.made.unknown or each.made.by).split()),
        ]
        for table in tables
        if table.topic is None
        for each in table.columns
    ]
    print_table(["column", "made from", "by"], rows)


def print_traced(found: Traced, table: Described) -> None:
    """The lineage of a column as a tree, and that of a table as a list."""
    column = None if found.column is None else table.column(found.column)
    if column is None:
        near = [each for each in found.upstream if each.table == found.table and each.is_of_values]
        others = [each for each in table.columns if each.name not in {link.column for link in near}]
        counted = [[f"{table.name}.{each.name}", "", "", each.made.unknown or each.made.by] for each in others]
        print_table(["column", "made from", "how", "by"], [*map(row_of, near), *counted])
    else:
        out.print(escape(printable(f"{found.table}.{found.column}")), style="bold", highlight=False)
        kind = " in ".join(text for text in (column.type, column.unit) if text)
        about = [kind, column.meaning, f"Owner: {table.owner}" if table.owner else ""]
        out.print(escape(printable(". ".join(each.rstrip(".") for each in about if each))), highlight=False)
        print_tree(found.upstream, f"{found.table}.{found.column}", depth=1, above=())
    if found.rows:
        said = ", ".join(f"{each} ({each.how})" for each in found.rows)
        out.print()
        out.print(escape(printable(f"Which rows there are is decided by: {said}")), highlight=False)
    if found.downstream:
        out.print("\nMade from it:", highlight=False)
        print_table(["column", "made from", "how", "by"], [row_of(each) for each in found.downstream])


def row_of(link: Link) -> list[object]:
    return [link.target, link.source, link.how, " ".join((link.unknown or link.by).split())]


def print_tree(links: Sequence[Link], column: str, depth: int, above: tuple[str, ...]) -> None:
    """What a column is made from, each step further to the right."""
    own = [each for each in links if each.target == column]
    for said in dict.fromkeys(each.unknown or f"by {each.by}" for each in own if each.unknown or each.by):
        out.print(escape(printable(f"{'  ' * depth}{' '.join(said.split())}")), style="dim", highlight=False)
    for each in own:
        out.print(escape(printable(f"{'  ' * depth}← {each.source} ({each.how})")), highlight=False)
        if each.is_of_values and each.source not in above:
            print_tree(links, each.source, depth + 1, (*above, column))


def docs(
    project: ProjectFolder = Path(),
    folder: Annotated[
        Path | None, typer.Option("--out", help="The folder for the pages.", show_default=".sluice/docs")
    ] = None,
) -> None:
    """Write the catalogue as pages for a browser: columns, types, units, meaning, lineage, tests and owners."""
    with opened(project) as here:
        typer.echo(here.docs(folder).resolve().as_uri())
