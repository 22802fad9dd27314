"""AMQP: the messages of a queue, acknowledged when the log has them."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)
from pika.spec import Basic, BasicProperties
from tenacity import Retrying, retry_if_exception, sleep_using_event, stop_when_event_set

from sluice.errors import ReceiverError, UsageError
from sluice.ingest.receivers.records import append, key_in, with_field
from sluice.ingest.receivers.retries import Notify, appending, back_off, described, reporting, unreachable
from sluice.log import AnyLog, Record

poll_seconds_max = 0.2
access_refused, not_allowed = 403, 530


@dataclass(frozen=True)
class Options:
    """Which queue goes to which topic, and how many messages are taken at once.

    The broker sends up to `prefetch` messages ahead of their acknowledgement. `id_field` names a field of JSON objects
    that the message's id is written into as well, where a declaration's keys can reach it.
    """

    queue: str
    topic: str
    declare: bool = False
    key_field: str | None = None
    id_field: str | None = None
    batch_records_max: int = 500
    batch_seconds_max: float = 0.2
    prefetch: int = 1000


def listen(log: AnyLog, url: str, options: Options, stop: threading.Event, notify: Notify) -> None:
    """Appends the messages of the queue until stopped, reconnecting whenever the broker is lost.

    A ReceiverError for what a retry does not fix: a wrong password, a queue that does not exist.
    """
    # pika logs each failed attempt at length; the receiver reports what matters.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    parameters = parameters_of(url)
    log.create(options.topic)
    while not stop.is_set():
        try:
            connection = connected(parameters, stop, notify)
        except (AMQPConnectionError, OSError):
            return  # Stopped while the broker was away.
        try:
            receive(log, connection, options, stop, notify)
        except AMQPConnectionError as error:
            notify(f"The broker is gone ({described(error)}); what was not acknowledged will come again.")
        except ChannelClosedByBroker as error:
            raise ReceiverError(f"The broker refused the queue {options.queue}: {error.reply_text}.") from error
        finally:
            if connection.is_open:
                connection.close()


def parameters_of(url: str) -> pika.URLParameters:
    """The parsed URL; a UsageError that does not repeat it, because it contains a password."""
    wrong = UsageError("SLUICE_AMQP must be a URL: amqp://user:password@host:5672/vhost (%2F: the first).")
    if not url.startswith(("amqp://", "amqps://")):
        raise wrong
    try:
        return pika.URLParameters(url)
    except (ValueError, TypeError):
        raise wrong from None


def connected(parameters: pika.URLParameters, stop: threading.Event, notify: Notify) -> pika.BlockingConnection:
    """A connection, retried for as long as the broker is away; raises the last error when stopped meanwhile."""
    retrying = Retrying(
        retry=retry_if_exception(is_passing),
        wait=back_off,
        stop=stop_when_event_set(stop),
        sleep=sleep_using_event(stop),
        before_sleep=reporting(notify, unreachable),
        reraise=True,
    )
    try:
        connection = retrying(pika.BlockingConnection, parameters)
    except (AMQPConnectionError, OSError) as error:
        if is_passing(error):
            raise
        raise ReceiverError(f"The broker refused the connection: {described(error)}. Correct SLUICE_AMQP.") from error
    notify(f"Connected to {parameters.host}:{parameters.port}.")
    return connection


def is_passing(error: BaseException) -> bool:
    """Whether a retry may help: a broker that is away comes back, a wrong password stays wrong."""
    if isinstance(error, ProbableAuthenticationError | ProbableAccessDeniedError):
        return False
    if isinstance(error, ConnectionClosedByBroker):
        return error.reply_code not in (access_refused, not_allowed)
    return isinstance(error, AMQPConnectionError | OSError)


def receive(
    log: AnyLog, connection: pika.BlockingConnection, options: Options, stop: threading.Event, notify: Notify
) -> None:
    """Appends batch by batch, and acknowledges each when it is durable."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=options.prefetch)
    channel.queue_declare(options.queue, passive=not options.declare, durable=True)
    # The connection's own sleep answers the broker's heartbeats, and the messages stay ours meanwhile.
    retrying = appending(stop, notify, "Nothing is acknowledged", sleep=connection.sleep)
    for delivery_tag, records in batches(channel, options, stop):
        retrying(append, log, options.topic, records)
        channel.basic_ack(delivery_tag, multiple=True)


def batches(
    channel: BlockingChannel, options: Options, stop: threading.Event
) -> Iterator[tuple[int, Sequence[Record]]]:
    """Records with the delivery tag of the last, by count or by time; a ReceiverError when the queue is deleted."""
    batch: list[Record] = []
    delivery_tag, due = 0, 0.0
    poll_seconds = min(poll_seconds_max, options.batch_seconds_max)
    for method, properties, body in channel.consume(options.queue, inactivity_timeout=poll_seconds):
        if method is not None:
            due = due if batch else time.monotonic() + options.batch_seconds_max
            delivery_tag = method.delivery_tag
            batch.append(record_of(method, properties, body, options))
        is_due = len(batch) >= options.batch_records_max or time.monotonic() >= due or stop.is_set()
        if batch and is_due:
            yield delivery_tag, batch
            batch = []
        if stop.is_set():
            return
    raise ReceiverError(f"The broker has no queue {options.queue} any more. Declare it, and start again.")


def record_of(method: Basic.Deliver, properties: BasicProperties, body: bytes, options: Options) -> Record:
    """A message as a record; the headers say its id, and whether the broker sent it before."""
    headers = {"routing_key": method.routing_key}
    value = body
    # pika hands over bytes where an id is not UTF-8.
    if isinstance(properties.message_id, str):
        headers["message_id"] = properties.message_id
        if options.id_field is not None:
            value = with_field(body, options.id_field, properties.message_id)
    if method.redelivered:
        headers["redelivered"] = "true"
    key = key_in(body, options.key_field) if options.key_field else None
    return Record(value, key=key, headers={name: text for name, text in headers.items() if isinstance(text, str)})
