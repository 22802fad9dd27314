"""A continuous run follows the log until it is told to stop, and then stops cleanly."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice import scaffold
from sluice.log import Log, Record
from sluice.operate.query import query
from sluice.storage.delta import Lake
from tests.damage import computed_wrong
from tests.forked import sluice_forked
from tests.waiting import eventually, patience_seconds

pytestmark = [pytest.mark.process, pytest.mark.spark]


def wait_until(is_true: Callable[[], bool], run: "subprocess.Popen[bytes]") -> None:
    """Waits, but no longer than the run lives."""
    eventually(lambda: run.poll() is not None or is_true(), pause_seconds=1)
    assert run.poll() is None


def orders(lake: Lake) -> int:
    known = lake.last_commit("gold.revenue_daily")
    return int(query(lake, "SELECT sum(orders) FROM gold.revenue_daily").rows[0][0]) if known else 0


def test_a_continuous_run_follows_the_log_answers_commands_and_stops_when_asked(tmp_path: Path) -> None:
    project = tmp_path / "project"
    scaffold.write(project)
    log, lake = Log(project / ".sluice" / "log"), Lake(str(project / ".sluice" / "lake"))
    for topic in ("products", "orders"):
        log.append(topic, [Record(line) for line in (project / f"{topic}.jsonl").read_bytes().splitlines()])

    with open(tmp_path / "said.txt", "wb") as said:
        command = [sys.executable, "-m", "sluice.cli", "run", "--continuous", "--project", str(project)]
        run = subprocess.Popen(command, stderr=said, stdout=said)
    try:
        wait_until(lambda: orders(lake) == 4, run)
        late = b'{"order_id":"9","placed_at":"2026-03-01T10:00:00Z","product_id":"tea","quantity":1}'
        log.append("orders", [Record(late)])
        wait_until(lambda: orders(lake) == 5, run)
        use_commands(project, lake, run)
        run.send_signal(signal.SIGTERM)
        assert run.wait(patience_seconds) == 0
    finally:
        run.kill()
        run.wait()
    assert "Traceback" not in (tmp_path / "said.txt").read_text()


def use_commands(project: Path, lake: Lake, run: "subprocess.Popen[bytes]") -> None:
    """Each command that no other test runs in a process of its own; what needs Spark is done by the run under way."""

    def answer(*arguments: str) -> Any:
        done = sluice_forked(*arguments, here=project)
        assert done.returncode == 0, (arguments, done.stderr)
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    assert "gold.revenue_daily" in {each["dataset"] for each in answer("status", "--json")}
    assert "gold.revenue_daily" in {each["name"] for each in answer("catalogue", "--json")}
    assert list(answer("maintain", "gold.revenue_daily", "--json")["tables"]) == ["gold.revenue_daily"]

    assert {each["topic"] for each in answer("log", "topics", "--json")} >= {"orders", "products"}
    assert "placed_at" in answer("log", "tail", "orders", "-n", "1")
    assert [each for found in answer("log", "verify", "--json") for each in found["faults"]] == []
    skipped = sluice_forked("log", "skip", "orders", "--because", "a test", here=project)
    assert (skipped.returncode, "Topic orders has lost no offsets" in skipped.stderr) == (1, True)

    ((partition, offset),) = query(lake, "SELECT _partition, _offset FROM silver.orders WHERE order_id = '1001'").rows
    record = f"orders/{partition}/{offset}"
    assert [each["reason"] for each in answer("quarantine", "list", "--json")] == ["malformed_json"]
    assert "malformed_json" in answer("quarantine", "show", "silver.orders")
    answer("quarantine", "add", "silver.orders", record, "--because", "a test")
    wait_until(lambda: orders(lake) == 4, run)
    answer("quarantine", "release", "silver.orders", "--record", record, "--because", "a test")
    wait_until(lambda: orders(lake) == 5, run)

    computed_wrong(lake, "gold.revenue_daily", "DELETE WHERE product = 'Cup'")
    replay = answer("replay", "start", "gold.revenue_daily", "--because", "a test", "--json")["name"]
    assert answer("replay", "show", replay, "--json")["name"] == replay
    assert answer("replay", "promote", replay, "--json")["gold.revenue_daily"] > 0
    assert list(answer("rollback", replay, "--because", "a test", "--json")) == ["gold.revenue_daily"]
    answer("replay", "drop", replay)
    assert answer("replay", "list", "--json") == []
