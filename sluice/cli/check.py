"""`sluice check` and `report`: whether the tables are what is expected of them."""

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.api import Checked, Project, severity_of, state_of
from sluice.cli.options import AsJson, ProjectFolder, opened
from sluice.cli.printing import err, out, print_json, print_table, with_null
from sluice.errors import UsageError


def check(
    datasets: Annotated[list[str] | None, typer.Argument(help="Datasets; none: all.")] = None,
    project: ProjectFolder = Path(),
    no_report: Annotated[bool, typer.Option("--no-report", help="Check, but write no report.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the newest version of each table against its expectations; exit 1 if a critical one fails.

    Also says what rows would break that were refused, and so are in no version.
    """
    with opened(project) as here:
        found = here.check(*datasets or [])
        with_suite = {each.name for each in here.catalogue() if each.has_suite}
    if as_json:
        print_json(found.rows)
    else:
        print_checked(found, with_suite)
    if not no_report:
        err.print(reported(here, found), highlight=False, markup=False)
    if found.is_critical:
        raise typer.Exit(1)


def reported(here: Project, found: Checked) -> str:
    """Where the report of a check is, or what is not installed and has to be."""
    try:
        return f"Report: {here.report(found)}"
    except UsageError as error:
        return str(error)


def print_checked(found: Checked, with_suite: Set[str]) -> None:
    """A line for each dataset, and one for each expectation that is broken."""
    print_table(
        ["dataset", "version", "kept", "broken", "state", "suite"],
        [
            [
                dataset,
                "refused" if is_refused else next((row["version"] for row in rows), None),
                sum(row["verdict"] == "passed" for row in rows),
                sum(row["verdict"] != "passed" for row in rows),
                state_of(rows),
                "yes" if dataset in with_suite else "none",
            ]
            for is_refused, checked in ((False, found.found), (True, found.refused))
            for dataset, rows in checked.items()
        ],
    )
    if found.broken:
        out.print()
        print_table(
            ["dataset", "expectation", "severity", "rows", "of", "observed", "for example"],
            [
                [
                    row["dataset"],
                    row["expectation"],
                    severity_of(row),
                    row["unexpected_rows"],
                    row["rows"],
                    row["message"] or row["observed"],
                    example(row),
                ]
                for row in found.broken
            ],
        )


def example(row: Mapping[str, Any]) -> str | None:
    """The first of the rows that broke an expectation."""
    known = json.loads(row["examples"] or "[]")
    return ", ".join(f"{name} {value}" for name, value in with_null(known[0]).items()) if known else None


def report(
    project: ProjectFolder = Path(),
    show: Annotated[str | None, typer.Option(help="Only print this file of the report that is there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of the newest checks that are kept, without checking anything."""
    with opened(project) as here:
        if show is not None:
            typer.echo(here.report_file(show), nl=False)
            return
        index = here.report()
    if as_json:
        print_json({"index": index})
    else:
        out.print(f"Report: {index}", highlight=False)
