"""A first run on this machine: it writes the archive of Spark's classes, which the JVMs of all tests read."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice import scaffold
from tests.conftest import light


def main(project: Path) -> None:
    scaffold.write(project)
    environment = {**os.environ, "SLUICE_JAVA_OPTIONS": light}
    for command in (["log", "append", "orders", str(project / "orders.jsonl")], ["run"]):
        asked = [sys.executable, "-m", "sluice.cli", *command, "--project", str(project)]
        subprocess.run(asked, env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "project"))
