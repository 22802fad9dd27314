"""What a schema registry answers that is not as its protocol says, and what of it is never printed."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sluice.engine import schemas
from sluice.engine.schemas import Learner
from sluice.errors import UsageError
from sluice.runtime import schema_registry
from sluice.runtime.schema_registry import NoSchemaAnswered, RegistryUnreachable, SchemaRegistry
from sluice.shapes.fates import schemas_input


class Answers(BaseHTTPRequestHandler):
    """Answers each path with the status and the body that a test gives; `drops` of them come one by one."""

    given: dict[str, tuple[int, bytes]]
    drops = False

    def do_GET(self) -> None:
        status, body = self.given[self.path]
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        try:
            for each in range(len(body) if self.drops else 0):
                self.wfile.write(body[each : each + 1])
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(b"" if self.drops else body)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(given: dict[str, tuple[int, bytes]], *, drops: bool = False) -> Iterator[SchemaRegistry]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Given", (Answers,), {"given": given, "drops": drops}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield SchemaRegistry(f"http://127.0.0.1:{server.server_port}", "someone", "a secret")
    finally:
        server.shutdown()
        server.server_close()


def said(**answer: Any) -> tuple[int, bytes]:
    return 200, json.dumps(answer).encode()


@pytest.mark.parametrize(
    "answer",
    [
        said(),
        said(schema=None),
        said(schema={"type": "string"}),
        said(schema="x", schemaType=5),
        said(schema="x", references=7),
        said(schema="x", references=[7]),
        said(schema="x", references=[{"name": "a"}]),
        said(schema="x", references=[{"name": "a", "subject": "a", "version": "first"}]),
        (200, b"[" * 100_000),
        (200, b"<html>"),
        (302, b""),
        (401, b"a secret"),
        (404, b"no such page"),
        (500, b"{}"),
    ],
)
def test_an_answer_that_is_no_schema_is_an_error_and_no_record(answer: tuple[int, bytes]) -> None:
    with answering({"/schemas/ids/1": answer}) as registry, pytest.raises(NoSchemaAnswered) as error:
        registry.schema(1)
    assert "secret" not in str(error.value)


def test_an_answer_that_comes_drop_by_drop_or_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "answer_seconds", 0.3)
    with answering({"/schemas/ids/1": said(schema="x" * 1000)}, drops=True) as slow:
        began = time.monotonic()
        with pytest.raises(RegistryUnreachable, match="did not end"):
            slow.schema(1)
        assert time.monotonic() - began < 10
    monkeypatch.setattr(schema_registry, "answer_bytes_max", 100)
    endless = {"/schemas/ids/1": said(schema="x" * 1000)}
    with answering(endless) as huge, pytest.raises(RegistryUnreachable, match="did not end"):
        huge.schema(1)


@pytest.mark.parametrize("field", ["username", "password", "token"])
def test_credentials_that_cannot_be_sent_are_not_printed(field: str) -> None:
    with pytest.raises(UsageError, match="line break") as error:
        SchemaRegistry("https://registry.example", **{field: "a secret\n"})
    assert "secret" not in str(error.value)


class Appended:
    """A log that keeps the keys of what is appended."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def append(self, _: str, records: Any) -> None:
        self.keys += [each.key for each in records]


def test_a_schema_that_the_registry_cannot_give_keeps_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    naming: Any = type("Naming", (), {"inputs": {schemas_input: None}})
    monkeypatch.setattr(schemas, "ids_of_new_records", lambda *_: {1, 2, 3})
    monkeypatch.setattr(schemas, "known_ids", lambda *_: set())
    monkeypatch.setattr(Learner, "ids_in_quarantine", lambda *_: set())
    lost = said(schema="x", references=[{"name": "a", "subject": "a", "version": 1}])
    gone = 404, b'{"error_code": 40402}'
    given = {"/schemas/ids/1": lost, "/subjects/a/versions/1": gone}
    nothing: Any = None
    log: Any = Appended()
    given |= {f"/schemas/ids/{each}": said(schema="x") for each in (2, 3)}
    with answering(given) as registry, pytest.raises(RegistryUnreachable, match="to which a schema refers"):
        Learner(registry).learn(nothing, nothing, log, [naming])
    assert sorted(log.keys) == ["2", "3"]
