"""Run the catalogue: land every topic and refresh every dataset, until nothing upstream is newer, or for ever."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sluice.catalogue import Catalogue, Node
from sluice.datasets import Topic
from sluice.delta import Lake
from sluice.engine import refresh
from sluice.land import land
from sluice.ledger import RowCounts, no_rows
from sluice.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Event:
    """What a run tells while it goes on; `rows` and `seconds` come with 'done'.

    A dataset that is `held` was left as it is, because its declaration changed and nobody has promoted that.
    """

    kind: Literal["started", "done"]
    name: str
    cause: str | None = None
    rows: RowCounts = no_rows
    seconds: float = 0.0
    held: bool = False

    @property
    def is_effective(self) -> bool:
        """True when something was computed, whether or not a row changed."""
        return self.cause is not None


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Runner:
    """Everything a run needs: the session, the tables, the log and the datasets."""

    spark: "SparkSession"
    lake: Lake
    log: Log
    catalogue: Catalogue
    batch_records_max: int
    parallel: int = 2
    hold_changed: bool = False
    listener: Listener = lambda event: None

    def until_caught_up(self, *, rebuild: bool = False) -> list[Event]:
        """Passes over the catalogue until one finds nothing to do; returns what was done, or held."""
        done: list[Event] = []
        while True:
            events = self.one_pass(rebuild=rebuild)
            effective = [event for event in events if event.is_effective]
            done += effective
            rebuild = False
            if not any(self.is_topic(event.name) for event in effective):
                return done + [event for event in events if event.held]

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
            if not any(event.is_effective for event in runner.one_pass()):
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
        start, held = time.monotonic(), False
        # A session of its own: what one commit says of itself cannot leak into another's.
        with named_jobs(self.spark, node.name) as spark:
            if isinstance(node, Topic):
                landed = land(spark, self.lake, self.log, node, records_max=self.batch_records_max)
                cause, rows = ("records" if landed else None), RowCounts(inserted=landed)
            else:
                refreshed = refresh(spark, self.lake, node, rebuild=rebuild, hold_changed=self.hold_changed)
                cause, rows, held = refreshed.cause, refreshed.rows, refreshed.held
        event = Event("done", node.name, cause, rows, time.monotonic() - start, held)
        self.listener(event)
        return event

    def is_topic(self, name: str) -> bool:
        return any(topic.name == name for topic in self.catalogue.topics)


@contextmanager
def named_jobs(spark: "SparkSession", name: str) -> "Iterator[SparkSession]":
    """A new session whose Spark jobs bear the name, so that progress can be told."""
    spark.sparkContext.setJobGroup(name, name)
    yield spark.newSession()
