"""The log on Kafka: the interface of the embedded one, on the topics of a cluster.

Rows go through Spark's own Kafka source. Offsets, small reads and appends go through librdkafka, which needs no JVM.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import LogError, LogRefused, LogUnreachable, UsageError
from sluice.log import kafka_erase
from sluice.log.erasures import erasures_in
from sluice.log.kafka_batch import KafkaBatch, next_batch
from sluice.log.owned import OwnedTopic
from sluice.log.records import Record, StoredRecord
from sluice.log.reserved import is_reserved
from sluice.log.topic_file import Retention
from sluice.log.verify import Verified
from sluice.model.erasure import Offsets, Removals, removals_of
from sluice.model.ledger import LandedPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer
    from confluent_kafka.admin import AdminClient

topic_name = re.compile(r"[a-zA-Z0-9._-]{1,249}")
unread_at_most = 10_000


@dataclass(frozen=True)
class KafkaSecurity:
    """How brokers and clients authenticate; the certificates are PEM files: the authority's, and ours with its key."""

    protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = ""
    ssl_ca: Path | None = None
    ssl_keystore: Path | None = None

    def of_librdkafka(self) -> dict[str, str]:
        """As settings of the C client."""
        return without_empty(
            {
                "security.protocol": self.protocol,
                "sasl.mechanisms": self.sasl_mechanism,
                "sasl.username": self.sasl_username,
                "sasl.password": self.sasl_password,
                "ssl.ca.location": self.ssl_ca,
                "ssl.certificate.location": self.ssl_keystore,
                "ssl.key.location": self.ssl_keystore,
            }
        )

    def of_java(self) -> dict[str, str]:
        """As settings of the Java client, which Spark uses."""
        module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = (
            f"org.apache.kafka.common.security.{module} required "
            f'username="{quoted(self.sasl_username)}" password="{quoted(self.sasl_password)}";'
        )
        return without_empty(
            {
                "security.protocol": self.protocol,
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.jaas.config": login if self.sasl_mechanism else None,
                "ssl.truststore.type": self.ssl_ca and "PEM",
                "ssl.truststore.location": self.ssl_ca,
                "ssl.keystore.type": self.ssl_keystore and "PEM",
                "ssl.keystore.location": self.ssl_keystore,
            }
        )


class KafkaLog:
    """The log on the brokers at `servers` (`host:port`, with commas between several).

    An append is durable on all replicas in sync when it returns. Only committed records are read; their offsets may
    have gaps, where a transaction ended or a topic was compacted.
    """

    def __init__(
        self, servers: str, security: KafkaSecurity, *, partitions: int = 4, answer_seconds: float = 20.0
    ) -> None:
        self.servers = servers
        self.security = security
        self.default_partitions = partitions
        self.answer_seconds = answer_seconds

    def __str__(self) -> str:
        return f"kafka://{self.servers}"

    @property
    def folder_of_files(self) -> None:
        """There is none: brokers have the records."""

    def require(self) -> None:
        """Raises a LogError that says what to do when the brokers do not answer."""
        self.topics()

    def probe(self) -> None:
        """Raises a LogError when the brokers do not answer."""
        self.topics()

    def topics(self) -> list[str]:
        """The names of the topics that exist, except Kafka's own."""
        return sorted(name for name in self.partitions_by_topic() if not name.startswith("__"))

    def exists(self, topic: str) -> bool:
        return topic in self.partitions_by_topic()

    def create(self, topic: str) -> None:
        """Makes a topic with as many replicas as the cluster gives by default; one that exists stays as it is.

        Those of Sluice's own keep all records for ever, as a new lake needs them.
        """
        if not topic_name.fullmatch(topic):
            raise UsageError(f"'{topic}' cannot name a topic; use up to 249 letters, digits, dots, _ and -.")
        if self.exists(topic):
            return
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        with self.answering(f"topic {topic} could not be made") as admin:
            config = kafka_erase.kept_for_ever if is_reserved(topic) else {}
            new = NewTopic(topic, num_partitions=self.default_partitions, replication_factor=-1, config=config)
            admin.create_topics([new])[topic].result(self.answer_seconds)
        self.wait_until_known(topic)

    def wait_until_known(self, topic: str) -> None:
        """Returns when every broker can say where the partitions of a new topic are, and their leaders answer."""
        import time

        deadline = time.monotonic() + self.answer_seconds
        while topic not in self.partitions_by_topic() or not self.is_led(topic):
            if time.monotonic() > deadline:
                raise LogError(f"{self} created topic {topic}, but does not list it. See the brokers' logs.")
            time.sleep(0.1)

    def is_led(self, topic: str) -> bool:
        """Whether the leaders of a topic's partitions answer: a broker may not know yet that it leads a new one."""
        try:
            return bool(self.offsets(topic))
        except LogUnreachable:
            return False

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        found = self.partitions_by_topic()
        if topic not in found:
            known = ", ".join(name for name in found if not name.startswith("__")) or "none"
            raise LogError(
                f"The log {self} has no topic {topic} (topics: {known}). Write one with: sluice log append {topic} FILE"
            )
        return found[topic]

    def partitions_by_topic(self) -> dict[str, list[int]]:
        with self.answering("its topics could not be read") as admin:
            known = admin.list_topics(timeout=self.answer_seconds).topics
            return {name: sorted(topic.partitions) for name, topic in known.items() if topic.error is None}

    def topic_id(self, topic: str) -> str:
        """The id that distinguishes a topic from a later one of the same name."""
        return str(self.described(topic).topic_id)

    def may_append(self, topic: str) -> bool:
        """Whether the user of the brokers may append to a topic."""
        from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

        return AclOperation.WRITE in self.described(topic, include_authorized_operations=True).authorized_operations

    def described(self, topic: str, **options: Any) -> Any:
        """What the brokers say of a topic."""
        from confluent_kafka import TopicCollection

        with self.answering(f"topic {topic} could not be described") as admin:
            asked = admin.describe_topics(TopicCollection([topic]), **options)
            return asked[topic].result(self.answer_seconds)

    def configuration(self, topic: str) -> dict[str, str]:
        """The settings of a topic."""
        return self.configurations(topic)[topic]

    def configurations(self, *topics: str) -> dict[str, dict[str, str]]:
        """The settings of some topics, by one request."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        wanted = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        with self.answering(f"topic {' and '.join(topics)} could not be described") as admin:
            asked = admin.describe_configs(wanted)
            found = {topic: asked[each].result(self.answer_seconds) for topic, each in zip(topics, wanted, strict=True)}
        return {topic: {name: str(each.value) for name, each in settings.items()} for topic, settings in found.items()}

    def offsets(self, topic: str, *, with_open: bool = False) -> dict[int, range]:
        """The offsets in each partition now, as far as transactions have ended; or with those that have not."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        level = IsolationLevel.READ_UNCOMMITTED if with_open else IsolationLevel.READ_COMMITTED
        places = [TopicPartition(topic, partition) for partition in self.partitions(topic)]
        with self.answering(f"the offsets of topic {topic} could not be read") as admin:
            asked = [
                admin.list_offsets(
                    dict.fromkeys(places, spec),
                    isolation_level=level,
                    request_timeout=self.answer_seconds,
                )
                for spec in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
            ]
            starts, ends = [{place.partition: found.result().offset for place, found in each.items()} for each in asked]
        return {partition: range(start, ends[partition]) for partition, start in sorted(starts.items())}

    def start_offset(self, topic: str, partition: int) -> int:
        """The offset of the oldest record in a partition, or of the first that it will get."""
        return self.offsets(topic)[partition].start

    def end_offset(self, topic: str, partition: int) -> int:
        """The offset after the newest record of a partition that may be read."""
        return self.offsets(topic)[partition].stop

    def append(self, topic: str, records: Iterable[Record]) -> dict[int, int]:
        """Adds records, those of a key in order in its partition; the partition is the one that Java clients choose.

        Returns the next offset of each partition that got some. Makes the topic when it is not there.
        """
        self.create(topic)
        return self.send(topic, map(produced, records))

    def send(self, topic: str, messages: Iterable[Mapping[str, Any]]) -> dict[int, int]:
        """Adds what a producer takes to a topic that is there; returns the same."""
        from confluent_kafka import KafkaError, KafkaException

        ends: dict[int, int] = {}
        refused: list[KafkaError] = []

        def delivered(error: "KafkaError | None", message: "Message") -> None:
            if error is not None:
                refused.append(error)
            else:
                partition, offset = message.partition() or 0, message.offset() or 0
                ends[partition] = max(ends.get(partition, 0), offset + 1)

        with self.answering(f"records could not be appended to topic {topic}"):
            producer = self.producer
            for each in messages:
                while len(producer) >= unread_at_most:
                    producer.poll(0.1)
                try:
                    producer.produce(topic, **each, on_delivery=delivered)
                except KafkaException as error:
                    # Those before it are on their way: an append ends when they have come in, or never will.
                    refused.append(error.args[0])
                    break
                producer.poll(0)
            producer.flush()
            if refused:
                # What it could not send may be fatal to it; the next append begins with another.
                self.__dict__.pop("producer", None)
                raise KafkaException(refused[0])
        return dict(sorted(ends.items()))

    def read(self, topic: str, partition: int, from_offset: int = 0) -> Iterator[StoredRecord]:
        """The records of a partition from an offset on, as far as it reached when the reading began.

        They are as erasures leave them, whether or not Kafka has removed those that are erased.
        """
        available = self.offsets(topic)[partition]
        start = max(available.start, from_offset)
        if start < available.stop:
            yield from kafka_erase.as_left(
                map(stored, self.messages(topic, partition, range(start, available.stop))), self.removals(topic)
            )

    def messages(self, topic: str, partition: int, wanted: range, **settings: Any) -> Iterator["Message"]:
        """The records at some offsets, which must be in the partition, as Kafka has them."""
        with self.reader(topic, **settings) as read:
            yield from read(partition, wanted)

    @contextmanager
    def reader(self, topic: str, **settings: Any) -> "Iterator[Callable[[int, range], Iterator[Message]]]":
        """What reads offsets that are in a partition, one range of them after the other."""
        from confluent_kafka import Consumer, TopicPartition

        usual = {
            "group.id": "sluice-look",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            # What is wanted is there. Only the end of a partition after a transaction is waited for.
            "fetch.wait.max.ms": 10,
        }
        with self.answering(f"topic {topic} could not be read"):
            consumer = Consumer({**self.settings(), **usual, **settings})

            def read(partition: int, wanted: range) -> "Iterator[Message]":
                if wanted:
                    consumer.assign([TopicPartition(topic, partition, wanted.start)])
                    yield from polled(consumer, wanted.stop, self.answer_seconds)

            try:
                yield read
            finally:
                consumer.close()

    def removals(self, topic: str) -> Removals:
        """What is erased of a topic."""
        if is_reserved(topic):
            return {}
        return kafka_erase.of_now(self, topic, removals_of(erasures_in(self), topic))

    def tail(self, topic: str, records_max: int = 10) -> list[StoredRecord]:
        """The newest records of a topic by time."""
        newest = [
            record
            for partition, available in self.offsets(topic).items()
            for record in self.read(topic, partition, max(available.start, available.stop - records_max))
        ]
        newest.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
        return newest[-records_max:]

    def next_batch(self, topic: str, landed: dict[int, LandedPartition], records_max: int) -> KafkaBatch:
        """What lands next after what has landed: up to `records_max` offsets, from all partitions alike."""
        available = self.offsets(topic)
        ranges, then = next_batch(topic, self.topic_id(topic), available, landed, records_max)
        options = {f"kafka.{name}": value for name, value in self.security.of_java().items()}
        options["kafka.bootstrap.servers"] = self.servers
        removals = self.removals(topic) if ranges else {}
        return KafkaBatch(topic, ranges, then, options, blame=self.require, removals=removals)

    def lost(self, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:
        """The offsets of each partition that Kafka removed before they had landed."""
        found = {
            partition: range(landed[partition].next_offset, offsets.start)
            for partition, offsets in self.offsets(topic).items()
            if partition in landed
        }
        return {partition: offsets for partition, offsets in found.items() if offsets}

    def own(self, topic: str, owner: str) -> OwnedTopic:  # noqa: ARG002
        """A UsageError: brokers have no lock that a process holds."""
        raise UsageError(
            f"Commands need the embedded log: on Kafka, Sluice cannot keep other programs from writing {topic}. "
            "Set SLUICE_LOG to a folder for the project that declares them."
        )

    def owner(self, topic: str) -> None:
        """Nobody owns a topic of Kafka."""

    def retention(self, topic: str) -> Retention | None:  # noqa: ARG002
        """None: how long Kafka keeps records is a setting of its topics."""
        return None

    def retain(self, topic: str, retention: Retention) -> None:  # noqa: ARG002
        """A UsageError: it is a setting of Kafka's own."""
        raise UsageError(
            f"Kafka itself removes the records of {topic}: set retention.ms, retention.bytes or cleanup.policy there. "
            "Kafka does not check whether they have landed, so keep them long enough for a stopped run to catch up."
        )

    def trim(
        self,
        topic: str,  # noqa: ARG002
        partition: int,  # noqa: ARG002
        before_offset: int,  # noqa: ARG002
        oldest: datetime | None,  # noqa: ARG002
        bytes_max: int | None = None,  # noqa: ARG002
    ) -> int:
        """Nothing to do: Kafka removes records itself."""
        return 0

    def compact(self, topic: str, partition: int, before_offset: int, oldest_tombstone: datetime) -> int:  # noqa: ARG002
        """Nothing to do: the same."""
        return 0

    def emptied_before(self, topic: str) -> dict[int, int]:  # noqa: ARG002
        """Nowhere: what Kafka compacts leaves no record."""
        return {}

    def require_erasable(self, topic: str, offsets: Offsets, fields: Iterable[str]) -> None:
        """A UsageError where Kafka would never remove some of these records."""
        kafka_erase.require_erasable(self, topic, offsets, fields)

    def erase(self, topic: str, removals: Removals) -> int:
        """Appends tombstones, so that Kafka removes what erasures name when it compacts the topic; returns how many."""
        return kafka_erase.erase(self, topic, removals)

    def held(self, topic: str, removals: Removals) -> Iterator[tuple[int, int]]:
        """The partition and offset of each erased record that Kafka still has."""
        return kafka_erase.held(self, topic, removals)

    def beside_files(self, topic: str) -> Iterator[tuple[int, int, Sequence[object]]]:
        """All that Kafka has of a topic: the key, the value, and the names and values of the headers of each record."""
        for message in kafka_erase.everything(self, topic):
            headers = [part for each in message.headers() or [] for part in each]
            yield message.partition() or 0, message.offset() or 0, [message.key(), message.value(), *headers]

    def marks_after(
        self,
        topic: str,  # noqa: ARG002
        landed: Mapping[int, LandedPartition],
        removals: Removals,  # noqa: ARG002
    ) -> dict[int, LandedPartition]:
        """Nothing changes: the id of a topic stays."""
        return dict(landed)

    def verify(self, topic: str) -> Iterator[Verified]:  # noqa: ARG002
        """A UsageError: Kafka verifies its own records."""
        raise UsageError("Kafka verifies its own records; sluice log verify is for a log in a folder.")

    def truncated(self, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:  # noqa: ARG002
        """Nothing: the brokers give offsets, and cannot be made to continue at a later one."""
        return {}

    def go_on(self, topic: str, landed: Mapping[int, LandedPartition], starts: Mapping[int, int]) -> None:
        """Nothing to do: what was skipped is only in the ledger."""

    @cached_property
    def admin(self) -> "AdminClient":
        """The connection for questions, which all threads share."""
        try:
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            raise UsageError("SLUICE_LOG is on Kafka; install what speaks to it: sluice-lakehouse[kafka].") from error
        return AdminClient(self.settings())

    @cached_property
    def producer(self) -> "Producer":
        """The connection for appends, which all threads share."""
        from confluent_kafka import Producer

        settings = {"enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 5}
        # How large a record may be is the topic's to say.
        settings["message.max.bytes"] = 1_000_000_000
        timeouts = {"delivery.timeout.ms": int(self.answer_seconds * 2000)}
        return Producer({**self.settings(), **settings, **timeouts})

    def settings(self) -> dict[str, Any]:
        """What every client of librdkafka is given; what it has to say comes as an error, not on stderr."""
        return {
            "bootstrap.servers": self.servers,
            "allow.auto.create.topics": False,
            "socket.connection.setup.timeout.ms": int(self.answer_seconds * 1000),
            "log_level": 0,
            **self.security.of_librdkafka(),
        }

    @contextmanager
    def answering(self, failed: str) -> "Iterator[AdminClient]":
        """A client for questions; what the brokers refuse, or do not answer, is a LogError."""
        admin = self.admin
        from confluent_kafka import KafkaError, KafkaException

        try:
            yield admin
        except KafkaException as error:
            reason = error.args[0]
            said = reason.str() if hasattr(reason, "str") else str(reason)
            if isinstance(reason, KafkaError) and reason.code() in (
                KafkaError.MSG_SIZE_TOO_LARGE,
                KafkaError.INVALID_TIMESTAMP,
                KafkaError.INVALID_RECORD,
            ):
                raise LogRefused(
                    f"{self}: {failed}: {said}. The topic's settings max.message.bytes and "
                    "message.timestamp.after.max.ms limit what it accepts; with cleanup.policy=compact each record "
                    "needs a key."
                ) from error
            raise LogUnreachable(
                f"{self}: {failed}: {said}. Check that the brokers run and can be reached, SLUICE_LOG, and the "
                "SLUICE_KAFKA_* settings."
            ) from error


def polled(consumer: "Consumer", end: int, answer_seconds: float) -> "Iterator[Message]":
    """The records that a consumer gets, until its partition ends or it has come to an offset."""
    from confluent_kafka import KafkaError, KafkaException

    while True:
        message = consumer.poll(answer_seconds)
        if message is None:
            raise LogUnreachable(f"Kafka gave no record within {answer_seconds:g} s. Check that its brokers run.")
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return
            raise KafkaException(error)
        offset = message.offset() or 0
        if offset < end:
            yield message
        if offset >= end - 1:
            return


def produced(record: Record) -> dict[str, Any]:
    """A record as a producer takes it."""
    found: dict[str, Any] = {"value": record.value, "key": record.key, "headers": dict(record.headers)}
    if record.timestamp is not None:
        found["timestamp"] = round(record.timestamp.timestamp() * 1000)
    return found


def stored(message: "Message") -> StoredRecord:
    """What a reader sees of a message."""
    key, value, timestamp = message.key(), message.value(), message.timestamp()
    return StoredRecord(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=None if key is None else as_bytes(key).decode(errors="replace"),
        value=None if value is None else as_bytes(value),
        timestamp=datetime.fromtimestamp(timestamp[1] / 1000, UTC),
        headers=header_texts(message.headers() or []),
    )


def header_texts(headers: Iterable[Any]) -> dict[str, str]:
    """The headers as text; a name that comes again is numbered (`name#2`), as in the table."""
    found: dict[str, str] = {}
    seen = Counter[str]()
    for name, value in headers:
        seen[name] += 1
        numbered = name if seen[name] == 1 else f"{name}#{seen[name]}"
        found[numbered] = as_bytes(value or b"").decode(errors="replace")
    return found


def as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def quoted(text: str) -> str:
    """Text between the quotes of a JAAS configuration."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def without_empty(settings: Mapping[str, str | Path | None]) -> dict[str, str]:
    return {name: str(value) for name, value in settings.items() if value}
