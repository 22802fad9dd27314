"""A whole run of the flights, from the log to gold, beside two floors: the same JSON to Parquet in Spark and in DuckDB.

Both floors parse the envelope and the payload of every record and write Parquet, nothing else. Spark's is measured
twice in one started session: the first time as cold as the run's own first job, then warm. CPU-seconds are those of all
processes that took part.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import duckdb
import typer
from rich.console import Console

from infra.sources import nycflights
from pipelines.silver.flights import flight_events
from sluice.cli.printing import print_table
from sluice.log import Log
from sluice.log.segment_batch import line_schema
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.shapes.fates import Events

parsing = cast(Events, flight_events.specification).parsing


@dataclass
class Cost:
    """Seconds on the clock and of CPU, and the peak memory of the largest process that has ended."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_mebibytes: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """The cost of a block, its children that have ended included."""
    cost, start, before = Cost(), time.monotonic(), cpu_seconds()
    yield cost
    cost.wall_seconds, cost.cpu_seconds = time.monotonic() - start, cpu_seconds() - before


def cpu_seconds() -> float:
    """CPU of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def process_cpu_seconds(pid: int) -> float:
    """CPU of a process that still runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spark_floor(log: Log, out: Path) -> tuple[Cost, Cost]:
    """The flights' JSON to Parquet in plain Spark: first and third time in one session that had started before."""
    from pyspark.sql import functions as F

    files = [str(segment.path) for topic in log.topics() for segment in log.segments(topic)]
    costs = []
    with spark_session(Settings()) as spark:
        # The gateway's process becomes the JVM.
        pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        for _ in range(3):
            start, before = time.monotonic(), process_cpu_seconds(pid)
            parsed = F.from_json("value", parsing.schema).alias("value")
            lines = spark.read.schema(line_schema).json(files).select("offset", "key", "timestamp", parsed)
            lines.select("offset", "key", "timestamp", "value.*").write.mode("overwrite").parquet(str(out))
            costs.append(Cost(time.monotonic() - start, process_cpu_seconds(pid) - before))
    return costs[0], costs[2]


def duckdb_floor(log: Log, out: Path) -> Cost:
    """The same in DuckDB."""
    names = list(parsing.columns)
    shape = "{" + ", ".join(f'"{name}": "VARCHAR"' for name in names) + "}"
    with measured() as cost, duckdb.connect() as connection:
        connection.execute(
            f"""COPY (
                SELECT "offset", key, timestamp, unnest(from_json(value, '{shape}'))
                FROM read_json('{log.root}/*/*/*.jsonl', format = 'newline_delimited',
                    columns = {{'offset': 'BIGINT', 'key': 'VARCHAR', 'value': 'VARCHAR', 'timestamp': 'TIMESTAMP'}})
                WHERE json_valid(value)
            ) TO '{out}' (FORMAT parquet)"""
        )
    return cost


def sluice_run(log: Log, lake: Path) -> Cost:
    """`sluice run` as a user types it: the start of Python and of the JVM included."""
    locations = {"SLUICE_LOG": str(log.root), "SLUICE_LAKE": str(lake)}
    with measured() as cost:
        subprocess.run([sys.executable, "-m", "sluice.cli", "run"], env=os.environ | locations, check=True)
    cost.memory_mebibytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return cost


def main(months: Annotated[int, typer.Option(min=1, max=12)] = 12) -> None:
    """Publishes the flights, measures, and prints the ratios."""
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="sluice-benchmark-"))
    try:
        log = Log(folder / "log")
        published = nycflights.publish(log, months)
        console.print(f"{sum(each.records for each in published.values()):,} records", highlight=False)
        steps: dict[str, Callable[[], Cost]] = {
            "sluice run, first": lambda: sluice_run(log, folder / "lake"),
            "sluice run, nothing new": lambda: sluice_run(log, folder / "lake"),
            "DuckDB JSON to Parquet": lambda: duckdb_floor(log, folder / "duckdb.parquet"),
        }
        costs = {name: step() for name, step in steps.items()}
        cold, warm = spark_floor(log, folder / "spark.parquet")
        costs |= {"Spark JSON to Parquet, first": cold, "Spark JSON to Parquet, warm": warm}
        run = costs["sluice run, first"]
        console.print(f"The largest process of a run took {run.memory_mebibytes:,.0f} MiB.", highlight=False)
        print_table(
            ["what", "wall seconds", "CPU seconds", "first run ÷ this (wall)", "first run ÷ this (CPU)"],
            [
                [
                    name,
                    cost.wall_seconds,
                    cost.cpu_seconds,
                    run.wall_seconds / cost.wall_seconds,
                    run.cpu_seconds / cost.cpu_seconds,
                ]
                for name, cost in costs.items()
            ],
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
