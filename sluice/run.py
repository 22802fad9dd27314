"""Run the catalogue: land every topic and refresh every dataset, until nothing upstream is newer, or for ever."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from sluice.catalogue import Catalogue, Node
from sluice.datasets import Dataset, Topic
from sluice.delta import Lake
from sluice.engine import newest_inputs, refresh
from sluice.errors import LogUnreachable, SluiceError
from sluice.land import land
from sluice.ledger import InputVersion, RowCounts, no_rows
from sluice.log import AnyLog
from sluice.part import Part
from sluice.results import as_rows, record
from sluice.session import named_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Event:
    """What a run tells while it goes on; `rows` and `seconds` come with 'done'.

    A dataset that is `held` was left as it is, because its declaration changed and nobody has promoted that; one that
    was `refused` because of what its new rows would have been: the expectations that they break. One that is 'waiting'
    goes on when its log answers again; `name` is why.
    """

    kind: Literal["started", "done", "waiting"]
    name: str
    cause: str | None = None
    rows: RowCounts = no_rows
    seconds: float = 0.0
    held: bool = False
    refused: tuple[str, ...] = ()

    @property
    def is_effective(self) -> bool:
        """True when something was computed, whether or not a row changed."""
        return self.cause is not None and not self.refused


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
    refusals: "dict[tuple[str, str], tuple[dict[str, InputVersion], tuple[str, ...]]]" = field(default_factory=dict)

    def until_caught_up(self, *, rebuild: bool = False) -> list[Event]:
        """Passes over the catalogue until one finds nothing to do; returns what was done, held or refused."""
        done: list[Event] = []
        while True:
            events = self.one_pass(rebuild=rebuild)
            effective = [event for event in events if event.is_effective]
            done += effective
            rebuild = False
            if not any(self.is_topic(event.name) for event in effective):
                return done + [event for event in events if event.held or event.refused]

    def continuously(
        self, poll_seconds: float, stop: threading.Event, renewed: "Callable[[], Catalogue | None]" = lambda: None
    ) -> None:
        """Passes until `stop` is set, at least `poll_seconds` apart when there was nothing to do.

        Before each, `renewed` does what else there is to do in the lake, and may give another catalogue to go on with.
        """
        runner = self
        while not stop.is_set():
            catalogue = renewed()
            if catalogue is not None:
                runner = replace(self, catalogue=catalogue)
            try:
                is_idle = not any(event.is_effective for event in runner.one_pass())
            except LogUnreachable as error:
                self.listener(Event("waiting", str(error)))
                is_idle = True
            if is_idle:
                stop.wait(poll_seconds)

    def one_pass(self, *, rebuild: bool = False) -> list[Event]:
        """Every node once, upstream first; those that do not depend on each other side by side."""
        events: list[Event] = []
        with ThreadPoolExecutor(self.parallel) as pool:
            for level in self.catalogue.levels():
                events += pool.map(lambda node: self.step(node, rebuild=rebuild), level)
        return events

    def step(self, node: Node, *, rebuild: bool) -> Event:
        """Brings one node up to date."""
        self.listener(Event("started", node.name))
        start, event = time.monotonic(), Event("done", node.name)
        # A session of its own: what one commit says of itself cannot leak into another's.
        with named_jobs(self.spark, node.name) as spark:
            if isinstance(node, Topic):
                landed = land(spark, self.lake, self.log, node, records_max=self.batch_records_max)
                event = replace(event, cause="records" if landed else None, rows=RowCounts(inserted=landed))
            else:
                event = self.refreshed(spark, node, event, rebuild=rebuild)
        event = replace(event, seconds=time.monotonic() - start)
        self.listener(event)
        return event

    def part_anew(self, datasets: Sequence[Dataset], part: Part) -> dict[str, int]:
        """Computes a part of datasets anew in place, upstream first; returns how many rows that changed in each."""
        changed = {}
        for dataset in datasets:
            suite = self.catalogue.suites.get(dataset.name)
            with named_jobs(self.spark, dataset.name) as spark:
                done = refresh(spark, self.lake, dataset, part=part, gate=suite.gate if suite else ())
            broken = [each.expectation.name for each in done.outcomes if each.is_critical]
            if broken:
                raise SluiceError(f"{dataset.name} was refused: it would break {', '.join(broken)}.")
            changed[dataset.name] = done.rows.total
        return changed

    def refreshed(self, spark: "SparkSession", dataset: Dataset, event: Event, *, rebuild: bool) -> Event:
        """Refreshes a dataset, unless it would be what was refused already; keeps what its gate said."""
        suite = self.catalogue.suites.get(dataset.name)
        gate = suite.gate if suite else ()
        inputs = {name: commit.as_input for name, commit in newest_inputs(self.lake, dataset).items()} if gate else {}
        made_of = (dataset.name, f"{dataset.fingerprint} {gate}")
        if gate and self.refusals.get(made_of, ({}, ()))[0] == inputs:
            return replace(event, refused=self.refusals[made_of][1])
        done = refresh(spark, self.lake, dataset, rebuild=rebuild, hold_changed=self.hold_changed, gate=gate)
        if done.outcomes:
            commit = None if done.is_refused else self.lake.last_commit(dataset.name)
            version = commit.version if commit else None
            record(self.lake, as_rows(dataset.name, version, done.outcomes))
        refused = tuple(each.expectation.name for each in done.outcomes if each.is_critical)
        if refused:
            self.refusals[made_of] = (inputs, refused)
        return replace(event, cause=done.cause, rows=done.rows, held=done.held, refused=refused)

    def is_topic(self, name: str) -> bool:
        return any(topic.name == name for topic in self.catalogue.topics)
