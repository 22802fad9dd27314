"""Sends events by a thread of its own, so that a receiver that is slow or down delays nobody."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Full, Queue
from typing import Any
from urllib.parse import unquote, urlsplit

from openlineage.client.serde import Serde
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider
from openlineage.client.transport.http_common import DEFAULT_RETRY_CONFIG
from openlineage.client.transport.kafka import KafkaConfig, KafkaTransport
from openlineage.client.transport.transport import Transport

from sluice.errors import SluiceError, UsageError
from sluice.runtime.settings import Settings

waiting_max = 10_000
# How long a receiver may take to answer, and all that waits may take at the end.
answer_seconds = 5.0
end_seconds = 10.0
default_path = "api/v1/lineage"
loopback = ("127.0.0.1", "localhost", "::1")

Send = Callable[[Any], None]


@contextmanager
def delivering(settings: Settings, warn: Callable[[str], None]) -> Iterator[Send]:
    """What takes events; at the end those that wait are sent, as far as the receiver takes them in time."""
    require_private(settings)
    sender = Sender(lambda: transport_of(settings), settings.openlineage, warn)
    try:
        yield sender.send
    finally:
        sender.close()


def require_private(settings: Settings) -> None:
    """A UsageError where the token would be sent for others to read."""
    parts = urlsplit(settings.openlineage)
    has_token = bool(settings.openlineage_token.get_secret_value())
    if has_token and parts.scheme == "http" and parts.hostname not in loopback:
        raise UsageError("SLUICE_OPENLINEAGE_TOKEN would be sent unencrypted; use an address with https://")


class Sender:
    """A queue of events, and the thread that empties it. Lost events are counted; each outage is reported once."""

    def __init__(self, connect: Callable[[], Transport], address: str, warn: Callable[[str], None]) -> None:
        self.connect, self.address, self.warn = connect, address, warn
        self.waiting: Queue[Any] = Queue(waiting_max)
        self.lock = threading.Lock()
        self.taken = self.sent = 0
        self.is_told = False
        self.thread: threading.Thread | None = None

    def send(self, event: Any) -> None:
        """Takes an event; drops it where too many wait already."""
        with self.lock:
            self.taken += 1
            if self.thread is None:
                self.thread = threading.Thread(target=self.work, name="openlineage", daemon=True)
                self.thread.start()
        with suppress(Full):
            self.waiting.put_nowait(event)

    def work(self) -> None:
        """Sends what waits, until the end is among it."""
        transport: Transport | None = None
        while (event := self.waiting.get()) is not None:
            try:
                transport = transport or self.connect()
                transport.emit(event)
            except Exception as error:  # noqa: BLE001 - whatever a receiver does, it is no part of the run
                if not self.is_told:
                    self.warn(f"Events cannot be sent to {self.address}, and are lost: {error}. The run goes on.")
                self.is_told = True
            else:
                self.sent += 1
                self.is_told = False

    def close(self) -> None:
        """Waits until all is sent, for a while, and says how much was lost."""
        if self.thread is None:
            return
        with suppress(Full):
            self.waiting.put(None, timeout=end_seconds)
            self.thread.join(end_seconds)
        # What the thread may still meet is in the count already.
        self.is_told = True
        if lost := self.taken - self.sent:
            self.warn(f"{lost:,} of {self.taken:,} events could not be sent to {self.address}.")


def transport_of(settings: Settings) -> Transport:
    """What sends to the address of the settings."""
    address, token = settings.openlineage, settings.openlineage_token.get_secret_value()
    parts = urlsplit(address)
    if parts.scheme == "file":
        return FileTransport(FileConfig(unquote(parts.path), append=True))
    if parts.scheme == "kafka":
        log = settings.kafka(f"kafka://{parts.netloc}")
        _ = log.admin  # Says what to install, where there is no client.
        limits = {"message.timeout.ms": int(answer_seconds * 1000)}
        return Delivered(KafkaConfig(log.settings() | limits, parts.path.strip("/")))
    return HttpTransport(
        HttpConfig(
            url=f"{parts.scheme}://{parts.netloc}/",
            endpoint=parts.path.strip("/") or default_path,
            timeout=answer_seconds,
            auth=ApiKeyTokenProvider({"apiKey": token}) if token else TokenProvider({}),
            retry={**DEFAULT_RETRY_CONFIG, "total": 2},
        )
    )


class Delivered(KafkaTransport):
    """Kafka's transport, which only logs an event that no broker took; this one raises an error."""

    def emit(self, event: Any) -> None:
        errors: list[object] = []
        if self.producer is None:
            raise SluiceError("the producer is closed")
        value = Serde.to_json(event).encode()
        self.producer.produce(
            self.topic, value, self._get_message_key(event), on_delivery=lambda error, _: errors.append(error)
        )
        left = self.producer.flush(answer_seconds * 2)
        if left or any(errors):
            raise SluiceError(f"no broker took it: {next(filter(None, errors), 'no answer')}")
