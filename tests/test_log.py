"""The log: records come back as they went in, whole segments or none, and nothing missing goes unnoticed."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.errors import LogError, LogGap, UsageError
from sluice.log import Log, Record, head_digest, verified_end
from tests.kit import lines_without_checksums

moment = datetime(2013, 1, 1, 10, 0, 0, 500, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log", partitions=2)


def values(log: Log, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in log.read("t", partition)]


def test_a_line_is_the_contract(log: Log) -> None:
    log.append_to("t", 0, [Record(b'{"a":1}', key="k", timestamp=moment, headers={"h": "1"}), Record(b"\xff")])
    path = log.root / "t" / "0" / "00000000000000000000.jsonl"
    content = path.read_bytes()
    first, second = map(json.loads, content.splitlines())
    assert first == {
        "offset": 0,
        "key": "k",
        "value": '{"a":1}',
        "timestamp": "2013-01-01T10:00:00.000500Z",
        "headers": {"h": "1"},
        "crc32": format(zlib.crc32(content.partition(b',"crc32"')[0]), "08x"),
    }
    assert second["value_base64"] == "/w=="
    assert second["segment_sha256"] == sha256(content.partition(b',"segment_sha256"')[0]).hexdigest()
    assert "value" not in second


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", 'quote " newline \n \u2028'.encode(), b"x" * 20_000_000])
@pytest.mark.parametrize("compress", [False, True])
def test_any_value_comes_back(tmp_path: Path, value: bytes | None, compress: bool) -> None:
    log = Log(tmp_path, compress=compress)
    log.append_to("t", 0, [Record(value, key="k", timestamp=moment)])
    (record,) = log.read("t", 0)
    assert (record.value, record.key, record.timestamp, record.offset) == (value, "k", moment, 0)
    assert [verified_end(segment) for segment in log.segments("t")] == [1]
    assert log.end_offset("t", 0) == 1


def test_offsets_go_on_over_appends_and_reopening(log: Log) -> None:
    log.append_to("t", 0, [Record(b"a"), Record(b"b")])
    assert Log(log.root).append_to("t", 0, [Record(b"c")]) == 3
    assert [record.offset for record in log.read("t", 0)] == [0, 1, 2]
    assert [record.offset for record in log.read("t", 0, 1)] == [1, 2]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=20)), max_size=30))
def test_records_of_a_key_stay_in_order_in_one_partition(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[str, bytes]]
) -> None:
    log = Log(tmp_path_factory.mktemp("log"), partitions=3, segment_records_max=4)
    log.append("t", [Record(value, key=key) for key, value in records])
    read = [record for partition in log.partitions("t") for record in log.read("t", partition)]
    for key in {key for key, _ in records}:
        assert [r.value for r in read if r.key == key] == [value for each, value in records if each == key]
        assert len({r.partition for r in read if r.key == key}) == 1


def test_a_torn_last_line_is_never_visible_and_named(log: Log) -> None:
    log.append_to("t", 0, [Record(b"a"), Record(b"b")])
    path = log.segments("t")[0].path
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LogError, match=r"00000000000000000000\.jsonl ends in the middle of a line"):
        verified_end(log.segments("t")[0])
    with pytest.raises(LogError, match=r"middle of a line|no record"):
        list(log.read("t", 0))


def test_what_a_crashed_writer_left_aside_is_invisible_and_removed(log: Log) -> None:
    log.append_to("t", 0, [Record(b"a")])
    aside = log.root / "t" / "0" / ".00000000000000000001.jsonl.99"
    aside.write_bytes(b'{"offset":1,')
    assert values(log) == [b"a"]
    assert log.append_to("t", 0, [Record(b"b")]) == 2
    assert not aside.exists()


def test_a_missing_line_is_a_gap_that_is_named(log: Log) -> None:
    log.append_to("t", 0, [Record(b"a"), Record(b"b"), Record(b"c")])
    path = log.segments("t")[0].path
    lines = lines_without_checksums(path)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(LogGap, match="offset 1 is missing"):
        verified_end(log.segments("t")[0])


def test_a_line_that_is_no_record_is_named(log: Log) -> None:
    log.append_to("t", 0, [Record(b"a"), Record(b"b")])
    path = log.segments("t")[0].path
    path.write_bytes(lines_without_checksums(path)[0] + b"rubbish\n")
    with pytest.raises(LogError, match=r"line 2, is no record"):
        verified_end(log.segments("t")[0])


def test_lines_of_other_writers_may_order_their_fields_as_they_like(log: Log) -> None:
    log.append_to("t", 0, [Record(b"a")])
    path = log.segments("t")[0].path
    line = json.loads(lines_without_checksums(path)[0])
    path.write_text(json.dumps(dict(reversed(line.items()))) + "\n")
    assert verified_end(log.segments("t")[0]) == 1


def test_a_log_made_again_has_another_head(tmp_path: Path) -> None:
    heads = []
    for name in ("one", "two"):
        log = Log(tmp_path / name)
        log.append_to("t", 0, [Record(name.encode(), timestamp=moment)])
        heads.append(head_digest(log.segments("t")[0]))
    assert heads[0] != heads[1]


def test_a_time_of_pandas_is_written_like_any_other(log: Log) -> None:
    at = pd.Timestamp("2026-03-01T13:00:00.123456789+01:00")
    log.append_to("t", 0, [Record(b"a", timestamp=at)])
    (record,) = log.read("t", 0)
    assert record.timestamp == datetime(2026, 3, 1, 12, 0, 0, 123_456, UTC)


def test_wrong_use_is_reported(log: Log) -> None:
    with pytest.raises(UsageError, match="cannot name a topic"):
        log.append("../up", [Record(b"a")])
    with pytest.raises(UsageError, match="has no time zone"):
        log.append("t", [Record(b"a", timestamp=datetime(2013, 1, 1))])  # noqa: DTZ001
    with pytest.raises(LogError, match=r"has no topic nowhere \(topics: t\)"):
        log.partitions("nowhere")
    (log.root / "t" / "0" / "1.jsonl").write_text("x")
    with pytest.raises(LogError, match="20 digits"):
        log.segments("t")


append_for_ever = """
import sys
from pathlib import Path
from sluice.log import Log, Record
log = Log(Path(sys.argv[1]), segment_records_max=200)
while True:
    log.append("t", [Record(b"x" * 500, key=str(number)) for number in range(2000)])
"""


@pytest.mark.process
@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.45])
def test_a_writer_killed_at_any_moment_leaves_whole_segments(tmp_path: Path, seconds: float) -> None:
    log = Log(tmp_path)
    writer = subprocess.Popen([sys.executable, "-c", append_for_ever, str(tmp_path)])
    while not (log.exists("t") and log.segments("t")):
        time.sleep(0.01)
    time.sleep(seconds)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    for partition in log.partitions("t"):
        offsets = [record.offset for record in log.read("t", partition)]
        assert offsets == list(range(len(offsets)))
        assert log.append_to("t", partition, [Record(b"next")]) == len(offsets) + 1
    assert all(verified_end(segment) for segment in log.segments("t"))


append_some = """
import sys
from pathlib import Path
from sluice.log import Log, Record
for number in range(40):
    Log(Path(sys.argv[1])).append_to("t", 0, [Record(f"{sys.argv[2]}-{number}".encode())])
"""


@pytest.mark.process
def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    Log(tmp_path).create("t")
    writers = [subprocess.Popen([sys.executable, "-c", append_some, str(tmp_path), name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    log = Log(tmp_path)
    assert [record.offset for record in log.read("t", 0)] == list(range(80))
    assert set(values(log)) == {f"{name}-{number}".encode() for name in "ab" for number in range(40)}


@pytest.mark.parametrize(("locked", "kept"), [(0, ""), (1, r" 2 of the records were appended before that\. If .*")])
def test_an_append_that_breaks_off_says_how_many_records_are_in_the_log(tmp_path: Path, locked: int, kept: str) -> None:
    log = Log(tmp_path, partitions=2, segment_records_max=2, lock_seconds=0.1)
    log.create("t")
    records = [Record(str(number).encode()) for number in range(5)]
    said = rf"partition {locked}, for 0\.1 s\. Wait for it, or stop it\.{kept}\Z"
    with FileLock(log.folder("t", locked) / ".lock"), pytest.raises(LogError, match=said):
        log.append("t", records)
    assert log.offsets("t") == {0: range(0 if locked == 0 else 2), 1: range(0)}


@pytest.mark.parametrize("headers", [{"h": None}, {"h": 1}, {"h": b"1"}])
def test_a_record_whose_headers_are_no_texts_is_not_written(log: Log, headers: Any) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        log.append_to("t", 0, [Record(b"{}", headers=headers)])
    assert log.end_offset("t", 0) == 0
