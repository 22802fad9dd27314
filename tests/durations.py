"""The longest files run first, so that the workers of a run end together; a run keeps the durations when asked to."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

# Seconds by file.
kept = Path(__file__).with_suffix(".json")


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts the tests by the duration of their file; a file of unknown duration comes in the middle."""
    known = read()
    middle = median(known.values()) if known else 0.0
    items.sort(key=lambda item: known.get(file_of(item.nodeid), middle), reverse=True)


class Keeper:
    """Adds up the seconds of each file, and keeps them when the run is green."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            found = read() | {file: round(seconds, 1) for file, seconds in self.seconds.items()}
            kept.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


def read() -> dict[str, float]:
    return dict(json.loads(kept.read_text())) if kept.exists() else {}


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
