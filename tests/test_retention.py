"""Retention: what has landed may leave the log, by whole segments or by key; nothing else does, whatever is killed."""

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sluice import Project, bronze
from sluice.engine.catalogue import Catalogue
from sluice.engine.land import forgotten
from sluice.errors import LogRecreated, UsageError
from sluice.log import KafkaLog, KafkaSecurity, Log, Record, Retention, Segment, StoredRecord
from sluice.log import compact as compaction
from sluice.log.rewriting import rewrite
from sluice.log.topic_file import read_topic_file
from sluice.model.erasure import Removal, compacted_mark, erased_header
from sluice.model.ledger import Commit, Entry, LandedPartition
from sluice.operate import maintain as maintenance
from sluice.operate.audit import erased_by_none
from sluice.operate.maintain import Retained, retain
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.killed_import import killed_import
from tests.kit import Lakehouse, at, text
from tests.test_maintain import sold_daily

topic = "sales"
hostile = ["", "é\u2028", '"\\', "\x00", "a" * 300, "sluice_erased"]


class Killed(BaseException):
    """The end of a process in the middle: nothing of the log catches it."""


@dataclass
class World:
    """A random partition of a log, with what was appended to it."""

    log: Log
    dice: Random
    appended: list[StoredRecord]

    def append(self, segments: int) -> None:
        for _ in range(segments):
            count = self.dice.randrange(1, 5)
            self.log.append_to(topic, 0, [self.record() for _ in range(count)])
        self.appended = [*self.appended, *self.log.read(topic, 0, len(self.appended))]

    def record(self) -> Record:
        key = self.dice.choice([None, "a", "b", *hostile])
        value = self.dice.choice([None, b"", b"\xff\n", self.dice.randbytes(20), b'{"a":1}'])
        return Record(value, key, at(self.dice.randrange(100)), self.dice.choice([{}, {"x": "y"}]))

    def boundary(self) -> int:
        """The beginning of a segment, as the newest that landed begins somewhere."""
        return self.dice.choice([each.base_offset for each in self.log.segments(topic)])

    def left(self) -> list[StoredRecord]:
        return list(self.log.read(topic, 0))

    def newest(self, before: int) -> dict[str, StoredRecord]:
        """The newest record of each key before an offset, as it was appended."""
        return {each.key: each for each in self.appended[:before] if each.key is not None}


def world(folder: Path, seed: int) -> World:
    dice = Random(seed)
    found = World(Log(folder / "log", partitions=1, compress=bool(seed % 2)), dice, [])
    found.append(dice.randrange(2, 8))
    return found


def is_emptied(record: StoredRecord) -> bool:
    return record.key is None and record.value is None and record.headers == {erased_header: compacted_mark}


def require_proved(log: Log) -> None:
    assert [each.faults for each in log.verify(topic)] == [()]


def require_compacted(found: World, before: int, spent: datetime) -> None:
    """What compaction before an offset leaves: the newest of each key, and whatever has no key or comes later."""
    newest = found.newest(before)
    for record, old in zip(found.left(), found.appended, strict=True):
        is_newest = old.key is None or old.offset >= before or newest[old.key].offset == old.offset
        is_spent = old.key is not None and old.value is None and old.timestamp < spent and old.offset < before
        if is_newest and not is_spent:
            assert record == old
        else:
            assert is_emptied(record)
            assert (record.offset, record.timestamp) == (old.offset, old.timestamp)
    require_proved(found.log)


@pytest.mark.parametrize("seed", range(12))
def test_of_each_key_the_newest_record_stays(tmp_path: Path, seed: int) -> None:
    found = world(tmp_path, seed)
    before = found.boundary()
    spent = at(found.dice.randrange(100))
    expected = sum(
        each.key is not None
        and (found.newest(before)[each.key].offset > each.offset or (each.value is None and each.timestamp < spent))
        for each in found.appended[:before]
    )
    assert found.log.compact(topic, 0, before, spent) == expected
    require_compacted(found, before, spent)
    assert found.log.compact(topic, 0, before, spent) == 0
    end = found.log.end_offset(topic, 0)
    # Twice as much makes the next time due.
    found.append(2 * len(found.log.segments(topic)) + 1)
    assert found.log.end_offset(topic, 0) > end
    before = found.log.segments(topic)[-1].base_offset
    found.log.compact(topic, 0, before, spent)
    require_compacted(found, before, spent)


def test_compaction_waits_until_half_is_new(tmp_path: Path) -> None:
    log = Log(tmp_path, partitions=1)
    for _ in range(4):
        log.append_to(topic, 0, [Record(b"x", "k", at(1))])
    assert log.compact(topic, 0, 3, at(0)) == 2
    log.append_to(topic, 0, [Record(b"x", "k", at(1))])
    assert log.compact(topic, 0, 4, at(0)) == 0, "one of four segments is new"
    log.append_to(topic, 0, [Record(b"x" * 1000, "k", at(1)) for _ in range(3)])
    log.append_to(topic, 0, [Record(b"last", "k", at(1))])
    assert log.compact(topic, 0, 8, at(0)) == 4 + 1 - 0
    assert [each.value for each in log.read(topic, 0) if each.value] == [b"x" * 1000, b"last"]


@contextmanager
def ending_at(number: int) -> Iterator[Callable[[], bool]]:
    """The process ends before its step of this number: a file that takes a name, or loses it. Gives whether it did."""
    steps = 0
    names = ("replace", "unlink", "link")
    before = {name: getattr(os, name) for name in names}

    def step(name: str) -> Callable[..., Any]:
        def stepping(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > number:
                raise Killed
            return before[name](*arguments, **named)

        return stepping

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, step(name))
        with suppress(Killed):
            yield lambda: steps > number


def work(log: Log, before: int, old_before: int) -> None:
    """What maintenance does in a partition, which is older than it is retained up to an offset."""
    log.trim(topic, 0, old_before, at(1000))
    log.compact(topic, 0, before, at(50))


def require_kept(found: World, before: int) -> None:
    """No offset from the start on is missing, what has not landed is as it came, and all is proved."""
    left = found.left()
    start = found.log.start_offset(topic, 0)
    assert [each.offset for each in left] == list(range(start, len(found.appended)))
    assert [each for each in left if each.offset >= before] == found.appended[before:]
    # What a tombstone or a newer record has replaced never comes to light again.
    last = {each.key: each.offset for each in left if each.key is not None}
    newest = {key: each.offset for key, each in found.newest(len(found.appended)).items()}
    assert last.items() <= newest.items()
    require_proved(found.log)


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_step_loses_nothing_and_the_next_time_ends_it(tmp_path: Path, seed: int) -> None:
    whole = world(tmp_path / "whole", seed)
    whole.append(4)
    shutil.copytree(whole.log.root, tmp_path / "fresh")
    segments = whole.log.segments(topic)
    before, old_before = segments[-1].base_offset, segments[2].base_offset
    work(whole.log, before, old_before)
    expected = whole.left()
    number, is_ended = 0, True
    while is_ended:
        folder = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "fresh", folder)
        found = World(Log(folder, partitions=1), Random(seed), whole.appended)
        with ending_at(number) as has_ended:
            work(found.log, before, old_before)
        is_ended = has_ended()
        require_kept(found, before)
        assert found.log.append_to(topic, 0, [Record(b"after")]) == len(whole.appended) + 1
        work(found.log, before, old_before)
        assert found.left()[:-1] == expected
        names = {path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}
        assert names == {"topic.json", *(each.path.name for each in found.log.segments(topic))}, "nothing is left over"
        assert not list(folder.rglob(".*.jsonl*"))
        number += 1
    assert number > 3


@pytest.mark.parametrize("step", range(4))
def test_a_tombstone_goes_after_all_that_it_deletes(tmp_path: Path, step: int) -> None:
    log = Log(tmp_path, partitions=1)
    for value in (b"first", b"second", None, b"other"):
        log.append_to(topic, 0, [Record(value, "other" if value == b"other" else "k", at(1))])
    with ending_at(step):
        log.compact(topic, 0, 3, at(2))
    left = [each for each in log.read(topic, 0) if each.key == "k"]
    assert not left or left[-1].value is None
    log.compact(topic, 0, 3, at(2))
    assert [each.key for each in log.read(topic, 0)] == [None, None, None, "other"]


def test_the_law_notices_a_segment_that_goes_before_the_topic_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "start_at", lambda log, topic, starts: None)
    with pytest.raises(AssertionError):
        test_a_kill_at_any_step_loses_nothing_and_the_next_time_ends_it(tmp_path, 0)


def test_the_law_notices_compaction_that_ignores_which_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_of = compaction.left_of
    monkeypatch.setattr(
        compaction, "left_of", lambda newest, spent, record: left_of(dict.fromkeys(newest, 10**9), spent, record)
    )
    with pytest.raises(AssertionError):
        test_of_each_key_the_newest_record_stays(tmp_path, 0)


@pytest.mark.parametrize("seed", range(6))
def test_by_age_and_size_only_whole_old_segments_before_the_newest_landed_go(tmp_path: Path, seed: int) -> None:
    found = world(tmp_path, seed)
    found.append(6)
    before, oldest = found.boundary(), at(found.dice.randrange(100))
    bytes_max = found.dice.choice([None, 1, 700, 10**9])
    segments = found.log.segments(topic)
    count = found.log.trim(topic, 0, before, oldest, bytes_max)
    start = found.log.start_offset(topic, 0)
    assert start == segments[count].base_offset <= before
    size = {each: each.path.stat().st_size for each in segments[count:]}
    kept = [each for each in found.appended if each.offset < segments[min(count + 1, len(segments) - 1)].base_offset]
    if count and bytes_max is None:
        assert all(each.timestamp < oldest for each in found.appended[:start])
    if start < before:
        first = [each for each in kept if each.offset >= start]
        assert any(each.timestamp >= oldest for each in first)
        assert bytes_max is None or sum(size.values()) <= bytes_max
    require_kept(found, start)
    assert found.log.trim(topic, 0, before, oldest, bytes_max) == 0


def test_segments_of_a_topic_without_a_file_go_too(tmp_path: Path) -> None:
    found = world(tmp_path, 0)
    (found.log.root / topic / "topic.json").unlink()
    before = found.log.segments(topic)[2].base_offset if len(found.log.segments(topic)) > 2 else 1
    count = found.log.trim(topic, 0, before, at(1000))
    found.log.retain(topic, Retention(days=1))
    said = read_topic_file(found.log.root / topic)
    assert said is not None
    assert said.start(0) == found.log.start_offset(topic, 0) == (before if count else 0)
    require_proved(found.log)


def test_an_erasure_and_compaction_leave_each_others_records(tmp_path: Path) -> None:
    log = Log(tmp_path, partitions=1)
    for number in range(4):
        log.append_to(topic, 0, [Record(b'{"a":1}', "k", at(1)), Record(b'{"a":2}', f"k{number}", at(1))])
    assert log.erase(topic, {0: {0: [Removal(3)], 3: [Removal(3)]}}) == 2
    assert log.compact(topic, 0, 6, at(0)) == 1
    assert log.erase(topic, {0: {2: [Removal(4)]}}) == 1
    assert [each.headers.get(erased_header) for each in log.read(topic, 0)] == [
        "3",
        None,
        "4",
        "3",
        None,
        None,
        None,
        None,
    ]
    require_proved(log)


@pytest.mark.parametrize("knows", [True, False])
def test_a_lake_that_is_behind_goes_on_after_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """Unless it knows that the log was compacted (`knows`), it takes its newest segment for one of another log."""
    log = Log(tmp_path, partitions=1)
    for _ in range(3):
        log.append_to(topic, 0, [Record(b"old", "k", at(1)), Record(b"old", "k", at(1))])
    landed = log.next_batch(topic, {}, 100).landed
    for _ in range(3):
        log.append_to(topic, 0, [Record(b"new", "k", at(1))])
    assert log.compact(topic, 0, log.segments(topic)[-1].base_offset, at(0)) == 7
    if not knows:
        monkeypatch.setattr(Log, "emptied_before", lambda *_: {})
        with pytest.raises(LogRecreated):
            log.next_batch(topic, landed, 100)
        return
    batch = log.next_batch(topic, landed, 100)
    assert [segment.base_offset for segment in batch.segments] == [6, 7, 8]
    assert log.truncated(topic, landed) == {}


def test_a_killed_compaction_is_known_and_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has emptied is small, so it would wait; and a lake that is behind would take the log for another."""
    log = Log(tmp_path, partitions=1)
    log.append_to(topic, 0, [Record(b"x" * 5000, f"unique{number}", at(1)) for number in range(4)])
    log.append_to(topic, 0, [Record(b"last", "last", at(1))])
    assert log.compact(topic, 0, 4, at(0)) == 0
    for number in range(5):
        log.append_to(topic, 0, [Record(b"y" * 6000, "k", at(number + 1))])
    behind = log.next_batch(topic, {}, 6).landed
    assert behind[0].next_offset == 6
    segments = log.segments(topic)
    real = rewrite

    def killed_at_the_end(segment: Segment, *rest: Any) -> int:
        if segment == segments[-2]:
            raise Killed
        return real(segment, *rest)

    monkeypatch.setattr(compaction, "rewrite", killed_at_the_end)
    with pytest.raises(Killed):
        log.compact(topic, 0, 9, at(0))
    monkeypatch.undo()
    assert [each.offset for each in log.read(topic, 0) if erased_header in each.headers] == [5, 6, 7]
    assert log.next_batch(topic, behind, 100).landed[0].next_offset == 10
    # One that has been left behind by the kill, and not by the rule of the half.
    log.append_to(topic, 0, [Record(b"z", "k", at(9))])
    assert log.compact(topic, 0, 10, at(0)) == 1
    assert log.compact(topic, 0, 10, at(0)) == 0
    assert log.emptied_before(topic) == {0: 10}


def test_what_is_to_stay_for_ever_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, lake = Log(tmp_path, partitions=1), Lake(str(tmp_path / "lake"))
    monkeypatch.setattr(maintenance, "landed_everywhere", lambda *_: {0: 1})
    for number in range(2):
        log.append_to(topic, 0, [Record(b"old", "k", at(number))])
    log.retain(topic, Retention())
    assert maintenance.retained(log, lake, Catalogue(()), topic, timedelta(days=1)) == Retained(0, 0)


def test_a_table_reports_what_it_lands_too_late(tmp_path: Path) -> None:
    """One of a backup, to which a partition is new, has no missing offset; nor has one that lands emptied records."""
    log = Log(tmp_path, partitions=2)
    log.create(topic)
    log.append_to(topic, 0, [Record(b"old", "k", at(1))])
    known = committed(log.next_batch(topic, {}, 100).landed)
    for _ in range(3):
        log.append_to(topic, 1, [Record(b"old", "k", at(1))])
    assert forgotten(log, topic, known, log.next_batch(topic, known.entry.landed, 100)) is None
    assert log.trim(topic, 1, 2, datetime.now(UTC)) == 2
    batch = log.next_batch(topic, known.entry.landed, 100)
    assert forgotten(log, topic, known, batch) == "the log has forgotten 2 older offsets: of partition 1 those before 2"
    assert forgotten(log, topic, committed(batch.landed), batch) is None
    for _ in range(3):
        log.append_to(topic, 0, [Record(b"new", "k", at(1))])
    now = log.next_batch(topic, batch.landed, 100)
    log.compact(topic, 0, 3, at(0))
    said = "the log was compacted, and old records say nothing: of partition 0 those before 3"
    assert forgotten(log, topic, committed(batch.landed), now) == said
    assert forgotten(log, topic, committed(now.landed), now) is None


def committed(landed: dict[int, LandedPartition]) -> Commit:
    return Commit(table_id="t", version=0, timestamp_ms=0, entry=Entry(dataset="bronze.sales", landed=landed))


def test_writers_and_readers_go_on_meanwhile(tmp_path: Path) -> None:
    log = Log(tmp_path, partitions=1)
    done = threading.Event()
    failures: list[BaseException] = []

    def maintain() -> None:
        try:
            while not done.is_set():
                segments = log.segments_of(topic, 0)
                log.compact(topic, 0, segments[-1].base_offset, at(0))
                log.trim(topic, 0, segments[max(0, len(segments) - 20)].base_offset, None, 3000)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    log.append_to(topic, 0, [Record(b"0", "k")])
    threads = [threading.Thread(target=maintain) for _ in range(2)]
    for each in threads:
        each.start()
    for number in range(1, 150):
        log.append_to(topic, 0, [Record(str(number).encode(), "k")])
    done.set()
    for each in threads:
        each.join()
    assert failures == []
    left = list(log.read(topic, 0))
    assert [each.offset for each in left] == list(range(log.start_offset(topic, 0), 150))
    assert left[-1].value == b"149"
    require_proved(log)


def test_an_import_whose_rows_were_forgotten_meanwhile_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / ".sluice" / "log", partitions=1)
    project = Project(tmp_path, any_folder=True)
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"id":{number}}}\n' for number in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.ingest.files.batch_rows", 10)
        with killed_import(after_row=15):
            project.log.import_files(topic, tmp_path / "rows.jsonl", key="id")
        log.append_to(topic, 0, [Record(b"{}")])
        log.trim(topic, 0, 20, datetime.now(UTC) + timedelta(days=1))
        with pytest.raises(UsageError, match="up to row 10, and perhaps some rows after it: partition 0 of sales has"):
            project.log.import_files(topic, tmp_path / "rows.jsonl", key="id")


def test_what_a_topic_retains_is_said_and_kept(tmp_path: Path) -> None:
    log = Log(tmp_path / ".sluice" / "log", partitions=2)
    log.append(topic, [Record(b"{}", "k")])
    project = Project(tmp_path, any_folder=True)
    assert project.log.retention(topic) == Retention()
    said = project.log.retain(topic, days=30, partition_bytes=10, compact=True)
    assert project.log.retention(topic) == said == Retention(days=30, partition_bytes=10, compact=True)
    log.start_at(topic, {0: 0})
    assert log.retention(topic) == said
    assert project.log.retain(topic) == Retention()
    wrong: list[tuple[str, Mapping[str, Any], str]] = [
        (topic, {"days": 0}, "days=0 cannot be used"),
        (topic, {"days": float("nan")}, "days=nan cannot be used"),
        (topic, {"days": float("inf")}, "days=inf cannot be used"),
        (topic, {"partition_bytes": -1}, "partition_bytes=-1"),
        ("sluice_erasures", {"days": 1}, "reserved for Sluice"),
    ]
    for name, options, message in wrong:
        with pytest.raises(UsageError, match=message):
            project.log.retain(name, **options)
    half = sluice("log", "retain", topic, "--tombstone-days", "5", here=tmp_path, environment={"SLUICE_LOG": str(log)})
    assert (half.returncode, "--tombstone-days is for --compact" in half.stderr) == (2, True), half.stderr
    with pytest.raises(UsageError, match=r"Kafka itself removes the records of sales: set retention\.ms"):
        KafkaLog("localhost:1", KafkaSecurity()).retain(topic, Retention(days=1))


# With Spark: the tables.


def sale(number: int, product: str, day: int = 0) -> dict[str, Any]:
    return {"id": f"s{number}", "product": product, "sold_at": text(24 * day + 1), "pieces": number}


def forget(lakehouse: Lakehouse) -> dict[str, Retained]:
    return retain(lakehouse.log, lakehouse.lake, lakehouse.catalogue)


def test_tables_come_back_the_same_after_the_log_has_forgotten(lakehouse: Lakehouse, tmp_path: Path) -> None:
    lakehouse.log = Log(lakehouse.log.root, partitions=1)
    lakehouse.declare(sold_daily)
    for number in range(6):
        # Of one key each two, and one sale that comes again.
        lakehouse.publish(topic, sale(number % 5, "tea", number), key=f"k{number % 3}", hours=24 * number)
    lakehouse.run()
    assert forget(lakehouse) == {topic: Retained(0, 0)}, "without a word all stays"
    lakehouse.log.retain(topic, Retention(days=(datetime.now(UTC) - at(24 * 1.5)) / timedelta(days=1), compact=True))
    # The first two are older, and of the next three the one has a key that comes again in the third last.
    assert forget(lakehouse) == {topic: Retained(2, 0)}
    lakehouse.log.retain(topic, Retention(compact=True))
    lakehouse.publish(topic, sale(9, "coffee", 6), key="k1", hours=24 * 6)
    assert forget(lakehouse) == {topic: Retained(0, 0)}, "what has not landed is no newer record"
    assert lakehouse.run()["bronze.sales"].rows.inserted == 1
    lakehouse.publish(topic, *[sale(number, "milk", 7) for number in range(10, 20)], key="k2", hours=24 * 7)
    lakehouse.publish(topic, sale(20, "milk", 8), key="k2", hours=24 * 7)
    lakehouse.run()
    assert forget(lakehouse) == {topic: Retained(0, 12)}
    assert [each.faults for each in lakehouse.log.verify(topic)] == [()]
    assert lakehouse.run() == {}

    names = ("bronze.sales", "silver.sales", "gold.sold_daily", "silver._fates")
    before = {name: lakehouse.rows(name) for name in names}
    assert len(before["bronze.sales"]) == 18
    for folder in ("silver", "gold"):
        shutil.rmtree(lakehouse.folder / "lake" / folder)
    lakehouse.run()
    assert {name: lakehouse.rows(name) for name in names} == before
    assert all(each.balanced for each in lakehouse.audits())

    # A table that starts now reports what is missing, and each record that is there has a fate.
    late = Lakehouse(lakehouse.spark, tmp_path / "late", 1)
    late.log, late.catalogue = lakehouse.log, lakehouse.catalogue
    lacking = (
        "the log has forgotten 2 older offsets: of partition 0 those before 2; "
        "the log was compacted, and old records say nothing: of partition 0 those before 17"
    )
    assert late.run()["bronze.sales"].cause == f"records; {lacking}"
    commit = late.lake.last_commit("bronze.sales")
    assert commit is not None
    assert commit.entry.because == lacking
    fates = late.audit()["silver.sales"]
    assert (fates.balanced, fates.erased) == (True, 12)
    assert [each.broken for each in erased_by_none(late.lake, late.log, late.audits())] == [0]
    newest = {json.loads(row[0])["id"] for row in late.rows("bronze.sales", "value") if row[0] is not None}
    assert Counter(row[0] for row in late.rows("silver.sales", "id")) == Counter(newest)


def test_a_table_that_has_not_landed_and_the_topics_of_sluice_keep_the_log(lakehouse: Lakehouse) -> None:
    lakehouse.log = Log(lakehouse.log.root, partitions=1)
    lakehouse.declare(sold_daily)
    for number in range(3):
        lakehouse.publish(topic, sale(number, "tea"), key="k")
        lakehouse.log.append("sluice_releases", [Record(b"{}", "k", at(0))])
    lakehouse.run()
    again = bronze.topic("sales_again", topic=topic)
    lakehouse.declare(sold_daily, again)
    long_ago = timedelta(days=1)
    assert retain(lakehouse.log, lakehouse.lake, lakehouse.catalogue, long_ago) == {topic: Retained(0, 0)}
    lakehouse.run()
    assert retain(lakehouse.log, lakehouse.lake, lakehouse.catalogue, long_ago) == {topic: Retained(2, 0)}
    assert lakehouse.log.start_offset("sluice_releases", 0) == 0
