"""Connections to Postgres end when the server is lost: its driver would wait for an answer for ever."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection

connect_seconds_max = 10
# A server that lets nobody in for so long does not answer any more.
silent_seconds_max = 30
# For `connect`. A lost network is noticed by the system: when nothing acknowledges what was sent, or that somebody is
# there.
lost_network: dict[str, Any] = {
    "tcp_user_timeout": 30_000,
    "keepalives": 1,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
# By address, when a server was last found not to answer: several connections to one may end at that.
found_silent: dict[str, float] = {}


class ServerLost(SluiceError):
    """A server does not answer any more."""


@contextmanager
def watched(connection: "Connection", address: str, every_seconds: float) -> Iterator[None]:
    """Ends the connection, with a `ServerLost`, when its server stops answering.

    A statement may take long, so what is asked is whether the server still lets somebody in.
    """
    import psycopg2

    begun, done = time.monotonic(), threading.Event()
    server = f"{connection.info.host}:{connection.info.port}"
    with socket.socket(fileno=os.dup(connection.fileno())) as own:

        def watch() -> None:
            while not done.wait(every_seconds):
                if is_silent(address) and not done.is_set():
                    found_silent[address] = time.monotonic()
                    with suppress(OSError):
                        own.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except psycopg2.Error as error:
            if found_silent.get(address, begun) > begun:
                raise ServerLost(f"{server} does not answer any more.") from error
            raise
        finally:
            done.set()


def is_silent(address: str) -> bool:
    """Whether a server lets nobody in, and does not say why either."""
    import psycopg2

    begun = time.monotonic()
    try:
        psycopg2.connect(address, connect_timeout=silent_seconds_max).close()
    except psycopg2.Error:
        # The client counts in whole seconds.
        return time.monotonic() - begun >= silent_seconds_max - 1
    return False
