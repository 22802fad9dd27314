"""The package alone, as `pip install` gives it, with nothing else: the README's commands work."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

root = Path(__file__).parents[2]
pytestmark = [pytest.mark.install, pytest.mark.process, pytest.mark.spark]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that holds the package with what it declares, without the lock and extras."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    # A build writes beside what it builds.
    shutil.copytree(root / "sluice", source / "sluice", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(root / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")], check=True)
    python = folder / "environment" / "bin" / "python"
    # Few of the modules are imported, and Python compiles these then.
    subprocess.run([*pip, "--python", str(python), "install", "--no-compile", str(wheel)], check=True)
    return python.parent


def sluice(installed: Path, *arguments: str, here: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    # What the tests are run with must not be found by what was installed.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(installed / "sluice"), *arguments],
        cwd=here,
        env={**environment, "SLUICE_SPARK": "local[2]", **settings},
        capture_output=True,
        text=True,
        check=False,
    )


def commands_of(readme: str) -> list[list[str]]:
    """What a README says to type: the indented lines, and what stands in the text."""
    said = re.findall(r"^    (sluice .+)$", readme, re.MULTILINE) + re.findall(r"`(sluice query [^`]+)`", readme)
    return [shlex.split(line)[1:] for line in said]


def test_the_commands_of_the_scaffolds_readme_work_where_nothing_else_is_installed(
    installed: Path, tmp_path: Path
) -> None:
    assert sluice(installed, "init", "mine", here=tmp_path).returncode == 0
    project = tmp_path / "mine"
    commands = commands_of((project / "README.md").read_text())
    assert {command[0] for command in commands} == {"log", "run", "query", "audit", "check"}
    said = {}
    for command in commands:
        done = sluice(installed, *command, here=project)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (command, done.stderr)
        said[command[0]] = done.stdout + done.stderr
    assert "quarantined" in said["query"]
    assert "pip install 'sluice-lakehouse[quality]'" in said["check"]


@pytest.mark.parametrize(
    ("command", "spark", "extra"), [("report", "local[2]", "quality"), ("run", "sc://127.0.0.1:1", "connect")]
)
def test_what_an_extra_is_needed_for_names_it(
    installed: Path, tmp_path: Path, command: str, spark: str, extra: str
) -> None:
    sluice(installed, "init", "mine", here=tmp_path)
    for topic in ("products", "orders"):
        sluice(installed, "log", "append", topic, f"{topic}.jsonl", here=tmp_path / "mine")
    done = sluice(installed, command, here=tmp_path / "mine", SLUICE_SPARK=spark)
    assert (done.returncode != 0, "Traceback" in done.stderr) == (True, False), done.stderr
    assert f"pip install 'sluice-lakehouse[{extra}]'" in " ".join(done.stderr.split())
