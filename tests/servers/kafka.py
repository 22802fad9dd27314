"""A network before a broker that loses replies and brings requests twice."""

import socket
import socketserver
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from infra.servers import Kafka

# The numbers of the protocol for what a client asks.
asks_for = {0: "produce", 1: "fetch"}


@dataclass(frozen=True)
class Behind(Kafka):
    """A broker that clients reach by a proxy: it is the proxy's address that the broker tells them."""

    proxy_port: int = 0

    def properties(self) -> str:
        advertised = f"advertised.listeners=PLAINTEXT://{self.address}"
        found = super().properties()
        assert advertised in found
        return found.replace(advertised, f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.proxy_port}")


class Unreliable:
    """Passes on whole messages, and strikes those whose turn it is."""

    def __init__(self, kafka: Kafka, **every: int) -> None:
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
        with socket.create_connection(("127.0.0.1", self.kafka.port)) as broker:
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
