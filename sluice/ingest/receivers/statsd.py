"""StatsD over UDP: each line is a record, and each loss that can be known is counted and is a record too."""

import asyncio
import re
import signal
import socket
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import orjson

from sluice.errors import LogError, ReceiverError
from sluice.ingest.receivers.records import append
from sluice.log import AnyLog, Record

datagram_bytes_max = 65_535
# Reading more at once would keep signals and flushes waiting.
datagrams_a_wakeup = 32
# What a datagram takes of a receive buffer at least, with what the kernel notes of it.
buffered_bytes_min = 512
loss_name = "sluice.statsd.lost_datagrams"

# A line of six bytes becomes a record of some hundred: what waits is turned into records a part at a time.
append_bytes_max = 256 * 1024

# Linux counts how many datagrams a socket had no room for: the last of nine numbers, modulo 2**32.
so_meminfo = 55
meminfo_format = "9I"

line_pattern = re.compile(
    r"(?P<name>[^:|]+):(?P<value>[^|]+)\|(?P<type>c|g|ms|h|d|s)(?:\|@(?P<rate>[0-9.]+))?(?:\|#(?P<tags>[^|]*))?"
)
# One way only to match each text: with two ways for the same digits, a long line takes quadratic time.
number_pattern = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Options:
    """Where metrics go, how often, and how many datagrams and bytes wait at most in between."""

    topic: str
    flush_seconds: float = 1.0
    queue_datagrams_max: int = 100_000
    queue_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True)
class Flushed:
    """What one flush appended, and what was lost since the one before."""

    at: datetime
    datagrams: int
    records: int
    malformed: int
    lost_in_kernel: int
    lost_in_queue: int

    @property
    def lost(self) -> int:
        return self.lost_in_kernel + self.lost_in_queue

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


Report = Callable[[Flushed], None]
Notify = Callable[[str], None]


def opened_socket(host: str, port: int, receive_buffer_bytes: int | None) -> socket.socket:
    """A socket for datagrams; a ReceiverError when the address cannot be had, or losses cannot be counted."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if receive_buffer_bytes is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        opened.bind((host, port))
        opened.setblocking(False)
        drops_of(opened)
    except OSError as error:
        opened.close()
        raise ReceiverError(
            f"{host}:{port} cannot be listened to: {error.strerror}. "
            "Give another --port; losses are counted by Linux, 4.12 or newer."
        ) from error
    return opened


def drops_of(listening: socket.socket) -> int:
    """How many datagrams the kernel had no room for since the socket was opened, modulo 2**32."""
    size = struct.calcsize(meminfo_format)
    return int(struct.unpack(meminfo_format, listening.getsockopt(socket.SOL_SOCKET, so_meminfo, size))[-1])


async def serve(
    log: AnyLog, options: Options, listening: socket.socket, report: Report, notify: Notify, *, greeting: str
) -> None:
    """Appends every `flush_seconds` until SIGTERM or SIGINT, and then once more what is left in the socket."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await asyncio.to_thread(log.create, options.topic)
    notify(greeting)
    receiver = Receiver(log, options, listening, report)
    loop.add_reader(listening, receiver.receive)
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), options.flush_seconds)
        except TimeoutError:
            try:
                await receiver.flush()
            except LogError as error:
                notify(f"{error} Trying again in {options.flush_seconds:g} s.")
    loop.remove_reader(listening)
    await receiver.finish()


class Receiver:
    """The datagrams that wait, and the flushes that append them."""

    def __init__(self, log: AnyLog, options: Options, listening: socket.socket, report: Report) -> None:
        self.log = log
        self.options = options
        self.socket = listening
        self.report = report
        self.waiting: deque[tuple[datetime, bytes]] = deque()
        self.waiting_bytes = 0
        self.lost_in_queue = 0
        # What was lost since the socket was opened is lost too.
        self.drops_seen = 0
        # A flush that failed is tried again with the same records, so that their ids are the same.
        self.unwritten: tuple[Flushed, list[Record]] | None = None
        self.run = uuid.uuid4().hex
        self.numbers = count()

    def receive(self) -> bool:
        """Receives what the kernel has buffered, up to a limit per wake-up; returns whether there may be more."""
        for _ in range(datagrams_a_wakeup):
            try:
                datagram = self.socket.recv(datagram_bytes_max)
            except BlockingIOError:
                return False
            if self.has_room_for(datagram):
                self.waiting.append((datetime.now(UTC), datagram))
                self.waiting_bytes += len(datagram)
            else:
                self.lost_in_queue += 1
        return True

    def has_room_for(self, datagram: bytes) -> bool:
        is_counted = len(self.waiting) < self.options.queue_datagrams_max
        return is_counted and self.waiting_bytes + len(datagram) <= self.options.queue_bytes_max

    async def flush(self) -> None:
        """Appends what waits, with a record of each loss; if that fails, raises a LogError and keeps the records."""
        # What comes meanwhile is for the next flush, so that this one ends.
        for _ in range(1 + self.waiting_bytes // append_bytes_max):
            if self.unwritten is None:
                self.unwritten = self.taken()
            flushed, records = self.unwritten
            if records:
                await asyncio.to_thread(append, self.log, self.options.topic, records)
                self.report(flushed)
            self.unwritten = None

    async def finish(self) -> None:
        """Appends what the kernel has buffered; clients that keep sending do not keep the receiver open."""
        buffered_max = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // buffered_bytes_min
        for _ in range(1 + buffered_max // datagrams_a_wakeup):
            if not self.receive():
                break
        try:
            if self.unwritten is not None:
                await self.flush()
            await self.flush()
        except LogError as error:
            lost = len(self.unwritten[1]) if self.unwritten else 0
            raise LogError(
                f"{error} {lost + len(self.waiting)} records or datagrams that had come are lost."
            ) from error

    def taken(self) -> tuple[Flushed, list[Record]]:
        """As much of what waits as one append takes, as records, and what was lost since the last time."""
        now = datetime.now(UTC)
        datagrams = list(self.next_datagrams())
        records = [record for received_at, datagram in datagrams for record in self.records(received_at, datagram)]
        malformed = sum("malformed" in record.headers for record in records)
        drops = drops_of(self.socket)
        lost = {"kernel": (drops - self.drops_seen) % 2**32, "queue": self.lost_in_queue}
        self.drops_seen, self.lost_in_queue = drops, 0
        records += [self.record(loss(where, lost[where]), now) for where in lost if lost[where]]
        return Flushed(now, len(datagrams), len(records), malformed, lost["kernel"], lost["queue"]), records

    def next_datagrams(self) -> Iterator[tuple[datetime, bytes]]:
        """Datagrams in the order in which they came, up to about `append_bytes_max`."""
        size = 0
        while self.waiting and size < append_bytes_max:
            received_at, datagram = self.waiting.popleft()
            size += len(datagram)
            self.waiting_bytes -= len(datagram)
            yield received_at, datagram

    def records(self, received_at: datetime, datagram: bytes) -> Iterator[Record]:
        """Each line as a record; one that is no metric as it is, under a header that says so."""
        for line in datagram.split(b"\n"):
            if not line.strip():
                continue
            metric = metric_of(line)
            if metric is None:
                yield Record(line, timestamp=received_at, headers={"malformed": "statsd"})
            else:
                yield self.record(metric, received_at)

    def record(self, metric: dict[str, Any], received_at: datetime) -> Record:
        """A metric with an id, which a declaration can have as its key: two equal lines are two metrics."""
        received = received_at.isoformat().replace("+00:00", "Z")
        identified = {"id": f"{self.run}-{next(self.numbers)}"} | metric | {"received_at": received}
        return Record(orjson.dumps(identified), timestamp=received_at)


def metric_of(line: bytes) -> dict[str, Any] | None:
    """The metric of a line `name:value|type|@rate|#tags`; None when it is none."""
    try:
        found = line_pattern.fullmatch(line.decode().strip())
    except UnicodeDecodeError:
        return None
    if found is None:
        return None
    value = found["value"] if found["type"] == "s" else number_of(found["value"])
    rate = 1.0 if found["rate"] is None else number_of(found["rate"])
    if value is None or rate is None or not 0 < rate <= 1:
        return None
    metric = {
        "name": found["name"],
        "value": value,
        "type": found["type"],
        "sample_rate": rate,
        "tags": [tag_of(text) for text in (found["tags"] or "").split(",") if text],
    }
    # A gauge with a sign is added to what the gauge was.
    is_relative = found["type"] == "g" and found["value"][0] in "+-"
    return metric | ({"relative": True} if is_relative else {})


def number_of(text: str) -> float | None:
    """A finite number; None for NaN and infinity, which JSON cannot express."""
    if not number_pattern.fullmatch(text):
        return None
    value = float(text)
    return value if abs(value) != float("inf") else None


def tag_of(text: str) -> dict[str, str | None]:
    key, colon, value = text.partition(":")
    return {"key": key, "value": value if colon else None}


def loss(where: str, datagrams: int) -> dict[str, Any]:
    """A loss as a metric like any other, so that gold can show it beside the figures that it concerns."""
    tags = [{"key": "where", "value": where}]
    return {"name": loss_name, "value": float(datagrams), "type": "c", "sample_rate": 1.0, "tags": tags}
