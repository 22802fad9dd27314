"""Who may ask, and what a page may do: the host, the token, the origin of a change, and the security headers."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.errors import UsageError
from sluice.operate.listening import loopback, tls_of

token_characters_min = 32
cookie = "sluice_console"
open_paths = ("/login", "/assets/console.css")
headers = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Options:
    """Where the console listens and whom it answers.

    With a `token` a reader must log in, by any name of the machine; without one, `hosts` are further names that readers
    may ask for it by. A statement takes at most `statement_seconds` and `memory`.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    token: str = ""
    certificate: Path | None = None
    key: Path | None = None
    hosts: tuple[str, ...] = ()
    statement_seconds: float = 30.0
    memory: str = "1GB"
    # What the whole process may take, beyond what it has when it begins; empty: all that there is.
    process_memory: str = ""

    def require(self) -> None:
        """A UsageError for options with which other people could read the tables, or that cannot be."""
        tls_of(self.certificate, self.key)
        if self.token and len(self.token) < token_characters_min:
            raise UsageError(f"SLUICE_UI_TOKEN is shorter than {token_characters_min} characters, and can be guessed.")
        if self.host not in loopback and not (self.token and self.certificate):
            raise UsageError(
                f"Other machines could read all tables at {self.host}: set SLUICE_UI_TOKEN, such as to what "
                "`openssl rand -hex 32` prints, and give --certificate and --key; or listen on 127.0.0.1."
            )


class Guard:
    """Lets requests through that may read, and adds the security headers to each answer."""

    def __init__(self, app: ASGIApp, options: Options) -> None:
        self.app, self.options = app, options
        self.hosts = {name.lower() for name in (*loopback, *options.hosts, options.host)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self.refusal(Request(scope, receive))
        await (refused or self.app)(scope, receive, with_headers(send))

    def refusal(self, request: Request) -> Response | None:
        """The answer to a request that is refused; None: it is let through."""
        # Else a page elsewhere, whose name resolves to this address, could read the answers; it has no cookie of ours.
        if not self.options.token and hostname(request.headers.get("host", "")) not in self.hosts:
            return PlainTextResponse("This host is not served. Name it: sluice ui --serve-as NAME", 421)
        is_page = request.method in ("GET", "HEAD") and request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if not is_page and not is_same_origin(request):
            return PlainTextResponse("Only pages of this console may ask this.", 403)
        if not self.options.token or request.scope["path"] in open_paths or self.is_known(request):
            return None
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            wanted = f"{request.url.path}?{request.url.query}".rstrip("?")
            return RedirectResponse(f"/login?{urlencode({'next': wanted})}", 303)
        return PlainTextResponse("Log in first, or send the token: Authorization: Bearer …", 401)

    def is_known(self, request: Request) -> bool:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(sent.strip(), self.options.token):
            return True
        return same(request.cookies.get(cookie, ""), ticket_of(self.options))


def logged_in(options: Options, token: str, wanted: str) -> Response | None:
    """The answer to the right token, which the browser then keeps, on to a page of ours; None for a wrong one."""
    if not options.token or not same(token, options.token):
        return None
    is_ours = wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    answer = RedirectResponse(wanted if is_ours else "/", 303)
    is_secure = options.certificate is not None
    answer.set_cookie(cookie, ticket_of(options), httponly=True, samesite="strict", secure=is_secure)
    return answer


def ticket_of(options: Options) -> str:
    """What a browser keeps after a login; the token does not follow from it."""
    return hmac.new(options.token.encode(), b"sluice console", hashlib.sha256).hexdigest()


def same(sent: str, right: str) -> bool:
    return hmac.compare_digest(sent.encode(), right.encode())


def hostname(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


def is_same_origin(request: Request) -> bool:
    """Whether a page of this console sent the request, or a program that is no browser."""
    # A page cannot forge it, and it holds behind a proxy, which may have another scheme.
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("none", "same-origin")
    origin = request.headers.get("origin")
    return origin is None or origin == f"{request.scope['scheme']}://{request.headers.get('host', '')}"


def with_headers(send: Send) -> Callable[[Message], Any]:
    """Adds the security headers to an answer; nothing of the tables is kept by the browser."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            own = headers if b"cache-control" in names else headers | {"Cache-Control": "no-store"}
            message["headers"] = [*message["headers"], *((k.lower().encode(), v.encode()) for k, v in own.items())]
        await send(message)

    return sent
