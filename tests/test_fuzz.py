"""Fuzzing: whatever bytes a parser of foreign bytes is given, it answers or raises the error that it promises."""

import asyncio
import json
import socket
import string
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest

from sluice.errors import LogError, SluiceError, UsageError
from sluice.ingest.capture import pgoutput
from sluice.ingest.capture.values import by_oid
from sluice.ingest.receivers import http, statsd
from sluice.ingest.receivers.records import key_in, with_field
from sluice.ingest.receivers.tokens import matching, tokens_of
from sluice.log import Log, Record, StoredRecord, verify
from sluice.log.records import decode, encode
from sluice.operate.replay import replays, unreadable
from sluice.operate.requests import Answer, Request, answer_name, ask, attend, waiting
from sluice.runtime.settings import Settings, read_settings
from sluice.storage.files import Files
from tests.kit import lines_without_checksums

Error = TypeVar("Error", bound=Exception)
moment = datetime(2026, 3, 1, tzinfo=UTC)
many = settings(
    max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
few = settings(many, max_examples=60)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
deep = b"[" * 5000 + b"]" * 5000
texts = st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()) | st.just(deep)


def error_of(kind: type[Error], call: Callable[[], object]) -> Error | None:
    """The error of this kind that a call raises, and no other; None when it answers."""
    try:
        call()
    except kind as error:
        return error
    return None


def damaged(sound: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that are nearly right: some of them replaced, gone, or too many."""
    cuts = st.tuples(st.integers(0, len(sound)), st.integers(0, 4), st.binary(max_size=4))
    return st.lists(cuts, max_size=3).map(lambda all_cuts: cut(sound, all_cuts))


def cut(text: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for at, count, new in cuts:
        text = text[:at] + new + text[at + count :]
    return text


line = encode(7, Record(b'{"a":"\xc3\xa9"}', key="k", timestamp=moment, headers={"h": "1"}))
lines_like = st.dictionaries(
    st.sampled_from(["offset", "key", "value", "value_base64", "timestamp", "headers"]),
    json_values | st.just("2026-03-01T00:00:00Z") | st.just(1),
).map(lambda found: json.dumps(found).encode())


@many
@given(found=texts | damaged(line) | lines_like)
@example(b'{"offset":1e400,"timestamp":"2026-03-01T00:00:00Z"}')
@example(b'{"offset":0,"timestamp":"2026-03-01T00:00:00"}')
@example(b'{"offset":0,"timestamp":"2026-03-01T00:00:00Z","key":5}')
@example(b'{"offset":0,"timestamp":"2026-03-01T00:00:00Z","value":{"a":1}}')
def test_a_line_of_the_log_is_a_record_or_a_log_error(found: bytes) -> None:
    error = error_of(LogError, lambda: decode("t", 0, found, "the line"))
    if error is not None:
        assert str(error).startswith("the line is no record of the log: ")
        return
    record = decode("t", 0, found, "the line")
    assert isinstance(record, StoredRecord)
    # It can be written again, and is the same then.
    again = Record(record.value, record.key, record.timestamp, record.headers)
    assert decode("t", 0, encode(record.offset, again), "again") == record


@few
@given(data=st.data(), compress=st.booleans(), is_old=st.booleans())
def test_a_segment_is_records_or_a_log_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, compress: bool, is_old: bool
) -> None:
    log = Log(tmp_path_factory.mktemp("log"), partitions=1, compress=compress)
    log.append_to("t", 0, [Record(b"a", timestamp=moment), Record(None, timestamp=moment)])
    path = log.segments("t")[0].path
    sound = b"".join(lines_without_checksums(path)) if is_old and not compress else path.read_bytes()
    path.write_bytes(data.draw(damaged(sound) | texts))
    for reader in (
        lambda: list(log.read("t", 0)),
        lambda: log.end_offset("t", 0),
        lambda: log.append_to("t", 0, [Record(b"b")]),
        lambda: log.next_batch("t", {}, 10),
        lambda: log.tail("t"),
    ):
        try:
            reader()
        except LogError:
            continue
    assert len(list(verify(log, "t"))) == 1


@few
@given(content=texts | damaged(b'{"partitions":1,"starts":{"0":4}}'))
def test_a_topic_file_is_understood_or_a_log_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    log = Log(tmp_path_factory.mktemp("log"), partitions=1)
    log.append("t", [Record(b"a")])
    (log.root / "t" / "topic.json").write_bytes(content)
    for reader in (lambda: log.partitions("t"), lambda: log.offsets("t"), lambda: log.append("t", [Record(b"b")])):
        try:
            reader()
        except LogError:
            continue


relation = b"R" + b"\0\0\0\1" + b"public\0" + b"orders\0" + b"d" + b"\0\1" + b"\1" + b"id\0" + b"\0\0\0\x17" + b"\0" * 4
insert = b"I" + b"\0\0\0\1" + b"N" + b"\0\2" + b"t" + b"\0\0\0\2" + b"ab" + b"n"
messages = [relation, insert, b"B" + b"\0" * 20, b"C" + b"\0" * 25, b"D\0\0\0\1K\0\1n", b"T\0\0\0\1\0\0\0\0\1"]


@many
@given(payload=st.binary(max_size=40) | st.sampled_from(messages).flatmap(damaged))
@example(insert[:-2])
@example(b"I\0\0\0\1N\0\1t\xff\xff\xff\xffab")
@example(b"")
@example(b"B" + b"\xff" * 20)
def test_a_message_of_postgres_is_decoded_or_refused(payload: bytes) -> None:
    error = error_of(SluiceError, lambda: pgoutput.decode(payload))
    assert error is None or "Postgres sent" in str(error)


def test_no_prefix_of_a_message_of_postgres_is_a_message() -> None:
    for message in messages:
        assert pgoutput.decode(message) is not None
        for length in range(len(message)):
            with pytest.raises(SluiceError):
                pgoutput.decode(message[:length])


@many
@given(oid=st.sampled_from(sorted(by_oid)), text=st.text(max_size=20) | st.text('{},"\\NUL0', max_size=20))
def test_a_value_of_postgres_is_converted_or_a_value_error(oid: int, text: str) -> None:
    try:
        json.dumps(by_oid[oid](text))
    except (ValueError, IndexError):
        return


metric_like = st.from_regex(
    r"[a-z]{0,3}:[0-9+\-.eE_x]{0,9}\|(c|g|ms|h|d|s|q)(\|@[0-9.e]{0,4})?(\|#[a-z:,]{0,9})?", fullmatch=True
)


@many
@given(datagram=st.binary(max_size=80) | st.lists(metric_like, max_size=3).map(lambda all_: "\n".join(all_).encode()))
@example(b"a:" + b"1" * 60_000 + b"|c")
@example(b"a:" + b"1" * 30_000 + b"e" + b"1" * 30_000 + b"|c")
@example(b"a:1|c|#" + b"," * 60_000)
@example("a:\u0661|c".encode())
def test_each_line_of_a_datagram_is_a_metric_or_is_kept_as_it_is(datagram: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unused:
        receiver = statsd.Receiver(None, statsd.Options("t"), unused, lambda flushed: None)  # type: ignore[arg-type]
        records = list(receiver.records(moment, datagram))
    lines = [each for each in datagram.split(b"\n") if each.strip()]
    assert len(records) == len(lines)
    for record, each in zip(records, lines, strict=True):
        assert record.value is not None
        assert record.value == each if record.headers else json.loads(record.value)["name"]
        encode(0, record)


head_names = ["content-type", "sluice-key", "idempotency-key", "content-encoding", "authorization", "content-length"]


@many
@given(
    body=texts | st.lists(texts, max_size=3).map(b"\n".join),
    headers=st.dictionaries(
        st.sampled_from(head_names), st.binary(max_size=20) | st.just(b"application/x-ndjson"), max_size=4
    ),
    query=st.sampled_from(["", "key_field=id", "key_field=%00", "key_field=%ff", "other=1"]) | st.text(max_size=8),
    id_field=st.none() | st.text(max_size=5),
)
def test_a_request_is_records_or_an_answer_of_http(
    body: bytes, headers: dict[str, bytes], query: str, id_field: str | None
) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/topics/t",
        "path_params": {"topic": "t"},
        "query_string": query.encode(),
        "headers": [(name.encode(), value) for name, value in headers.items()],
    }
    request = HttpRequest(scope)
    error = error_of(HTTPException, lambda: http.shape_of(request).records(body, id_field))
    if error is not None:
        assert 400 <= error.status_code < 500
        return
    for record in http.shape_of(request).records(body, id_field):
        encode(0, record)


@many
@given(value=texts, field=st.text(max_size=5), text=st.text(max_size=5))
def test_a_key_and_a_field_never_break_a_value(value: bytes, field: str, text: str) -> None:
    key = key_in(value, field)
    assert key is None or encode(0, Record(value, key=key))
    with_it = with_field(value, field, text)
    if with_it != value:
        assert json.loads(with_it) == {field: text} | json.loads(value)


@many
@given(text=st.text(max_size=120), sent=st.text(max_size=60) | st.just("a" * 32))
@example("orders:" + "a" * 32, "a" * 32)
def test_a_setting_of_tokens_is_understood_or_refused_without_repeating_it(text: str, sent: str) -> None:
    error = error_of(UsageError, lambda: matching(tokens_of(text), sent))
    secret = text.strip().rpartition(":")[2]
    assert error is None or len(secret) < 8 or secret not in str(error)


@few
@given(content=texts | damaged(Request(do="check").model_dump_json().encode()))
def test_a_file_of_requests_stops_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    files = Files(str(tmp_path_factory.mktemp("lake")))
    files.write("_requests/00000000000000000000-a.json", content)
    after = ask(files, Request(do="check", datasets=("gold.a",)))
    done: list[Request] = []

    def perform(request: Request) -> dict[str, int]:
        done.append(request)
        return {}

    warned: list[str] = []
    attend(files, perform, warned.append)
    assert Answer.model_validate_json(files.read(answer_name(after))).error is None
    assert len(done) + len(warned) == 2
    assert all("_requests/00000000000000000000-a.json" in text for text in warned)
    assert waiting(files) == []


@few
@given(content=texts)
def test_a_file_of_replays_stops_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    class Lake:
        files = Files(str(tmp_path_factory.mktemp("lake")))

    Lake.files.write("_replays/a/replay.json", content)
    assert replays(Lake) == []  # type: ignore[arg-type]
    assert unreadable(Lake) == ["a"]  # type: ignore[arg-type]


names = [f"SLUICE_{name.upper()}" for name in Settings.model_fields if name != "project"]
printable = st.text(string.printable.replace("\x00", ""), max_size=30) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10
)


@many
@given(values=st.dictionaries(st.sampled_from(names), printable, max_size=3))
@example({"SLUICE_SPARK": "sc://host;token=very-secret-token"})
@example({"SLUICE_LAKE": "\n"})
def test_settings_are_read_or_refused_without_a_secret(tmp_path: Path, values: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in values.items():
            patched.setenv(name, value)
        error = error_of(UsageError, lambda: read_settings(tmp_path))
    assert error is None or str(error).startswith("SLUICE_")
    assert "very-secret-token" not in str(error)


def test_the_receiver_of_http_reads_a_body_of_any_length_header() -> None:
    """A Content-Length that is no number never reaches the receiver; one that is too large is refused at once."""
    receiver = http.Receiver(None, http.Options(tokens=(), request_bytes_max=10))  # type: ignore[arg-type]
    scope = {"type": "http", "method": "POST", "headers": [(b"content-length", b"11")]}
    with pytest.raises(HTTPException) as refused:
        asyncio.run(receiver.body_of(HttpRequest(scope)))
    assert refused.value.status_code == 413
