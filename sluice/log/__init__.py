"""The log: topics of partitions of records, on files (`Log`, the default) or on Kafka (`KafkaLog`).

The embedded log: topics of partitions of immutable segments, on files.

    <log>/<topic>/topic.json
    <log>/<topic>/<partition>/<base offset, 20 digits>.jsonl[.zst]

A line is one record:

    {"offset": int, "key": str|null, "value": str|null, "timestamp": RFC 3339, "headers": {str: str}}

Bytes that are not UTF-8 are in `value_base64` instead of `value`. After the headers come `crc32`, the checksum of the
line, and in the last line of a segment `segment_sha256`, that of the segment (`checksums.py`); segments of other
programs may lack them. Offsets of a partition are contiguous from the base offset of its first segment. A segment is
written under a temporary name that begins with a dot, fsynced, and linked to its name: it is published atomically, and
changes only by an erasure or by compaction, which replace it atomically. A crash leaves only such a dot-file behind.

`topic.json` has the number of partitions, and the first offset of each partition whose oldest records were removed:
`{"partitions": 4, "starts": {"0": 1200}}`. So a missing folder, or a missing first segment, is noticed. A topic that
lacks the file, of an older release or another program, has the partitions whose folders are there. It may also have
`retention`, what of the topic stays after it has landed, `compacted`, the offsets before which it was compacted, and
`compacting`, those of a compaction that was begun. A topic with an `owner` is appended to by that alone.
"""

from sluice.log.any_log import AnyLog, Batch, records_of_key
from sluice.log.kafka import KafkaLog, KafkaSecurity
from sluice.log.log import Log
from sluice.log.owned import OwnedTopic
from sluice.log.records import Record, StoredRecord, partition_of
from sluice.log.reserved import is_reserved, require_open
from sluice.log.segments import Segment, head_digest, verified_end
from sluice.log.topic_file import Retention
from sluice.log.verify import Verified, verify

__all__ = [
    "AnyLog",
    "Batch",
    "KafkaLog",
    "KafkaSecurity",
    "Log",
    "OwnedTopic",
    "Record",
    "Retention",
    "Segment",
    "StoredRecord",
    "Verified",
    "head_digest",
    "is_reserved",
    "partition_of",
    "records_of_key",
    "require_open",
    "verified_end",
    "verify",
]
