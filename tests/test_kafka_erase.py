"""Erasing on Kafka: tombstones have Kafka remove the records, and until it has, nothing shows what they said."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from infra.servers import Kafka, Running, running
from sluice import Project, silver
from sluice.engine.erase import still_held
from sluice.errors import UsageError
from sluice.ingest import files
from sluice.log import KafkaLog, KafkaSecurity, Record, erasures, kafka_erase
from sluice.model.datasets import Dataset, Topic
from sluice.model.erasure import Erasure, erased_header, erasures_topic, removals_of
from sluice.operate import erase
from sluice.operate.audit import erased_by_none, erasures_left
from sluice.operate.erase import Subject
from sluice.operate.search import Hit, search
from sluice.storage.delta import Lake
from tests import test_erase
from tests.killed_import import killed_import
from tests.kit import Lakehouse, at
from tests.shop import sales
from tests.test_erase import Crash, counted, files_with, found_and_stated, run_killed, sale
from tests.waiting import eventually

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
    """A broker that looks for what to compact all the time, and knows of rights."""

    def properties(self) -> str:
        rights = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        return (
            f"{super().properties()}log.cleaner.backoff.ms=50\n"
            f"authorizer.class.name={rights}\nallow.everyone.if.no.acl.found=true\n"
        )


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Cleaning]]:
    with running(Cleaning(tmp_path_factory.mktemp("kafka") / "kafka")) as started:
        yield started


@pytest.fixture
def log(kafka: Running[Cleaning]) -> Iterator[KafkaLog]:
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
    for key, value in records:
        log.append("sales", [Record(json.dumps(value).encode() if value else None, key, at(1))])


def kept(log: KafkaLog) -> dict[int, tuple[Any, Any]]:
    """What Kafka has, by offset."""
    return {each.offset() or 0: (each.key(), each.value()) for each in kafka_erase.everything(log, "sales")}


def configure(log: KafkaLog, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    log.admin.incremental_alter_configs([resource])[resource].result(20)


def compacted(log: KafkaLog) -> None:
    """Lets Kafka compact, and returns when it has removed all that erasures name; other records begin new segments."""
    configure(log, "sales", later, "0")

    def is_compacted() -> bool:
        if not any(True for _ in log.held("sales", removals_of(erasures.erasures_in(log), "sales"))):
            return True
        log.append("sales", [Record(json.dumps(sale("z")).encode(), "z")])
        return False

    eventually(is_compacted, "Kafka to compact", 0.15)


def erased(lakehouse: Lakehouse, wanted: Subject) -> dict[int, list[int]]:
    offsets = found_and_stated(lakehouse, wanted)
    lakehouse.run()
    return offsets


def again(lakehouse: Lakehouse, folder: str, *nodes: Dataset | Topic, offsets_at_once: int = 1000) -> Lakehouse:
    """A new lake from the same log."""
    found = Lakehouse(lakehouse.spark, lakehouse.folder / folder).declare(*nodes)
    found.log = lakehouse.log
    runner = found.runner(batch_records_max=offsets_at_once)
    runner.until_caught_up()
    assert runner.blocks.errors == {}
    return found


def tables(lakehouse: Lakehouse) -> dict[str, list[Any]]:
    found = {name: lakehouse.rows(name) for name in ("silver.sales", "silver.named", "gold.counted")}
    # What compaction leaves of the keys that go on differs in any case.
    return found | {"silver.named": [row for row in found["silver.named"] if "z" not in row]}


topic_of_sales = cast(Topic, sales.inputs["arrivals_sales"].source)
columns = ("offset", "key", "value", "headers")
named = silver.history(
    "named",
    source=topic_of_sales,
    schema="name string, id string, is_gone boolean, at timestamp",
    from_record={"name": "key", "is_gone": "value IS NULL", "at": "timestamp"},
    keys=["name"],
    sequence_by="at",
    apply_as_deletes="is_gone",
    future_tolerance="1000 days",
)


def test_kafka_removes_the_records_later_and_the_erasure_ends_then(on_kafka: Lakehouse, log: KafkaLog) -> None:
    on_kafka.declare(sales, named, counted)
    (on_kafka.folder / "pipelines").mkdir()
    declared = "from tests.shop import sales\nfrom tests.test_erase import counted\n"
    (on_kafka.folder / "pipelines" / "__init__.py").write_text(declared + "from tests.test_kafka_erase import named\n")
    settings = {"log": str(log), "lake": on_kafka.lake.root}
    project = Project(on_kafka.folder, settings, spark=on_kafka.spark)
    project.run()
    append(log, ("k", sale(f"{subject}-late")))

    done = project.erase("sales", key="k", reason="request 7")
    still = f"sales on {log} still has 3 of the erased records, until it is compacted"
    assert (done.records, done.in_the_way) == ({0: 3}, (still,))
    # One tombstone, which is no record of bronze; the record that had not landed came without what it said.
    assert kept(log)[5] == (b"k", None)
    assert on_kafka.rows("bronze.sales", "offset", "key")[2:] == [(2, None), (3, b"c"), (4, None)]
    assert files_with(on_kafka.folder, subject) == []
    # It deletes no key of a table: what it removes was never there.
    assert on_kafka.rows("silver.named", "name", "is_current") == [("b", True), ("c", True)]
    assert on_kafka.rows("gold.counted") == [("tea", 2, "c")]
    audit = project.audit()
    assert [(each.balanced, each.accepted, each.erased) for each in audit.fates] == [(True, 2, 3)] * 2
    assert [each for each in audit.laws if not each.balanced] == []
    assert [each.reason for each in audit.stopped] == [still]
    assert {hit.place for hit in project.search_files(subject)} == {"offset 0", "offset 2", "offset 4"}

    done = project.erase("sales", key="k", reason="request 7")
    assert (done.records, done.in_the_way) == ({}, (still,))
    assert len(kept(log)) == 6, "no second tombstone"
    early = again(on_kafka, "early", topic_of_sales, offsets_at_once=2)
    assert early.rows("bronze.sales", *columns) == on_kafka.rows("bronze.sales", *columns)
    assert files_with(early.folder, subject) == []

    compacted(log)
    done = project.erase("sales", key="k", reason="request 7")
    assert (done.records, done.in_the_way) == ({}, ())
    assert project.search_files(subject) == []
    assert project.search_files("request 7")
    ledger = on_kafka.lake.last_commit("bronze.sales").entry  # type: ignore[union-attr]
    assert (ledger.erased, ledger.forgotten, ledger.gone) == (1, 1, 1)
    versions = on_kafka.versions()
    assert (on_kafka.run(), on_kafka.versions()) == ({}, versions)

    # Compaction leaves gaps of offsets, some of which are all of a batch.
    by_twos = again(on_kafka, "by twos", topic_of_sales, offsets_at_once=2)
    late = again(on_kafka, "late", sales, named, counted)
    assert late.rows("bronze.sales", "offset")[:2] == [(1,), (3,)]
    assert late.rows("bronze.sales", *columns) == by_twos.rows("bronze.sales", *columns)
    assert tables(late) == tables(on_kafka)
    for lakehouse in (on_kafka, late):
        assert all(each.balanced for each in lakehouse.audits())
        assert all(each.balanced for each in lakehouse.laws())
        assert all(each.balanced for each in erased_by_none(lakehouse.lake, log, lakehouse.audits()))
        assert erasures_left(lakehouse.lake, log, lakehouse.catalogue) == []
    assert late.run() == {}


def test_killed_at_every_step_it_goes_on_where_it_was(on_kafka: Lakehouse, log: KafkaLog) -> None:
    on_kafka.run()
    condition = f"record ->> 'id' IN ('{subject}', 'b')"
    found_and_stated(on_kafka, Subject("sales", where=condition))

    def only_the_first(self: KafkaLog, topic: str, messages: list[Any]) -> None:
        original(self, topic, messages[:1])
        raise Crash

    original = KafkaLog.send
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaLog, "send", only_the_first)
        with pytest.raises(Crash):
            on_kafka.run()
    assert [value for _, value in kept(log).values()].count(None) == 1

    steps = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_erase, "of_the_erasure", [(KafkaLog, "send"), (Lake, "merge_rows"), (Lake, "replace_rows")])
        patch.setattr(test_erase, "of_forgetting", [(Lake, "forget_history"), (Lake, "move_cursor")])
        while (struck := run_killed(on_kafka, 1 + 2 * steps)) is not None:
            steps += struck
            assert steps < 20
    assert steps >= 2
    assert sorted(key for key, value in kept(log).values() if value is None) == [b"b", b"k"], "one for each key"
    assert files_with(on_kafka.folder, subject) == []
    assert on_kafka.rows("gold.counted") == [("tea", 1, "c")]
    assert all(each.balanced for each in on_kafka.audits())
    assert list(still_held(on_kafka.lake, log, on_kafka.catalogue.topics)) == ["bronze.sales"]
    compacted(log)
    on_kafka.run()
    assert still_held(on_kafka.lake, log, on_kafka.catalogue.topics) == {}


def test_a_topic_that_was_made_again_keeps_its_records(on_kafka: Lakehouse, log: KafkaLog) -> None:
    on_kafka.run()
    erased(on_kafka, Subject("sales", "k"))
    log.admin.delete_topics(["sales"])["sales"].result(20)
    while log.exists("sales"):
        time.sleep(0.05)
    assert still_held(on_kafka.lake, log, on_kafka.catalogue.topics) == {}
    make(log, "sales", **quickly)
    append(log, ("other", sale("other")), ("k", sale("k")))
    with pytest.raises(UsageError, match="deleted and made again"):
        erase.found(on_kafka.lake, log, on_kafka.catalogue, Subject("sales", "k"))
    found = again(on_kafka, "of the new one", sales, counted)
    assert found.rows("gold.counted") == [("tea", 2, "other")]
    assert len(kept(log)) == 2, "no tombstone"
    assert erasures_left(found.lake, log, found.catalogue) == []
    # Should the erasures themselves be gone, the number of the next would count as done.
    log.admin.delete_topics([erasures_topic])[erasures_topic].result(20)
    while log.exists(erasures_topic):
        time.sleep(0.05)
    with pytest.raises(UsageError, match="lacks erasures that"):
        erase.found(found.lake, log, found.catalogue, Subject("sales", "other"))


# Without Spark.


def removals(log: KafkaLog, *offsets: int, number: int = 0) -> Any:
    return removals_of({number: Erasure.of("sales", {0: offsets}, (), "asked", log.topic_id("sales"))}, "sales")


@pytest.fixture
def topic(log: KafkaLog) -> KafkaLog:
    """The log with a compacted topic."""
    make(log, "sales", **quickly)
    return log


def test_a_key_with_a_newer_record_gets_no_tombstone(topic: KafkaLog) -> None:
    append(topic, ("a", sale("1")), ("b", sale("2")), ("a", sale("3")), ("c", sale("4")), ("b", None))
    assert topic.erase("sales", removals(topic, 0, 1, 4, 99)) == 1
    assert kept(topic)[5] == (b"b", None)
    assert topic.erase("sales", removals(topic, 0, 1, 4, 99)) == 0
    assert list(topic.held("sales", removals(topic, 0, 1, 4, 99))) == [(0, 0), (0, 1), (0, 4)]
    # A producer that goes on with the key.
    append(topic, ("b", sale("5")))
    assert topic.erase("sales", removals(topic, 1)) == 0


def test_a_tombstone_has_the_bytes_of_the_key_and_its_partition(log: KafkaLog) -> None:
    log.admin.create_topics([NewTopic("sales", 3, 1, config=quickly)])["sales"].result(20)
    log.wait_until_known("sales")
    log.send("sales", [{"partition": each, "key": b"\xff\x00", "value": b"1"} for each in (0, 1, 2)])
    assert log.erase("sales", removals(log, 0) | {2: removals(log, 0)[0]}) == 2
    assert [(each.partition(), each.key()) for each in kafka_erase.everything(log, "sales") if each.offset()] == [
        (0, b"\xff\x00"),
        (2, b"\xff\x00"),
    ]


def test_what_is_read_is_what_the_erasures_leave(topic: KafkaLog) -> None:
    headers = {"x": "1"}, {erased_header: "0"}, {erased_header: "0/f00d", "x": "1"}
    append(topic, ("a", sale("1")), ("b", sale("2")))
    stated = Erasure.of("sales", {0: [0]}, (), "asked", topic.topic_id("sales")).model_copy(update={"mark": "f00d"})
    erasures.add(topic, stated)
    topic.erase("sales", removals_of({0: stated}, "sales"))
    # A producer that has set the header hides no record, as the mark was not known before.
    topic.append("sales", [Record(None, "c", headers=each) for each in headers])
    topic.send("sales", [{"key": "c", "value": None, "headers": [(erased_header, "0"), (erased_header, "0")]}])
    found = list(topic.read("sales", 0))
    assert [(each.offset, each.key, dict(each.headers)) for each in found] == [
        (0, None, {erased_header: "0"}),
        (1, "b", {}),
        *[(3 + at, "c", each) for at, each in enumerate(headers)],
        (6, "c", {erased_header: "0", f"{erased_header}#2": "0"}),
    ]
    assert found[0].value is None
    assert sorted(each.offset for each in topic.tail("sales")) == [0, 1, 3, 4, 5, 6]


def test_an_erasure_of_many_scattered_records_fits_into_kafka(topic: KafkaLog) -> None:
    append(topic, ("a", sale("1")))
    offsets = {0: [*range(0, 150_000, 2)], 1: [7, 8, 9]}
    erase.state(topic, Subject("sales", "a"), offsets, "asked")
    stated = erasures.erasures_in(topic)
    assert [sum(map(len, each.ranges.values())) for each in stated.values()] == [20_000] * 3 + [15_001]
    found = removals_of(stated, "sales")
    assert {partition: [*each] for partition, each in found.items()} == offsets
    assert {each.reason for each in stated.values()} == {"asked"}


def test_an_import_does_not_bring_back_what_kafka_has_removed(
    topic: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sales.jsonl"
    path.write_text("".join(f"{json.dumps(sale(str(number)))}\n" for number in range(40)))
    monkeypatch.setattr(files, "batch_rows", 10)
    options = files.Options(key="id")
    with killed_import(after_row=25):
        files.import_file(topic, "sales", path, options, tmp_path)
    erase.state(topic, Subject("sales", "25"), {0: [25]}, "asked")
    topic.erase("sales", removals(topic, 25))
    compacted(topic)
    with pytest.raises(UsageError, match="came in up to row 20"):
        files.import_file(topic, "sales", path, options, tmp_path)
    # Erased before that, it is no row of those that may have come in.
    assert not erasures.name_any(topic, "sales", 0, range(20))
    assert not erasures.name_any(topic, "sales", 1, range(99))
    assert not erasures.name_any(topic, "other", 0, range(99))


def test_what_kafka_would_never_remove_is_refused(log: KafkaLog) -> None:
    with pytest.raises(UsageError, match="has no topic sales"):
        log.require_erasable("sales", {}, ())
    # The records are old, so by its own retention the broker would remove them whenever it looks.
    make(log, "sales", **{"cleanup.policy": "delete", "retention.ms": "-1"})
    append(log, (None, sale("1")), ("a", sale("2")))
    for offsets, fields, said in [
        ({0: [1]}, (), "cleanup.policy=delete"),
        ({0: [1]}, ("name",), "changed in place"),
    ]:
        with pytest.raises(UsageError, match=said):
            log.require_erasable("sales", offsets, fields)
    configure(log, "sales", "cleanup.policy", "compact,delete")
    log.require_erasable("sales", {0: [1]}, ())
    with pytest.raises(UsageError, match=r"1 of these records have no key.*: 0/0 "):
        log.require_erasable("sales", {0: [0, 1]}, ())
    # What Kafka has no more is in bronze alone.
    place = TopicPartition("sales", 0, 1)
    log.admin.delete_records([place])[place].result(20)
    configure(log, "sales", "cleanup.policy", "delete")
    log.require_erasable("sales", {0: [0], 7: [0]}, ())
    assert log.erase("sales", removals(log, 0)) == 0
    assert list(log.held("sales", removals(log, 0))) == []


def test_without_the_right_to_append_a_tombstone_nothing_is_stated(topic: KafkaLog) -> None:
    append(topic, ("a", sale("1")))
    topic.require_erasable("sales", {0: [0]}, ())
    place: Any = (ResourceType.TOPIC, "sales", ResourcePatternType.LITERAL)
    rights = [
        AclBinding(*place, "User:ANONYMOUS", "*", each, AclPermissionType.ALLOW)  # type: ignore[call-arg]
        for each in (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.DELETE)
    ]
    for created in topic.admin.create_acls(rights).values():
        created.result(20)
    try:
        with pytest.raises(UsageError, match="no right to write to sales"):
            topic.require_erasable("sales", {0: [0]}, ())
        topic.require_erasable("sales", {0: [7]}, ())
    finally:
        every = AclBindingFilter(*place, None, None, AclOperation.ANY, AclPermissionType.ANY)  # type: ignore[call-arg]
        topic.admin.delete_acls([every])[every].result(20)


def test_topics_of_sluices_own_keep_their_records_for_ever(log: KafkaLog) -> None:
    log.append("sales", [Record(b"1", "k")])
    for topic in (erasures_topic, "sluice_releases"):
        log.append(topic, [Record(b"{}", "k")])
        assert kafka_erase.kept_for_ever.items() <= log.configuration(topic).items()
    assert log.configuration("sales")["retention.ms"] != "-1"
    configure(log, erasures_topic, "cleanup.policy", "compact")
    with pytest.raises(UsageError, match="Set for this topic cleanup"):
        log.require_erasable("sales", {}, ())


def test_the_search_reads_all_that_kafka_has(lakehouse: Lakehouse, topic: KafkaLog) -> None:
    producer = Producer({**topic.settings(), "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("sales", b"aborted-4711", key="k")
    producer.flush()
    producer.abort_transaction()
    topic.send("sales", [{"key": b"k", "value": b"", "headers": [("h", b"first-4711"), ("h", b"second")]}])
    for value, offset in (("aborted-4711", 0), ("first-4711", 2)):
        assert search(lakehouse.lake, topic, value, ["sales"]) == [Hit("sales/0", f"offset {offset}")]
        assert search(lakehouse.lake, topic, value) == [], "of no topic"
