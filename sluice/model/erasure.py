"""Erasures: what is removed of which records, stated without what it was; and what is left of a record after it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

# Where the erasures of a log are stated, each as one record.
erasures_topic = "sluice_erasures"
# An erased record keeps its offset and timestamp, and has this header alone: the number of the erasure.
erased_header = "sluice_erased"
# What the header has in place of a number, where compaction emptied a record.
compacted_mark = "compacted"
# Debezium's envelope, with or without its schema: the rows are in it.
envelopes = ("payload", "before", "after")

Offsets = Mapping[int, Iterable[int]]


class Erasure(BaseModel):
    """One erasure as its record states it: which offsets of which partitions, as ranges with both ends, and why.

    Of the records only these `fields` of their JSON become null; without any, all but offset and timestamp is removed.
    `topic_id` tells the topic from another of its name, where the log has ids. `mark` is random, and its tombstones on
    Kafka have it, so that nobody can write one before it is stated.
    """

    model_config = ConfigDict(frozen=True)

    topic: str
    ranges: dict[int, list[tuple[int, int]]]
    fields: tuple[str, ...] = ()
    reason: str
    topic_id: str | None = None
    mark: str | None = None
    # When its record was appended, by the log.
    at: datetime | None = Field(default=None, exclude=True)

    @classmethod
    def of(
        cls, topic: str, offsets: Offsets, fields: Iterable[str], reason: str, topic_id: str | None = None
    ) -> "Erasure":
        ranges = {partition: ranges_of(each) for partition, each in sorted(offsets.items())}
        names = tuple(sorted(set(fields)))
        return cls(topic=topic, ranges=ranges, fields=names, reason=reason, topic_id=topic_id)

    def removal(self, number: int) -> "Removal":
        """What it removes of each of its records, given its number."""
        return Removal(number, self.fields, self.topic_id, f"{number}/{self.mark}" if self.mark else str(number))

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Each partition and offset."""
        for partition, ranges in self.ranges.items():
            for first, last in ranges:
                for offset in range(first, last + 1):
                    yield partition, offset


@dataclass(frozen=True)
class Removal:
    """What one erasure, by its number, removes of a record of one topic: fields of its JSON, or all of it.

    `tombstone` is the header of its tombstones on Kafka.
    """

    number: int
    fields: tuple[str, ...] = ()
    topic_id: str | None = None
    tombstone: str = ""


@dataclass(frozen=True)
class Remainder:
    """What is left of a record: its value, or nothing, and then the number of the erasure that removed it."""

    value: bytes | None
    erased_by: int | None = None


class Kept(Protocol):
    """A record as a log keeps it."""

    @property
    def key(self) -> str | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


# The removals of one topic by partition and offset, the oldest erasure first.
Removals = Mapping[int, Mapping[int, Sequence[Removal]]]


def removals_of(erasures: Mapping[int, Erasure], topic: str) -> Removals:
    """What erasures, by their numbers, remove of a topic."""
    found: dict[int, dict[int, list[Removal]]] = {}
    for number, each in sorted(erasures.items()):
        if each.topic == topic:
            removal = each.removal(number)
            for partition, offset in each.offsets():
                found.setdefault(partition, {}).setdefault(offset, []).append(removal)
    return found


def of_topic(removals: Removals, topic_id: str | None) -> dict[int, dict[int, list[Removal]]]:
    """Those of the topic with this id: one that was made again has other records at the same offsets."""
    found = {
        partition: {offset: [one for one in some if one.topic_id in (None, topic_id)] for offset, some in each.items()}
        for partition, each in removals.items()
    }
    return {partition: {offset: some for offset, some in each.items() if some} for partition, each in found.items()}


def is_erased(record: Kept, removals: Sequence[Removal]) -> bool:
    """Whether one of these removed all of a record: a producer can set the header, with other ones or its own text."""
    possible = [{erased_header: str(each.number)} for each in removals]
    return record.key is None and record.value is None and record.headers in possible


def remainder(value: bytes | None, removals: Sequence[Removal]) -> Remainder:
    """What is left of a record with this value; one whose fields cannot be told apart is removed as a whole."""
    for each in removals:
        if not each.fields:
            return Remainder(None, each.number)
        if value is not None:
            value = without(value, each.fields)
            if value is None:
                return Remainder(None, each.number)
    return Remainder(value)


def without(value: bytes, fields: Iterable[str]) -> bytes | None:
    """A JSON object with these fields null, byte for byte the same otherwise; None for what is no such object."""
    try:
        text = value.decode()
        json.loads(text)
        spans = list(spans_of(text, skip_space(text, 0), frozenset(fields)))
    except (ValueError, IndexError, RecursionError):
        return None
    return reduce(lambda left, span: left[: span[0]] + "null" + left[span[1] :], reversed(spans), text).encode()


def has_field(value: bytes | None, name: str) -> bool:
    """Whether a JSON object, or an envelope in it, has a field of this name, also one that is null."""
    try:
        text = (value or b"").decode()
        json.loads(text)
        return any(True for _ in spans_of(text, skip_space(text, 0), frozenset([name])))
    except (ValueError, IndexError, RecursionError):
        return False


def spans_of(text: str, at: int, fields: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Where the values of these fields are in the object that begins at a place, and in the envelopes in it."""
    decoder = json.JSONDecoder()
    if text[at] != "{":
        raise ValueError("no object")
    at = skip_space(text, at + 1)
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        begin = skip_space(text, skip_space(text, at) + 1)
        _, end = decoder.raw_decode(text, begin)
        if name in fields:
            yield begin, end
        elif name in envelopes and text[begin] == "{":
            yield from spans_of(text, begin, fields)
        at = skip_space(text, end)
        if text[at] == ",":
            at = skip_space(text, at + 1)


def skip_space(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Offsets as ranges with both ends, in order."""
    found: list[tuple[int, int]] = []
    for each in sorted(set(offsets)):
        if found and each == found[-1][1] + 1:
            found[-1] = (found[-1][0], each)
        else:
            found.append((each, each))
    return found
