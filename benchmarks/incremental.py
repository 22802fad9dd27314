"""What a small change costs by scope, and what it costs to compute everything, on a base and on one ten times larger.

Run by `python -m benchmarks.incremental`. A hundred late sales and one late price arrive; the run that takes them in is
compared with a rebuild of the same tables. Seconds belong to the machine: read the ratios.
"""

import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from benchmarks.whole_run import process_cpu_seconds
from sluice import bronze, gold, silver
from sluice.cli.printing import print_table
from sluice.engine.catalogue import ordered
from sluice.engine.runner import Event, Runner
from sluice.log import Log, Record
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake
from sluice.windows import window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

small_sales, products, days = 100_000, 500, 365
late_sales = 100
warm_ups = 3
begin = datetime(2025, 1, 1, tzinfo=UTC)

sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id bigint, product string, sold_at timestamp, pieces int",
    keys=["id"],
    event_time="sold_at",
)
prices = silver.history(
    "prices",
    source=bronze.topic("prices"),
    schema="product string, changed_at timestamp, price int",
    keys=["product"],
    sequence_by="changed_at",
)
priced = silver.as_of("priced", facts=sales, event_time="sold_at", dimensions={"price": prices})
revenue = gold.aggregate(
    "revenue",
    source=priced,
    group_by=["product", window("sold_at", "1 day")],
    measures={"sales": "count(*)", "revenue": "sum(pieces * price.price)"},
)


def record(event_at: datetime, **values: object) -> Record:
    return Record(orjson.dumps(values), timestamp=max(event_at, begin))


def sale(number: int, count: int) -> Record:
    at = begin + timedelta(seconds=number * days * 86_400 / count)
    return record(at, id=number, product=f"p{number % products}", sold_at=at.isoformat(), pieces=1 + number % 5)


def price(product: int, day: float) -> Record:
    at = begin + timedelta(days=day)
    return record(at, product=f"p{product}", changed_at=at.isoformat(), price=100 + int(day) + product)


def late(round_number: int) -> "tuple[Iterable[Record], Iterable[Record]]":
    """Sales of two hours on one day, and a price that changed on another for half a day."""
    at = begin + timedelta(days=100 + round_number)
    first = 10_000_000 + round_number * late_sales
    found = (
        record(at, id=first + number, product=f"p{number % 10}", sold_at=at.isoformat(), pieces=1)
        for number in range(late_sales)
    )
    return found, [price(7, 200.5 + round_number)]


@dataclass(frozen=True)
class Cost:
    """What one run took, and the rows that it wrote in silver and gold."""

    wall_seconds: float
    cpu_seconds: float
    rows: int


def cost_of(spark: "SparkSession", run: "Callable[[], list[Event]]") -> Cost:
    pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    start, before = time.monotonic(), process_cpu_seconds(pid)
    done = run()
    rows = sum(event.rows.total for event in done if not event.name.startswith("bronze."))
    return Cost(time.monotonic() - start, process_cpu_seconds(pid) - before, rows)


def costs(spark: "SparkSession", times: int) -> tuple[int, Cost, Cost]:
    """The rows of silver and gold, and the costs of a small change and of a rebuild, on so many times the base."""
    with tempfile.TemporaryDirectory() as folder:
        log, lake, count = Log(Path(folder, "log")), Lake(str(Path(folder, "lake"))), small_sales * times
        log.append("prices", [price(product, 30.0 * month) for month in range(12) for product in range(products)])
        log.append("sales", (sale(number, count) for number in range(count)))
        runner = Runner(spark, lake, log, ordered([revenue]), batch_records_max=5_000_000)
        runner.until_caught_up()
        for round_number in range(warm_ups + 1):
            found, changed = late(round_number)
            log.append("sales", found)
            log.append("prices", changed)
            small = cost_of(spark, runner.one_pass)
        whole = cost_of(spark, lambda: runner.until_caught_up(rebuild=True))
        rows = sum(lake.row_count(name) for name in lake.tables() if not name.startswith("bronze."))
        return rows, small, whole


def main() -> None:
    with spark_session(Settings()) as spark:
        found = {times: costs(spark, times) for times in (1, 10)}
    print_table(
        [
            "base",
            "rows",
            "change: rows written",
            "wall s",
            "CPU s",
            "rebuild: wall s",
            "CPU s",
            "rebuild ÷ change (CPU)",
        ],
        [
            [
                f"{times}x",
                rows,
                small.rows,
                small.wall_seconds,
                small.cpu_seconds,
                whole.wall_seconds,
                whole.cpu_seconds,
                whole.cpu_seconds / small.cpu_seconds,
            ]
            for times, (rows, small, whole) in found.items()
        ],
    )
    base, large = found[1], found[10]
    print_table(
        ["ten times the base costs", "wall", "CPU"],
        [
            [name, after.wall_seconds / before.wall_seconds, after.cpu_seconds / before.cpu_seconds]
            for name, before, after in (("change", base[1], large[1]), ("rebuild", base[2], large[2]))
        ],
    )


if __name__ == "__main__":
    main()
