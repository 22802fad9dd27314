"""Server-sent events: a client that connects again with its last id gets each change once."""

import json
from pathlib import Path

import pytest

from sluice.errors import UsageError
from sluice.operate.events import heartbeat, server_sent, since
from sluice.operate.subscribe import Subscription
from sluice.storage.delta import Lake
from tests.test_subscribe import apply_commit, made, table


def fields(events: bytes) -> list[dict[str, str]]:
    """The events as a client reads them."""
    found = []
    for block in events.decode().split("\n\n"):
        lines = [line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            found.append({name: value for name, value in lines})  # noqa: C416 - pairs of text
    return found


@pytest.mark.parametrize("read", range(1, 6))
def test_a_client_that_connects_again_gets_each_change_once(tmp_path: Path, read: int) -> None:
    lake = Lake(str(tmp_path / "lake"))
    path = made(lake, [(1, 1.0, "a\nb\r\n\n: c"), (2, float("nan"), "\u2028é")])
    apply_commit(path, "merge", [(1, 2.0, "data: x"), (3, None, None)])
    apply_commit(path, "delete", 2)
    subscription = Subscription(lake, table, ("id",))
    got: list[dict[str, str]] = []
    while len(got) < 5:
        last = got[-1]["id"] if got else None
        events = list(server_sent(subscription.changes(since(last))))[:read]
        got += fields(heartbeat + b"".join(events))
    assert [each["event"] for each in got] == [each.operation for each in subscription.changes(None)]
    assert [json.loads(each["data"])["cursor"] for each in got] == [each["id"] for each in got]
    assert json.loads(got[0]["data"])["new"]["name"] == "a\nb\r\n\n: c"


def test_an_id_that_no_event_has_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="not a place"):
        since("yesterday")
