"""ZeroMQ: what was taken is in the log after a stop; what was lost is counted where senders number their messages."""

import json
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from sluice.errors import ReceiverError, UsageError
from sluice.ingest.receivers.zeromq import Numbers, Options, opened, record_of
from sluice.log import Log, StoredRecord
from tests.test_receivers import Listening, listening, records_of
from tests.waiting import eventually

pytestmark = pytest.mark.process
to = ["zeromq", "--topic", "events"]
bound = [*to, "--bind", "tcp://127.0.0.1:*"]


def address_of(receiver: Listening) -> str:
    return receiver.hears(r"Listening on (tcp://127\.0\.0\.1:\d+)")


@contextmanager
def sender(kind: int, address: str, hwm: int = 100_000) -> Iterator["zmq.Socket[bytes]"]:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.sndhwm = hwm
    socket.connect(address)
    try:
        yield socket
    finally:
        context.destroy(linger=5000)


def numbered(number: int, sender: str = "a") -> bytes:
    return json.dumps({"n": number, "from": sender}).encode()


def numbers_in(found: Sequence[StoredRecord]) -> list[int]:
    return sorted(json.loads(each.value or b"")["n"] for each in found)


def lost_in(found: Sequence[StoredRecord]) -> int:
    return sum(int(each.headers.get("lost_before", 0)) for each in found)


def test_a_message_is_a_record_and_its_first_frames_are_headers(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with listening(tmp_path, *bound, "--key-field", "id") as receiver, sender(zmq.PUSH, address_of(receiver)) as push:
        push.send(b'{"id":7}')
        push.send(b"\x00\xff")
        push.send_multipart(["plants/é".encode(), b"\xff", b""])
        eventually(lambda: len(records_of(log, "events")) == 3, "the messages")
        assert receiver.ends() == 0
    found = {record.value: (record.key, record.headers) for record in records_of(log, "events")}
    assert found == {
        b'{"id":7}': ("7", {}),
        b"\x00\xff": (None, {}),
        b"": (None, {"frame_1": "plants/é", "frame_2_base64": "/w=="}),
    }


def test_at_a_stop_what_came_is_appended(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with (
        listening(tmp_path, *bound, "--sequence-field", "n") as receiver,
        sender(zmq.PUSH, address_of(receiver)) as push,
    ):
        push.send(numbered(0))
        eventually(lambda: records_of(log, "events"), "the first message")
        receiver.process.send_signal(signal.SIGSTOP)
        for number in range(1, 2000):
            push.send(numbered(number))
        receiver.process.send_signal(signal.SIGCONT)
        eventually(lambda: len(records_of(log, "events")) > 1, "more messages")
        eventually(lambda: not push.poll(0, zmq.POLLIN) and len(records_of(log, "events")) > 1500, "most messages")
        assert receiver.ends() == 0
    found = numbers_in(records_of(log, "events"))
    assert found == list(range(len(found)))
    assert f"{len(found):,} messages taken, 0 lost by their numbers, 0 numbers again" in "".join(receiver.said)


def test_a_subscriber_that_is_too_slow_counts_what_it_did_not_get(tmp_path: Path) -> None:
    log, sent = Log(tmp_path / "log"), 5000
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    publisher.sndhwm = 10
    publisher.sndbuf = 4096
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    options = ["--connect", f"tcp://127.0.0.1:{port}", "--subscribe", "", "--queue-messages-max", "10"]
    counting = ["--sequence-field", "n", "--sender-field", "from"]
    padding = "x" * 2000
    try:
        with listening(tmp_path, *to, *options, *counting) as receiver:
            receiver.hears("(SUB)")

            def joined() -> bool:
                publisher.send(json.dumps({"n": 0, "from": "a", "padding": padding}).encode())
                time.sleep(0.05)
                return bool(records_of(log, "events"))

            eventually(joined, "the subscription")
            receiver.process.send_signal(signal.SIGSTOP)
            for number in range(1, sent):
                publisher.send(json.dumps({"n": number, "from": "a", "padding": padding}).encode())
            receiver.process.send_signal(signal.SIGCONT)

            def got_last() -> bool:
                publisher.send(json.dumps({"n": sent, "from": "a", "padding": ""}).encode())
                time.sleep(0.05)
                return sent in numbers_in(records_of(log, "events"))

            eventually(got_last, "a last message")
            assert receiver.ends() == 0
    finally:
        context.destroy(linger=0)
    found = records_of(log, "events")
    appended = set(numbers_in(found))
    assert len(appended) + lost_in(found) == sent + 1
    assert lost_in(found) > 0
    assert f"{lost_in(found):,} lost by their numbers" in "".join(receiver.said)


def test_messages_wait_while_the_log_cannot_be_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.create("events")
    with listening(tmp_path, *bound) as receiver, sender(zmq.PUSH, address_of(receiver)) as push:
        pid = receiver.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        push.send(numbered(1))
        receiver.hears("(Messages wait; again)")
        push.send(numbered(2))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        eventually(lambda: numbers_in(records_of(log, "events")) == [1, 2], "both messages")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        push.send(numbered(3))
        eventually(lambda: "".join(receiver.said).count("Messages wait") > 1, "the complaint")
        assert receiver.ends() == 1
    assert "1 messages that had come, and those behind them, are lost" in "".join(receiver.said)


def test_numbers_that_are_left_out_are_lost_and_a_sender_that_begins_anew_is_none() -> None:
    numbers = Numbers()
    assert [numbers.lost_before("a", each) for each in (5, 6, 9, 9, 0, 1, sys.maxsize)] == [
        0,
        0,
        2,
        0,
        0,
        0,
        sys.maxsize - 2,
    ]
    assert [numbers.lost_before("b", each) for each in (7, 9)] == [0, 1]
    assert (numbers.lost, numbers.again) == (2 + sys.maxsize - 2 + 1, 2)


@pytest.mark.parametrize("value", [b"", b"[1]", b'{"n": "1"}', b'{"n": true}', b'{"n": 1.5}', b"\xff", b'{"m": 1}'])
def test_what_has_no_number_is_a_record_all_the_same(value: bytes) -> None:
    numbers = Numbers()
    record = record_of([value], Options("events", sequence_field="n"), numbers)
    assert (record.value, record.headers, numbers.newest) == (value, {}, {})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, UsageError, "Give --bind or --connect"),
        ({"bind": ["nowhere"]}, ReceiverError, "Write tcp://HOST:PORT"),
        ({"bind": ["tcp://127.0.0.1:*"], "sender_field": "a"}, UsageError, "needs --sequence-field"),
    ],
)
def test_what_keeps_a_receiver_shut_is_reported(options: dict[str, Any], error: type[Exception], message: str) -> None:
    context = zmq.Context()
    with pytest.raises(error, match=message):
        opened(context, Options("events", **options))
    context.destroy(linger=0)
