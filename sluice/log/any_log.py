"""The interface of a log, on files or on Kafka."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.log.owned import OwnedTopic
from sluice.log.records import Record, StoredRecord
from sluice.log.topic_file import Retention
from sluice.model.arrow_stream import ArrowStream
from sluice.model.erasure import Offsets, Removals
from sluice.model.ledger import LandedPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sluice.log.verify import Verified


class Batch(Protocol):
    """What lands next: how far each partition will have landed with it, and how many offsets it spans."""

    @property
    def landed(self) -> dict[int, LandedPartition]: ...

    @property
    def records(self) -> int: ...

    def rows(self, spark: "SparkSession") -> "DataFrame":
        """The records as rows of a bronze table, without the time of their landing."""

    def stream(self) -> ArrowStream | None:
        """The same in Arrow, made while they are written; None where only Spark reads them."""

    @property
    def blame(self) -> "Callable[[], None]":
        """Raises the log's own fault, if that is why its records could not be read."""


class AnyLog(Protocol):
    """Topics of partitions of records, which are appended and read again by their offsets.

    They are removed by erasure, or as far as a topic does not retain them after they have landed.
    """

    @property
    def folder_of_files(self) -> Path | None:
        """The folder below which all records are in files that can be replaced; None where they are elsewhere."""

    def require(self) -> None:
        """A LogError when the log cannot be read."""

    def probe(self) -> None:
        """A LogError when the log cannot be written."""

    def topics(self) -> list[str]: ...

    def exists(self, topic: str) -> bool: ...

    def create(self, topic: str) -> None:
        """Makes a topic of the log's usual number of partitions, where there is none."""

    def partitions(self, topic: str) -> list[int]: ...

    def append(self, topic: str, records: Iterable[Record]) -> dict[int, int]:
        """Adds records, each to the partition of its key; returns how many each partition got, once they are kept."""

    def own(self, topic: str, owner: str) -> OwnedTopic:
        """A topic that this process alone appends to; a UsageError where that cannot be made sure."""

    def owner(self, topic: str) -> str | None:
        """Who alone appends to a topic; None where everybody may."""

    def offsets(self, topic: str) -> dict[int, range]:
        """The offsets in each partition."""

    def start_offset(self, topic: str, partition: int) -> int: ...

    def end_offset(self, topic: str, partition: int) -> int: ...

    def read(self, topic: str, partition: int, from_offset: int = 0) -> Iterator[StoredRecord]:
        """The records of a partition from an offset on, as far as it reached when the reading began."""

    def tail(self, topic: str, records_max: int = 10) -> list[StoredRecord]:
        """The newest records of a topic by time."""

    def next_batch(self, topic: str, landed: dict[int, LandedPartition], records_max: int) -> Batch:
        """What lands next after what has landed."""

    def lost(self, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:
        """The offsets of each partition that the log no longer has, and that have not landed."""

    def truncated(self, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:
        """The offsets of each partition that have landed and lie after the log's end."""

    def go_on(self, topic: str, landed: Mapping[int, LandedPartition], starts: Mapping[int, int]) -> None:
        """Gives up what is before an offset of some partitions; a LogError if that would lose a record."""

    def retention(self, topic: str) -> Retention | None:
        """How long records of a topic stay after they have landed; None where nobody has said so."""

    def retain(self, topic: str, retention: Retention) -> None:
        """Says how long records of a topic stay after they have landed; a UsageError where others decide that."""

    def trim(
        self, topic: str, partition: int, before_offset: int, oldest: datetime | None, bytes_max: int | None = None
    ) -> int:
        """Removes old segments that have landed; returns how many."""

    def compact(self, topic: str, partition: int, before_offset: int, oldest_tombstone: datetime) -> int:
        """Empties records that have landed and whose key has a newer one; returns how many."""

    def emptied_before(self, topic: str) -> dict[int, int]:
        """The offsets before which compaction may have emptied records, of the partitions where it has been."""

    def topic_id(self, topic: str) -> str | None:
        """What tells a topic from another one that is made under its name; None where the log has no such id."""

    def require_erasable(self, topic: str, offsets: Offsets, fields: Iterable[str]) -> None:
        """A UsageError where these records, or fields of them, cannot be erased."""

    def erase(self, topic: str, removals: Removals) -> int:
        """Removes what erasures name from a topic, or has it removed; what is gone already is no error."""

    def held(self, topic: str, removals: Removals) -> Iterator[tuple[int, int]]:
        """The partition and offset of each erased record that is still there, as it is not removed at once."""

    def beside_files(self, topic: str) -> Iterator[tuple[int, int, Sequence[object]]]:
        """What a topic has that is in no file of `folder_of_files`: partition, offset, and the parts of each record.

        Also what was erased and is still there, and what a transaction has aborted.
        """

    def marks_after(
        self, topic: str, landed: Mapping[int, LandedPartition], removals: Removals
    ) -> dict[int, LandedPartition]:
        """The marks that identify the log of what has landed, after an erasure."""

    def verify(self, topic: str) -> "Iterator[Verified]":
        """What is in each partition of a topic, every byte checked."""


def records_of_key(log: AnyLog, topic: str, key: str) -> Iterator[StoredRecord]:
    """The records of a topic that have a key; none where there is no topic."""
    for partition in log.partitions(topic) if log.exists(topic) else ():
        yield from (record for record in log.read(topic, partition) if record.key == key)
