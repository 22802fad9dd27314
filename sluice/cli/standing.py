"""`sluice standing`: add, remove and list stored queries."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from sluice.cli.options import AsJson, ProjectFolder, opened, time_of
from sluice.cli.printing import err, print_json, print_table

standing_app = typer.Typer(no_args_is_help=True, help="Store queries that each new row of a table is matched with.")
Matches = Annotated[str, typer.Argument(metavar="DATASET", help="The table of matches.")]
QueryId = Annotated[str, typer.Argument(metavar="ID", help="The id of the query.")]


@standing_app.command("add")
def standing_add(  # noqa: PLR0917 - options, each given by its name
    dataset: Matches,
    query_id: QueryId,
    condition: Annotated[str, typer.Argument(help="An SQL predicate: \"price > 100 AND symbol IN ('A', 'B')\"")],
    project: ProjectFolder = Path(),
    past: Annotated[bool, typer.Option("--past", help="Also match rows from before --from.")] = False,
    valid_from: Annotated[
        datetime | None,
        typer.Option("--from", parser=time_of, metavar="TIME", help="Match event times from here on (UTC); now."),
    ] = None,
    attributes: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An attribute of the query.")
    ] = None,
) -> None:
    """Store a query, or a new version of one; the next run finds its matches."""
    said = dict(pair(each) for each in attributes or [])
    with opened(project) as here:
        here.standing.add(dataset, query_id, condition, past=past, valid_from=valid_from, attributes=said)
    err.print(f"The next run matches {query_id}: sluice run", highlight=False, markup=False)


@standing_app.command("remove")
def standing_remove(
    dataset: Matches,
    query_id: QueryId,
    project: ProjectFolder = Path(),
    valid_to: Annotated[
        datetime | None,
        typer.Option("--from", parser=time_of, metavar="TIME", help="Event times from here on (UTC); now."),
    ] = None,
) -> None:
    """End a query: later rows no longer match it, and earlier matches stay."""
    with opened(project) as here:
        here.standing.remove(dataset, query_id, valid_to=valid_to)
    err.print(f"The next run ends {query_id}: sluice run", highlight=False, markup=False)


@standing_app.command("list")
def standing_list(
    dataset: Matches,
    project: ProjectFolder = Path(),
    all_versions: Annotated[bool, typer.Option("--all", help="All versions, also those that have ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the queries that the last run took in; `sluice quarantine list` counts those that do not fit."""
    with opened(project) as here:
        found = here.standing.list(dataset, all_versions=all_versions)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    extra = list(found[0].attributes) if found else []
    print_table(
        ["query", "condition", "past", "valid from", "valid to", *extra],
        [
            [each.query_id, each.condition, each.match_past, each.valid_from, each.valid_to, *each.attributes.values()]
            for each in found
        ],
    )


def pair(text: str) -> tuple[str, Any]:
    """An attribute and its value: JSON, or else text."""
    name, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r} is no NAME=VALUE", param_hint="--set")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value
