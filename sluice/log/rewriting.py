"""Write a segment again under its name without a part of what its records say; offsets and other lines stay.

The new content is written aside, made durable, and takes the name in one step, so a crash leaves the old segment or the
new one.
"""

import os
from collections.abc import Callable, Iterator

from sluice.log.checksums import crc_bytes, crc_of, ending, seal_bytes, seal_of, with_checksums
from sluice.log.records import Record, StoredRecord, decode, encode
from sluice.log.segments import Segment, lines_of, put, records_in
from sluice.model.erasure import erased_header

# What is to be left of a record; None where it stays as it is.
Left = Callable[[StoredRecord], Record | None]


def emptied(record: StoredRecord, by: str) -> Record:
    """A record without what it said: it keeps its offset and timestamp, and says by what it was emptied."""
    return Record(None, timestamp=record.timestamp, headers={erased_header: by})


def is_emptied(record: StoredRecord) -> bool:
    """Whether a record may have said something once."""
    return record.value is None and erased_header in record.headers


def rewrite(segment: Segment, left: Left) -> int:
    """Writes a segment again if something is not to stay; returns how many records that changed.

    Only while its partition is locked. A segment that was removed meanwhile is no error.
    """
    if not segment.path.exists():
        return 0
    count = sum(left(record) is not None for record in records_in(segment))
    if count:
        put(segment.path, lines_left(segment, left), os.replace)
    return count


def lines_left(segment: Segment, left: Left) -> Iterator[bytes]:
    """The lines of a segment, those of other records as they are; with checksums where it has some."""
    has_checksums = False
    for line in lines_of(segment):
        has_checksums = crc_of(line) is not None
        break
    lines = (line_left(segment, line, left) for line in lines_of(segment))
    return with_checksums(lines) if has_checksums else lines


def line_left(segment: Segment, line: bytes, left: Left) -> bytes:
    """A line without its checksums, and without what is not to stay."""
    record = decode(segment.topic, segment.partition, line, str(segment.path))
    changed = left(record)
    if changed is not None:
        return encode(record.offset, changed)
    if crc_of(line) is None:
        return line
    seal = seal_bytes if seal_of(line) else 0
    return line[: -crc_bytes - seal] + ending
