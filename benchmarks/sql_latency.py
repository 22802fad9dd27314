"""What the Postgres protocol costs: ten queries by `sluice serve sql`, and by DuckDB in this process on the same files.

Each is asked of the server twice: as it was asked before, and with a text that it has not seen. What the client itself
takes is measured by a server that has one answer ready.

python -m benchmarks.sql_latency --rows 300000
"""

import argparse
import itertools
import multiprocessing
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import duckdb
import psycopg2
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from sluice.operate.postgres import Options, Server, wire
from sluice.operate.postgres.server import status
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

carriers, airports = [f"C{n}" for n in range(16)], [f"A{n:02}" for n in range(105)]
first = datetime(2013, 1, 1, tzinfo=UTC)
queries = {
    "all rows counted": "SELECT count(*) FROM silver.departures",
    "groups of all rows": "SELECT carrier, count(*), avg(delay) FROM silver.departures GROUP BY carrier ORDER BY 1",
    "groups by month": "SELECT date_trunc('month', scheduled_at), sum(miles) FROM silver.departures GROUP BY ALL",
    "the ten worst": "SELECT destination, avg(delay) d FROM silver.departures GROUP BY ALL ORDER BY d DESC LIMIT 10",
    "values of a filter": "SELECT DISTINCT origin FROM gold.delays_hourly ORDER BY 1",
    "a day of a chart": "SELECT * FROM gold.delays_hourly WHERE window_start BETWEEN '2013-03-04' AND '2013-03-05'",
    "a line by day": "SELECT date_trunc('day', window_start), sum(flights) FROM gold.delays_hourly GROUP BY 1",
    "a page of a table": "SELECT * FROM silver.departures ORDER BY scheduled_at DESC, flight LIMIT 100",
    "5,000 wide rows": "SELECT * FROM silver.departures LIMIT 5000",
    "20,000 narrow rows": "SELECT window_start, origin, flights, delay_avg FROM gold.delays_hourly LIMIT 20000",
}


def fill(lake: Lake, rows: int) -> None:
    """Departures, and delays by airport and hour, as the flights have them; each table in a few files."""
    chance = random.Random(1)  # noqa: S311 - the same rows at each run
    departures = pa.table(
        {
            "flight": pa.array(range(rows), pa.int32()),
            "carrier": [chance.choice(carriers) for _ in range(rows)],
            "origin": [chance.choice(airports[:3]) for _ in range(rows)],
            "destination": [chance.choice(airports) for _ in range(rows)],
            "tail_number": [f"N{chance.randrange(4000):05}" for _ in range(rows)],
            "scheduled_at": [first + timedelta(seconds=31_536_000 * n // rows) for n in range(rows)],
            "departed_at": [first + timedelta(seconds=31_536_000 * n // rows + 60 * (n % 50)) for n in range(rows)],
            "is_cancelled": [chance.random() < 0.02 for _ in range(rows)],
            "delay": [None if chance.random() < 0.02 else round(chance.gauss(9, 30), 2) for _ in range(rows)],
            "miles": pa.array([chance.randrange(90, 5000) for _ in range(rows)], pa.int64()),
        }
    )
    hours = [(first + timedelta(hours=hour), airport) for hour in range(8760) for airport in airports[:3]]
    delays = pa.table(
        {
            "window_start": [hour for hour, _ in hours],
            "window_end": [hour + timedelta(hours=1) for hour, _ in hours],
            "origin": [airport for _, airport in hours],
            "flights": pa.array([chance.randrange(40) for _ in hours], pa.int64()),
            "delay_avg": [chance.gauss(9, 30) for _ in hours],
            "delay_max": [chance.gauss(90, 30) for _ in hours],
            "_state": ["complete" for _ in hours],
        }
    )
    for name, table in {"silver.departures": departures, "gold.delays_hourly": delays}.items():
        for part in range(4):
            size = -(-table.num_rows // 4)
            write_deltalake(lake.path(name), table.slice(part * size, size), mode="append")


def served(folder: str, ready: "Connection") -> None:
    server = Server(Lake(folder), Options(port=0))
    ready.send(server.port)
    server.serve()


def answering_at_once(ready: "Connection") -> None:
    """A server that does nothing: whatever it is asked, the answer is one row that was made before."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready.send(listener.getsockname()[1])
    client, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.recv(65536)
    idle = wire.message("Z", b"I")
    client.sendall(
        wire.message("R", bytes(4)) + status("client_encoding", "UTF8") + status("DateStyle", "ISO, MDY") + idle
    )
    columns = wire.row_description([wire.Column("n", 23, 4)], [0])
    answer = columns + wire.data_row([b"1"]) + wire.message("C", b"SELECT 1\0") + idle
    with suppress(ConnectionError):
        while client.recv(65536):
            client.sendall(answer)


def started(serve: Callable[..., None], *given: str) -> "psycopg2.extensions.cursor":
    """A client of a server in a process of its own, as its users have it."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=serve, args=(*given, there), daemon=True).start()
    client = psycopg2.connect(
        host="127.0.0.1", port=here.recv(), user="me", dbname="lake", sslmode="disable", gssencmode="disable"
    )
    client.autocommit = True
    return client.cursor()


def answered(cursor: "psycopg2.extensions.cursor", sql: str) -> list[tuple[Any, ...]]:
    cursor.execute(sql)
    return cursor.fetchall()


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Runs each query by both in turn, and prints the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--times", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(folder)
        fill(lake, options.rows)
        cursor, plain = started(served, folder), floor(lake)
        at_once = started(answering_at_once)
        ratios = []
        for name, sql in queries.items():
            new = (sql.replace(" ", " " * count, 1) for count in itertools.count(2))
            by_each: dict[str, Callable[[], object]] = {
                "floor": lambda sql=sql: plain.execute(sql).fetchall(),  # type: ignore[misc]
                "again": partial(answered, cursor, sql),
                "new": lambda new=new: answered(cursor, next(new)),  # type: ignore[misc]
                "trip": partial(answered, at_once, "SELECT 1"),
            }
            answered(cursor, sql)
            took: dict[str, list[float]] = {who: [] for who in by_each}
            for _ in range(options.times):
                for who, run in by_each.items():
                    took[who].append(seconds_of(run))
            by = {who: median(each) * 1000 for who, each in took.items()}
            ratios.append((by["again"] / by["floor"], by["new"] / by["floor"]))
            sys.stdout.write(
                f"{name:20} again {by['again']:7.2f} ms  new {by['new']:7.2f} ms  DuckDB {by['floor']:7.2f} ms  "
                f"ratios {ratios[-1][0]:5.2f} {ratios[-1][1]:5.2f}  round trip {by['trip']:5.2f} ms\n"
            )
        met = [sum(ratio <= 1.5 for ratio in each) for each in zip(*ratios, strict=True)]
        sys.stdout.write(f"at most 1.5 times as long: {met[0]} of {len(ratios)} again, {met[1]} new\n")


def floor(lake: Lake) -> duckdb.DuckDBPyConnection:
    """DuckDB that reads the files of the tables, and knows nothing of Delta."""
    found = duckdb.connect()
    found.execute("SET TimeZone = 'UTC'")
    for name in ("silver.departures", "gold.delays_hourly"):
        files = DeltaTable(lake.path(name)).file_uris()
        layer, table = name.split(".")
        found.execute(f"CREATE SCHEMA {layer}")
        found.execute(f"CREATE VIEW {layer}.{table} AS SELECT * FROM read_parquet({files!r})")
    return found


if __name__ == "__main__":
    main()
