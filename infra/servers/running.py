"""One server as a child process, for a test or a trial: started, killed, started again on its data, ended always."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from infra.servers.server import Server, wait_until
from sluice.errors import SluiceError

S = TypeVar("S", bound=Server)
healthy_within_seconds = 300
stops_within_seconds = 30


@contextmanager
def running(server: S) -> "Iterator[Running[S]]":
    """The server, healthy; it is always stopped at the end of the block.

    A SluiceError when it does not become healthy, with the end of its log.
    """
    process = Running(server)
    try:
        process.start()
        yield process
    finally:
        process.stop()


class Running(Generic[S]):
    """A server's process. `kill` is a crash; `start` after it comes back on the same data and ports."""

    def __init__(self, server: S) -> None:
        self.server = server
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.server.folder / "server.log"

    def start(self) -> None:
        """Starts it and waits for its health."""
        self.server.require_free_ports()
        self.server.prepare()
        with open(self.log, "ab") as said:
            self.process = subprocess.Popen(
                self.server.command(),
                cwd=self.server.folder,
                env=self.server.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        process = self.process
        wait_until(
            lambda: process.poll() is not None or self.server.is_healthy(), self.complaint, healthy_within_seconds
        )
        if process.poll() is not None:
            raise SluiceError(self.complaint())

    @property
    def pid(self) -> int:
        """The number of its process; a SluiceError when it is not running."""
        if self.process is None:
            raise SluiceError(f"{type(self.server).__name__} is not running.")
        return self.process.pid

    def complaint(self) -> str:
        return f"{type(self.server).__name__} did not become healthy:\n{self.log.read_text(errors='replace')[-3000:]}"

    def kill(self) -> None:
        """Ends it and its children with SIGKILL, as a crash does."""
        if self.process is None:
            return
        pids = [self.process.pid, *descendants(self.process.pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # It ended by itself.
                continue
        self.process.wait()
        # The children of a dead server belong to init, and keep its ports and data until all their threads end too.
        wait_until(
            lambda: not any(is_alive(pid) for pid in pids) and self.server.has_free_ports(),
            lambda: f"{type(self.server).__name__} does not die",
            60,
        )
        self.process = None

    def stop(self) -> None:
        """Ends it in order, or with SIGKILL if it does not react."""
        if self.process is None:
            return
        self.process.send_signal(signal.Signals[f"SIG{self.server.stop_signal}"])
        try:
            self.process.wait(stops_within_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None


def descendants(pid: int) -> list[int]:
    """Its children, theirs, and so on, in any session."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.stdout.splitlines())}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def is_alive(pid: int) -> bool:
    """Whether it runs; one that ended and waits to be counted does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")
