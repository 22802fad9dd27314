"""Object stores as tests want them: with TLS and users, and one that ignores what a request is conditional on."""

import hashlib
import random
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_s3

from infra.servers import S3
from infra.servers.s3 import access_key, program, region

curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


@dataclass(frozen=True)
class Guarded(S3):
    """With TLS by its own authority, and users beside the root."""

    def prepare(self) -> None:
        super().prepare()
        (self.folder / "users").mkdir(exist_ok=True)
        if not self.ca.exists():
            certify(self.folder)

    def command(self) -> list[str]:
        found = super().command()
        files = ["--cert", str(self.folder / "server.pem"), "--key", str(self.folder / "server.key")]
        at = found.index("posix")
        return [*found[:at], *files, "--iam-dir", str(self.folder / "users"), *found[at:]]

    def is_healthy(self) -> bool:
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            with urlopen(f"https://{self.address}/health", timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def settings(self) -> dict[str, str]:
        return super().settings() | {"AWS_ENDPOINT_URL": f"https://{self.address}", "AWS_CA_BUNDLE": str(self.ca)}

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def add_user(self, name: str, secret: str) -> None:
        """A user who may make no bucket, and use none that is not given to him."""
        root = ["--access", access_key, "--secret", self.secret_key, "--endpoint-url", f"https://{self.address}"]
        user = ["create-user", "--access", name, "--secret", secret, "--role", "user"]
        done = subprocess.run(
            [str(program()), "admin", *root, "--allow-insecure", *user], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def certify(folder: Path) -> None:
    """An authority, and a certificate by it for loopback."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", *curve, "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *curve, "-subj", "/CN=server", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")


@dataclass(frozen=True)
class Request:
    """What a client asks of a store."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What the store said to it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


def asked(server: S3, request: Request) -> Reply:
    """The server's own reply."""
    upstream = HTTPConnection(server.address, timeout=30)
    try:
        upstream.request(request.method, request.path, request.body, request.headers)
        answer = upstream.getresponse()
        return Reply(answer.status, answer.getheaders(), answer.read())
    finally:
        upstream.close()


@contextmanager
def proxied(reply_to: Callable[[Request], Reply | None]) -> Iterator[str]:
    """The address of a store that replies so; without a reply the connection is closed."""

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = reply_to(Request(self.command, self.path, dict(self.headers.items()), body))
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers:
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in reply.headers}.get("content-length")
            self.send_header("Content-Length", (self.command == "HEAD" and length) or str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815 - as the library calls them

        def log_message(self, *arguments: object) -> None:
            """Quietly."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


@contextmanager
def unconditional(server: S3) -> Iterator[str]:
    """The address of a store that ignores conditions, as some do: the requests reach the server without them."""

    def without_conditions(request: Request) -> Reply:
        if any(name.lower().startswith("if-") for name in request.headers):
            headers = signed(server, request.method, request.path, request.body)
            request = replace(request, headers=headers)
        return asked(server, request)

    with proxied(without_conditions) as address:
        yield address


class Unreliable:
    """A network that loses the reply to some writes, which are done all the same, and brings some of them twice.

    Until it is calm.
    """

    def __init__(self, server: S3, seed: int) -> None:
        self.server = server
        self.chance = random.Random(seed)
        self.struck: Counter[str] = Counter()
        self.commits = 0
        self.is_calm = False

    def __call__(self, request: Request) -> Reply | None:
        reply = asked(self.server, request)
        kind = None if self.is_calm else kind_of(request)
        fault = None if kind is None else self.fault_of(kind)
        if fault is None:
            return reply
        self.struck[f"{kind}, {fault}"] += 1
        return None if fault == "lost" else asked(self.server, request)

    def fault_of(self, kind: str) -> str | None:
        """What befalls the next write of a kind: each third commit is struck, for all that matters is in them."""
        if kind == "commit":
            self.commits += 1
            return ["lost", "twice"][self.commits // 3 % 2] if self.commits % 3 == 0 else None
        return self.chance.choice(["lost", "twice"]) if self.chance.random() < struck_share else None


# Of the writes that are no commits.
struck_share = 0.05


def kind_of(request: Request) -> str | None:
    """Of a write: what it writes."""
    if request.method not in ("PUT", "POST", "DELETE"):
        return None
    if "/_delta_log/" in request.path and urlsplit(request.path).path.endswith(".json"):
        return "commit"
    return "lease" if "lease" in request.path else "other"


def signed(server: S3, method: str, path: str, body: bytes) -> dict[str, str]:
    """The headers of a request that says nothing but what it wants: those that the client signed bind it to them."""
    digest, now = hashlib.sha256(body).hexdigest(), datetime.now(UTC)
    headers: dict[str, Any] = {
        "Host": server.address,
        "x-amz-content-sha256": digest,
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    found: dict[str, Any] = sign_v4_s3(
        method=method,
        url=urlsplit(f"http://{server.address}{path}"),
        region=region,
        headers=headers,
        credentials=Credentials(access_key, server.secret_key),
        content_sha256=digest,
        date=now,
    )
    return found
