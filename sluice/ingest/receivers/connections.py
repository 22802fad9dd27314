"""The connections of the HTTP receiver: bounded for each client and in all, with the idle ones making room."""

import asyncio
import socket
from dataclasses import dataclass, field

from uvicorn.protocols.http.h11_impl import H11Protocol

no_room = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

refused_seconds_max = 1.0


@dataclass
class Connections:
    """The open connections, the oldest first."""

    most: int
    most_of_client: int
    head_seconds_max: float
    open: "dict[Connection, None]" = field(default_factory=dict)

    def admit(self, new: "Connection") -> bool:
        """Makes room for a connection by closing the oldest idle one, first of its own client; False without room."""
        of_client = [each for each in self.open if each.host == new.host]
        for found, most in ((of_client, self.most_of_client), (list(self.open), self.most)):
            if len(found) >= most and not self.close_idle(found):
                return False
        self.open[new] = None
        return True

    def close_idle(self, found: "list[Connection]") -> bool:
        """Closes the oldest connection that is not answering a request, if there is one."""
        idle = next((each for each in found if each in self.open and not each.is_answering()), None)
        if idle is None:
            return False
        self.open.pop(idle)
        idle.transport.close()
        return True


class Connection(H11Protocol):
    """uvicorn waits for ever for the head of a request; this does not."""

    def __init__(self, *arguments: object, connections: Connections, **more: object) -> None:
        super().__init__(*arguments, **more)  # type: ignore[arg-type]
        self.among = connections
        self.host: str | None = None
        self.is_admitted = False
        self.head_is_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.host = peer[0] if peer else None
        # asyncio does so for sockets that it makes itself; else the body of an answer waits 40 ms for its head's ACK.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_admitted = self.among.admit(self)
        self.wait_for_head(self.among.head_seconds_max if self.is_admitted else refused_seconds_max)

    def data_received(self, data: bytes) -> None:
        if not self.is_admitted:
            # Answered only now: an answer to a request that was not read yet is lost in a reset.
            self.transport.write(no_room)
            self.transport.close()
            return
        super().data_received(data)
        if self.is_answering():
            self.stop_waiting()
        elif self.head_is_due is None:
            self.wait_for_head(self.among.head_seconds_max)

    def connection_lost(self, exc: Exception | None) -> None:
        self.among.open.pop(self, None)
        self.stop_waiting()
        super().connection_lost(exc)

    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def wait_for_head(self, seconds: float) -> None:
        self.head_is_due = self.loop.call_later(seconds, self.give_up)

    def stop_waiting(self) -> None:
        if self.head_is_due is not None:
            self.head_is_due.cancel()
            self.head_is_due = None

    def give_up(self) -> None:
        self.head_is_due = None
        if not self.is_answering():
            self.transport.close()
