"""MQTT 5: the messages of topic filters, acknowledged when the log has them."""

import asyncio
import logging
import signal
import ssl
import threading
import time
import zlib
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from gmqtt import Client, Subscription
from gmqtt.mqtt.handler import MQTTConnectError
from tenacity import AsyncRetrying, retry_if_exception_type

from sluice.errors import LogError, ReceiverError, UsageError
from sluice.ingest.receivers.group import Group
from sluice.ingest.receivers.records import append, key_in, with_field
from sluice.ingest.receivers.retries import Notify, appending, back_off, reporting, unreachable
from sluice.log import AnyLog, Record, is_reserved, require_open

answer_seconds_max = 10.0
keep_alive_seconds = 30
# Two clients of one name end each other's connections, and a broker need not say so.
short_seconds, hinted_from = 10.0, 3
identifiers_max = 268_435_455
# A broker says why it refuses, or ends a connection, by a number.
refused_from = 128
passing_refusals = {136, 137, 151, 159}
taken_over = 142
own_headers = frozenset({"mqtt_topic", "mqtt_qos", "redelivered", "retained"})
form = "FILTER=TOPIC, such as plants/+/heat=heats"
address_form = "SLUICE_MQTT must be a URL: mqtt://user:password@host:1883, or mqtts://… with TLS."


@dataclass(frozen=True)
class Address:
    """Where the broker is, and who we are there."""

    host: str
    port: int
    has_tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Options:
    """Which filters go to which topics, and how the broker keeps what comes while we are away.

    It knows the session by `client_id`, and keeps it for `session_seconds`. It sends up to `prefetch` messages ahead of
    their acknowledgement. `id_field` and `topic_field` name fields of JSON objects that the user property `message_id`
    and the message's own topic are written into, where a declaration can reach them.
    """

    client_id: str
    filters: Mapping[str, str]
    qos: int = 1
    session_seconds: int = 7 * 86_400
    prefetch: int = 1000
    key_field: str | None = None
    id_field: str | None = None
    topic_field: str | None = None


@dataclass
class Counts:
    """How many messages came, and how many of them the broker says that it may have sent before."""

    messages: int = 0
    again: int = 0
    unacknowledged: int = 0


class Gone(Exception):
    """The broker is away, or ended the connection."""


def is_filter(name: str) -> bool:
    """Whether a broker can read a filter: its wildcards are levels of their own, and # is the last one."""
    levels = name.split("/")
    has_wildcards = [each for each in levels if "+" in each or "#" in each]
    return all(each in ("+", "#") for each in has_wildcards) and "#" not in levels[:-1]


def filters_of(said: Sequence[str]) -> dict[str, str]:
    """The topic of each filter; a UsageError for what is no such pair."""
    found: dict[str, str] = {}
    for each in said:
        name, _, topic = each.rpartition("=")
        if not name or not topic:
            raise UsageError(f"--subscribe {each} cannot be read; write {form}.")
        if not is_filter(name):
            raise UsageError(
                f"--subscribe {each}: {name} is no filter of MQTT. A + stands for a whole level, and # for all that "
                "follow, as the last one: plants/+/heat, plants/#."
            )
        require_open(topic)
        if name in found:
            raise UsageError(f"--subscribe {name} is given twice; let a filter have one topic.")
        found[name] = topic
    if not found:
        raise UsageError(f"Which messages? Give --subscribe {form}.")
    return found


def address_of(url: str) -> Address:
    """The parsed URL; a UsageError that does not repeat it, because it contains a password."""
    wrong = UsageError(address_form)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise wrong
    has_tls = parts.scheme == "mqtts"
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(parts.hostname, port or (8883 if has_tls else 1883), has_tls, user, password)


async def serve(log: AnyLog, address: Address, options: Options, notify: Notify) -> None:
    """Appends messages until SIGTERM or SIGINT, reconnecting whenever the broker is lost.

    A ReceiverError for what a retry does not fix: a wrong password, a filter that may not be read.
    """
    # gmqtt logs each lost connection at length; the receiver reports what matters.
    logging.getLogger("gmqtt").setLevel(logging.CRITICAL + 1)
    receiver = Receiver(log, options, notify)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(without_refusals)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, receiver.stop)
    await receive(receiver, address)


async def receive(receiver: "Receiver", address: Address) -> None:
    """The same, until the receiver is stopped."""
    log, options, notify = receiver.log, receiver.options, receiver.notify
    for topic in dict.fromkeys(options.filters.values()):
        await asyncio.to_thread(log.create, topic)
    short_in_a_row = 0
    while not receiver.stopping.is_set():
        session = await connected(receiver, address)
        if session is None:
            break
        began = time.monotonic()
        try:
            await session.until_ended()
        except Gone as error:
            is_short = time.monotonic() - began < short_seconds
            short_in_a_row = short_in_a_row + 1 if is_short else 0
            hint = f" Is another client connected as {options.client_id}?" if short_in_a_row >= hinted_from else ""
            notify(f"The broker is gone ({error}); what was not acknowledged will come again.{hint}")
            await receiver.nap(min(5.0, 0.25 * 2**short_in_a_row) if is_short else 0)
    counts = receiver.counts
    notify(
        f"{counts.messages:,} messages taken: {counts.again:,} of them perhaps again, and {counts.unacknowledged:,} of "
        "QoS 0, of which others may be lost."
    )


def without_refusals(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A message that is not appended has an error instead of an acknowledgement, which is reported elsewhere."""
    if not isinstance(context.get("exception"), LogError | ReceiverError):
        loop.default_exception_handler(context)


async def connected(receiver: "Receiver", address: Address) -> "Session | None":
    """A connection, retried for as long as the broker is away; None when stopped meanwhile."""
    notify, stopping = receiver.notify, receiver.stopping
    retrying = AsyncRetrying(
        retry=retry_if_exception_type((OSError, Gone)),
        wait=back_off,
        stop=lambda state: stopping.is_set(),
        sleep=receiver.nap,
        before_sleep=reporting(notify, unreachable),
        reraise=True,
    )

    async def connect() -> Session:
        # A new client each time: what an old one still acknowledges must not reach the new connection, where its number
        # may be that of another message.
        session = Session(receiver)
        try:
            await session.connect(address)
        except BaseException:
            await session.close()
            raise
        return session

    try:
        return await retrying(connect)
    except (OSError, Gone):
        return None


class Receiver:
    """What outlives a connection: the appends under way, the counts, and whether it is to stop."""

    def __init__(self, log: AnyLog, options: Options, notify: Notify) -> None:
        self.log = log
        self.options = options
        self.notify = notify
        self.counts = Counts()
        self.stopping = asyncio.Event()
        self.stopping_threads = threading.Event()
        self.topics = {identifier_of(name, topic): topic for name, topic in options.filters.items()}
        if len(self.topics) < len(options.filters):
            raise UsageError(
                "The broker could not tell two of the subscriptions apart: their numbers are equal. Take another topic "
                "or filter for one of them, or a receiver of its own."
            )
        self.groups = {topic: Group(partial(self.append, topic)) for topic in options.filters.values()}

    def stop(self) -> None:
        self.stopping.set()
        self.stopping_threads.set()

    async def nap(self, seconds: float) -> None:
        """Sleeps, unless stopped meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    def append(self, topic: str, records: Sequence[Record]) -> dict[int, int]:
        """Appends records, again and again while the log cannot be written; a LogError when stopped meanwhile."""
        retrying = appending(self.stopping_threads, self.notify, "Nothing is acknowledged")
        return retrying(append, self.log, topic, records)


class Session:
    """One connection to the broker, within a session that the broker keeps."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.options = receiver.options
        self.under_way: set[asyncio.Task[Any]] = set()
        self.is_new = False
        self.answered = asyncio.Event()
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        self.client = Client(
            self.options.client_id,
            clean_session=False,
            # The library acknowledges a message when `take` has returned.
            optimistic_acknowledgement=False,
            session_expiry_interval=self.options.session_seconds,
            receive_maximum=self.options.prefetch,
        )
        # It is we who connect again; 0 still allows one attempt.
        self.client.set_config({"reconnect_retries": -2})
        self.client.on_connect = self.greeted
        self.client.on_message = self.take
        self.client.on_subscribe = self.subscribed
        self.client.on_disconnect = self.lost

    async def connect(self, address: Address) -> None:
        """Connects and subscribes; a Gone or OSError when a retry may help, and a ReceiverError otherwise."""
        if address.user is not None:
            self.client.set_auth_credentials(address.user, address.password)
        context = ssl.create_default_context() if address.has_tls else False
        try:
            async with asyncio.timeout(answer_seconds_max):
                await self.client.connect(address.host, address.port, ssl=context, keepalive=keep_alive_seconds)
                await self.subscribe()
        except TimeoutError as error:
            raise Gone(f"no answer within {answer_seconds_max:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise ReceiverError(f"The broker's certificate is not trusted: {error.verify_message}.") from error
        except MQTTConnectError as error:
            if error._code in passing_refusals:
                raise Gone(str(error)) from error
            raise ReceiverError(f"The broker refused the connection: {error}. Correct SLUICE_MQTT.") from error
        begun = "a new session: what was sent before is not in it" if self.is_new else "the session goes on"
        self.receiver.notify(f"Connected to {address}; {begun}.")

    async def subscribe(self) -> None:
        """Subscribes to all filters, and waits until the broker has granted them."""
        for name, topic in self.options.filters.items():
            identifier = identifier_of(name, topic)
            # Retained messages come with a new subscription, and not again with each connection.
            wanted = Subscription(name, qos=self.options.qos, retain_handling_options=1)
            self.answered.clear()
            self.client.subscribe(wanted, subscription_identifier=identifier)
            # One at a time: a broker may allow few requests under way.
            await first_of(self.answered, self.ended)
            if self.error is not None:
                raise self.error

    async def until_ended(self) -> None:
        """Returns when stopped, once what had come is acknowledged; raises a Gone when the broker ends it before."""
        await first_of(self.receiver.stopping, self.ended)
        error = self.error
        if error is None:
            await settled(self.under_way)
            # What has returned is acknowledged in the next turn of the loop.
            await asyncio.sleep(0)
        await self.close()
        if error is not None and not (isinstance(error, Gone) and self.receiver.stopping.is_set()):
            raise error

    async def close(self) -> None:
        """Ends the connection, and waits for the appends under way, whose messages will come again."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(answer_seconds_max):
                await self.client.disconnect()
        await settled(self.under_way)

    def greeted(self, _client: Client, session_present: int, *_: Any) -> None:
        self.is_new = not session_present

    def subscribed(self, _client: Client, _mid: int, granted: Sequence[int], _properties: Any) -> None:
        self.answered.set()
        if any(each >= refused_from for each in granted):
            self.end(
                ReceiverError("The broker refused a subscription. Correct --subscribe, or what this user may read.")
            )
        elif any(each < self.options.qos for each in granted):
            self.receiver.notify(f"Warning: the broker grants only QoS {min(granted)}.")

    def lost(self, _client: Client, packet: bytes | Exception, *_: Any) -> None:
        reason = packet[0] if isinstance(packet, bytes) and packet else 0
        if reason == taken_over:
            self.end(
                ReceiverError(
                    f"Another client connected as {self.options.client_id}. Give each receiver its --client-id."
                )
            )
        else:
            self.end(Gone(f"reason {reason}" if reason else "the connection ended"))

    def end(self, error: Exception) -> None:
        self.error = self.error or error
        self.ended.set()

    async def take(self, _client: Client, name: str, payload: bytes, qos: int, properties: Mapping[str, Any]) -> int:
        """Appends a message; the library acknowledges it when this returns, and not when it raises."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it is called in one
        self.under_way.add(task)
        try:
            topics = self.topics_of(name, properties)
            record = record_of(name, payload, qos, properties, self.options)
            await asyncio.gather(*[self.receiver.groups[topic].append([record]) for topic in topics])
        finally:
            self.under_way.discard(task)
        counts = self.receiver.counts
        counts.messages += 1
        counts.again += bool(properties.get("dup"))
        counts.unacknowledged += qos == 0
        return 0

    def topics_of(self, name: str, properties: Mapping[str, Any]) -> list[str]:
        """The topics of the log for the subscriptions that a message came by."""
        identifiers = properties.get("subscription_identifier", [])
        unknown = [each for each in identifiers if each not in self.receiver.topics]
        if unknown or not identifiers:
            error = ReceiverError(
                f"A message of {name} came by a subscription that --subscribe does not name: the session of "
                f"{self.options.client_id} has others, or the broker knows no subscription identifiers. It is not "
                "acknowledged. Name the filter with its topic as before, or give another --client-id."
            )
            self.end(error)
            raise error
        return list(dict.fromkeys(self.receiver.topics[each] for each in identifiers))


async def first_of(*events: asyncio.Event) -> None:
    """Waits until one of them is set."""
    waiting = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def settled(tasks: "set[asyncio.Task[Any]]") -> None:
    """Waits for tasks that are under way now, whatever becomes of them."""
    others: Awaitable[Any] = asyncio.gather(*tasks, return_exceptions=True)
    await others


def identifier_of(name: str, topic: str) -> int:
    """The number by which the broker says which subscription a message came by: the same after every start."""
    return zlib.crc32(f"{name}={topic}".encode()) % identifiers_max + 1


def record_of(name: str, payload: bytes, qos: int, properties: Mapping[str, Any], options: Options) -> Record:
    """A message as a record; the headers are its user properties, and say its topic and whether it may come again."""
    headers = headers_of(properties.get("user_property", ()))
    message_id = headers.get("message_id")
    headers |= {"mqtt_topic": name, "mqtt_qos": str(qos)}
    headers |= {"redelivered": "true"} if properties.get("dup") else {}
    headers |= {"retained": "true"} if properties.get("retain") else {}
    value = payload
    if options.topic_field is not None:
        value = with_field(value, options.topic_field, name)
    if options.id_field is not None and message_id is not None:
        value = with_field(value, options.id_field, message_id)
    key = key_in(value, options.key_field) if options.key_field else None
    return Record(value, key=key, headers=headers)


def headers_of(found: Sequence[tuple[str, str]]) -> dict[str, str]:
    """User properties as headers; names of Sluice's own are left out.

    A name that comes again is numbered, and so is one that the receiver gives itself: who publishes cannot forge these.
    """
    headers: dict[str, str] = {}
    for name, text in found:
        if is_reserved(name):
            continue
        count, free = 1, name
        while free in headers or free in own_headers:
            count += 1
            free = f"{name}#{count}"
        headers[free] = text
    return headers
