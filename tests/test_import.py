"""Files into the log: every row once, whatever is killed, and every value as the file has it."""

import codecs
import gzip
import json
import os
import random
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from sluice import Project
from sluice.api.failures import message_of
from sluice.errors import UsageError
from sluice.ingest import files
from sluice.ingest.receivers.records import key_in
from sluice.log import StoredRecord
from tests.commands import sluice
from tests.forked import process_of
from tests.killed_import import import_in_small_batches, killed_import
from tests.waiting import eventually


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path, any_folder=True)


def records(project: Project, topic: str = "orders") -> list[StoredRecord]:
    log = project._here.log
    found = [each for partition in log.partitions(topic) for each in log.read(topic, partition)]
    return sorted(found, key=lambda each: int(each.headers[files.header].partition("/")[2]))


def values(project: Project) -> list[Any]:
    return [json.loads(each.value or b"", parse_float=str) for each in records(project)]


def test_parquet_becomes_json_exactly(project: Project, tmp_path: Path) -> None:
    table = pa.table(
        {
            "big": pa.array([2**63 - 1, -(2**63)], pa.int64()),
            "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
            "amount": pa.array([Decimal("12345678901234567890123456789.10"), Decimal("-0.01")], pa.decimal128(38, 2)),
            "number": [float("nan"), float("-inf")],
            "at": pa.array([1, 2**63 - 1], pa.timestamp("us", "UTC")),
            "local": pa.array([-1, 0], pa.timestamp("ns")),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
            "raw": [b"\xff\x00", b""],
            "text": ['é "\n', ""],
            "nested": [{"list": [1.5, float("inf"), None], "at": datetime(2026, 1, 1, tzinfo=UTC)}, None],
            "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
            "kind": pa.array(["a", None]).dictionary_encode(),
            "uuid": pa.array([b"\0" * 15 + b"\1", None], pa.uuid()),
            "json": pa.array(['{"a": 1}', None], pa.json_()),
            "view": pa.array(["a", None], pa.string_view()),
            "clock": pa.array([1_001, None], pa.time64("ns")),
            "pair": pa.array([[0, 1], None], pa.list_(pa.timestamp("us"), 2)),
            "days": pa.array([[("a", 0)], None], pa.map_(pa.large_string(), pa.date32())),
            "last": pa.array([2**31 - 1, 0], pa.int32()).view(pa.date32()),
        }
    )
    parquet.write_table(table, tmp_path / "orders.parquet")
    (done,) = project.log.import_files("orders", tmp_path / "orders.parquet", key="amount", timestamp="local")
    assert (done.records, done.new, done.bad) == (2, 2, 0)
    first, second = values(project)
    assert first == {
        "big": 2**63 - 1,
        "unsigned": 2**64 - 1,
        "amount": "12345678901234567890123456789.10",
        "number": "NaN",
        "at": "1970-01-01T00:00:00.000001Z",
        "local": "1969-12-31T23:59:59.999999999Z",
        "day": "0001-01-01",
        "raw": "/wA=",
        "text": 'é "\n',
        "nested": {"list": ["1.5", "Infinity", None], "at": "2026-01-01T00:00:00Z"},
        "map": {"a": 1},
        "kind": "a",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "json": '{"a": 1}',
        "view": "a",
        "clock": "00:00:00.000001001",
        "pair": ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000001Z"],
        "days": {"a": "1970-01-01"},
        "last": "infinity",
    }
    assert (second["at"], second["number"], second["nested"], second["map"]) == ("infinity", "-Infinity", None, {})
    assert [each.key for each in records(project)] == ["12345678901234567890123456789.10", "-0.01"]
    assert records(project)[1].timestamp == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("name", ["o.jsonl", "o.csv"])
def test_a_key_has_the_digits_of_the_number_in_the_file(project: Project, tmp_path: Path, name: str) -> None:
    """The same that a receiver takes from the value."""
    numbers = ["12345678901234567890123", "12345678901234567890124", "1.10", "1.1", "9007199254740993.0"]
    lines = [f'{{"id":{each}}}' for each in numbers] if name == "o.jsonl" else ["id", *numbers]
    (tmp_path / name).write_text("\n".join(lines))
    types = {} if name == "o.jsonl" else {"id": "json"}
    project.log.import_files("orders", tmp_path / name, key="id", headers=["id"], types=types)
    found = records(project)
    assert [each.key for each in found] == [each.headers["id"] for each in found] == numbers
    assert [key_in(each.value or b"", "id") for each in found] == numbers


def test_a_zero_of_parquet_has_no_exponent(project: Project, tmp_path: Path) -> None:
    table = pa.table({"zero": pa.array([Decimal("0E-10"), Decimal("1E-10")], pa.decimal128(38, 10))})
    parquet.write_table(table, tmp_path / "o.parquet")
    project.log.import_files("orders", tmp_path / "o.parquet", key="zero")
    assert [each.value for each in records(project)] == [b'{"zero":0.0000000000}', b'{"zero":0.0000000001}']
    assert [each.key for each in records(project)] == ["0.0000000000", "0.0000000001"]


plain = (
    b'id,text,amount,ok,meta\r\n007,"a\nb ""x""",1.10,TRUE,"{""a"": 1.0}"\r\n8,,,,\r\n'
    b"9,\xc3\xa9,-12345678901234567890.5,false,[]\r\n"
)
types = {"amount": "number", "ok": "boolean", "meta": "json"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("o.csv", plain),
        ("o.csv", b"\xef\xbb\xbf" + plain),
        ("o.CSV.gz", gzip.compress(plain, mtime=0)),
        ("o.csv.zst", zstandard.compress(plain)),
    ],
)
def test_csv_is_text_unless_types_say_otherwise(project: Project, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    project.log.import_files("orders", tmp_path / name, key="id", headers=["text"], types=types)
    assert values(project) == [
        {"id": "007", "text": 'a\nb "x"', "amount": "1.10", "ok": True, "meta": {"a": "1.0"}},
        {"id": "8", "text": None, "amount": None, "ok": None, "meta": None},
        {"id": "9", "text": "é", "amount": "-12345678901234567890.5", "ok": False, "meta": []},
    ]
    assert [each.key for each in records(project)] == ["007", "8", "9"]
    assert [each.headers.get("text") for each in records(project)] == ['a\nb "x"', None, "é"]
    project.log.import_files("by_json", tmp_path / name, key="meta", types=types)
    assert [each.key for each in records(project, "by_json")] == ['{"a":1.0}', None, "[]"]


def test_another_text_can_stand_for_null_and_another_character_between_fields(project: Project, tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("a;b\n;\\N\n")
    project.log.import_files("orders", tmp_path / "o.csv", delimiter=";", null="\\N")
    assert values(project) == [{"a": "", "b": None}]


def test_lines_of_json_stay_byte_for_byte(project: Project, tmp_path: Path) -> None:
    lines = [
        b'{"id": 1.10, "at":"2026-01-01T00:00:00+01:00"}',
        b'{ "id":12345678901234567890123, "at":"2026-01-02T00:00:00Z"}',
    ]
    (tmp_path / "o.jsonl.gz").write_bytes(gzip.compress(codecs.BOM_UTF8 + b"\r\n\n".join(lines)))
    project.log.import_files("orders", tmp_path / "o.jsonl.gz", timestamp="at")
    found = records(project)
    assert [each.value for each in found] == lines
    assert found[0].timestamp == datetime(2025, 12, 31, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("o.jsonl", b'{"id": 1}\n{"id": \n', "row 2: "),
        ("o.jsonl", b'{"id": 1}\n[1]\n', "row 2: it is no JSON object"),
        ("o.jsonl", b'{"id": 1}\n{"id": NaN}\n', "row 2: "),
        ("o.jsonl", b'{"id": 1}\n{"no": 1}\n', "row 2: it has no id"),
        ("o.jsonl", b'{"id": 1}\n{"id": "\xff"}\n', "row 2: "),
        ("o.csv", b"id,n\n1,1\n2\n", "row 2: it has 1 fields, and 2 columns are named"),
        ("o.csv", b"id,n\n1,1\n2,0x1\n", "row 2: n is '0x1', which is no number"),
        ("o.csv", b"id,n\n1,1\n2,1e99999999999999999999\n", "row 2: n is '1e99999999999999999999', which is no number"),
        ("o.csv", b"id,n\n1,1\n\xff,2\n", "row 2: it has text that is not UTF-8"),
        ("o.csv", b'id,n\n1,1\n"2,3\n', "row 2: unexpected end of data"),
    ],
)
def test_a_bad_row_is_named_and_nothing_comes_in_unless_it_is_left_out(
    project: Project, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    options: Any = {"key": "id", "types": {"n": "number"} if name == "o.csv" else None}
    with pytest.raises(UsageError, match=f"{name}, {said}.*Nothing was imported"):
        project.log.import_files("orders", path, **options)
    assert project.log.topics() == []
    (done,) = project.log.import_files("orders", path, skip_bad=True, **options)
    assert (done.rows, done.records, done.bad) == (2, 1, 1)
    (line,) = [json.loads(each) for each in Path(done.bad_file or "").read_text().splitlines()]
    assert (line["file"], line["row"]) == (str(path), 2)
    assert said.removeprefix("row 2: ") in line["error"]
    bad = content.split(b"\n")[2 if name == "o.csv" else 1]
    assert line["text"] == bad.decode(errors="replace").strip()
    assert len(records(project)) == 1


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("o.txt", b"", {}, "does not say what it is"),
        ("o.parquet.gz", b"", {}, "does not say what it is"),
        ("o.parquet", b"no", {}, "cannot be read"),
        ("o.jsonl.gz", b"no", {}, "cannot be read"),
        ("o.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 9, mtime=0)[:-9], {}, "cannot be read"),
        ("o.jsonl.zst", zstandard.compress(b'{"id": 1}\n' * 9)[:-3], {}, "cannot be read"),
        ("o.jsonl.gz", gzip.compress(b'{"id": 1}\n' * 9, mtime=0)[:-4], {"skip_bad": True}, "cannot be read"),
        ("o.jsonl.gz", b"", {}, "cannot be read: it is empty"),
        ("o.jsonl.zst", b"", {"skip_bad": True}, "cannot be read: it is empty"),
        ("o.csv.GZ", b"", {}, "cannot be read: it is empty"),
        ("o.csv", b"a;b\n1;2\n", {}, "If ';' is between the fields"),
        ("o.csv", b"\xe9,b\n1,2\n", {}, "is not UTF-8"),
        ("o.csv", b"", {}, "must name each column once"),
        ("o.csv", b"a,a\n", {}, "must name each column once"),
        ("o.csv", b"a\n", {"types": {"b": "number"}}, "has no column b"),
        ("o.csv", b"a\n", {"types": {"a": "int"}}, "int is no type"),
        ("o.csv", b"a\n", {"delimiter": ",,"}, "The delimiter"),
        ("o.jsonl", b'{"id": "x"}\n', {"timestamp": "id"}, "no time by RFC 3339"),
        ("o.jsonl", b'{"id": "0001-01-01T00:00:00+14:00"}\n', {"timestamp": "id"}, "no time by RFC 3339"),
        ("o.jsonl", b"{}\n", {"headers": ["import_row"]}, "Sluice's own"),
    ],
)
def test_what_cannot_be_read_is_reported(  # noqa: PLR0917
    project: Project, tmp_path: Path, name: str, content: bytes, options: Any, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        project.log.import_files("orders", tmp_path / name, **options)
    assert project.log.topics() == []


@pytest.mark.parametrize(
    ("name", "content"),
    [("o.jsonl", b""), ("o.jsonl.gz", gzip.compress(b"", mtime=0)), ("o.jsonl.zst", zstandard.compress(b""))],
)
def test_a_file_without_rows_is_complete(project: Project, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    (done,) = project.log.import_files("orders", tmp_path / name)
    assert (done.rows, done.new) == (0, 0)


def test_a_file_is_imported_once_and_refused_when_it_was_changed(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text('{"id": 1}\n')
    assert [project.log.import_files("orders", path)[0].new for _ in range(2)] == [1, 0]
    with pytest.raises(UsageError, match="with other options"):
        project.log.import_files("orders", path, key="id")
    path.write_text('{"id": 1}\n{"id": 2}\n')
    with pytest.raises(UsageError, match="was changed since it was imported"):
        project.log.import_files("orders", path)
    assert len(records(project)) == 1
    with pytest.raises(UsageError, match="reserved for Sluice"):
        project.log.import_files("sluice_releases", path)


def test_a_file_is_not_called_complete_in_a_topic_that_was_made_again(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_bytes(b'{"id":1}\n{"id":2}\n')
    assert project.log.import_files("orders", path)[0].new == 2
    shutil.rmtree(Path(str(project._here.log), "orders"))
    # By now, with more records than it had.
    project.append("orders", [{"id": number} for number in range(10, 40)])
    with pytest.raises(UsageError, match="records are no longer all there"):
        project.log.import_files("orders", path)


def test_a_parquet_file_names_each_column_and_each_key_of_a_map_once(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "o.parquet"
    parquet.write_table(pa.table([pa.array([1])] * 2, names=["a", "a"]), path)
    with pytest.raises(UsageError, match="must name each column once; it has a, a"):
        project.log.import_files("orders", path, skip_bad=True)
    twice = pa.array([[("k", 1), ("k", 2)], []], pa.map_(pa.string(), pa.int64()))
    parquet.write_table(pa.table({"m": twice}), path)
    with pytest.raises(UsageError, match="row 1: m is a map that has a key twice"):
        project.log.import_files("orders", path)


@pytest.mark.parametrize("looks", [True, False])
def test_a_row_that_came_in_just_before_a_kill_does_not_come_in_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """Without a look at what came in after the position (`looks`), the last batch would be there twice."""
    path = tmp_path / "o.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' + ("no\n" if number % 3 == 0 else "") for number in range(40)))
    monkeypatch.setattr(files, "batch_rows", 10)
    with killed_import(after_row=25):
        project.log.import_files("orders", path, skip_bad=True)
    project.append("orders", [{"id": "of another producer"}])
    if not looks:
        monkeypatch.setattr(files, "rows_after", lambda log, topic, at: set())
    (done,) = project.log.import_files("orders", path, skip_bad=True)
    counts = Counter(
        json.loads(each.value or b"")["id"]
        for partition in range(4)
        for each in project._here.log.read("orders", partition)
    )
    assert (max(counts.values()) == 1) == looks
    assert {*counts} == {*range(40), "of another producer"}
    assert (done.records, done.bad) == (40, 14)
    assert len(Path(done.bad_file or "").read_text().splitlines()) == 14


@pytest.mark.parametrize("last_line", ['{"id": "foreign"}', "no record"])
def test_a_file_that_was_changed_during_its_import_is_refused_for_good(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_line: str
) -> None:
    path = tmp_path / "o.jsonl"
    right = "".join(f'{{"id": "right_{number:04}"}}\n' for number in range(3_000))
    path.write_text(right)
    write = files.write_position

    def changed(place: Path, at: files.Position) -> None:
        write(place, at)
        if at.row == 200:
            path.write_text(right.replace("right", "wrong") + f"{last_line}\n")

    monkeypatch.setattr(files, "batch_rows", 200)
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_position", changed)
        with pytest.raises(UsageError, match="was changed while it was imported"):
            project.log.import_files("orders", path)
    assert any("wrong" in (each.value or b"").decode() for each in records(project))
    path.write_text(right)
    count = len(records(project))
    name = records(project)[0].headers[files.header].partition("/")[0]
    with pytest.raises(UsageError, match=rf"was changed while it was imported.*'{name}/ROW'.*by another name"):
        project.log.import_files("orders", path)
    assert len(records(project)) == count
    (done,) = project.log.import_files("orders", path.rename(tmp_path / "again.jsonl"))
    assert done.new == 3_000


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """No file takes more bytes than this meanwhile; the system says so as of a full disk, without the file's name."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("size", "file"), [(100, "*.json"), (10_000, "*.bad.jsonl")])
def test_a_full_disk_is_reported_with_the_file_that_could_not_be_written(
    project: Project, tmp_path: Path, size: int, file: str
) -> None:
    project.append("orders", [{"id": 1}])
    path = tmp_path / "o.jsonl"
    path.write_text("no record" * 2_000)
    with disk_full_after(size), pytest.raises(OSError, match="File too large") as caught:
        project.log.import_files("orders", path, skip_bad=True)
    written, _, why = message_of(caught.value).partition(": ")
    assert (Path(written).match(f".sluice/imports/{file}"), why) == (True, "File too large.")
    (done,) = project.log.import_files("orders", path, skip_bad=True)
    assert done.bad == 1


@pytest.mark.process
def test_every_row_is_there_once_whatever_is_killed(project: Project, tmp_path: Path) -> None:
    count = 60_000
    lines = "".join(f'{{"id": {number}, "key": "k{number % 100}"}}\n' for number in range(count))
    (tmp_path / "o.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    kills = 0
    random.seed(1)
    while True:
        running = process_of(import_in_small_batches, (tmp_path, "o.jsonl.zst"))
        begun = segments_in(tmp_path / ".sluice")
        running.start()
        eventually(lambda r=running, n=begun: not r.is_alive() or segments_in(tmp_path / ".sluice") > n)  # type: ignore[misc]
        time.sleep(random.random() / 5)
        if not running.is_alive() or kills == 5:
            break
        running.kill()
        running.join()
        kills += 1
    running.join()
    assert (running.exitcode, kills > 0) == (0, True)
    found = records(project)
    assert [json.loads(each.value or b"")["id"] for each in found] == [*range(count)]
    for partition in project._here.log.partitions("orders"):
        ids = [json.loads(each.value or b"")["id"] for each in project._here.log.read("orders", partition)]
        assert ids == sorted(ids), "records of a key are in another order than in the file"


def segments_in(folder: Path) -> int:
    """How many segments a log has; a folder that gets another name meanwhile counts as empty."""
    return sum(name.endswith(".jsonl") for _, _, names in os.walk(folder) for name in names)


def test_the_command_imports_several_files(tmp_path: Path) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "a.csv").write_text("id,n\na,1\nb,x\n")
    (tmp_path / "b.jsonl").write_text('{"id": "c"}\n')
    found = sluice("log", "import", "orders", "a.csv", "b.jsonl", "--key", "id", "--skip-bad", "--json", here=tmp_path)
    assert [each["records"] for each in json.loads(found.stdout)] == [2, 1]
    wrong = sluice("log", "import", "more", "a.csv", "--types", "n=number", here=tmp_path)
    assert (wrong.returncode, "row 2: n is 'x'" in wrong.stderr) == (2, True)
    shown = sluice("log", "import", "more", "a.csv", "--types", "n = number, id=text", "--skip-bad", here=tmp_path)
    assert "Bad rows are in" in shown.stderr
    (tmp_path / "c.csv").write_text("id\tn\na\t1\n")
    found = sluice("log", "import", "tabs", "c.csv", "--delimiter", r"\t", "--key", "n", "--json", here=tmp_path)
    assert json.loads(found.stdout)[0]["records"] == 1
