"""What a refresh of a peer costs: the clock, and CPU and bytes read of its process and of all below it."""

import importlib
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.shared import changes, full_load, versions
from sluice.log import Log

rounds = 3
# What reads files by mapping them into memory, so that the bytes it asks for say nothing.
mapping = {"polars_from_nothing"}


@dataclass
class Run:
    """What one refresh cost, and the versions that it left."""

    workload: str
    round: int
    wall_seconds: float
    cpu_seconds: float
    megabytes_read: float | None
    versions: dict[str, int]
    rows_wrong: dict[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        return self.workload == full_load or self.round == rounds


def used(root: int) -> tuple[float, float, float]:
    """The clock, and the CPU-seconds and megabytes read of a process and all below it, those that ended included."""
    parents, ticks = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        pid = int(status.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {root}
    while below := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= below
    asked = [int(Path(f"/proc/{pid}/io").read_text().split("rchar: ")[1].split()[0]) for pid in tree]
    return time.monotonic(), sum(ticks[pid] for pid in tree) / os.sysconf("SC_CLK_TCK"), sum(asked) / 1e6


def measured(peer: str, folder: Path, facts: int) -> list[Run]:
    """What loading a log and each change of it costs a peer."""
    log, lake, chance, runs = Log(folder / "log"), folder / "lake", random.Random(facts + 1), []  # noqa: S311 - drawn data
    with importlib.import_module(f"benchmarks.peers.{peer}").driver(log.root, lake) as refresh:

        def run(workload: str, number: int) -> None:
            before = used(os.getpid())
            refresh()
            wall, cpu, read = (now - then for now, then in zip(used(os.getpid()), before, strict=True))
            runs.append(Run(workload, number, wall, cpu, None if peer in mapping else read, versions(lake)))

        run(full_load, 1)
        for number in range(1, rounds + 1):
            for workload, change in changes.items():
                log.append(*change(chance, log))
                run(workload, number)
    return runs
