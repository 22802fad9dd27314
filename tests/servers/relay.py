"""A relay to a server, which may keep to itself what both say without an end of the connection: a lost network."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Relay:
    """Goes between a server and its clients while `goes_on` is set."""

    to: tuple[str, int]
    goes_on: threading.Event

    def take(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self.to)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self.pass_on, args=ends, daemon=True).start()

    def pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with source, to:
            with suppress(OSError):
                while said := source.recv(65_536):
                    self.goes_on.wait()
                    to.sendall(said)
            # Closing alone would not end what the other thread waits for, and with it the connection.
            for each in (source, to):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(address: str) -> Iterator[tuple[str, threading.Event]]:
    """The address of a server as a relay has it, and whether that passes on what is said."""
    server = urlsplit(address)
    goes_on = threading.Event()
    goes_on.set()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = Relay((str(server.hostname), int(server.port or 0)), goes_on)
        threading.Thread(target=relay.take, args=[listener], daemon=True).start()
        try:
            yield address.replace(f":{server.port}/", f":{listener.getsockname()[1]}/"), goes_on
        finally:
            goes_on.set()
