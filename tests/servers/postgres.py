"""A throw-away Postgres on loopback: its own data folder and port, ready for logical replication."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from infra.servers import free_port
from tests.waiting import patience_seconds

superuser = "sluice"


class Postgres:
    """Starts and ends a server with settings of postgresql.conf; `kill` is a crash, after which `start` recovers."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.binaries = find_binaries()
        self.port = free_port()
        # Not below a test's own folder, which belongs to the user who runs the tests: the server may be another user.
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-postgres-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "wal_level": "logical",
            "max_slot_wal_keep_size": "1GB",
            "max_replication_slots": "20",
            "max_wal_senders": "20",
            "shared_buffers": "32MB",
            # A killed server loses nothing by this; only a machine that loses its power does.
            "fsync": "off",
            **(settings or {}),
        }
        if os.getuid() == 0:
            os.chown(self.folder, *server_user())
        # Small segments, so that few changes fill several.
        arguments = ["-D", self.data, "-U", superuser, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        done = subprocess.run(
            self.command("initdb", *map(str, arguments), "--wal-segsize=1"), capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.decode()}")
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def address(self, database: str = "postgres") -> str:
        """The address of a database, as libpq takes it."""
        return f"postgresql://{superuser}@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def connect(self, database: str = "postgres") -> Iterator[Any]:
        """A connection that commits each statement."""
        with closing(psycopg2.connect(self.address(database))) as connection:
            connection.autocommit = True
            yield connection

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs a statement; its rows, if it gives any."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def start(self) -> "Postgres":
        """Starts the server and waits until it answers; after a crash it waits for what the old one left behind."""
        deadline = time.monotonic() + patience_seconds
        while time.monotonic() < deadline:
            with open(self.folder / "output", "ab") as output:
                self.process = subprocess.Popen(
                    self.command("postgres", "-D", str(self.data)), stdout=output, stderr=output
                )
            while self.process.poll() is None and time.monotonic() < deadline:
                try:
                    self.execute("SELECT 1")
                except psycopg2.OperationalError:
                    time.sleep(0.05)
                else:
                    return self
            time.sleep(0.1)
        raise RuntimeError(f"Postgres did not start: {self.output}")

    def stop(self) -> None:
        """Ends the server in order, without waiting for its clients."""
        self.end("INT")

    def kill(self) -> None:
        """Ends the server as a crash does."""
        self.end("KILL")

    def remove(self) -> None:
        """Ends the server and removes its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self, signal: str) -> None:
        if self.process is not None:
            self.process.send_signal({"INT": 2, "KILL": 9}[signal])
            self.process.wait(patience_seconds)
            self.process = None

    def command(self, name: str, *arguments: str) -> list[str]:
        """A command as the user that a server may run as: Postgres refuses root."""
        command = [str(self.binaries / name), *arguments]
        if os.getuid() != 0:
            return command
        user, group = server_user()
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", *command]


def server_user() -> tuple[int, int]:
    """The user and group of a server that root starts."""
    try:
        user = pwd.getpwnam("postgres")
    except KeyError as error:
        raise RuntimeError(
            "Postgres refuses to run as root: run the tests as another user, or add one: postgres"
        ) from error
    return user.pw_uid, user.pw_gid


def find_binaries() -> Path:
    """The folder of Postgres' programs: the newest of Debian's, or that on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    on_path = shutil.which("initdb")
    if not found and not on_path:
        raise RuntimeError("These tests need a Postgres server: apt-get install postgresql (or put initdb on the PATH)")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent
