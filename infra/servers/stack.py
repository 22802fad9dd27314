"""The stack: all servers in an order, under supervisord, with their data, logs and settings in one folder."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

from infra.servers.connect import Connect
from infra.servers.kafka import Kafka
from infra.servers.postgres import Postgres
from infra.servers.registry import Registry
from infra.servers.running import healthy_within_seconds, is_alive
from infra.servers.s3 import S3
from infra.servers.server import Server, loopback, project, wait_until, write_private
from infra.servers.spark import SparkMaster, SparkWorker
from infra.servers.thrift import Thrift
from sluice.errors import SluiceError, UsageError

# Every port of the stack. `up --port` changes one; what was changed is kept in the folder's ports.json.
default_ports = {
    "postgres": 5433,
    "kafka": 9092,
    "kafka-controller": 9093,
    "s3": 7070,
    "connect": 8083,
    "spark-master": 7077,
    "spark-master-web": 7078,
    "spark-worker-1": 7081,
    "spark-worker-1-web": 7082,
    "spark-worker-2": 7083,
    "spark-worker-2-web": 7084,
    "thrift": 10000,
    "registry": 8081,
}
# Each stage waits for the health of the one before.
stages = (
    ("postgres", "kafka", "s3", "registry"),
    ("connect", "spark-master"),
    ("spark-worker-1", "spark-worker-2"),
    ("thrift",),
)
needs = {"connect": "kafka", "spark-worker-1": "spark-master", "spark-worker-2": "spark-master", "thrift": "postgres"}
# They start only when they are named.
optional = {"thrift", "registry"}
ends_within_seconds = 40


@dataclass(frozen=True)
class Status:
    """The status of one server: its process according to the supervisor, and its own health."""

    name: str
    state: str
    healthy: bool
    address: str
    pid: int


class Stack:
    """The servers of one folder. It has no state: the folder and the supervisor have it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.logs = self.folder / "logs"
        self.socket = self.folder / "supervisor.sock"
        self.settings_file = self.folder / "servers.env"
        self.ports = default_ports | self.changed_ports()
        self.servers = self.made()

    def made(self) -> dict[str, Server]:
        """All servers by their names, in the order in which they start."""
        folder, port = self.folder, self.ports
        kafka = Kafka(folder / "kafka", port["kafka"], controller_port=port["kafka-controller"])
        s3 = S3(folder / "s3", port["s3"])
        master = SparkMaster(folder / "spark-master", port["spark-master"], web_port=port["spark-master-web"])
        workers = {
            name: SparkWorker(folder / name, port[name], web_port=port[f"{name}-web"], master=master.address, store=s3)
            for name in ("spark-worker-1", "spark-worker-2")
        }
        postgres = Postgres(folder / "postgres", port["postgres"])
        thrift = {"lake": str(project / ".sluice" / "lake")} | self.kept("thrift.json")
        return {
            "postgres": postgres,
            "kafka": kafka,
            "s3": s3,
            "connect": Connect(folder / "connect", port["connect"], kafka=kafka.address),
            "spark-master": master,
            **workers,
            "thrift": Thrift(folder / "thrift", port["thrift"], metastore=postgres, store=s3, **thrift),
            "registry": Registry(folder / "registry", port["registry"]),
        }

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The servers that are meant, in order; none named: all but optional ones; `spark`: its master and workers."""
        named = set(names)
        known = {name: {name, name.split("-")[0]} for name in self.servers}
        unknown = named - set().union(*known.values())
        if unknown:
            raise UsageError(f"There is no server {', '.join(sorted(unknown))}; there are {', '.join(self.servers)}.")
        return [name for name, words in known.items() if (named & words if named else name not in optional)]

    def up(self, names: Iterable[str] = ()) -> list[str]:
        """Starts servers and those that they need, each stage when the one before is healthy; says which."""
        chosen = self.chosen(names)
        wanted = {*chosen, *(needs[name] for name in chosen if name in needs)}
        self.supervise()
        for stage in stages:
            starting = [name for name in stage if name in wanted]
            for name in starting:
                self.start(name)
            for name in starting:
                self.wait_for(name)
        self.write_settings()
        return [name for name in self.servers if name in wanted]

    def down(self, names: Iterable[str] = ()) -> None:
        """Ends servers in reverse order; all of them, and the supervisor, when none is named."""
        if not self.is_supervised():
            return
        named = list(names)
        if named:
            for name in reversed(self.chosen(named)):
                self.stop(name)
            self.write_settings()
            return
        pid = int(self.ask("getPID"))
        self.ask("shutdown")
        seconds = ends_within_seconds * len(stages)
        wait_until(lambda: not is_alive(pid), lambda: f"The supervisor (process {pid}) does not end.", seconds)
        self.settings_file.unlink(missing_ok=True)

    def status(self) -> list[Status]:
        """Every server, whether it runs or not."""
        known = {each["name"]: each for each in self.ask("getAllProcessInfo")} if self.is_supervised() else {}
        return [
            Status(
                name=name,
                state=known.get(name, {}).get("statename", "STOPPED"),
                healthy=known.get(name, {}).get("statename") == "RUNNING" and server.is_healthy(),
                address=server.address,
                pid=known.get(name, {}).get("pid", 0),
            )
            for name, server in self.servers.items()
        ]

    def settings(self) -> dict[str, str]:
        """What a program needs to find the servers that are up."""
        up = [each.name for each in self.status() if each.healthy]
        return {name: value for each in up for name, value in self.servers[each].settings().items()}

    def write_settings(self) -> None:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in self.settings().items()]
        write_private(self.settings_file, "".join(lines))

    def run(self, name: str) -> None:
        """Becomes the server: the process that called this is it from now on."""
        server = self.servers[self.chosen([name])[0]]
        server.require_free_ports()
        server.prepare()
        command = server.command()
        os.chdir(server.folder)
        os.execvpe(command[0], command, server.environment())

    def change_ports(self, changed: dict[str, int]) -> None:
        """Keeps other ports for servers of this folder, from their next start on."""
        if self.is_supervised():
            raise UsageError("Ports cannot change while servers run. First: python -m infra.servers down")
        unknown = changed.keys() - default_ports.keys()
        if unknown:
            raise UsageError(f"No port is called {', '.join(unknown)}; there are {', '.join(default_ports)}.")
        self.make_folder()
        write_private(self.folder / "ports.json", json.dumps(self.changed_ports() | changed, indent=2))
        self.ports = default_ports | self.changed_ports()
        self.servers = self.made()

    def change_thrift(self, changed: dict[str, str]) -> None:
        """Keeps the lake or the Spark of the Thrift server of this folder, for its next start."""
        if self.is_supervised() and self.process("thrift")["statename"] in ("RUNNING", "STARTING", "BACKOFF"):
            raise UsageError("Its lake cannot change while it runs. First: python -m infra.servers down thrift")
        self.make_folder()
        write_private(self.folder / "thrift.json", json.dumps(self.kept("thrift.json") | changed, indent=2))
        self.servers = self.made()

    def changed_ports(self) -> dict[str, int]:
        return self.kept("ports.json")

    def kept(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def make_folder(self) -> None:
        """Postgres runs as another user and must pass through; secrets are in private files and folders."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o711)
        self.logs.mkdir(mode=0o700, exist_ok=True)

    def supervise(self) -> None:
        """Starts the supervisor when it does not run; it runs on when this process ends."""
        if self.is_supervised():
            return
        self.make_folder()
        write_private(self.folder / "supervisord.conf", self.supervisor_configuration())
        if len(str(self.socket)) > 100:
            raise SluiceError(f"{self.socket} is too long for a socket's name. Choose a shorter folder with --folder.")
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(self.folder / "supervisord.conf")]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SluiceError(f"The supervisor does not start: {done.stdout}{done.stderr}")
        wait_until(self.is_supervised, lambda: f"The supervisor does not answer; see {self.logs}.", 60)

    def is_supervised(self) -> bool:
        try:
            return bool(self.ask("getState")["statename"] == "RUNNING")
        except OSError:
            return False

    def start(self, name: str) -> None:
        if self.process(name)["statename"] not in ("RUNNING", "STARTING"):
            self.ask("startProcess", name, False)

    def stop(self, name: str) -> None:
        if self.process(name)["statename"] in ("RUNNING", "STARTING", "BACKOFF"):
            self.ask("stopProcess", name, True)

    def wait_for(self, name: str) -> None:
        """Waits until a server is healthy; a SluiceError with the end of its log if it fails or takes too long."""

        def failed() -> str:
            log = self.logs / f"{name}.log"
            end = log.read_text(errors="replace")[-1500:] if log.exists() else ""
            return f"{name} did not become healthy; see {log}\n{end}"

        def is_up() -> bool:
            if self.process(name)["statename"] in ("FATAL", "EXITED"):
                raise SluiceError(failed())
            return self.servers[name].is_healthy() and self.process(name)["statename"] == "RUNNING"

        wait_until(is_up, failed, healthy_within_seconds)

    def process(self, name: str) -> dict[str, Any]:
        return dict(self.ask("getProcessInfo", name))

    def ask(self, method: str, *arguments: object) -> Any:
        """A call of the supervisor; an OSError when there is none."""
        from supervisor.xmlrpc import SupervisorTransport

        # The address is a formality: the transport goes through the socket.
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        try:
            return getattr(ServerProxy(f"http://{loopback}", transport=transport).supervisor, method)(*arguments)
        except Fault as error:
            raise SluiceError(f"The supervisor refuses {method} {' '.join(map(str, arguments))}: {error}") from error
        finally:
            transport.close()

    def supervisor_configuration(self) -> str:
        """Each server is a command that becomes it: no password is in this file, or on a command line."""
        head = f"""\
[unix_http_server]
file={self.socket}
chmod=0700
[supervisord]
logfile={self.logs}/supervisord.log
pidfile={self.folder}/supervisord.pid
childlogdir={self.logs}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
        programs = [
            f"""\
[program:{name}]
command="{sys.executable}" -m infra.servers run {name} --folder "{self.folder}"
directory={project}
priority={priority}
autostart=false
autorestart=true
startsecs=2
stopsignal={server.stop_signal}
stopwaitsecs={ends_within_seconds}
redirect_stderr=true
stdout_logfile={self.logs}/{name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
            for priority, (name, server) in enumerate(self.servers.items())
        ]
        # The supervisor takes % for a variable.
        return "".join([head, *programs]).replace("%", "%%")
