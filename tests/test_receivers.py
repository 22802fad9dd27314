"""Receivers: what was acknowledged is in the log, whatever is killed meanwhile, and what is lost is counted."""

import asyncio
import http.client
import json
import random
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import pika
import pytest
from filelock import FileLock
from hypothesis import example, given
from hypothesis import strategies as st
from pika.exceptions import AMQPError
from pika.spec import Basic

from sluice import bronze, silver
from sluice.errors import LogError, LogRefused, UsageError
from sluice.ingest.capture.reader import topics_of
from sluice.ingest.receivers import amqp, statsd
from sluice.ingest.receivers.cli import http as listen_over_http
from sluice.ingest.receivers.group import Group
from sluice.ingest.receivers.records import key_in, with_field
from sluice.ingest.receivers.retries import appending
from sluice.log import Log, StoredRecord
from sluice.operate.webhook import Webhook
from sluice.runtime.signatures import schemes, secret_key, signature
from tests.commands import sluice
from tests.forked import Forked, started
from tests.servers.rabbitmq import RabbitMQ
from tests.waiting import eventually, patience_seconds

if TYPE_CHECKING:
    from tests.kit import Lakehouse

token = "a-token-of-these-tests-0123456789"
orders_token = "another-token-for-orders-0123456789"
new_orders_token = "the-next-token-for-orders-0123456789"


class Listening:
    """A receiver: `sluice listen …` in a process of its own."""

    def __init__(
        self,
        project: Path,
        *arguments: str,
        start: Callable[..., "Forked | subprocess.Popen[str]"] = Forked,
        **settings: str,
    ) -> None:
        own = {"SLUICE_LOG": str(project / "log"), "SLUICE_HTTP_TOKEN": token} | settings
        self.process = start("listen", *arguments, "--project", str(project), here=Path.cwd(), environment=own)
        self.said: list[str] = []
        self.lines: list[str] = []
        self.readers = [
            threading.Thread(target=collect, args=each)
            for each in ((self.process.stderr, self.said), (self.process.stdout, self.lines))
        ]
        for each in self.readers:
            each.start()

    def hears(self, pattern: str) -> str:
        """The first group of a pattern in what the receiver said, once it said it."""

        def found() -> re.Match[str] | None:
            assert self.process.poll() is None, self.said
            return re.search(pattern, "".join(self.said))

        return str(eventually(found, f"{pattern} in {self.said}")[1])

    def ends(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(patience_seconds)
        for each in self.readers:
            each.join()
        return code

    def flushes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def collect(pipe: Any, into: list[str]) -> None:
    with pipe:
        into.extend(pipe)


@contextmanager
def listening(project: Path, *arguments: str, **settings: Any) -> Iterator[Listening]:
    receiver = Listening(project, *arguments, **settings)
    try:
        yield receiver
    finally:
        if receiver.process.poll() is None:
            receiver.ends(signal.SIGKILL)


def records_of(log: Log, topic: str) -> list[StoredRecord]:
    if not log.exists(topic):
        return []
    return [record for partition in log.partitions(topic) for record in log.read(topic, partition)]


# HTTP


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


def post(
    port: int, body: bytes = b"{}", path: str = "/topics/orders", bearer: str | None = token, **headers: str
) -> Answer:
    """One request; names of headers are given with _ for -."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_seconds)
    authorization = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    named = authorization | {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        connection.request("POST", path, body, {name: text.encode() for name, text in named.items()})
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), json.loads(response.read()))
    finally:
        connection.close()


def health(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_seconds)
    connection.request("GET", "/health")
    try:
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def port_of(receiver: Listening) -> int:
    return int(receiver.hears(r"Listening on \w+://127\.0\.0\.1:(\d+)"))


@dataclass(frozen=True)
class Served:
    """A receiver of HTTP that several tests knock on."""

    port: int
    log: Log
    receiver: Listening

    def new(self, before: int) -> list[StoredRecord]:
        """The records since there were so many."""
        found = sorted(records_of(self.log, "orders"), key=lambda record: record.timestamp)
        return found[before:]

    def count(self) -> int:
        return len(records_of(self.log, "orders"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    project = tmp_path_factory.mktemp("http")
    log = Log(project / "log", partitions=2)
    for topic in ("orders", "hidden"):
        log.create(topic)
    options = ["--topic", "orders", "--request-bytes-max", "10000", "--request-seconds-max", "1"]
    # As a user starts it; the others are forks.
    with listening(project, "http", "--port", "0", *options, start=started) as receiver:
        yield Served(port_of(receiver), log, receiver)


@pytest.mark.parametrize("value", [b'{"a":1}', b"", b"\x00\xff\n", "text ✓\n\n".encode()])
def test_a_body_is_a_record_as_it_is(served: Served, value: bytes) -> None:
    before = served.count()
    answer = post(served.port, value, Sluice_Key="Zürich", Idempotency_Key="once")
    (record,) = served.new(before)
    assert (record.value, record.key, record.headers) == (value, "Zürich", {"idempotency_key": "once"})
    assert answer.status == 201
    assert answer.body == {"topic": "orders", "records": 1, "next_offsets": {str(record.partition): record.offset + 1}}


def test_a_batch_is_a_record_a_line(served: Served) -> None:
    before = served.count()
    body = b'{"id":"a"}\n\nno json\n{"id":7}\r\n{"id":null}'
    answer = post(
        served.port,
        body,
        "/topics/orders?key_field=id",
        Content_Type="application/x-ndjson; charset=utf-8",
        Idempotency_Key="b",
    )
    found = {record.headers["idempotency_key"]: (record.key, record.value) for record in served.new(before)}
    assert found == {
        "b/0": ("a", b'{"id":"a"}'),
        "b/1": (None, b"no json"),
        "b/2": ("7", b'{"id":7}\r'),
        "b/3": (None, b'{"id":null}'),
    }
    assert (answer.status, answer.body["records"]) == (201, 4)


batch = {"Content_Type": "application/x-ndjson"}


@pytest.mark.parametrize(
    ("status", "says", "request_of"),
    [
        (401, "Send the token", {"bearer": None}),
        (401, "Send the token", {"bearer": "another"}),
        (401, "Send the token", {"bearer": "", "body": b"x" * 100_000}),
        (404, "takes no records of a topic hidden", {"path": "/topics/hidden"}),
        (404, "takes no records of a topic ..", {"path": "/topics/.."}),
        (404, "Not Found", {"path": "/topics/..%2Forders"}),
        (404, "Not Found", {"path": "/topics/orders/"}),
        (404, "Not Found", {"path": "/health/", "bearer": None}),
        (413, "10000 bytes", {"body": b"x" * 10_001}),
        (400, "no records", {"body": b"\n\n", **batch}),
        (400, "only parameter is key_field", {"path": "/topics/orders?keyfield=a"}),
        (400, "not both", {"path": "/topics/orders?key_field=a", "Sluice_Key": "b"}),
        (400, "key_field once", {"path": "/topics/orders?key_field=a&key_field=b"}),
        (400, "1 to 255 characters", {"Idempotency_Key": "x" * 256}),
        (400, "1 to 255 characters", {"Idempotency_Key": ""}),
        (415, "without a Content-Encoding", {"Content_Encoding": "gzip"}),
    ],
)
def test_a_wrong_request_is_reported_and_leaves_nothing(
    served: Served, status: int, says: str, request_of: dict[str, Any]
) -> None:
    before = served.count()
    answer = post(served.port, **request_of)
    assert answer.status == status
    assert says in answer.body["error"]
    assert served.count() == before
    assert ("WWW-Authenticate" in {name.title().replace("Www", "WWW") for name in answer.headers}) == (status == 401)


def raw(port: int, data: bytes) -> bytes:
    """What the receiver answers to bytes, until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=patience_seconds) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
        return answer


head = f"POST /topics/orders HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {token}\r\n".encode()


@pytest.mark.process
def test_a_request_to_upgrade_is_answered_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\n1"
    with listening(tmp_path, "http", "--port", "0", "--create") as receiver:
        port, said = port_of(receiver), list(receiver.said)
        assert raw(port, head + upgrade).startswith(b"HTTP/1.1 201")
        assert raw(port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")
        receiver.ends()
        assert receiver.said == said


def test_a_body_of_unknown_length_is_held_to_the_limit(served: Served) -> None:
    chunk = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    before = served.count()
    assert raw(served.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3).startswith(b"HTTP/1.1 413 ")
    assert raw(served.port, b"no http at all\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(served.port, head + b"Sluice-Key: \xff\r\nContent-Length: 0\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert served.count() == before


def test_slow_clients_are_ended(served: Served) -> None:
    requests = (head + b"Content-Length: 10\r\n\r\nslow", b"POST /topics/orders HTTP/1.1\r\nHo", b"")
    with ThreadPoolExecutor(len(requests)) as clients:
        slow, *without_head = clients.map(raw, [served.port] * len(requests), requests)
    assert slow.startswith(b"HTTP/1.1 408 ")
    assert without_head == [b"", b""]


def test_a_log_that_cannot_be_written_is_503_until_it_can(served: Served) -> None:
    before = served.count()
    pid = served.receiver.process.pid
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
    try:
        answer = post(served.port)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    assert (answer.status, answer.headers["Retry-After".lower()]) == (503, "5")
    assert "nothing was acknowledged" in answer.body["error"]
    assert "File too large" in served.receiver.hears(r"(Refused with 503: .*)\n")
    assert served.count() == before
    assert post(served.port).status == 201


def test_a_record_that_the_log_never_takes_is_refused_to_its_sender_alone() -> None:
    """Several that come meanwhile are one append, which Kafka may take in part."""
    log: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def append(records: Sequence[str]) -> int:
        begun.set()
        go_on.wait(patience_seconds)
        if "too large" in records:
            raise LogRefused("too large")
        log.extend(records)
        return len(log)

    async def sent() -> list[object]:
        group: Group[str, int] = Group(append)
        first = asyncio.create_task(group.append(["first"]))
        await asyncio.to_thread(begun.wait, patience_seconds)
        others = [asyncio.create_task(group.append([each])) for each in ("a", "too large", "b")]
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    first, a, refused, b = asyncio.run(sent())
    assert (first, a, b) == (1, 2, 3)
    assert isinstance(refused, LogRefused)
    assert log == ["first", "a", "b"]


def test_an_append_that_is_refused_is_not_tried_again() -> None:
    """Others of the batch may be in the log by then, and would come again and again."""
    tried: list[LogError] = []

    def append(error: LogError) -> None:
        tried.append(error)
        if len(tried) < 3:
            raise error

    with pytest.raises(LogRefused):
        appending(threading.Event(), print, "")(append, LogRefused("never"))
    appending(threading.Event(), print, "", sleep=lambda seconds: None)(append, LogError("not now"))
    assert len(tried) == 3


def test_requests_that_come_meanwhile_are_appended_together(served: Served) -> None:
    before = len(served.log.segments("orders"))
    answers: list[Answer] = []

    def send(number: int) -> None:
        answers.append(post(served.port, str(number).encode(), Sluice_Key="one partition"))

    threads = [threading.Thread(target=send, args=[number]) for number in range(20)]
    with FileLock(served.log.root / "orders" / "0" / ".lock"), FileLock(served.log.root / "orders" / "1" / ".lock"):
        threads[0].start()
        eventually(lambda: health(served.port)["requests_waiting"] == 1, "the first request")
        for each in threads[1:]:
            each.start()
        eventually(lambda: health(served.port)["requests_waiting"] == 20, "the others")
        assert answers == []
    for each in threads:
        each.join()
    assert [answer.status for answer in answers] == [201] * 20
    assert len(served.log.segments("orders")) == before + 2


@pytest.mark.process
def test_a_token_writes_its_own_topics_and_is_replaced_without_a_gap(tmp_path: Path) -> None:
    tokens = f"{token},orders+returns:{orders_token},orders:{new_orders_token}"
    with listening(tmp_path, "http", "--port", "0", "--create", SLUICE_HTTP_TOKEN=tokens) as receiver:
        port = port_of(receiver)
        paths = ("/topics/orders", "/topics/returns", "/topics/prices", "/topics/sluice_releases")
        answers = {
            sent: [post(port, b"a", path, sent).status for path in paths]
            for sent in (token, orders_token, new_orders_token, token[:-1])
        }
    assert answers == {
        token: [201, 201, 201, 403],
        orders_token: [201, 201, 403, 403],
        new_orders_token: [201, 403, 403, 403],
        token[:-1]: [401] * 4,
    }
    assert Log(tmp_path / "log").topics() == ["orders", "prices", "returns"]


def test_topics_that_steer_the_engine_are_written_by_its_own_commands_alone(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("{}")
    environment = {"SLUICE_LOG": str(tmp_path / "log"), "SLUICE_AMQP": "amqp://127.0.0.1:1/"}
    for command in (
        ["log", "append", "sluice_releases", str(tmp_path / "lines")],
        ["listen", "statsd", "--port", "0", "--topic", "sluice_releases"],
        ["listen", "amqp", "--queue", "q", "--topic", "sluice_releases"],
    ):
        done = sluice(*command, here=tmp_path, environment=environment)
        assert (done.returncode, "reserved for Sluice" in done.stderr) == (2, True), command
    assert not (tmp_path / "log").exists()
    with pytest.raises(UsageError, match="reserved for Sluice"):
        topics_of("sluice", [("public", "releases")])


github_secret = "the-secret-that-github-has"
next_github_secret = "the-secret-that-comes-after-it"
slack_secret = "8f742231b10e8888abcd99yyyzzz85a5"
own_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
webhook_secrets = (
    f"pushes:{github_secret},pushes:{next_github_secret},chats:{slack_secret},changes:{own_secret},"
    f"payments:{slack_secret}"
)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A receiver of webhooks that has no token."""
    project = tmp_path_factory.mktemp("webhooks")
    senders = ("pushes=github:id", "chats=slack", "changes=standard", "payments=stripe")
    options = [text for each in senders for text in ("--webhook", each)]
    arguments = ["http", "--port", "0", "--request-bytes-max", "10000", "--id-field", "message_id", *options]
    settings = {"SLUICE_HTTP_TOKEN": "", "SLUICE_WEBHOOK_SECRETS": webhook_secrets}
    with listening(project, *arguments, **settings) as receiver:
        yield Served(port_of(receiver), Log(project / "log"), receiver)
        said = "".join(receiver.said)
        assert not [each for each in (github_secret, next_github_secret, slack_secret, own_secret) if each in said]


def by_github(body: bytes, secret: str = github_secret) -> dict[str, str]:
    found = signature(schemes["github"], secret.encode(), body).decode()
    return {"X_Hub_Signature_256": found, "X_GitHub_Delivery": "d-1", "X_GitHub_Event": "push"}


@pytest.mark.parametrize("secret", [github_secret, next_github_secret])
@pytest.mark.parametrize("body", [b'{"id": 7}', b"", b"\x00\xff\n", b"x" * 10_000])
def test_a_signed_body_is_a_record_as_it_is(signed: Served, body: bytes, secret: str) -> None:
    before = records_of(signed.log, "pushes")
    answer = post(signed.port, body, "/webhooks/pushes", None, **by_github(body, secret))
    (record,) = [each for each in records_of(signed.log, "pushes") if each not in before]
    assert record.headers == {"idempotency_key": "d-1", "github_event": "push"}
    is_object = body.startswith(b"{")
    assert record.value == (b'{"message_id":"d-1",' + body[1:] if is_object else body)
    assert record.key == ("7" if is_object else None)
    next_offsets = {str(record.partition): record.offset + 1}
    assert (answer.status, answer.body) == (201, {"topic": "pushes", "records": 1, "next_offsets": next_offsets})


def test_what_sluice_sends_sluice_takes(signed: Served) -> None:
    body = b'{"type": "gold.sold.insert"}'
    headers = Webhook("", secret_key(own_secret)).signed("gold.sold-1-0-5", body)
    sent = {name.replace("-", "_"): text for name, text in headers.items()}
    assert post(signed.port, body, "/webhooks/changes", None, **sent).status == 201
    assert post(signed.port, body, "/webhooks/changes", None, **sent | {"webhook_id": "gold.sold-2-0-5"}).status == 401
    (record,) = records_of(signed.log, "changes")
    assert record.headers == {"idempotency_key": "gold.sold-1-0-5"}
    assert record.value == b'{"message_id":"gold.sold-1-0-5","type": "gold.sold.insert"}'


def test_a_sender_that_asks_for_a_challenge_gets_it_and_leaves_no_record(signed: Served) -> None:
    # Too deep to be written again.
    no_challenge = b'{"type":"url_verification","challenge":' + b"[" * 1000 + b"]" * 1000 + b"}"
    for body, status, answered in (
        (b'{"type":"url_verification","challenge":"3eZbrw"}', 200, {"challenge": "3eZbrw"}),
        (b'{"type":"event_callback"}', 201, {"topic": "chats"}),
        (no_challenge, 201, {"topic": "chats"}),
    ):
        moment = str(int(time.time()))
        found = signature(schemes["slack"], slack_secret.encode(), body, moment=moment.encode()).decode()
        answer = post(
            signed.port, body, "/webhooks/chats", None, X_Slack_Signature=found, X_Slack_Request_Timestamp=moment
        )
        assert (answer.status, answer.body | answered) == (status, answer.body)
    assert {record.value for record in records_of(signed.log, "chats")} == {b'{"type":"event_callback"}', no_challenge}


def by_stripe(body: bytes, moment: int, *others: str) -> dict[str, str]:
    found = signature(schemes["stripe"], slack_secret.encode(), body, moment=b"%d" % moment).decode()
    return {"Stripe_Signature": ",".join([f"t={moment}", *others, found])}


def test_a_request_without_a_valid_signature_is_counted_and_leaves_nothing(signed: Served) -> None:
    body, moment = b'{"id":"evt_1"}', int(time.time())
    counted = health(signed.port)["signatures_refused"].get("payments", 0)
    requests: list[dict[str, str]] = [
        {},
        {"Stripe_Signature": ""},
        {"Stripe_Signature": "t=,v1="},
        by_stripe(body + b" ", moment),
        by_stripe(body, moment - 400),
        by_stripe(body, moment, f"t={moment}"),
        {"Stripe_Signature": by_stripe(body, moment)["Stripe_Signature"][:-2]},
    ]
    for headers in requests:
        answer = post(signed.port, body, "/webhooks/payments", None, **headers)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Signature")
    assert records_of(signed.log, "payments") == []
    assert health(signed.port)["signatures_refused"]["payments"] == counted + len(requests)
    signed.receiver.hears(r"(Refused with 401: a webhook for payments\. It has no header stripe-signature)")
    assert post(signed.port, body, "/webhooks/payments", None, **by_stripe(body, moment, "v0=x", "v1=x")).status == 201


@pytest.mark.parametrize(
    ("status", "path", "headers"),
    [
        (404, "/webhooks/orders", {}),
        (404, "/webhooks/sluice_releases", {}),
        (400, "/webhooks/pushes?key_field=id", by_github(b"{}")),
        (415, "/webhooks/pushes", by_github(b"{}") | {"Content_Encoding": "gzip"}),
        (400, "/webhooks/pushes", by_github(b"{}") | {"X_GitHub_Delivery": "x" * 256}),
        (401, "/topics/pushes", by_github(b"{}")),
        (401, "/topics/pushes", by_github(b"{}") | {"Authorization": "Bearer "}),
    ],
)
def test_a_wrong_webhook_leaves_nothing(signed: Served, status: int, path: str, headers: dict[str, str]) -> None:
    before = records_of(signed.log, "pushes")
    assert post(signed.port, b"{}", path, None, **headers).status == status
    assert records_of(signed.log, "pushes") == before


def test_a_signed_body_comes_in_pieces_and_within_its_limit(signed: Served) -> None:
    body = b'{"id":"in pieces"}'
    named = {name.replace("_", "-"): text for name, text in by_github(body).items()}
    lines = "".join(f"{name}: {text}\r\n" for name, text in named.items()).encode()
    start = (
        b"POST /webhooks/pushes HTTP/1.1\r\nHost: here\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n" + lines
    )
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:1], body[1:9], body[9:])) + b"0\r\n\r\n"
    assert raw(signed.port, start + b"\r\n" + pieces).startswith(b"HTTP/1.1 201 ")
    twice = lines.splitlines(keepends=True)[0]
    assert raw(signed.port, start + twice + b"\r\n" + pieces).startswith(b"HTTP/1.1 401 ")
    large = b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
    assert raw(signed.port, start + b"\r\n" + large * 3).startswith(b"HTTP/1.1 413 ")
    assert [each.key for each in records_of(signed.log, "pushes")].count("in pieces") == 1


@pytest.mark.process
def test_a_webhook_without_a_secret_is_reported(tmp_path: Path) -> None:
    to = ["http", "--webhook", "pushes=github"]
    code, said = said_at_once(tmp_path, *to, SLUICE_WEBHOOK_SECRETS=f"pulls:{github_secret}")
    assert (code, "no secret for pushes" in said, github_secret in said) == (2, True, False)


@pytest.mark.process
def test_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    Log(tmp_path / "log").create("orders")
    limits = ["--connections-max", "20", "--client-connections-max", "10", "--head-seconds-max", "600"]
    with listening(tmp_path, "http", "--port", "0", *limits) as receiver, ExitStack() as idle:
        port = port_of(receiver)
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert post(port).status == 201
        assert health(port)["status"] == "ok"


@pytest.mark.process
def test_requests_under_way_are_not_closed_for_new_ones(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=1)
    log.create("orders")
    answers: list[int] = []
    with listening(tmp_path, "http", "--port", "0", "--client-connections-max", "3") as receiver:
        port = port_of(receiver)
        threads = [threading.Thread(target=lambda: answers.append(post(port).status)) for _ in range(2)]
        with FileLock(log.root / "orders" / "0" / ".lock"):
            for each in threads:
                each.start()
            eventually(lambda: requests_waiting(port) == 2, "both requests")
            eventually(lambda: is_refused_beside_a_slow_request(port), "a refusal")
        for each in threads:
            each.join()
    assert answers == [201, 201]


def is_refused_beside_a_slow_request(port: int) -> bool:
    """Whether one more connection is refused; one whose head was not read yet counts as idle, and may be closed."""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(head + b"Content-Length: 10\r\n\r\nslow")
        time.sleep(0.2)
        request = b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        return raw(port, request).startswith(b"HTTP/1.1 503 ")


def requests_waiting(port: int) -> int | None:
    """How many requests wait for the log; None when there is no room to ask."""
    try:
        return int(health(port)["requests_waiting"])
    except (OSError, ValueError, http.client.HTTPException):
        return None


@pytest.mark.process
def test_ready_says_whether_the_log_can_be_written(tmp_path: Path) -> None:
    Log(tmp_path / "log").create("orders")
    with listening(tmp_path, "http", "--port", "0") as receiver:
        port = port_of(receiver)
        request = b"GET /ready HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        assert raw(port, request).startswith(b"HTTP/1.1 200 ")
        pid = receiver.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        assert raw(port, request).startswith(b"HTTP/1.1 503 ")
        assert health(port)["status"] == "ok"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        assert raw(port, request).startswith(b"HTTP/1.1 200 ")


@pytest.mark.process
def test_https_is_served_with_a_certificate(tmp_path: Path) -> None:
    Log(tmp_path / "log").create("orders")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, *name, *files], check=True, capture_output=True)
    files = ["--certificate", str(certificate), "--certificate-key", str(key)]
    with listening(tmp_path, "http", "--port", "0", *files) as receiver:
        trusted = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", port_of(receiver), context=trusted)
        connection.request("POST", "/topics/orders", b"a", {"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 201
        connection.close()
    code, said = said_at_once(tmp_path, "http", "--certificate", str(key), "--certificate-key", str(key))
    assert (code, "no certificate and private key" in said) == (2, True)


@pytest.mark.process
def test_topics_are_made_where_that_is_allowed(tmp_path: Path) -> None:
    with listening(tmp_path, "http", "--port", "0", "--create") as receiver:
        port = port_of(receiver)
        assert post(port, b"a", "/topics/new").status == 201
        assert "cannot name a topic" in post(port, b"a", "/topics/New").body["error"]
        assert post(port, b"a", "/topics/..").status == 400
    assert [record.value for record in records_of(Log(tmp_path / "log"), "new")] == [b"a"]
    assert [each.name for each in (tmp_path / "log").iterdir()] == ["new"]


class Senders:
    """Clients that send records of their own until the receiver is gone, each under a key of its own."""

    def __init__(self, port: int, clients: int = 8) -> None:
        self.port = port
        self.sent: dict[str, bytes] = {}
        self.acknowledged: set[str] = set()
        self.threads = [threading.Thread(target=self.send, args=[number]) for number in range(clients)]
        for each in self.threads:
            each.start()

    def send(self, client: int) -> None:
        dice = random.Random(client)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience_seconds)
        try:
            for number in range(100_000):
                key = f"{client}-{number}"
                self.sent[key] = dice.randbytes(dice.randrange(2000))
                headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
                connection.request("POST", "/topics/orders", self.sent[key], headers)
                response = connection.getresponse()
                response.read()
                if response.status == 201:
                    self.acknowledged.add(key)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def end(self) -> None:
        for each in self.threads:
            each.join()


def in_log(log: Log) -> Counter[tuple[str, bytes | None]]:
    return Counter((record.headers["idempotency_key"], record.value) for record in records_of(log, "orders"))


@pytest.mark.process
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.create("orders")
    with listening(tmp_path, "http", "--port", "0") as receiver:
        port = port_of(receiver)
        with ExitStack() as held:
            for partition in range(log.default_partitions):
                held.enter_context(FileLock(log.root / "orders" / str(partition) / ".lock"))
            # One append has what came first, the next one the rest: one of the two has more than there are partitions.
            senders = Senders(port, clients=2 * log.default_partitions + 1)
            eventually(lambda: health(port)["requests_waiting"] == len(senders.threads), "a request of each client")
        eventually(lambda: len(senders.acknowledged) >= 200, "two hundred acknowledgements")
        receiver.ends(signal.SIGKILL)
        senders.end()
    found = in_log(log)
    assert set(found.values()) == {1}
    # Each append is one segment per partition at most.
    assert len(log.segments("orders")) < len(found)
    assert found.keys() <= set(senders.sent.items())
    assert {key for key, _ in found} >= senders.acknowledged
    retried = senders.sent.keys() - senders.acknowledged
    assert retried
    with listening(tmp_path, "http", "--port", "0") as receiver:
        port = port_of(receiver)
        assert {post(port, senders.sent[key], Idempotency_Key=key).status for key in retried} == {201}
    found = in_log(log)
    assert found.keys() == set(senders.sent.items())
    assert {key for (key, _), times in found.items() if times > 1} <= retried


@pytest.mark.process
def test_at_a_stop_what_was_let_in_is_acknowledged(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.create("orders")
    with listening(tmp_path, "http", "--port", "0") as receiver:
        senders = Senders(port_of(receiver))
        eventually(lambda: len(senders.acknowledged) >= 100, "a hundred acknowledgements")
        assert receiver.ends(signal.SIGTERM) == 0
        senders.end()
    assert {key for key, _ in in_log(log)} == senders.acknowledged
    assert "Traceback" not in "".join(receiver.said)


def said_at_once(project: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """The exit code and the message of a receiver that does not open."""
    with listening(project, *arguments, **settings) as receiver:
        code = receiver.process.wait(patience_seconds)
        for each in receiver.readers:
            each.join()
        return code, "".join(receiver.said)


@pytest.mark.process
def test_what_keeps_a_receiver_shut_is_reported(tmp_path: Path, served: Served) -> None:
    code, said = said_at_once(tmp_path, "http", SLUICE_HTTP_TOKEN="")
    assert (code, "Set SLUICE_HTTP_TOKEN" in said) == (2, True)
    code, said = said_at_once(tmp_path, "http", SLUICE_HTTP_TOKEN=f"{token},orders:short-secret")
    assert (code, "token 2 has 12 characters" in said, "short-secret" in said) == (2, True, False)
    code, said = said_at_once(tmp_path, "http", "--port", str(served.port))
    assert (code, "Give another --port" in said) == (1, True)
    code, said = said_at_once(tmp_path, "amqp", "--queue", "q", "--topic", "t", SLUICE_AMQP="http://u:secret@h")
    assert (code, "must be a URL" in said, "secret" in said) == (2, True, False)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    # An import finds what another test has imported before in either of two places.
    monkeypatch.delitem(sys.modules, "sluice.ingest.receivers.http", raising=False)
    monkeypatch.delattr("sluice.ingest.receivers.http", raising=False)
    with pytest.raises(UsageError, match=r"uvicorn is not installed.*sluice-lakehouse\[receivers\]"):
        listen_over_http(click.Context(click.Command("http")))  # type: ignore[arg-type]


# Records


text_of_json = st.text(st.characters(codec="utf-8"), max_size=5)
values_of_json = text_of_json | st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers()


@given(st.dictionaries(text_of_json.filter(lambda name: name != "id"), values_of_json, max_size=3), text_of_json)
def test_a_field_is_put_before_what_stays_byte_by_byte(fields: dict[str, Any], text: str) -> None:
    value = json.dumps(fields).encode()
    found = with_field(value, "id", text)
    assert json.loads(found) == fields | {"id": text}
    assert found.endswith(value[1:])
    assert key_in(found, "id") == text


@pytest.mark.parametrize("value", [b"", b"[1]", b"no json", b'{"id": null}', b"\xff"])
def test_what_has_the_field_or_is_no_object_stays_as_it_is(value: bytes) -> None:
    assert with_field(value, "id", "x") == value


@given(st.integers() | st.decimals(allow_nan=False, allow_infinity=False))
@example(123456789012345678901)
@example(Decimal("1.50"))
def test_a_key_that_is_a_number_is_as_it_is_written(number: int | Decimal) -> None:
    written = str(number).replace("E+", "e")
    assert key_in(f'{{"a": [1.5], "id": {written}}}'.encode(), "id") == written


def test_a_key_that_is_a_boolean_is_its_json() -> None:
    assert [key_in(b'{"id": %s}' % each, "id") for each in (b"true", b"false", b"null")] == ["true", "false", None]


def test_a_number_in_what_is_deep_is_a_key() -> None:
    deep = b"[" * 900 + b"]" * 900
    assert key_in(b'{"a": %s, "id": 1.5}' % deep, "id") == "1.5"


@pytest.mark.parametrize("number", [b"1e400", b"9" * 400, b'"\\ud800"'])
def test_a_key_is_found_beside_what_a_float_cannot_hold(number: bytes) -> None:
    value = b'{"id": "a", "of": [1], "x": ' + number + b"}"
    assert [key_in(value, name) for name in ("id", "of", "none")] == ["a", None, None]
    assert with_field(value, "key", "k").startswith(b'{"key":"k","id"')
    assert key_in(b'{"id": 1e400}', "id") == "1e400"
    assert key_in(b'{"id": NaN}', "id") is None
    assert key_in(b'{"id": "\\ud800"}', "id") is None


def test_a_key_that_is_an_object_is_its_text_unless_it_is_too_deep() -> None:
    assert key_in(b'{"a":{"c":2,"b":[1,"x"]}}', "a") == '{"b":[1,"x"],"c":2}'
    assert key_in(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", "a") is None
    assert key_in(b'{"a":' + b"[" * 90_000 + b"]" * 90_000 + b"}", "a") is None


@pytest.mark.process
def test_what_comes_twice_has_the_fate_duplicate(lakehouse: "Lakehouse", tmp_path: Path) -> None:
    orders, payments = bronze.topic("orders"), bronze.topic("payments")
    lakehouse.declare(
        orders,
        payments,
        silver.events("by_http", source=orders, schema="idempotency_key string, n int", keys=["idempotency_key"]),
        silver.events("by_amqp", source=payments, schema="message_id string, n int", keys=["message_id"]),
    )
    lakehouse.log.create("orders")
    with listening(tmp_path, "http", "--port", "0", "--id-field", "idempotency_key") as receiver:
        port = port_of(receiver)
        for n, key in [(1, "a"), (1, "a"), (2, "b"), (3, "b")]:
            assert post(port, json.dumps({"n": n}).encode(), Idempotency_Key=key).status == 201
    options = amqp.Options(queue="q", topic="payments", id_field="message_id")
    properties = pika.BasicProperties(message_id="m")
    for redelivered in (False, True):
        method = Basic.Deliver(routing_key="q", redelivered=redelivered)
        lakehouse.log.append("payments", [amqp.record_of(method, properties, b'{"n": 1}', options)])
    lakehouse.run()
    assert lakehouse.rows("silver.by_http", "idempotency_key", "n") == [("a", 1), ("b", 2)]
    assert lakehouse.rows("silver.by_amqp", "message_id", "n") == [("m", 1)]
    fates = lakehouse.rows("silver._fates", "dataset", "fate", "reason")
    assert fates == [
        ("silver.by_amqp", "duplicate", "same_payload"),
        ("silver.by_http", "duplicate", "other_payload"),
        ("silver.by_http", "duplicate", "same_payload"),
    ]


# StatsD


def send(port: int, *datagrams: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for each in datagrams:
            sender.sendto(each, ("127.0.0.1", port))


def metrics_of(log: Log) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in records_of(log, "metrics")]


@pytest.mark.process
def test_metrics_are_records_and_what_is_none_stays_as_it_came(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with listening(tmp_path, "statsd", "--port", "0", "--topic", "metrics", "--flush-seconds", "0.05") as receiver:
        send(
            port_of(receiver),
            b"page.views:1|c|@0.5|#page:home,new\nload:-2.5|g\nusers:a:b|s\n",
            b"no metric\xff\n\nx:1|c",
        )
        eventually(lambda: len(records_of(log, "metrics")) == 5, "five records")
        assert receiver.ends() == 0
    found = records_of(log, "metrics")
    (malformed,) = [record for record in found if record.headers]
    assert (malformed.value, malformed.headers) == (b"no metric\xff", {"malformed": "statsd"})
    metrics = {each["name"]: each for each in (json.loads(r.value or b"") for r in found if not r.headers)}
    ids = {metrics[name].pop("id") for name in metrics}
    assert len(ids) == 4
    assert all(each.pop("received_at").endswith("Z") for each in metrics.values())
    assert metrics["page.views"] == {
        "name": "page.views",
        "value": 1.0,
        "type": "c",
        "sample_rate": 0.5,
        "tags": [{"key": "page", "value": "home"}, {"key": "new", "value": None}],
    }
    assert metrics["load"] == {
        "name": "load", "value": -2.5, "type": "g", "sample_rate": 1.0, "tags": [], "relative": True,
    }  # fmt: skip
    assert metrics["users"]["value"] == "a:b"


@pytest.mark.parametrize(
    "line",
    [b":1|c", b"a:|c", b"a:1", b"a:1|x", b"a:x|c", b"a:nan|g", b"a:1e999|g", b"a:1|c|@0", b"a:1|c|@2", b"a:1|c|?"],
)
def test_a_line_that_is_no_metric_is_known(line: bytes) -> None:
    assert statsd.metric_of(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b"a:" + b"1" * 60_000 + b"x|c",
        b"a:" + b"1." * 30_000 + b"|c",
        b"a:1e" + b"1" * 60_000 + b"x|g",
        b"a:1|c|@" + b"1." * 30_000,
        b"a:1|c|@" + b"1" * 60_000 + b"x",
        b":" * 60_000,
        b"a:1|" * 15_000,
        b"\xff" * 60_000,
    ],
    ids=lambda line: line[:12].decode(errors="replace"),
)
def test_a_long_line_that_is_no_metric_costs_no_more_than_its_length(line: bytes) -> None:
    # Far more than a linear reading needs, and far less than a quadratic one.
    before = signal.signal(signal.SIGPROF, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, 2)
    try:
        assert statsd.metric_of(line) is None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def out_of_time(*_: object) -> None:
    raise AssertionError("parsing took two seconds of CPU")


@given(st.binary(max_size=200) | st.from_regex(statsd.line_pattern, fullmatch=True).map(str.encode))
def test_any_line_is_a_metric_or_none(line: bytes) -> None:
    metric = statsd.metric_of(line)
    if metric is not None:
        assert json.loads(orjson.dumps(metric)) == metric
        assert 0 < metric["sample_rate"] <= 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("kernel", ["--receive-buffer-bytes", "5000"]),
        ("queue", ["--queue-datagrams-max", "50", "--flush-seconds", "600"]),
        ("queue", ["--queue-bytes-max", "300", "--flush-seconds", "600"]),
    ],
)
def test_a_flood_is_appended_or_counted_as_lost(tmp_path: Path, where: str, options: list[str]) -> None:
    sent = 3000
    log = Log(tmp_path / "log")
    with listening(tmp_path, "statsd", "--port", "0", "--topic", "metrics", "--json", *options) as receiver:
        port = port_of(receiver)
        if where == "kernel":
            # A receiver that does not get to read is what a flood amounts to.
            receiver.process.send_signal(signal.SIGSTOP)
        send(port, *[f"m:{number}|c".encode() for number in range(sent)])
        receiver.process.send_signal(signal.SIGCONT)
        assert receiver.ends() == 0
    metrics = metrics_of(log)
    appended = [each for each in metrics if each["name"] == "m"]
    losses = {each["tags"][0]["value"]: each["value"] for each in metrics if each["name"] == statsd.loss_name}
    assert losses[where] > 0
    assert sum(losses.values()) == sent - len(appended)
    assert len({each["value"] for each in appended}) == len(appended) > 0
    counted = Counter[str]()
    for flush in receiver.flushes():
        counted.update({name: flush[name] for name in ("datagrams", "lost_in_kernel", "lost_in_queue")})
    assert counted["datagrams"] == len(appended)
    assert counted["lost_in_kernel"] + counted["lost_in_queue"] == sum(losses.values())
    assert any("datagrams in the kernel" in line for line in receiver.said)


def test_what_is_lost_before_the_receiver_looks_is_counted(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.create("metrics")
    listening_socket = statsd.opened_socket("127.0.0.1", 0, 5000)
    send(listening_socket.getsockname()[1], *[b"m:1|c"] * 3000)
    receiver = statsd.Receiver(log, statsd.Options("metrics"), listening_socket, lambda flushed: None)
    asyncio.run(receiver.finish())
    listening_socket.close()
    metrics = metrics_of(log)
    appended = sum(each["name"] == "m" for each in metrics)
    assert [each["value"] for each in metrics if each["name"] == statsd.loss_name] == [3000 - appended]


@pytest.mark.process
def test_at_a_stop_what_the_kernel_holds_is_appended(tmp_path: Path) -> None:
    sent = 200
    with listening(tmp_path, "statsd", "--port", "0", "--topic", "metrics") as receiver:
        port = port_of(receiver)
        receiver.process.send_signal(signal.SIGSTOP)
        send(port, *[b"m:1|c"] * sent)
        receiver.process.send_signal(signal.SIGTERM)
        receiver.process.send_signal(signal.SIGCONT)
        assert receiver.process.wait(patience_seconds) == 0
    metrics = metrics_of(Log(tmp_path / "log"))
    lost = sum(each["value"] for each in metrics if each["name"] == statsd.loss_name)
    assert sum(each["name"] == "m" for each in metrics) + lost == sent


@pytest.mark.process
def test_metrics_wait_while_the_log_cannot_be_written(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    with listening(tmp_path, "statsd", "--port", "0", "--topic", "metrics", "--flush-seconds", "0.05") as receiver:
        port = port_of(receiver)
        pid = receiver.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        send(port, b"a:1|c")
        assert "cannot be written" in receiver.hears(r"(.*Trying again in .*)\n")
        send(port, b"b:1|c")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        eventually(lambda: sorted(each["name"] for each in metrics_of(log)) == ["a", "b"], "both metrics")
        assert receiver.ends() == 0


@pytest.mark.process
def test_metrics_and_losses_are_events_and_what_is_none_is_quarantined(lakehouse: "Lakehouse", tmp_path: Path) -> None:
    metrics = bronze.topic("metrics")
    schema = (
        "id string, name string, value double, type string, sample_rate double, "
        "tags array<struct<key: string, value: string>>, received_at timestamp"
    )
    lakehouse.declare(
        metrics,
        silver.events("metric_events", source=metrics, schema=schema, keys=["id"], event_time="received_at"),
    )
    options = ["--port", "0", "--topic", "metrics", "--flush-seconds", "600", "--queue-datagrams-max", "1"]
    with listening(tmp_path, "statsd", *options) as receiver:
        send(
            port_of(receiver),
            b"views:1|c|@0.5|#page:home\nviews:1|c|@0.5|#page:home\nno metric",
            b"lost:1|c",
            b"lost:1|c",
        )
        assert receiver.ends() == 0
    lakehouse.run()
    view = ("views", 1.0, [("page", "home")])
    lost = (statsd.loss_name, 2.0, [("where", "queue")])
    found = lakehouse.table("silver.metric_events").select("name", "value", "tags").collect()
    assert sorted((row["name"], row["value"], [tuple(tag) for tag in row["tags"]]) for row in found) == [
        lost,
        view,
        view,
    ]
    assert lakehouse.rows("silver._fates", "fate", "reason") == [("quarantined", "malformed_json")]


# AMQP


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as broker:
        yield broker


class Producer:
    """Publishes numbered messages, each until the broker confirms it."""

    def __init__(self, broker: RabbitMQ, queue: str) -> None:
        self.broker = broker
        self.queue = queue
        self.confirmed: set[str] = set()
        self.goes_on = threading.Event()
        with self.broker.connection() as connection:
            connection.channel().queue_declare(queue, durable=True)

    def publish(self, first: int, end: int, waits_at: int | None = None) -> None:
        """Confirmed publishes; a message whose confirmation was lost with the broker is published again.

        Before the message `waits_at` it waits until it `goes_on`.
        """
        remaining = list(range(first, end))
        deadline = time.monotonic() + patience_seconds
        while remaining:
            assert time.monotonic() < deadline, "the broker did not come back"
            try:
                with self.broker.connection() as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    while remaining:
                        if remaining[0] == waits_at:
                            self.goes_on.wait(patience_seconds)
                        self.publish_one(channel, remaining[0])
                        remaining.pop(0)
            except (AMQPError, OSError):
                time.sleep(0.1)

    def publish_one(self, channel: Any, number: int) -> None:
        properties = pika.BasicProperties(message_id=str(number), delivery_mode=2)
        channel.basic_publish("", self.queue, f'{{"n": {number}}}'.encode(), properties, mandatory=True)
        self.confirmed.add(str(number))

    def messages_left(self) -> int:
        with self.broker.connection() as connection:
            return int(connection.channel().queue_declare(self.queue, passive=True).method.message_count)


def ids_of(log: Log, topic: str) -> Counter[str]:
    return Counter(record.headers["message_id"] for record in records_of(log, topic))


@pytest.mark.process
def test_messages_come_again_after_a_kill_between_append_and_ack(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    log.create("orders")
    producer = Producer(rabbitmq, "redelivered")
    producer.publish(0, 10)
    arguments = ["amqp", "--queue", "redelivered", "--topic", "orders"]
    # The second partition is locked: the first has its half when the receiver is killed, and nothing is acknowledged.
    with (
        FileLock(log.root / "orders" / "1" / ".lock"),
        listening(tmp_path, *arguments, SLUICE_AMQP=rabbitmq.url) as receiver,
    ):
        eventually(lambda: log.segments("orders"), "the first half")
        receiver.ends(signal.SIGKILL)
    first = ids_of(log, "orders")
    assert len(first) == 5
    with listening(tmp_path, *arguments, SLUICE_AMQP=rabbitmq.url) as receiver:
        eventually(lambda: len(ids_of(log, "orders")) == 10, "all messages")
        eventually(lambda: len(records_of(log, "orders")) == 15, "the first half again")
        assert receiver.ends() == 0
    assert producer.messages_left() == 0
    assert {each for each, times in ids_of(log, "orders").items() if times == 2} == set(first)
    again = [record for record in records_of(log, "orders") if record.headers.get("redelivered") == "true"]
    assert len(again) == 10
    assert {record.headers["routing_key"] for record in again} == {"redelivered"}


@pytest.mark.process
def test_nothing_confirmed_is_lost_when_receiver_and_broker_are_killed(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    producer = Producer(rabbitmq, "killed")
    publishing = threading.Thread(target=producer.publish, args=(0, 2000, 1000))
    arguments = ["amqp", "--queue", "killed", "--topic", "orders", "--batch-records-max", "50", "--prefetch", "200"]
    with listening(tmp_path, *arguments, SLUICE_AMQP=rabbitmq.url) as receiver:
        publishing.start()
        eventually(lambda: len(ids_of(log, "orders")) > 150, "the first messages", pause_seconds=0.2)
        receiver.ends(signal.SIGKILL)
    with listening(tmp_path, *arguments, SLUICE_AMQP=rabbitmq.url) as receiver:
        eventually(lambda: len(ids_of(log, "orders")) > 450, "more messages", pause_seconds=0.2)
        producer.goes_on.set()
        rabbitmq.kill()
        receiver.hears("(cannot be reached)")
        rabbitmq.start()
        publishing.join()
        eventually(
            lambda: ids_of(log, "orders").keys() >= producer.confirmed, "all that was confirmed", pause_seconds=0.2
        )
        eventually(lambda: producer.messages_left() == 0, "an empty queue", pause_seconds=0.2)
        assert receiver.ends() == 0
    assert len(producer.confirmed) == 2000
    assert ids_of(log, "orders").keys() == producer.confirmed
    assert producer.messages_left() == 0
    values = {record.headers["message_id"]: record.value for record in records_of(log, "orders")}
    assert values == {each: f'{{"n": {each}}}'.encode() for each in producer.confirmed}


@pytest.mark.process
def test_nothing_is_acknowledged_while_the_log_cannot_be_written(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.create("orders")
    producer = Producer(rabbitmq, "full")
    with listening(tmp_path, "amqp", "--queue", "full", "--topic", "orders", SLUICE_AMQP=rabbitmq.url) as receiver:
        receiver.hears("(Connected to)")
        pid = receiver.process.pid
        unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        producer.publish(0, 3)
        receiver.hears("(Nothing is acknowledged)")
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        eventually(lambda: ids_of(log, "orders") == Counter({"0": 1, "1": 1, "2": 1}), "the messages")
        assert receiver.ends() == 0
    assert producer.messages_left() == 0


@pytest.mark.process
def test_what_does_not_pass_by_itself_ends_the_receiver(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    to = ["amqp", "--queue", "nowhere", "--topic", "orders"]
    code, said = said_at_once(tmp_path, *to, SLUICE_AMQP=rabbitmq.url)
    assert (code, "no queue 'nowhere'" in said) == (1, True)
    code, said = said_at_once(tmp_path, *to, SLUICE_AMQP=rabbitmq.url.replace("guest:guest", "guest:wrong"))
    assert (code, "refused the connection" in said, "wrong" in said) == (1, True, False)
    code, said = said_at_once(tmp_path, *to, SLUICE_AMQP=rabbitmq.url.replace("%2F", "elsewhere"))
    assert (code, "refused the connection" in said) == (1, True)
