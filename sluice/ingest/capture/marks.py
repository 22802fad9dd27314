"""What the log says of the snapshots in it: begun, or complete, and so followed by changes that must not be missed."""

from collections.abc import Iterable
from enum import StrEnum

import orjson

from sluice.errors import LogError
from sluice.log import AnyLog, Record

# Of its own, because a snapshot of empty tables leaves no record in theirs, and because a mark belongs after the slot:
# before it, a snapshot that could not make its slot would count as complete.
captures_topic = "sluice_captures"


class Mark(StrEnum):
    """How far the last snapshot of a topic's table came."""

    BEGUN = "begun"
    COMPLETE = "complete"


def set_marks(log: AnyLog, slot: str, topics: Iterable[str], mark: Mark) -> None:
    """Marks topics, where they are not marked so already; it is durable then."""
    known = marks_in(log)
    records = [
        Record(orjson.dumps({"topic": topic, "slot": slot, "snapshot": mark}), key=topic)
        for topic in topics
        if known.get(topic) != mark
    ]
    if records:
        log.append(captures_topic, records)


def marks_in(log: AnyLog) -> dict[str, Mark]:
    """The newest mark of each topic that has one; a topic's marks are in one partition, in order."""
    if not log.exists(captures_topic):
        return {}
    found: dict[str, Mark] = {}
    for partition in log.partitions(captures_topic):
        for record in log.read(captures_topic, partition):
            try:
                said = orjson.loads(record.value or b"")
                found[said["topic"]] = Mark(said["snapshot"])
            except (ValueError, TypeError, KeyError) as error:
                raise LogError(f"{captures_topic}/{partition}/{record.offset} is no mark of a snapshot.") from error
    return found


def is_followed(log: AnyLog, topic: str, mark: Mark | None) -> bool:
    """Whether changes after a snapshot of a topic's table were promised: a new snapshot would then miss some."""
    return streamed(log, topic) if mark is None else mark is Mark.COMPLETE


def streamed(log: AnyLog, topic: str) -> bool:
    """Whether the last record of a partition came from a stream, and not from a snapshot; a tombstone did.

    Older releases set no marks. Their records are judged by offset, because the clock may have been wrong.
    """
    return any(
        b'"snapshot":"true"' not in (record.value or b"")
        for partition, offsets in log.offsets(topic).items()
        for record in log.read(topic, partition, max(offsets.start, offsets.stop - 1))
    )
