"""The ledger: what each commit of a table was computed from, kept in the commit itself.

It is also the cursor. A commit that holds the new rows holds the input versions too, so no crash can part them, and
there is no checkpoint to lose.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

Cause = Literal[
    "first build",
    "changes",
    "watermark",
    "rebuild",
    "declaration changed",
    "input rebuilt",
    "replay",
    "promoted",
    "rolled back",
]


class LandedPartition(BaseModel):
    """How far one partition of a topic has landed, and the mark by which its log is known again."""

    model_config = ConfigDict(frozen=True)

    next_offset: int
    segment: int | None = None
    head: str | None = None


class Reached(BaseModel):
    """How far one partition of a topic has come: the latest event time of a usable record, and the latest log time."""

    model_config = ConfigDict(frozen=True)

    event_time: datetime | None
    log_time: datetime

    def with_more(self, other: "Reached") -> "Reached":
        known = [each for each in (self.event_time, other.event_time) if each is not None]
        return Reached(event_time=max(known, default=None), log_time=max(self.log_time, other.log_time))


class InputVersion(BaseModel):
    """The version of an input table, and the table's epoch: rows of another epoch cannot be compared by changes."""

    model_config = ConfigDict(frozen=True)

    epoch: str
    version: int


class RowCounts(BaseModel):
    """How many rows a commit inserted, updated and deleted."""

    model_config = ConfigDict(frozen=True)

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        return self.inserted + self.updated + self.deleted


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
    `changed_at` is the newest version that changed rows when this commit changed none; `epoch_from` is the version
    at which the table was last replaced by one of another schema. A table that was promoted or rolled back says by
    which `replay` and `because` of what, and after a rollback the fingerprint that was `rejected`.
    """

    model_config = ConfigDict(frozen=True)

    dataset: str
    fingerprint: str = ""
    cause: Cause = "changes"
    inputs: dict[str, InputVersion] = {}
    landed: dict[int, LandedPartition] = {}
    rows: RowCounts = no_rows
    reached: dict[str, Reached] = {}
    watermark: datetime | None = None
    changed_at: int | None = None
    epoch_from: int = 0
    replay: str | None = None
    because: str | None = None
    rejected: str | None = None

    def seen(self, table: str, now: InputVersion) -> InputVersion:
        """The version of an input that this entry was computed from; one before its first when there was no table."""
        return self.inputs.get(table, InputVersion(epoch=now.epoch, version=-1))

    def is_computed_from(self, other: "Entry") -> bool:
        """True when both were computed from the same input versions by the same declaration."""
        return (self.inputs, self.fingerprint, self.watermark) == (other.inputs, other.fingerprint, other.watermark)

    def to_json(self) -> str:
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    def from_json(cls, text: str | None) -> "Entry | None":
        """The entry, or None for the commit of another program (OPTIMIZE by hand, for one)."""
        try:
            return cls.model_validate_json(text or "")
        except ValidationError:
            return None


class Commit(BaseModel):
    """A state of a table that the ledger knows: its entry, and where it stands in the table's history.

    Of the newest one, `fence` is the number of the newest commit of rows.
    """

    model_config = ConfigDict(frozen=True)

    table_id: str
    version: int
    timestamp_ms: int
    entry: Entry
    fence: int = 0

    @property
    def as_input(self) -> InputVersion:
        """What a dataset that reads this table records of it."""
        version = self.version if self.entry.changed_at is None else self.entry.changed_at
        return InputVersion(epoch=f"{self.table_id}:{self.entry.epoch_from}", version=version)
