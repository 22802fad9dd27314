"""Webhooks: signed, in order, and each change accepted, whatever the receiver and the sender go through."""

import base64
import hashlib
import hmac
import http.client
import itertools
import json
import os
import random
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from sluice import Project
from sluice.errors import PublishError, SluiceError, UsageError
from sluice.operate import webhook
from sluice.operate.subscribe import Cursor, Subscription
from sluice.operate.webhook import PositionFile, Webhook, deliver, seconds_of
from sluice.runtime.signatures import secret_key
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.forked import process_of
from tests.senders import Sender, careful, hasty
from tests.test_subscribe import Copy, actual, apply_commit, bag, made, table
from tests.waiting import eventually, patience_seconds

key = b"\x07" * 32
secret = f"whsec_{base64.b64encode(key).decode()}"


class Receiver:
    """Answers as it is told, and keeps what it accepted, each message id once."""

    def __init__(self, answers: Iterator[int | None]) -> None:
        self.answers = answers
        self.messages: dict[str, dict[str, Any]] = {}
        self.attempts: list[str] = []
        self.redirected = 0
        self.url = ""

    def take(self, headers: Any, body: bytes) -> int | None:
        """The status for a request; None closes the connection, half of the time after it was accepted."""
        message_id, moment = headers["webhook-id"], headers["webhook-timestamp"]
        signed = hmac.digest(key, f"{message_id}.{moment}.".encode() + body, hashlib.sha256)
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
        assert abs(time.time() - int(moment)) < 60
        self.attempts.append(message_id)
        answer = next(self.answers)
        if answer == 200 or (answer is None and len(self.attempts) % 2):
            self.messages.setdefault(message_id, json.loads(body))
        return answer


@contextmanager
def receiving(answers: Iterator[int | None], make: Callable[..., Receiver] = Receiver) -> Iterator[Receiver]:
    receiver = make(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            answer = receiver.take(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer)
            self.send_header("Location", f"{receiver.url}elsewhere")
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def do_GET(self) -> None:
            receiver.redirected += 1

        def log_message(self, *arguments: object) -> None:
            """Quietly."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *arguments: Any) -> None:
            """A sender that was killed is no news."""
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(*arguments)

    server = Quiet(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/t0ken/"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        webhook.connections().clear()


@pytest.fixture(scope="module")
def four_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a lake with a table of four versions, with updates, deletes and other columns."""
    found = Lake(str(tmp_path_factory.mktemp("four") / "lake"))
    path = made(found, [(number, 1.0, "a") for number in range(6)])
    apply_commit(path, "merge", [(1, float("nan"), "z"), (9, None, None)])
    apply_commit(path, "delete", 2)
    apply_commit(path, "columns", "more")
    return Path(found.root)


@pytest.fixture
def lake(four_versions: Path, tmp_path: Path) -> Lake:
    """A test's own copy of it."""
    return Lake(str(shutil.copytree(four_versions, tmp_path / "lake")))


def delivered(lake: Lake, receiver: Receiver, position: Path, *, snapshot: bool = False, **options: Any) -> int:
    """What one process delivers, from where the one before stopped."""
    kept = PositionFile(position, table)
    since = kept.read()
    to = Webhook(receiver.url, key, pause_seconds=0.001, **({"give_up_seconds": 30.0} | options))
    changes = Subscription(lake, table, ("id",), snapshot=snapshot).changes(
        None if since is None else Cursor.of(since), on_read=lambda at: kept.advance(str(at))
    )
    return deliver(changes, since, to, kept, threading.Event())


class Line:
    """A message as a change that a copy takes."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.columns: Any = None
        self.old: Any = None
        self.new: Any = None
        vars(self).update(line)


def taken(receiver: Receiver) -> Copy:
    """A consumer of the accepted messages, in the order in which they came."""
    copy = Copy()
    for each in receiver.messages.values():
        copy.take(Line(each["data"]))  # type: ignore[arg-type]
    return copy


def unreliable(seed: int) -> Iterator[int | None]:
    chance = random.Random(seed)
    while True:
        yield chance.choice([200, 200, 200, 500, 503, 429, None])


def dying(answers: Iterator[int | None], seed: int) -> Iterator[int | None]:
    """The same, and now and then an answer that ends the sender."""
    chance = random.Random(seed)
    for each in answers:
        yield 400 if chance.random() < 0.15 else each


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_copy_made_of_accepted_messages_is_the_table_whatever_fails(
    lake: Lake, tmp_path: Path, seed: int, snapshot: bool
) -> None:
    position = tmp_path / "position"
    with receiving(dying(unreliable(seed), seed)) as receiver:
        for _ in range(200):
            with suppress(PublishError):
                delivered(lake, receiver, position, snapshot=snapshot)
                break
    assert bag(taken(receiver).rows) == actual(lake)
    every = [each.version for each in Subscription(lake, table, ("id",), snapshot=snapshot).changes(None)]
    assert [each["data"]["version"] for each in receiver.messages.values()] == every
    assert PositionFile(position, table).read() == taken(receiver).cursor


@pytest.mark.parametrize("wrong", ["forgets", "skips", "counts"])
def test_a_sender_that_forgets_skips_or_numbers_anew_is_noticed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    match wrong:
        case "forgets":
            monkeypatch.setattr(PositionFile, "write", lambda *_: None)
        case "skips":
            monkeypatch.setattr(Webhook, "require_accepted", lambda *_: None)
        case "counts":
            counted = iter(range(1_000_000))
            monkeypatch.setattr(webhook, "id_of", lambda *_, **__: str(next(counted)))
    with pytest.raises((AssertionError, ValueError)):  # noqa: PT012
        for seed in range(6):
            position = tmp_path / str(seed)
            with receiving(dying(unreliable(seed), seed)) as receiver:
                for _ in range(10):
                    with suppress(PublishError):
                        delivered(lake, receiver, position)
                        break
            assert bag(taken(receiver).rows) == actual(lake)
            assert PositionFile(position, table).read() == taken(receiver).cursor


class Killer(Receiver):
    """Kills the sender at random moments around its requests, so many times, and keeps every message that came."""

    def __init__(self, answers: Iterator[int | None], seed: int, kills: int) -> None:
        super().__init__(answers)
        self.chance, self.kills = random.Random(seed), kills
        self.sender: BaseProcess | None = None

    def take(self, headers: Any, body: bytes) -> int | None:
        due = self.chance.choice(["before", "after", "later", *["never"] * 4]) if self.kills else "never"
        if due == "before":
            self.kill(0)
            return None
        found = super().take(headers, body)
        if due == "after":
            self.kill(0)
        if due == "later":
            # While it writes the position, or sends the next one.
            threading.Thread(target=self.kill, args=[self.chance.uniform(0, 0.01)]).start()
        return found

    def kill(self, after_seconds: float) -> None:
        time.sleep(after_seconds)
        self.kills -= 1
        if self.sender is not None:
            self.sender.kill()


def delivered_by_the_killed(lake: Lake, sender: Sender, seed: int) -> Receiver:
    """What a receiver got from senders that it killed, until one came to the end."""
    with receiving(itertools.repeat(200), partial(Killer, seed=seed, kills=5)) as receiver:
        assert isinstance(receiver, Killer)
        for _ in range(30):
            process = process_of(sender, (Path(lake.root).parent, receiver.url, secret))
            process.start()
            receiver.sender = process
            process.join(patience_seconds)
            if process.exitcode == 0:
                break
        assert (process.exitcode, receiver.kills <= 0) == (0, True)
    return receiver


def in_order_and_whole(lake: Lake, receiver: Receiver) -> None:
    every = [each.cursor for each in Subscription(lake, table).changes(None)]
    assert [each["data"]["cursor"] for each in receiver.messages.values()] == every
    assert bag(taken(receiver).rows) == actual(lake)


@pytest.fixture(scope="module")
def many_versions(four_versions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a lake whose table has many more versions."""
    found = Lake(str(shutil.copytree(four_versions, tmp_path_factory.mktemp("many") / "lake")))
    apply_commit(found.path(table), "columns", "plain")
    for number in range(20):
        apply_commit(found.path(table), "merge", [(number % 4, float(number), "a")])
        apply_commit(found.path(table), "delete", (number + 1) % 4)
    return Path(found.root)


@pytest.fixture
def long_lake(many_versions: Path, tmp_path: Path) -> Lake:
    return Lake(str(shutil.copytree(many_versions, tmp_path / "lake")))


@pytest.mark.process
@pytest.mark.parametrize("seed", range(2))
def test_a_copy_made_of_accepted_messages_is_the_table_whenever_the_sender_is_killed(
    long_lake: Lake, seed: int
) -> None:
    receiver = delivered_by_the_killed(long_lake, careful, seed)
    in_order_and_whole(long_lake, receiver)


@pytest.mark.process
def test_a_sender_that_keeps_the_position_too_early_is_noticed(long_lake: Lake) -> None:
    receiver = delivered_by_the_killed(long_lake, hasty, 0)
    with pytest.raises((AssertionError, ValueError)):
        in_order_and_whole(long_lake, receiver)


def test_after_a_restore_nothing_that_comes_again_is_taken_for_seen(lake: Lake, tmp_path: Path) -> None:
    path, position = Path(lake.path(table)), tmp_path / "position"
    with receiving(itertools.cycle([200, 200, None, 410])) as receiver:

        def delivered_whatever_fails() -> None:
            for _ in range(30):
                with suppress(PublishError):
                    delivered(lake, receiver, position, snapshot=True)
                    break
            assert bag(taken(receiver).rows) == actual(lake)

        before = shutil.copytree(path, tmp_path / "before")
        delivered_whatever_fails()
        apply_commit(str(path), "columns", "plain")
        apply_commit(str(path), "merge", [(7, 7.0, "new")])
        after = shutil.copytree(path, tmp_path / "after")
        delivered_whatever_fails()
        # Back, where the rows of before come as a snapshot again; and on, where the commits after it do.
        for restored in (before, after, before):
            shutil.rmtree(path)
            shutil.copytree(restored, path)
            delivered_whatever_fails()


def test_what_is_refused_or_redirected_is_an_error_at_once_and_never_followed(lake: Lake, tmp_path: Path) -> None:
    for status in (301, 302, 307, 308, 400, 401, 404, 410):
        with receiving(iter([200, status])) as receiver:
            with pytest.raises(PublishError, match=f"answered {status}"):
                delivered(lake, receiver, tmp_path / str(status))
            assert (len(receiver.attempts), receiver.redirected) == (2, 0)


def test_it_gives_up_after_its_time_and_goes_on_there_later(lake: Lake, tmp_path: Path) -> None:
    with receiving(iter([200] + [503] * 10_000)) as receiver:
        with pytest.raises(PublishError, match="answered 503"):
            delivered(lake, receiver, tmp_path / "position", give_up_seconds=0.2)
        assert len(set(receiver.attempts[1:])) == 1
        receiver.answers = iter([200] * 100)
        delivered(lake, receiver, tmp_path / "position")
    assert bag(taken(receiver).rows) == actual(lake)


def test_an_outage_is_reported_once_and_so_is_its_end(lake: Lake, tmp_path: Path) -> None:
    said: list[str] = []
    with receiving(iter([200, 503, 503, 503, *[200] * 100])) as receiver:
        delivered(lake, receiver, tmp_path / "position", warn=said.append)
    assert len(said) == 2
    assert "answered 503" in said[0]
    assert "It is sent again, for 30 s at most." in said[0]
    assert "accepted" in said[1]


def test_the_example_of_a_receiver_takes_what_is_signed_and_nothing_else(lake: Lake, tmp_path: Path) -> None:
    page = Path(__file__).parents[1] / "docs" / "how-to" / "subscribe-to-changes.md"
    (example,) = [each for each in page.read_text().split("```python\n")[1:] if "def change_of" in each]
    names: dict[str, Any] = {}
    exec(example.partition("```")[0], names)
    body = b'{"type": "gold.sold.insert", "data": {"new": {"id": 1}}}'
    headers = Webhook("", secret_key(secret)).signed("id", body)
    assert names["change_of"](headers, body, secret) == {"new": {"id": 1}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time", lambda: 1_000_000_000.0)
        recorded = Webhook("", secret_key(secret)).signed("id", body)
    odd = headers | {"webhook-signature": "v1,é"}
    others = [(headers | {"webhook-id": "other"}, body), (recorded, body), (odd, body), (headers, body + b" ")]
    for wrong_headers, wrong_body in others:
        with pytest.raises(PermissionError):
            names["change_of"](wrong_headers, wrong_body, secret)


@contextmanager
def answering(answer: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A receiver that answers each request with what it is told to send; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_each() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), secured(connection, tls) as client, client.makefile("rb") as requests:
                        while requests.readline():
                            requests.read(int(http.client.parse_headers(requests)["Content-Length"]))
                            answer(client)

        threading.Thread(target=answer_each, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/t0ken/"
        finally:
            webhook.connections().clear()


def secured(connection: socket.socket, tls: ssl.SSLContext | None) -> socket.socket:
    return connection if tls is None else tls.wrap_socket(connection, server_side=True)


processing, hints = b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
accepted, refused = (b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % each for each in (b"200 OK", b"410 Gone"))


@pytest.mark.parametrize("before", [processing, hints, processing + hints, b"HTTP/1.1 100 Continue\r\n\r\n" + hints])
def test_an_answer_may_have_informational_ones_before_it(before: bytes) -> None:
    for final in (accepted, refused):
        with answering(lambda client, final=final: client.sendall(before + final)) as url:  # type: ignore[misc]
            to = Webhook(url, key, give_up_seconds=0)
            for message_id in ("a", "b"):
                if final is accepted:
                    assert to.deliver(message_id, b"{}", threading.Event())
                else:
                    with pytest.raises(PublishError, match="answered 410"):
                        to.deliver(message_id, b"{}", threading.Event())


def test_a_receiver_that_asks_for_a_longer_wait_is_given_up_in_time() -> None:
    asked: list[float] = []
    begun = time.monotonic()

    def later(client: socket.socket) -> None:
        asked.append(time.monotonic() - begun)
        client.sendall(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 100\r\nContent-Length: 0\r\n\r\n")

    with answering(later) as url, pytest.raises(PublishError, match="answered 429"):
        Webhook(url, key, give_up_seconds=1).deliver("a", b"{}", threading.Event())
    # The last attempt is at the end of the time, and not before.
    assert len(asked) == 2
    assert 1 <= asked[1] < 50


def test_informational_answers_without_end_are_no_answer() -> None:
    def flood(client: socket.socket) -> None:
        while True:
            client.sendall(processing)
            time.sleep(0.01)

    with answering(flood) as url, pytest.raises(PublishError, match="did not answer"):
        Webhook(url, key, give_up_seconds=0, answer_seconds=0.5).deliver("a", b"{}", threading.Event())


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_receiver_that_drips_holds_nobody_up(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    end = webhook.end

    def end_and_pause(connection: socket.socket) -> None:
        """The answer is read to its cut-off end before this thread goes on."""
        end(connection)
        time.sleep(0.3)

    monkeypatch.setattr(webhook, "end", end_and_pause)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            client, _ = listener.accept()
            with client, suppress(OSError):
                client.recv(65_536)
                client.sendall(b"HTTP/1.1 200 OK\r\n")
                client.sendall(b"Transfer-Encoding: chunked\r\n\r\n" if part == "body" else b"")
                for number in range(1000):
                    client.sendall(b"1\r\nx\r\n" if part == "body" else b"x-%d: y\r\n" % number)
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        to = Webhook(f"http://127.0.0.1:{listener.getsockname()[1]}/", key, give_up_seconds=0, answer_seconds=0.5)
        begun = time.monotonic()
        if part == "body":
            assert to.deliver("a", b"{}", threading.Event())
        else:
            with pytest.raises(PublishError, match="did not answer"):
                to.deliver("a", b"{}", threading.Event())
        assert time.monotonic() - begun < 50
    webhook.connections().clear()


@contextmanager
def answering_by_tls(folder: Path, name: str) -> Iterator[str]:
    """A receiver with a certificate of its own for a name, in `certificate.pem`; its address."""
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    files = ["-keyout", str(private), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    named = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*command, *named, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, private)
    with answering(lambda client: client.sendall(accepted), context) as url:
        yield url.replace("http://127.0.0.1", "https://localhost")


@pytest.mark.process
def test_a_certificate_that_is_not_trusted_ends_the_delivery_at_once_and_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering_by_tls(tmp_path, "localhost") as url:
        to = Webhook(url, key, give_up_seconds=30)
        with pytest.raises(PublishError, match=r"not trusted \(self.signed certificate\).*SSL_CERT_FILE") as failed:
            to.deliver("a", b"{}", threading.Event())
        assert "t0ken" not in str(failed.value)
        webhook.connections().clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        assert to.deliver("a", b"{}", threading.Event())


@pytest.mark.process
def test_a_certificate_of_another_name_ends_the_delivery_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    with answering_by_tls(tmp_path, "elsewhere") as url, pytest.raises(PublishError, match=r"not trusted .*mismatch"):
        Webhook(url, key, give_up_seconds=30).deliver("a", b"{}", threading.Event())


def test_a_receiver_that_is_gone_is_an_error_without_its_path(lake: Lake, tmp_path: Path) -> None:
    with receiving(iter([])) as receiver:
        pass
    with pytest.raises(PublishError, match="did not answer") as failed:
        delivered(lake, receiver, tmp_path / "position", give_up_seconds=0.0)
    assert "t0ken" not in str(failed.value)


def test_a_stop_ends_the_wait_for_a_receiver(lake: Lake) -> None:
    stop = threading.Event()
    with receiving(iter([503] * 10_000)) as receiver:
        threading.Timer(0.2, stop.set).start()
        assert not Webhook(receiver.url, key, pause_seconds=60).deliver("x", b"{}", stop)


@pytest.mark.parametrize(("asked", "seconds"), [(None, 0), ("7", 7), ("soon", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0)])
def test_how_long_a_receiver_asks_to_wait(asked: str | None, seconds: float) -> None:
    assert seconds_of(asked) == seconds


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of the specification's own libraries.
    found = Webhook("", secret_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: 1614265330.0)
        headers = found.signed("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_command_delivers_and_never_shows_the_secret(lake: Lake, tmp_path: Path) -> None:
    environment = {"SLUICE_LAKE": str(tmp_path / "lake"), "HOOK": secret}
    with receiving(iter([200] * 100)) as receiver:
        options = ["subscribe", table, "--webhook", receiver.url, "--position", "position"]
        done = sluice(*options, "--secret-env", "HOOK", here=tmp_path, environment=environment)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert bag(taken(receiver).rows) == actual(lake)
        again = sluice(*options, "--secret-env", "HOOK", here=tmp_path, environment=environment)
        assert "0 changes" in again.stderr
        failures = [
            (options, environment, "--secret-env"),
            ([*options, "--secret-env", "HOOK"], environment | {"HOOK": f"{secret}!"}, "24 to 64 bytes"),
            ([*options[:4], "--secret-env", "HOOK"], environment, "--position"),
            (
                ["subscribe", table, "--webhook", "ftp://x", *options[4:], "--secret-env", "HOOK"],
                environment,
                "address",
            ),
        ]
        for arguments, variables, says in failures:
            done = sluice(*arguments, here=tmp_path, environment=variables)
            assert done.returncode == 2
            assert says in done.stderr
            assert secret not in done.stderr


def test_a_condition_that_nothing_meets_moves_the_position_all_the_same(lake: Lake, tmp_path: Path) -> None:
    kept = PositionFile(tmp_path / "position", table, "id = 1")
    options: dict[str, Any] = {"secret": secret, "where": "id = 1"}
    with receiving(iter([200] * 100)) as receiver, Project(tmp_path, {"lake": lake.root}, any_folder=True) as project:
        before = project.deliver(table, receiver.url, position=kept.path, **options)
        apply_commit(lake.path(table), "delete", 2)
        assert project.deliver(table, receiver.url, position=kept.path, **options) == 0
        assert Cursor.of(kept.read() or "").version == lake.newest_version(table)
        apply_commit(lake.path(table), "delete", 1)
        assert project.deliver(table, receiver.url, position=kept.path, **options) == 1
    assert len(receiver.messages) == before + 1


def test_a_position_belongs_to_one_condition(lake: Lake, tmp_path: Path) -> None:
    """Rows that another condition knows are not among the changes after it."""
    position = tmp_path / "position"
    with receiving(iter([200] * 100)) as receiver, Project(tmp_path, {"lake": lake.root}, any_folder=True) as project:

        def deliver(where: str | None) -> int:
            return project.deliver(table, receiver.url, position=position, secret=secret, where=where)

        deliver("id = 1")
        for other in ("id = 2", None):
            with pytest.raises(UsageError, match="the condition 'id = 1'"):
                deliver(other)
        deliver("id = 1")
        # A file of an older release says nothing of it.
        content = json.loads(position.read_text())
        del content["where"]
        position.write_text(json.dumps(content))
        deliver("id = 2")


def test_a_position_is_durable_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def replaced(path: Path, to: Path) -> Path:
        done.append("renamed")
        return replace(path, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    PositionFile(tmp_path / "position", table).write("3:all:5")
    assert done == [(tmp_path / "position").stat().st_ino, "renamed", tmp_path.stat().st_ino]


@pytest.mark.process
def test_the_address_comes_from_a_variable_and_no_list_of_processes_has_it(lake: Lake, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sluice.cli", "subscribe", table, "--follow", "--position", "position"]
    command += ["--webhook-env", "HOOK_URL", "--secret-env", "HOOK"]
    environment = {"SLUICE_LAKE": lake.root, "HOOK": secret}
    with receiving(itertools.repeat(200)) as receiver:
        secrets = {"HOOK_URL": receiver.url}
        with subprocess.Popen(command, cwd=tmp_path, env=os.environ | environment | secrets) as sender:
            eventually(lambda: receiver.messages, "a message")
            listed = subprocess.check_output(["ps", "-ww", "-o", "args=", "-p", str(sender.pid)], text=True)
            sender.terminate()
        assert receiver.messages
        assert "--webhook-env" in listed
        assert "t0ken" not in listed
        for arguments, variables, says in (
            ([], environment, "HOOK_URL, which should have the webhook's address, is not set"),
            (["--webhook", receiver.url], environment | secrets, "not by both"),
        ):
            done = sluice(*command[3:], *arguments, here=tmp_path, environment=variables)
            assert done.returncode == 2
            assert says in " ".join(done.stderr.split())


def test_a_position_belongs_to_one_table_and_one_process(tmp_path: Path) -> None:
    kept = PositionFile(tmp_path / "position", table)
    kept.write("3:all:5")
    assert kept.read() == "3:all:5"
    with pytest.raises(UsageError, match="no position"):
        PositionFile(kept.path, "gold.other").read()
    kept.path.write_text("{")
    with pytest.raises(UsageError, match="no position"):
        kept.read()
    with FileLock(f"{kept.path}.lock"), pytest.raises(SluiceError, match="Another process"), kept.held():
        pass
