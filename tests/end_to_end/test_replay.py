"""A replay, its promotion and a SIGKILL in the middle of it, while a continuous run goes on under load."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.log import Record
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.damage import computed_wrong
from tests.end_to_end.scaffolded import Project, content, tables
from tests.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.spark]
march = ("--since", "2026-03-01", "--until", "2026-04-01")


class UnderLoad(Project):
    """A project into whose log somebody writes."""

    def answer(self, *arguments: str, **environment: str) -> str:
        """Runs a command to its end in this process; returns what it prints."""
        done = sluice(*arguments, here=self.folder, environment=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sell_cups_in_summer(self) -> None:
        """So many figures that the orders of a refresh touch a small share of them: else it computes them all."""
        days = [datetime(2026, 5, 1, tzinfo=UTC) + timedelta(days=number) for number in range(180)]
        orders = [
            {"order_id": f"d{day:%j}", "placed_at": day.isoformat(), "product_id": "cup", "quantity": 1} for day in days
        ]
        self.log.append("orders", [Record(json.dumps(order).encode()) for order in orders])

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Orders of March and April, some of them twice, and late prices, some of each every eight seconds.

        None is of the days whose figure is lost: it would bring the figure back.
        """
        stop = threading.Event()

        def produce() -> None:
            number = 0
            while not stop.wait(0 if number % 10 else 8):
                number += 1
                order = {
                    "order_id": f"n{number}",
                    "placed_at": f"2026-0{3 + number % 2}-{3 + number % 5:02}T{number % 24:02}:00:00Z",
                    "product_id": "tea" if number % 3 else "cup",
                    "quantity": 1 + number % 4,
                }
                records = [Record(json.dumps(order).encode())] * (1 + (number % 7 == 0))
                self.log.append("orders", records)
                if number % 10 == 0:
                    price = {
                        "product_id": "tea",
                        "changed_at": f"2026-03-{3 + number % 5:02}T00:30:00Z",
                        "price_euro": 3.0 + number / 100,
                    }
                    self.log.append("products", [Record(json.dumps({"name": "Tea"} | price).encode())])

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            yield
        finally:
            stop.set()
            producer.join()

    def promoted(self) -> set[str]:
        """The tables that the promotion changed rows of."""
        return {
            table
            for table in tables
            for commit in self.lake.commits(table)
            if commit.entry.cause == "promoted" and commit.entry.rows.total
        }


@pytest.mark.usefixtures("spark_for_commands")
def test_a_replay_beside_a_run_under_load_and_a_kill(tmp_path: Path) -> None:
    project = UnderLoad(tmp_path / "project")
    project.sell_cups_in_summer()
    project.answer("run")
    # A figure of March is lost, and a run does not see it.
    lost = "DELETE WHERE product = 'Cup' AND window_start < '2026-03-03T00:00:00Z'"
    computed_wrong(project.lake, "gold.revenue_daily", lost)
    with project.under_load():
        run = project.start("run", "--continuous")
        replay = json.loads(project.answer("replay", "start", *march, "--because", "a disk was restored", "--json"))
        assert [each["dataset"] for each in replay["compared"] if each["inserted"]] == ["gold.revenue_daily"]
        assert run.poll() is None, "the run goes on meanwhile"

        promotion = project.start("replay", "promote", replay["name"])
        eventually(lambda: any(Path(project.lake.root, "_requests").glob("*.json")))
        time.sleep(2)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
        # The requester sees that no driver runs, and does it itself.
        _, err = promotion.communicate()
        assert promotion.returncode == 0, err
        assert "gold.revenue_daily" in project.promoted()

    project.answer("run")
    project.answer("audit")
    elsewhere = str(tmp_path / "again")
    project.answer("run", SLUICE_LAKE=elsewhere)
    assert content(project.lake) == content(Lake(elsewhere))
