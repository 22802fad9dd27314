"""What all servers have in common: a folder, ports on loopback, a configuration, a foreground command, a probe."""

import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from http.client import OK, HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar, Literal

from sluice.errors import SluiceError

project = Path(__file__).parents[2]
loopback = "127.0.0.1"


def free_port() -> int:
    """A free port on loopback, below those that systems give to connections.

    A server that is killed finds its port again: a client that calls it meanwhile cannot be given that very port.
    """
    while True:
        port = 10_000 + secrets.randbelow(22_768)
        with socket.socket() as listener, suppress(OSError):
            listener.bind((loopback, port))
            return port


def require_free(port: int) -> None:
    with socket.socket() as listener:
        # A port that was freed a moment ago is no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((loopback, port))
        except OSError as error:
            raise SluiceError(
                f"Port {port} is taken by another program. End it, or choose another: "
                "python -m infra.servers up --port NAME=NUMBER"
            ) from error


@dataclass(frozen=True)
class Server(ABC):
    """One server with its own data. `prepare` may be called again and again; `command` stays in the foreground."""

    folder: Path
    port: int = field(default_factory=free_port)

    # The signal for an orderly shutdown.
    stop_signal: ClassVar[Literal["INT", "TERM"]] = "TERM"

    @classmethod
    @abstractmethod
    def install(cls) -> None:
        """Fetches what is not there yet; a SluiceError says what only a person can do."""

    @abstractmethod
    def prepare(self) -> None:
        """Writes the configuration, and makes the data's folder when there is none."""

    @abstractmethod
    def command(self) -> list[str]:
        """What runs it, as a list that no shell reads."""

    @abstractmethod
    def is_healthy(self) -> bool:
        """Whether it does its work now: asked of the server itself."""

    def environment(self) -> dict[str, str]:
        """Its variables; nothing else of the caller's reaches it."""
        kept = ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR")
        return {name: os.environ[name] for name in kept if name in os.environ}

    def settings(self) -> dict[str, str]:
        """The variables by which programs find it."""
        return {}

    def require_free_ports(self) -> None:
        """A SluiceError where another program listens already: its answers would be taken for this server's."""
        for field_of in fields(self):
            if field_of.name.endswith("port"):
                require_free(getattr(self, field_of.name))

    def listens(self) -> bool:
        """Whether its port takes connections."""
        try:
            socket.create_connection((loopback, self.port), 1).close()
        except OSError:
            return False
        return True

    def has_free_ports(self) -> bool:
        """Whether nothing listens on any of them."""
        try:
            self.require_free_ports()
        except SluiceError:
            return False
        return True

    @property
    def address(self) -> str:
        return f"{loopback}:{self.port}"


def cache() -> Path:
    """Where what is fetched is kept, for every checkout alike: SLUICE_SERVERS."""
    return Path(os.environ.get("SLUICE_SERVERS") or Path.home() / ".cache" / "sluice" / "servers").absolute()


def private_folder(path: Path) -> None:
    """Makes a folder that only its owner can enter."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def secret(path: Path) -> str:
    """A password that is made once and kept where only its owner can read it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, atomically."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    aside.replace(path)


def page(port: int, path: str) -> bytes | None:
    """What a server on loopback answers; None when it refuses, or is not there."""
    connection = HTTPConnection(loopback, port, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() if answer.status == OK else None
    except (HTTPException, OSError):
        return None
    finally:
        connection.close()


def wait_until(is_true: Callable[[], bool], what: Callable[[], str], seconds: float) -> None:
    """Asks until the answer is yes; a SluiceError with `what` on a timeout."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise SluiceError(what())
        time.sleep(0.1)
