"""The tutorial, typed as it stands: each command works, and prints what the page shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import Block, blocks, root
from tests.forked import sluice_forked

pytestmark = pytest.mark.spark
# A shell need not start these: the others show that it can.
without_spark = {"init", "log", "query", "audit", "quarantine"}
# What differs between two runs: times, and how things are set apart in a table.
varying = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(?= |$)": lambda found: (
        found[0] if found[0].startswith("2026-03-") else "(time)"
    ),
    r"\d+\.\d s\b": lambda _: "(seconds)",
    r"Wrote a project to \S*/": lambda _: "Wrote a project to …/",
    r" +": lambda _: " ",
}


def test_each_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    after_install = [block for block in blocks(root / "docs/tutorial.md") if block.kind in ("sh", "text")][1:]
    folder, said, shown = tmp_path, "", 0
    for block in after_install:
        if block.kind == "text":
            assert lines_of(said) == lines_of(block.text), block.place
            shown += 1
            continue
        said = ""
        for line in block.text.splitlines():
            if line.startswith("cd "):
                folder = folder / line.removeprefix("cd ")
            elif line.split()[:1] == ["sluice"] and line.split()[1] in without_spark:
                said += forked(line, folder, block)
            else:
                said += typed(line, folder, block)
    assert shown > 5


def forked(line: str, folder: Path, block: Block) -> str:
    """The same of a line that is only words, which a shell gives to the command as they are."""
    assert not set(line) & set("$`\\!'"), line
    assert not set(re.sub('"[^"]*"', "", line)) & set("|&;<>(){}[]*?~#"), line
    done = sluice_forked(*shlex.split(line)[1:], here=folder)
    assert done.returncode == 0, (block.place, line, done.stderr)
    return done.stdout + done.stderr


def typed(line: str, folder: Path, block: Block) -> str:
    """Runs a line in a shell whose `sluice` is this one; returns what it prints."""
    sluice = f'sluice() {{ {shlex.quote(sys.executable)} -m sluice.cli "$@"; }}'
    # As for users, the JVM of one command waits for the next.
    variables = {**os.environ, "SLUICE_KEEP_SPARK_MINUTES": "1"}
    command = ["bash", "-c", f"{sluice}\n{line}"]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (block.place, line, done.stderr)
    return done.stdout + done.stderr


def lines_of(text: str) -> list[str]:
    """What a command prints, without what is other in each run; lines of several datasets in any order."""
    for pattern, same in varying.items():
        text = re.sub(pattern, same, text, flags=re.MULTILINE)
    return sorted(line.strip() for line in text.splitlines() if line.strip())
