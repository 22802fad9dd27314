"""What tests are written with: small frames as tuples, and a lakehouse that is driven a step at a time."""

import errno
import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sluice.engine import commit
from sluice.engine.catalogue import Catalogue, ordered
from sluice.engine.plan import Plan
from sluice.engine.runner import Event, Runner
from sluice.log import Log, Record
from sluice.model.datasets import Dataset, Topic
from sluice.model.ledger import RowCounts
from sluice.operate.audit import IntegrityCheck, audit, integrity
from sluice.quality.conservation import Fates
from sluice.storage.delta import Lake
from sluice.storage.delta.opened import rows_in
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]
day_one = datetime(2026, 1, 1, tzinfo=UTC)


def at(hours: float) -> datetime:
    """A time, counted in hours from the first day."""
    return day_one + timedelta(hours=hours)


def text(hours: float) -> str:
    """The same as RFC 3339."""
    return at(hours).isoformat().replace("+00:00", "Z")


def clock_off_by(hours: float) -> type[datetime]:
    """The clock of a machine that is so far ahead, or behind."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls.fromtimestamp(datetime.now(tz).timestamp() + hours * 3_600, tz)

    return Clock


@contextmanager
def in_time_zone(name: str) -> Iterator[None]:
    """As if the machine were somewhere else."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TZ", name)
        time.tzset()
        try:
            yield
        finally:
            environment.undo()
            time.tzset()


def frame(spark: "SparkSession", schema: str, rows: Iterable[Row]) -> "DataFrame":
    """A frame of a few rows; times are given in hours from the first day, in columns of type `hours`."""
    names = [column.split()[0] for column in schema.split(", ")]
    hours = [name for name, column in zip(names, schema.split(", "), strict=True) if column.endswith(" hours")]
    plain = spark.createDataFrame(list(rows), schema.replace(" hours", " double"))
    # The days before the first are negative, and whole numbers stay readable.
    return plain.selectExpr(
        *[
            f"timestamp_micros(CAST({name} * 3600000000 AS BIGINT) + {int(day_one.timestamp() * 1_000_000)}) AS {name}"
            if name in hours
            else name
            for name in names
        ]
    )


def rows_of(df: "DataFrame", *columns: str) -> list[Row]:
    """The rows of the chosen columns, sorted; times in hours from the first day."""
    found = df.select(*columns) if columns else df.select(*[name for name in df.columns if not name.startswith("_")])
    return sorted((tuple(plain(value) for value in row) for row in found.collect()), key=repr)


def plain(value: Any) -> Any:
    """Times as hours, structs as tuples."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) - day_one) / timedelta(hours=1)
    return tuple(plain(each) for each in value) if isinstance(value, tuple) else value


def is_read_alike(rows: pa.Table, columns: Iterable[str]) -> bool:
    """Whether Python has the values of these columns of Arrow as it has them of Spark; a map is a list of pairs."""
    return all(name in rows.column_names and "map<" not in str(rows.schema.field(name).type) for name in columns)


def as_of_spark(value: Any) -> Any:
    """A value of Arrow as Spark has it: a struct is a tuple, within a list, too."""
    match value:
        case dict():
            return tuple(as_of_spark(each) for each in value.values())
        case list():
            return [as_of_spark(each) for each in value]
    return value


class Lakehouse:
    """A log, a lake and some datasets; `run` does what `sluice run` does."""

    def __init__(self, spark: "SparkSession", folder: Path, partitions: int = 2) -> None:
        self.spark = spark
        self.folder = folder
        # The embedded one, unless a test gives another.
        self.log: Any = Log(folder / "log", partitions=partitions)
        self.lake = Lake(str(folder / "lake"))
        self.catalogue = Catalogue(())

    def copied_to(self, folder: Path) -> "Lakehouse":
        """Another one that has come as far; so tests can begin where a module's fixture ended."""
        for name in ("log", "lake"):
            shutil.copytree(self.folder / name, folder / name)
        found = Lakehouse(self.spark, folder, self.log.default_partitions)
        found.catalogue = self.catalogue
        return found

    def declare(self, *nodes: Dataset | Topic) -> "Lakehouse":
        self.catalogue = ordered(nodes)
        return self

    def publish(
        self, topic: str, *values: Mapping[str, Any] | bytes | None, key: str | None = None, hours: float = 0.0
    ) -> "Lakehouse":
        """Appends values (JSON or raw bytes) that arrive `hours` after the first day began."""
        encoded = (json.dumps(value).encode() if isinstance(value, Mapping) else value for value in values)
        self.log.append(topic, [Record(value, key=key, timestamp=at(hours)) for value in encoded])
        return self

    def runner(self, **options: Any) -> Runner:
        return Runner(
            spark=self.spark,
            lake=self.lake,
            log=self.log,
            catalogue=self.catalogue,
            **({"batch_records_max": 1_000_000} | options),
        )

    def run(self, *, rebuild: bool = False) -> dict[str, Event]:
        """Runs until caught up; returns what was done, by dataset, or raises the error that blocks one."""
        runner = self.runner()
        events = {event.name: event for event in runner.until_caught_up(rebuild=rebuild)}
        for error in runner.blocks.errors.values():
            raise error
        return events

    def changed_by_rebuild(self) -> dict[str, int]:
        """How many rows a rebuild changes, by the tables that it changes."""
        return {name: event.rows.total for name, event in self.run(rebuild=True).items() if event.rows.total}

    def table(self, name: str) -> "DataFrame":
        return self.lake.read(self.spark, name)

    def rows(self, name: str, *columns: str) -> list[Row]:
        """The rows of a table, as `rows_of` has them; read without Spark, which takes twenty times as long."""
        found = rows_in(self.lake.open(name))
        if found is None or not is_read_alike(found, columns or found.column_names):
            return rows_of(self.table(name), *columns)
        shown = found.select(columns or [each for each in found.column_names if not each.startswith("_")])
        return sorted((tuple(plain(as_of_spark(each)) for each in row.values()) for row in shown.to_pylist()), key=repr)

    def versions(self) -> dict[str, int]:
        """The version of every table."""
        found = {name: self.lake.last_commit(name) for name in self.lake.tables()}
        return {name: commit.version for name, commit in found.items() if commit is not None}

    def audits(self) -> list[Fates]:
        return audit(self.lake, self.catalogue)

    def audit(self) -> dict[str, Fates]:
        """The fates by dataset, for datasets of one topic."""
        return {each.dataset: each for each in self.audits()}

    def laws(self) -> list[IntegrityCheck]:
        return integrity(self.lake, self.catalogue)

    def fates(self) -> list[Row]:
        return self.rows("silver._fates", "fate", "reason", "detail")


@contextmanager
def before_each_commit(table: str, do: Callable[[], None]) -> Iterator[None]:
    """Does something between the reading of a table's rows and each commit of a refresh to it."""
    original = commit.write

    def write(lake: TableFormat, plan: Plan) -> RowCounts:
        if plan.output.table == table:
            do()
        return original(lake, plan)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit, "write", write)
        yield


@contextmanager
def disk_full_at(table: str) -> Iterator[None]:
    """Nothing can be written to one table meanwhile, so a dataset's commits end before it."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with before_each_commit(table, full):
        yield


def statements(spark: "SparkSession", after: int) -> dict[int, str]:
    """What Spark has run since a statement, by number: for what it was.

    Old ones are forgotten after a while, so they are told apart by number, not by their place in the list.
    """
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    listed = spark._jsparkSession.sharedState().statusStore().executionsList()
    found = {listed.apply(index).executionId(): listed.apply(index).description() for index in range(listed.size())}
    return {number: said for number, said in found.items() if number > after}


def lines_without_checksums(segment: Path) -> list[bytes]:
    """The lines of a segment as an older release, or another program, wrote them."""
    lines = segment.read_bytes().splitlines(keepends=True)
    return [re.sub(rb'(,"segment_sha256":"\w{64}")?,"crc32":"\w{8}"\}\n$', b"}\n", line) for line in lines]
