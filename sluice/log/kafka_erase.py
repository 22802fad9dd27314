"""Erase records of a topic on Kafka: a tombstone for their keys, and Kafka's compaction removes them.

No record there can be changed. Until it is compacted the topic still has what was erased, so whoever reads it through
here gets what the erasures leave. A tombstone of an erasure is no record: as the mark of a transaction it has an
offset, and does not land.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluice.errors import UsageError
from sluice.log.records import StoredRecord
from sluice.model.erasure import Offsets, Removal, Removals, erased_header, erasures_topic, of_topic, ranges_of

if TYPE_CHECKING:
    from confluent_kafka import Message

    from sluice.log.kafka import KafkaLog

# Erasures are kept for ever, each as a record of the same key.
kept_for_ever = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def require_erasable(log: "KafkaLog", topic: str, offsets: Offsets, fields: Iterable[str]) -> None:
    """A UsageError where Kafka would never remove some of these records, or forget that they are to be erased."""
    require_whole(fields)
    if not log.exists(topic):
        raise UsageError(
            f"{log} has no topic {topic}. Where nothing can land no table follows, so no erasure of the records in "
            "bronze would end: restore the topic, or delete the tables that are made from it."
        )
    require_erasures_kept(log)
    left = list(records_at(log, topic, offsets))
    if not left:
        return
    policy = log.configuration(topic)["cleanup.policy"]
    if "compact" not in policy:
        raise UsageError(
            f"Kafka still has {len(left):,} of these records, and removes none by its key: {topic} has "
            f"cleanup.policy={policy}. Wait until its retention has removed them, or set cleanup.policy=compact,delete "
            "if of each key the newest record is all that must stay in Kafka."
        )
    without_key = [f"{each.partition()}/{each.offset()}" for each in left if each.key() is None]
    if without_key:
        raise UsageError(
            f"{len(without_key):,} of these records have no key, so no tombstone can remove them from {topic}: "
            f"{', '.join(without_key[:5])}{' …' if len(without_key) > 5 else ''} (partition/offset). Wait until "
            "Kafka has removed them."
        )
    if not log.may_append(topic):
        raise UsageError(
            f"The tombstones cannot be appended: the user of Sluice has no right to write to {topic}. Grant it on the "
            "brokers."
        )


def require_whole(fields: Iterable[str]) -> None:
    """A UsageError where fields of records are to be erased."""
    if any(fields):
        raise UsageError(
            "No record on Kafka can be changed in place, and what is left of it as a new record would be a new event. "
            "Erase whole records: without --fields."
        )


def require_erasures_kept(log: "KafkaLog") -> None:
    """A UsageError where Kafka would forget erasures."""
    if not log.exists(erasures_topic):
        return
    found = log.configuration(erasures_topic)
    wrong = [f"{name}={value}" for name, value in kept_for_ever.items() if found[name] != value]
    if wrong:
        raise UsageError(f"Kafka would forget what {erasures_topic} says. Set for this topic {', '.join(wrong)}.")


def erase(log: "KafkaLog", topic: str, removals: Removals) -> int:
    """Appends a tombstone for each key whose newest record is to be erased; returns how many.

    A newer record has the same effect, be it a tombstone of the call before.
    """
    require_whole(name for each in removals.values() for some in each.values() for one in some for name in one.fields)
    tombstones: list[dict[str, Any]] = [
        {"partition": partition, "key": key, "value": None, "headers": {erased_header: mark}}
        for partition, wanted in of_now(log, topic, removals).items()
        for key, mark in keys_to_end(log, topic, partition, wanted).items()
    ]
    if tombstones:
        log.send(topic, tombstones)
    return len(tombstones)


def keys_to_end(
    log: "KafkaLog", topic: str, partition: int, wanted: Mapping[int, list[Removal]]
) -> dict[bytes | str, str]:
    """The keys of records to be erased that have no newer record, each with the header of its tombstone."""
    oldest = next(records_at(log, topic, {partition: wanted}), None)
    if oldest is None:
        return {}
    newest: dict[bytes | str, str | None] = {}
    end = log.offsets(topic)[partition].stop
    for message in log.messages(topic, partition, range(oldest.offset() or 0, end)):
        key, removal = message.key(), wanted.get(message.offset() or 0)
        if key is not None and (removal is not None or key in newest):
            newest[key] = None if removal is None else removal[0].tombstone
    return {key: mark for key, mark in newest.items() if mark is not None}


def held(log: "KafkaLog", topic: str, removals: Removals) -> Iterator[tuple[int, int]]:
    """The partition and offset of each record to be erased that Kafka still has."""
    for message in records_at(log, topic, of_now(log, topic, removals)):
        yield message.partition() or 0, message.offset() or 0


def records_at(log: "KafkaLog", topic: str, offsets: Offsets) -> Iterator["Message"]:
    """The records that Kafka still has at some offsets; no more of the topic is read."""
    available = log.offsets(topic) if any(offsets.values()) else {}
    # The next record may be large, and is none of them. Without the last, each range would begin with a wait.
    little = {"queued.min.messages": 1, "max.partition.fetch.bytes": 65_536, "fetch.queue.backoff.ms": 1}
    with log.reader(topic, **little) as read:
        for partition in sorted(offsets.keys() & available.keys()):
            there = available[partition]
            for first, last in ranges_of(offsets[partition]):
                yield from read(partition, range(max(first, there.start), min(last + 1, there.stop)))


def everything(log: "KafkaLog", topic: str) -> Iterator["Message"]:
    """All that Kafka has of a topic, also what a transaction has aborted, or not ended."""
    with log.reader(topic, **{"isolation.level": "read_uncommitted"}) as read:
        for partition, offsets in log.offsets(topic, with_open=True).items():
            yield from read(partition, offsets)


def of_now(log: "KafkaLog", topic: str, removals: Removals) -> dict[int, dict[int, list[Removal]]]:
    """The removals of a topic as it is, if it is: one that was made again has other records at the same offsets."""
    if not removals or not log.exists(topic):
        return {}
    return of_topic(removals, log.topic_id(topic))


def marks_in(removals: Removals) -> set[str]:
    """The headers that tombstones of the erasures have."""
    return {one.tombstone for each in removals.values() for some in each.values() for one in some}


def as_left(records: Iterable[StoredRecord], removals: Removals) -> Iterator[StoredRecord]:
    """The records as the erasures leave them, without their tombstones."""
    marks = marks_in(removals)
    for record in records:
        wanted = removals.get(record.partition, {}).get(record.offset)
        if wanted:
            yield replace(record, key=None, value=None, headers={erased_header: str(wanted[0].number)})
        elif not is_tombstone(record, marks):
            yield record


def is_tombstone(record: StoredRecord, marks: set[str]) -> bool:
    """Whether an erasure of these has written it."""
    is_bare = record.value is None and record.headers.keys() == {erased_header}
    return is_bare and record.key is not None and record.headers[erased_header] in marks
