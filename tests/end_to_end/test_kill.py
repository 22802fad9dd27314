"""A run that is killed at any moment, and started again, ends in the tables of one that was left alone."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice import scaffold
from sluice.runtime.session import scratch_prefix
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake
from tests.end_to_end.scaffolded import content

pytestmark = [pytest.mark.process, pytest.mark.spark]


def is_begun(table: str) -> Callable[[Path], bool]:
    """Files of a table are being written, and nothing is committed."""
    return lambda lake: any(Path(lake, *table.split(".")).rglob("*.parquet"))


def is_committed(table: str) -> Callable[[Path], bool]:
    """The first commit of a table is there."""
    return lambda lake: Path(lake, *table.split("."), "_delta_log", f"{0:020}.json").exists()


moments = {
    "while bronze is written": is_begun("bronze.orders"),
    "when bronze is committed": is_committed("bronze.orders"),
    "between the fates and the rows that they belong to": is_committed("silver._fates"),
    "while silver is written": is_begun("silver.orders"),
    "when silver is committed": is_committed("silver.priced_orders"),
    "while gold is written": is_begun("gold.revenue_daily"),
}


def start(project: Path) -> subprocess.Popen[bytes]:
    with open(project / "said.txt", "wb") as said:
        return subprocess.Popen([sys.executable, "-m", "sluice.cli", "run"], cwd=project, stderr=said, stdout=said)


def finish(project: Path) -> None:
    """Runs again until caught up. The JVM of a killed run holds the lake until it has noticed; then it waits."""
    deadline = time.monotonic() + 60
    while start(project).wait() != 0:
        said = (project / "said.txt").read_text()
        assert "Another sluice" in said, said
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def content_of(project: Path) -> dict[str, list[str]]:
    """The rows of all tables of a project."""
    return content(Lake(str(project / ".sluice" / "lake")))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose log is full and whose lake is empty."""
    project = tmp_path_factory.mktemp("kill") / "project"
    scaffold.write(project)
    for topic in ("products", "orders"):
        command = [sys.executable, "-m", "sluice.cli", "log", "append", topic, f"{topic}.jsonl"]
        subprocess.run(command, cwd=project, check=True, stdout=subprocess.DEVNULL)
    return project


@pytest.fixture(scope="module")
def undisturbed(published: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a run that was left alone writes."""
    project = tmp_path_factory.mktemp("alone") / "project"
    shutil.copytree(published, project)
    finish(project)
    return content_of(project)


@pytest.mark.parametrize("moment", moments)
def test_a_run_killed(moment: str, published: Path, undisturbed: dict[str, list[str]], tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(published, project)
    run = start(project)
    while not moments[moment](project / ".sluice" / "lake"):
        assert run.poll() is None, "the run ended before the moment came"
        time.sleep(0.002)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()

    finish(project)
    assert content_of(project) == undisturbed
    prefix = scratch_prefix(Settings(project=project))
    assert list(Path(tempfile.gettempdir()).glob(f"{prefix}*")) == [], "what the killed run had there is gone"
