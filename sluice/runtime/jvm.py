"""The JVM of a session: started, or taken over from a command that ended a while ago and left it (decision 34)."""

import gc
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

import pyspark
from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER

from sluice.errors import SluiceError
from sluice.runtime import keeper
from sluice.runtime.calls import frugal
from sluice.runtime.class_archive import ClassArchive
from sluice.runtime.settings import Settings
from sluice.storage.lock import is_lock_of, lock_file

if TYPE_CHECKING:
    from pyspark import SparkConf

ends_within_seconds = 300
# py4j and Spark's listeners leave a little of each session behind.
sessions_max = 100
# Variables that say nothing of what a JVM or its Python workers do. The settings are compared as such.
volatile = ("_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")
# The settings that a JVM is started with.
bearing = {
    "project",
    "lake",
    "spark",
    "driver_memory",
    "cluster_cores",
    "executor_memory",
    "java_options",
    "jars",
    "log",
}
asked_bytes_max = 65_536


class Process(Protocol):
    """The process of a JVM, as far as a session needs it."""

    pid: int
    stdin: IO[bytes] | None

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class TakenProcess:
    """The process of a JVM that another process started: from the file `alive` nothing is read before it has ended."""

    pid: int
    stdin: IO[bytes] | None
    alive: int

    def poll(self) -> int | None:
        return -1 if select.select([self.alive], [], [], 0)[0] else None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self.alive], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("java", timeout or 0)
        return -1


@dataclass
class Jvm:
    """A JVM: how it is reached, its process, the folder for what it writes, and how many sessions it has had."""

    port: int
    secret: str
    process: Process
    alive: int
    scratch: Path
    sessions: int
    gateway: Any = None

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def ends_within(self, seconds: float) -> bool:
        """Whether it has ended, or does so soon: its connections end a little before it."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.has_ended

    def reached(self) -> Self:
        """The same, with PySpark's way to it, for another session."""
        from pyspark.java_gateway import launch_gateway

        os.environ |= {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        gateway.proc = self.process
        self.gateway, self.sessions = frugal(gateway), self.sessions + 1
        return self

    def forget_session(self) -> None:
        """Lets go of what a session that has stopped left, and of the JVM."""
        jvm, client = self.gateway.jvm, self.gateway._gateway_client
        # Tables may be made again at the same paths, and credentials change, until it is used again.
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        jvm.org.apache.hadoop.fs.FileSystem.closeAll()
        gc.collect()
        client.garbage_collect_object.forget()
        client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
        self.gateway.close()
        self.gateway = None

    def end(self) -> None:
        """Ends the JVM, and removes what it wrote."""
        if self.gateway is not None and not self.has_ended:
            self.gateway.shutdown()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=ends_within_seconds)
        os.close(self.alive)
        shutil.rmtree(self.scratch, ignore_errors=True)


def started(conf: "SparkConf", log: Path, descriptors: Sequence[int], scratch: Path) -> Jvm:
    """A new JVM, which inherits the descriptors."""
    from pyspark.java_gateway import launch_gateway

    alive, open_in_jvm = os.pipe()
    try:
        with open(log, "ab") as said:
            # Its own output, too: a pipe of the command's would stay open as long as the JVM.
            popen_kwargs = {"pass_fds": [open_in_jvm, *descriptors], "stdout": said, "stderr": said}
            with in_utf8():
                gateway = launch_gateway(conf, popen_kwargs=popen_kwargs)  # type: ignore[no-untyped-call]
    except BaseException:
        os.close(alive)
        raise
    finally:
        os.close(open_in_jvm)
    # While it runs, nobody removes the folder.
    (scratch / "pid").write_text(str(gateway.proc.pid))
    reached = gateway.java_parameters
    return Jvm(reached.port, reached.auth_token, gateway.proc, alive, scratch, 1, frugal(gateway))


@contextmanager
def in_utf8() -> Iterator[None]:
    """Where no locale is set, a JVM knows names of files in ASCII alone, and cannot even start in a folder `größe`."""
    set_to = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    before = os.environ.get("LC_ALL")
    if set_to in ("C", "POSIX"):
        os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        if before is not None:
            os.environ["LC_ALL"] = before
        elif set_to in ("C", "POSIX"):
            del os.environ["LC_ALL"]


def forget_gateway() -> None:
    """Lets this process use another JVM: PySpark would go on to ask the one that has ended."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def trust(gateway: Any, bundle: Path, store: Path) -> None:
    """Lets the JVM trust the authorities in a PEM file, which it cannot read by itself, and no others."""
    jvm = gateway.jvm
    trusted = jvm.java.security.KeyStore.getInstance("PKCS12")
    trusted.load(None, None)
    factory = jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    with closing(jvm.java.io.FileInputStream(str(bundle))) as file:
        for number, certificate in enumerate(factory.generateCertificates(file)):
            trusted.setCertificateEntry(str(number), certificate)
    # There is no secret in it, but of one without a password the JVM reads nothing.
    password = gateway.new_array(jvm.char, 1)
    password[0] = "-"
    with closing(jvm.java.io.FileOutputStream(str(store))) as file:
        trusted.store(file, password)
    for name, value in (("", str(store)), ("Type", "PKCS12"), ("Password", "-")):
        jvm.java.lang.System.setProperty(f"javax.net.ssl.trustStore{name}", value)


@dataclass
class Place:
    """Where the JVM of a project waits for the next command: it holds what waited, or is to wait.

    `archive` is what a JVM that was started reads its classes from, or would.
    """

    path: Path
    seconds: float
    fingerprint: str
    jvm: Jvm | None = None
    lock_file: int | None = None
    archive: ClassArchive | None = None

    def take(self) -> Jvm | None:
        """The JVM, if one waited."""
        jvm, self.jvm = self.jvm, None
        return jvm


@contextmanager
def place(settings: Settings, *, writes: bool = False) -> Iterator[Place | None]:
    """The place for the project's JVM, which is kept there at the end when it was left in order; None: none is kept.

    The lake is locked by the place's own file, which the JVM has inherited: whatever happens to the commands, no other
    process writes the lake before the JVM has ended, or is unused.
    """
    folder = folder_for_sockets()
    if settings.is_remote or not settings.keep_spark_minutes or folder is None:
        yield None
        return
    # One JVM waits for each lake.
    name = hashlib.sha256(settings.lake_root.encode()).hexdigest()[:32]
    found = Place(folder / name, 60 * settings.keep_spark_minutes, fingerprint(settings))
    taken(found, settings)
    if found.lock_file is None and settings.location.folder is not None:
        found.lock_file = lock_file(settings.lake_root) if writes else lock_file_if_there(settings.lake_root)
    try:
        yield found
    finally:
        jvm = found.take()
        if jvm is not None and not kept(jvm, found):
            jvm.end()
        if found.archive is not None:
            found.archive.ask_for()
        if found.lock_file is not None:
            os.close(found.lock_file)


def lock_file_if_there(root: str) -> int | None:
    """The lock's open file for a JVM that only reads, and may be left to a command that writes."""
    if Path(root).is_dir():
        # Who may read a lake and not write it keeps no JVM.
        with suppress(SluiceError):
            return lock_file(root)
    return None


def taken(found: Place, settings: Settings) -> None:
    """Takes over the JVM that waits at a place; there may be none, and one that does not fit is ended."""
    with socket.socket(socket.AF_UNIX) as asking, suppress(OSError):
        asking.connect(str(found.path))
        record, files, _, _ = socket.recv_fds(asking, asked_bytes_max, 3)
        if len(files) < 2:
            return
        alive, stdin, *lock = files
        known = json.loads(record)
        process = TakenProcess(known["pid"], os.fdopen(stdin, "wb", buffering=0), alive)
        jvm = Jvm(known["port"], known["secret"], process, alive, Path(known["scratch"]), known["sessions"])
        fits = known["fingerprint"] == found.fingerprint and all(is_lock_of(each, settings.lake_root) for each in lock)
        if jvm.has_ended or not fits:
            jvm.end()
            for each in lock:
                os.close(each)
            return
        found.jvm, found.lock_file = jvm, lock[0] if lock else None


def kept(jvm: Jvm, where: Place) -> bool:
    """Lets the JVM wait at a place; False when it has ended, has had its time, or when another waits there."""
    if jvm.has_ended or jvm.sessions >= sessions_max or jvm.process.stdin is None:
        return False
    stdin = jvm.process.stdin
    files = [jvm.alive, stdin.fileno(), *([] if where.lock_file is None else [where.lock_file])]
    known = {"port": jvm.port, "secret": jvm.secret, "pid": jvm.process.pid}
    record = json.dumps(
        {**known, "scratch": str(jvm.scratch), "sessions": jvm.sessions, "fingerprint": where.fingerprint}
    )
    command = [sys.executable, "-I", "-S", keeper.__file__, str(where.path), str(where.seconds), str(jvm.scratch)]
    asked = subprocess.run(  # noqa: S603 - our own program
        [*command, *map(str, files)],
        input=record.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=files,
        check=False,
        cwd="/",
    )
    if asked.returncode:
        return False
    stdin.close()
    os.close(jvm.alive)
    if isinstance(jvm.process, subprocess.Popen):
        # It is not this process's to wait for.
        jvm.process.returncode = 0
    return True


def fingerprint(settings: Settings) -> str:
    """What a JVM must have been started with to serve a command: settings, environment, folder and installation."""
    variables = {name: value for name, value in os.environ.items() if name not in volatile and name[:7] != "SLUICE_"}
    ours = [(each.name, each.stat().st_mtime_ns) for each in sorted(Path(__file__).parent.iterdir()) if each.is_file()]
    installed = [str(Path(__file__)), sys.prefix, sys.version, pyspark.__version__, ours]
    wanted = settings.model_dump_json(include=bearing)
    made_of = [wanted, sorted(variables.items()), str(Path.cwd()), installed]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def is_used(scratch: Path) -> bool:
    """Whether the JVM of a scratch folder is there still, with a session or waiting for one."""
    with suppress(OSError, ValueError):
        os.kill(int((scratch / "pid").read_text()), 0)
        return True
    return False


def folder_for_sockets() -> Path | None:
    """A folder of this user's that nobody else can enter; None where there is none."""
    folder = Path(tempfile.gettempdir(), f"sluice-{os.getuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    return None
