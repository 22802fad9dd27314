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
from sluice.engine.catalogue import load
from sluice.log import Record
from sluice.operate.audit import audit
from sluice.operate.query import query
from tests.end_to_end.scaffolded import Project, content
from tests.kit import Lakehouse
from tests.servers.commanded import Commanded
from tests.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.servers, pytest.mark.spark]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[SparkConnect]]:
    with running(SparkConnect(tmp_path_factory.mktemp("connect") / "server")) as started:
        yield started


@pytest.fixture(scope="module")
def commands() -> Iterator[Commanded]:
    found = Commanded(os.environ)
    with found.process:
        yield found
        # It would end in order, and look for servers that are gone.
        found.process.kill()


class Elsewhere(Project):
    """A project whose Spark is at an address. No Java, and no jars: both are the server's."""

    def __init__(self, folder: Path, address: str, commands: Commanded) -> None:
        nothing_here = {"SLUICE_JARS": str(folder / "none"), "JAVA_HOME": "", "PATH": str(Path(sys.executable).parent)}
        super().__init__(folder, {"SLUICE_SPARK": address, **nothing_here})
        self.commands = commands

    def ended(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.commands(*arguments, here=self.folder, environment=self.environment)

    def sluice(self, *arguments: str, **environment: str) -> str:
        done = self.ended(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str) -> str:
        done = self.ended(*arguments)
        assert done.returncode in (1, 2), done.stderr
        return " ".join(done.stderr.split())


@pytest.fixture
def project(server: Running[SparkConnect], commands: Commanded, tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "project", server.server.settings()["SLUICE_SPARK"], commands)


def test_the_tables_are_those_of_a_spark_of_ones_own(project: Elsewhere, lakehouse: Lakehouse) -> None:
    project.sluice("run")
    # A late order, a late price and one delivered twice: what is merged, and what is judged.
    late = {"order_id": "late", "placed_at": "2026-03-01T10:00:00Z", "product_id": "tea", "quantity": 2}
    project.log.append("orders", [Record(json.dumps(late).encode())] * 2)
    price = {"product_id": "tea", "name": "Tea", "changed_at": "2026-03-01T00:30:00Z", "price_euro": 9.5}
    project.log.append("products", [Record(json.dumps(price).encode())])
    project.sluice("run")
    assert "Nothing new" in project.ended("run").stderr
    project.sluice("check")
    assert json.loads(project.sluice("doctor", "--json"))[0]["check"] == "spark"
    cause = json.loads(project.sluice("explain", "silver.orders", "order_id=late", "--json"))[0]["cause"]
    assert cause == "changes"

    lakehouse.log = project.log
    lakehouse.catalogue = load(project.folder)
    assert all(each.balanced for each in audit(project.lake, lakehouse.catalogue))
    lakehouse.run()
    assert content(project.lake) == content(lakehouse.lake)


def test_a_run_that_is_killed_leaves_nothing_half_done(project: Elsewhere) -> None:
    run = project.start("run")
    while not Path(project.lake.path("silver.orders"), "_delta_log").exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    # What the server still does for it may come first; then this one says so, and the next is right.
    eventually(lambda: project.ended("run").returncode == 0, "a run that completes")
    assert query(project.lake, "SELECT sum(orders) FROM gold.revenue_daily").rows == [(4,)]
    project.sluice("audit")


def test_a_server_that_is_not_there_or_has_no_delta_is_reported(commands: Commanded, tmp_path: Path) -> None:
    nobody = Elsewhere(tmp_path / "nobody", "sc://127.0.0.1:9", commands)
    assert "No Spark answers at sc://127.0.0.1:9" in nobody.refused("run")

    class Plain(SparkConnect):
        def configuration(self) -> dict[str, str]:
            return {name: value for name, value in super().configuration().items() if "connect.grpc" in name}

    with running(Plain(tmp_path / "plain")) as plain:
        project = Elsewhere(tmp_path / "project", plain.server.settings()["SLUICE_SPARK"], commands)
        assert "was started without spark.sql.extensions=io.delta" in project.refused("run")
