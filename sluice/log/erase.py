"""Erase records from segments: each segment is written again under its name, and no offset moves.

The new content is written aside, made durable, and takes the name in one step, so a crash leaves the old segment or the
new one. A second call finds nothing to do.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from sluice.log.checksums import crc_bytes, crc_of, ending, seal_bytes, seal_of, with_checksums
from sluice.log.records import Record, StoredRecord, decode, encode
from sluice.log.segments import (
    Segment,
    head_digest,
    lines_of,
    put,
    records_in,
    remove_leftovers,
    segments_in,
)
from sluice.model.erasure import Removal, Removals, erased_header, is_erased, remainder
from sluice.model.ledger import LandedPartition

if TYPE_CHECKING:
    from sluice.log.log import Log

Wanted = Mapping[int, Sequence[Removal]]


def erase(log: "Log", topic: str, removals: Removals) -> int:
    """Removes what an erasure names from the segments of a topic; returns how many were written again."""
    return sum(
        erase_in_partition(log.folder(topic, partition), topic, partition, wanted, log.lock_seconds)
        for partition, wanted in removals.items()
    )


def erase_in_partition(folder: Path, topic: str, partition: int, wanted: Wanted, lock_seconds: float) -> int:
    lock, count = FileLock(folder / ".lock", timeout=lock_seconds), 0
    with lock:
        remove_leftovers(folder)
    offsets = sorted(wanted)
    # Those too that are before the partition's start: they are given up, and may still be there.
    segments = segments_in(folder, topic, partition)
    for segment, following in zip_longest(segments, segments[1:]):
        at = bisect_left(offsets, segment.base_offset)
        if at == len(offsets) or (following and offsets[at] >= following.base_offset):
            continue
        # For one segment at a time, so that those who append need not wait for all.
        with lock:
            if any(differs(record, wanted) for record in records_in(segment)):
                put(segment.path, lines_without(segment, wanted), os.replace)
                count += 1
    return count


def differs(record: StoredRecord, wanted: Wanted) -> bool:
    """Whether something of a record is still to be removed."""
    if record.offset not in wanted or is_erased(record, wanted[record.offset]):
        return False
    left = remainder(record.value, wanted[record.offset])
    return left.erased_by is not None or left.value != record.value


def lines_without(segment: Segment, wanted: Wanted) -> Iterator[bytes]:
    """The lines of a segment, those of other records as they are; with checksums where it has some."""
    has_checksums = False
    for line in lines_of(segment):
        has_checksums = crc_of(line) is not None
        break
    lines = (line_without(segment, line, wanted) for line in lines_of(segment))
    return with_checksums(lines) if has_checksums else lines


def line_without(segment: Segment, line: bytes, wanted: Wanted) -> bytes:
    """A line without its checksums, and without what is wanted gone."""
    record = decode(segment.topic, segment.partition, line, str(segment.path))
    if differs(record, wanted):
        left = remainder(record.value, wanted[record.offset])
        if left.erased_by is not None:
            headers = {erased_header: str(left.erased_by)}
            return encode(record.offset, Record(None, timestamp=record.timestamp, headers=headers))
        return encode(record.offset, Record(left.value, record.key, record.timestamp, record.headers))
    if crc_of(line) is None:
        return line
    seal = seal_bytes if seal_of(line) else 0
    return line[: -crc_bytes - seal] + ending


def marks_after(
    log: "Log", topic: str, landed: Mapping[int, LandedPartition], removals: Removals
) -> dict[int, LandedPartition]:
    """How far each partition has landed, as its newest segment is known after an erasure.

    Only a segment whose first record was erased may begin otherwise than when it landed.
    """
    found = dict(landed)
    for partition, wanted in removals.items():
        known = landed.get(partition)
        if known is None or not any((known.segment or 0) <= each < known.next_offset for each in wanted):
            continue
        for segment in log.segments_of(topic, partition):
            if segment.base_offset == known.segment:
                head = head_digest(segment) if segment.base_offset in wanted else known.head
                size_bytes = segment.path.stat().st_size
                found[partition] = known.model_copy(update={"head": head, "size_bytes": size_bytes})
    return found
