"""Erase records from segments: each segment is written again under its name, and no offset moves.

The new content is written aside, made durable, and takes the name in one step, so a crash leaves the old segment or the
new one. A second call finds nothing to do.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from sluice.log.records import Record, StoredRecord
from sluice.log.rewriting import emptied, rewrite
from sluice.log.segments import head_digest, remove_leftovers, segments_in
from sluice.model.erasure import Removal, Removals, is_erased, remainder
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
            count += bool(rewrite(segment, partial(left_by, wanted)))
    return count


def left_by(removals: Wanted, record: StoredRecord) -> Record | None:
    """What is to be left of a record; None where all of it stays, or what is wanted is gone already."""
    wanted = removals.get(record.offset)
    if wanted is None or is_erased(record, wanted):
        return None
    left = remainder(record.value, wanted)
    if left.erased_by is not None:
        return emptied(record, str(left.erased_by))
    if left.value == record.value:
        return None
    return Record(left.value, record.key, record.timestamp, record.headers)


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
