"""The changes of a table by webhook: signed, in order, repeated until they are accepted, and resumed after a stop."""

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sluice.errors import PublishError, UsageError
from sluice.log.durable import replace_file
from sluice.operate.json_text import json_line
from sluice.operate.subscribe import Change, Cursor
from sluice.runtime.signatures import schemes, signature

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from urllib3 import PoolManager

answer_bytes_max = 65_536
wait_seconds_max = 300.0


class Refused(PublishError):
    """The receiver does not accept a change, or is not trusted; that would be so later, too."""


class Unavailable(PublishError):
    """The receiver could not accept a change now; it may say after how many seconds it can."""

    def __init__(self, text: str, after_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.after_seconds = after_seconds


@dataclass(frozen=True)
class Webhook:
    """A receiver of signed requests, as the Standard Webhooks specification has them.

    A request that fails is repeated for `give_up_seconds`, with longer and longer pauses. `warn` hears of it once, and
    of the end of it.
    """

    # It may have a token in its path.
    url: str = field(repr=False)
    key: bytes = field(repr=False)
    give_up_seconds: float = 3600.0
    answer_seconds: float = 20.0
    pause_seconds: float = 1.0
    warn: Callable[[str], None] = field(default=lambda text: None, repr=False)

    @property
    def host(self) -> str:
        """What messages may show of the address."""
        found = urlsplit(self.url)
        return f"{found.scheme}://{found.hostname}" + (f":{found.port}" if found.port else "")

    def deliver(self, message_id: str, body: bytes, stop: threading.Event) -> bool:
        """Sends a message until it is accepted; False when `stop` was set before. A PublishError when it gives up."""
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, stop_when_event_set
        from tenacity.nap import sleep_using_event

        retrying = Retrying(
            retry=retry_if_exception_type(Unavailable),
            stop=stop_after_delay(self.give_up_seconds) | stop_when_event_set(stop),
            wait=self.pause,
            sleep=sleep_using_event(stop),
            before_sleep=self.tell,
            reraise=True,
        )
        try:
            retrying(self.send, message_id, body)
        except Unavailable:
            if stop.is_set():
                return False
            raise
        if retrying.statistics.get("attempt_number", 1) > 1:
            self.warn(f"{self.host} accepted {message_id}.")
        return True

    def tell(self, state: "RetryCallState") -> None:
        """Says why a change has to be sent again, the first time."""
        error = state.outcome.exception() if state.outcome is not None else None
        if state.attempt_number == 1 and error is not None:
            self.warn(f"{error} It is sent again, for {self.give_up_seconds:,.0f} s at most.")

    def pause(self, state: "RetryCallState") -> float:
        """The seconds until the next attempt: as many as the receiver asks for, or a random number below a bound.

        The last attempt is at the moment of giving up.
        """
        from tenacity import wait_random_exponential

        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.after_seconds if isinstance(error, Unavailable) else 0.0
        own = wait_random_exponential(multiplier=self.pause_seconds, max=wait_seconds_max / 5)(state)
        left = max(0.0, self.give_up_seconds - (state.seconds_since_start or 0.0))
        return min(max(asked, own), wait_seconds_max, left)

    def send(self, message_id: str, body: bytes) -> None:
        """One attempt. Redirects are not followed: the signed rows are for this address only."""
        import urllib3

        headers = {"Content-Type": "application/json", "User-Agent": "sluice"} | self.signed(message_id, body)
        timeout = urllib3.Timeout(connect=self.answer_seconds / 2, read=self.answer_seconds)
        try:
            answer = connections().request(
                "POST", self.url, body=body, headers=headers, timeout=timeout, retries=False, preload_content=False
            )
        except urllib3.exceptions.LocationValueError as error:
            raise UsageError("The webhook's address cannot be used; write https://host/path.") from error
        except urllib3.exceptions.HTTPError as error:
            self.require_trusted(error)
            raise Unavailable(f"{self.host} did not answer ({type(error).__name__}) to {message_id}.") from error
        try:
            self.require_accepted(answer.status, answer.headers.get("Retry-After"), message_id)
        finally:
            drop(answer, self.answer_seconds)

    def signed(self, message_id: str, body: bytes) -> dict[str, str]:
        """The headers by which a receiver knows who sent it, and when; each attempt has its own time."""
        moment = str(int(time.time()))
        signed = signature(schemes["standard"], self.key, body, moment=moment.encode(), message_id=message_id.encode())
        return {"webhook-id": message_id, "webhook-timestamp": moment, "webhook-signature": signed.decode()}

    def require_trusted(self, error: Exception) -> None:
        """A Refused where a request failed because of the receiver's certificate, which stays what it is."""
        why = error.args[0] if error.args else None
        if isinstance(why, ssl.SSLCertVerificationError):
            raise Refused(
                f"The certificate of {self.host} is not trusted ({why.verify_message.rstrip('.')}), so nothing was "
                "sent. If an authority of your own signed it, set SSL_CERT_FILE to a PEM file with that authority; "
                "with AWS_CA_BUNDLE, add it to that file."
            ) from error

    def require_accepted(self, status: int, retry_after: str | None, message_id: str) -> None:
        if 200 <= status < 300:
            return
        if status in (408, 425, 429) or status >= 500:
            raise Unavailable(f"{self.host} answered {status} to {message_id}.", seconds_of(retry_after))
        hint = " Redirects are not followed; give the address where it leads." if 300 <= status < 400 else ""
        raise Refused(f"{self.host} answered {status} to {message_id}, so nothing more was sent.{hint}")


@dataclass(frozen=True)
class PositionFile:
    """The place of the last change that was accepted, in a file that one process uses at a time."""

    path: Path
    table: str
    where: str | None = None

    def read(self) -> str | None:
        """The cursor; None where there is no file. A UsageError for a file that is of something else."""
        try:
            found = json.loads(self.path.read_text())
            cursor = str(Cursor.of(found["cursor"])) if found["table"] == self.table else None
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError):
            cursor = None
        if cursor is None:
            raise UsageError(f"{self.path} is no position in the changes of {self.table}. Give another --position.")
        before = found.get("where", self.where)
        if before != self.where:
            said = "no condition" if before is None else f"the condition {before!r}"
            raise UsageError(
                f"{self.path} is a position in the changes with {said}; of the rows before it, the receiver has those "
                "and no others. Give another --position, with --snapshot."
            )
        return cursor

    def series(self) -> str:
        """What the ids of messages have besides their place, since the last reset; nothing before the first."""
        try:
            return str(json.loads(self.path.read_text()).get("series", ""))
        except FileNotFoundError:
            return ""

    def advance(self, cursor: str) -> None:
        """Keeps that all was read up to a place: what comes after it is not what came before."""
        if self.read() != cursor:
            self.write(cursor, self.series())

    def write(self, cursor: str, series: str = "") -> None:
        """Replaces the file as a whole, durably."""
        said = {"table": self.table, "cursor": cursor, "series": series, "where": self.where}
        replace_file(self.path, json.dumps(said))

    @contextmanager
    def held(self) -> Iterator[None]:
        """For this process alone; a UsageError where another one has it."""
        from filelock import FileLock, Timeout

        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{self.path}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise UsageError(f"Another process delivers from {self.path}. Let only one do so.") from error
        try:
            yield
        finally:
            lock.release()


@cache
def connections() -> "PoolManager":
    """Connections that are kept from request to request; with `retries=False` they follow no redirect."""
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager
    from urllib3.connection import HTTPConnection, HTTPSConnection

    class Plain(HTTPConnectionPool):
        ConnectionCls = type("PlainConnection", (Hurried, HTTPConnection), {})

    class Secure(HTTPSConnectionPool):
        ConnectionCls = type("SecureConnection", (Hurried, HTTPSConnection), {})

    found = PoolManager(num_pools=4)
    found.pool_classes_by_scheme = {"http": Plain, "https": Secure}
    return found


class Final(http.client.HTTPResponse):
    """An answer without the informational ones before it, of which Python itself reads past 100 alone."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if not 101 < status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


class Hurried:
    """A connection whose timeout is that of a whole answer's head: Python's own starts again with each byte."""

    timeout: float
    sock: Any
    response_class = Final

    def getresponse(self) -> Any:
        connection, is_late = self.sock, threading.Event()

        def end_late() -> None:
            is_late.set()
            end(connection)

        timer = threading.Timer(self.timeout, end_late)
        timer.start()
        try:
            found = super().getresponse()  # type: ignore[misc]
            # A head that is cut off is read as one that is complete.
            if is_late.is_set():
                found.close()
                raise TimeoutError
            return found
        finally:
            timer.cancel()


def end(connection: socket.socket) -> None:
    """Ends a wait in another thread. TLS is not closed in order: its object is in use there."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def deliver(
    changes: Iterator[Change], since: str | None, webhook: Webhook, position: PositionFile, stop: threading.Event
) -> int:
    """Delivers the changes after a place, a request for each, and keeps the place of each. Returns how many."""
    is_snapshot = since is not None and Cursor.of(since).is_snapshot
    series = position.series()
    count = 0
    for change in changes:
        is_snapshot = is_snapshot or change.operation == "reset"
        if change.operation == "reset" and (before := position.read() or since) is not None:
            # A table restored from a backup has commits that were sent before, and they have to be heard again.
            series = sha256(f"{series} {before}".encode()).hexdigest()[:16]
        if not webhook.deliver(id_of(change, series, is_snapshot=is_snapshot), body_of(change), stop):
            break
        position.write(change.cursor, series)
        is_snapshot = is_snapshot and not change.is_last
        count += 1
    return count


def id_of(change: Change, series: str, *, is_snapshot: bool) -> str:
    """The same for the same change whenever it is sent, and another for any other: the table, version and position.

    The time of the commit is part of it, since a table that was made again has the same numbers; and so is `series`,
    since after a restore the same commits may come again.
    """
    at = Cursor.of(change.cursor)
    kind = ("-snapshot" if is_snapshot else "") + (f"-{series}" if series else "")
    return f"{change.table}-{change.version}-{change.position}-{at.commit_ms or 0}{kind}"


def body_of(change: Change) -> bytes:
    """The change as a message: what it is, when it was committed, and the line of `sluice subscribe`."""
    kind = f"{change.table}.{change.operation}"
    return json_line({"type": kind, "timestamp": change.committed_at.isoformat(), "data": change.line}).encode()


def require_installed() -> None:
    """A UsageError where the libraries for requests are not installed."""
    if find_spec("tenacity") is None or find_spec("urllib3") is None:
        raise UsageError("tenacity or urllib3 is not installed: pip install 'sluice-lakehouse[publish]'")


def require_address(url: str) -> None:
    """A UsageError for an address that is none, which does not repeat it."""
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_known = False
    if not is_known:
        raise UsageError("The webhook's address cannot be used; write https://host/path.")


def seconds_of(retry_after: str | None) -> float:
    """What a Retry-After asks for, in seconds; 0 where it asks for nothing that can be read."""
    if retry_after is None:
        return 0.0
    try:
        if retry_after.strip().isdecimal():
            return float(retry_after)
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def drop(answer: Any, seconds: float) -> None:
    """Keeps the connection for the next request where the answer is short and soon there, and ends it otherwise."""
    import urllib3

    due, left, is_whole = time.monotonic() + seconds, answer_bytes_max, False
    try:
        while not is_whole and left > 0 and time.monotonic() < due:
            part = answer.read1(left)
            left, is_whole = left - len(part), not part
    except urllib3.exceptions.HTTPError:
        is_whole = False
    if is_whole:
        answer.release_conn()
    else:
        answer.close()
