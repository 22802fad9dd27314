"""A steady flow (W5): new facts come all the time, and each peer brings in what has come, again and again.

Run by `python -m benchmarks.peers.steady --facts 80000 --rate 1000 --minutes 2`. Each peer has a process of its own and
a copy of the base, and they run one after the other. When it has the base, another process appends facts of today ten
times a second, whatever the peer does. The peer does one refresh after the other; a fact has reached gold when the
first refresh ends that began after it was appended. Latency is from when a fact was due, so one that is appended late
counts as late. CPU is that of the peer and all below it. The first quarter of the flow warms up, and does not count.
The tables are proved equal at the end.
"""

import importlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks import proportion
from benchmarks.peers.__main__ import ours, peers
from benchmarks.peers.measure import used
from benchmarks.peers.shared import rows_wrong, versions
from benchmarks.proportion import log_of, sale
from benchmarks.steady import appends_per_second, paced
from sluice.cli.printing import print_table
from sluice.log import Log

warm_share = 0.25
# A peer that has not made up by then never will.
follow_seconds_max = 60.0
ready, ended = "ready", "ended"


@dataclass(frozen=True)
class Appended:
    """The facts from number `first` on, before number `until`, were in the log at this time."""

    first: int
    until: int
    at: float


@dataclass(frozen=True)
class Refreshed:
    """A refresh, when it began and ended, and the CPU-seconds of the peer until then."""

    began: float
    ended: float
    cpu_seconds: float


@dataclass(frozen=True)
class Found:
    """What a flow showed; a fact that never reached gold in time has no latency."""

    latencies: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    lacking: int
    refreshes: int
    cpu_seconds_per_1000: float


def produce(log: Log, rate: int, seconds: float, seed: int) -> tuple[float, list[Appended]]:
    """Appends facts of today as they are due; the time of the first, and when each was in the log."""
    chance = random.Random(seed)  # noqa: S311 - drawn data, the same for each peer
    appended, start = [], time.time()
    for done, due in paced(round(rate * seconds), rate, start):
        log.append("sales", [sale(chance, proportion.seconds + number / rate) for number in range(done, due)])
        appended.append(Appended(done, due, time.time()))
    return start, appended


def follow(peer: str, folder: Path) -> list[Refreshed]:
    """Loads the base, which is the first refresh, and refreshes until the flow has ended and all of it is there."""
    found = []
    with importlib.import_module(f"benchmarks.peers.{peer}").driver(folder / "log", folder / "lake") as refresh:
        end = float("inf")
        while True:
            began = time.time()
            refresh()
            found.append(Refreshed(began, time.time(), used(os.getpid())[1]))
            (folder / ready).touch()
            if (folder / ended).exists():
                end = min(end, (folder / ended).stat().st_mtime)
                if began > end:
                    return found
            if time.time() - began < 1 / appends_per_second:
                # Nothing was new.
                time.sleep(1 / appends_per_second)


def measured(start: float, appended: Sequence[Appended], refreshed: Sequence[Refreshed], rate: int) -> Found:
    """How long each fact took to gold, from when it was due, and what the refreshes meanwhile cost."""
    latencies, lacking = [], 0
    counted = [each for each in appended if each.first >= appended[-1].until * warm_share]
    last = appended[-1].at + follow_seconds_max
    for each in counted:
        reached = next((one.ended for one in refreshed if one.began >= each.at and one.ended <= last), None)
        if reached is None:
            lacking += each.until - each.first
        else:
            latencies.append(reached - start - np.arange(each.first, each.until) / rate)
    *_, before = [each for each in refreshed if each.ended <= counted[0].at]
    beside = [each for each in refreshed if each.ended > counted[0].at]
    cpu_seconds = beside[-1].cpu_seconds - before.cpu_seconds
    facts = appended[-1].until - counted[0].first
    return Found(np.concatenate([*latencies, np.empty(0)]), lacking, len(beside), cpu_seconds / facts * 1_000)


def flow_of(peer: str, folder: Path, rate: int, seconds: float, seed: int) -> Found:
    """The flow through a peer."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        following = process.submit(follow, peer, folder)
        while not (folder / ready).exists():
            if following.done():
                following.result()
            time.sleep(0.1)
        start, appended = produce(Log(folder / "log"), rate, seconds, seed)
        (folder / ended).touch()
        return measured(start, appended, following.result(), rate)


def main(
    facts: Annotated[int, typer.Option(help="The facts of the base.")] = 80_000,
    rate: Annotated[int, typer.Option(help="New facts a second.")] = 1_000,
    minutes: Annotated[float, typer.Option(help="For how long.")] = 2.0,
    peer: Annotated[list[str] | None, typer.Option(help=f"Only these, beside Sluice: {', '.join(peers)}.")] = None,
) -> None:
    """Compares, and prints a table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = log_of(facts, folder / "base").root
        for each in [each for each in peers if each == ours or not peer or each in peer]:
            shutil.copytree(base, folder / each / "log")
            found = flow_of(each, folder / each, rate, minutes * 60, facts)
            mine, theirs = folder / ours / "lake", folder / each / "lake"
            wrong = rows_wrong(mine, versions(mine), theirs, versions(theirs))
            quantiles = np.percentile(found.latencies, [50, 99, 100]) if found.latencies.size else [np.nan] * 3
            rows.append([
                peers[each], *[round(float(latency), 1) for latency in quantiles], found.lacking, found.refreshes,
                round(found.cpu_seconds_per_1000, 2), sum(wrong.values()),
            ])  # fmt: skip
    print_table(
        ["steady flow", "p50 s", "p99 s", "max s", "facts not there after a minute", "refreshes",
         "CPU s per 1,000 facts", "rows wrong"], rows,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
