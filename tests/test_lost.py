"""A log that lost something says what, and which way leads on: before it lands, after it landed, in any partition."""

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.engine.land import skip
from sluice.errors import LogError, LogGap, LogRecreated, LogTruncated, SluiceError
from sluice.log import Log, Record
from sluice.log.kafka_batch import next_batch as next_from_kafka
from sluice.log.segment_batch import SegmentBatch
from sluice.model.ledger import LandedPartition
from sluice.operate.status import status
from tests.kit import Lakehouse, lines_without_checksums, text
from tests.shop import sales

moment = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log", partitions=2)


def append(log: Log, *names: str, partition: int = 0) -> int:
    """One segment, as an older release wrote it: no checksum tells when lines of it are gone."""
    end = log.append_to("t", partition, [Record(name.encode(), timestamp=moment) for name in names])
    path = log.segments_of("t", partition)[-1].path
    path.write_bytes(b"".join(lines_without_checksums(path)))
    return end


def land(log: Log, landed: dict[int, LandedPartition] | None = None, records_max: int = 1000) -> SegmentBatch:
    return log.next_batch("t", landed or {}, records_max)


def cut_short(log: Log, base: int, lines: int) -> None:
    """Leaves only the first lines of a segment, as an older copy of it has them."""
    (segment,) = [each for each in log.segments("t") if each.base_offset == base and each.partition == 0]
    segment.path.write_bytes(b"".join(segment.path.read_bytes().splitlines(keepends=True)[:lines]))


def remove(log: Log, base: int, partition: int = 0) -> None:
    (log.root / "t" / str(partition) / f"{base:020}.jsonl").unlink()


def without_file(log: Log) -> None:
    """A topic as an older release wrote it."""
    (log.root / "t" / "topic.json").unlink(missing_ok=True)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_log_that_ends_before_what_has_landed_is_an_error_that_names_the_offsets(log: Log, is_old: bool) -> None:
    append(log, "a", "b", "c")
    append(log, "d", "e", "f")
    landed = land(log).landed
    if is_old:
        without_file(log)
        landed = {0: landed[0].model_copy(update={"size_bytes": None})}
    assert land(log, landed).records == 0
    cut_short(log, 3, 1)
    with pytest.raises(
        LogTruncated, match=r"topic t, partition 0: offsets up to 5 .* ends at offset 4: 4 to 5 are gone"
    ):
        land(log, landed)
    remove(log, 3)
    with pytest.raises(LogTruncated, match=r"ends at offset 3: 3 to 5 are gone .*sluice log skip t"):
        land(log, landed)
    remove(log, 0)
    with pytest.raises(LogTruncated, match="ends at offset 0: 0 to 5 are gone"):
        land(log, landed)


@pytest.mark.parametrize("more", [1, 2, 3, 9])
def test_records_that_are_given_offsets_that_have_landed_are_never_passed_over(log: Log, more: int) -> None:
    append(log, "a", "b", "c")
    landed = land(log).landed
    cut_short(log, 0, 1)
    append(log, *"wxyz"[: more % 5], *["more"] * (more - more % 5))
    append(log, "last")
    with pytest.raises(
        LogTruncated, match=r"offsets up to 2 have landed.*00001\.jsonl gives offsets from 1 on to other"
    ):
        land(log, landed)
    with pytest.raises(LogError, match="Move the file away"):
        log.go_on("t", landed, {0: 3})


def test_a_record_in_the_place_of_a_segment_that_was_moved_away_is_not_given_up(log: Log) -> None:
    """The newest segment landed, was damaged, and was moved away; what is appended then gets its offset again."""
    append(log, "a", "b")
    append(log, "c", "d", "e")
    landed = land(log).landed
    segment = log.segments("t")[-1].path
    segment.rename(segment.with_suffix(".away"))
    append(log, "new")
    assert segment.exists()
    with pytest.raises(LogRecreated, match="append its values again: sluice log skip t"):
        land(log, landed)
    with pytest.raises(LogError, match="Move the file away"):
        log.go_on("t", landed, {0: 5})
    segment.unlink()
    log.go_on("t", landed, {0: 5})
    append(log, "new")
    assert land(log, landed).landed[0].next_offset == 6


def test_a_segment_cut_short_is_noticed_when_newer_ones_follow(log: Log) -> None:
    append(log, "a", "b", "c")
    landed = land(log).landed
    append(log, "d")
    cut_short(log, 0, 2)
    with pytest.raises(LogTruncated, match="ends at offset 2"):
        land(log, landed)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_partition_or_topic_that_landed_and_is_gone_is_an_error(log: Log, is_old: bool) -> None:
    append(log, "a", partition=0)
    append(log, "b", "c", partition=1)
    landed = land(log).landed
    if is_old:
        without_file(log)
    shutil.rmtree(log.root / "t" / "1")
    with pytest.raises(
        LogError, match=r"partition 1.*: 0 to 1 are gone" if is_old else r"partition 1 is missing: .*/t/1"
    ):
        land(log, landed)
    shutil.rmtree(log.root / "t")
    with pytest.raises(LogTruncated, match="topic t, partition 0: offsets up to 0 have landed"):
        land(log, landed)


def test_a_first_segment_that_is_missing_before_the_first_landing_is_a_gap(log: Log) -> None:
    append(log, "a", "b")
    append(log, "c")
    remove(log, 0)
    with pytest.raises(LogGap, match=r"topic t, partition 0: offsets 0 to 1 are missing .* sluice log skip t"):
        land(log)
    assert log.lost("t", {}) == {0: range(2)}
    log.go_on("t", {}, {0: 2})
    assert land(log).landed[0].next_offset == 3
    without_file(log)
    assert land(log).landed[0].next_offset == 3, "an older log may have forgotten what came before"


def test_a_partition_that_never_landed_is_seen_from_its_beginning(log: Log) -> None:
    append(log, "a")
    landed = land(log).landed
    append(log, "b", partition=1)
    append(log, "c", partition=1)
    remove(log, 0, partition=1)
    with pytest.raises(LogGap, match="partition 1: offsets 0 to 0 are missing"):
        land(log, landed)


def test_a_partition_folder_that_a_copy_dropped_is_missed_by_writers_and_readers(log: Log, tmp_path: Path) -> None:
    log.append("t", [Record(b"a", key="a"), Record(b"b", key="a")])
    empty = next(partition for partition in (0, 1) if log.end_offset("t", partition) == 0)
    copy = Log(tmp_path / "copy", partitions=2)
    for source in log.root.rglob("*.json*"):
        target = copy.root / source.relative_to(log.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    for ask in (lambda: land(copy), lambda: copy.append("t", [Record(b"c", key="a")]), lambda: copy.offsets("t")):
        with pytest.raises(LogGap, match=rf"t has 2 partitions, but the folder of partition {empty} is missing"):
            ask()
    (copy.root / "t" / str(empty)).mkdir()
    assert land(copy).records == 2
    (copy.root / "t" / "2").mkdir()
    with pytest.raises(LogGap, match=r"set the number of partitions in topic\.json"):
        land(copy)


def test_what_is_before_a_gap_lands_and_the_gap_is_named_then(log: Log) -> None:
    for name in "abc":
        append(log, name)
    remove(log, 1)
    first = land(log)
    assert first.records == 1
    with pytest.raises(LogGap, match="partition 0: offsets 1 to 1 are missing"):
        land(log, first.landed)
    assert log.lost("t", first.landed) == {0: range(1, 2)}


def test_a_log_goes_on_after_an_end_that_it_has_lost(log: Log) -> None:
    append(log, "a", "b", "c")
    landed = land(log).landed
    cut_short(log, 0, 1)
    assert log.truncated("t", landed) == {0: range(1, 3)}
    log.go_on("t", landed, {0: 3})
    assert land(log, landed).records == 0
    assert append(log, "d") == 4
    assert [record.offset for record in log.read("t", 0)] == [3]
    batch = land(log, landed)
    assert (batch.records, batch.landed[0].next_offset) == (1, 4)


def test_a_topic_that_was_made_again_and_compacted_is_not_what_landed(log: Log) -> None:
    append(log, "a", "b")
    landed = land(log).landed
    shutil.rmtree(log.root / "t")
    for number in range(3):
        log.append_to("t", 0, [Record(f"{number}".encode(), key="k", timestamp=moment)] * 2)
    assert log.compact("t", 0, 4, moment) > 0
    with pytest.raises(LogRecreated):
        land(log, landed)


def test_a_topic_says_how_many_partitions_it_has_and_where_they_begin(log: Log) -> None:
    for name in "abc":
        append(log, name)
    path = log.root / "t" / "topic.json"
    assert json.loads(path.read_text()) == {"partitions": 2, "starts": {}, "id": log.topic_id("t")}
    assert re.fullmatch("[0-9a-f]{32}", log.topic_id("t") or "")
    path.write_text('{"partitions": 2, "checksums": "of a later release"}')
    assert log.trim("t", 0, 2, datetime.now(UTC)) == 2
    assert json.loads(path.read_text()) == {"partitions": 2, "starts": {"0": 2}, "checksums": "of a later release"}
    assert land(log).landed[0].next_offset == 3
    assert not [each.name for each in log.root.rglob(".*") if each.name != ".lock"]
    path.write_text("{")
    with pytest.raises(LogError, match=r"topic\.json cannot be read"):
        land(log)


def test_the_log_forgets_no_segment_after_one_that_stays(log: Log) -> None:
    for hour in (5, 0, 6):
        log.append_to("t", 0, [Record(b"x", timestamp=moment.replace(hour=hour))])
    assert log.trim("t", 0, 3, moment.replace(hour=3)) == 0, "the first is newer, and the second follows it"
    assert log.trim("t", 0, 3, moment.replace(hour=6)) == 2
    without_file(log)
    append(log, "y")
    assert log.trim("t", 0, 4, datetime.now(UTC)) == 1
    assert not (log.root / "t" / "topic.json").exists()


def test_a_topic_of_kafka_that_ends_before_what_has_landed_is_an_error() -> None:
    landed = {0: LandedPartition(next_offset=20, head="id"), 1: LandedPartition(next_offset=3, head="id")}
    with pytest.raises(LogTruncated, match=r"partition 0: offsets up to 19 .* ends at offset 7: 7 to 19 are gone"):
        next_from_kafka("t", "id", {0: range(2, 7), 1: range(3)}, landed, 10)
    with pytest.raises(LogRecreated, match="has no partition 1 any more"):
        next_from_kafka("t", "id", {0: range(2, 20)}, landed, 10)


def held(lakehouse: Lakehouse) -> str:
    return status(lakehouse.lake, lakehouse.log, lakehouse.catalogue)[0].held or ""


def sale(number: int) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea", "sold_at": text(number), "pieces": 1}


def test_status_tells_what_is_lost_and_skip_goes_on(lakehouse: Lakehouse) -> None:
    """One lake through all of it: each run of Spark costs."""
    lakehouse.declare(sales)
    topic = lakehouse.catalogue.topic("sales")
    log = lakehouse.log = Log(lakehouse.log.root, partitions=1)
    for number in range(3):
        lakehouse.publish("sales", sale(number))
    first, second = [each.path for each in log.segments("sales")][:2]
    first.rename(first.with_suffix(".away"))
    assert held(lakehouse) == "lost: offsets 0-0 of partition 0"
    with pytest.raises(LogGap, match="offsets 0 to 0 are missing"):
        lakehouse.run()
    assert skip(lakehouse.lake, log, topic, "the disk broke") == {"0": 1}
    assert held(lakehouse) == ""
    lakehouse.run()
    assert lakehouse.rows("bronze.sales", "offset") == [(1,), (2,)]

    log.segments("sales")[-1].path.unlink()
    assert "ends at offset 2: 2 to 2 are gone" in held(lakehouse)
    with pytest.raises(LogTruncated):
        lakehouse.run()
    assert skip(lakehouse.lake, log, topic, "an older copy was restored") == {"0": 1}
    with pytest.raises(SluiceError, match="Topic sales has lost no offsets"):
        skip(lakehouse.lake, log, topic, "again")
    assert lakehouse.run() == {}
    lakehouse.publish("sales", sale(3))
    lakehouse.publish("sales", sale(4))
    lakehouse.publish("sales", sale(5))
    log.segments("sales")[1].path.unlink()
    with pytest.raises(LogGap, match="offsets 4 to 4 are missing"):
        lakehouse.run()
    assert skip(lakehouse.lake, log, topic, "lost again") == {"0": 1}
    lakehouse.run()
    assert lakehouse.rows("bronze.sales", "offset") == [(1,), (2,), (3,), (5,)]
    assert len(lakehouse.rows("silver.sales", "id")) == 4
    assert second.exists(), "nothing is deleted by going on"
    shutil.rmtree(log.root / "sales" / "0")
    assert "the folder of partition 0 is missing" in held(lakehouse)
