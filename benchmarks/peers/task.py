"""A task of a scheduler (W6): a process starts, brings in one small change, and ends, as Airflow and cron have it.

Run by `python -m benchmarks.peers.task --facts 80000`. Sluice's task is `sluice run`: cold, and with the JVM that the
task before left waiting. A peer's is a script that does one refresh. The tables are proved equal at the end. CPU is
that of each process and of all that it started, a JVM that waits included.
"""

import importlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks import proportion
from benchmarks.peers.__main__ import peers
from benchmarks.peers.shared import rows_wrong, versions
from benchmarks.proportion import log_of
from benchmarks.whole_run import process_cpu_seconds
from sluice.cli.printing import print_table
from sluice.log import Log

root = Path(__file__).parents[2]
change = proportion.changes["10 facts scattered over the year"]
source = Path(proportion.__file__).read_text()
declared = "from sluice import bronze, gold, silver\n" + source[source.index("sales = ") : source.index("def record(")]
scripts = [each for each in peers if each != "sluice_itself"]
task_rounds = 3
kept_minutes = "5"


@dataclass(frozen=True)
class Task:
    """One process: its command, and its variables for the log and the lake."""

    command: list[str]
    environment: dict[str, str]
    here: Path

    def run(self) -> tuple[float, float]:
        """The seconds that it takes, and its CPU-seconds."""
        start, before = time.monotonic(), self.cpu_seconds()
        subprocess.run(self.command, cwd=self.here, env=os.environ | self.environment, check=True, capture_output=True)
        return time.monotonic() - start, self.cpu_seconds() - before

    def cpu_seconds(self) -> float:
        """CPU of all processes that have ended, and of the JVM that waits for the next of these tasks."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        lake = f"SLUICE_LAKE={self.environment['SLUICE_LAKE']}".encode()
        waiting = 0.0
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if lake in environ.read_bytes().split(b"\0"):
                    waiting += process_cpu_seconds(int(environ.parent.name))
        return ended.ru_utime + ended.ru_stime + waiting


def task_of(peer: str, folder: Path, *, keep: str = "0") -> Task:
    """The task of a peer over `folder/log` and `folder/lake`."""
    log, lake = str(folder / "log"), str(folder / "lake")
    environment = {"SLUICE_LOG": log, "SLUICE_LAKE": lake, "SLUICE_KEEP_SPARK_MINUTES": keep, "PYTHONPATH": str(root)}
    if peer != "sluice_itself":
        return Task([sys.executable, "-m", "benchmarks.peers.task", "--only", peer], environment, root)
    (folder / "pipelines").mkdir(exist_ok=True)
    (folder / "pipelines/__init__.py").touch()
    (folder / "pipelines/sales.py").write_text(declared)
    return Task([str(Path(sys.executable).parent / "sluice"), "run", "--json"], environment, folder)


def costs_of(task: Task, grow: Callable[[], None]) -> tuple[float, float]:
    """The medians of what a few of the tasks cost, each with a change of its own."""
    found = []
    for _ in range(task_rounds):
        grow()
        found.append(task.run())
    return median(wall for wall, _ in found), median(cpu for _, cpu in found)


def main(
    facts: Annotated[int, typer.Option(help="The facts of the base.")] = 80_000,
    only: Annotated[str | None, typer.Option(help="Be the task of this peer, over SLUICE_LOG and SLUICE_LAKE.")] = None,
) -> None:
    """Compares, and prints a table."""
    if only is not None:
        with importlib.import_module(f"benchmarks.peers.{only}").driver(
            Path(os.environ["SLUICE_LOG"]), Path(os.environ["SLUICE_LAKE"])
        ) as refresh:
            refresh()
        return
    rows: list[tuple[str, float, float, int | str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = log_of(facts, folder / "base").root
        for peer in ["sluice_itself", *scripts]:
            shutil.copytree(base, folder / peer / "log")
            log, chance = Log(folder / peer / "log"), random.Random(facts)  # noqa: S311 - drawn data

            def grow(log: Log = log, chance: random.Random = chance) -> None:
                log.append(*change(chance))

            task = task_of(peer, folder / peer)
            task.run()
            wall, cpu = costs_of(task, grow)
            if peer == "sluice_itself":
                rows.append((f"{peers[peer]}, cold", wall, cpu, ""))
                # The first one leaves its JVM to the others.
                kept = task_of(peer, folder / peer, keep=kept_minutes)
                grow()
                kept.run()
                rows.append((f"{peers[peer]}, with the JVM of the task before", *costs_of(kept, grow), ""))
            else:
                for _ in range(task_rounds + 1):
                    # As many changes as Sluice has had.
                    grow()
                task.run()
                mine, theirs = folder / "sluice_itself/lake", folder / peer / "lake"
                wrong = rows_wrong(mine, versions(mine), theirs, versions(theirs))
                rows.append((peers[peer], wall, cpu, sum(wrong.values())))
    print_table(
        ["task", "wall s", "CPU s", "rows wrong"],
        [[named, round(wall, 1), round(cpu, 1), wrong] for named, wall, cpu, wrong in rows],
    )


if __name__ == "__main__":
    typer.run(main)
