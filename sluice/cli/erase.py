"""`sluice erase`: remove the records of a subject from everywhere, and prove that they are gone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sluice.api import Erased, counted
from sluice.cli.options import AsJson, ProjectFolder, names_in, opened
from sluice.cli.printing import err, out, print_json, print_table
from sluice.errors import UsageError


def erase(  # noqa: PLR0917 - options, each given by its name
    topic: Annotated[str | None, typer.Argument(help="The topic of the records.")] = None,
    project: ProjectFolder = Path(),
    key: Annotated[str | None, typer.Option(help="The records with this key.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="The records that meet this condition: record ->> 'id' = 'x'.")
    ] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Only these fields of their JSON, which become null.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; it stays in the log.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the records, and erase nothing.")] = False,
    verify: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Search all files of the log and the tables for a value.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Erase the records of a subject from the log, the tables and all their older versions.

    Their offsets stay, and all tables are recomputed without them. An interrupted erasure continues when you repeat
    the command, and with every run. --verify lists the files that contain the value, and exits with 1 if it finds one.

    On Kafka, tombstones are appended, and Kafka removes the records when it compacts the topic, which needs
    cleanup.policy=compact.
    """
    if verify is not None:
        search(project, verify, as_json=as_json)
        return
    if topic is None:
        raise UsageError("Erase from which topic? Or search for a value: sluice erase --verify VALUE")
    with opened(project) as here:
        found = here.erase(
            topic,
            key=key,
            where=where,
            fields=None if fields is None else names_in(fields),
            reason=reason,
            dry_run=dry_run,
        )
    if as_json:
        unknown, in_the_way = list(found.unknown_fields), list(found.in_the_way)
        shown = {"topic": found.topic, "records": found.count, "unknown_fields": unknown, "in_the_way": in_the_way}
        print_json(shown)
    else:
        out.print(said(found, is_done=not dry_run), highlight=False)
    if found.unknown_fields:
        names = ", ".join(found.unknown_fields)
        err.print(f"None of the records has a field {names}: is it misspelt?", highlight=False, markup=False)
    for each in found.in_the_way:
        what = "This will be in the way" if dry_run else "The old values are not gone everywhere"
        err.print(f"{what}: {each}.", highlight=False, markup=False)
    is_misspelt = bool(found.unknown_fields) and not found.count
    if is_misspelt or (found.in_the_way and not dry_run):
        raise typer.Exit(1)


def said(found: Erased, *, is_done: bool) -> str:
    """What became of the records; an erasure that was cut off has been completed by then."""
    if not found.count:
        are_complete = is_done and not found.in_the_way
        earlier = ", and earlier ones are complete" if are_complete else ""
        return (
            f"No record of {found.topic} matches, or those that do are erased already. No erasure was stated{earlier}."
        )
    return f"{counted(found.count, 'record')} of {found.topic} {'erased' if is_done else 'would be erased'}."


def search(project: Path, value: str, *, as_json: bool) -> None:
    """Lists the files that have the value."""
    with opened(project) as here:
        hits = here.search_files(value)
        is_on_kafka = here.settings.log.startswith("kafka://")
    if as_json:
        print_json([asdict(each) for each in hits])
    elif hits:
        print_table(["file", "in"], [[each.file, each.place] for each in hits])
    elif is_on_kafka:
        out.print("No file of the tables has it, and no record of the project's topics on Kafka.", highlight=False)
    else:
        out.print("No file of the log or the tables has it.", highlight=False)
    if hits:
        raise typer.Exit(1)
