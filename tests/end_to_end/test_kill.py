"""A run that is killed at any moment, and started again, ends in the tables of one that was left alone."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice import Project, scaffold
from sluice.runtime.session import scratch_prefix
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake
from tests.commands import sluice, sluice_process
from tests.end_to_end.scaffolded import content
from tests.forked import Forked
from tests.waiting import patience_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.process, pytest.mark.spark]


def is_begun(table: str) -> Callable[[Path], bool]:
    """Files of a table are being written, and nothing is committed."""
    return lambda lake: any(Path(lake, *table.split(".")).rglob("*.parquet"))


def is_committed(table: str) -> Callable[[Path], bool]:
    """The first commit of a table is there."""
    return lambda lake: Path(lake, *table.split("."), "_delta_log", f"{0:020}.json").exists()


moments = {
    "while bronze is written": is_begun("bronze.orders"),
    "between the fates and the rows that they belong to": is_committed("silver._fates"),
    "when silver is committed": is_committed("silver.priced_orders"),
}


def finish(project: Path, by: Callable[..., subprocess.CompletedProcess[str]] = sluice) -> None:
    """Runs again until caught up. The JVM of a killed run holds the lake until it has noticed; then it waits."""
    deadline = time.monotonic() + patience_seconds
    while (done := by("run", here=project)).returncode != 0:
        assert "Another sluice" in done.stderr, done.stderr
        assert time.monotonic() < deadline, done.stderr
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
        assert sluice("log", "append", topic, f"{topic}.jsonl", here=project).returncode == 0
    return project


@pytest.fixture(scope="module")
def undisturbed(
    published: Path, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """What a run that was left alone writes."""
    project = tmp_path_factory.mktemp("alone") / "project"
    shutil.copytree(published, project)
    with Project(project, spark=spark) as alone:
        alone.run()
    return content_of(project)


def killed(moment: Callable[[Path], bool], published: Path, project: Path) -> None:
    """A run of a copy that is killed when the moment has come."""
    shutil.copytree(published, project)
    with Forked("run", here=project) as run:
        while not moment(project / ".sluice" / "lake"):
            assert run.poll() is None, "the run ended before the moment came"
            time.sleep(0.002)
        run.send_signal(signal.SIGKILL)


@pytest.mark.usefixtures("spark_for_commands")
@pytest.mark.parametrize("moment", moments)
def test_a_run_killed(moment: str, published: Path, undisturbed: dict[str, list[str]], tmp_path: Path) -> None:
    project = tmp_path / "project"
    killed(moments[moment], published, project)
    finish(project)
    assert content_of(project) == undisturbed


def test_a_run_killed_while_gold_is_written_and_a_process_of_its_own_that_ends_it(
    published: Path, undisturbed: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_KEEP_SPARK_MINUTES", "0")
    project = tmp_path / "project"
    killed(is_begun("gold.revenue_daily"), published, project)
    finish(project, by=sluice_process)
    assert content_of(project) == undisturbed
    if scratch_of(project):
        # On a busy machine the JVM of the killed run was still ending.
        finish(project, by=sluice_process)
    assert scratch_of(project) == [], "what the killed run had there is gone"


def scratch_of(project: Path) -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob(f"{scratch_prefix(Settings(project=project))}*"))
