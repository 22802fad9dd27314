"""HTTP: records by POST, answered when the log has them."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sluice.errors import LogError, LogRefused, ReceiverError, UsageError
from sluice.ingest.receivers.batches import is_batch, lines_of
from sluice.ingest.receivers.commands import CommandDoor, Decides
from sluice.ingest.receivers.connections import Connection, Connections
from sluice.ingest.receivers.group import Group
from sluice.ingest.receivers.records import append, key_in, object_in, with_field
from sluice.ingest.receivers.tokens import Token, matching
from sluice.ingest.receivers.webhooks import Refusals, Webhook
from sluice.log import AnyLog, Record, is_reserved
from sluice.runtime.signatures import NotSigned, Scheme, require_signed

idempotency_key_characters_max = 255
retry_after_seconds = 5
ready_seconds_max = 5.0
# The records of a longer batch are made beside the loop that answers.
at_once_bytes_max = 64 * 1024
# A client refused in the middle of a request may still be sending: the connection ends with the answer.
closing = {"Connection": "close"}


@dataclass(frozen=True)
class Options:
    """What the receiver accepts, and where it listens.

    Without `topics`, every topic that exists; with `create`, also those that do not exist yet. `id_field` names a field
    of JSON objects that the idempotency key is written into as well, where a declaration's keys can reach it.
    `webhooks` are the topics that are written by signed requests, and `deciders` decide commands.
    """

    tokens: tuple[Token, ...]
    webhooks: Mapping[str, Webhook] = field(default_factory=dict)
    webhook_seconds_max: float = 300.0
    deciders: tuple[Decides, ...] = ()
    topics: tuple[str, ...] = ()
    create: bool = False
    id_field: str | None = None
    request_bytes_max: int = 1024 * 1024
    request_seconds_max: float = 30.0
    head_seconds_max: float = 5.0
    connections_max: int = 100
    client_connections_max: int = 50
    certificate: Path | None = None
    certificate_key: Path | None = None


def serve(log: AnyLog, options: Options, listening: socket.socket) -> None:
    """Answers until SIGTERM or SIGINT; requests accepted before that are appended and acknowledged first."""
    # uvicorn shuts down at the first signal, and then raises it again.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    for topic in options.webhooks:
        log.create(topic)
    connections = Connections(options.connections_max, options.client_connections_max, options.head_seconds_max)
    config = uvicorn.Config(
        Receiver(log, options).application(),
        http=partial(Connection, connections=connections),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        # Its warnings are of what clients send, and one of them advises to install what would change nothing.
        log_level="error",
        access_log=False,
        server_header=False,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.certificate_key,
    )
    uvicorn.Server(config).run(sockets=[listening])


def opened_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; a ReceiverError when the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ReceiverError(f"{host}:{port} cannot be listened to: {error.strerror}. Give another --port.") from error


class Receiver:
    """The requests: POST to `/topics/{topic}`, `/webhooks/{topic}` or `/commands/{name}`; GET `/health` or `/ready`."""

    def __init__(self, log: AnyLog, options: Options) -> None:
        self.log = log
        self.options = options
        self.known: set[str] = set()
        self.requests_waiting = 0
        self.groups: dict[str, Group[Record, dict[int, int]]] = {}
        self.commands = {each.name: CommandDoor(each) for each in options.deciders}
        self.refusals = Refusals(say)

    def application(self) -> Starlette:
        found = Starlette(
            routes=[
                Route("/topics/{topic}", self.post, methods=["POST"]),
                Route("/webhooks/{topic}", self.take_webhook, methods=["POST"]),
                Route("/commands/{name}", self.decide, methods=["POST"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/ready", self.ready, methods=["GET"]),
            ],
            exception_handlers={
                HTTPException: refused,
                UsageError: misused,
                LogRefused: impossible,
                LogError: unavailable,
                ClientDisconnect: abandoned,
            },
        )
        # They lead to the Host that the client names, and take no token.
        found.router.redirect_slashes = False
        return found

    async def health(self, _request: Request) -> Response:
        """That the process answers, how many requests wait for the log, and how many had no valid signature."""
        refused = dict(self.refusals.counts)
        return JSONResponse({"status": "ok", "requests_waiting": self.requests_waiting, "signatures_refused": refused})

    async def ready(self, _request: Request) -> Response:
        """That the log can be written now; 503 when it cannot, or does not answer in time."""
        try:
            async with asyncio.timeout(ready_seconds_max):
                await asyncio.to_thread(self.log.probe)
        except TimeoutError as error:
            raise LogError(f"The log did not answer within {ready_seconds_max:g} s.") from error
        return JSONResponse({"status": "ready"})

    async def post(self, request: Request) -> Response:
        """Appends the record or the records of a request, and answers when they are durable."""
        self.authorise(request, request.path_params["topic"])
        topic = await self.existing(request.path_params["topic"])
        shape = shape_of(request)
        body = await self.body_of(request)
        # Half a million lines take seconds, in which nobody else would be answered.
        made = partial(shape.records, body, self.options.id_field)
        records = await asyncio.to_thread(made) if len(body) > at_once_bytes_max else made()
        return await self.append(topic, records)

    async def decide(self, request: Request) -> Response:
        """Decides the command or the commands of a request, and answers when the decisions are durable."""
        name = request.path_params["name"]
        decisions = self.commands.get(name)
        self.authorise(request, name if decisions is None else decisions.decider.topic)
        if decisions is None:
            there_are = ", ".join(self.commands) or "none; name them with --commands"
            raise HTTPException(404, f"This receiver decides no commands {name}; there are {there_are}.", closing)
        if request.query_params:
            raise HTTPException(400, "Commands have no parameters: they are JSON in the body.", closing)
        require_plain(request)
        body = await self.body_of(request)
        self.requests_waiting += 1
        try:
            return await decisions.answer(request, body)
        finally:
            self.requests_waiting -= 1

    async def take_webhook(self, request: Request) -> Response:
        """Appends the body of a signed request as one record, and answers when it is durable."""
        topic = request.path_params["topic"]
        webhook = self.options.webhooks.get(topic)
        if webhook is None:
            raise HTTPException(404, f"This receiver takes no webhooks for a topic {topic}.", closing)
        if request.query_params:
            raise HTTPException(400, "A webhook has no parameters: they would not be signed.", closing)
        require_plain(request)
        body = await self.body_of(request)
        message_id = text_of("The id", self.signed_id(topic, webhook, request, body))
        require_length("The id", message_id)
        challenge = challenge_in(webhook.scheme, body)
        if challenge is not None:
            return JSONResponse({"challenge": challenge})
        shape = Shape(is_batch=False, key=None, key_field=webhook.key_field, idempotency_key=message_id)
        (record,) = shape.records(body, self.options.id_field)
        kept = {name: header(request, found.decode()) for found, name in webhook.scheme.kept.items()}
        headers = {**record.headers, **{name: text for name, text in kept.items() if text is not None}}
        return await self.append(topic, [replace(record, headers=headers)])

    def signed_id(self, topic: str, webhook: Webhook, request: Request, body: bytes) -> bytes | None:
        """The id of a request, where its scheme has one; 401 for a request without a valid signature."""
        try:
            return require_signed(
                webhook.scheme,
                webhook.keys,
                request.headers.raw,
                body,
                now=time.time(),
                seconds_max=self.options.webhook_seconds_max,
            )
        except NotSigned as error:
            self.refusals.add(topic, str(error))
            raise HTTPException(401, str(error), {"WWW-Authenticate": "Signature"} | closing) from error

    async def append(self, topic: str, records: list[Record]) -> Response:
        """The answer that says where records are, when they are durable."""
        self.requests_waiting += 1
        try:
            next_offsets = await self.group_of(topic).append(records)
        finally:
            self.requests_waiting -= 1
        return JSONResponse({"topic": topic, "records": len(records), "next_offsets": next_offsets}, 201)

    def authorise(self, request: Request, topic: str) -> None:
        """Refuses a request without a valid token (401), or whose token is not for its topic (403)."""
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        valid = matching(self.options.tokens, sent.strip()) if scheme.lower() == "bearer" else []
        if not valid:
            raise HTTPException(
                401, "Send the token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"} | closing
            )
        if is_reserved(topic) or not any(each.allows(topic) for each in valid):
            raise HTTPException(403, f"This token may not write the topic {topic}.", closing)

    async def existing(self, topic: str) -> str:
        """The topic, created if that is allowed; 404 for one that this receiver does not write."""
        if topic in self.known:
            return topic
        if self.options.topics and topic not in self.options.topics:
            raise HTTPException(404, f"This receiver takes no records of a topic {topic}.", closing)
        if topic not in await asyncio.to_thread(self.log.topics):
            if not self.options.create:
                raise HTTPException(
                    404, f"There is no topic {topic}. The receiver makes topics with --create.", closing
                )
            await asyncio.to_thread(self.log.create, topic)
        owner = await asyncio.to_thread(self.log.owner, topic)
        if owner is not None:
            raise HTTPException(403, f"Only commands write the topic {topic}: POST /commands/{owner}.", closing)
        self.known.add(topic)
        return topic

    async def body_of(self, request: Request) -> bytes:
        """The body, within its limits of size (413) and time (408)."""
        most = self.options.request_bytes_max
        too_large = HTTPException(413, f"A request may have {most} bytes.", closing)
        if int(request.headers.get("content-length", 0)) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.options.request_seconds_max):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError as error:
            seconds = self.options.request_seconds_max
            raise HTTPException(408, f"The request was not whole after {seconds:g} s.", closing) from error
        return bytes(body)

    def group_of(self, topic: str) -> Group[Record, dict[int, int]]:
        if topic not in self.groups:
            self.groups[topic] = Group(partial(append, self.log, topic))
        return self.groups[topic]


@dataclass(frozen=True)
class Shape:
    """How the bytes of a request are records."""

    is_batch: bool
    key: str | None
    key_field: str | None
    idempotency_key: str | None

    def records(self, body: bytes, id_field: str | None) -> list[Record]:
        """One record of the whole body, or one of each line that is not blank."""
        if not self.is_batch:
            return [self.record(body, self.idempotency_key, id_field)]
        return [
            self.record(line, self.idempotency_key and f"{self.idempotency_key}/{index}", id_field)
            for index, line in enumerate(lines_of(body, "records"))
        ]

    def record(self, value: bytes, idempotency_key: str | None, id_field: str | None) -> Record:
        key = key_in(value, self.key_field) if self.key_field else self.key
        if idempotency_key is None:
            return Record(value, key=key)
        if id_field is not None:
            value = with_field(value, id_field, idempotency_key)
        return Record(value, key=key, headers={"idempotency_key": idempotency_key})


def shape_of(request: Request) -> Shape:
    """What the head of a request says of its body; 400 for what contradicts itself, 415 for what is not read."""
    unknown = set(request.query_params) - {"key_field"}
    if unknown:
        raise HTTPException(400, f"{', '.join(sorted(unknown))}: the only parameter is key_field.", closing)
    if len(request.query_params.multi_items()) > 1:
        raise HTTPException(400, "Give key_field once.", closing)
    require_plain(request)
    key, key_field = header(request, "Sluice-Key"), request.query_params.get("key_field")
    if key is not None and key_field is not None:
        raise HTTPException(400, "Give Sluice-Key or key_field, not both.", closing)
    idempotency_key = header(request, "Idempotency-Key")
    require_length("Idempotency-Key", idempotency_key)
    return Shape(is_batch(request), key, key_field, idempotency_key)


def require_plain(request: Request) -> None:
    """415 for a body that is compressed."""
    if any(each != "identity" for each in request.headers.getlist("content-encoding")):
        raise HTTPException(415, "Send the body without a Content-Encoding.", closing)


def require_length(name: str, idempotency_key: str | None) -> None:
    """400 for an id that is empty, or longer than an id is."""
    if idempotency_key is not None and not 0 < len(idempotency_key) <= idempotency_key_characters_max:
        raise HTTPException(400, f"{name} has 1 to {idempotency_key_characters_max} characters.", closing)


def header(request: Request, name: str) -> str | None:
    """A header as text; 400 when it is not UTF-8, or is there several times."""
    found = [value for each, value in request.headers.raw if each == name.lower().encode()]
    if len(found) > 1:
        raise HTTPException(400, f"{name} is there {len(found)} times; give it once.", closing)
    return text_of(name, found[0] if found else None)


def text_of(name: str, found: bytes | None) -> str | None:
    try:
        return None if found is None else found.decode()
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"{name} must be UTF-8.", closing) from error


def challenge_in(scheme: Scheme, body: bytes) -> str | None:
    """What a sender wants to read in the answer, before it sends anything else; None: it is a record."""
    found = object_in(body) if scheme.handshake else None
    if found is None or found.get("type") != scheme.handshake:
        return None
    challenge = found.get("challenge")
    return challenge if isinstance(challenge, str) else None


async def refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for that
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def misused(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400, closing)


async def impossible(_request: Request, error: Exception) -> Response:
    say(f"Refused with 422: {error}")
    said = "The log takes no such record: it is too large, lacks a key, or has a time that is too far away."
    return JSONResponse({"error": said}, 422, closing)


async def unavailable(_request: Request, error: Exception) -> Response:
    # The fault is for the operator of the receiver, not for the client.
    say(f"Refused with 503: {error}")
    return JSONResponse(
        {"error": "The log cannot be written now; nothing was acknowledged. Send it again."},
        503,
        {"Retry-After": str(retry_after_seconds)},
    )


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201


async def abandoned(_request: Request, _error: Exception) -> Response:
    """The client left in the middle of its request; the answer is never read."""
    return Response(status_code=400)
