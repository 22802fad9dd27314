"""Quarantine and lateness: quarantined records are listed, and released by one command."""

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice import bronze, silver
from sluice.errors import UsageError
from sluice.model import small_frames
from sluice.operate import quarantine
from sluice.operate.status import status
from tests.damage import computed_wrong
from tests.kit import Lakehouse, at, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

readings_topic = bronze.topic("readings")
readings = silver.events(
    "readings",
    source=readings_topic,
    schema="id string, read_at timestamp, sent_at timestamp, received_at timestamp, value int",
    keys=["id"],
    event_time="read_at",
    sent_time="sent_at",
    received_time="received_at",
    hold_later_than="2 hours",
    idle_after="1 hour",
)


def reading(name: str, hour: float, received: float, sent: float | None = None, value: int = 1) -> dict[str, object]:
    return {
        "id": name,
        "read_at": text(hour),
        "sent_at": None if sent is None else text(sent),
        "received_at": text(received),
        "value": value,
    }


def test_a_device_whose_clock_is_off_is_corrected(lakehouse: Lakehouse) -> None:
    # The device is an hour fast: it says 2:00 and sends at 2:30, and that is received at 1:30.
    lakehouse.declare(readings).publish("readings", reading("a", 2.0, received=1.5, sent=2.5), hours=1.5).run()
    assert lakehouse.rows("silver.readings", "id", "read_at", "_lateness_seconds") == [("a", 1.0, 1800.0)]


def test_the_same_reading_sent_again_is_no_conflict(lakehouse: Lakehouse) -> None:
    first, again = reading("a", 1.0, received=1.0, sent=1.0), reading("a", 1.0, received=1.2, sent=1.2)
    other = reading("a", 1.0, received=1.2, sent=1.2, value=2)
    lakehouse.declare(readings).publish("readings", first, again, other, key="k", hours=2).run()
    found = lakehouse.audit()["silver.readings"]
    assert (found.accepted, found.duplicate, found.conflicts) == (1, 2, 1)


@pytest.fixture(scope="module")
def set_aside(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A reading in time, one that is late, and a record that is none."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("set-aside")).declare(readings)
    late, bound = reading("late", 1.0, received=3.1), reading("in time", 1.0, received=3.0)
    lakehouse.publish("readings", late, bound, b"{", hours=4, key="k").run()
    return lakehouse


def test_a_late_record_waits_is_released_and_a_rebuild_remembers(set_aside: Lakehouse, tmp_path: Path) -> None:
    lakehouse = set_aside.copied_to(tmp_path)
    assert lakehouse.rows("silver.readings", "id") == [("in time",)]
    quarantined = quarantine.quarantined_by_rule(lakehouse.lake, lakehouse.catalogue)
    assert [(each.fate, each.reason, each.records, each.can_be_released) for each in quarantined] == [
        ("late", "late", 1, True),
        ("quarantined", "malformed_json", 1, False),
    ]

    records = quarantine.quarantined_records(lakehouse.lake, readings, reason="late")
    assert [each.position for each in records] == ["readings/0/0"] or [each.position for each in records] == [
        "readings/1/0"
    ]
    quarantine.release(lakehouse.log, readings, records, because="it counts")
    lakehouse.run()
    assert lakehouse.rows("silver.readings", "id") == [("in time",), ("late",)]
    assert lakehouse.audit()["silver.readings"].balanced
    assert lakehouse.audit()["silver.readings"].late == 0

    assert lakehouse.run(rebuild=True)["silver.readings"].rows.total == 0
    assert lakehouse.run() == {}


def test_a_late_record_that_is_set_aside_is_not_released_with_the_late_ones(
    set_aside: Lakehouse, tmp_path: Path
) -> None:
    lakehouse = set_aside.copied_to(tmp_path)
    (late,) = quarantine.quarantined_records(lakehouse.lake, readings, reason="late")
    quarantine.add(lakehouse.lake, lakehouse.log, readings, [late.position], because="a test")
    lakehouse.run()
    quarantined = quarantine.quarantined_by_rule(lakehouse.lake, lakehouse.catalogue)
    assert [(each.fate, each.reason, each.records, each.can_be_released) for each in quarantined] == [
        ("quarantined", "late,by_command", 1, True),
        ("quarantined", "malformed_json", 1, False),
    ]
    assert quarantine.quarantined_records(lakehouse.lake, readings, reason="late") == []
    assert lakehouse.changed_by_rebuild() == {}

    # To release it, it is named.
    records = quarantine.quarantined_records(lakehouse.lake, readings, positions=[late.position])
    quarantine.release(lakehouse.log, readings, records, because="it was none")
    lakehouse.run()
    assert lakehouse.rows("silver.readings", "id") == [("in time",), ("late",)]


def test_a_released_record_that_came_first_takes_the_place_of_the_winner(lakehouse: Lakehouse) -> None:
    lakehouse.declare(readings).publish("readings", reading("a", 1.0, received=9.0, value=1), hours=9)
    lakehouse.publish("readings", reading("a", 8.5, received=9.0, value=2), hours=10).run()
    assert lakehouse.rows("silver.readings", "id", "value") == [("a", 2)]
    quarantined = quarantine.quarantined_records(lakehouse.lake, readings)
    quarantine.release(lakehouse.log, readings, quarantined, because="it counts")
    lakehouse.run()
    assert lakehouse.rows("silver.readings", "id", "value") == [("a", 1)]
    assert [fate[:2] for fate in lakehouse.fates()] == [("duplicate", "other_payload")]


@pytest.fixture(scope="module")
def of_one(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse of one reading, after its run."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("of-one")).declare(readings)
    lakehouse.publish("readings", reading("a", 1.0, received=1.0), hours=1, key="k").run()
    return lakehouse


@pytest.fixture
def accepted(of_one: Lakehouse, tmp_path: Path) -> tuple[Lakehouse, int]:
    """The same, and the partition of its record, which is the first there."""
    lakehouse = of_one.copied_to(tmp_path)
    ((partition, offset),) = lakehouse.rows("silver.readings", "_partition", "_offset")
    assert offset == 0
    return lakehouse, partition


def test_the_last_command_wins_though_the_clock_of_who_gave_the_one_before_was_ahead(
    accepted: tuple[Lakehouse, int],
) -> None:
    lakehouse, partition = accepted
    position = f"readings/{partition}/0"
    landed_ms = quarantine.millis(at(1))
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    place = ("readings", partition, 0, landed_ms)
    quarantine.say(lakehouse.log, readings, [place], "by a fast clock", "hold", now=tomorrow)
    lakehouse.run()
    assert lakehouse.rows("silver.readings", "id") == []
    held = quarantine.quarantined_records(lakehouse.lake, readings)
    assert [record.position for record in held] == [position]
    assert quarantine.release(lakehouse.log, readings, held, "it is right") == 1
    lakehouse.run()
    assert lakehouse.rows("silver.readings", "id") == [("a",)]
    assert lakehouse.changed_by_rebuild() == {}


def test_a_command_is_not_about_the_record_of_a_topic_that_was_made_again(accepted: tuple[Lakehouse, int]) -> None:
    lakehouse, partition = accepted
    position = f"readings/{partition}/0"
    quarantine.add(lakehouse.lake, lakehouse.log, readings, [position], "a test")
    shutil.rmtree(lakehouse.folder / "log" / "readings")
    shutil.rmtree(lakehouse.folder / "lake")
    # A millisecond and nearly another one.
    lakehouse.publish("readings", reading("good", 2.0, received=2.0), b"{", hours=2 + 1.9 / 3_600_000, key="k").run()
    assert lakehouse.rows("silver.readings", "id") == [("good",)]

    # A command about the new one is another.
    quarantine.add(lakehouse.lake, lakehouse.log, readings, [position], "it is bad, too")
    lakehouse.run()
    assert lakehouse.rows("silver.readings", "id") == []


def test_a_command_of_an_older_release_has_no_timestamp_and_counts(accepted: tuple[Lakehouse, int]) -> None:
    lakehouse, partition = accepted
    said = {"topic": "readings", "partition": partition, "offset": 0, "because": "a test", "do": "hold"}
    lakehouse.publish(quarantine.commands_topic, {"dataset": "silver.readings"} | said, key="silver.readings").run()
    assert lakehouse.rows("silver.readings", "id") == []


def test_what_cannot_be_used_cannot_be_released(set_aside: Lakehouse) -> None:
    for reason in ("malformed_json", None):
        quarantined = quarantine.quarantined_records(set_aside.lake, readings, reason=reason)
        with pytest.raises(UsageError, match=r"for malformed_json cannot be used as they are\. Append them corrected"):
            quarantine.release(set_aside.log, readings, quarantined, because="?")
    assert not set_aside.log.exists(quarantine.commands_topic)


def test_a_released_reading_from_the_future_does_not_move_the_watermark(lakehouse: Lakehouse) -> None:
    lakehouse.declare(readings).publish("readings", reading("a", 1.0, received=1.0), hours=2)
    lakehouse.publish("readings", reading("b", 9000.0, received=9000.0), hours=2.5).run()
    quarantined = quarantine.quarantined_records(lakehouse.lake, readings)
    assert [each.reason for each in quarantined] == ["read_at_in_the_future"]
    quarantine.release(lakehouse.log, readings, quarantined, because="a test of the year")
    lakehouse.run()
    assert len(lakehouse.rows("silver.readings", "id")) == 2
    watermark = {each.dataset: each.watermark for each in status(lakehouse.lake, lakehouse.log, lakehouse.catalogue)}
    assert watermark["silver.readings"] is not None
    assert watermark["silver.readings"] <= at(2.5)


def partition_of(lakehouse: Lakehouse, name: str) -> object:
    return next(row[0] for row in lakehouse.rows("silver.readings", "_partition", "id") if row[1] == name)


def test_the_watermark_is_the_least_of_the_partitions_that_are_not_idle(lakehouse: Lakehouse) -> None:
    keys = [f"key {number}" for number in range(16)]
    lakehouse.declare(readings)
    for key in keys:
        lakehouse.publish("readings", reading(f"slow {key}", 1.0, received=1.0), key=key, hours=5.0)
    lakehouse.publish("readings", reading("fast", 4.0, received=5.0), key=keys[0], hours=5.5).run()
    slow = {partition_of(lakehouse, f"slow {key}") for key in keys}
    assert slow == {0, 1}, "the keys must reach both partitions"

    def watermark() -> object:
        states = status(lakehouse.lake, lakehouse.log, lakehouse.catalogue)
        return next(each.watermark for each in states if each.dataset == "silver.readings")

    assert watermark() == at(1.0)
    lakehouse.publish("readings", reading("faster", 6.0, received=6.5), key=keys[0], hours=6.6).run()
    # The other partition has been silent for more than an hour.
    assert watermark() == at(6.0)


named_alike = silver.events(
    "named_alike",
    source=bronze.topic("named_alike"),
    schema="fate string, dataset string, topic int, partition string, offset string, reason string, detail string, "
    "event_time timestamp, log_time string, key string, partition_ string",
    keys=["fate", "dataset"],
    event_time="event_time",
)


@pytest.mark.parametrize("rows_max", [-1, 20_000], ids=["by Spark", "by the driver"])
def test_columns_of_a_record_may_be_called_as_those_of_its_fate(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(small_frames, "rows_max", rows_max)
    record = {"fate": "a", "dataset": "x", "topic": 7, "reason": "none", "event_time": text(1), "log_time": "never"}
    lakehouse.declare(named_alike)
    rejected = []
    for some in ([record], [record, record | {"reason": "another"}, record | {"fate": None}]):
        done = lakehouse.publish("named_alike", *some, key="k", hours=2).run()
        rejected.append(done["silver.named_alike"].rejected)
    assert rejected == [0, 3]
    assert lakehouse.rows("silver.named_alike", "fate", "dataset", "topic", "reason") == [("a", "x", 7, "none")]
    assert [fate[:2] for fate in lakehouse.fates()] == [
        ("duplicate", "other_payload"),
        ("duplicate", "same_payload"),
        ("quarantined", "null_fate"),
    ]
    assert lakehouse.changed_by_rebuild() == {}


@pytest.fixture(scope="module")
def losing(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A row is lost of which there is a duplicate, and another one comes."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("losing")).declare(named_alike)
    record = {"fate": "a", "dataset": "x", "event_time": text(1)}
    for topic in (1, 2):
        lakehouse.publish("named_alike", record | {"topic": topic}, key="k", hours=topic).run()
    computed_wrong(lakehouse.lake, "silver.named_alike", "DELETE WHERE fate = 'a'")
    return lakehouse.publish("named_alike", record | {"topic": 3}, key="k", hours=3)


@pytest.mark.parametrize("rows_max", [-1, 20_000], ids=["by Spark", "by the driver"])
def test_a_duplicate_of_a_row_that_is_lost_never_becomes_a_row(
    losing: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    lakehouse = losing.copied_to(tmp_path)
    monkeypatch.setattr(small_frames, "rows_max", rows_max)
    said = {event.name: event for event in lakehouse.runner().until_caught_up()}["silver.named_alike"].blocked
    assert re.search(r"lost the row of which the record at named_alike/\d/1 is a duplicate. .*--rebuild", said or "")
    assert lakehouse.rows("silver.named_alike", "topic") == []
    lakehouse.run(rebuild=True)
    assert lakehouse.rows("silver.named_alike", "topic") == [(1,)]
    assert lakehouse.audit()["silver.named_alike"].balanced
