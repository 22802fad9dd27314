"""The commands of the receivers: `sluice listen http | amqp | mqtt | zeromq | statsd`."""

import asyncio
import json
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from sluice.errors import UsageError
from sluice.log import AnyLog, require_open
from sluice.runtime.settings import read_settings

if TYPE_CHECKING:
    from sluice.ingest.receivers.commands import Decides
    from sluice.ingest.receivers.http import Options

listen_app = typer.Typer(
    no_args_is_help=True, help="Let records into the log by HTTP, AMQP, MQTT, ZeroMQ or StatsD, until stopped."
)

Project = Annotated[Path, typer.Option("--project", help="The project's folder.", show_default="here")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Topic = Annotated[str, typer.Option(help="The topic that the records go to; made when it is not there.")]
IdField = Annotated[
    str | None, typer.Option(help="Also write each record's id into this field of its JSON, for a declaration's keys.")
]
loopback = ("127.0.0.1", "::1", "localhost")


class OpensDeciders(Protocol):
    """Opens the declared commands of a project, by their names. A receiver knows no project: `sluice` gives it this."""

    def __call__(self, project: Path, names: Sequence[str]) -> AbstractContextManager[Sequence["Decides"]]: ...


@listen_app.command()
def http(  # noqa: PLR0917 - options, each given by its name
    context: typer.Context,
    project: Project = Path(),
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 8000,
    topic: Annotated[list[str] | None, typer.Option(help="A topic that may be written; none: all that exist.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Make topics that do not exist.")] = False,
    id_field: IdField = None,
    webhook: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=SCHEME[:FIELD]",
            help="Also take signed requests at /webhooks/TOPIC: standard, github, stripe or slack. FIELD of their JSON "
            "is the record's key.",
        ),
    ] = None,
    commands: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also decide the commands of this declaration, at /commands/NAME."),
    ] = None,
    webhook_seconds_max: Annotated[float, typer.Option(min=1, help="Requests signed longer ago are refused.")] = 300.0,
    request_bytes_max: Annotated[int, typer.Option(min=1, help="Larger requests are refused (413).")] = 1024 * 1024,
    request_seconds_max: Annotated[float, typer.Option(min=0.1, help="Slower requests are ended (408).")] = 30.0,
    head_seconds_max: Annotated[float, typer.Option(min=0.1, help="Connections without a request are closed.")] = 5.0,
    connections_max: Annotated[int, typer.Option(min=1, help="Beyond, idle ones are closed (else 503).")] = 100,
    client_connections_max: Annotated[int, typer.Option(min=1, help="The same for one address.")] = 50,
    certificate: Annotated[Path | None, typer.Option(help="Serve HTTPS with this certificate chain (PEM) …")] = None,
    certificate_key: Annotated[Path | None, typer.Option(help="… and its private key (PEM).")] = None,
) -> None:
    """Receive records, signed webhooks and commands by HTTP, and answer once they are durable in the log.

    POST /topics/TOPIC: one record, or a batch with one record per line. Needs SLUICE_HTTP_TOKEN.

    POST /webhooks/TOPIC: one record, signed by its sender. Needs --webhook and SLUICE_WEBHOOK_SECRETS, and no token.

    POST /commands/NAME: one command, or one per line; the answer is the decision. Needs --commands and the token.
    """
    with extra_needed():
        from sluice.ingest.receivers import http as receiver
        from sluice.ingest.receivers.tokens import tokens_of
        from sluice.ingest.receivers.webhooks import webhooks_of
    settings = read_settings(project)
    token = settings.http_token.get_secret_value()
    if not token and (commands or not webhook):
        raise UsageError(
            "The receiver needs a token. Set SLUICE_HTTP_TOKEN, such as to what `openssl rand -hex 32` prints."
        )
    if (certificate is None) != (certificate_key is None):
        raise UsageError("HTTPS needs both --certificate and --certificate-key.")
    options = receiver.Options(
        tokens=tokens_of(token) if token else (),
        webhooks=webhooks_of(webhook or (), settings.webhook_secrets.get_secret_value()),
        webhook_seconds_max=webhook_seconds_max,
        topics=tuple(topic or ()),
        create=create,
        id_field=id_field,
        request_bytes_max=request_bytes_max,
        request_seconds_max=request_seconds_max,
        head_seconds_max=head_seconds_max,
        connections_max=connections_max,
        client_connections_max=client_connections_max,
        certificate=certificate,
        certificate_key=certificate_key,
    )
    require_certificate(certificate, certificate_key)
    open_deciders: OpensDeciders = context.obj
    with open_deciders(project, commands or ()) as deciders:
        for each in deciders:
            echo(f"Deciding the commands of {each.name}: {each.decisions:,} decisions are in the topic {each.topic}")
        listen(settings.open_log(), replace(options, deciders=tuple(deciders)), host, port)


def listen(log: AnyLog, options: "Options", host: str, port: int) -> None:
    """Answers requests by HTTP until it is stopped."""
    from sluice.ingest.receivers import http as receiver

    certificate = options.certificate
    listening = receiver.opened_socket(host, port)
    scheme = "https" if certificate else "http"
    echo(f"Listening on {scheme}://{address(listening)}, for the log {log}")
    if host not in loopback and certificate is None:
        echo("Warning: this is open to other machines, without TLS. Give --certificate and --certificate-key.")
    receiver.serve(log, options, listening)


@listen_app.command()
def amqp(  # noqa: PLR0917 - the same
    queue: Annotated[str, typer.Option(help="The queue to take messages from.")],
    topic: Topic,
    project: Project = Path(),
    declare: Annotated[bool, typer.Option("--declare", help="Declare the queue, durable, if it is not there.")] = False,
    key_field: Annotated[str | None, typer.Option(help="Take each record's key from this field of its JSON.")] = None,
    id_field: IdField = None,
    batch_records_max: Annotated[int, typer.Option(min=1, help="Append after so many messages …")] = 500,
    batch_seconds_max: Annotated[float, typer.Option(min=0.01, help="… or after so long.")] = 0.2,
    prefetch: Annotated[int, typer.Option(min=1, max=65535, help="Messages under way without an ack.")] = 1000,
) -> None:
    """Take messages from a queue of the broker in SLUICE_AMQP, and acknowledge them when the log has them."""
    with extra_needed():
        from sluice.ingest.receivers import amqp as receiver
    settings = read_settings(project)
    url = settings.amqp.get_secret_value()
    if not url:
        raise UsageError("Which broker? Set SLUICE_AMQP=amqp://user:password@host:5672/vhost (%2F: the first).")
    require_open(topic)
    options = receiver.Options(
        queue=queue,
        topic=topic,
        declare=declare,
        key_field=key_field,
        id_field=id_field,
        batch_records_max=min(batch_records_max, prefetch),
        batch_seconds_max=batch_seconds_max,
        prefetch=prefetch,
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    receiver.listen(settings.open_log(), url, options, stop, echo)


@listen_app.command()
def mqtt(  # noqa: PLR0917 - the same
    subscribe: Annotated[
        list[str], typer.Option(metavar="FILTER=TOPIC", help="Take messages of this filter to this topic; again: more.")
    ],
    client_id: Annotated[str, typer.Option(help="The name by which the broker keeps the session.")],
    project: Project = Path(),
    qos: Annotated[int, typer.Option(min=1, max=2, help="At most this quality of service.")] = 1,
    session_hours: Annotated[
        float, typer.Option(min=0.01, max=1_000_000, help="How long the broker keeps it while we are away.")
    ] = 168,
    key_field: Annotated[str | None, typer.Option(help="Take each record's key from this field of its JSON.")] = None,
    id_field: Annotated[
        str | None, typer.Option(help="Also write the user property message_id into this field of its JSON.")
    ] = None,
    topic_field: Annotated[
        str | None, typer.Option(help="Also write the message's own topic into this field of its JSON.")
    ] = None,
    prefetch: Annotated[int, typer.Option(min=1, max=65535, help="Messages under way without an ack.")] = 1000,
) -> None:
    """Take messages from the broker in SLUICE_MQTT (MQTT 5), and acknowledge them when the log has them."""
    with extra_needed():
        from sluice.ingest.receivers import mqtt as receiver
    settings = read_settings(project)
    url = settings.mqtt.get_secret_value()
    if not url:
        raise UsageError("Which broker? Set SLUICE_MQTT=mqtt://user:password@host:1883 (mqtts: with TLS).")
    options = receiver.Options(
        client_id=client_id,
        filters=receiver.filters_of(subscribe),
        qos=qos,
        session_seconds=round(session_hours * 3600),
        prefetch=prefetch,
        key_field=key_field,
        id_field=id_field,
        topic_field=topic_field,
    )
    asyncio.run(receiver.serve(settings.open_log(), receiver.address_of(url), options, echo))


@listen_app.command()
def zeromq(  # noqa: PLR0917 - the same
    topic: Topic,
    project: Project = Path(),
    bind: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Senders connect to tcp://HOST:PORT.")
    ] = None,
    connect: Annotated[list[str] | None, typer.Option(metavar="ADDRESS", help="We connect to senders there.")] = None,
    subscribe: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="Be a SUB, for messages that begin so ('': all). Without, be a PULL."),
    ] = None,
    key_field: Annotated[str | None, typer.Option(help="Take each record's key from this field of its JSON.")] = None,
    sequence_field: Annotated[
        str | None, typer.Option(help="Senders number their messages in this field; what is left out is counted.")
    ] = None,
    sender_field: Annotated[str | None, typer.Option(help="The field that tells senders apart.")] = None,
    batch_records_max: Annotated[int, typer.Option(min=1, help="Append after so many messages …")] = 500,
    batch_seconds_max: Annotated[float, typer.Option(min=0.01, help="… or after so long.")] = 0.2,
    queue_messages_max: Annotated[int, typer.Option(min=1, help="How many wait for that (ZeroMQ's HWM).")] = 10_000,
) -> None:
    """Take messages of ZeroMQ's PUSH or PUB sockets; without acks, losses are counted where senders number messages."""
    with extra_needed():
        from sluice.ingest.receivers import zeromq as receiver
    settings = read_settings(project)
    require_open(topic)
    options = receiver.Options(
        topic=topic,
        bind=tuple(bind or ()),
        connect=tuple(connect or ()),
        prefixes=tuple(subscribe or ()),
        key_field=key_field,
        sequence_field=sequence_field,
        sender_field=sender_field,
        batch_records_max=batch_records_max,
        batch_seconds_max=batch_seconds_max,
        queue_messages_max=queue_messages_max,
    )
    if any(each.startswith("tcp://") and not is_loopback(each) for each in options.bind):
        echo("Warning: this is open to other machines, and ZeroMQ has no tokens here. Restrict access to it.")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    receiver.listen(settings.open_log(), options, stop, echo)


def is_loopback(address: str) -> bool:
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]") in loopback


@listen_app.command()
def statsd(  # noqa: PLR0917 - the same
    topic: Topic,
    project: Project = Path(),
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 8125,
    flush_seconds: Annotated[float, typer.Option(min=0.01, help="How often what came is appended.")] = 1.0,
    queue_datagrams_max: Annotated[int, typer.Option(min=1, help="How many wait for that at most.")] = 100_000,
    queue_bytes_max: Annotated[int, typer.Option(min=1, help="… and how many bytes.")] = 64 * 1024 * 1024,
    receive_buffer_bytes: Annotated[
        int | None, typer.Option(min=1, help="SO_RCVBUF; the kernel bounds it (net.core.rmem_max).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what each flush did as a line of JSON.")] = False,
) -> None:
    """Take StatsD's metrics by UDP; detectable losses are reported, and become records themselves."""
    from sluice.ingest.receivers import statsd as receiver

    settings = read_settings(project)
    require_open(topic)
    listening = receiver.opened_socket(host, port, receive_buffer_bytes)
    buffer_bytes = listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    if receive_buffer_bytes is not None and buffer_bytes < receive_buffer_bytes:
        echo("Warning: the kernel gave a smaller receive buffer than was asked for. Raise net.core.rmem_max.")
    if host not in loopback:
        echo("Warning: this is open to other machines, and StatsD has no tokens. Restrict access to it.")

    def report(flushed: receiver.Flushed) -> None:
        if as_json:
            typer.echo(json.dumps(flushed.as_dict(), default=str))
        if flushed.lost:
            echo(f"Lost {flushed.lost_in_kernel:,} datagrams in the kernel and {flushed.lost_in_queue:,} in the queue.")

    options = receiver.Options(
        topic=topic,
        flush_seconds=flush_seconds,
        queue_datagrams_max=queue_datagrams_max,
        queue_bytes_max=queue_bytes_max,
    )
    greeting = (
        f"Listening on udp://{address(listening)}, for the log {settings.open_log()}; "
        f"receive buffer {buffer_bytes:,} bytes"
    )
    with listening:
        asyncio.run(receiver.serve(settings.open_log(), options, listening, report, echo, greeting=greeting))


def require_certificate(certificate: Path | None, key: Path | None) -> None:
    """A UsageError when the files are not a certificate and its private key."""
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{certificate} and {key} are no certificate and private key (PEM): {error}.") from error


@contextmanager
def extra_needed() -> Iterator[None]:
    """Says which extra has what is not installed."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed, and this receiver needs it: pip install 'sluice-lakehouse[receivers]'"
        ) from error


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def echo(message: str) -> None:
    typer.echo(message, err=True)
