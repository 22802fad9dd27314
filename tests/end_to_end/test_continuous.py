"""A continuous run follows the log until it is told to stop, and then stops cleanly."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice import scaffold
from sluice.log import Log, Record
from sluice.operate.look import query
from sluice.storage.delta import Lake

pytestmark = [pytest.mark.process, pytest.mark.spark]


def wait_until(is_true: Callable[[], bool], run: "subprocess.Popen[bytes]") -> None:
    """Waits five minutes at the most, which a new machine may need, and no longer than the run lives."""
    deadline = time.monotonic() + 300
    while not is_true():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(1)


def test_a_continuous_run_follows_the_log_and_stops_when_told(tmp_path: Path) -> None:
    project = tmp_path / "project"
    scaffold.write(project)
    log, lake = Log(project / ".sluice" / "log"), Lake(str(project / ".sluice" / "lake"))
    for topic in ("products", "orders"):
        log.append(topic, [Record(line) for line in (project / f"{topic}.jsonl").read_bytes().splitlines()])

    def orders() -> int:
        known = lake.last_commit("gold.revenue_daily")
        return int(query(lake, "SELECT sum(orders) FROM gold.revenue_daily").rows[0][0]) if known else 0

    with open(tmp_path / "said.txt", "wb") as said:
        command = [sys.executable, "-m", "sluice.cli", "run", "--continuous", "--project", str(project)]
        run = subprocess.Popen(command, stderr=said, stdout=said)
    try:
        wait_until(lambda: orders() == 4, run)
        late = b'{"order_id":"9","placed_at":"2026-03-01T10:00:00Z","product_id":"tea","quantity":1}'
        log.append("orders", [Record(late)])
        wait_until(lambda: orders() == 5, run)
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 0
    finally:
        run.kill()
        run.wait()
    assert "Traceback" not in (tmp_path / "said.txt").read_text()
