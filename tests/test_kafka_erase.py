"""Erasing on Kafka: tombstones have Kafka remove the records, and until it has, nothing shows what they said."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from infra.servers import Kafka, Running, running
from sluice import silver
from sluice.engine.erase import held, still_held
from sluice.errors import UsageError
from sluice.log import KafkaLog, KafkaSecurity, Record, StoredRecord, erasures, kafka_erase
from sluice.model.erasure import Erasure, erased_header, erasures_topic, removals_of
from sluice.operate import erase
from sluice.operate.audit import erased_by_none, erasures_left
from sluice.operate.erase import Subject
from sluice.operate.search import Hit, search
from tests.kit import Lakehouse, at
from tests.shop import sales
from tests.test_erase import counted, files_with, found_and_stated, sale

subject = "subject-4711"
# Not compacted yet; then as soon as there is another segment, which the next record after this time begins.
later = "min.compaction.lag.ms"
quickly = {
    "cleanup.policy": "compact",
    later: "300000000000",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
}


@dataclass(frozen=True)
class Cleaning(Kafka):
    """A broker that looks for what to compact all the time."""

    def properties(self) -> str:
        return f"{super().properties()}log.cleaner.backoff.ms=50\n"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Kafka]]:
    with running(Cleaning(tmp_path_factory.mktemp("kafka") / "kafka")) as started:
        yield started


@pytest.fixture
def log(kafka: Running[Kafka]) -> Iterator[KafkaLog]:
    found = KafkaLog(kafka.server.address, KafkaSecurity(), partitions=2)
    yield found
    for topic, deleted in found.admin.delete_topics(["sales", *reserved(found)]).items():
        if found.exists(topic):
            deleted.result(20)
    while {"sales", *reserved(found)} & {*found.topics()}:
        time.sleep(0.05)


def reserved(log: KafkaLog) -> list[str]:
    return [name for name in log.topics() if name.startswith("sluice_")]


@pytest.fixture
def on_kafka(lakehouse: Lakehouse, log: KafkaLog) -> Lakehouse:
    """A lake whose log is the broker's, with two records of a subject, of which the second is a duplicate."""
    lakehouse.log = log
    make(log, "sales", **quickly)
    lakehouse.declare(sales, counted)
    append(log, ("k", sale(subject, pieces=5)), ("b", sale("b")), ("k", sale(subject, pieces=7)), ("c", sale("c")))
    return lakehouse


def make(log: KafkaLog, topic: str, **configuration: str) -> None:
    log.admin.create_topics([NewTopic(topic, 1, 1, config=configuration)])[topic].result(20)
    log.wait_until_known(topic)


def append(log: KafkaLog, *records: tuple[str | None, dict[str, Any] | None]) -> None:
    log.append("sales", [Record(value and json.dumps(value).encode(), key, at(1)) for key, value in records])


def kept(log: KafkaLog) -> dict[int, tuple[Any, Any]]:
    """What Kafka has, by offset."""
    return {each.offset() or 0: (each.key(), each.value()) for each in kafka_erase.everything(log, "sales")}


def compacted(log: KafkaLog) -> None:
    """Lets Kafka compact, and returns when it has removed all that erasures name; other records begin new segments."""
    resource = ConfigResource(
        ResourceType.TOPIC,
        "sales",
        incremental_configs=[ConfigEntry(later, "0", incremental_operation=AlterConfigOpType.SET)],
    )
    log.admin.incremental_alter_configs([resource])[resource].result(20)
    deadline = time.monotonic() + 60
    while any(True for _ in log.held("sales", removals_of(erasures.erasures_in(log), "sales"))):
        assert time.monotonic() < deadline, "Kafka never compacted"
        time.sleep(0.15)
        log.append("sales", [Record(json.dumps(sale("z")).encode(), "z")])


def erased(lakehouse: Lakehouse, wanted: Subject) -> dict[int, list[int]]:
    offsets = found_and_stated(lakehouse, wanted)
    lakehouse.run()
    return offsets


def test_tombstones_have_kafka_remove_the_records_and_the_erasure_ends_then(
    on_kafka: Lakehouse, log: KafkaLog
) -> None:
    on_kafka.run()
    append(log, ("k", sale(f"{subject}-late")))
    assert erased(on_kafka, Subject("sales", "k")) == {0: [0, 2, 4]}

    # One tombstone, which is no record of bronze; the record that had not landed came without what it said.
    assert kept(log)[5] == (b"k", None)
    assert on_kafka.rows("bronze.sales", "offset", "key", "value")[3:] == [(3, b"c", json.dumps(sale("c")).encode()), (4, None, None)]
    assert on_kafka.rows("gold.counted") == [("tea", 2, "c")]
    assert files_with(on_kafka.folder, subject) == []
    audit = on_kafka.audit()["silver.sales"]
    assert (audit.balanced, audit.accepted, audit.erased) == (True, 2, 3)
    assert all(each.balanced for each in erased_by_none(on_kafka.lake, log, on_kafka.audits()))

    # Not at its end, as Kafka has the records.
    said = f"sales on {log} still has 3 of the erased records, until it is compacted"
    assert [each.reason for each in erasures_left(on_kafka.lake, log, on_kafka.catalogue)] == [said]
    assert {hit.place for hit in search(on_kafka.lake, log, subject, ["sales"])} == {"offset 0", "offset 2", "offset 4"}
    assert on_kafka.run() == {}
    assert len(kept(log)) == 6, "no second tombstone"
    assert erase.found(on_kafka.lake, log, on_kafka.catalogue, Subject("sales", "k")) == {}

    compacted(log)
    on_kafka.run()
    assert erasures_left(on_kafka.lake, log, on_kafka.catalogue) == []
    assert search(on_kafka.lake, log, subject, ["sales", erasures_topic]) == []
    versions = on_kafka.versions()
    assert (on_kafka.run(), on_kafka.versions()) == ({}, versions)
