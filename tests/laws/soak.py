"""Random lakehouses for as long as wanted: `make soak MINUTES=60`, or `make soak SEEDS="1 2 3"`."""

import argparse
import random
import sys
import time
from collections.abc import Iterator

from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from tests.laws.findings import Trial, report
from tests.laws.lakehouses import world
from tests.laws.lives import Counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--cases", type=int, default=100, help="how many in each world")
    parser.add_argument("--singles", type=int, default=8, help="how many records come one at a time at the end")
    parser.add_argument("--tries", type=int, default=30, help="how often a failure is tried with fewer records")
    wanted = parser.parse_args()
    counts, failed = Counts(), []
    settings = Settings(spark="local[2]", driver_memory="2g", java_options="-XX:ReservedCodeCacheSize=512m")
    with spark_session(settings) as spark:
        for seed in seeds_of(wanted.seeds, time.monotonic() + 60 * wanted.minutes):
            trial = Trial(spark, world(seed), range(wanted.cases), wanted.singles, counts)
            found = trial.findings()
            print(f"{seed}: {'FAILED' if found else 'passed'}  {summary(counts)}", flush=True)
            if found:
                failed.append(seed)
                print(report(trial, found, wanted.tries), flush=True)
    print(f"{summary(counts)}, {len(failed)} failed{': ' if failed else ''}{' '.join(map(str, failed))}")
    return 1 if failed else 0


def seeds_of(wanted: list[int], end: float) -> Iterator[int]:
    """The seeds that are asked for, or new ones until the time is over."""
    yield from wanted
    chance = random.SystemRandom()
    while not wanted and time.monotonic() < end:
        yield chance.randrange(2**32)


def summary(counts: Counts) -> str:
    return (
        f"{counts.worlds} seeds, {counts.cases:,} cases, {counts.batches:,} batches, {counts.refreshes:,} refreshes, "
        f"{counts.narrow:,} of them by a scope of one to three rows"
    )


if __name__ == "__main__":
    sys.exit(main())
