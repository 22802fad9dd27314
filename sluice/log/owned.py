"""A topic that one process alone appends to: the lock of its partition is held until the process ends or lets go.

A topic has an owner by its `topic.json`. Nobody else appends to it, and nothing of it leaves the log, because its owner
relies on having read every record. It has one partition, so its records have one order and an append is whole.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from sluice.errors import LogError, LogGap, UsageError
from sluice.log.durable import sync
from sluice.log.records import Record, StoredRecord, encode
from sluice.log.segments import Segment, publish, records_in, remove_leftovers
from sluice.log.topic_file import TopicFile, make_topic, read_topic_file

if TYPE_CHECKING:
    from sluice.log.log import Log

lock_seconds_max = 2.0


class OwnedTopic:
    """Appends to one topic as its owner, and reads it. Not for several threads at once."""

    def __init__(self, log: "Log", topic: str, lock: FileLock) -> None:
        self.log = log
        self.topic = topic
        self.folder = log.folder(topic, 0)
        self.lock = lock
        self.bases = array("q")
        # The segment that was asked for last: its first offset, and its records.
        self.last_read: tuple[int, list[StoredRecord]] | None = None
        self.end = 0

    def close(self) -> None:
        """Lets go of the topic; another process can own it."""
        self.lock.release()

    def unread(self) -> Iterator[StoredRecord]:
        """The records that were not read or appended before, after a start or an append that failed; each is durable.

        A LogGap where one is missing.
        """
        try:
            remove_leftovers(self.folder)
            # What an append that failed left is there for good, or not yet.
            sync(self.folder)
            segments = self.log.segments_of(self.topic, 0)
        except OSError as error:
            raise LogError(f"The log {self.log} cannot be read: {error.strerror or error}.") from error
        for segment in segments:
            if segment.base_offset >= self.end:
                # Whole before the first is seen: a segment is read once, also if reading it fails the first time.
                records = list(self.contiguous(segment))
                self.add(segment.base_offset, len(records))
                yield from records

    def contiguous(self, segment: Segment) -> Iterator[StoredRecord]:
        """The records of the next segment; a LogGap where they do not follow those before."""
        for expected, record in enumerate(records_in(segment), start=self.end):
            if record.offset != expected:
                raise LogGap(
                    f"topic {self.topic}, partition 0: offset {expected} is missing; {segment.path} has "
                    f"{record.offset} in its place. Restore the segment from a copy."
                )
            yield record

    def append(self, records: Sequence[Record]) -> None:
        """Appends records as one segment, durable when it returns; a LogError when that is not certain."""
        base = self.end
        self.require_last()
        try:
            lines = [encode(offset, record) for offset, record in enumerate(records, start=base)]
            publish(self.folder, base, lines, compress=self.log.compress)
        except OSError as error:
            raise LogError(f"The log {self.log} cannot be written: {error.strerror or error}.") from error
        self.add(base, len(records))

    def require_last(self) -> None:
        """A LogGap where the segment before is gone: an append would leave a gap, and no start could read over it."""
        if self.bases and not any(path.exists() for path in self.paths(self.bases[-1])):
            raise LogGap(
                f"topic {self.topic}, partition 0: {self.paths(self.bases[-1])[0]} is gone, which was read or written "
                "before. Restore the topic from its newest copy, and start again."
            )

    def paths(self, base: int) -> list[Path]:
        """Where the segment from an offset on can be."""
        return [self.folder / f"{base:020}.jsonl{ending}" for ending in ("", ".zst")]

    def add(self, base: int, count: int) -> None:
        self.bases.append(base)
        self.end = base + count

    def record(self, offset: int) -> StoredRecord:
        """One record that was read or appended before."""
        base = self.bases[bisect_right(self.bases, offset) - 1]
        # A batch that is sent again asks for all records of a segment, one after the other.
        if self.last_read is None or self.last_read[0] != base:
            self.last_read = base, self.records_from(base)
        for record in self.last_read[1][offset - base :]:
            if record.offset == offset:
                return record
        raise self.missing(offset)

    def records_from(self, base: int) -> list[StoredRecord]:
        """The records of the segment that begins with an offset; a LogGap where it is gone."""
        for path in self.paths(base):
            if path.exists():
                return list(records_in(Segment(self.topic, 0, base, path)))
        raise self.missing(base)

    def missing(self, offset: int) -> LogGap:
        return LogGap(f"topic {self.topic}, partition 0: offset {offset} is missing from {self.folder}. Restore it.")


def own(log: "Log", topic: str, owner: str) -> OwnedTopic:
    """The topic as its owner has it, made when it is not there; a LogError where another process has it."""
    folder = log.root / topic
    if not log.exists(topic):
        # With an owner at once: nobody else may write to it in between.
        make_topic(folder, 1, owner=owner)
    if log.partitions(topic) != [0]:
        raise UsageError(
            f"Topic {topic} has several partitions, and decisions are in one. Give commands a topic of their own."
        )
    lock = locked(log, topic)
    try:
        require_whole(log, topic, owner, read_topic_file(folder))
        return OwnedTopic(log, topic, lock)
    except BaseException:
        with suppress(OSError):
            lock.release()
        raise


def require_whole(log: "Log", topic: str, owner: str, said: TopicFile | None) -> None:
    """An error where the topic is another's, or is not there from its first record on."""
    if said is None or said.owner != owner:
        whose = f"has the decisions of {said.owner}" if said and said.owner else "has no decisions"
        raise UsageError(f"Topic {topic} {whose}, and {owner} needs one of its own. Give commands another topic.")
    if said.retention is not None or said.emptied_before or log.start_offset(topic, 0) != 0:
        raise LogError(
            f"Topic {topic} does not retain all of its records, and what was decided follows from all of them. "
            "Restore it from a copy, or give commands a new topic."
        )


def require_free(log: "Log", topic: str) -> None:
    """A LogError while a process has the topic: it relies on what it has read."""
    locked(log, topic).release()


def locked(log: "Log", topic: str) -> FileLock:
    lock = FileLock(log.folder(topic, 0) / ".lock", timeout=lock_seconds_max, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LogError(
            f"Another process has topic {topic}, such as a receiver that decides its commands. Only one can have it at "
            "a time: stop that one, or wait for it."
        ) from error
    return lock
