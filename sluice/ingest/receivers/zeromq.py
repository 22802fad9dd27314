"""ZeroMQ: messages of PUSH or PUB sockets. Nothing is acknowledged, so what can be lost is counted by its numbers."""

import base64
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import zmq

from sluice.errors import LogError, LogRefused, ReceiverError, UsageError
from sluice.ingest.receivers.records import append, key_in, key_text, object_in
from sluice.ingest.receivers.retries import Notify, appending
from sluice.log import AnyLog, Record

poll_seconds_max = 0.2


@dataclass(frozen=True)
class Options:
    """Where messages come from, and how many are taken at once.

    With `prefixes` the socket is a SUB, and takes messages that begin with one of them; without, it is a PULL.
    `sequence_field` names a field of JSON objects in which each sender numbers its messages, and `sender_field` one
    that tells senders apart.
    """

    topic: str
    bind: Sequence[str] = ()
    connect: Sequence[str] = ()
    prefixes: Sequence[str] = ()
    key_field: str | None = None
    sequence_field: str | None = None
    sender_field: str | None = None
    batch_records_max: int = 500
    batch_seconds_max: float = 0.2
    queue_messages_max: int = 10_000
    message_bytes_max: int = 64 * 1024 * 1024


@dataclass
class Numbers:
    """The newest number of each sender, and how many numbers were left out: these messages were lost on their way.

    A number that is not above the one before is that of a sender that was restarted, or of a message that came twice.
    """

    newest: dict[str | None, int] = field(default_factory=dict)
    lost: int = 0
    again: int = 0

    def lost_before(self, sender: str | None, number: int) -> int:
        """How many messages of a sender were lost right before this one; the first of a sender tells nothing."""
        before = self.newest.get(sender, number - 1)
        self.newest[sender] = number
        left_out = max(0, number - before - 1)
        self.lost += left_out
        self.again += number <= before
        return left_out


def listen(log: AnyLog, options: Options, stop: threading.Event, notify: Notify) -> None:
    """Appends messages until stopped, then those that had come; a ReceiverError for an address that cannot be had."""
    log.create(options.topic)
    context = zmq.Context()
    try:
        socket = opened(context, options)
        notify(greeting(socket, options))
        receive(log, socket, options, stop, notify)
    finally:
        context.destroy(linger=0)


def opened(context: "zmq.Context[zmq.Socket[bytes]]", options: Options) -> "zmq.Socket[bytes]":
    if not options.bind and not options.connect:
        raise UsageError("Where do messages come from? Give --bind or --connect, such as tcp://127.0.0.1:5557.")
    if options.sender_field is not None and options.sequence_field is None:
        raise UsageError("--sender-field needs --sequence-field.")
    socket = context.socket(zmq.SUB if options.prefixes else zmq.PULL)
    socket.rcvhwm = options.queue_messages_max
    socket.maxmsgsize = options.message_bytes_max
    for prefix in options.prefixes:
        socket.subscribe(prefix)
    for address, attach in [(each, socket.bind) for each in options.bind] + [
        (each, socket.connect) for each in options.connect
    ]:
        try:
            attach(address)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            raise ReceiverError(f"{address} cannot be used: {error}. Write tcp://HOST:PORT or ipc://PATH.") from error
    return socket


def greeting(socket: "zmq.Socket[bytes]", options: Options) -> str:
    where = socket.getsockopt_string(zmq.LAST_ENDPOINT) if options.bind else ", ".join(options.connect)
    kind = "SUB" if options.prefixes else "PULL"
    return f"Listening on {where} ({kind}). Nothing is acknowledged: what is not yet appended at a kill is lost."


def receive(log: AnyLog, socket: "zmq.Socket[bytes]", options: Options, stop: threading.Event, notify: Notify) -> None:
    retrying = appending(stop, notify, "Messages wait")
    numbers, count = Numbers(), 0
    for batch in batches(socket, options, stop):
        lost_before = numbers.lost
        records = [record_of(frames, options, numbers) for frames in batch]
        try:
            retrying(append, log, options.topic, records)
        except LogRefused:
            for record in records:
                try:
                    retrying(append, log, options.topic, [record])
                except LogRefused as error:
                    notify(f"Lost a message: {error}")
        except LogError as error:
            raise LogError(
                f"{error} {len(records):,} messages that had come, and those behind them, are lost."
            ) from error
        count += len(records)
        if numbers.lost > lost_before:
            notify(f"Lost {numbers.lost - lost_before:,} messages by their numbers, {numbers.lost:,} in all.")
    known = (
        f", {numbers.lost:,} lost by their numbers, {numbers.again:,} numbers again" if options.sequence_field else ""
    )
    notify(f"{count:,} messages taken{known}.")


def batches(socket: "zmq.Socket[bytes]", options: Options, stop: threading.Event) -> Iterator[list[list[bytes]]]:
    """Messages, by count or by time; after a stop as many as can be waiting, so that a sender cannot go on for ever."""
    left = options.queue_messages_max
    while True:
        stopping = stop.is_set()
        batch: list[list[bytes]] = []
        due = time.monotonic() + (0 if stopping else options.batch_seconds_max)
        wait_seconds = 0 if stopping else poll_seconds_max
        while len(batch) < options.batch_records_max and socket.poll(round(wait_seconds * 1000)):
            due = due if batch else time.monotonic() + options.batch_seconds_max
            batch.append(socket.recv_multipart())
            wait_seconds = max(0.0, due - time.monotonic())
        left -= len(batch) if stopping else 0
        if batch:
            yield batch
        if stopping and (not batch or left <= 0):
            return


def record_of(frames: Sequence[bytes], options: Options, numbers: Numbers) -> Record:
    """A message as a record: its last frame is the value, and those before it are headers."""
    *before, value = frames
    headers: dict[str, str] = {}
    for number, frame in enumerate(before, start=1):
        try:
            headers[f"frame_{number}"] = frame.decode()
        except UnicodeDecodeError:
            headers[f"frame_{number}_base64"] = base64.b64encode(frame).decode()
    found = object_in(value) or {}
    record = Record(value, key=key_in(value, options.key_field) if options.key_field else None, headers=headers)
    said = found.get(options.sequence_field) if options.sequence_field else None
    if not isinstance(said, int) or isinstance(said, bool):
        return record
    sender = key_text(found.get(options.sender_field)) if options.sender_field else None
    lost = numbers.lost_before(sender, said)
    return replace(record, headers={**headers, "lost_before": str(lost)}) if lost else record
