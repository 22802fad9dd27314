"""What it costs to append and to land the same records from Kafka and from the embedded log, in one warm driver.

    python -m benchmarks.landing --records 1000000

A broker runs on loopback for it (`python -m infra.servers install kafka`).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from infra.servers import Kafka, running
from sluice import bronze
from sluice.engine.land import land
from sluice.log import AnyLog, KafkaLog, KafkaSecurity, Log, Record
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

times = 3


def main() -> None:
    """Appends once to each log and lands it several times, in turn; prints records a second and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder, running(Kafka(Path(folder, "kafka"))) as kafka:
        logs: dict[str, AnyLog] = {
            "files": Log(Path(folder, "log")),
            "files, compressed": Log(Path(folder, "compressed"), compress=True),
            "Kafka": KafkaLog(kafka.server.address, KafkaSecurity()),
        }
        appended = {name: seconds_of_append(log, options.records) for name, log in logs.items()}
        landed: dict[str, list[float]] = {name: [] for name in logs}
        with spark_session(Settings(log=str(logs["Kafka"]))) as spark:
            # The first round warms the driver up.
            for turn in range(times + 1):
                for name, log in logs.items():
                    lake, start = Lake(f"{folder}/lake-{turn}-{name[:3]}-{len(name)}"), time.perf_counter()
                    count = land(spark, lake, log, bronze.topic("sales"), records_max=10 * options.records)
                    if count != options.records:
                        raise SystemExit(f"{name}: {count} records landed instead of {options.records}")
                    if turn:
                        landed[name].append(time.perf_counter() - start)
    table = Table("log", "append: records/s", "ratio", "land: records/s", "ratio")
    for name in logs:
        seconds = median(landed[name])
        table.add_row(
            name,
            f"{options.records / appended[name]:,.0f}",
            f"{appended[name] / appended['files']:.2f}",
            f"{options.records / seconds:,.0f}",
            f"{seconds / median(landed['files']):.2f}",
        )
    Console().print(table)


def seconds_of_append(log: AnyLog, count: int) -> float:
    start = time.perf_counter()
    log.append("sales", sales(count))
    return time.perf_counter() - start


def sales(count: int) -> Iterator[Record]:
    for number in range(count):
        value = {
            "sale_id": number,
            "product": f"p{number % 1000}",
            "pieces": number % 7,
            "price_euro": number % 100 / 4,
        }
        yield Record(json.dumps(value).encode(), key=f"p{number % 1000}")


if __name__ == "__main__":
    main()
