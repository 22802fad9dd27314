"""A process in which commands of `sluice` run one after another, so that what they import is imported once.

A line of its input has the arguments of a command, its folder and its environment; a line of its output has the exit
code and what was printed.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.commands import sluice


class Commanded:
    """Such a process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[2],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(
        self, *arguments: str, here: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command there."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{request(arguments, here, environment)}\n")
        self.process.stdin.flush()
        return answered(arguments, self.process.stdout.readline())


def request(arguments: tuple[str, ...], here: Path, environment: Mapping[str, str] | None) -> str:
    """What such a process is asked."""
    return json.dumps({"arguments": arguments, "here": str(here), "environment": dict(environment or {})})


def answer(asked: str) -> str:
    """Runs what was asked in this process."""
    wanted = json.loads(asked)
    done = sluice(*wanted["arguments"], here=Path(wanted["here"]), environment=wanted["environment"])
    return json.dumps([done.returncode, done.stdout, done.stderr])


def answered(arguments: tuple[str, ...], said: str) -> subprocess.CompletedProcess[str]:
    """A command that ran there."""
    code, out, err = json.loads(said)
    return subprocess.CompletedProcess(arguments, code, out, err)


def main() -> None:
    for line in sys.stdin:
        said = answer(line)
        sys.stdout.write(f"{said}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
