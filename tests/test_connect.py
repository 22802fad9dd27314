"""Spark Connect: the work is done by a Spark that was there before, and only a setting differs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.servers import Running, SparkConnect, running
from sluice import scaffold
from sluice.delta import Lake
from sluice.log import Log, Record
from sluice.look import audit, query
from tests.end_to_end.scaffolded import content
from tests.kit import Lakehouse

pytestmark = [pytest.mark.servers, pytest.mark.spark]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[SparkConnect]]:
    with running(SparkConnect(tmp_path_factory.mktemp("connect") / "server")) as started:
        yield started


class Project:
    """A project of one's own, by the commands that a user types."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        # No Java, and no jars: both are the server's.
        self.environment = os.environ | {"SLUICE_SPARK": address, "SLUICE_JARS": str(folder / "none")}
        self.environment |= {"JAVA_HOME": "", "PATH": str(Path(sys.executable).parent)}
        scaffold.write(folder)
        self.log, self.lake = Log(folder / ".sluice" / "log"), Lake(str(folder / ".sluice" / "lake"))
        for topic in ("products", "orders"):
            self.log.append(topic, [Record(line) for line in (folder / f"{topic}.jsonl").read_bytes().splitlines()])

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sluice.cli", *arguments]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def sluice(self, *arguments: str) -> str:
        """Runs a command to its end; returns what it prints."""
        running = self.start(*arguments)
        out, err = running.communicate()
        assert running.returncode == 0, err
        return out

    def refused(self, *arguments: str) -> str:
        running = self.start(*arguments)
        _, err = running.communicate()
        assert running.returncode in (1, 2), err
        assert "Traceback" not in err
        return " ".join(err.split())


@pytest.fixture
def project(server: Running[SparkConnect], tmp_path: Path) -> Project:
    return Project(tmp_path / "project", server.server.settings()["SLUICE_SPARK"])


def test_the_tables_are_those_of_a_spark_of_ones_own(project: Project, lakehouse: Lakehouse) -> None:
    project.sluice("run")
    # A late order, a late price and one told twice: what is merged, and what is judged.
    late = {"order_id": "late", "placed_at": "2026-03-01T10:00:00Z", "product_id": "tea", "quantity": 2}
    project.log.append("orders", [Record(json.dumps(late).encode())] * 2)
    price = {"product_id": "tea", "name": "Tea", "changed_at": "2026-03-01T00:30:00Z", "price_euro": 9.5}
    project.log.append("products", [Record(json.dumps(price).encode())])
    project.sluice("run")
    assert "Nothing new" in project.start("run").communicate()[1]
    project.sluice("check")
    assert json.loads(project.sluice("doctor", "--json"))[0]["check"] == "spark"
    cause = json.loads(project.sluice("explain", "silver.orders", "order_id=late", "--json"))[0]["cause"]
    assert cause == "changes"

    lakehouse.log = project.log
    from sluice.catalogue import load

    lakehouse.catalogue = load(project.folder)
    assert all(each.balanced for each in audit(project.lake, lakehouse.catalogue))
    lakehouse.run()
    assert content(project.lake) == content(lakehouse.lake)


def test_a_run_that_is_killed_leaves_nothing_half_done(project: Project) -> None:
    run = project.start("run")
    while not Path(project.lake.path("silver.orders"), "_delta_log").exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    # What the server still does for it may come first; then this one says so, and the next is right.
    deadline = time.monotonic() + 120
    while (again := project.start("run")).communicate() and again.returncode:
        assert time.monotonic() < deadline
    assert query(project.lake, "SELECT sum(orders) FROM gold.revenue_daily").rows == [(4,)]
    project.sluice("audit")


def test_a_server_that_is_not_there_or_has_no_delta_is_told(tmp_path: Path) -> None:
    nobody = Project(tmp_path / "nobody", "sc://127.0.0.1:9")
    assert "No Spark answers at sc://127.0.0.1:9" in nobody.refused("run")

    class Plain(SparkConnect):
        def configuration(self) -> dict[str, str]:
            return {name: value for name, value in super().configuration().items() if "connect.grpc" in name}

    with running(Plain(tmp_path / "plain")) as plain:
        project = Project(tmp_path / "project", plain.server.settings()["SLUICE_SPARK"])
        assert "was started without spark.sql.extensions=io.delta" in project.refused("run")
