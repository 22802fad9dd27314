"""Checksums of the log: no byte changes and no line goes unnoticed, and segments without checksums stay readable."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sluice.errors import LogError
from sluice.log import Log, Record, StoredRecord, segment_batch, verified_end, verify
from tests.kit import lines_without_checksums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

moment = datetime(2026, 3, 1, tzinfo=UTC)
some = [
    Record(b'{"id":"a","n":1}', key="k", timestamp=moment, headers={"h": "1"}),
    Record(b"\xff\x00", timestamp=moment),
    Record("é\u2028\n".encode(), key='"', timestamp=moment),
    Record(None, timestamp=moment),
]


def log_of(folder: Path, records: list[Record], *, compress: bool = False) -> tuple[Log, Path]:
    """A log with one segment, and its file."""
    log = Log(folder / "log", partitions=1, compress=compress)
    log.append_to("t", 0, records)
    return log, log.segments("t")[0].path


def read(log: Log) -> list[StoredRecord]:
    return list(log.read("t", 0))


def faults(log: Log) -> list[str]:
    return [fault for partition in verify(log, "t") for fault in partition.faults]


def flips(path: Path) -> Iterator[int]:
    """Turns each bit of a file, one at a time; in the end it is as it was."""
    content = path.read_bytes()
    with open(path, "r+b", buffering=0) as file:
        for at, byte in enumerate(content):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at)
                yield 8 * at + bit
            os.pwrite(file.fileno(), bytes([byte]), at)


@pytest.mark.parametrize("records", [some, some[:1]], ids=["several", "one"])
def test_every_bit_that_is_turned_is_noticed_by_every_reader(tmp_path: Path, records: list[Record]) -> None:
    log, path = log_of(tmp_path, records)
    readers: list[Callable[[], object]] = [lambda: read(log), lambda: verified_end(log.segments("t")[0])]
    for number in flips(path):
        for reader in readers:
            with pytest.raises(LogError):
                reader()
        # The same as the two, but slower: it need not be asked about each of them.
        assert number % 50 or faults(log)
    assert not faults(log)


def test_without_checksums_many_bits_turn_and_give_other_data(tmp_path: Path) -> None:
    """The test above can fail: this is what it found before there were checksums."""
    log, path = log_of(tmp_path, some)
    path.write_bytes(b"".join(lines_without_checksums(path)))
    sound, silent = read(log), 0
    for _ in flips(path):
        try:
            silent += read(log) != sound
        except LogError:
            continue
    assert silent > path.stat().st_size


def test_no_bit_that_is_turned_in_a_compressed_segment_gives_other_data(tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some, compress=True)
    sound, noticed = read(log), 0
    for _ in flips(path):
        try:
            assert read(log) == sound
        except LogError:
            noticed += 1
    assert noticed > path.stat().st_size * 7


def test_another_end_of_lines_does_not_hide_that_a_value_was_changed(tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some)
    content = path.read_bytes().replace(b"\n", b"\r\n")
    for changed in (content, content.replace(b'"n\\":1', b'"n\\":2')):
        path.write_bytes(changed)
        assert faults(log)
        with pytest.raises(LogError, match="another checksum"):
            log.next_batch("t", {}, 1000)


@pytest.mark.parametrize("compress", [False, True])
def test_a_segment_that_was_cut_anywhere_is_noticed(tmp_path: Path, compress: bool) -> None:
    log, path = log_of(tmp_path, some, compress=compress)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        for reader in (lambda: read(log), lambda: verified_end(log.segments("t")[0]), lambda: log.end_offset("t", 0)):
            with pytest.raises(LogError):
                reader()


def test_a_segment_that_was_cut_at_a_line_gets_no_records_after_it(tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(LogError, match="was cut at a line"):
        log.append_to("t", 0, some)


@pytest.mark.parametrize(
    "changed",
    [
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:-1], lines[-2]],
        lambda lines: lines[-1:],
    ],
    ids=["swapped", "twice", "one gone", "the last twice", "the last replaced", "only the last"],
)
def test_sound_lines_in_another_order_are_noticed(
    tmp_path: Path, changed: Callable[[list[bytes]], list[bytes]]
) -> None:
    log, path = log_of(tmp_path, some)
    path.write_bytes(b"".join(changed(lines_of(path))))
    for reader in (lambda: read(log), lambda: verified_end(log.segments("t")[0])):
        with pytest.raises(LogError):
            reader()
    assert faults(log)


def lines_of(path: Path) -> list[bytes]:
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]


marks = st.sampled_from([b',"crc32":"12345678"}', b',"segment_sha256":"' + b"0" * 64 + b'"', b"}", b"\n", b'"'])
hostile = st.lists(marks | st.binary(max_size=5), max_size=6).map(b"".join)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    values=st.lists(hostile, min_size=1, max_size=4),
    headers=st.dictionaries(
        st.sampled_from(["crc32", "segment_sha256", "a"]), st.sampled_from(["12345678", "0" * 64, ""])
    ),
    is_old=st.booleans(),
)
def test_records_that_look_like_checksums_come_back(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes], headers: dict[str, str], is_old: bool
) -> None:
    log, path = log_of(tmp_path_factory.mktemp("log"), [Record(value, headers=headers) for value in values])
    if is_old:
        path.write_bytes(b"".join(lines_without_checksums(path)))
    assert [record.value for record in read(log)] == values
    assert [record.headers for record in read(log)] == [headers] * len(values)
    assert verified_end(log.segments("t")[0]) == log.end_offset("t", 0) == len(values)
    (partition,) = verify(log, "t")
    assert (partition.records, partition.with_checksums, partition.faults) == (len(values), 0 if is_old else 1, ())


def test_verify_names_every_fault_and_counts_what_is_sound(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    for _ in range(4):
        log.append_to("t", 0, some)
    log.append_to("t", 1, some)
    first, second, third, _ = (segment.path for segment in log.segments_of("t", 0))
    first.write_bytes(first.read_bytes().replace(b'"n\\":1', b'"n\\":2'))
    second.unlink()
    third.write_bytes(b"")
    damaged, sound = verify(log, "t")
    assert (damaged.segments, damaged.with_checksums, damaged.records) == (3, 1, 4)
    assert [fault.split("; ")[0].split(": ")[0] for fault in damaged.faults] == [
        f"{first}, line 1, has another checksum than it was written with",
        f"{third} is empty",
    ]
    assert (sound.segments, sound.records, sound.faults) == (1, 4, ())
    third.unlink()
    first.write_bytes(first.read_bytes().replace(b'"n\\":2', b'"n\\":1'))
    damaged, _ = verify(log, "t")
    assert len(damaged.faults) == 1
    assert damaged.faults[0].endswith("begins at offset 12, where 4 would follow.")


noon = b'"timestamp":"2026-03-01T12:00:00Z"'
damage_of_old_lines = {
    "another offset too": (b'"headers":{}', b'"headers":{},"offset":77'),
    "an offset with a fraction": (b'{"offset":1', b'{"offset":1.0'),
    "no timestamp": (noon + b",", b""),
    "a null timestamp": (noon, b'"timestamp":null'),
    "a timestamp without zone": (noon, noon.replace(b"Z", b"")),
    "a timestamp that is a number": (noon, b'"timestamp":1767229200'),
    "a value that is a number": (b'"value":"one"', b'"value":5'),
    "a value that is an object": (b'"value":"one"', b'"value":{"a":1}'),
    "no value": (b'"value":"one"', b'"walue":"one"'),
    "two values": (b'"value":"one"', b'"value":"one","value_base64":"aGVsbG8="'),
    "signs that are no base64": (b'"value":"one"', b'"value_base64":"aGVsb*G8="'),
    "headers that are a list": (b'"headers":{}', b'"headers":[]'),
    "a header that is a number": (b'"headers":{}', b'"headers":{"a":1}'),
    "a key that is a number": (b'"key":"k"', b'"key":5'),
    "quotes that are none of JSON": (b'"key":"k"', b"'key':'k'"),
    "a second object": (b'"headers":{}}', b'"headers":{}} {}'),
    "bytes that are no UTF-8": (b'"one"', b'"on\xff"'),
    "half of a pair": (b'"one"', b'"\\ud800"'),
    "a line without its end": (b"}\n", b"} "),
}


@pytest.mark.parametrize("damage", damage_of_old_lines)
def test_of_an_old_segment_nothing_lands_that_verify_calls_damaged(tmp_path: Path, damage: str) -> None:
    """Spark takes much for a record that is none; without checksums, what lands is read by the log itself first."""
    at_noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    log, path = log_of(tmp_path, [Record(text, key="k", timestamp=at_noon) for text in (b"zero", b"one", b"two")])
    lines = list(lines_without_checksums(path))
    was, now = damage_of_old_lines[damage]
    assert was in lines[1]
    path.write_bytes(b"".join([lines[0], lines[1].replace(was, now, 1), lines[2]]))
    assert faults(log)
    with pytest.raises(LogError):
        log.next_batch("t", {}, 1000)


def test_two_segments_with_one_base_offset_are_an_error_that_names_both(tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some)
    path.with_name(path.name + ".zst").write_bytes(b"")
    with pytest.raises(LogError, match=r"0\.jsonl.* have the same offsets"):
        read(log)


def test_spark_notices_what_changed_after_the_segment_was_verified(spark: "SparkSession", tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some)
    batch = log.next_batch("t", {}, 100)
    content = path.read_bytes()
    rows = batch.rows(spark).orderBy("offset").collect()
    assert [(row.offset, row.key, row.value, row.timestamp, row.headers) for row in rows] == [
        (
            offset,
            record.key and bytearray(record.key.encode()),
            record.value and bytearray(record.value),
            row.timestamp,
            record.headers,
        )
        for offset, (record, row) in enumerate(zip(some, rows, strict=True))
    ]
    path.write_bytes(content.replace(b'"n\\":1', b'"n\\":2'))
    with pytest.raises(PySparkException, match="another checksum"):
        batch.rows(spark).collect()
    with pytest.raises(LogError, match="line 1, has another checksum"):
        batch.blame()


def test_the_driver_and_spark_read_the_same_records(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path, partitions=2)
    at = datetime(2026, 3, 1, 12, 0, 0, 123_456, UTC)
    odd = [
        Record(None, "tombstone", at),
        Record(b"", None, at, {"a": "", "ä": "\u2028"}),
        Record(b"\xff\x00", 'quoted"', datetime(1, 1, 1, tzinfo=UTC)),
        Record('{"n": "🛫\\n"}'.encode(), "key", datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    ]
    for record in odd:
        log.append("t", [record])
    batch = log.next_batch("t", {}, 100)
    few = batch.few()
    assert few is not None
    assert few.equals(streamed(batch).combine_chunks())
    found = rows_as_text(batch.rows(spark))
    monkeypatch.setattr(segment_batch, "few_records_max", 0)
    assert found == rows_as_text(batch.rows(spark))
    assert len(found) == len(odd)


texts = st.text(st.characters(codec="utf-8"))
plain_records = st.builds(
    Record,
    st.one_of(st.none(), texts.map(str.encode), st.just(b'\\",\\"headers\\":{},"headers":{}')),
    st.one_of(st.none(), texts),
    st.datetimes(timezones=st.just(UTC)),
)


@given(records=st.lists(plain_records, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arrow_reads_what_the_log_decodes(tmp_path_factory: pytest.TempPathFactory, records: list[Record]) -> None:
    log, _ = log_of(tmp_path_factory.mktemp("log"), records)
    assert read_as_decoded(log)


@pytest.mark.parametrize("odd", [Record(b"\xff"), Record(b"{}", headers={"h": "1"})])
def test_arrow_leaves_a_segment_alone_that_has_more_than_texts(tmp_path: Path, odd: Record) -> None:
    log, path = log_of(tmp_path, [Record(b"{}"), odd])
    assert segment_batch.read_by_arrow(log.segments("t")[0], path.read_bytes()) is None


def test_without_a_look_at_the_headers_they_would_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = log_of(tmp_path, [Record(b"{}", headers={"h": "1"})])
    monkeypatch.setattr(segment_batch, "no_headers", b"\n")
    assert not read_as_decoded(log)


def test_a_line_that_is_longer_than_arrow_reads_at_once_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, path = log_of(tmp_path, [Record(b"x" * 2_000), Record(b"y")])
    monkeypatch.setattr(segment_batch, "arrow_block_bytes", 1_000)
    monkeypatch.setattr(segment_batch, "arrow_bytes_min", 0)
    assert segment_batch.read_by_arrow(log.segments("t")[0], path.read_bytes()) is None
    assert streamed(log.next_batch("t", {}, 10))["value"].to_pylist() == [b"x" * 2_000, b"y"]


def test_a_segment_that_changes_before_it_is_streamed_is_an_error(tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some)
    batch = log.next_batch("t", {}, 100)
    path.write_bytes(path.read_bytes().replace(b'"n\\":1', b'"n\\":2'))
    with pytest.raises(LogError, match="has another checksum"):
        list(batch.parts())


def test_lines_without_checksums_are_not_streamed(tmp_path: Path) -> None:
    log, path = log_of(tmp_path, some)
    assert log.next_batch("t", {}, 100).stream() is not None
    path.write_bytes(b"".join(lines_without_checksums(path)))
    assert log.next_batch("t", {}, 100).stream() is None


def read_as_decoded(log: Log) -> bool:
    """Whether Arrow reads the rows that the log's own reader finds in the only segment."""
    [segment] = log.segments("t")
    found = segment_batch.read_by_arrow(segment, segment.path.read_bytes())
    return found is not None and bool(found.equals(segment_batch.table_of(read(log))))


def streamed(batch: segment_batch.SegmentBatch) -> pa.Table:
    """The rows of a stream, read as delta-rs reads them."""
    stream = batch.stream()
    assert stream is not None
    return pa.RecordBatchReader.from_stream(stream).read_all()


def test_records_that_are_large_once_they_are_decompressed_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_batch, "few_bytes_max", 10_000)
    log = Log(tmp_path, partitions=1, compress=True)
    for _ in range(2):
        log.append("t", [Record(b"x" * 6_000)])
    batch = log.next_batch("t", {}, 1)
    assert batch.few() is not None
    batch = log.next_batch("t", {}, 2)
    assert sum(segment.path.stat().st_size for segment in batch.segments) < 1_000
    assert batch.few() is None


def rows_as_text(df: "DataFrame") -> list[str]:
    """With times as numbers: Python shifts those of the first and the last year."""
    return sorted(map(str, df.withColumn("timestamp", F.unix_micros("timestamp")).collect()))


def test_each_new_folder_is_durable_in_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", noted)
    log = Log(tmp_path / "a" / "b" / "log", partitions=2)
    log.append_to("t", 1, some)
    made = [tmp_path / "a", tmp_path / "a" / "b", log.root, log.root / "t", log.segments("t")[0].path]
    assert {str(path.parent) for path in made} <= synced
