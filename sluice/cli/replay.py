"""`sluice replay` and `rollback`: tables computed beside the live ones, compared, and put in their place."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sluice.api import Replay
from sluice.cli.options import AsJson, ProjectFolder, opened, time_of
from sluice.cli.printing import err, out, print_changed, print_json, print_table, with_null

replay_app = typer.Typer(no_args_is_help=True, help="Recompute tables beside the live ones, compare, and promote them.")
ReplayName = Annotated[str, typer.Argument(metavar="REPLAY", help="Its name, as shown by sluice replay list.")]


@replay_app.command("start")
def replay_start(  # noqa: PLR0917 - options, each given by its name
    because: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    datasets: Annotated[
        list[str] | None,
        typer.Argument(help="Datasets to recompute; none: those whose declaration changed, or all with a range."),
    ] = None,
    project: ProjectFolder = Path(),
    since: Annotated[
        datetime | None, typer.Option(parser=time_of, metavar="TIME", help="Event times from here on (UTC).")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(parser=time_of, metavar="TIME", help="Event times before this (UTC).")
    ] = None,
    records: Annotated[list[str] | None, typer.Option(help="Records: topic/partition/first-last.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which tables it would compute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute datasets in a shadow, with everything downstream, and show what would change."""
    with opened(project) as here:
        do = here.replays.plan if dry_run else here.replays.start
        found = do(*datasets or [], because=because, since=since, until=until, records=records or [])
    if dry_run and not as_json:
        out.print(f"It would compute {', '.join(found.tables)}.", highlight=False)
    else:
        print_replay(found, as_json=as_json)


@replay_app.command("list")
def replay_list(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """List the replays that are kept."""
    with opened(project) as here:
        found = here.replays.list()
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
        return
    print_table(
        ["replay", "state", "datasets", "part", "rows that differ", "because"],
        [
            [each.name, each.state, " ".join(each.datasets), each.part, each.rows_that_differ, each.because]
            for each in found
        ],
    )


@replay_app.command("show")
def replay_show(name: ReplayName, project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """Show what a replay would change."""
    with opened(project) as here:
        found = here.replays.show(name)
    print_replay(found, as_json=as_json)


@replay_app.command("promote")
def replay_promote(name: ReplayName, project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """Put a replay in place of the live tables; sluice rollback undoes it."""
    with opened(project) as here:
        was_promoted = here.replays.show(name).state == "promoted"
        changed = here.replays.promote(name)
    if was_promoted and not any(changed.values()):
        err.print(f"{name} was promoted before, and nothing of it was left to do.", highlight=False)
    print_changed("rows promoted", changed, as_json=as_json)


@replay_app.command("drop")
def replay_drop(name: ReplayName, project: ProjectFolder = Path()) -> None:
    """Forget a replay and remove its tables; what was promoted stays."""
    with opened(project) as here:
        here.replays.drop(name)
    out.print(f"Dropped {name}.", highlight=False)


def rollback(
    datasets: Annotated[list[str], typer.Argument(help="Datasets, or one replay that was promoted: all its tables.")],
    because: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    project: ProjectFolder = Path(),
    as_json: AsJson = False,
) -> None:
    """Give datasets back the rows that they had before they were last promoted or rebuilt."""
    with opened(project) as here:
        changed = here.rollback(*datasets, because=because)
    print_changed("rows rolled back", changed, as_json=as_json)


def print_replay(replay: Replay, *, as_json: bool) -> None:
    """What a replay would change: rows by table, then measures, then some rows."""
    if as_json:
        print_json(replay.model_dump(mode="json"))
        return
    about = f" ({replay.part})" if replay.part else ""
    out.print(f"{replay.name}: {', '.join(replay.datasets)}{about}, because {replay.because}", highlight=False)
    print_table(
        ["dataset", "declaration", "inserted", "updated", "deleted", "new columns", "lost columns", "other types"],
        [
            [
                each.dataset,
                "changed" if each.dataset in replay.changed else "same",
                each.inserted,
                each.updated,
                each.deleted,
                " ".join(each.columns_added),
                " ".join(each.columns_dropped),
                ", ".join(each.columns_retyped),
            ]
            for each in replay.compared
        ],
    )
    measures = [
        [each.dataset, measure.column, measure.rows, measure.mean_before, measure.mean_after]
        for each in replay.compared
        for measure in each.measures
    ]
    if measures:
        out.print()
        print_table(["dataset", "column", "rows that differ", "their mean before", "after"], measures)
    for each in replay.compared:
        for row in each.examples:
            key = " ".join(f"{name}={text}" for name, text in with_null(row.key).items())
            out.print(f"\n{each.dataset} {escape(key)}", highlight=False)
            for sign, values in (("-", row.before), ("+", row.after)):
                if values is not None:
                    shown_values = "  ".join(f"{name} {text}" for name, text in with_null(values).items())
                    out.print(f"  {sign} {escape(shown_values)}", highlight=False)
    if replay.state == "failed":
        out.print(f"It failed: {escape(replay.failed_because)}", highlight=False)
        out.print(f"\nRemove it with: sluice replay drop {replay.name}", highlight=False)
    elif replay.state == "built" and not replay.changed and not replay.rows_that_differ:
        out.print(f"\nNothing differs. Remove the replay with: sluice replay drop {replay.name}", highlight=False)
    elif replay.state == "built":
        out.print(f"\nPut it in place with: sluice replay promote {replay.name}", highlight=False)
