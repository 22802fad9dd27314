"""What small changes cost on a base and on one ten times larger: CPU-seconds and bytes read, not only rows written.

Run by `python -m benchmarks.proportion`, or with `--facts 800000 --facts 8000000` for bases at which it shows. A year
of sales with random keys, each joined with the version of its customer, and the revenue by segment and day. Each change
is made three times in a driver that stays, and the third is shown. CPU is that of the driver and its JVM; bytes are
those that the two asked the system for (`rchar`), from memory or disk.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from benchmarks.whole_run import process_cpu_seconds
from sluice import bronze, gold, silver
from sluice.cli.printing import print_table
from sluice.engine.catalogue import ordered
from sluice.engine.runner import Runner
from sluice.log import Log, Record
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

customers, versions, segments = 50_000, 4, 8
begin, days = datetime(2025, 1, 1, tzinfo=UTC), 365
rounds = 3
columns = ("wall s", "CPU s", "MB read", "MB written", "statements", "rows")

sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id string, customer string, sold_at timestamp, amount decimal(12,2)",
    keys=["id"],
    event_time="sold_at",
)
people = silver.history(
    "customers",
    source=bronze.topic("customers"),
    schema="customer string, changed_at timestamp, segment string",
    keys=["customer"],
    sequence_by="changed_at",
)
sold = silver.as_of("sold", facts=sales, event_time="sold_at", dimensions={"buyer": people})
revenue = gold.aggregate(
    "revenue",
    source=sold,
    group_by=["buyer.segment AS segment", "to_date(sold_at) AS day"],
    measures={"sales": "count(*)", "amount": "sum(amount)"},
)


def record(at: datetime, **values: object) -> Record:
    return Record(orjson.dumps(values), timestamp=begin + timedelta(days=days + 1) if at < begin else at)


def sale(chance: random.Random, second: float) -> Record:
    at = begin + timedelta(seconds=second)
    return record(
        at,
        id=f"{chance.randrange(10**16):016d}",
        customer=f"c{chance.randrange(customers)}",
        sold_at=at.isoformat(),
        amount=chance.randrange(100_000) / 100,
    )


def version(chance: random.Random, customer: int, day: float) -> Record:
    at = begin + timedelta(days=day)
    return record(at, customer=f"c{customer}", changed_at=at.isoformat(), segment=f"s{chance.randrange(segments)}")


def base(chance: random.Random, facts: int) -> dict[str, Iterable[Record]]:
    """The facts of the year in their order, and four versions of each customer, the first before all facts."""
    known = sorted(
        (-1.0 if number == 0 else chance.random() * days, customer)
        for customer in range(customers)
        for number in range(versions)
    )
    return {
        "customers": (version(chance, customer, day) for day, customer in known),
        "sales": (sale(chance, number * days * 86_400 / facts) for number in range(facts)),
    }


seconds = days * 86_400
changes: dict[str, Callable[[random.Random], tuple[str, list[Record]]]] = {
    "one new fact of today": lambda chance: ("sales", [sale(chance, seconds + chance.random())]),
    "1,000 new facts of the last hour": lambda chance: (
        "sales",
        [sale(chance, seconds - 3600 * chance.random()) for _ in range(1_000)],
    ),
    "10 facts scattered over the year": lambda chance: (
        "sales",
        [sale(chance, seconds * chance.random()) for _ in range(10)],
    ),
    "1,000 facts scattered over the year": lambda chance: (
        "sales",
        [sale(chance, seconds * chance.random()) for _ in range(1_000)],
    ),
    "20 late versions of customers": lambda chance: (
        "customers",
        [version(chance, chance.randrange(customers), days * chance.random()) for _ in range(20)],
    ),
}


@dataclass
class Cost:
    wall_seconds: float
    cpu_seconds: float
    megabytes_read: float
    megabytes_written: float
    statements: int
    rows: int


@dataclass(frozen=True)
class Meter:
    """What the driver and its JVM have used so far."""

    spark: "SparkSession"

    def read(self) -> tuple[float, float, float, float, float]:
        """Wall and CPU seconds, megabytes read and written, and statements of Spark."""
        jvm = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        cpu_seconds = time.process_time() + process_cpu_seconds(jvm)
        of_both = [Path(each).read_text() for each in ("/proc/self/io", f"/proc/{jvm}/io")]
        read, written = (
            sum(int(each.split(f"{what}: ")[1].split()[0]) for each in of_both) / 1e6 for what in ("rchar", "wchar")
        )
        return time.monotonic(), cpu_seconds, read, written, self.statements()

    def since(self, before: Sequence[float]) -> list[float]:
        """The same, as used since it was read before."""
        return [now - then for now, then in zip(self.read(), before, strict=True)]

    def statements(self) -> int:
        """The number of the newest statement; what Spark keeps of them is bounded."""
        self.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        listed: Any = self.spark._jsparkSession.sharedState().statusStore().executionsList()
        return int(listed.last().executionId()) if listed.nonEmpty() else -1


def built(spark: "SparkSession", log: Log, folder: Path) -> tuple[Runner, Cost]:
    """The tables of a log in a folder, with what keeps them, and what the first run cost."""
    runner = Runner(spark, Lake(str(folder / "lake")), log, ordered([revenue]), batch_records_max=10_000_000)
    return runner, cost_of(spark, runner)


def cost_of(spark: "SparkSession", runner: Runner) -> Cost:
    """What it costs to process what the log has."""
    meter = Meter(spark)
    before = meter.read()
    done = runner.until_caught_up()
    wall, cpu, read, written, asked = meter.since(before)
    rows = sum(event.rows.total for event in done if not event.name.startswith("bronze."))
    return Cost(wall, cpu, read, written, int(asked), rows)


def log_of(facts: int, folder: Path) -> Log:
    """A log with the records of a base."""
    log = Log(folder / "log")
    for topic, records in base(random.Random(facts), facts).items():  # noqa: S311 - drawn data, the same in each run
        log.append(topic, records)
    return log


def costs(spark: "SparkSession", facts: int) -> dict[str, Cost]:
    """What building the base cost, and each change."""
    chance = random.Random(facts + 1)  # noqa: S311 - drawn data, the same in each run
    with tempfile.TemporaryDirectory() as folder:
        log = log_of(facts, Path(folder))
        runner, first = built(spark, log, Path(folder))
        found = {"all of it from nothing": first}
        for _ in range(rounds):
            for name, change in changes.items():
                topic, changed = change(chance)
                log.append(topic, changed)
                found[name] = cost_of(spark, runner)
        return found


def main(
    facts: Annotated[list[int] | None, typer.Option(help="The facts of a base; give it twice or more.")] = None,
) -> None:
    bases = facts or [80_000, 800_000]
    found = {}
    for count in bases:
        with spark_session(Settings()) as spark:
            found[count] = costs(spark, count)
    print_table(
        ["change", *[f"{count:,} facts: {what}" for count in bases for what in columns]],
        [[name, *[figure for each in found.values() for figure in astuple(each[name])]] for name in found[bases[0]]],
    )


if __name__ == "__main__":
    typer.run(main)
