"""The project that `sluice init` writes: its commands as a user types them, and its tables as they are compared."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sluice import scaffold
from sluice.log import Log, Record
from sluice.operate.query import connection
from sluice.storage.delta import Lake

tables = {
    "bronze.orders": '"partition", "offset", value',
    "silver.orders": "order_id, placed_at, quantity, _partition, _offset",
    "silver._fates": 'dataset, topic, "partition", "offset", fate, reason, detail',
    "silver.products": "product_id, price_euro, valid_from, valid_to, is_current",
    "silver.priced_orders": "order_id, product.price_euro",
    "gold.revenue_daily": "product, window_start, orders, revenue_euro",
}


def content(lake: Lake, *names: str) -> dict[str, list[str]]:
    """The rows of these tables, or of all, in a total order."""
    chosen = names or tuple(tables)
    with connection(lake, versions=dict.fromkeys(chosen)) as found:
        return {
            table: sorted(map(repr, found.execute(f"SELECT {tables[table]} FROM {table}").fetchall()))
            for table in chosen
        }


class Project:
    """A scaffolded project with its sample records in its log, made by the commands that a user types."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = environment or {}
        scaffold.write(folder)
        self.log, self.lake = Log(folder / ".sluice" / "log"), Lake(str(folder / ".sluice" / "lake"))
        for topic in ("products", "orders"):
            self.log.append(topic, [Record(line) for line in (folder / f"{topic}.jsonl").read_bytes().splitlines()])

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sluice.cli", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, **self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sluice(self, *arguments: str, **environment: str) -> str:
        """Runs a command to its end; returns what it prints."""
        running = self.start(*arguments, **environment)
        out, err = running.communicate()
        assert running.returncode == 0, err
        return out
