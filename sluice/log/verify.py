"""Verify a log: every segment read whole, its checksums, its records and its place after the one before it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import LogError
from sluice.log.checksums import seal_of
from sluice.log.segments import contiguous_end, ends_of, records_in

if TYPE_CHECKING:
    from sluice.log.log import Log


@dataclass(frozen=True)
class Verified:
    """What was found in one partition; `with_checksums` are the segments of which every byte was proved."""

    topic: str
    partition: int
    segments: int
    with_checksums: int
    records: int
    faults: tuple[str, ...]


def verify(log: "Log", topic: str) -> Iterator[Verified]:
    """What is in each partition of a topic; a fault in one segment hides no other. Raises LogError without a topic."""
    for partition in log.partitions(topic):
        yield verified_partition(log, topic, partition)


def verified_partition(log: "Log", topic: str, partition: int) -> Verified:
    try:
        segments = log.segments_of(topic, partition)
    except LogError as error:
        return Verified(topic, partition, 0, 0, 0, (str(error),))
    faults: list[str] = []
    with_checksums, records = 0, 0
    expected = log.said_start(topic, partition)
    for segment in segments:
        if expected is not None and segment.base_offset != expected:
            faults.append(f"{segment.path} begins at offset {segment.base_offset}, where {expected} would follow.")
        try:
            # In one pass: each line is proved, and then decoded.
            expected = contiguous_end(segment, (record.offset for record in records_in(segment)))
        except LogError as error:
            faults.append(str(error))
            # Where a damaged segment ends is not known.
            expected = None
            continue
        records += expected - segment.base_offset
        with_checksums += seal_of(ends_of(segment)[1]) is not None
    return Verified(topic, partition, len(segments), with_checksums, records, tuple(faults))
