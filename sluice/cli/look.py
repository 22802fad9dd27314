"""`sluice status`, `audit`, `query` and `explain`: what is in the tables, and why."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from sluice.api import Audit, Fates, IntegrityCheck, Origin, Recomputed, Step, Stopped, Value, counted, require_project
from sluice.cli.options import AsJson, ProjectFolder, opened, time_of
from sluice.cli.printing import exact, out, print_json, print_table, printable, shown, to_the_second, up_to_date
from sluice.errors import UsageError


def status(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """Show offsets, lag, watermark, rows and freshness of every dataset."""
    with opened(project) as here:
        states = here.status()
        unread = [] if as_json else here.log.unread_topics()
    if as_json:
        print_json([asdict(state) for state in states])
        return
    print_table(
        ["dataset", "rows", "version", "lag", "next offsets", "watermark", "updated"],
        [
            [
                state.dataset,
                state.rows,
                state.version,
                state.lag,
                " ".join(
                    f"{partition}:{offset:,}" + (f" (+{lag:,})" if (lag := state.lags.get(partition)) else "")
                    for partition, offset in state.offsets.items()
                ),
                state.watermark,
                to_the_second(state.updated_at),
            ]
            for state in states
        ],
    )
    if unread:
        said = f"\nTopics of the log that no dataset is made from: {', '.join(unread)}."
        out.print(said, highlight=False, markup=False)
    for state in states:
        if state.held:
            out.print(f"\n[bold]{state.dataset}[/]: {escape(printable(state.held))}", highlight=False)


def plan(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """Say what the next run will do to each dataset, and how many rows are at stake; nothing is run."""
    with opened(project) as here:
        steps = here.plan()
    if as_json:
        print_json([asdict(step) for step in steps])
        return
    # A topic that need not exist has no table.
    steps = [step for step in steps if step.action != "nothing" or step.rows is not None]
    shown = [step for step in steps if step.action != "nothing" or step.blocked]
    any_blocked = any(step.blocked for step in shown)
    if shown:
        names = ["dataset", "will", "because", "rows now", "new records"]
        print_table(
            [*names, *(["blocked before"] if any_blocked else [])],
            [
                [
                    step.name,
                    step.action,
                    f"{step.because}: {', '.join(step.fields)}" if step.fields else step.because,
                    step.rows,
                    step.records or "",
                    *([step.blocked] if any_blocked else []),
                ]
                for step in shown
            ],
        )
    out.print(planned(steps, len(steps) - len(shown)), highlight=False)


def planned(steps: Sequence[Step], unchanged: int) -> str:
    """What the next run will do, in one line; a table that does not exist yet has no rows to recompute."""
    if unchanged == len(steps):
        return f"Nothing to do: {up_to_date(unchanged)}."
    built = [step for step in steps if step.action == "build"]
    recomputed = [step for step in steps if step.action == "recompute"]
    tables, rows = counted(len(steps), "table"), counted(sum(step.rows or 0 for step in recomputed), "row")
    said = [f"builds {len(built)} of {tables}"] if built else []
    if recomputed or not built:
        said.append(f"recomputes {len(recomputed)} of {tables} ({rows} now)")
    return f"{'; '.join([*said, f'{unchanged} unchanged'])}.".capitalize()


def audit(
    project: ProjectFolder = Path(),
    recompute: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Also recompute a sample of the rows: 1%, 0.01, or all. Needs Spark."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which rows are sampled; by default it changes every day.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Account for every landed record and every row; exit 1 if one is lost, doubled or inconsistent.

    It also exits with 1 if a dataset is blocked, if its newest rows were refused, or if an erasure is not complete.

    With --recompute, a sample of the rows of every table is recomputed from its inputs and compared.
    """
    share = None if recompute is None else share_of(recompute)
    with opened(project) as here:
        found = here.audit(share, seed)
    if as_json:
        print_json([as_plain(each) | {"balanced": each.balanced} for each in found.findings])
    else:
        print_audit(found)
    if not found.balanced:
        raise typer.Exit(1)


def print_audit(found: Audit) -> None:
    """What became of the records, the rows that break an integrity check, what is blocked, what was recomputed."""
    names = ["dataset", "topic", "landed", "accepted", "duplicate", "conflicts"]
    names += ["quarantined", "late", "erased", "missing", "doubled"]
    print_table(
        [*names, "balanced"],
        [[*[getattr(each, name) for name in names], "yes" if each.balanced else "NO"] for each in found.fates],
    )
    out.print()
    print_table(
        ["dataset", "must not be", "rows"],
        [[each.dataset, each.law, each.unknown or each.broken] for each in found.laws],
    )
    if found.stopped:
        out.print()
        rows = [[each.dataset, to_the_second(each.since), each.reason] for each in found.stopped]
        print_table(["dataset", "open since", "because"], rows)
    print_recomputed(found.recomputed)


def as_plain(found: Fates | IntegrityCheck | Stopped | Recomputed) -> dict[str, Any]:
    """A finding of the audit for JSON."""
    return found.model_dump(mode="json") if isinstance(found, Recomputed) else asdict(found)


def share_of(text: str) -> float:
    """A share of rows from `1%`, `0.01` or `all`."""
    try:
        share = 1.0 if text == "all" else float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"--recompute {text} is no share of the rows; write for example 1%, 0.01 or all.")
    return share


def print_recomputed(found: Sequence[Recomputed]) -> None:
    """How many rows of each table were recomputed, and those that are wrong."""
    if not found:
        return
    out.print()
    print_table(
        ["dataset", "recomputed", "wrong", ""], [[each.dataset, each.rows, each.wrong, each.skipped] for each in found]
    )
    for each in found:
        for row in each.examples:
            key = " ".join(f"{name}={exact(value)}" for name, value in row.key.items())
            out.print(f"\n[bold]{row.table}[/] {escape(key)}: {row.kind}", highlight=False)
            for name in dict.fromkeys([*row.stored, *row.recomputed]):
                values = [exact(side[name]) if name in side else "no row" for side in (row.stored, row.recomputed)]
                out.print(f"  {escape(name)}: {escape(values[0])}, should be {escape(values[1])}", highlight=False)
        for other in each.others:
            out.print(f"  {each.dataset}: {other}", highlight=False)
        if each.wrong:
            mend = f"Say why with: sluice explain {each.dataset} …   Repair with: sluice run --rebuild {each.dataset}"
            out.print(f"  {mend}", highlight=False, markup=False)


def query(
    sql: str,
    project: ProjectFolder = Path(),
    as_known_at: Annotated[
        datetime | None,
        typer.Option(parser=time_of, metavar="TIME", help="Answer from what was known at that time (UTC)."),
    ] = None,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query read and write other files (COPY, read_csv, ATTACH).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer a SQL query over the tables, by their names: `SELECT * FROM gold.delays_hourly LIMIT 5`."""
    with opened(project) as here:
        if not here.settings.lake:
            require_project(here.settings.project)
        answer = here.query(sql, as_known_at, allow_files=allow_files)
        rows = answer.rows_with_infinity
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in rows])
    else:
        print_table(answer.columns, rows)


def explain(
    dataset: Annotated[str, typer.Argument(help="The dataset, for example gold.delays_hourly.")],
    row: Annotated[list[str], typer.Argument(help="Which row: column=value for each column that tells rows apart.")],
    project: ProjectFolder = Path(),
    as_json: AsJson = False,
) -> None:
    """List every value that a row has had, when each became known, and the records or declarations that caused it."""
    wanted = dict(each.split("=", 1) for each in row if "=" in each)
    with opened(project) as here:
        values = here.explain(dataset, **wanted)
    if as_json:
        print_json([asdict(each) for each in values])
        return
    if not values:
        raise UsageError(f"{dataset} has no row {' '.join(row)}, in any version that is kept. Times are in UTC.")
    print_values(values, [*wanted])


def print_values(values: Sequence[Value], named: Sequence[str]) -> None:
    """Each value of a row, without the columns that identify it, and its origins."""
    names = [name for name in next(each.row for each in values if each.row) if name not in named]
    for each in values:
        out.print(f"[bold]{shown(each.known_at)}[/]  version {each.version}, {each.cause}", highlight=False)
        if each.row is None:
            out.print("  gone", highlight=False)
        else:
            shown_values = "  ".join(f"{name} {shown(each.row[name])}" for name in names)
            # Of a table without measures all columns identify the row.
            out.print(f"  {escape(shown_values or 'there')}", highlight=False)
        for origin in each.origins:
            out.print(f"  because of {escape(describe_origin(origin))}", highlight=False)


def describe_origin(origin: Origin) -> str:
    """An origin as one line."""
    way = " → ".join(reversed(origin.path))
    if origin.records:
        more = origin.records_count - len(origin.records)
        return f"{', '.join(origin.records)}{f' and {more:,} more' if more else ''}, by {way}"
    detail = ", ".join(f"{name} {value}" for name, value in origin.detail.items())
    return f"{origin.by}{f' ({detail})' if detail else ''}, by {way}"
