"""How long readers of the console wait: each page and chart the first time and later, and why a figure is what it is.

python -m benchmarks.console_latency --months 2

With `--lake` and `--log` it measures a demo that is there already.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

from infra.sources import nycflights
from sluice.log import Log

table = "gold.delays_hourly"
pages = {
    "the first page": "/",
    "a table's page": f"/tables/{table}",
    "its chart, three lines by hour": f"/api/tables/{table}/chart?measure=flights",
    "one line of it": f"/api/tables/{table}/chart?measure=flights&origin=JFK",
    "a page of its rows": f"/api/tables/{table}/rows",
    "a heat map": "/api/tables/gold.delays_by_weather/chart?measure=flights",
    "a page of silver's rows": "/api/tables/silver.departures/rows",
    "the flow's page": "/flow",
    "the flow itself": "/api/flow",
    "a dashboard's query": "/api/dashboards/flights/4",
}


def main() -> None:
    """Starts a console, asks for everything once and then again and again, and prints milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--months", type=int, default=2)
    parser.add_argument("--times", type=int, default=11)
    parser.add_argument("--lake")
    parser.add_argument("--log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake, log = options.lake or f"{folder}/lake", options.log or f"{folder}/log"
        os.environ |= {"SLUICE_LAKE": lake, "SLUICE_LOG": log}
        if options.lake is None:
            nycflights.publish(Log(Path(log)), options.months)
            subprocess.run([sys.executable, "-m", "sluice.cli", "run"], check=True)
        began = time.perf_counter()
        with console() as address:
            show("the start, until it listens", time.perf_counter() - began)
            for name, path in pages.items():
                show(name, *(seconds(f"{address}{path}") for _ in range(1 + options.times)))
            key = urlencode({"key": json.dumps(first_key(address))})
            for name, of, times in (("every value of a row", "why", options.times), ("its records", "records", 3)):
                show(name, *(seconds(f"{address}/api/tables/{table}/{of}?{key}") for _ in range(1 + times)))


def show(name: str, first: float, *later: float) -> None:
    after = f"{median(later) * 1000:10,.0f} ms later" if later else ""
    sys.stdout.write(f"{name:46} {first * 1000:10,.0f} ms{after}\n")
    sys.stdout.flush()


def seconds(url: str) -> float:
    start = time.perf_counter()
    with urllib.request.urlopen(url, timeout=300) as answer:  # noqa: S310 - the console's own address
        answer.read()
    return time.perf_counter() - start


def first_key(address: str) -> dict[str, str]:
    """What tells the first row of the table apart."""
    with urllib.request.urlopen(f"{address}/api/tables/{table}/rows") as answer:  # noqa: S310
        found = json.load(answer)
    row = dict(zip((each["name"] for each in found["columns"]), found["rows"][0], strict=True))
    return {name: row[name] for name in found["grain"]}


@contextmanager
def console() -> Iterator[str]:
    """The console in a process of its own, as its users have it, and its address."""
    command = [sys.executable, "-m", "sluice.cli", "ui", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            line = next(line for line in process.stdout or () if "http://" in line)
            yield next(word for word in line.split() if word.startswith("http://"))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
