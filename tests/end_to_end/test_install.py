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
    python = folder / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "environment")], check=True)
    # Links to what uv has unpacked before, if that is all of it. Pip has the last word: what is newer it installs.
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--offline", "--python", str(python)]
    subprocess.run([*uv, "-r", str(source / "pyproject.toml")], check=False, capture_output=True)
    # Few of the modules are imported, and Python compiles these then.
    newest = ["--upgrade", "--upgrade-strategy", "eager", "--no-compile"]
    subprocess.run([*pip, "--python", str(python), "install", *newest, str(wheel)], check=True)
    # What the first command would do in the background takes longer than the tests.
    subprocess.run([str(python), "-c", asked_for], check=True)
    return python.parent


asked_for = """
from sluice.runtime.class_archive import ClassArchive
from sluice.runtime.java import require_java
from sluice.runtime.settings import Settings

ClassArchive.of(Settings().jars, require_java()).is_first_to_ask()
"""


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


@pytest.fixture(scope="module")
def project(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project whose log has the records that its README appends."""
    folder = tmp_path_factory.mktemp("project")
    assert sluice(installed, "init", "mine", here=folder).returncode == 0
    for command in commands_of((folder / "mine" / "README.md").read_text()):
        if command[0] == "log":
            typed(installed, *command, here=folder / "mine")
    return folder / "mine"


def typed(installed: Path, *command: str, here: Path) -> str:
    """What a command says that works."""
    done = sluice(installed, *command, here=here)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), (command, done.stderr)
    return done.stdout + done.stderr


def test_the_commands_of_the_scaffolds_readme_work_where_nothing_else_is_installed(
    installed: Path, project: Path
) -> None:
    commands = commands_of((project / "README.md").read_text())
    assert {command[0] for command in commands} == {"log", "run", "query", "audit", "check"}
    said = {
        command[0]: typed(installed, *command, here=project)
        for command in commands
        # By the fixture.
        if command[0] != "log"
    }
    assert "quarantined" in said["query"]
    assert "pip install 'sluice-lakehouse[quality]'" in said["check"]


@pytest.mark.parametrize(
    ("command", "spark", "extra"), [("report", "local[2]", "quality"), ("run", "sc://127.0.0.1:1", "connect")]
)
def test_what_an_extra_is_needed_for_names_it(
    installed: Path, project: Path, command: str, spark: str, extra: str
) -> None:
    done = sluice(installed, command, here=project, SLUICE_SPARK=spark)
    assert (done.returncode != 0, "Traceback" in done.stderr) == (True, False), done.stderr
    assert f"pip install 'sluice-lakehouse[{extra}]'" in " ".join(done.stderr.split())
