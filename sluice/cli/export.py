"""`sluice export`: a table, or its changes, as files."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from sluice.api import counted
from sluice.cli.options import AsJson, ProjectFolder, names_in, opened, time_of
from sluice.cli.printing import err, print_json


def export(
    table: Annotated[str, typer.Argument(help="The table, for example gold.delays_hourly.")],
    folder: Annotated[str, typer.Argument(help="The folder to create; it appears only once it is complete.")],
    *,
    project: ProjectFolder = Path(),
    form: Annotated[
        Literal["parquet", "csv", "jsonl"], typer.Option("--format", help="jsonl is for --changelog.")
    ] = "parquet",
    partition_by: Annotated[
        str | None, typer.Option(metavar="COLUMN,…", help="Write a folder for each value: COLUMN=VALUE/.")
    ] = None,
    as_known_at: Annotated[
        datetime | None, typer.Option(parser=time_of, metavar="TIME", help="Write what was known at that time (UTC).")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Only rows that meet this SQL condition.")] = None,
    changelog: Annotated[
        bool, typer.Option("--changelog", help="Write the changes, with old and new rows, instead of the rows.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="Only the changes after this version.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing export, atomically on Linux.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write one version of a table, or its changes, as files: a folder that is there whole, or not at all."""
    with opened(project) as here:
        found = here.export(
            table,
            folder,
            form,
            partition_by=names_in(partition_by),
            known_at=as_known_at,
            where=where,
            changelog=changelog,
            since=since,
            replace=replace,
        )
    if as_json:
        print_json(asdict(found))
        return
    what = counted(found.rows, "change" if found.is_changelog else "row")
    err.print(f"{what} of {table}, version {found.version}: {folder}", highlight=False, markup=False)
