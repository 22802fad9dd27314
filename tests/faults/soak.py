"""Lakehouses under faults for as long as wanted: `make soak-faults MINUTES=60`, or `make soak-faults SEEDS="1 2"`."""

import argparse
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from tests.faults.rounds import Life, lived, runnings, small_disk, writings

page = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
rounds_a_life = 12
row = re.compile(r"^\| (.+?) \| ([\d,]+) \|$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    wanted = parser.parse_args()
    end, tried, failed = time.monotonic() + 60 * wanted.minutes, Counter[str](), []
    seeds = iter(wanted.seeds or iter(lambda: random.SystemRandom().randrange(2**32), None))
    settings = Settings(spark="local[2]", driver_memory="2g", java_options="-XX:ReservedCodeCacheSize=512m")
    with spark_session(settings) as spark:
        for seed in seeds:
            if not wanted.seeds and time.monotonic() > end:
                break
            with tempfile.TemporaryDirectory() as outer, small_disk(Path(outer)) as folder:
                life = Life(spark, folder, seed)
                try:
                    for said in lived(life, rounds_a_life):
                        print(f"{seed}: {said}", flush=True)
                except Exception:
                    failed.append(seed)
                    print(f"{seed}: FAILED\n{traceback.format_exc()}", flush=True)
                tried += life.tried
    if not failed:
        page.write_text(with_counts(page.read_text(), tried))
    print(f"{sum(tried.values()):,} faults, {len(failed)} lives failed{': ' if failed else ''}{failed or ''}")
    return 1 if failed else 0


def with_counts(text: str, tried: Counter[str]) -> str:
    """The page, with what was tried now added to its table."""
    before = {name: int(count.replace(",", "")) for name, count in row.findall(text)}
    lines = [f"| {name} | {before.get(name, 0) + tried[name]:,} |" for name in (*writings, *runnings)]
    head, _, _ = text.partition("| Fault | Rounds |")
    return head + "\n".join(["| Fault | Rounds |", "|---|---:|", *lines]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
