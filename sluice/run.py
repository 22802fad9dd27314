"""Run the catalogue: land every topic and refresh every dataset, until nothing upstream is newer, or for ever."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
    """What a run tells while it goes on; `rows` and `seconds` come with 'done'."""

    kind: Literal["started", "done"]
    name: str
    cause: str | None = None
    rows: RowCounts = no_rows
    seconds: float = 0.0

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
    listener: Listener = lambda event: None

    def until_caught_up(self, *, rebuild: bool = False) -> list[Event]:
        """Passes over the catalogue until one finds nothing to do; returns what was done."""
        done: list[Event] = []
        while True:
            effective = [event for event in self.one_pass(rebuild=rebuild) if event.is_effective]
            done += effective
            rebuild = False
            if not any(self.is_topic(event.name) for event in effective):
                return done

    def continuously(self, poll_seconds: float, stop: threading.Event) -> None:
        """Passes until `stop` is set, at least `poll_seconds` apart when there was nothing to do."""
        while not stop.is_set():
            if not any(event.is_effective for event in self.one_pass()):
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
        start = time.monotonic()
        # A session of its own: what one commit says of itself cannot leak into another's.
        with named_jobs(self.spark, node.name) as spark:
            if isinstance(node, Topic):
                landed = land(spark, self.lake, self.log, node, records_max=self.batch_records_max)
                cause, rows = ("records" if landed else None), RowCounts(inserted=landed)
            else:
                refreshed = refresh(spark, self.lake, node, rebuild=rebuild)
                cause, rows = refreshed.cause, refreshed.rows
        event = Event("done", node.name, cause, rows, time.monotonic() - start)
        self.listener(event)
        return event

    def is_topic(self, name: str) -> bool:
        return any(topic.name == name for topic in self.catalogue.topics)


@contextmanager
def named_jobs(spark: "SparkSession", name: str) -> "Iterator[SparkSession]":
    """A new session whose Spark jobs bear the name, so that progress can be told."""
    spark.sparkContext.setJobGroup(name, name)
    yield spark.newSession()
