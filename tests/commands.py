"""Commands of `sluice` as a user types them, in the process of the tests or in a separate one."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from sluice import cli

# What commands have of the tests' own environment.
kept_variables = ("SLUICE_JARS", "SLUICE_JAVA_OPTIONS", "SLUICE_KEEP_SPARK_MINUTES", "SLUICE_SERVERS")


def sluice(
    *arguments: str, here: Path, environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process; it needs no Spark, or the fixture `spark_for_commands`."""
    out, err = stream(), stream()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(here)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["sluice", *arguments])
        patch.setattr(sys, "stdin", stream(stdin))
        code = exit_code()
    return done(arguments, code, written(out), written(err))


def sluice_process(
    *arguments: str, here: Path, environment: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Runs a command in a separate process."""
    found = subprocess.run(
        [sys.executable, "-m", "sluice.cli", *arguments],
        cwd=here,
        env={**os.environ, **(environment or {})},
        input=stdin,
        capture_output=True,
        check=False,
    )
    return done(arguments, found.returncode, found.stdout.decode(), found.stderr.decode())


def exit_code() -> int:
    """What the command's process would end with."""
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def done(arguments: tuple[str, ...], code: int, out: str, err: str) -> subprocess.CompletedProcess[str]:
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(arguments, code, out, err)


def stream(content: bytes = b"") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", write_through=True)


def written(to: io.TextIOWrapper) -> str:
    found = to.buffer
    assert isinstance(found, io.BytesIO)
    return found.getvalue().decode()
