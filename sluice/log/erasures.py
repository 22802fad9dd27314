"""The erasures of a log: records of a topic of its own, numbered by their offset, which name no subject or value."""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, cast

from pydantic import ValidationError

from sluice.errors import LogError
from sluice.log.any_log import AnyLog
from sluice.log.records import Record
from sluice.model.erasure import Erasure, erasures_topic

# Of one key, so that all are in one partition, and in order.
key = "erasure"


def add(log: AnyLog, erasure: Erasure) -> None:
    """States an erasure; it is to be done from now on, whatever happens to who stated it."""
    log.append(erasures_topic, [Record(erasure.model_dump_json(exclude_defaults=True).encode(), key=key)])


def erasures_in(log: AnyLog) -> dict[int, Erasure]:
    """All erasures of a log by their numbers."""
    if not log.exists(erasures_topic):
        return {}
    ends = tuple(sorted((partition, each.stop) for partition, each in log.offsets(erasures_topic).items()))
    return read(cast(Hashable, log), ends)


def name_any(log: AnyLog, topic: str, partition: int, offsets: range) -> bool:
    """Whether erasures remove the whole of a record at some of these offsets."""
    ranges = [
        ends
        for each in erasures_in(log).values()
        if each.topic == topic and not each.fields
        for ends in each.ranges.get(partition, ())
    ]
    return any(first < offsets.stop and last >= offsets.start for first, last in ranges)


@lru_cache(maxsize=8)
def read(log: Any, ends: tuple[tuple[int, int], ...]) -> dict[int, Erasure]:
    """The erasures of a log whose partitions end there."""
    found: dict[int, Erasure] = {}
    for partition, _ in ends:
        for record in log.read(erasures_topic, partition):
            if record.key != key:
                # Not of Sluice: it may be in another partition, and have the number of an erasure.
                continue
            try:
                stated = Erasure.model_validate_json(record.value or b"")
                found[record.offset] = stated.model_copy(update={"at": record.timestamp})
            except ValidationError as error:
                raise LogError(f"{erasures_topic}/{partition}/{record.offset} states no erasure.") from error
    return found
