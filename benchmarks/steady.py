"""A steady flow of flights through a continuous run: how long each record takes to gold, and what grows with time.

Run by `python -m benchmarks.steady --rate 1000 --minutes 10`. The records are those of the demo's year, each once, in
the order of their arrival, without the copies and the damage: each is new, and nearly each changes gold. The first of
them, and all aircraft, are processed before. Then `sluice run --continuous` starts as a user starts it, and a producer,
a process of its own, appends so many records a second, ten times a second, whatever the run does. A record's timestamp
is when it was due, so one that the producer appends late is late by that, too.

When silver and gold had a record follows from the ledger afterwards. No figure counts unless the audit is balanced and
DuckDB makes the same gold of the records in the log.

With `--backfill-days 30` the first days of the year are recomputed halfway through, beside the flow.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Annotated

import duckdb
import numpy as np
import orjson
import typer

from benchmarks.ledger_meter import Numbers, Partition, file_counts, reached_ms, reaches
from benchmarks.steady_plot import plot
from benchmarks.whole_run import process_cpu_seconds
from infra.sources import nycflights
from sluice.cli.printing import print_table
from sluice.log import Log, Record
from sluice.storage.delta import Lake

project = Path(__file__).parents[1]
appends_per_second = 10
first_day = datetime(2013, 1, 1, tzinfo=UTC)
follow_seconds_max = 300.0
silver, gold = "silver.departures", ("gold.delays_hourly", "gold.delays_by_weather", "gold.carrier_days")
topics = ("flights", "weather")

records_sql = """
    SELECT split_part(filename, '/', -3) AS topic, CAST(split_part(filename, '/', -2) AS INT) AS "partition",
        "offset", timestamp, value
    FROM read_json('{log}/*/*/*.jsonl', format = 'newline_delimited', filename = true, columns = {{
        'offset': 'BIGINT', 'timestamp': 'TIMESTAMPTZ', 'value': 'VARCHAR'}})
"""
silver_sql = """
    CREATE VIEW events AS SELECT value->>'flight_id' AS flight_id, value->>'type' AS type,
        CAST(value->>'scheduled_at' AS TIMESTAMPTZ) AS scheduled_at, value->>'carrier' AS carrier,
        value->>'origin' AS origin, CAST(value->>'distance_miles' AS INT) AS distance_miles,
        CAST(value->>'departure_delay_minutes' AS INT) AS departure_delay_minutes,
        CAST(value->>'arrival_delay_minutes' AS INT) AS arrival_delay_minutes
        FROM records WHERE topic = 'flights';
    CREATE TABLE flights AS SELECT flight_id, max(scheduled_at) AS scheduled_at, max(carrier) AS carrier,
        max(origin) AS origin, max(distance_miles) AS distance_miles, bool_or(type = 'departed') AS has_departed,
        bool_or(type = 'cancelled') AS is_cancelled, max(departure_delay_minutes) AS departure_delay_minutes,
        max(arrival_delay_minutes) AS arrival_delay_minutes
        FROM events GROUP BY flight_id;
    CREATE TABLE weather AS SELECT value->>'origin' AS origin,
        CAST(value->>'observed_at' AS TIMESTAMPTZ) AS observed_at,
        CAST(value->>'visibility_miles' AS DOUBLE) AS visibility_miles,
        CAST(value->>'wind_speed_mph' AS DOUBLE) AS wind_speed_mph
        FROM records WHERE topic = 'weather' AND coalesce(CAST(value->>'wind_speed_mph' AS DOUBLE), 0) <= 250;
    CREATE TABLE departures AS SELECT flight.*, observed_at, visibility_miles, wind_speed_mph
        FROM flights AS flight ASOF LEFT JOIN weather
        ON flight.origin = weather.origin AND flight.scheduled_at >= weather.observed_at;
"""
measures_sql = """count(*) AS flights, count_if(has_departed) AS departed, count_if(is_cancelled) AS cancelled,
    avg(departure_delay_minutes) AS departure_delay_minutes_avg,
    max(departure_delay_minutes) AS departure_delay_minutes_max"""
gold_sql = {
    "gold.delays_hourly": f"""SELECT origin, date_trunc('hour', scheduled_at) AS window_start, {measures_sql}
        FROM departures GROUP BY ALL""",
    "gold.delays_by_weather": f"""SELECT CASE WHEN observed_at IS NULL THEN 'unknown'
            WHEN visibility_miles < 1 THEN '1 below 1 mile' WHEN visibility_miles < 3 THEN '2 from 1 to 3 miles'
            WHEN visibility_miles < 10 THEN '3 from 3 to 10 miles' ELSE '4 10 miles and more' END AS visibility,
        CASE WHEN wind_speed_mph IS NULL THEN 'unknown' WHEN wind_speed_mph < 10 THEN '1 below 10 mph'
            WHEN wind_speed_mph < 20 THEN '2 from 10 to 20 mph' ELSE '3 20 mph and more' END AS wind, {measures_sql}
        FROM departures GROUP BY ALL""",
    "gold.carrier_days": f"""SELECT carrier, CAST(scheduled_at AT TIME ZONE 'America/New_York' AS DATE) AS day,
        {measures_sql}, avg(arrival_delay_minutes) AS arrival_delay_minutes_avg, sum(distance_miles) AS distance_miles
        FROM departures GROUP BY ALL""",
}


@dataclass(frozen=True)
class Sample:
    """What the driver and its JVM have at a time."""

    second: float
    driver_mebibytes: float
    jvm_mebibytes: float
    cpu_seconds: float


@dataclass(frozen=True)
class Second:
    """The records that were due in one second, and the state of the run then; latencies are from due to there."""

    second: int
    gold_p50: float
    gold_p99: float
    gold_max: float
    silver_p50: float
    lag_records: int
    driver_mebibytes: float
    jvm_mebibytes: float
    cpu_seconds: float
    files: dict[str, int]


@dataclass(frozen=True)
class Flow:
    """Each record of the flow: when it was due, and how many seconds later silver and gold had it."""

    due: Numbers
    silver: Numbers
    gold: Numbers


def main(
    *,
    rate: Annotated[int, typer.Option(help="Records a second.")] = 1_000,
    minutes: Annotated[float, typer.Option(help="For how long.")] = 10.0,
    before: Annotated[int, typer.Option(help="How many records of the year are processed before.")] = 150_000,
    months: Annotated[int, typer.Option(min=1, max=12, help="How much of the year there is.")] = 12,
    out: Annotated[Path | None, typer.Option(help="A folder for steady.jsonl and steady.svg.")] = None,
    backfill_days: Annotated[int, typer.Option(help="Recompute so many days of the year halfway through.")] = 0,
) -> None:
    """Measures, verifies, and prints a table by minute."""
    known, flow = originals(months, before, round(rate * minutes * 60))
    with tempfile.TemporaryDirectory(prefix="sluice-steady-") as folder:
        log, lake = Log(Path(folder, "log")), Lake(str(Path(folder, "lake")))
        # Each command has a JVM of its own, so the run's memory is that of the run.
        os.environ |= {"SLUICE_LOG": str(log.root), "SLUICE_LAKE": lake.root, "SLUICE_KEEP_SPARK_MINUTES": "0"}
        append(log, known[:-rate])
        sluice("run")
        append(log, known[-rate:])
        with continuous_run() as driver:
            if not wait_until(lambda: is_caught_up(log, lake), driver):
                raise SystemExit("Gold did not follow the records before the flow.")
            start, samples = time.time(), []
            producer = multiprocessing.get_context("fork").Process(target=produce, args=(log, flow, rate, start))
            producer.start()
            with backfill(backfill_days, start + minutes * 30) as beside:
                for second in range(round(minutes * 60)):
                    time.sleep(max(0.0, start + second + 1 - time.time()))
                    samples.append(sampled(driver.pid, second + 1))
            producer.join()
            is_followed = wait_until(lambda: is_caught_up(log, lake), driver, follow_seconds_max)
        sluice("run", "--json")
        require_right(log, lake)
        found = measured(log, lake, start)
        seconds = list(by_second(found, samples, counted_files(lake), start))
        show_steps(lake, start)
    if not is_followed:
        typer.echo(f"Gold did not follow within {follow_seconds_max:g} s after the end.", err=True)
    show(found, seconds, rate)
    for began, ended in beside:
        show_beside(found, began, ended, backfill_days)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "steady.jsonl").write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in seconds))
        (out / "steady.svg").write_text(plot([vars(each) for each in seconds]))


Due = list[tuple[str, Record]]


def originals(months: int, before: int, count: int) -> tuple[Due, Due]:
    """The first records of the year with all aircraft, and as many as the flow has after them."""
    year = nycflights.arrivals(months)
    found = [
        (topic, Record(value, key, arrived_at))
        for topic, value, key, kind, arrived_at in zip(
            year.topics, year.values, year.keys, year.kinds, year.arrived_at, strict=True
        )
        if kind == "original"
    ]
    if len(found) < before + count:
        raise typer.BadParameter(f"{before + count:,} records are wanted, and the year has {len(found):,}.")
    return found[:before], found[before : before + count]


def append(log: Log, records: Due) -> None:
    """Appends records to their topics."""
    for topic in dict.fromkeys(topic for topic, _ in records):
        log.append(topic, [record for of, record in records if of == topic])


def produce(log: Log, records: Due, rate: int, start: float) -> None:
    """Appends each record as soon as it is due, and gives it that time; what is late does not delay what follows."""
    for done, due in paced(len(records), rate, start):
        append(
            log,
            [
                (topic, Record(record.value, record.key, datetime.fromtimestamp(start + number / rate, UTC)))
                for number, (topic, record) in enumerate(records[done:due], start=done)
            ],
        )


def paced(count: int, rate: int, start: float) -> Iterator[tuple[int, int]]:
    """What is due, several times a second: from one number on, before another, until all of `count` were."""
    done = 0
    while done < count:
        time.sleep(max(0.0, start + done / rate + 1 / appends_per_second - time.time()))
        due = min(count, int((time.time() - start) * rate))
        yield done, due
        done = due


def sluice(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "sluice.cli", *arguments], cwd=project, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def continuous_run() -> "Iterator[subprocess.Popen[bytes]]":
    """The run in a process of its own, stopped at the end as a user stops it."""
    command = [sys.executable, "-m", "sluice.cli", "run", "--continuous"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def backfill(days: int, begins: float) -> Iterator[list[tuple[float, float]]]:
    """Recomputes the first days of the year at a time, by the run that is under way; gives when it began and ended."""
    took: list[tuple[float, float]] = []
    if not days:
        yield took
        return

    def recompute() -> None:
        time.sleep(max(0.0, begins - time.time()))
        began = time.time()
        sluice("run", "--since", f"{first_day:%Y-%m-%d}", "--until", f"{first_day + timedelta(days=days):%Y-%m-%d}")
        took.append((began, time.time()))

    beside = Thread(target=recompute)
    beside.start()
    yield took
    beside.join()


def wait_until(is_done: "Callable[[], bool]", driver: "subprocess.Popen[bytes]", seconds: float = 600.0) -> bool:
    """Whether it was done in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if driver.poll() is not None:
            raise SystemExit(f"The run ended with {driver.returncode}.")
        if is_done():
            return True
        time.sleep(0.5)
    return False


def is_caught_up(log: Log, lake: Lake) -> bool:
    """Whether all of gold has all that is in the log."""
    ends = {(topic, number): each.stop for topic in topics for number, each in log.offsets(topic).items()}
    commits = {name: lake.commits(name)[-20:] for name in lake.tables()}
    found = [reaches(commits, name) for name in gold]
    return all(each and is_past(each[-1].next_offsets, ends) for each in found)


def is_past(reached: Mapping[Partition, int], ends: Mapping[Partition, int]) -> bool:
    return all(reached.get(partition, 0) >= end for partition, end in ends.items())


def sampled(driver: int, second: float) -> Sample:
    """The memory and CPU of the driver and its JVM."""
    jvm = next((each for each in descendants(driver) if name_of(each) == "java"), driver)
    cpu_seconds = process_cpu_seconds(driver) + process_cpu_seconds(jvm)
    return Sample(second, mebibytes(driver), mebibytes(jvm), cpu_seconds)


def descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def name_of(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def mebibytes(process: int) -> float:
    """The memory of a process that is in use."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def require_right(log: Log, lake: Lake) -> None:
    """The end of the benchmark unless the audit is balanced and gold is what the records of the log say."""
    sluice("audit")
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE TABLE records AS {records_sql.format(log=log.root)}")
        connection.execute(silver_sql)
        for name, sql in gold_sql.items():
            connection.execute(f"CREATE OR REPLACE TABLE theirs AS {sql}")
            columns = ", ".join(connection.table("theirs").columns)
            connection.register("ours", lake.arrow(name))
            differing = [
                f"(SELECT {columns} FROM {one} EXCEPT ALL SELECT {columns} FROM {other})"
                for one, other in (("ours", "theirs"), ("theirs", "ours"))
            ]
            rows = connection.execute(" UNION ALL ".join(differing)).fetchall()
            if rows:
                raise SystemExit(f"{name} has {len(rows)} rows that differ from DuckDB's, as {rows[0]}.")


def measured(log: Log, lake: Lake, start: float) -> Flow:
    """When silver and gold had each record of the flow, by the ledger."""
    commits = {name: lake.commits(name) for name in lake.tables()}
    of_silver, of_gold = reaches(commits, silver), [reaches(commits, name) for name in gold]
    due, in_silver, in_gold = [], [], []
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE records AS {records_sql.format(log=log.root)}")
        parts = connection.execute('SELECT DISTINCT topic, "partition" FROM records').fetchall()
        for partition in parts:
            flow = connection.execute(
                """SELECT "offset", epoch_us(timestamp) / 1e6 AS due FROM records
                WHERE topic = $1 AND "partition" = $2 AND timestamp >= make_timestamptz($3)""",
                [*partition, int(start * 1e6) - 1],
            ).fetchnumpy()
            offsets = np.asarray(flow["offset"], np.int64)
            due.append(flow["due"])
            in_silver.append(reached_ms(of_silver, partition, offsets) / 1000 - flow["due"])
            found = [reached_ms(each, partition, offsets) for each in of_gold]
            in_gold.append(np.maximum.reduce(found) / 1000 - flow["due"])
    return Flow(np.concatenate(due), np.concatenate(in_silver), np.concatenate(in_gold))


def counted_files(lake: Lake) -> dict[str, list[tuple[int, int]]]:
    return {name: list(file_counts(lake, name)) for name in lake.tables()}


def by_second(
    flow: Flow, samples: Sequence[Sample], files: dict[str, list[tuple[int, int]]], start: float
) -> Iterator[Second]:
    """The flow second by second."""
    cpu_seconds = 0.0
    in_gold = flow.due + flow.gold
    for sample in samples:
        now = start + sample.second
        of_second = (flow.due >= now - 1) & (flow.due < now)
        if not of_second.any():
            continue
        p50, p99, most = np.percentile(flow.gold[of_second], [50, 99, 100])
        yield Second(
            second=int(sample.second),
            gold_p50=float(p50),
            gold_p99=float(p99),
            gold_max=float(most),
            silver_p50=float(np.median(flow.silver[of_second])),
            lag_records=int(((flow.due < now) & ~(in_gold <= now)).sum()),
            driver_mebibytes=sample.driver_mebibytes,
            jvm_mebibytes=sample.jvm_mebibytes,
            cpu_seconds=sample.cpu_seconds - cpu_seconds if cpu_seconds else 0.0,
            files={name: newest_count(counts, now) for name, counts in files.items()},
        )
        cpu_seconds = sample.cpu_seconds


def newest_count(counts: Sequence[tuple[int, int]], now: float) -> int:
    return next((count for time_ms, count in reversed(counts) if time_ms <= now * 1000), 0)


def show(flow: Flow, seconds: Sequence[Second], rate: int) -> None:
    """Prints the figures of each minute, and of all after the first."""
    minutes: dict[int, list[Second]] = {}
    for each in seconds:
        minutes.setdefault((each.second - 1) // 60, []).append(each)
    rows = []
    begin = flow.due.min()
    for minute, listed in minutes.items():
        of_minute = (flow.due >= begin + 60 * minute) & (flow.due < begin + 60 * minute + 60)
        last = listed[-1]
        rows.append([
            minute + 1, *np.percentile(flow.gold[of_minute], [50, 99, 100]).tolist(),
            float(np.median(flow.silver[of_minute])), max(each.lag_records for each in listed),
            last.driver_mebibytes, last.jvm_mebibytes, sum(last.files.values()), max(last.files.values()),
            sum(each.cpu_seconds for each in listed) / (rate * len(listed)) * 1000,
        ])  # fmt: skip
    print_table(
        ["minute", "gold p50 s", "p99 s", "max s", "silver p50 s", "lag, records", "driver MiB", "JVM MiB", "files",
         "of one table", "CPU s per 1,000 records"], rows,
    )  # fmt: skip
    for what, chosen in (("all", flow.due >= begin), ("after the first minute", flow.due >= begin + 60)):
        if chosen.any():
            p50, p99, most = np.percentile(flow.gold[chosen], [50, 99, 100])
            typer.echo(f"{what}: event to gold p50 {p50:.2f} s, p99 {p99:.2f} s, max {most:.2f} s")


def show_beside(flow: Flow, began: float, ended: float, days: int) -> None:
    """Prints how long a backfill took, and how long records took meanwhile."""
    meanwhile = (flow.due >= began) & (flow.due < ended)
    p50, p99, most = np.percentile(flow.gold[meanwhile], [50, 99, 100])
    typer.echo(
        f"a backfill of {days} days took {ended - began:.1f} s; meanwhile: event to gold p50 {p50:.2f} s, "
        f"p99 {p99:.2f} s, max {most:.2f} s"
    )


def show_steps(lake: Lake, start: float) -> None:
    """Prints how often each table was committed during the flow, how long its rows took, and how many they were."""
    rows: list[list[object]] = []
    for name in lake.tables():
        of_flow = [
            each for each in lake.commits(name) if each.timestamp_ms >= start * 1000 and each.seconds is not None
        ]
        if of_flow:
            seconds = median(each.seconds or 0 for each in of_flow)
            rows.append([name, len(of_flow), seconds, median(each.entry.rows.total for each in of_flow)])
    print_table(["table", "commits", "median s", "median rows"], rows)


if __name__ == "__main__":
    typer.run(main)
