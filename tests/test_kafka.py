"""The log on Kafka: what the embedded log promises, on a real broker, with the gaps and losses that only Kafka has."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from infra.servers import Running, running
from sluice import bronze, scaffold
from sluice.engine.catalogue import load
from sluice.engine.land import skip
from sluice.engine.runner import Event
from sluice.errors import LogError, LogGap, LogRecreated, LogRefused, LogUnreachable, SluiceError
from sluice.ingest import files
from sluice.log import KafkaLog, KafkaSecurity, Record, StoredRecord
from sluice.log.kafka_batch import next_batch
from sluice.model.ledger import LandedPartition
from sluice.operate.audit import audit
from sluice.operate.query import query
from sluice.operate.status import status
from sluice.runtime.settings import read_settings
from sluice.storage.delta import Lake
from tests.killed_import import killed_import
from tests.kit import Lakehouse, text
from tests.servers.kafka import ThreeDoors, Unreliable, proxied
from tests.shop import sales
from tests.waiting import eventually, patience_seconds

moment = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[ThreeDoors]]:
    with running(ThreeDoors(tmp_path_factory.mktemp("kafka") / "kafka")) as started:
        yield started


@pytest.fixture
def log(kafka: Running[ThreeDoors]) -> KafkaLog:
    return KafkaLog(kafka.server.address, KafkaSecurity(), partitions=2)


@pytest.fixture
def on_kafka(lakehouse: Lakehouse, log: KafkaLog) -> Lakehouse:
    """An empty lake whose log is the broker's."""
    lakehouse.log = log
    return lakehouse


def values(log: KafkaLog, topic: str) -> list[bytes | None]:
    return [record.value for partition in log.partitions(topic) for record in log.read(topic, partition)]


def make(log: KafkaLog, topic: str, **config: str) -> None:
    """Makes a topic of one partition with settings of its own."""
    made = log.admin.create_topics([NewTopic(topic, 1, 1, config=config)])
    made[topic].result(20)
    log.wait_until_known(topic)


def test_records_come_back_as_they_went_in(log: KafkaLog) -> None:
    records = [
        Record(b'{"a": 1}', key="k", timestamp=moment, headers={"h": "1"}),
        Record(None, key="k"),
        Record(b"\xff\x00", key="ü"),
        Record(b""),
    ]
    ends = log.append("verbs", records)
    assert sum(ends.values()) == 4
    assert log.offsets("verbs") == {partition: range(ends.get(partition, 0)) for partition in (0, 1)}
    first = next(record for partition in (0, 1) for record in log.read("verbs", partition) if record.headers)
    assert (first.key, first.value, first.timestamp, first.headers) == ("k", b'{"a": 1}', moment, {"h": "1"})
    assert sorted(values(log, "verbs"), key=repr) == sorted([record.value for record in records], key=repr)
    of_key = [record.value for record in log.read("verbs", first.partition) if record.key == "k"]
    assert of_key == [b'{"a": 1}', None], "in the order in which they were appended"
    assert {record.value for record in log.tail("verbs", 3)} < {record.value for record in records}
    assert log.exists("verbs")
    assert not log.exists("nothing")
    with pytest.raises(LogError, match="has no topic nothing"):
        log.partitions("nothing")


def test_a_topic_that_was_just_made_can_be_read(log: KafkaLog) -> None:
    for number in range(10):
        log.create(f"new-{number}")
        assert set(log.offsets(f"new-{number}").values()) == {range(0)}


def test_brokers_that_do_not_answer_are_reported() -> None:
    log = KafkaLog("127.0.0.1:1", KafkaSecurity(), answer_seconds=2)
    for ask in (log.require, lambda: log.append("t", [Record(b"")])):
        with pytest.raises(LogUnreachable, match="Check that the brokers run"):
            ask()


def test_what_lands_is_what_was_committed_and_gaps_are_no_loss(on_kafka: Lakehouse, log: KafkaLog) -> None:
    """Aborted transactions, their marks, and repeated and binary headers."""
    make(log, "transactions")
    producer = Producer({**log.settings(), "transactional.id": "shop"})
    producer.init_transactions()
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        for piece in range(2):
            producer.produce("transactions", f"{number}.{piece}", headers=[("h", b"1"), ("h", b"2"), ("b", b"\xff")])
        # What was not sent when a transaction is aborted never will be.
        producer.flush()
        producer.commit_transaction() if is_kept else producer.abort_transaction()

    on_kafka.declare(bronze.topic("moves", topic="transactions"))
    (landed,) = on_kafka.run().values()
    assert on_kafka.rows("bronze.moves", "offset", "value") == [
        (0, b"0.0"),
        (1, b"0.1"),
        (6, b"2.0"),
        (7, b"2.1"),
    ]
    assert landed.rows.inserted == 9, "offsets: two of each transaction, and the mark of its end"
    headers = query(on_kafka.lake, "SELECT DISTINCT headers FROM bronze.moves").rows
    assert headers == [({"h": "1", "h#2": "2", "b_base64": "/w=="},)]
    assert on_kafka.run() == {}, "nothing new: no commit"
    log.append("transactions", [Record(b"3")])
    on_kafka.run()
    assert on_kafka.rows("bronze.moves", "offset")[-1] == (9,)


def test_a_batch_is_bounded_and_takes_from_all_partitions() -> None:
    available = {0: range(100), 1: range(10, 110), 2: range(0)}
    ranges, landed = next_batch("t", "id", available, {}, records_max=20)
    assert ranges == {0: range(10), 1: range(10, 20)}
    ranges, landed = next_batch("t", "id", available, landed, records_max=1)
    assert ranges == {0: range(10, 11), 1: range(20, 21)}
    ranges, landed = next_batch("t", "id", available, landed, records_max=1000)
    assert ranges == {0: range(11, 100), 1: range(21, 110)}
    assert next_batch("t", "id", available, landed, records_max=1000) == ({}, landed)
    assert {partition: each.next_offset for partition, each in landed.items()} == {0: 100, 1: 110, 2: 0}


def test_a_partition_that_came_later_must_be_seen_from_its_beginning() -> None:
    landed = {0: LandedPartition(next_offset=5, head="id")}
    with pytest.raises(LogGap, match="partition 1: offsets 0 to 6 were removed"):
        next_batch("t", "id", {0: range(5), 1: range(7, 9)}, landed, records_max=10)


def test_records_that_kafka_removed_before_they_landed_are_reported_and_can_be_skipped(
    on_kafka: Lakehouse, log: KafkaLog
) -> None:
    topic = bronze.topic("expired")
    on_kafka.declare(topic)
    make(log, "expired")
    log.append("expired", [Record(str(number).encode()) for number in range(3)])
    on_kafka.run()
    with pytest.raises(SluiceError, match="Topic expired has lost no offsets"):
        skip(on_kafka.lake, log, topic, "nothing")

    log.append("expired", [Record(str(number).encode()) for number in range(3, 8)])
    (state,) = status(on_kafka.lake, log, on_kafka.catalogue)
    assert (state.lag, state.lags, state.held) == (5, {0: 5}, None)
    log.admin.delete_records([TopicPartition("expired", 0, 6)])[TopicPartition("expired", 0)].result(20)
    (state,) = status(on_kafka.lake, log, on_kafka.catalogue)
    assert state.held == "lost: offsets 3-5 of partition 0"
    with pytest.raises(LogGap, match=r"offsets 3 to 5 were removed .* sluice log skip expired"):
        on_kafka.run()
    assert on_kafka.rows("bronze.expired", "offset") == [(0,), (1,), (2,)]

    assert skip(on_kafka.lake, log, topic, "kept too short") == {"0": 3}
    on_kafka.run()
    assert on_kafka.rows("bronze.expired", "offset") == [(0,), (1,), (2,), (6,), (7,)]
    assert "kept too short" in [each.entry.because for each in on_kafka.lake.commits("bronze.expired")]


def test_a_topic_that_was_recreated_is_reported(on_kafka: Lakehouse, log: KafkaLog) -> None:
    on_kafka.declare(bronze.topic("remade"))
    make(log, "remade")
    log.append("remade", [Record(b"1")])
    on_kafka.run()
    log.admin.delete_topics(["remade"])["remade"].result(20)
    while log.exists("remade"):
        time.sleep(0.1)
    make(log, "remade")
    log.append("remade", [Record(b"2"), Record(b"3")])
    with pytest.raises(LogRecreated, match="remade is not the one whose records have landed: it was deleted"):
        on_kafka.run()


def test_a_compacted_topic_lands_what_is_left_and_its_tombstones(on_kafka: Lakehouse, log: KafkaLog) -> None:
    quickly = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    make(log, "compacted", **quickly, **{"delete.retention.ms": "600000"})
    for number in range(20):
        log.append("compacted", [Record(str(number).encode(), key="k"), Record(None, key="gone")])
        time.sleep(0.01)
    time.sleep(0.2)
    # Segments that are written to are not compacted: this begins another.
    log.append("compacted", [Record(b"last", key="other")])

    def compacted() -> list[StoredRecord]:
        found = list(log.read("compacted", 0))
        return found if len(found) <= 20 else []

    found = eventually(compacted, "Kafka to compact", 0.5)
    on_kafka.declare(bronze.topic("compacted"))
    on_kafka.run()
    landed = on_kafka.rows("bronze.compacted", "offset", "key", "value")
    # Kafka may compact on meanwhile.
    left = list(log.read("compacted", 0))
    before, after = ({(each.offset, (each.key or "").encode(), each.value) for each in some} for some in (found, left))
    assert after <= {*landed} <= before
    assert (40, b"other", b"last") in landed
    assert None in [value for _, key, value in landed if key == b"gone"]


def test_both_logs_give_the_same_tables(on_kafka: Lakehouse, log: KafkaLog, tmp_path: Path) -> None:
    on_files = Lakehouse(on_kafka.spark, tmp_path / "files")
    for lakehouse in (on_kafka, on_files):
        lakehouse.declare(sales)
        found = [{"id": str(n % 15), "product": "p", "sold_at": text(0), "pieces": n % 15} for n in range(20)]
        lakehouse.publish("sales", *found, b"no json", b"\xff", None).run()
        assert all(each.balanced for each in lakehouse.audits())
    columns = ("id", "product", "sold_at", "pieces")
    assert on_kafka.rows("silver.sales", *columns) == on_files.rows("silver.sales", *columns)
    counted = [next(iter(each.audit().values())) for each in (on_kafka, on_files)]
    assert counted[0] == counted[1]
    assert (counted[0].accepted, counted[0].duplicate, counted[0].quarantined) == (15, 5, 3)


def test_a_broker_with_tls_and_a_password(kafka: Running[ThreeDoors], lakehouse: Lakehouse) -> None:
    lakehouse.log = kafka.server.log('se"cret')
    lakehouse.declare(bronze.topic("secrets"))
    lakehouse.log.append("secrets", [Record(b"1")])
    lakehouse.run()
    assert lakehouse.rows("bronze.secrets", "value") == [(b"1",)]
    with pytest.raises(LogUnreachable, match="SLUICE_KAFKA"):
        kafka.server.log("wrong").require()


def test_settings_make_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_LOG", "kafka://a:9092,b:9092")
    monkeypatch.setenv("SLUICE_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("SLUICE_KAFKA_SASL_MECHANISM", "SCRAM-SHA-512")
    monkeypatch.setenv("SLUICE_KAFKA_SASL_USERNAME", "me")
    monkeypatch.setenv("SLUICE_KAFKA_SASL_PASSWORD", "hunter2")
    settings = read_settings(tmp_path)
    assert "hunter2" not in repr(settings)
    log = settings.open_log()
    assert isinstance(log, KafkaLog)
    assert log.servers == "a:9092,b:9092"
    assert log.security.of_librdkafka() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "hunter2",
    }
    monkeypatch.setenv("SLUICE_LOG", "kafka://nothing")
    with pytest.raises(SluiceError, match="kafka://HOST:PORT"):
        read_settings(tmp_path)


def test_a_continuous_run_waits_for_brokers_that_are_away(lakehouse: Lakehouse) -> None:
    lakehouse.log = KafkaLog("127.0.0.1:1", KafkaSecurity(), answer_seconds=1)
    lakehouse.declare(bronze.topic("orders"))
    stop, waited_for = threading.Event(), []

    def listen(event: Event) -> None:
        if event.kind == "waiting":
            waited_for.append(event.name)
            stop.set()

    lakehouse.runner(listener=listen).continuously(0.01, stop)
    assert "Check that the brokers run" in waited_for[0]


class Ledger:
    """A producer that counts what the broker acknowledged, and says again what it did not."""

    def __init__(self, log: KafkaLog) -> None:
        self.log = log
        self.acknowledged = 0
        # While a run starts, few are load enough; when the broker is killed, there is always one under way.
        self.pause_seconds = 0.1
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.produce)

    def produce(self) -> None:
        while not self.stop.wait(self.pause_seconds):
            try:
                self.log.append("orders", [Record(json.dumps(order(self.acknowledged)).encode())])
                self.acknowledged += 1
            except LogUnreachable:
                continue


def order(number: int) -> dict[str, Any]:
    placed_at = f"2026-03-{1 + number % 28:02}T09:00:00Z"
    return {"order_id": f"n{number}", "placed_at": placed_at, "product_id": "tea", "quantity": 1}


@pytest.mark.process
@pytest.mark.spark
def test_a_broker_killed_under_load_loses_and_doubles_nothing(kafka: Running[ThreeDoors], log: KafkaLog) -> None:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        scaffold.write(project)
        log.append("products", map(Record, (project / "products.jsonl").read_bytes().splitlines()))
        lake, ledger = (
            Lake(str(project / ".sluice" / "lake")),
            Ledger(KafkaLog(log.servers, log.security, answer_seconds=3)),
        )

        def orders() -> int:
            if lake.last_commit("gold.revenue_daily") is None:
                return 0
            return int(query(lake, "SELECT coalesce(sum(orders), 0) FROM gold.revenue_daily").rows[0][0])

        def wait(count: int) -> None:
            eventually(lambda: orders() >= count or run.poll() is not None, said.read_text, 1)
            assert run.poll() is None, said.read_text()

        said = Path(folder, "said.txt")
        command = [sys.executable, "-m", "sluice.cli", "run", "--continuous", "--project", str(project)]
        environment = {**os.environ, "SLUICE_LOG": f"kafka://{log.servers}"}
        with open(said, "wb") as file:
            run = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        ledger.thread.start()
        try:
            wait(1)
            ledger.pause_seconds = 0
            under_way = ledger.acknowledged
            eventually(lambda: ledger.acknowledged > under_way + 10, "the load")
            kafka.kill()
            time.sleep(4)
            kafka.start()
            before = ledger.acknowledged
            while ledger.acknowledged < before + 10:
                time.sleep(0.1)
            ledger.stop.set()
            ledger.thread.join()
            wait(ledger.acknowledged)
            run.terminate()
            assert run.wait(patience_seconds) == 0
        finally:
            ledger.stop.set()
            run.kill()
            run.wait()
        assert orders() == ledger.acknowledged
        assert all(each.balanced for each in audit(lake, load(project)))


# A network that is not reliable.


def over(network: Unreliable, server: ThreeDoors, topic: str, **settings: Any) -> list[bytes | None]:
    """What a topic holds after thirty records were appended one by one, and read, by such a network."""
    log = KafkaLog(f"127.0.0.1:{server.proxy_port}", KafkaSecurity(), partitions=1)
    with proxied(network, server.proxy_port), pytest.MonkeyPatch.context() as patch:
        if settings:
            patch.setitem(log.__dict__, "producer", Producer({**log.settings(), **settings}))
        for number in range(30):
            log.append(topic, [Record(str(number).encode())])
        found = values(log, topic)
        assert all(values(log, topic) == found for _ in range(2))
        return found


def test_replies_that_are_lost_and_requests_that_come_twice_double_nothing(kafka: Running[ThreeDoors]) -> None:
    network = Unreliable(kafka.server, produced_twice=4, produce_reply_lost=7, fetch_reply_lost=2)
    found = over(network, kafka.server, "struck")
    assert found == [str(number).encode() for number in range(30)], "each once, in order"
    assert network.has_struck()


def test_a_producer_that_does_not_number_its_requests_doubles_records(kafka: Running[ThreeDoors]) -> None:
    """The mutant: the network is seen to do harm where nobody guards against it."""
    network = Unreliable(kafka.server, produced_twice=4)
    assert len(over(network, kafka.server, "doubled", **{"enable.idempotence": False})) > 30


def test_an_append_that_is_refused_ends_when_nothing_of_it_is_on_its_way(
    kafka: Running[ThreeDoors], tmp_path: Path
) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text('{"id": 1}\n{"id": 2, "text": "' + "x" * 2_000_000 + '"}\n')
    for _ in range(3):
        log = KafkaLog(kafka.server.address, KafkaSecurity(), partitions=2)
        with pytest.raises(LogRefused, match=r"too large.*max\.message\.bytes"):
            files.import_file(log, "too_large", path, files.Options(), tmp_path)
    assert values(log, "too_large") == [b'{"id": 1}']


def test_an_import_of_a_file_that_was_killed_goes_on(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(40)))
    monkeypatch.setattr(files, "batch_rows", 10)
    with killed_import(after_row=25):
        files.import_file(log, "imported", path, files.Options(), tmp_path)
    assert len(values(log, "imported")) == 30
    assert files.import_file(log, "imported", path, files.Options(), tmp_path).records == 40
    assert sorted(json.loads(each or b"")["id"] for each in values(log, "imported")) == [*range(40)]
