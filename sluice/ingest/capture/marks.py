"""What the log says of the snapshots in it: begun, or complete, and so followed by changes that must not be missed."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import orjson

from sluice.errors import LogError
from sluice.log import AnyLog, Record, StoredRecord

# Of its own, because a snapshot of empty tables leaves no record in theirs, and because a mark belongs after the slot:
# before it, a snapshot that could not make its slot would count as complete.
captures_topic = "sluice_captures"
# Of each partition; among them is the newest position, though changes come in the order of their commits.
looked_at = 100


class Mark(StrEnum):
    """How far the last snapshot of a topic's table came."""

    BEGUN = "begun"
    COMPLETE = "complete"


@dataclass(frozen=True)
class Marked:
    """The newest mark of a topic, and the id that the topic had: one that was made again has another."""

    mark: Mark
    topic_id: str | None


def set_marks(log: AnyLog, slot: str, topics: Iterable[str], mark: Mark) -> None:
    """Marks topics, where they are not marked so already; it is durable then."""
    known = marks_in(log)
    wanted = {topic: Marked(mark, log.topic_id(topic) if log.exists(topic) else None) for topic in topics}
    records = [
        Record(orjson.dumps({"topic": topic, "slot": slot, "snapshot": mark, "topic_id": each.topic_id}), key=topic)
        for topic, each in wanted.items()
        if known.get(topic) != each
    ]
    if records:
        log.append(captures_topic, records)


def marks_in(log: AnyLog) -> dict[str, Marked]:
    """The newest mark of each topic that has one; a topic's marks are in one partition, in order."""
    if not log.exists(captures_topic):
        return {}
    found: dict[str, Marked] = {}
    for partition in log.partitions(captures_topic):
        for record in log.read(captures_topic, partition):
            try:
                said = orjson.loads(record.value or b"")
                found[said["topic"]] = Marked(Mark(said["snapshot"]), said.get("topic_id"))
            except (ValueError, TypeError, KeyError) as error:
                raise LogError(f"{captures_topic}/{partition}/{record.offset} is no mark of a snapshot.") from error
    return found


def is_followed(log: AnyLog, topic: str, known: Marked | None) -> bool:
    """Whether changes after a snapshot of a topic's table were promised: a new snapshot would then miss some."""
    return streamed(log, topic) if known is None else known.mark is Mark.COMPLETE


def is_another(log: AnyLog, topic: str, known: Marked | None) -> bool:
    """Whether a topic was made again since its snapshot, and so lacks the rows of that."""
    return known is not None and known.topic_id not in (None, log.topic_id(topic))


def streamed(log: AnyLog, topic: str) -> bool:
    """Whether the last record of a partition came from a stream, and not from a snapshot; a tombstone did.

    Older releases set no marks. Their records are judged by offset, because the clock may have been wrong.
    """
    return any(b'"snapshot":"true"' not in (record.value or b"") for record in last_records(log, topic, 1))


def newest_lsn(log: AnyLog, topics: Iterable[str]) -> int:
    """The greatest position among the last records of some topics; 0 without any."""
    found = [0]
    for topic in topics:
        for record in last_records(log, topic, looked_at):
            with suppress(ValueError, TypeError, KeyError):
                found.append(int(orjson.loads(record.value or b"")["source"]["lsn"]))
    return max(found)


def last_records(log: AnyLog, topic: str, count: int) -> Iterator[StoredRecord]:
    """The last records of each partition, by offset."""
    for partition, offsets in log.offsets(topic).items():
        yield from log.read(topic, partition, max(offsets.start, offsets.stop - count))
