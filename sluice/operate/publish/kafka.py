"""A topic of Kafka that is kept equal to a table of gold: each commit is a transaction, its position included."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sluice.errors import LogError, PublishError
from sluice.log import KafkaLog
from sluice.log.records import StoredRecord
from sluice.operate.json_text import json_line
from sluice.operate.publish import Commit, Position
from sluice.operate.subscribe import Change

if TYPE_CHECKING:
    from confluent_kafka import Producer

# How long readers of committed records wait at most for a publisher that was killed and did not come back.
transaction_seconds_max = 600
abort_seconds_max = 5
# Brokers that are there say what they have at once; what is sent to those that are gone is waited for much longer.
reach_seconds_max = 10
commit_seconds_max = 60
# The most that the client allows: the topic says how large a record may be.
record_bytes_max = 1_000_000_000
# Small segments, so that old positions are soon compacted.
of_positions = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}
of_rows = {"cleanup.policy": "compact"}
# What rows of ours have, and no record of others.
table_header = "sluice-table"


@dataclass(frozen=True)
class Place:
    """The position as its topic keeps it, with what identifies the topic of the rows."""

    position: Position
    topic_id: str
    partitions: int

    @classmethod
    def of(cls, value: bytes) -> "Place":
        found = json.loads(value)
        position = found.pop("position")
        return cls(Position(**position | {"key": tuple(position["key"])}), **found)


@dataclass
class KafkaTopic:
    """A compacted topic with a record for each row, by its key; how far it is stands in `….sluice-position`.

    One transactional id writes both, so what a killed publisher left open is aborted before the next one reads
    anything, and a publisher that was only slow is refused from then on.
    """

    log: KafkaLog
    topic: str
    place: Place | None = field(default=None, repr=False)
    # The id of the topic of the positions, and how many partitions it has.
    positions: tuple[str, int] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"kafka {self.topic}"

    @property
    def position_topic(self) -> str:
        return f"{self.topic}.sluice-position"

    def position(self) -> Position | None:
        with self.explained():
            if "producer" not in self.__dict__ or not self.is_unchanged():
                self.begin()
            else:
                self.require_compacted(self.topic, self.position_topic)
            return None if self.place is None else self.place.position

    def begin(self) -> None:
        """Reads how far it is, with a new producer: the numbers of the old one's records are those of the old topic."""
        self.close()
        self.place = None
        self.require_reachable()
        self.make(self.position_topic, of_positions, partitions=1)
        # First: afterwards no transaction of another publisher can still be committed.
        self.producer.init_transactions(self.log.answer_seconds)
        self.positions = self.topics_now().get(self.position_topic)
        self.place = self.read_place()

    def apply(self, commit: Commit) -> int:
        with self.explained():
            self.require_reachable()
            place = self.place_after(commit)
            self.producer.begin_transaction()
            self.send(self.position_topic, self.topic, json_line(asdict(place)))
            count = self.replace_all(commit) if commit.replaces else self.send_all(commit)
            self.require_same(place)
            self.producer.commit_transaction(commit_seconds_max)
        self.place = place
        return count

    def close(self) -> None:
        self.ended()

    def ended(self) -> Exception | None:
        """Ends the producer; returns why it cannot abort, which for one that has failed is why it has."""
        from confluent_kafka import KafkaException

        producer = self.__dict__.pop("producer", None)
        if producer is not None:
            producer.purge()
            # Mostly there is nothing to abort. Where the brokers are gone, the next producer aborts it.
            try:
                producer.abort_transaction(abort_seconds_max)
            except KafkaException as error:
                return error
        return None

    @contextmanager
    def explained(self) -> Iterator[None]:
        """After any error the next call has a new producer, and reads how far it is."""
        # Says what to install, where there is no client.
        _ = self.log.admin
        from confluent_kafka import KafkaError, KafkaException

        try:
            yield
        except KafkaException as error:
            ended = self.ended()
            # A producer that has failed says no more than that.
            why = ended if ended is not None and error.args[0].code() == KafkaError._FATAL else error
            raise PublishError(f"{self.name}: {said(why)}.") from error
        except LogError as error:
            self.close()
            raise PublishError(f"{self.name}: {error}") from error
        except BaseException:
            self.close()
            raise

    def require_reachable(self) -> None:
        """A PublishError, soon, where no broker answers."""
        from confluent_kafka import KafkaException

        try:
            self.log.admin.list_topics(self.topic, timeout=reach_seconds_max)
        except KafkaException as error:
            raise PublishError(f"{self.name}: no broker of {self.log} answers ({said(error)}).") from error

    @cached_property
    def producer(self) -> "Producer":
        from confluent_kafka import Producer

        return Producer(
            {
                **self.log.settings(),
                "transactional.id": f"sluice-publish-{self.topic}",
                "transaction.timeout.ms": transaction_seconds_max * 1000,
                "message.max.bytes": record_bytes_max,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
            }
        )

    def topics_now(self) -> dict[str, tuple[str, int]]:
        """The id and the number of partitions of both topics, as far as they exist; it is one request.

        A PublishError, soon, where no broker answers.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        wanted = TopicCollection([self.topic, self.position_topic])
        found: dict[str, tuple[str, int]] = {}
        for topic, asked in self.log.admin.describe_topics(wanted, request_timeout=reach_seconds_max).items():
            try:
                now = asked.result()
            except KafkaException as error:
                code = error.args[0].code()
                if code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                    raise PublishError(f"{self.name}: no broker of {self.log} answers ({said(error)}).") from error
                if code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                found[topic] = (str(now.topic_id), len(now.partitions))
        return found

    def is_unchanged(self) -> bool:
        """Whether both topics are those that are known: nobody deleted one, made it again or gave it partitions."""
        return self.place is not None and self.has_same_topics(self.place)

    def has_same_topics(self, place: Place) -> bool:
        known = {self.topic: (place.topic_id, place.partitions), self.position_topic: self.positions}
        return self.topics_now() == known

    def require_same(self, place: Place) -> None:
        """A PublishError where a transaction would be committed whose rows, or place, are in another topic."""
        if not self.has_same_topics(place):
            raise PublishError(
                f"{self.name} or {self.position_topic} was deleted, made again or given partitions while it was "
                "written. Nothing was committed; the next pass reads how far it is."
            )

    def read_place(self) -> Place | None:
        """The place of the last commit; None where there is none, or the topic is another one than it was.

        A PublishError where the topic has other partitions, since then the records of a key are in several.
        """
        if not self.log.exists(self.topic):
            return None
        values = [each.value for each in self.log.read(self.position_topic, 0)][-1:]
        place = Place.of(values[0]) if values and values[0] is not None else None
        if place is None or place.topic_id != self.log.topic_id(self.topic):
            self.require_ended()
            if self.has_own_records() and place is not None:
                self.require_partitions(place)
            return None
        self.require_partitions(place)
        self.require_compacted(self.topic)
        return place

    def require_partitions(self, place: Place) -> None:
        """A PublishError where the rows were written with another number of partitions."""
        partitions = len(self.log.partitions(self.topic))
        if place.partitions != partitions:
            raise PublishError(
                f"{self.name} had {place.partitions} partitions and has {partitions} now, so a row may be in two of "
                "them. Delete the topic; it is published again."
            )

    def require_ended(self) -> None:
        """A PublishError where a transaction hides records, of which some may be ours: a broker that crashes can leave
        one that was committed without its end."""
        for topic in (self.topic, self.position_topic):
            if self.log.offsets(topic) != self.log.offsets(topic, with_open=True):
                raise PublishError(
                    f"{self.name}: {topic} has records of a transaction that has not ended, so nobody knows what is in "
                    "it. If this lasts longer than ten minutes, delete the topic; it is published again."
                )

    def has_own_records(self) -> bool:
        """Whether the topic has committed records; what was aborted leaves gaps. A PublishError for those of others."""
        found = False
        for record in self.records():
            if record.value is not None and table_header not in record.headers:
                raise PublishError(
                    f"{self.name} has records, and they were not published by sluice publish. Delete the topic, or "
                    "publish to another one."
                )
            found = True
        return found

    def records(self) -> Iterator[StoredRecord]:
        """The committed records of all partitions."""
        for partition in self.log.partitions(self.topic):
            yield from self.log.read(self.topic, partition)

    def place_after(self, commit: Commit) -> Place:
        """The place after a commit; makes the topic where there is none."""
        if self.place is not None:
            return replace(self.place, position=commit.then)
        self.make(self.topic, of_rows, partitions=self.log.default_partitions)
        return Place(commit.then, self.log.topic_id(self.topic), len(self.log.partitions(self.topic)))

    def make(self, topic: str, config: Mapping[str, str], *, partitions: int) -> None:
        """Makes a topic; one that exists stays as it is, and has to be compacted."""
        if self.log.exists(topic):
            self.require_compacted(topic)
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        with self.log.answering(f"topic {topic} could not be made") as admin:
            new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=dict(config))
            try:
                admin.create_topics([new])[topic].result(self.log.answer_seconds)
            except KafkaException as error:
                # Another publisher, or somebody, made it just now.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self.log.wait_until_known(topic)
        self.require_compacted(topic)

    def require_compacted(self, *topics: str) -> None:
        """A PublishError where the broker would remove rows because they are old."""
        for topic, settings in self.log.configurations(*topics).items():
            policy = settings["cleanup.policy"]
            if policy != "compact":
                raise PublishError(
                    f"{self.name}: {topic} has cleanup.policy={policy}, so Kafka would forget rows that are still "
                    "there. Set it to compact."
                )

    def replace_all(self, commit: Commit) -> int:
        """Sends all rows, and an empty value for each key that has a value now and no row any more."""
        # Once the brokers have a record of this transaction, everybody can read all of the one before.
        self.producer.flush()
        gone = self.live_keys()
        count = 0
        for change in commit.changes:
            gone.discard(self.send_change(change, commit.then))
            count += 1
        for key in gone:
            self.send(self.topic, key, None)
        return count

    def send_all(self, commit: Commit) -> int:
        return sum(1 for change in commit.changes if self.send_change(change, commit.then))

    def send_change(self, change: Change, then: Position) -> str:
        """Sends the new row, or none, by the key. Returns the key."""
        row = change.new if change.new is not None else change.old or {}
        key = json_line({name: row[name] for name in then.key})
        value = None if change.new is None else json_line(change.new)
        headers = {table_header: then.source, "sluice-version": str(change.version), "sluice-cause": change.cause}
        self.send(self.topic, key, value, headers)
        return key

    def live_keys(self) -> set[str]:
        """The keys in the topic whose newest committed value is not empty."""
        found: set[str] = set()
        for record in self.records():
            key = record.key or ""
            (found.discard if record.value is None else found.add)(key)
        return found

    def send(self, topic: str, key: str, value: str | None, headers: Mapping[str, str] | None = None) -> None:
        more: dict[str, Any] = {"headers": dict(headers)} if headers else {}
        while True:
            try:
                self.producer.produce(topic, key=key, value=value, **more)
            except BufferError:
                self.producer.poll(0.1)
            else:
                self.producer.poll(0)
                return


def said(error: Exception) -> str:
    """What the brokers, or the client, said."""
    reason = error.args[0]
    if reason.code() in (reason._FENCED, reason.PRODUCER_FENCED, reason.INVALID_PRODUCER_EPOCH):
        return "another process publishes to it at the same time. Let only one do so"
    return str(reason.str()).rstrip(".")
