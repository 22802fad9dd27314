"""Postgres from Debian's packages, with a separate data folder, ready for change data capture."""

import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from infra.servers import debian
from infra.servers.server import Server, loopback, secret, write_private
from sluice.errors import SluiceError

user = "sluice"
database = "sluice"
# It refuses to run as root; this is who Debian makes for it.
system_user = "postgres"


@dataclass(frozen=True)
class Postgres(Server):
    """A cluster with one superuser and one database; passwords only, TCP only."""

    # SIGTERM would wait for every client to leave.
    stop_signal = "INT"

    @classmethod
    def install(cls) -> None:
        debian.install("postgresql")

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.data / "PG_VERSION").exists():
            self.make_cluster()
        self.configuration.write_text(self.parameters())
        self.configuration.chmod(0o644)

    def make_cluster(self) -> None:
        """Makes it aside and gives it its name when it has its database."""
        aside = self.folder / "aside"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(mode=0o700)
        require_entrance(aside)
        password = aside.with_suffix(".password")
        write_private(password, self.password)
        for path in (aside, password):
            if os.geteuid() == 0:
                shutil.chown(path, system_user, system_user)
        options = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
        run(program("initdb"), "-D", str(aside), "-U", user, "--pwfile", str(password), *options)
        password.unlink()
        run(program("postgres"), "--single", "-D", str(aside), "postgres", said=f"CREATE DATABASE {database};\n")
        # Our settings are in a separate file, included from the end of Postgres's own, so that it can be rewritten.
        with open(aside / "postgresql.conf", "a") as file:
            file.write("include = '../postgresql.conf'\n")
        aside.rename(self.data)

    def command(self) -> list[str]:
        require_entrance(self.data)
        return as_system_user(program("postgres"), "-D", str(self.data))

    def is_healthy(self) -> bool:
        command = [program("pg_isready"), "-q", "-h", loopback, "-p", str(self.port), "-d", database, "-t", "2"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def make_database(self, name: str) -> None:
        """Makes another database where none has this name; the server must run."""
        exists = "SELECT FROM pg_database WHERE datname = :'name'"
        statement = f"SELECT format('CREATE DATABASE %I', :'name') WHERE NOT EXISTS ({exists}) \\gexec\n"
        command = [
            program("psql"),
            "-h",
            loopback,
            "-p",
            str(self.port),
            "-U",
            user,
            "-d",
            database,
            "-qXv",
            f"name={name}",
        ]
        environment = {**os.environ, "PGPASSWORD": self.password}
        done = subprocess.run(command, env=environment, input=statement, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            raise SluiceError(f"Postgres does not make the database {name}: {done.stderr[-1000:]}")

    def settings(self) -> dict[str, str]:
        return {"SLUICE_POSTGRES": self.url}

    @property
    def url(self) -> str:
        return f"postgresql://{user}:{self.password}@{self.address}/{database}"

    @property
    def password(self) -> str:
        return secret(self.folder / ".password")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def configuration(self) -> Path:
        return self.folder / "postgresql.conf"

    def parameters(self) -> str:
        return f"""\
listen_addresses = '{loopback}'
port = {self.port}
unix_socket_directories = ''
wal_level = logical
max_wal_senders = 8
max_replication_slots = 8
# An abandoned slot must not fill the disk.
max_slot_wal_keep_size = '1GB'
shared_buffers = '64MB'
max_connections = 60
"""


def program(name: str) -> str:
    """A program of the newest Postgres here; Debian keeps them apart by version, others on the PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which(name)
    if found is None:
        raise SluiceError(f"There is no {name}. Run: python -m infra.servers install postgres")
    return found


def as_system_user(*command: str) -> list[str]:
    """The command, as the user postgres where we are root."""
    if os.geteuid() != 0:
        return list(command)
    return ["setpriv", f"--reuid={system_user}", f"--regid={system_user}", "--init-groups", *command]


def run(*command: str, said: str = "") -> None:
    done = subprocess.run(as_system_user(*command), cwd="/", input=said, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SluiceError(f"{Path(command[0]).name} failed: {done.stdout[-500:]}{done.stderr[-1000:]}")


def require_entrance(folder: Path) -> None:
    """A SluiceError where the user postgres could not come to its data, before it fails with less to go by."""
    if os.geteuid() != 0:
        return
    owner = pwd.getpwnam(system_user).pw_uid
    for parent in folder.parents:
        found = parent.stat()
        if not found.st_mode & stat.S_IXOTH and found.st_uid != owner:
            raise SluiceError(
                f"As root, Postgres runs as the user {system_user}, who may not enter {parent}. Choose a folder that "
                f"everybody may enter (--folder), or run: chmod o+x {parent}"
            )
