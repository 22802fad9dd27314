"""The command line: data goes to stdout, progress and errors to stderr; exit 0 done, 1 a law is broken, 2 wrong use."""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from obstore.exceptions import BaseError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice import scaffold
from sluice.cli.progress import RunProgress
from sluice.engine import catalogue as catalogues
from sluice.engine import land
from sluice.engine.backfill import Part
from sluice.engine.catalogue import Catalogue
from sluice.engine.runner import Event, Runner
from sluice.errors import LakeLocked, SluiceError, UsageError
from sluice.ingest.capture.commands import capture_app
from sluice.ingest.receivers.cli import listen_app
from sluice.ingest.receivers.records import key_in
from sluice.log import AnyLog, Record, require_open
from sluice.operate import checks, doctor, look, quarantine, requests
from sluice.operate import explain as explaining
from sluice.operate import maintain as maintaining
from sluice.operate import recompute as recomputing
from sluice.operate import replay as replaying
from sluice.operate.recompute import Recomputed
from sluice.quality import results
from sluice.quality.conservation import Fates
from sluice.runtime.session import spark_message, spark_session
from sluice.runtime.settings import Settings, read_settings
from sluice.storage import bucket
from sluice.storage.delta import Lake
from sluice.storage.lock import is_locked, lake_lock

# Control characters and halves of characters, and the marks that turn the direction of writing.
control_categories = ("Cc", "Cs")
direction_marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
log_app = typer.Typer(no_args_is_help=True, help="Write and read the log.")
app.add_typer(log_app, name="log")
app.add_typer(listen_app, name="listen")
app.add_typer(capture_app, name="capture")
quarantine_app = typer.Typer(no_args_is_help=True, help="Look at the records that are held back, and release them.")
app.add_typer(quarantine_app, name="quarantine")
replay_app = typer.Typer(
    no_args_is_help=True, help="Compute tables anew beside the live ones, compare, and put them in place."
)
app.add_typer(replay_app, name="replay")

Project = Annotated[Path, typer.Option("--project", help="The project's folder.", show_default="here")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Datasets = Annotated[list[str] | None, typer.Argument(help="Datasets, with all they are made from; none: all.")]

time_formats = ["%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d"]
HeldBy = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset that holds them.")]

# A pipe has no width: rows must not be folded to fit a screen that is not there.
out = Console(width=None if sys.stdout.isatty() else 240)
err = Console(stderr=True, soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class Opened:
    """A project with its settings, its tables and its log."""

    settings: Settings
    log: AnyLog

    @cached_property
    def lake(self) -> Lake:
        """The tables; a SluiceError when they are in a bucket that cannot be used."""
        self.settings.location.require()
        return Lake(self.settings.lake_root)

    def catalogue(self) -> Catalogue:
        return catalogues.load(self.settings.project)


def opened(project: Path) -> Opened:
    settings = read_settings(project)
    return Opened(settings, settings.open_log())


@app.command()
def init(directory: Annotated[Path, typer.Argument(help="A new or empty folder.")] = Path()) -> None:
    """Write a small project of your own: a topic, silver, gold, and the commands to run it."""
    scaffold.write(directory)
    out.print(f"Wrote a project to {directory.resolve()}. Its README.md says what to do next.", highlight=False)


@app.command()
def run(  # noqa: PLR0917 - options, each given by its name
    datasets: Datasets = None,
    project: Project = Path(),
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until stopped.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Recompute from bronze; writes what differs.")] = False,
    attached: Annotated[
        bool, typer.Option("--attached", help="Stop when the process that started it is gone.")
    ] = False,
    since: Annotated[
        datetime | None, typer.Option(formats=time_formats, help="Compute anew event times from here on (UTC) …")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(formats=time_formats, help="… and before this, of these datasets alone.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Land what the log holds and refresh all that depends on it, until caught up.

    With --since or --until, compute that part of the datasets anew in place instead, by the run under way if there is
    one; only what differs is written.
    """
    here = opened(project)
    catalogue = here.catalogue().upstream_of(datasets or [])
    part = part_of(since, until, [])
    if part is not None:
        if continuous or rebuild:
            raise UsageError("A part is computed once: give --since and --until without --continuous and --rebuild.")
        names = tuple(each.name for each in catalogue.datasets if not datasets or each.name in datasets)
        request = requests.Request(do="refresh", datasets=names, part=part)
        print_changed("changed", asked(here, request), as_json=as_json)
        return
    here.log.require()
    with driver(here, catalogue, as_json=continuous and as_json) as (runner, progress):
        renewed = partial(attended, here, runner, datasets or [])
        if continuous:
            runner.continuously(here.settings.poll_seconds, stopped_by_signal(attached=attached), renewed)
            return
        # What a killed run was asked for and did not finish.
        renewed()
        start = time.monotonic()
        done = runner.until_caught_up(rebuild=rebuild)
    if as_json:
        print_json([dataclasses.asdict(event) | {"rows": event.rows.model_dump()} for event in done])
    else:
        err.print(progress.summary(done, time.monotonic() - start), highlight=False)
    if any(event.is_wrong for event in done):
        raise typer.Exit(1)


def part_of(since: datetime | None, until: datetime | None, records: Sequence[str]) -> Part | None:
    """The part that options name; their times are UTC."""
    return Part.of(since and since.replace(tzinfo=UTC), until and until.replace(tzinfo=UTC), records)


@contextmanager
def driver(here: Opened, catalogue: Catalogue, *, as_json: bool = False) -> Iterator[tuple[Runner, RunProgress]]:
    """The one process that may write the lake, with its progress on stderr, or as lines of JSON on stdout."""
    settings = here.settings
    with (
        lake_lock(
            settings.lake_root,
            lease_seconds=settings.lease_seconds,
            is_single_writer=settings.single_writer,
            notify=lambda text: err.print(text, highlight=False, markup=False),
        ) as lock,
        RunProgress(err, catalogue) as progress,
        spark_session(here.settings, lock) as spark,
    ):
        progress.watch(spark)
        runner = Runner(
            spark=spark,
            lake=here.lake,
            log=here.log,
            catalogue=catalogue,
            batch_records_max=here.settings.batch_records_max,
            parallel=here.settings.parallel,
            hold_changed=here.settings.changed_declarations == "hold",
            listener=print_event if as_json else progress,
        )
        yield runner, progress


def print_event(event: Event) -> None:
    """What was done, as a line for a supervisor."""
    if event.kind == "waiting":
        err.print(f"[yellow bold]Waiting:[/] {escape(event.name)}", highlight=False)
    if event.kind == "done" and (event.cause or event.blocked):
        print_json(dataclasses.asdict(event) | {"rows": event.rows.model_dump()}, indent=None)
        sys.stdout.flush()


def attended(here: Opened, runner: Runner, datasets: Sequence[str]) -> Catalogue | None:
    """Does what the driver was asked for; if so, the catalogue as the project declares it now."""
    if not requests.attend(here.lake.files, partial(performed, here, runner), warn):
        return None
    try:
        return here.catalogue().upstream_of(datasets)
    except SluiceError as error:
        err.print(f"[red bold]Error:[/] {escape(str(error))} The run goes on as before.", highlight=False)
        return None


def warn(text: str) -> None:
    """Says what is wrong beside the work, which goes on."""
    err.print(f"[yellow bold]Warning:[/] {escape(printable(text))}", highlight=False)


def performed(here: Opened, runner: Runner, request: requests.Request) -> dict[str, Any]:
    """Does what is asked by the declarations as they are now; what came of it, by dataset."""
    catalogue = here.catalogue()
    runner = replace(runner, catalogue=catalogue)
    datasets = [each for each in catalogue.datasets if each.name in request.datasets]
    try:
        match request.do:
            case "promote" | "rollback":
                changed = (
                    replaying.promote(runner.spark, here.lake, catalogue, request.replay or "")
                    if request.do == "promote"
                    else replaying.rollback(runner.spark, here.lake, catalogue, datasets, request.because)
                )
                return {name: rows.total for name, rows in changed.items()}
            case "refresh":
                return dict(runner.part_anew(datasets, request.part or Part()))
            case "check":
                return checks.check(runner.spark, here.lake, catalogue, datasets)
            case "skip":
                return land.skip(here.lake, here.log, catalogue.topic(request.topic), request.because)
            case "recompute":
                found = recomputing.recompute(runner.spark, here.lake, datasets, request.share, request.seed)
                return {each.dataset: each.model_dump(mode="json") for each in found}
            case "maintain":
                return maintaining.maintain(runner.spark, here.lake, request.datasets)
    except (PySparkException, Py4JError) as error:
        # Whoever asked is told; the run goes on.
        raise SluiceError(spark_message(error)) from error


def asked(here: Opened, request: requests.Request) -> dict[str, Any]:
    """Has the request done, by the run under way if there is one, and else here."""
    catalogue = here.catalogue()
    name = requests.ask(here.lake.files, request)
    try:
        told = False
        for answer in requests.answered(here.lake.files, name):
            if answer is not None:
                if answer.error:
                    raise SluiceError(answer.error)
                return answer.found
            try:
                with driver(here, catalogue) as (runner, _):
                    attended(here, runner, [])
            except LakeLocked:
                if not told:
                    err.print("A run is under way; it does this between two passes …", highlight=False)
                told = True
    finally:
        requests.withdraw(here.lake.files, name)
    raise SluiceError("The request was withdrawn.")


def stopped_by_signal(*, attached: bool) -> threading.Event:
    """An event that SIGINT and SIGTERM set, or the end of the parent, so that the step under way ends first."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if attached:
        threading.Thread(target=stop_with_parent, args=(stop, os.getppid()), daemon=True).start()
    return stop


def stop_with_parent(stop: threading.Event, parent: int) -> None:
    """Sets the event when the parent is another process than it was."""
    while os.getppid() == parent:
        time.sleep(1)
    stop.set()


@app.command("doctor")
def examine(project: Project = Path(), as_json: AsJson = False) -> None:
    """Try all that a run needs: Java, jars, log, the tables' place and what it promises; exit 1 if one fails."""
    found = doctor.examine(read_settings(project))
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
    else:
        print_table(["check", "ok", "found"], [[each.check, "yes" if each.ok else "NO", each.found] for each in found])
    if not all(each.ok for each in found):
        raise typer.Exit(1)


@app.command()
def status(project: Project = Path(), as_json: AsJson = False) -> None:
    """Show offsets, lag, watermark, rows and freshness of every dataset."""
    here = opened(project)
    states = look.status(here.lake, here.log, here.catalogue())
    if as_json:
        print_json([dataclasses.asdict(state) for state in states])
        return
    any_held = any(state.held for state in states)
    print_table(
        ["dataset", "rows", "version", "lag", "next offsets", "watermark", "updated", *(["held"] if any_held else [])],
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
                state.updated_at,
                *([state.held] if any_held else []),
            ]
            for state in states
        ],
    )


@app.command()
def audit(
    project: Project = Path(),
    recompute: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help="Also recompute a sample of the rows: 1%, 0.01, or all. Needs Spark."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Which rows are sampled; by default others every day.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add up what became of every landed record, and every row; exit 1 when one has no fate, or two.

    Also when something is blocked.

    With --recompute, a sample of the rows of every table is recomputed from its inputs and compared.
    """
    here = opened(project)
    catalogue = here.catalogue()
    share = None if recompute is None else share_of(recompute)
    fates = look.audit(here.lake, catalogue)
    laws = look.laws(here.lake, catalogue)
    stopped = look.stopped(here.lake, catalogue)
    found: list[Fates | look.Law | look.Stopped | Recomputed] = [*fates, *laws, *stopped]
    if share is not None:
        found += recomputed(here, catalogue, share, datetime.now(UTC).toordinal() if seed is None else seed)
    if as_json:
        print_json([as_plain(each) | {"balanced": each.balanced} for each in found])
    else:
        names = [
            "dataset",
            "topic",
            "landed",
            "accepted",
            "duplicate",
            "conflicts",
            "quarantined",
            "late",
            "missing",
            "doubled",
        ]
        print_table(
            [*names, "balanced"],
            [[*[getattr(each, name) for name in names], "yes" if each.balanced else "NO"] for each in fates],
        )
        out.print()
        print_table(["dataset", "must not be", "rows"], [[each.dataset, each.law, each.broken] for each in laws])
        if stopped:
            out.print()
            rows = [[each.dataset, each.since, each.reason] for each in stopped]
            print_table(["dataset", "blocked since", "because"], rows)
        print_recomputed([each for each in found if isinstance(each, Recomputed)])
    if not all(each.balanced for each in found):
        raise typer.Exit(1)


def as_plain(found: Fates | look.Law | look.Stopped | Recomputed) -> dict[str, Any]:
    """A finding of the audit for JSON."""
    return found.model_dump(mode="json") if isinstance(found, Recomputed) else dataclasses.asdict(found)


def share_of(text: str) -> float:
    """A share of rows from `1%`, `0.01` or `all`."""
    try:
        share = 1.0 if text == "all" else float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"--recompute {text} is no share of the rows; write for example 1%, 0.01 or all.")
    return share


def recomputed(here: Opened, catalogue: Catalogue, share: float, seed: int) -> list[Recomputed]:
    """Recomputes a share of the rows of every table: by the run under way, if there is one."""
    if is_locked(here.settings.lake_root):
        names = tuple(each.name for each in catalogue.datasets)
        answer = asked(here, requests.Request(do="recompute", datasets=names, share=share, seed=seed))
        return [recomputing.Recomputed.model_validate(each) for each in answer.values()]
    with spark_session(here.settings) as spark, err.status("recomputing"):
        return list(recomputing.recompute(spark, here.lake, catalogue.datasets, share, seed))


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
            key = " ".join(f"{name}={shown(value)}" for name, value in row.key.items())
            out.print(f"\n[bold]{row.table}[/] {escape(key)}: {row.kind}", highlight=False)
            for name in dict.fromkeys([*row.stored, *row.recomputed]):
                values = [shown(side[name]) if name in side else "no row" for side in (row.stored, row.recomputed)]
                out.print(f"  {escape(name)}: {escape(values[0])}, should be {escape(values[1])}", highlight=False)
        for other in each.others:
            out.print(f"  {each.dataset}: {other}", highlight=False)
        if each.wrong:
            mend = f"Say why with: sluice explain {each.dataset} …   Repair with: sluice run --rebuild {each.dataset}"
            out.print(f"  {mend}", highlight=False, markup=False)


@app.command()
def check(
    datasets: Annotated[list[str] | None, typer.Argument(help="Datasets; none: all.")] = None,
    project: Project = Path(),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write no pages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the newest version of each table against what is expected of it; exit 1 for what is critical."""
    here = opened(project)
    catalogue = here.catalogue()
    catalogue.upstream_of(datasets or [])
    wanted = [each for each in catalogue.datasets if not datasets or each.name in datasets]
    if is_locked(here.settings.lake_root):
        # A run under way is warm already.
        found = asked(here, requests.Request(do="check", datasets=tuple(each.name for each in wanted)))
    else:
        with spark_session(here.settings) as spark, err.status("checking"):
            found = checks.check(spark, here.lake, catalogue, wanted)
    if as_json:
        print_json([row for rows in found.values() for row in rows])
    else:
        show_checked(found, catalogue)
    if not no_report:
        from sluice.operate import report

        said = report.missing() or f"Report: {report.write(here.lake, catalogue, found)}"
        err.print(said, highlight=False, markup=False)
    if any(results.is_critical(row) for rows in found.values() for row in rows):
        raise typer.Exit(1)


def show_checked(found: Mapping[str, Sequence[Mapping[str, Any]]], catalogue: Catalogue) -> None:
    """A line for each dataset, and one for each expectation that is broken."""
    print_table(
        ["dataset", "version", "kept", "broken", "state", "suite"],
        [
            [
                dataset,
                next((row["version"] for row in rows), None),
                sum(row["verdict"] == "passed" for row in rows),
                sum(row["verdict"] != "passed" for row in rows),
                results.state_of(rows),
                "yes" if dataset in catalogue.suites else "none",
            ]
            for dataset, rows in found.items()
        ],
    )
    broken = [row for rows in found.values() for row in rows if row["verdict"] != "passed"]
    if broken:
        out.print()
        print_table(
            ["dataset", "expectation", "severity", "rows", "of", "observed", "for example"],
            [
                [
                    row["dataset"],
                    row["expectation"],
                    "critical" if results.is_critical(row) else row["severity"],
                    row["unexpected_rows"],
                    row["rows"],
                    row["message"] or row["observed"],
                    example(row),
                ]
                for row in broken
            ],
        )


def example(row: Mapping[str, Any]) -> str | None:
    """The first of the rows that broke an expectation."""
    known = json.loads(row["examples"] or "[]")
    return ", ".join(f"{name} {value}" for name, value in known[0].items()) if known else None


@app.command("report")
def write_report(
    project: Project = Path(),
    show: Annotated[str | None, typer.Option(help="Only print this file of the report that is there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of the newest checks that are kept, without checking anything."""
    from sluice.operate import report

    here = opened(project)
    if show is not None:
        typer.echo(report.file(here.lake, show), nl=False)
        return
    index = report.write(here.lake, here.catalogue(), look.newest_checks(here.lake))
    if as_json:
        print_json({"index": str(index)})
    else:
        out.print(f"Report: {index}", highlight=False)


@app.command()
def maintain(
    tables: Annotated[list[str] | None, typer.Argument(help="Tables; none: all.")] = None,
    project: Project = Path(),
    log_keep_days: Annotated[
        int | None, typer.Option(min=1, help="Forget records of the log that landed and are older than this.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compact the tables' files and delete those that no version of the last 30 days refers to."""
    here = opened(project)
    known = here.lake.tables()
    unknown = sorted(set(tables or []) - set(known))
    if unknown:
        raise UsageError(f"There is no table {', '.join(unknown)}; there are {', '.join(known)}.")
    found = asked(here, requests.Request(do="maintain", datasets=tuple(tables or known)))
    keep = None if log_keep_days is None else timedelta(days=log_keep_days)
    trimmed = {} if keep is None else maintaining.trim(here.log, here.lake, here.catalogue(), keep)
    if as_json:
        print_json({"tables": found, "segments_removed": trimmed})
        return
    print_table(
        ["table", "files compacted", "into", "files deleted"], [[name, *each.values()] for name, each in found.items()]
    )
    if trimmed:
        print_table(["topic", "segments removed"], [[topic, count] for topic, count in trimmed.items()])


@app.command("catalogue")
def show_catalogue(project: Project = Path(), as_json: AsJson = False) -> None:
    """List the topics and datasets, upstream first, with what they are made from."""
    found = opened(project).catalogue()
    rows = [catalogues.described(node, found) for node in found.nodes]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["dataset", "made from", "event time", "suite", "meaning"],
        [[row["name"], " ".join(row["sources"]), row["event_time"], row["has_suite"], row["meaning"]] for row in rows],
    )


@app.command()
def query(
    sql: str,
    project: Project = Path(),
    as_known_at: Annotated[
        datetime | None, typer.Option(formats=time_formats, help="Answer from what was known at that time (UTC).")
    ] = None,
    allow_files: Annotated[
        bool, typer.Option("--allow-files", help="Let the query read and write other files (COPY, read_csv, ATTACH).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer a SQL query over the tables, by their names: `SELECT * FROM gold.delays_hourly LIMIT 5`."""
    known_at = as_known_at and as_known_at.replace(tzinfo=UTC)
    answer = look.query(opened(project).lake, sql, known_at, allow_files=allow_files)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        print_table(answer.columns, answer.rows)


@quarantine_app.command("list")
def quarantine_list(project: Project = Path(), as_json: AsJson = False) -> None:
    """Count what is held back, by dataset and rule."""
    here = opened(project)
    found = quarantine.held(here.lake, here.catalogue())
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    print_table(
        ["dataset", "fate", "reason", "records", "first", "last", "can be released"],
        [list(dataclasses.astuple(each)) for each in found],
    )


@quarantine_app.command("show")
def quarantine_show(
    dataset: HeldBy,
    project: Project = Path(),
    reason: Annotated[str | None, typer.Option(help="Only those of this rule.")] = None,
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print the oldest held records of a dataset, as they came."""
    here = opened(project)
    consumer = quarantine.consumer(here.catalogue(), dataset)
    found = quarantine.held_records(here.lake, consumer, reason=reason, records_max=records)
    rows = [
        {
            "record": each.position,
            "timestamp": each.timestamp,
            "reason": each.reason,
            "value": None if each.value is None else each.value.decode(errors="backslashreplace"),
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
        return
    print_table(["record", "arrived", "reason", "value"], [[*row.values()] for row in rows])


@quarantine_app.command("add")
def quarantine_add(
    dataset: HeldBy,
    records: Annotated[list[str], typer.Argument(help="Their positions: topic/partition/offset …")],
    because: Annotated[str, typer.Option(help="Why; it stays in the log.")],
    project: Project = Path(),
) -> None:
    """Set records aside that no rule holds back; the next run does it, and `release` lets them in again."""
    here = opened(project)
    consumer = quarantine.consumer(here.catalogue(), dataset)
    count = quarantine.add(here.lake, here.log, consumer, records, because)
    err.print(f"{count:,} records are set aside by the next run: sluice run", highlight=False)


@quarantine_app.command("release")
def quarantine_release(  # noqa: PLR0917 - options, each given by its name
    dataset: HeldBy,
    because: Annotated[str, typer.Option(help="Why; it stays in the log.")],
    project: Project = Path(),
    reason: Annotated[str | None, typer.Option(help="All that this rule holds, for example late.")] = None,
    record: Annotated[list[str] | None, typer.Option(help="One record: topic/partition/offset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let held records through; the next run takes them in as if they had never been held."""
    if (reason is None) == (record is None):
        raise UsageError("Say what to release: --reason late, or --record topic/partition/offset.")
    here = opened(project)
    consumer = quarantine.consumer(here.catalogue(), dataset)
    found = quarantine.held_records(here.lake, consumer, reason=reason, positions=record or [])
    unknown = set(record or []) - {each.position for each in found}
    if unknown or not found:
        raise UsageError(f"{consumer.name} holds no record {', '.join(sorted(unknown)) or f'for {reason}'}.")
    count = quarantine.release(here.log, consumer, found, because)
    if as_json:
        print_json({"released": count})
        return
    out.print(f"Released {count:,} of {consumer.name}; the next run takes them in: sluice run", highlight=False)


@app.command()
def explain(
    dataset: Annotated[str, typer.Argument(help="The dataset, for example gold.delays_hourly.")],
    row: Annotated[list[str], typer.Argument(help="Which row: column=value for each column that tells rows apart.")],
    project: Project = Path(),
    as_json: AsJson = False,
) -> None:
    """Say every value that a row has had, when it became known, and which records or declarations made it so."""
    here = opened(project)
    catalogue = here.catalogue()
    node = next((each for each in catalogue.datasets if each.name == dataset), None)
    if node is None:
        raise UsageError(
            f"There is no dataset {dataset}; there are {', '.join(each.name for each in catalogue.datasets)}."
        )
    wanted = dict(each.split("=", 1) for each in row if "=" in each)
    with spark_session(here.settings) as spark:
        values = explaining.Explainer(spark, here.lake).explain(node, wanted)
    if as_json:
        print_json([dataclasses.asdict(each) for each in values])
        return
    if not values:
        raise UsageError(f"{dataset} never had a row {' '.join(row)}.")
    names = [name for name in next(each.row for each in values if each.row) if name not in wanted]
    for each in values:
        out.print(f"[bold]{each.known_at:%Y-%m-%d %H:%M:%S}[/]  version {each.version}, {each.cause}", highlight=False)
        if each.row is None:
            out.print("  gone", highlight=False)
        else:
            shown_values = "  ".join(f"{name} {shown(each.row[name])}" for name in names)
            out.print(f"  {escape(shown_values)}", highlight=False)
        for origin in each.origins:
            out.print(f"  because of {escape(told(origin))}", highlight=False)


def told(origin: explaining.Origin) -> str:
    """An origin as one line."""
    way = " → ".join(reversed(origin.path))
    if origin.records:
        more = origin.records_count - len(origin.records)
        return f"{', '.join(origin.records)}{f' and {more:,} more' if more else ''}, by {way}"
    detail = ", ".join(f"{name} {value}" for name, value in origin.detail.items())
    return f"{origin.by}{f' ({detail})' if detail else ''}, by {way}"


@replay_app.command("start")
def replay_start(  # noqa: PLR0917 - options, each given by its name
    because: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    datasets: Annotated[
        list[str] | None, typer.Argument(help="Datasets to compute anew; none: those whose declaration changed.")
    ] = None,
    project: Project = Path(),
    since: Annotated[
        datetime | None, typer.Option(formats=time_formats, help="Event times from here on (UTC).")
    ] = None,
    until: Annotated[datetime | None, typer.Option(formats=time_formats, help="Event times before this (UTC).")] = None,
    records: Annotated[list[str] | None, typer.Option(help="Records: topic/partition/first-last.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which tables it would compute.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compute datasets anew in a shadow, with all that is made from them, and show what would change."""
    here = opened(project)
    catalogue = here.catalogue()
    part = part_of(since, until, records or [])
    planned = replaying.plan(here.lake, catalogue, datasets or [], part, because)
    if dry_run:
        if as_json:
            print_json(planned.model_dump(mode="json"))
        else:
            out.print(f"It would compute {', '.join(planned.tables)}.", highlight=False)
        return
    with spark_session(here.settings) as spark, err.status("copying") as status:
        for step in replaying.build(spark, here.lake, catalogue, planned):
            status.update(step)
    show_replay(replaying.find(here.lake, planned.name), as_json=as_json)


@replay_app.command("list")
def replay_list(project: Project = Path(), as_json: AsJson = False) -> None:
    """List the replays that are kept."""
    lake = opened(project).lake
    for name in replaying.unreadable(lake):
        warn(f"The replay {name} cannot be read ({replaying.file_name(name)}). Forget it: sluice replay drop {name}")
    found = replaying.replays(lake)
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


ReplayName = Annotated[str, typer.Argument(metavar="REPLAY", help="Its name, as sluice replay list tells it.")]


@replay_app.command("show")
def replay_show(name: ReplayName, project: Project = Path(), as_json: AsJson = False) -> None:
    """Show what a replay would change."""
    show_replay(replaying.find(opened(project).lake, name), as_json=as_json)


@replay_app.command("promote")
def replay_promote(name: ReplayName, project: Project = Path(), as_json: AsJson = False) -> None:
    """Put a replay in place of the live tables; sluice rollback undoes it."""
    here = opened(project)
    replaying.find(here.lake, name)
    print_changed("promoted", asked(here, requests.Request(do="promote", replay=name)), as_json=as_json)


@replay_app.command("drop")
def replay_drop(name: ReplayName, project: Project = Path()) -> None:
    """Forget a replay and remove its tables; what was promoted stays."""
    replaying.drop(opened(project).lake, name)
    out.print(f"Dropped {name}.", highlight=False)


@app.command()
def rollback(
    datasets: Annotated[list[str], typer.Argument(help="Datasets, or one replay that was promoted: all its tables.")],
    because: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    project: Project = Path(),
    as_json: AsJson = False,
) -> None:
    """Give datasets back the rows that they had before they were last promoted or rebuilt."""
    here = opened(project)
    names = tuple(datasets)
    for replay in replaying.replays(here.lake):
        if names == (replay.name,):
            names = replaying.promoted_by(here.lake, replay)
    if not names:
        raise UsageError(f"The replay {datasets[0]} replaced no table, so there is nothing to roll back.")
    here.catalogue().upstream_of(names)
    request = requests.Request(do="rollback", datasets=names, because=because)
    print_changed("rolled back", asked(here, request), as_json=as_json)


def show_replay(replay: replaying.Replay, *, as_json: bool) -> None:
    """What a replay would change: rows by table, then measures, then some rows."""
    if as_json:
        print_json(replay.model_dump(mode="json"))
        return
    about = f" ({replay.part})" if replay.part else ""
    out.print(f"{replay.name}: {', '.join(replay.datasets)}{about}, because {replay.because}", highlight=False)
    print_table(
        ["dataset", "declaration", "inserted", "updated", "deleted", "new columns", "lost columns"],
        [
            [
                each.dataset,
                "changed" if each.dataset in replay.changed else "same",
                each.inserted,
                each.updated,
                each.deleted,
                " ".join(each.columns_added),
                " ".join(each.columns_dropped),
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
            key = " ".join(f"{name}={value}" for name, value in row.key.items())
            out.print(f"\n{each.dataset} {escape(key)}", highlight=False)
            for sign, values in (("-", row.before), ("+", row.after)):
                if values is not None:
                    shown_values = "  ".join(f"{name} {value}" for name, value in values.items())
                    out.print(f"  {sign} {escape(shown_values)}", highlight=False)
    if replay.state == "built":
        out.print(f"\nPut it in place with: sluice replay promote {replay.name}", highlight=False)


def print_changed(what: str, rows: dict[str, int], *, as_json: bool) -> None:
    """How many rows changed in each table."""
    if as_json:
        print_json(rows)
    else:
        print_table(["dataset", f"rows {what}"], [[name, count] for name, count in rows.items()])


@log_app.command("append")
def log_append(
    topic: str,
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="Values, one a line; - for standard input.")],
    project: Project = Path(),
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    key_field: Annotated[str | None, typer.Option(help="Take each record's key from this field of its JSON.")] = None,
) -> None:
    """Append the lines of FILE as records, durable when the command returns."""
    require_open(topic)
    lines = (line.rstrip(b"\n") for line in file)
    records = (Record(line, key=key_in(line, key_field) if key_field else key) for line in lines)
    print_json(opened(project).log.append(topic, records))


@log_app.command("tail")
def log_tail(
    topic: str,
    project: Project = Path(),
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")] = 10,
) -> None:
    """Print the newest records of a topic, one JSON object a line."""
    for record in opened(project).log.tail(topic, records):
        print_json(
            {
                "partition": record.partition,
                "offset": record.offset,
                "key": record.key,
                "timestamp": record.timestamp,
                "value": None if record.value is None else record.value.decode(errors="replace"),
            },
            indent=None,
        )


@log_app.command("topics")
def log_topics(project: Project = Path(), as_json: AsJson = False) -> None:
    """List the topics with the offsets that each partition holds."""
    log = opened(project).log
    rows = [
        [topic, partition, held.start, held.stop]
        for topic in log.topics()
        for partition, held in log.offsets(topic).items()
    ]
    columns = ["topic", "partition", "start_offset", "end_offset"]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)


@log_app.command("verify")
def log_verify(
    topics: Annotated[list[str] | None, typer.Argument(help="Without one, all.")] = None,
    project: Project = Path(),
    as_json: AsJson = False,
) -> None:
    """Read the whole log, and name every segment that is not as it was written.

    Exit code 1 when there is one.
    """
    log = opened(project).log
    log.require()
    found = [partition for topic in topics or log.topics() for partition in log.verify(topic)]
    if as_json:
        print_json([asdict(partition) for partition in found])
    else:
        columns = ["topic", "partition", "segments", "with_checksums", "records", "faults"]
        rows = [[getattr(each, column) for column in columns[:-1]] + [len(each.faults)] for each in found]
        print_table(columns, rows)
    faults = [fault for partition in found for fault in partition.faults]
    for fault in faults:
        typer.echo(printable(fault), err=True)
    if faults:
        raise typer.Exit(1)


@log_app.command("skip")
def log_skip(
    topic: str,
    because: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    project: Project = Path(),
    as_json: AsJson = False,
) -> None:
    """Go on without records that the log lost before they had landed, or after the end that a log has lost."""
    here = opened(project)
    here.catalogue().topic(topic)
    skipped = asked(here, requests.Request(do="skip", topic=topic, because=because))
    if as_json:
        print_json(skipped)
    else:
        print_table(["partition", "offsets skipped"], [[partition, count] for partition, count in skipped.items()])


def print_json(value: Any, indent: int | None = 2) -> None:
    typer.echo(json.dumps(value, indent=indent, default=as_text))


def as_text(value: Any) -> str:
    """A value that JSON has no type for; bytes in hexadecimal, as they are typed."""
    return value.hex() if isinstance(value, bytes | bytearray) else str(value)


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
        return f"{value:,.2f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return printable(as_text(value))


def printable(text: str) -> str:
    """Text without characters that would steer a terminal or turn the direction of writing: they are escaped."""
    return "".join(escaped(each) if is_steering(each) else each for each in text)


def is_steering(character: str) -> bool:
    return unicodedata.category(character) in control_categories or character in direction_marks


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def main() -> None:
    """The entry point: a Sluice error is a message and an exit code, never a traceback."""
    try:
        app()
    except SluiceError as error:
        fail(str(error), error.exit_code)
    except (PySparkException, Py4JError) as error:
        fail(spark_message(error), 1)
    except (BaseError, OSError) as error:
        if not bucket.is_of_store(error):
            fail(f"{getattr(error, 'filename', None) or 'A file'}: {getattr(error, 'strerror', None) or error}.", 1)
        fail(f"The object store failed: {' '.join(str(error).split())[:500]} Try again, or: sluice doctor", 1)


def fail(message: str, exit_code: int) -> NoReturn:
    lines = "\n".join(printable(line) for line in message.splitlines())
    err.print(f"[red bold]Error:[/] {escape(lines)}", highlight=False, soft_wrap=True)
    sys.exit(exit_code)


if __name__ == "__main__":
    main()
