"""The embedded log: topics of partitions of immutable segments, on files.

    <log>/<topic>/<partition>/<base offset, 20 digits>.jsonl[.zst]

A line is one record:

    {"offset": int, "key": str|null, "value": str|null, "timestamp": RFC 3339, "headers": {str: str}}

Bytes that are not UTF-8 stand in `value_base64` instead of `value`. Offsets of a partition are contiguous from the base
offset of its first segment. A segment is written aside under a name that begins with a dot, fsynced, and linked to its
name: it is there whole or not at all, and never changes. What a crash leaves behind is only such a dot-file.
"""

from sluice.log.log import Log
from sluice.log.records import Record, StoredRecord, partition_of
from sluice.log.segments import Segment, first_bad_line, head_digest, verified_end

__all__ = [
    "Log",
    "Record",
    "Segment",
    "StoredRecord",
    "first_bad_line",
    "head_digest",
    "partition_of",
    "verified_end",
]
