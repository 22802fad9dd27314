"""The ledger: what each commit of a table was computed from, kept in the commit itself.

It is also the cursor. The commit with the new rows has the input versions too, so no crash can separate them, and there
is no checkpoint to lose.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

Cause = Literal[
    "first build",
    "changes",
    "watermark",
    "rebuild",
    "declaration changed",
    "input rebuilt",
    "altered",
    "unfinished",
    "replay",
    "promoted",
    "rolled back",
    "erasure",
]
# What changes rows otherwise than the inputs do: of some, or of all that there were.
repairs = (
    *("rebuild", "altered", "unfinished", "replay", "promoted", "rolled back"),
    *("first build", "declaration changed", "input rebuilt"),
)


class LandedPartition(BaseModel):
    """How far one partition of a topic has landed, and the marks that identify its log.

    `segment` is the base offset of the newest segment that landed, `head` a digest of its first line, and `size_bytes`
    that of its file. `topic_id` is the topic's id; on Kafka `head` is, and there is no segment.
    """

    model_config = ConfigDict(frozen=True)

    next_offset: int
    segment: int | None = None
    head: str | None = None
    size_bytes: int | None = None
    topic_id: str | None = None

    @property
    def of_topic(self) -> str | None:
        """The id of the topic that has landed; None where an older release landed it, or made the topic."""
        return self.head if self.segment is None else self.topic_id


def are_of_another_topic(landed: Mapping[int, LandedPartition], topic_id: str | None) -> bool:
    """Whether the records that have landed are those of another topic than the one with this id."""
    return topic_id is not None and any(each.of_topic not in (None, topic_id) for each in landed.values())


class Reached(BaseModel):
    """How far one partition of a topic has come: the latest event time of a usable record, and the latest log time."""

    model_config = ConfigDict(frozen=True)

    event_time: datetime | None
    log_time: datetime

    def with_more(self, other: "Reached") -> "Reached":
        known = [each for each in (self.event_time, other.event_time) if each is not None]
        return Reached(event_time=max(known, default=None), log_time=max(self.log_time, other.log_time))


class InputVersion(BaseModel):
    """The version of an input table, and the table's epoch: rows of another epoch cannot be compared by changes.

    `commit_ms` is the timestamp that the commit of this version states. It distinguishes the commit from another one
    with the same number, as in a table restored from a backup. Entries of older releases lack it.
    """

    model_config = ConfigDict(frozen=True)

    epoch: str
    version: int
    commit_ms: int | None = None

    def is_state(self, other: "InputVersion") -> bool:
        """True when both name the same state of the table; a missing timestamp matches any."""
        is_same_commit = self.commit_ms is None or other.commit_ms is None or self.commit_ms == other.commit_ms
        return (self.epoch, self.version) == (other.epoch, other.version) and is_same_commit


def same_states(these: Mapping[str, InputVersion], those: Mapping[str, InputVersion]) -> bool:
    """True when both name the same inputs in the same states."""
    return these.keys() == those.keys() and all(these[name].is_state(those[name]) for name in these)


class RowCounts(BaseModel):
    """How many rows a commit inserted, updated and deleted."""

    model_config = ConfigDict(frozen=True)

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        return self.inserted + self.updated + self.deleted

    def __add__(self, other: "RowCounts") -> "RowCounts":
        return RowCounts(
            inserted=self.inserted + other.inserted,
            updated=self.updated + other.updated,
            deleted=self.deleted + other.deleted,
        )


no_rows = RowCounts()


def watermark_of(reached: Mapping[str, Reached], idle_after: timedelta | None) -> datetime | None:
    """The event time that every active partition has reached: the least of their latest.

    A partition is idle, and is not waited for, when its newest record is older by `idle_after` than the newest of all.
    """
    newest = max((each.log_time for each in reached.values()), default=None)
    active = [
        each.event_time
        for each in reached.values()
        if each.event_time is not None
        and (idle_after is None or newest is None or each.log_time >= newest - idle_after)
    ]
    return min(active, default=None)


class Entry(BaseModel):
    """The user metadata of one commit.

    `reached` is by `topic/partition`, and `watermark` the event time that all of them, or all inputs, have reached.
    `changed_at` is the newest version that changed rows when this commit changed none, and `changed_ms` the time of
    that commit; `epoch_from` is the version at which the table was last replaced by one of another schema.

    `beside` are the numbers of the newest commits that the dataset had made to the other tables it writes. If a table
    has another number, a run ended between them and this table. Older commits lack it.

    `declared` has the fingerprint of each field of the declaration; older commits do not.

    `began_ms` is when its rows began to be computed; the commit is their end. `read_at` is the version of the table
    with which they were compared: a commit of another program between the two was not seen. Older commits lack it.

    Of a bronze table, `erased` is the number after the last erasure that its rows and the log honour, and `forgotten`
    after the last whose old values no version of a table, and no file beside it, has any more. `gone` is the number
    after the last whose records the log no longer has: Kafka removes them when it compacts.

    A table that was promoted or rolled back says by which `replay` and `because` of what, and after a rollback the
    fingerprint that was `rejected`. One that was altered says `because` of which commit.
    """

    model_config = ConfigDict(frozen=True)

    dataset: str
    fingerprint: str = ""
    declared: dict[str, str] = {}
    cause: Cause = "changes"
    inputs: dict[str, InputVersion] = {}
    beside: dict[str, int] = {}
    landed: dict[int, LandedPartition] = {}
    rows: RowCounts = no_rows
    reached: dict[str, Reached] = {}
    watermark: datetime | None = None
    changed_at: int | None = None
    changed_ms: int | None = None
    epoch_from: int = 0
    began_ms: int | None = None
    read_at: int | None = None
    erased: int = 0
    forgotten: int = 0
    gone: int = 0
    replay: str | None = None
    because: str | None = None
    rejected: str | None = None

    def seen(self, table: str, now: InputVersion) -> InputVersion:
        """The version of an input that this entry was computed from; one before its first when there was no table."""
        return self.inputs.get(table, InputVersion(epoch=now.epoch, version=-1))

    def is_computed_from(self, other: "Entry") -> bool:
        """True when both were computed from the same input versions by the same declaration."""
        these, those = ((each.fingerprint, each.watermark, each.erased, each.beside) for each in (self, other))
        return these == those and same_states(self.inputs, other.inputs)

    def repeats(self, before: "Entry") -> bool:
        """True of one that upkeep wrote again: it changed no row, and was computed from what the one before was."""
        return self.changed_at is not None and self.is_computed_from(before)

    def says_the_same(self, other: "Entry | None") -> bool:
        """True when only when they were computed may differ, or one does not say which fields were declared."""
        same = {"began_ms": self.began_ms, "read_at": self.read_at, "declared": self.declared}
        return other is not None and self == other.model_copy(update=same)

    def changed_fields(self, declared: Mapping[str, str]) -> tuple[str, ...]:
        """The fields of a declaration that are not as they were; none where that is not known."""
        if not self.declared or not declared:
            return ()
        if self.declared.get("kind") != declared.get("kind"):
            return ("kind",)
        names = {**self.declared, **declared}
        return tuple(name for name in names if self.declared.get(name) != declared.get(name))

    def to_json(self) -> str:
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | None) -> "Entry | None":
        """The entry, or None for the commit of another program (OPTIMIZE by hand, for one)."""
        try:
            return cls.model_validate_json(text or "")
        except ValidationError:
            return None


def by_another_program(commit: Mapping[str, Any]) -> str:
    """Which commit of a table's log is another program's."""
    return f"version {commit['version']} is {commit.get('operation')} by another program"


# A commit that repeats the entry of another has changed rows itself.
changed_here = {"changed_at": None, "changed_ms": None}


class Commit(BaseModel):
    """A state of a table in the ledger: its entry, and its place in the table's history.

    Of the newest one, `fence` is the number of the dataset's newest commit, and `newest_version` that of the table, to
    which other programs may have committed since.
    """

    model_config = ConfigDict(frozen=True)

    table_id: str
    version: int
    timestamp_ms: int
    entry: Entry
    fence: int = 0
    newest_version: int = 0

    @property
    def accounts_until(self) -> int:
        """The version up to which the ledger accounts for every row; what others committed later is not in it."""
        read_at = self.entry.read_at
        return self.version if read_at is None or read_at >= self.version - 1 else read_at

    @property
    def as_input(self) -> InputVersion:
        """What a dataset that reads this table records of it."""
        epoch = f"{self.table_id}:{self.entry.epoch_from}"
        if self.entry.changed_at is None:
            return InputVersion(epoch=epoch, version=self.version, commit_ms=self.timestamp_ms)
        return InputVersion(epoch=epoch, version=self.entry.changed_at, commit_ms=self.entry.changed_ms)

    @property
    def seconds(self) -> float | None:
        """How long its rows took, until they were committed; None where the ledger does not say."""
        began = self.entry.began_ms
        return None if began is None else max(0.0, (self.timestamp_ms - began) / 1000)

    def unchanged(self, entry: Entry) -> Entry:
        """The entry for a commit after this one that changes no row: readers go on from the same state."""
        here = self.as_input
        since = {"changed_at": here.version, "changed_ms": here.commit_ms, "epoch_from": self.entry.epoch_from}
        return entry.model_copy(update=since)

    def repeated(self, read_at: int, because: str | None = None) -> Entry:
        """The entry for a commit after this one that says again how far the table is, and nothing else."""
        began = {"began_ms": None, "read_at": read_at}
        said = {"cause": "changes", "rows": no_rows, "replay": None, "because": because, **began}
        return self.unchanged(self.entry.model_copy(update=said))
