"""The order of the tests and who runs them, so that workers end together; a run keeps the durations when asked to."""

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests import tiers

# The workers that have the tests with the run's session.
with_session = ("gw0", "gw1")
# Seconds by file.
kept = Path(__file__).with_suffix(".json")


def sort(items: list[pytest.Item]) -> None:
    """Those with the run's session first, the longest file at the beginning; then the others, the longest at the end.

    Those that share a server with them are with them: else two workers would start it.
    """
    seconds = seconds_of(file_of(item.nodeid) for item in items)
    shared = {server for item in items if has_session(item) for server in servers_of(item)}

    def place(item: pytest.Item) -> tuple[bool, float]:
        length = seconds[file_of(item.nodeid)]
        return (False, -length) if has_session(item) or shared & servers_of(item) else (True, length)

    items.sort(key=place)


def servers_of(item: pytest.Item) -> set[tuple[str, str]]:
    """The servers of its file that a test asks for, itself or through others."""
    asked = tiers.fixtures["servers"] & set(getattr(item, "fixturenames", ()))
    return {(file_of(item.nodeid), name) for name in asked}


def has_session(item: pytest.Item) -> bool:
    """Whether a test asks for the run's session of Spark; a parameter can have that name, too."""
    parameters = item.callspec.params if hasattr(item, "callspec") else ()
    return "spark" in getattr(item, "fixturenames", ()) and "spark" not in parameters


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]
    """Two workers (`with_session`) take files from the beginning, with the run's session; the others from the end.

    Of a file that has tests of both kinds, each kind is given out by itself. The others end when tests with the session
    are all that is left: two sessions keep two cores busy, and a third would first have to get warm.
    """

    def schedule(self) -> None:
        in_order = next(iter(self.registered_collections.values()))
        parts = [(file, list(nodeids)) for file, nodeids in groupby(in_order, file_of)]
        self.part_of = {nodeid: str(number) for number, (_, nodeids) in enumerate(parts) for nodeid in nodeids}
        self.last_with_session = turning_point([file for file, _ in parts])
        super().schedule()

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self.is_done(node):
            node.shutdown()
        super()._reschedule(node)

    def is_done(self, node: WorkerController) -> bool:
        """Whether what is left is for others, and they are there."""
        if is_with_session(node) or not any(map(is_with_session, self.nodes)):
            return False
        return int(next(reversed(self.workqueue))) <= self.last_with_session

    def _split_scope(self, nodeid: str) -> str:
        return self.part_of[nodeid]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not is_with_session(node):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def is_with_session(node: WorkerController) -> bool:
    return node.gateway.id in with_session


def turning_point(files: list[str]) -> int:
    """The last of the files with the run's session: up to there each is as long as the next or longer (`sort`)."""
    seconds = seconds_of(files)
    steps = enumerate(pairwise(seconds[file] for file in files))
    return next((number for number, (one, other) in steps if other > one), len(files) - 1)


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


def seconds_of(files: Iterable[str]) -> dict[str, float]:
    """How long each file takes; one that is not known is in the middle."""
    known = read()
    middle = median(known.values()) if known else 0.0
    return {file: known.get(file, middle) for file in files}


def read() -> dict[str, float]:
    return dict(json.loads(kept.read_text())) if kept.exists() else {}


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
