"""The order of a pass: each node as soon as what it is made from is done, and nothing else is waited for."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sluice.engine.catalogue import Node, ordered, sources_of
from sluice.engine.runner import Event, Runner
from sluice.log import Log
from sluice.storage.delta import Lake
from tests.shop import priced, sales
from tests.waiting import patience_seconds

Step = Callable[[Node], None]


class Paced(Runner):
    """A runner whose nodes do what a test says, instead of being computed."""

    does: Step

    def step(self, node: Node, *, rebuild: bool) -> Event:
        self.does(node)
        return Event("done", node.name)


def paced(folder: Path, parallel: int, does: Step) -> Runner:
    catalogue = ordered([priced])
    found = Paced(cast(Any, None), Lake(str(folder / "lake")), Log(folder / "log"), catalogue, 1_000, parallel)
    object.__setattr__(found, "does", does)
    return found


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_each_node_comes_once_and_after_all_that_it_is_made_from(tmp_path: Path, parallel: int) -> None:
    done: list[str] = []

    def does(node: Node) -> None:
        assert {each.name for each in sources_of(node)} <= set(done)
        done.append(node.name)

    events = paced(tmp_path, parallel, does).one_pass()
    assert [event.name for event in events] == [node.name for node in ordered([priced]).nodes]
    assert sorted(done) == sorted(event.name for event in events)


def test_a_slow_topic_holds_up_only_what_is_made_from_it(tmp_path: Path) -> None:
    """A barrier between levels would keep `silver.sales` from being computed before `bronze.prices` has landed."""
    is_refreshed = threading.Event()

    def does(node: Node) -> None:
        if node.name == "bronze.prices":
            assert is_refreshed.wait(patience_seconds)
        if node.name == sales.name:
            is_refreshed.set()

    paced(tmp_path, 2, does).one_pass()
    assert is_refreshed.is_set()


def test_after_an_error_nothing_further_down_begins(tmp_path: Path) -> None:
    begun: list[str] = []

    def does(node: Node) -> None:
        begun.append(node.name)
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        paced(tmp_path, 1, does).one_pass()
    assert set(begun) <= {"bronze.sales", "bronze.prices"}
