"""Append to topics and read them."""

import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from sluice.errors import LogError, LogGap, UsageError
from sluice.log.compact import compact
from sluice.log.erase import erase, marks_after
from sluice.log.owned import OwnedTopic, own, require_free
from sluice.log.records import Record, StoredRecord, encode, partition_of
from sluice.log.segment_batch import SegmentBatch, as_compacted, missing_before, next_batch, offsets_reused
from sluice.log.segments import (
    Segment,
    forgettable,
    last_offset,
    names_in,
    publish,
    records_in,
    remove_leftovers,
    segments_in,
)
from sluice.log.topic_file import Retention, TopicFile, make_topic, read_topic_file, write_topic_file
from sluice.log.verify import Verified, verify
from sluice.model.erasure import Offsets, Removals, of_topic
from sluice.model.ledger import LandedPartition

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

    @property
    def folder_of_files(self) -> Path:
        """The folder below which all records are."""
        return self.root

    def require(self) -> None:
        """Raises a LogError that says what to do when there is no log."""
        if not self.root.is_dir():
            raise LogError(
                f"There is no log at {self}. Write records with: sluice log append TOPIC FILE, or set SLUICE_LOG."
            )

    def probe(self) -> None:
        """Raises a LogError when nothing could be appended now: a full disk, a folder that may not be written."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root, prefix=".probe-") as file:
                file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LogError(f"The log {self.root} cannot be written: {error.strerror or error}.") from error

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
            make_topic(self.root / topic, self.default_partitions)
        except OSError as error:
            raise LogError(f"The log {self.root} cannot be written: {error.strerror}. Set SLUICE_LOG.") from error

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic; raises LogGap if they are not those in its `topic.json`."""
        folder = self.root / topic
        if not folder.is_dir():
            known = ", ".join(self.topics()) or "none"
            raise LogError(
                f"The log {self.root} has no topic {topic} (topics: {known}). "
                f"Write one with: sluice log append {topic} FILE"
            )
        found = sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal())
        said = read_topic_file(folder)
        if said is not None:
            require_partitions(folder, found, said)
        return found

    def append(self, topic: str, records: Iterable[Record]) -> dict[int, int]:
        """Adds records by the partition of their key, in order; those without a key go round the partitions.

        Returns the next offset of each partition that got some. Makes the topic when it is not there. A LogError when
        the log cannot be written says how many records are in it all the same.
        """
        self.create(topic)
        self.require_no_owner(topic, "only it may append to it")
        ends: dict[int, int] = {}
        appended = 0
        for partition, batch in self.by_partition(records, len(self.partitions(topic))):
            try:
                ends[partition] = self.append_to(topic, partition, batch)
            except LogError as error:
                raise LogError(f"{error}{kept_of(appended)}") from error
            appended += len(batch)
        return ends

    def by_partition(self, records: Iterable[Record], count: int) -> Iterator[tuple[int, list[Record]]]:
        """Records in batches of one partition each, of as many as a segment has at most."""
        waiting: dict[int, list[Record]] = defaultdict(list)
        for index, record in enumerate(records):
            partition = index % count if record.key is None else partition_of(record.key, count)
            waiting[partition].append(record)
            if len(waiting[partition]) >= self.segment_records_max:
                yield partition, waiting.pop(partition)
        yield from sorted(waiting.items())

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
                f"Another writer has locked topic {topic}, partition {partition}, for {self.lock_seconds:g} s. "
                "Wait for it, or stop it."
            ) from error
        except OSError as error:
            raise LogError(f"The log {self.root} cannot be written: {error.strerror or error}.") from error

    def own(self, topic: str, owner: str) -> OwnedTopic:
        """A topic that this process alone appends to until it lets go; made when it is not there."""
        if not topic_name.fullmatch(topic):
            raise UsageError(
                f"'{topic}' cannot name a topic; use lower-case letters, digits and _, beginning with a letter."
            )
        try:
            return own(self, topic, owner)
        except OSError as error:
            raise LogError(f"The log {self.root} cannot be written: {error.strerror or error}.") from error

    def owner(self, topic: str) -> str | None:
        """Who alone appends to a topic; None where everybody may."""
        said = read_topic_file(self.root / topic) if self.exists(topic) else None
        return None if said is None else said.owner

    def require_no_owner(self, topic: str, why: str) -> None:
        """A UsageError for a topic that has an owner."""
        owner = self.owner(topic)
        if owner is not None:
            raise UsageError(f"Topic {topic} has what the commands {owner} decided: {why}.")

    def segments(self, topic: str) -> list[Segment]:
        """The segments of a topic by partition and age."""
        return [segment for partition in self.partitions(topic) for segment in self.segments_of(topic, partition)]

    def segments_of(self, topic: str, partition: int) -> list[Segment]:
        """The segments of a partition by age, from the offset on at which it begins."""
        return self.segments_since(topic, partition, None)

    def segments_since(self, topic: str, partition: int, base_offset: int | None) -> list[Segment]:
        """The same from one of them on; all where that is not there."""
        folder, names = self.folder(topic, partition), self.names_of(topic, partition)
        since = base_offset if base_offset in names else None
        wanted = sorted(each for each in names if since is None or each >= since)
        return [Segment(topic, partition, each, folder / names[each]) for each in wanted]

    def names_of(self, topic: str, partition: int) -> dict[int, str]:
        """The files of these segments by base offset."""
        start = self.said_start(topic, partition) or 0
        found = names_in(self.folder(topic, partition))
        return {base_offset: name for base_offset, name in found.items() if base_offset >= start} if start else found

    def said_start(self, topic: str, partition: int) -> int | None:
        """The offset at which a partition begins by its `topic.json`; None when there is none."""
        said = read_topic_file(self.root / topic)
        return None if said is None else said.start(partition)

    def start_offset(self, topic: str, partition: int) -> int:
        """The offset of the oldest record in a partition, or of the first that it will get."""
        return min(self.names_of(topic, partition), default=self.said_start(topic, partition) or 0)

    def end_offset(self, topic: str, partition: int) -> int:
        """The offset that the next record of a partition will get."""
        names = self.names_of(topic, partition)
        if not names:
            return self.said_start(topic, partition) or 0
        newest = max(names)
        path = self.folder(topic, partition) / names[newest]
        return last_offset(Segment(topic, partition, newest, path)) + 1

    def offsets(self, topic: str) -> dict[int, range]:
        """The offsets in each partition now."""
        return {
            partition: range(self.start_offset(topic, partition), self.end_offset(topic, partition))
            for partition in self.partitions(topic)
        }

    def next_batch(self, topic: str, landed: dict[int, LandedPartition], records_max: int) -> SegmentBatch:
        """What lands next after what has landed: whole segments until there are `records_max`, at least one."""
        return next_batch(self, topic, landed, records_max)

    def verify(self, topic: str) -> Iterator[Verified]:
        """What is in each partition of a topic, every byte checked; a LogError when there is no such topic."""
        return verify(self, topic)

    def topic_id(self, topic: str) -> str | None:
        """What tells a topic from another one that is made under its name; None for one that an older release made."""
        said = read_topic_file(self.root / topic)
        return None if said is None else said.id

    def require_erasable(self, topic: str, offsets: Offsets, fields: Iterable[str]) -> None:  # noqa: ARG002
        """Nothing to say: all that is in segments can be erased, unless somebody owns the topic now."""
        if self.owner(topic) is not None:
            require_free(self, topic)

    def erase(self, topic: str, removals: Removals) -> int:
        """Removes what erasures name from the segments of a topic; returns how many were written again."""
        if self.owner(topic) is not None:
            require_free(self, topic)
        return erase(self, topic, of_topic(removals, self.topic_id(topic)))

    def held(self, topic: str, removals: Removals) -> Iterator[tuple[int, int]]:  # noqa: ARG002
        """Nothing: what is erased is gone at once."""
        return iter(())

    def beside_files(self, topic: str) -> Iterator[tuple[int, int, Sequence[object]]]:  # noqa: ARG002
        """Nothing: all records are in the segments."""
        return iter(())

    def marks_after(
        self, topic: str, landed: Mapping[int, LandedPartition], removals: Removals
    ) -> dict[int, LandedPartition]:
        """How far each partition has landed, as its newest segment is known after an erasure."""
        return marks_after(self, topic, landed, of_topic(removals, self.topic_id(topic)))

    def retention(self, topic: str) -> Retention | None:
        """How long records of a topic stay after they have landed; None where nobody has said so."""
        self.partitions(topic)
        said = read_topic_file(self.root / topic)
        return None if said is None else said.retention

    def retain(self, topic: str, retention: Retention) -> None:
        """Says how long records of a topic stay after they have landed."""
        self.require_no_owner(topic, "they follow from all of its records, so it retains them")
        self.change(topic, lambda said: said.model_copy(update={"retention": retention}))

    def trim(
        self, topic: str, partition: int, before_offset: int, oldest: datetime | None, bytes_max: int | None = None
    ) -> int:
        """Removes the oldest segments that end before an offset, and are older than a time or too much by their size.

        Returns how many. Those before one that stays are all removed, so that offsets stay contiguous. Nothing of a
        topic that has an owner is removed.
        """
        if self.owner(topic) is not None:
            return 0
        folder = self.folder(topic, partition)
        with FileLock(folder / ".lock", timeout=self.lock_seconds):
            segments = self.segments_of(topic, partition)
            old = forgettable(segments, before_offset, oldest, bytes_max)
            if old and read_topic_file(self.root / topic):
                # Before the deletion: what a crash leaves is then before the start, and ignored until the next time.
                self.start_at(topic, {partition: segments[len(old)].base_offset})
            start = min(self.said_start(topic, partition) or 0, before_offset)
            left = [each for each in segments_in(folder, topic, partition) if each.base_offset < start]
            gone = {segment.path for segment in (*left, *old)}
            for path in sorted(gone):
                path.unlink()
        return len(gone)

    def compact(self, topic: str, partition: int, before_offset: int, oldest_tombstone: datetime) -> int:
        """Empties the records of segments before an offset whose key has a newer record; returns how many."""
        return 0 if self.owner(topic) is not None else compact(self, topic, partition, before_offset, oldest_tombstone)

    def emptied_before(self, topic: str) -> dict[int, int]:
        """The offsets before which compaction may have emptied records, of the partitions where it has been."""
        said = read_topic_file(self.root / topic)
        return {} if said is None else said.emptied_before

    def lost(self, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:
        """The offsets of each partition that are missing where the next ones would land from."""
        found = {
            partition: missing_before(
                self.segments_of(topic, partition), self.said_start(topic, partition), landed.get(partition)
            )
            for partition in self.partitions(topic)
        }
        return {partition: offsets for partition, offsets in found.items() if offsets}

    def truncated(self, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:
        """The offsets of each partition that have landed and lie after the log's end."""
        ends = {partition: self.end_offset(topic, partition) for partition in self.partitions(topic)}
        found = {
            partition: range(end, landed[partition].next_offset)
            for partition, end in ends.items()
            if partition in landed
        }
        return {partition: offsets for partition, offsets in found.items() if offsets}

    def go_on(self, topic: str, landed: Mapping[int, LandedPartition], starts: Mapping[int, int]) -> None:
        """Gives up what is before an offset of some partitions; raises a LogError if that would lose a record."""
        landed = as_compacted(self, topic, landed)
        for partition in starts:
            if partition in landed:
                reused = offsets_reused(self.segments_of(topic, partition), landed[partition])
                if reused:
                    raise LogError(
                        f"topic {topic}, partition {partition}: {reused[0].path} gives offsets that have landed to "
                        "other records. Move the file away, go on, and append its values again."
                    )
        self.start_at(topic, starts)

    def start_at(self, topic: str, starts: Mapping[int, int]) -> None:
        """Says in the topic's file that partitions begin at these offsets."""
        self.change(topic, lambda said: said.starting_at(starts))

    def change(self, topic: str, changed: Callable[[TopicFile], TopicFile]) -> None:
        """Replaces the topic's file by another; a topic of an older release gets one that says what is there."""
        folder = self.root / topic
        partitions = self.partitions(topic)
        with FileLock(folder / ".lock", timeout=self.lock_seconds):
            said = read_topic_file(folder)
            if said is None:
                starts = {each: self.start_offset(topic, each) for each in partitions}
                said = TopicFile(partitions=len(partitions)).starting_at({p: at for p, at in starts.items() if at})
            write_topic_file(folder, changed(said))

    def read(self, topic: str, partition: int, from_offset: int = 0) -> Iterator[StoredRecord]:
        """The records of a partition from an offset on, as far as it reached when the reading began."""
        found = self.segments_of(topic, partition)
        later = [segment for segment in found if segment.base_offset > from_offset]
        # The segment before the first later one may contain the offset.
        for segment in found[max(0, len(found) - len(later) - 1) :]:
            for record in records_in(segment):
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


def kept_of(appended: int) -> str:
    """What became of the records before those that could not be written."""
    if not appended:
        return ""
    return (
        f" {appended:,} of the records were appended before that. If you append all again, the log has these twice; "
        "`sluice log import` appends each row of a file once, whenever it is cut off."
    )


def require_partitions(folder: Path, found: Sequence[int], said: TopicFile) -> None:
    """A LogGap that names a partition's folder which is missing, or which the topic's file does not know of."""
    missing = [partition for partition in range(said.partitions) if partition not in found]
    if missing:
        raise LogGap(
            f"topic {folder.name} has {said.partitions} partitions, but the folder of partition {missing[0]} is "
            f"missing: {folder / str(missing[0])}. Restore it from a copy. If it was empty, make it again: mkdir"
        )
    unknown = [partition for partition in found if partition >= said.partitions]
    if unknown:
        raise LogGap(
            f"topic {folder.name} has {said.partitions} partitions by its topic.json, but there is a folder "
            f"{folder / str(unknown[0])}. Move it away, or set the number of partitions in topic.json."
        )
