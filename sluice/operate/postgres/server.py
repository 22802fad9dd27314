"""The server: accepts connections, lets users in, and gives each a session in a thread of its own."""

import logging
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from sluice.errors import SluiceError, UsageError
from sluice.operate.consistent import Newest
from sluice.operate.listening import listening, loopback, tls_of
from sluice.operate.memory import Limited, bytes_of
from sluice.operate.postgres import dialect, wire
from sluice.operate.postgres.scram import Refused, Scram
from sluice.operate.postgres.session import Session
from sluice.operate.postgres.wire import ProtocolError
from sluice.operate.query import connected
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

logger = logging.getLogger("sluice")
# How long a client may take to say who it is, and then for the rest of a message that it has begun.
greeting_seconds_max = 10.0
message_seconds_max = 60.0
# The tables are looked at this often at most.
look_seconds = 0.2
watch_seconds = 0.1
# How many connections to the tables wait for a client.
waiting_max = 4
# What is sent waits for more, up to so many bytes.
kept_bytes_max = 2**16
closing_seconds_max = 5.0


@dataclass(frozen=True)
class Options:
    """Where the server listens, whom it lets in, and what a statement may use.

    `users` are passwords by name; without any, anybody may come, from this machine. With a `certificate` and its `key`
    clients can use TLS, and from other machines they must.
    """

    host: str = "127.0.0.1"
    port: int = 5433
    users: Mapping[str, str] = field(default_factory=dict)
    certificate: Path | None = None
    key: Path | None = None
    statement_seconds_max: float = 60.0
    memory_limit: str = "1GB"
    connections_max: int = 50
    # What the whole process may take, beyond what it has when it begins; empty: all that there is.
    process_memory: str = ""

    def require(self) -> None:
        """A UsageError for what would let strangers in."""
        if self.host not in loopback and not (self.users and self.certificate):
            raise UsageError(
                f"Other machines could read all tables at {self.host}: give users with passwords "
                "(SLUICE_SQL_USERS) and a certificate for TLS (--certificate, --key), or listen on 127.0.0.1."
            )


class Tables:
    """The newest consistent versions of all tables, and connections to them.

    To open all tables takes longer than most statements, and some clients connect for each. So a connection that
    one has left waits for another: it has only read, and is as it was.
    """

    def __init__(self, lake: Lake, memory_limit: str, comments: Sequence[dialect.Comment] = ()) -> None:
        self.lake, self.memory_limit, self.comments = lake, memory_limit, comments
        self.lock = threading.Lock()
        self.newest = Newest(lake, look_seconds)
        self.waiting: list[tuple[object, DuckDBPyConnection]] = []

    def is_newest(self, versions: object) -> bool:
        return versions == self.newest.versions()

    def connect(self) -> "tuple[object, DuckDBPyConnection]":
        versions = self.newest.versions()
        with self.lock:
            while self.waiting:
                known, connection = self.waiting.pop()
                if known == versions:
                    return known, connection
                connection.close()
            prepare = partial(dialect.prepare, memory_limit=self.memory_limit, comments=self.comments)
            return versions, connected(self.lake, versions=versions, reads_only=True, prepare=prepare)

    def release(self, versions: object, connection: "DuckDBPyConnection") -> None:
        """Takes back a connection that nobody uses any more."""
        with self.lock:
            if self.is_newest(versions) and len(self.waiting) < waiting_max:
                self.waiting.append((versions, connection))
            else:
                connection.close()

    def close(self) -> None:
        with self.lock:
            while self.waiting:
                self.waiting.pop()[1].close()


class Server:
    """Listens when it is made; `serve` answers until `close`."""

    def __init__(self, lake: Lake, options: Options, comments: Sequence[dialect.Comment] = ()) -> None:
        """A UsageError for options that cannot be used, or an address where it cannot listen."""
        options.require()
        self.options, self.tables = options, Tables(lake, options.memory_limit, comments)
        self.sessions: dict[bytes, Session] = {}
        self.connections: set[Connection] = set()
        self.threads: set[threading.Thread] = set()
        self.is_closed = threading.Event()
        self.tls = tls_of(options.certificate, options.key)
        try:
            duckdb.connect(config={"memory_limit": options.memory_limit}).close()
            for limit in filter(None, (options.memory_limit, options.process_memory)):
                bytes_of(limit)
        except duckdb.Error as error:
            raise UsageError(f"The memory limit is '{options.memory_limit}'; write for example 1GB") from error
        self.listener = listening(options.host, options.port, waiting_max=100)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        """Answers clients until `close` is called, by another thread or a signal."""
        threading.Thread(target=self.watch, daemon=True).start()
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                break
            thread = threading.Thread(target=self.attend, args=(client,), daemon=True)
            self.threads.add(thread)
            thread.start()
        # A thread in DuckDB would not survive the end of Python.
        for thread in [*self.threads]:
            thread.join(closing_seconds_max)
        self.tables.close()

    def close(self) -> None:
        """Ends all connections."""
        self.is_closed.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for session in [*self.sessions.values()]:
            session.cancel("terminating connection due to administrator command")
        for each in [*self.connections]:
            each.end()

    def watch(self) -> None:
        """Ends what takes too long: one thread for all, as a timer for each statement costs more than most of them."""
        memory = Limited(bytes_of(self.options.process_memory)) if self.options.process_memory else None
        while not self.is_closed.wait(watch_seconds):
            if memory is not None:
                memory.follow()
            for session in [*self.sessions.values()]:
                session.cancel_if_late()
            for connection in [*self.connections]:
                if connection.is_late:
                    connection.end()

    def attend(self, client: socket.socket) -> None:
        """One connection, from its first byte to its last; an error ends this connection alone."""
        connection = Connection(client)
        self.connections.add(connection)
        connection.due_in(greeting_seconds_max)
        try:
            if len(self.connections) > self.options.connections_max:
                connection.send_last(wire.error("FATAL", "53300", "too many connections"))
                return
            self.greet(connection)
        except (OSError, EOFError):
            pass
        except ProtocolError as error:
            connection.send_last(wire.error("FATAL", error.state, f"not understood: {error}"))
        except SluiceError as error:
            connection.send_last(wire.error("FATAL", "XX000", str(error)))
        except Exception:
            logger.exception("a connection of the SQL server failed")
            connection.send_last(wire.error("FATAL", "XX000", "internal error"))
        finally:
            self.connections.discard(connection)
            connection.close()
            self.threads.discard(threading.current_thread())

    def greet(self, connection: "Connection") -> None:
        """The beginning: TLS, who it is, or what is to be cancelled; then the session."""
        found = wire.startup(connection.startup())
        # Each may be asked for once.
        for _ in range(2):
            if found.code == wire.tls_code and not connection.is_tls:
                if self.tls is None:
                    connection.send(b"N")
                else:
                    connection.send(b"S")
                    connection.secure(self.tls)
                found = wire.startup(connection.startup())
            elif found.code == wire.gss_code:
                connection.send(b"N")
                found = wire.startup(connection.startup())
        if found.code == wire.cancel_code:
            session = self.sessions.get(found.key)
            if session is not None:
                session.cancel()
            return
        if found.code != wire.protocol_3:
            raise ProtocolError("the connection does not begin")
        if self.options.host not in loopback and not connection.is_tls:
            raise ProtocolError("TLS is required here (sslmode=require)", "28000")
        user = found.parameters.get("user", "")
        if self.options.users and not authenticated(connection, self.options.users.get(user)):
            connection.send_last(wire.error("FATAL", "28P01", f'password authentication failed for user "{user}"'))
            return
        self.converse(connection)

    def converse(self, connection: "Connection") -> None:
        session = Session(
            self.tables, connection.send, self.options.statement_seconds_max, bytes_of(self.options.memory_limit)
        )
        key = secrets.token_bytes(8)
        self.sessions[key] = session
        try:
            connection.send(wire.message("R", struct.pack("!i", 0)))
            for name in ("server_version", "server_encoding", "client_encoding", "integer_datetimes"):
                connection.send(status(name, dialect.settings[name]))
            connection.send(status("DateStyle", "ISO, MDY") + status("TimeZone", "UTC"))
            connection.send(status("standard_conforming_strings", "on") + status("IntervalStyle", "postgres"))
            connection.send(wire.message("K", key))
            session.ready()
            # From now on a client may be silent as long as it likes, between two messages.
            connection.due_in(None)
            while (found := connection.message()) is not None:
                session.take(*found)
        finally:
            session.close()
            del self.sessions[key]


def status(name: str, value: str) -> bytes:
    return wire.message("S", wire.text(name), wire.text(value))


def authenticated(connection: "Connection", password: str | None) -> bool:
    """Whether a client proves by SCRAM-SHA-256 that it knows the password."""
    scram = Scram(password)
    connection.send(wire.message("R", struct.pack("!i", 10), wire.text("SCRAM-SHA-256"), b"\0"))
    try:
        fields = wire.Fields(connection.password())
        if fields.text() != "SCRAM-SHA-256":
            return False
        connection.send(wire.message("R", struct.pack("!i", 11), scram.first(fields.value() or b"")))
        connection.send(wire.message("R", struct.pack("!i", 12), scram.final(connection.password())))
    except Refused:
        return False
    return True


class Connection:
    """The bytes of one client: what is sent waits until nothing is left to read, so that an answer is one packet."""

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.received, self.outgoing = bytearray(), bytearray()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_tls = False
        self.due: float | None = None

    def due_in(self, seconds: float | None) -> None:
        """What the client has begun must be done in so many seconds; None: it may take its time."""
        self.due = None if seconds is None else time.monotonic() + seconds

    @property
    def is_late(self) -> bool:
        return self.due is not None and time.monotonic() > self.due

    def end(self) -> None:
        """Ends the connection, from another thread: what waits for its bytes gets none."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def secure(self, tls: ssl.SSLContext) -> None:
        self.flush()
        # They would be taken for what the client has sent by TLS, and anybody in between can add them.
        if self.received:
            raise ProtocolError("there are bytes before TLS")
        self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.is_tls = True

    def startup(self) -> bytes:
        (length,) = struct.unpack("!i", self.take(4))
        if not 8 <= length <= wire.startup_bytes_max:
            raise ProtocolError("the first message has a wrong length")
        return self.take(length - 4)

    def message(self) -> tuple[str, bytes] | None:
        """The next message; None at the end."""
        kind = self.take(1)
        self.due_in(message_seconds_max)
        found = self.message_of(kind, wire.message_bytes_max)
        self.due_in(None)
        return found

    def message_of(self, kind: bytes, bytes_max: int) -> tuple[str, bytes] | None:
        (length,) = struct.unpack("!i", self.take(4))
        if not 4 <= length <= bytes_max:
            raise ProtocolError("a message has a wrong length")
        body = self.take(length - 4)
        return None if kind == b"X" else (kind.decode("latin-1"), body)

    def password(self) -> bytes:
        """What a client proves itself with; nobody may send much, or take long, before that."""
        found = self.message_of(self.take(1), wire.startup_bytes_max)
        if found is None:
            raise EOFError
        if found[0] != "p":
            raise ProtocolError("there is no password")
        return found[1]

    def take(self, count: int) -> bytes:
        while len(self.received) < count:
            self.flush()
            part = self.socket.recv(max(2**16, min(count - len(self.received), 2**20)))
            if not part:
                raise EOFError
            self.received += part
        found = bytes(self.received[:count])
        del self.received[:count]
        return found

    def send(self, message: bytes) -> None:
        self.outgoing += message
        if len(self.outgoing) > kept_bytes_max:
            self.flush()

    def flush(self) -> None:
        if self.outgoing:
            self.socket.sendall(self.outgoing)
            self.outgoing.clear()

    def send_last(self, message: bytes) -> None:
        """Sends before the end, if that is still possible."""
        with suppress(OSError):
            self.send(message)
            self.flush()

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()
