"""Run the catalogue: land every topic and refresh every dataset, until nothing upstream is newer, or for ever."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from sluice.engine.backfill import BackfillRange
from sluice.engine.blocked import Blocks, blocked_by, is_of_data, stops_all
from sluice.engine.catalogue import Catalogue, Node
from sluice.engine.culprit import Attempt, naming_culprits, with_culprit
from sluice.engine.erase import erase, forget_erased
from sluice.engine.gate import Refusals
from sluice.engine.land import land
from sluice.engine.observer import Observer
from sluice.engine.refresh import Refreshed, newest_inputs, pieces, refresh
from sluice.engine.schemas import Learner
from sluice.errors import LogUnreachable, SluiceError, SparkEnded
from sluice.log import AnyLog
from sluice.model.datasets import Dataset, Topic
from sluice.model.ledger import InputVersion, RowCounts, no_rows
from sluice.quality.results import as_rows, checks_table, record
from sluice.runtime.session import is_alive, spark_ended
from sluice.shapes.fates import schemas
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Event:
    """What a run reports as it progresses; `rows` and `seconds` come with 'done'.

    `rejected` counts the records that were not accepted: duplicates, and what is quarantined, late or erased. A `held`
    dataset is on hold: it was not refreshed because its declaration changed and is not promoted. `refused` names the
    expectations that its new rows would have broken. `blocked` says why a dataset could not be computed; what is made
    from it `waits_for` it. A run is 'waiting' until its log answers again, or an erasure can be completed; `name` is
    why. Before these events Spark is 'starting' and then 'ready'; a 'step' is what longer work other than a run does
    next.
    """

    kind: Literal["starting", "ready", "step", "started", "done", "waiting"]
    name: str
    cause: str | None = None
    rows: RowCounts = no_rows
    rejected: int = 0
    seconds: float = 0.0
    held: bool = False
    refused: tuple[str, ...] = ()
    blocked: str | None = None
    waits_for: tuple[str, ...] = ()

    @property
    def is_effective(self) -> bool:
        """True when something was computed, whether or not a row changed."""
        return self.cause is not None and not self.refused

    @property
    def is_stopped(self) -> bool:
        """True when the dataset is not what its inputs make it, and its readers' next versions wait."""
        return self.blocked is not None or bool(self.waits_for)

    @property
    def is_wrong(self) -> bool:
        """True when it needs attention."""
        return self.is_stopped or bool(self.refused)


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Runner:
    """Everything a run needs: the session, the tables, the log and the datasets."""

    spark: "SparkSession"
    lake: Lake
    log: AnyLog
    catalogue: Catalogue
    batch_records_max: int
    parallel: int = 2
    hold_changed: bool = False
    listener: Listener = lambda event: None
    refusals: Refusals = field(default_factory=Refusals)
    blocks: Blocks = field(default_factory=Blocks)
    observer: Observer = field(default_factory=Observer)
    learner: Learner | None = None

    def until_caught_up(self, *, rebuild: bool = False) -> list[Event]:
        """Passes over the catalogue until one finds nothing to do.

        Returns what was done, and what is on hold, refused, blocked, or waiting.
        """
        done: list[Event] = []
        while True:
            events = self.one_pass(rebuild=rebuild)
            effective = [event for event in events if event.is_effective]
            done += effective
            rebuild = False
            if not any(self.is_topic(event.name) for event in effective):
                for obstacle in forget_erased(self.spark, self.lake, self.log, self.catalogue.topics):
                    self.listener(Event("waiting", f"an erasure is incomplete: {obstacle}"))
                return done + [event for event in events if event.held or event.is_wrong]

    def continuously(
        self,
        poll_seconds: float,
        stop: threading.Event,
        renewed: "Callable[[Runner], Catalogue]" = lambda runner: runner.catalogue,
    ) -> None:
        """Passes until `stop` is set, at least `poll_seconds` apart when there was nothing to do.

        Before each, `renewed` does what else there is to do in the lake, and gives the catalogue to go on with.
        """
        runner = self
        while not stop.is_set():
            runner = replace(runner, catalogue=renewed(runner))
            if runner.turn() == 0:
                stop.wait(poll_seconds)

    def turn(self) -> int:
        """A pass of a continuous run; returns how many nodes had something to do."""
        try:
            effective = [event for event in self.one_pass() if event.is_effective]
            if not effective:
                forget_erased(self.spark, self.lake, self.log, self.catalogue.topics)
        except LogUnreachable as error:
            self.listener(Event("waiting", str(error)))
            return 0
        return len(effective)

    def compact_small(self, effective: Sequence[Event]) -> None:
        """Writes together the small files of the tables that a pass wrote, so that they stay few for days."""
        names = {event.name for event in effective}
        written = [node for node in self.catalogue.nodes if node.name in names]
        outputs = [output for node in written if isinstance(node, Dataset) for output in node.outputs]
        found = {node.name: () for node in written} | {output.table: output.find_by for output in outputs}
        for table, find_by in ({checks_table: ()} | found if names else {}).items():
            self.lake.compact_small(table, find_by)

    def one_pass(self, *, rebuild: bool = False) -> list[Event]:
        """Every node once, as soon as all that it is made from is done; what is ready, side by side.

        Then upkeep of what was written.
        """
        events: dict[str, Event] = {}
        running: dict[Future[Event], str] = {}
        waiting = self.catalogue.dependencies()
        with self.observer.passing(), ended_early(ThreadPoolExecutor(self.parallel)) as pool:
            while waiting.is_active():
                for name in waiting.get_ready():
                    node = self.catalogue.by_name[name]
                    if stopped := stopped_above(node, events):
                        events[name] = Event("done", name, waits_for=stopped)
                        waiting.done(name)
                    else:
                        running[pool.submit(self.step, node, rebuild=rebuild)] = name
                for each in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(each)
                    events[name] = each.result()
                    waiting.done(name)
        self.compact_small([event for event in events.values() if event.is_effective])
        return [events[node.name] for node in self.catalogue.nodes]

    def step(self, node: Node, *, rebuild: bool) -> Event:
        """Brings one node up to date, unless it is blocked and nothing has changed since."""
        block = self.blocks.in_force(self.lake.files, node.name)
        if block and block.still_applies(*self.made_of(node), datetime.now(UTC)):
            return Event("done", node.name, blocked=str(block))
        self.listener(Event("started", node.name))
        start, event = time.monotonic(), Event("done", node.name)
        try:
            event = self.brought_up_to_date(node, event, rebuild=rebuild)
            self.blocks.remove(self.lake.files, node.name)
        except SparkEnded:
            raise
        except Exception as error:
            if not is_alive(self.spark):
                # One of the nodes being computed may have ended Spark, and would end the next session too.
                ended = SparkEnded(f"{spark_ended} It ended while {node.name} was computed.")
                self.stopped(node, ended, rebuild=rebuild)
                raise ended from error
            if stops_all(error):
                raise
            event = replace(event, blocked=self.stopped(node, error, rebuild=rebuild))
        event = replace(event, seconds=time.monotonic() - start)
        self.listener(event)
        return event

    def brought_up_to_date(self, node: Node, event: Event, *, rebuild: bool) -> Event:
        """Lands what waits of a topic, or refreshes a dataset."""
        if isinstance(node, Dataset):
            return self.refreshed(node, event, rebuild=rebuild)
        if node is schemas and self.learner is not None:
            event = replace(event, rows=RowCounts(inserted=self.landed(node)))
            self.learner.learn(self.spark, self.lake, self.log, self.catalogue.datasets)
        # Before it lands: the segments that are there are others then.
        erased = erase(self.spark, self.lake, self.log, node)
        landed = event.rows.inserted + self.landed(node)
        cause = self.landed_because(node) if landed else None if erased is None else "erasure"
        return replace(event, cause=cause, rows=RowCounts(inserted=landed, updated=erased or 0))

    def landed(self, topic: Topic) -> int:
        """Lands what waits of a topic; returns how many offsets."""
        with self.observer.watching("land", [topic.name], self.catalogue) as watch:
            records_max = self.batch_records_max
            landed = land(self.spark, self.lake, self.log, topic, records_max=records_max, watch=watch)
            watch.done(landed)
        return landed

    def landed_because(self, node: Node) -> str:
        """That records landed, and which were no longer in the log, by the ledger."""
        commit = self.lake.last_commit(node.name)
        lacking = commit.entry.because if commit else None
        return f"records; {lacking}" if lacking else "records"

    def stopped(self, node: Node, error: Exception, *, rebuild: bool) -> str:
        """Records why a node is blocked; returns it as text."""
        files = self.lake.files
        before = self.blocks.known(files, node.name)
        block = blocked_by(error, node.name, *self.made_of(node), before)
        if before and before.is_of(block.fingerprint, block.inputs):
            kept = ("reason", "culprit", "records", "or_of")
            block = block.model_copy(update={name: getattr(before, name) for name in kept})
        elif isinstance(node, Dataset) and is_of_data(error):
            block = with_culprit(block, Attempt(self.spark, self.lake, node, rebuild))
        self.blocks.add(files, block, error)
        return str(block)

    def made_of(self, node: Node) -> tuple[str, dict[str, InputVersion]]:
        """The fingerprint and inputs of a blocked node; empty for a topic, and for inputs that cannot be read."""
        if isinstance(node, Topic):
            return "", {}
        inputs: dict[str, InputVersion] = {}
        with contextlib.suppress(Exception):
            inputs = {name: commit.as_input for name, commit in newest_inputs(self.lake, node).items()}
        return f"{node.fingerprint} {self.catalogue.gate_of(node)}", inputs

    def recompute_range(
        self, datasets: Sequence[Dataset], backfill: BackfillRange, between: "Callable[[], object] | None" = None
    ) -> dict[str, int]:
        """Recomputes a range of datasets in place, upstream first; returns how many rows that changed in each.

        With `between`, which lets a flow go on, it does so in pieces, and calls that after each.
        """
        for dataset in datasets:
            self.require_unchanged(dataset)
        changed = dict.fromkeys((dataset.name for dataset in datasets), 0)
        for dataset in datasets:
            parts = [backfill] if between is None else pieces(self.spark, self.lake, dataset, backfill)
            while parts:
                part = parts.pop(0)
                done = self.recomputed(dataset, part)
                if done.broken and part != backfill:
                    # The rows of other pieces may be what is wrong.
                    parts = [backfill]
                    continue
                if done.broken:
                    raise SluiceError(refusal_of(dataset.name, done.broken, changed))
                changed[dataset.name] += done.rows.total
                if between is not None:
                    between()
        return changed

    def recomputed(self, dataset: Dataset, backfill: BackfillRange) -> Refreshed:
        """Recomputes a range of one dataset."""
        failing = naming_culprits(Attempt(self.spark, self.lake, dataset, backfill=backfill))
        with failing, self.observer.watching("backfill", [dataset.name], self.catalogue) as watch:
            gate = self.catalogue.gate_of(dataset)
            done = refresh(self.spark, self.lake, dataset, backfill=backfill, gate=gate, watch=watch)
            watch.done(done.rows.total, tests=as_rows(dataset.name, None, done.outcomes), broken=done.broken)
        return done

    def require_unchanged(self, dataset: Dataset) -> None:
        """A SluiceError when the table was computed by another declaration: its rows would come from two."""
        known = self.lake.last_commit(dataset.name)
        if known is not None and known.entry.fingerprint != dataset.fingerprint:
            raise SluiceError(
                f"The declaration of {dataset.name} changed since the table was computed, and one table cannot follow "
                f"two declarations. Compute all of it first: sluice run {dataset.name} (a continuous run does it when "
                f"it is started again), or beside the table, to be promoted: sluice replay start {dataset.name}"
            )

    def refreshed(self, dataset: Dataset, event: Event, *, rebuild: bool) -> Event:
        """Refreshes a dataset, unless the same rows were refused already; records the outcomes of its gate."""
        gate = self.catalogue.gate_of(dataset)
        inputs = {name: commit.as_input for name, commit in newest_inputs(self.lake, dataset).items()} if gate else {}
        made_of = (dataset.name, f"{dataset.fingerprint} {gate}")
        if gate and (broken := self.refusals.broken_by(made_of, inputs)):
            return replace(event, refused=broken)
        with self.observer.watching("refresh", [dataset.name], self.catalogue) as watch:
            hold = self.hold_changed
            done = refresh(self.spark, self.lake, dataset, rebuild=rebuild, hold_changed=hold, gate=gate, watch=watch)
            commit = self.lake.last_commit(dataset.name) if done.outcomes else None
            newest = commit.version if commit else -1
            tests = as_rows(
                dataset.name,
                None if done.broken else newest,
                done.outcomes,
                refused_over=newest if done.broken else None,
                table_id=commit.table_id if commit else None,
            )
            watch.done(done.rows.total, tests=tests, broken=done.broken)
        record(self.lake, tests)
        if done.broken:
            self.refusals.add(made_of, inputs, done.broken)
        return replace(
            event, cause=done.cause, rows=done.rows, rejected=done.rejected, held=done.held, refused=done.broken
        )

    def is_topic(self, name: str) -> bool:
        return any(topic.name == name for topic in self.catalogue.topics)


def refusal_of(name: str, broken: Sequence[str], changed: Mapping[str, int]) -> str:
    """Why a range was refused, and what of it is committed: pieces and tables before that break nothing."""
    said = [f"{rows:,} row{'s' * (rows != 1)} of {table}" for table, rows in changed.items() if rows]
    before = f" Before that, it changed {', '.join(said)}: each of these changes was let through." if said else ""
    return f"{name} was refused: it would break {', '.join(broken)}.{before}"


@contextlib.contextmanager
def ended_early(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """The pool; after an error what is running in it comes to its end, and what waits does not begin."""
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def stopped_above(node: Node, events: Mapping[str, Event]) -> tuple[str, ...]:
    """The stopped datasets that a node is made from; a stopped topic does not count: what has landed is there."""
    upstream = node.upstream if isinstance(node, Dataset) else []
    return tuple(each.name for each in upstream if each.name in events and events[each.name].is_stopped)
