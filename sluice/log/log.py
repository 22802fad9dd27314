"""Append to topics and read them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from filelock import FileLock, Timeout

from sluice.errors import LogError, UsageError
from sluice.ledger import LandedPartition
from sluice.log.records import Record, StoredRecord, decode, encode, partition_of
from sluice.log.segment_batch import SegmentBatch, next_batch
from sluice.log.segments import (
    Segment,
    last_offset,
    lines_of,
    newest_timestamp,
    publish,
    remove_leftovers,
    segments_in,
)

topic_name = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Log:
    """The log below one folder.

    An append is durable when it returns. It is whole per segment: a crash in the middle leaves a prefix of each
    partition's records, never a part of one.
    """

    def __init__(
        self,
        root: Path,
        *,
        partitions: int = 4,
        compress: bool = False,
        segment_records_max: int = 100_000,
        lock_seconds: float = 30.0,
    ) -> None:
        self.root = root
        self.default_partitions = partitions
        self.compress = compress
        self.segment_records_max = segment_records_max
        self.lock_seconds = lock_seconds

    def __str__(self) -> str:
        return str(self.root)

    def require(self) -> None:
        """Raises a LogError that says what to do when there is no log."""
        if not self.root.is_dir():
            raise LogError(
                f"There is no log at {self}. Write records with: sluice log append TOPIC FILE, or set SLUICE_LOG."
            )

    def topics(self) -> list[str]:
        """The names of the topics that exist."""
        if not self.root.is_dir():
            return []
        return sorted(each.name for each in self.root.iterdir() if topic_name.fullmatch(each.name))

    def exists(self, topic: str) -> bool:
        return (self.root / topic).is_dir()

    def create(self, topic: str) -> None:
        """Makes a topic with its partitions; one that exists keeps those it has."""
        if not topic_name.fullmatch(topic):
            raise UsageError(
                f"'{topic}' cannot name a topic; use lower-case letters, digits and _, beginning with a letter."
            )
        if self.exists(topic) and self.partitions(topic):
            return
        try:
            for partition in range(self.default_partitions):
                (self.root / topic / str(partition)).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogError(f"The log {self.root} cannot be written: {error.strerror}. Set SLUICE_LOG.") from error

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic."""
        folder = self.root / topic
        if not folder.is_dir():
            known = ", ".join(self.topics()) or "none"
            raise LogError(
                f"The log {self.root} has no topic {topic} (topics: {known}). "
                f"Write one with: sluice log append {topic} FILE"
            )
        return sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())

    def append(self, topic: str, records: Iterable[Record]) -> dict[int, int]:
        """Adds records by the partition of their key, in order; those without a key go round the partitions.

        Returns the next offset of each partition that got some. Makes the topic when it is not there.
        """
        self.create(topic)
        count = len(self.partitions(topic))
        waiting: dict[int, list[Record]] = defaultdict(list)
        ends: dict[int, int] = {}
        for index, record in enumerate(records):
            partition = index % count if record.key is None else partition_of(record.key, count)
            waiting[partition].append(record)
            if len(waiting[partition]) >= self.segment_records_max:
                ends[partition] = self.append_to(topic, partition, waiting.pop(partition))
        for partition, rest in sorted(waiting.items()):
            ends[partition] = self.append_to(topic, partition, rest)
        return ends

    def append_to(self, topic: str, partition: int, records: Iterable[Record]) -> int:
        """Adds records to one partition as one segment, and returns the partition's next offset."""
        self.create(topic)
        folder = self.folder(topic, partition)
        try:
            with FileLock(folder / ".lock", timeout=self.lock_seconds):
                remove_leftovers(folder)
                base = self.end_offset(topic, partition)
                lines = [encode(offset, record) for offset, record in enumerate(records, start=base)]
                if lines:
                    publish(folder, base, lines, compress=self.compress)
                return base + len(lines)
        except Timeout as error:
            raise LogError(
                f"Another writer has held topic {topic}, partition {partition}, for {self.lock_seconds:g} s. "
                "Wait for it, or stop it."
            ) from error

    def segments(self, topic: str) -> list[Segment]:
        """The segments of a topic by partition and age."""
        return [
            segment
            for partition in self.partitions(topic)
            for segment in segments_in(self.folder(topic, partition), topic, partition)
        ]

    def start_offset(self, topic: str, partition: int) -> int:
        """The offset of the oldest record that a partition still holds, or of the first that it will."""
        found = segments_in(self.folder(topic, partition), topic, partition)
        return found[0].base_offset if found else 0

    def end_offset(self, topic: str, partition: int) -> int:
        """The offset that the next record of a partition will get."""
        found = segments_in(self.folder(topic, partition), topic, partition)
        return last_offset(found[-1]) + 1 if found else 0

    def offsets(self, topic: str) -> dict[int, range]:
        """The offsets that each partition holds now."""
        return {
            partition: range(self.start_offset(topic, partition), self.end_offset(topic, partition))
            for partition in self.partitions(topic)
        }

    def next_batch(self, topic: str, landed: dict[int, LandedPartition], records_max: int) -> SegmentBatch:
        """What lands next after what has landed: whole segments until there are `records_max`, at least one."""
        return next_batch(self, topic, landed, records_max)

    def trim(self, topic: str, partition: int, before_offset: int, oldest: datetime) -> int:
        """Removes the segments that end before an offset and whose newest record is older than a time; counts them."""
        folder = self.folder(topic, partition)
        with FileLock(folder / ".lock", timeout=self.lock_seconds):
            old = [
                segment
                for segment, following in pairwise(segments_in(folder, topic, partition))
                if following.base_offset <= before_offset and newest_timestamp(segment) < oldest
            ]
            for segment in old:
                segment.path.unlink()
        return len(old)

    def read(self, topic: str, partition: int, from_offset: int = 0) -> Iterator[StoredRecord]:
        """The records of a partition from an offset on, as far as it reached when the reading began."""
        found = segments_in(self.folder(topic, partition), topic, partition)
        later = [segment for segment in found if segment.base_offset > from_offset]
        # The segment before the first later one may hold the offset in its middle.
        for segment in found[max(0, len(found) - len(later) - 1) :]:
            for number, line in enumerate(lines_of(segment), start=1):
                record = decode(topic, partition, line, f"{segment.path}, line {number},")
                if record.offset >= from_offset:
                    yield record

    def tail(self, topic: str, records_max: int = 10) -> list[StoredRecord]:
        """The newest records of a topic by time."""
        newest = [
            record
            for partition in self.partitions(topic)
            for record in self.read(topic, partition, max(0, self.end_offset(topic, partition) - records_max))
        ]
        newest.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
        return newest[-records_max:]

    def folder(self, topic: str, partition: int) -> Path:
        """The folder of a partition that exists."""
        if partition not in self.partitions(topic):
            raise UsageError(f"Topic {topic} has no partition {partition}; it has {self.partitions(topic)}.")
        return self.root / topic / str(partition)
