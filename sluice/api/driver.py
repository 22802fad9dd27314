"""The one process that may write the lake: it runs the catalogue, and serves the requests of other processes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sluice.api.opened import Message, Opened
from sluice.engine import land
from sluice.engine.backfill import BackfillRange
from sluice.engine.blocked import reason_of, stops_all
from sluice.engine.catalogue import Catalogue
from sluice.engine.erase import forget_erased, still_held
from sluice.engine.observer import Observer
from sluice.engine.runner import Runner
from sluice.engine.schemas import Learner
from sluice.errors import LakeLocked, SluiceError, SparkEnded, UsageError
from sluice.operate import checks, maintain, recompute, replay, requests
from sluice.runtime.session import is_alive, spark_ended
from sluice.storage.delta import Lake


@contextmanager
def driver(here: Opened, catalogue: Catalogue) -> Iterator[Runner]:
    """What runs the catalogue, with the lake locked; a LakeLocked when another process or thread writes it."""
    registry = here.settings.open_schema_registry()
    with observing(here) as observer, here.sessions.writing() as spark:
        yield Runner(
            spark=spark,
            lake=here.lake,
            log=here.log,
            catalogue=catalogue,
            batch_records_max=here.settings.batch_records_max,
            parallel=here.settings.parallel,
            hold_changed=here.settings.changed_declarations == "hold",
            listener=here.listener,
            observer=observer,
            learner=None if registry is None else Learner(registry),
        )


@contextmanager
def observing(here: Opened) -> Iterator[Observer]:
    """What hears of the work, and sends events of it where a setting says so."""
    if not here.settings.openlineage:
        yield Observer()
        return
    from sluice.operate.openlineage import emitting

    def warn(text: str) -> None:
        here.notify(Message("warning", text))

    with emitting(here.settings, here.lake, warn) as observer:
        yield observer


def attended(
    here: Opened, runner: Runner, *, flow: Sequence[str] | None = None, own: requests.Request | None = None
) -> Catalogue:
    """Serves the pending requests; returns the catalogue to go on with: where there were any, as it is declared now.

    It stays the runner's where that would change a table, unless a replay was promoted or a table rolled back: an
    edited file alone changes none. Of a `flow` of datasets there are passes between the pieces of what is recomputed.
    The user hears of each request but their `own`.
    """
    done = set[str]()

    def warn(text: str) -> None:
        here.notify(Message("warning", text))

    def perform(request: requests.Request) -> dict[str, Any]:
        if request != own:
            here.notify(Message("notice", f"Another command asked for it: {request} …"))
        try:
            found = performed(here, runner, request, is_flow=flow is not None)
        except SluiceError as error:
            if request != own:
                warn(f"{request}: {error}")
            raise
        done.add(request.do)
        return found

    if not requests.attend(here.lake.files, perform, warn):
        return runner.catalogue
    try:
        declared = here.catalogue().upstream_of(flow or ())
    except SluiceError as error:
        here.notify(Message("error", f"{error} The run goes on as before."))
        return runner.catalogue
    return declared if done & {"promote", "rollback"} or changes_none(here, declared, runner) else runner.catalogue


def replaced_by(lake: Lake, catalogue: Catalogue, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, or the tables of the one replay that is named; a UsageError for unknown ones, or for none."""
    found = replay.tables_of(lake, names)
    if not found:
        raise UsageError(f"The replay {names[0]} replaced no table, so there is nothing to roll back.")
    catalogue.upstream_of(found)
    return found


def changes_none(here: Opened, declared: Catalogue, runner: Runner) -> bool:
    """Whether each dataset is declared as the run has it, or as its table was computed."""
    known = {each.name: each.fingerprint for each in runner.catalogue.datasets}
    others = [each for each in declared.datasets if known.get(each.name) != each.fingerprint]
    commits = [(each, here.lake.last_commit(each.name)) for each in others]
    return all(commit is not None and commit.entry.fingerprint == each.fingerprint for each, commit in commits)


def performed(  # noqa: PLR0911 - one for each request
    here: Opened, runner: Runner, request: requests.Request, *, is_flow: bool = False
) -> dict[str, Any]:
    """Serves a request by the current declarations; returns the result by dataset. What is long lets a flow go on."""
    flow, catalogue = runner, here.catalogue()
    runner = replace(runner, catalogue=catalogue)
    # A replay that is named stands for the tables that it has replaced by now.
    names = replaced_by(here.lake, catalogue, request.datasets) if request.do == "rollback" else request.datasets
    datasets = [each for each in catalogue.datasets if each.name in names]
    try:
        match request.do:
            case "promote" | "rollback":
                with runner.observer.watching(request.do, names, catalogue) as watch:
                    watch.began(request.because or request.replay or request.do)
                    changed = (
                        replay.promote(runner.spark, here.lake, catalogue, request.replay or "")
                        if request.do == "promote"
                        else replay.rollback(runner.spark, here.lake, catalogue, datasets, request.because)
                    )
                    watch.done(tables=[name for name, rows in changed.items() if rows.total])
                return {name: rows.total for name, rows in changed.items()}
            case "refresh":
                turn = flow.turn if is_flow else None
                return dict(runner.recompute_range(datasets, request.part or BackfillRange(), turn))
            case "check":
                return checks.check(runner.spark, here.lake, catalogue, datasets, runner.observer)
            case "skip":
                return land.skip(here.lake, here.log, catalogue.topic(request.topic), request.because)
            case "erase":
                runner.until_caught_up()
                in_the_way = forget_erased(runner.spark, here.lake, here.log, catalogue.topics)
                return {"in_the_way": [*in_the_way, *still_held(here.lake, here.log, catalogue.topics).values()]}
            case "recompute":
                rows = recompute.recompute(runner.spark, here.lake, datasets, request.share, request.seed)
                return {each.dataset: each.model_dump(mode="json") for each in rows}
            case "maintain":
                with runner.observer.watching("maintain", request.datasets, catalogue) as watch:
                    watch.began("maintain")
                    # One that was removed meanwhile is made again by the next pass.
                    there = [each for each in here.lake.tables() if each in request.datasets]
                    found = maintain.maintain(runner.spark, here.lake, catalogue, there)
                    watch.done()
                return found
    except Exception as error:
        if not is_alive(runner.spark):
            raise SparkEnded(spark_ended) from error
        if isinstance(error, SluiceError) or stops_all(error):
            raise
        # The requester gets the error and the run continues: it would end the next run, too.
        raise SluiceError(reason_of(error)) from error


def asked(here: Opened, request: requests.Request) -> dict[str, Any]:
    """Has the request served by the current run, or else does it here; a SluiceError when it fails."""
    catalogue = here.catalogue()
    name = requests.ask(here.lake.files, request)
    try:
        has_notified = False
        for answer in requests.answered(here.lake.files, name):
            if answer is not None:
                if answer.error:
                    raise SluiceError(answer.error)
                return answer.found
            try:
                with driver(here, catalogue) as runner:
                    attended(here, runner, own=request)
            except LakeLocked:
                if not has_notified:
                    here.notify(Message("notice", "A run is under way; it does this between two passes …"))
                has_notified = True
    finally:
        requests.withdraw(here.lake.files, name)
    raise SluiceError("The request was withdrawn.")
