"""Compact a partition: of each key the newest record stays, and older ones are emptied as an erasure empties them.

Offsets stay contiguous, and each has a record. Only what has landed is compacted, so bronze has all that the records
said. Segments are written again oldest first, so a tombstone goes after all that it deletes; a kill leaves each
segment as it was or as it becomes, and the next time does the rest: the topic's file says that it was begun.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

from filelock import FileLock

from sluice.log.records import Record, StoredRecord
from sluice.log.rewriting import emptied, rewrite
from sluice.log.segments import records_in
from sluice.log.topic_file import read_topic_file
from sluice.model.erasure import compacted_mark

if TYPE_CHECKING:
    from sluice.log.log import Log


def compact(log: "Log", topic: str, partition: int, before_offset: int, oldest_tombstone: datetime) -> int:
    """Empties the records of segments that end before an offset, if half of their bytes are new since the last time."""
    folder = log.folder(topic, partition)
    pairs = pairwise(log.segments_of(topic, partition))
    segments = [segment for segment, following in pairs if following.base_offset <= before_offset]
    said = read_topic_file(log.root / topic)
    since = said.compacted_before(partition) if said else 0
    fresh = [segment for segment in segments if segment.base_offset >= since]
    size = {segment: segment.path.stat().st_size for segment in segments}
    # As Kafka does it: what a record costs until it is gone does not grow with the partition.
    is_due = sum(size[segment] for segment in fresh) * 2 >= sum(size.values())
    # What a killed one has emptied is small by now, and would wait for long.
    is_begun = said is not None and said.emptied_before.get(partition, 0) > since
    if not fresh or not (is_due or is_begun):
        return 0
    newest = {
        digest(record.key): record.offset
        for segment in fresh
        for record in records_in(segment)
        if record.key is not None
    }
    # Before the first record is emptied: a lake that is behind, and the audit, then know why.
    log.change(topic, lambda file: file.compacting_before(partition, before_offset))
    count = 0
    for segment in segments:
        # For one segment at a time, so that those who append need not wait for all.
        with FileLock(folder / ".lock", timeout=log.lock_seconds):
            count += rewrite(segment, partial(left_of, newest, oldest_tombstone))
    log.change(topic, lambda file: file.having_compacted(partition, before_offset))
    return count


def left_of(newest: Mapping[bytes, int], oldest_tombstone: datetime, record: StoredRecord) -> Record | None:
    """What is left of a record whose key has a newer one, or of an old tombstone; None: it stays as it is."""
    if record.key is None:
        return None
    is_old = newest.get(digest(record.key), -1) > record.offset
    is_spent = record.value is None and record.timestamp < oldest_tombstone
    return emptied(record, compacted_mark) if is_old or is_spent else None


def digest(key: str) -> bytes:
    """A key of any length in sixteen bytes, as there may be many."""
    return blake2b(key.encode(), digest_size=16).digest()
