"""Sluice, with the datasets that `benchmarks.proportion` declares."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers.shared import Refresh
from benchmarks.proportion import revenue
from sluice.engine.catalogue import ordered
from sluice.engine.runner import Runner
from sluice.log import Log
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake


@contextmanager
def driver(log: Path, lake: Path) -> Iterator[Refresh]:
    with spark_session(Settings()) as spark:
        runner = Runner(spark, Lake(str(lake)), Log(log), ordered([revenue]), batch_records_max=10_000_000)

        def refresh() -> None:
            runner.until_caught_up()
            for error in runner.blocks.errors.values():
                raise error

        yield refresh
