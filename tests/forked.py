"""Commands in processes of their own, each a fork of one that has imported Sluice: most of the work of a short command.

Such a process has its own signals, locks, files and exit, as one that a shell starts. Where the start itself is the
point, `started` and `tests.commands.sluice_process` have it.
"""

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import chdir
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from sluice import cli
from tests.commands import done

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

# A process of the tests has one fork server, so whatever is forked is here.
imported = multiprocessing.get_context("forkserver")
imported.set_forkserver_preload(
    [
        "__main__",
        "sluice.cli.export",
        "sluice.cli.log",
        "sluice.cli.look",
        "sluice.cli.project",
        "sluice.cli.quarantine",
        "sluice.cli.replay",
        "sluice.cli.run",
        "sluice.ingest.receivers.amqp",
        "sluice.ingest.receivers.cli",
        "sluice.ingest.receivers.http",
        "sluice.ingest.receivers.statsd",
        "tests.faults.points",
        "tests.forked",
        "tests.killed_import",
        "tests.senders",
    ]
)


def process_of(target: Callable[..., object], arguments: tuple[object, ...]) -> "ForkServerProcess":
    """A process that calls a function; it is to be started."""
    # The server looks for what it imports in the folder where it starts, and keeps no other.
    with chdir(Path(__file__).parents[1]):
        forkserver.ensure_running()
    return imported.Process(target=target, args=arguments)


class Forked:
    """A command under way, with what `subprocess.Popen` has of one."""

    def __init__(self, *arguments: str, here: Path, environment: Mapping[str, str] | None = None) -> None:
        (out, into_out), (err, into_err) = (imported.Pipe(duplex=False) for _ in range(2))
        given = {**os.environ, **(environment or {})}
        self.process = process_of(command, (arguments, here, given, into_out, into_err))
        self.process.start()
        into_out.close()
        into_err.close()
        self.stdout, self.stderr = reading_end(out), reading_end(err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("sluice", timeout or 0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def command(
    arguments: tuple[str, ...], here: Path, environment: dict[str, str], out: "Connection", err: "Connection"
) -> None:
    """What the process does."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(here)
    with open(os.devnull) as nothing:
        for own, number in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(own.fileno(), number)
    out.close()
    err.close()
    sys.argv = ["sluice", *arguments]
    cli.main()


def started(*arguments: str, here: Path, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """The same as it is started from a shell."""
    return subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", *arguments],
        cwd=here,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reading_end(pipe: "Connection[None, None]") -> TextIO:
    """The pipe as a file."""
    found = os.fdopen(os.dup(pipe.fileno()), encoding="utf-8")
    pipe.close()
    return found


def sluice_forked(
    *arguments: str, here: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    said: list[str] = []
    with Forked(*arguments, here=here, environment=environment) as running:
        reader = threading.Thread(target=lambda: said.append(running.stderr.read()))
        reader.start()
        out = running.stdout.read()
        reader.join()
    return done(arguments, running.wait(), out, said[0])
