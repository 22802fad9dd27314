"""`sluice quarantine`: list, show, add and release quarantined records."""

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import AsJson, ProjectFolder, opened
from sluice.cli.printing import err, out, print_json, print_table
from sluice.errors import UsageError

quarantine_app = typer.Typer(no_args_is_help=True, help="Look at quarantined and late records, and release them.")
QuarantinedBy = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset that quarantined them.")]


@quarantine_app.command("list")
def quarantine_list(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """Count quarantined records, by dataset and rule."""
    with opened(project) as here:
        found = here.quarantine.list()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ["dataset", "fate", "reason", "records", "first", "last", "can be released"],
        [[*astuple(each)] for each in found],
    )


@quarantine_app.command("show")
def quarantine_show(
    dataset: QuarantinedBy,
    project: ProjectFolder = Path(),
    reason: Annotated[str | None, typer.Option(help="Only those of this rule.")] = None,
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print the oldest quarantined records of a dataset, as they arrived."""
    with opened(project) as here:
        found = here.quarantine.records(dataset, reason=reason, limit=records + 1)
    rows = [
        {
            "record": each.position,
            "timestamp": each.timestamp,
            "reason": each.reason,
            "value": None if each.value is None else each.value.decode(errors="backslashreplace"),
        }
        for each in found[:records]
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        of_rule = f" for {reason}" if reason else ""
        err.print(f"{dataset} has no quarantined records{of_rule}.", highlight=False, markup=False)
        return
    print_table(["record", "arrived", "reason", "value"], [[*row.values()] for row in rows])
    if len(found) > records:
        err.print(f"There are more than these {records}; give --records a larger number.", highlight=False)


@quarantine_app.command("add")
def quarantine_add(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset that their records are rows of.")],
    records: Annotated[list[str], typer.Argument(help="Their positions: topic/partition/offset …")],
    because: Annotated[str, typer.Option(help="Why; it stays in the log.")],
    project: ProjectFolder = Path(),
) -> None:
    """Set records aside that broke no rule; the next run does it, and `release` lets them in again."""
    with opened(project) as here:
        count = here.quarantine.add(dataset, records, because)
    err.print(f"The next run sets aside {count:,} of {dataset}: sluice run", highlight=False)


@quarantine_app.command("release")
def quarantine_release(  # noqa: PLR0917 - options, each given by its name
    dataset: QuarantinedBy,
    because: Annotated[str, typer.Option(help="Why; it stays in the log.")],
    project: ProjectFolder = Path(),
    reason: Annotated[str | None, typer.Option(help="All records of this rule, for example late.")] = None,
    record: Annotated[list[str] | None, typer.Option(help="One record: topic/partition/offset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Release quarantined records; the next run accepts them as if they had never been quarantined."""
    if (reason is None) == (record is None):
        raise UsageError("Say what to release: --reason late, or --record topic/partition/offset.")
    with opened(project) as here:
        released = here.quarantine.release(dataset, because=because, reason=reason, positions=record or [])
    if as_json:
        print_json({"released": released.records})
        return
    out.print(
        f"Released {released.records:,} of {released.dataset}; the next run takes them in: sluice run", highlight=False
    )
