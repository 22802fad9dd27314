"""A broker as tests want it, and a network before it that loses replies and brings requests twice."""

import socket
import socketserver
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from infra.servers import Kafka, free_port
from infra.servers.server import loopback
from sluice.log import KafkaLog, KafkaSecurity

# The numbers of the protocol for what a client asks.
asks_for = {0: "produce", 1: "fetch"}


@dataclass(frozen=True)
class ThreeDoors(Kafka):
    """A broker that clients reach as usual; by a proxy, whose address it tells them; and with TLS and a password."""

    behind_port: int = field(default_factory=free_port)
    proxy_port: int = field(default_factory=free_port)
    secure_port: int = field(default_factory=free_port)

    def properties(self) -> str:
        login = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required username=broker password=inner "
            'user_broker=inner user_sluice="se\\"cret";'
        ).replace("\\", "\\\\")
        behind, proxy, secure, controller = (
            f"{loopback}:{port}" for port in (self.behind_port, self.proxy_port, self.secure_port, self.controller_port)
        )
        # Of a property that is there twice, the second counts.
        return (
            f"{super().properties()}"
            f"listeners=PLAINTEXT://{self.address},PROXIED://{behind},SECURE://{secure},CONTROLLER://{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address},PROXIED://{proxy},SECURE://{secure}\n"
            "listener.security.protocol.map="
            "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={self.folder / 'broker.pem'}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.folder / 'ca.pem'}\n"
            f"sasl.enabled.mechanisms=PLAIN\nlistener.name.secure.plain.sasl.jaas.config={login}\n"
        )

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "broker.pem").exists():
            self.certify()
        super().prepare()

    def certify(self) -> None:
        key, certificate = self.folder / "key.pem", self.folder / "ca.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        names = ["-addext", "subjectAltName=IP:127.0.0.1"]
        made = [*command, *names, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(made, check=True, capture_output=True)
        (self.folder / "broker.pem").write_text(key.read_text() + certificate.read_text())

    def log(self, password: str) -> KafkaLog:
        """What it has, by the door that asks for a password."""
        security = KafkaSecurity("SASL_SSL", "PLAIN", "sluice", password, ssl_ca=self.folder / "ca.pem")
        return KafkaLog(f"{loopback}:{self.secure_port}", security, answer_seconds=3)


class Unreliable:
    """Passes on whole messages, and strikes those whose turn it is."""

    def __init__(self, kafka: ThreeDoors, **every: int) -> None:
        """Every so many of those that a fault may strike: `produced_twice=4`."""
        self.kafka = kafka
        self.every = every
        self.seen: Counter[str] = Counter()

    def strikes(self, fault: str) -> bool:
        """Whether a fault strikes now."""
        self.seen[fault] += 1
        return fault in self.every and self.seen[fault] % self.every[fault] == 0

    def has_struck(self) -> bool:
        """Whether each fault did."""
        return all(self.seen[fault] >= each for fault, each in self.every.items())

    def connect(self, client: socket.socket) -> None:
        """One connection of a client, and one to the broker for it; both end together."""
        # What the client waits for, in order; None is what it never asked for.
        waiting: deque[str | None] = deque()
        with socket.create_connection((loopback, self.kafka.behind_port)) as broker:
            asking = threading.Thread(target=until_closed, args=[self.ask, client, broker, waiting])
            asking.start()
            until_closed(self.reply, broker, client, waiting)
            asking.join()

    def ask(self, client: socket.socket, broker: socket.socket, waiting: "deque[str | None]") -> None:
        while message := next_message(client):
            kind = asks_for.get(int.from_bytes(message[4:6], "big"), "other")
            waiting.append(kind)
            broker.sendall(message)
            if kind == "produce" and self.strikes("produced_twice"):
                waiting.append(None)
                broker.sendall(message)

    def reply(self, broker: socket.socket, client: socket.socket, waiting: "deque[str | None]") -> None:
        while message := next_message(broker):
            kind = waiting.popleft()
            if kind in ("produce", "fetch") and self.strikes(f"{kind}_reply_lost"):
                return
            if kind is not None:
                client.sendall(message)


def until_closed(pass_on: Callable[..., None], source: socket.socket, target: socket.socket, waiting: object) -> None:
    """Passes messages on as long as both sides are there, and then ends both."""
    with suppress(OSError):
        pass_on(source, target, waiting)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def next_message(source: socket.socket) -> bytes:
    """A message with its length before it; nothing when the other side has ended."""
    length = exactly(source, 4)
    return length + exactly(source, int.from_bytes(length, "big")) if length else b""


def exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = source.recv(count - len(found))
        if not part:
            return b""
        found += part
    return found


class Proxy(socketserver.ThreadingTCPServer):
    """Waits for the thread of each connection when it closes."""

    allow_reuse_address = True
    block_on_close = True


@contextmanager
def proxied(network: Unreliable, port: int) -> Iterator[None]:
    """Lets clients reach the broker at a port by that network."""
    clients: list[socket.socket] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            clients.append(self.request)
            network.connect(self.request)

    with Proxy(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            for each in clients:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
