"""The ledger: what each commit of a table was computed from, kept in the commit itself.

It is also the cursor. A commit that holds the new rows holds the input versions too, so no crash can part them, and
there is no checkpoint to lose.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

Cause = Literal["first build", "changes", "rebuild", "declaration changed", "input rebuilt"]


class LandedPartition(BaseModel):
    """How far one partition of a topic has landed, and the mark by which its log is known again."""

    model_config = ConfigDict(frozen=True)

    next_offset: int
    segment: int | None = None
    head: str | None = None


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


class Entry(BaseModel):
    """The user metadata of one commit.

    `changed_at` is the newest version that changed rows when this commit changed none; `epoch_from` is the version
    at which the table was last replaced by one of another schema.
    """

    model_config = ConfigDict(frozen=True)

    dataset: str
    fingerprint: str = ""
    cause: Cause = "changes"
    inputs: dict[str, InputVersion] = {}
    landed: dict[int, LandedPartition] = {}
    rows: RowCounts = no_rows
    changed_at: int | None = None
    epoch_from: int = 0

    def seen(self, table: str, now: InputVersion) -> InputVersion:
        """The version of an input that this entry was computed from; one before its first when there was no table."""
        return self.inputs.get(table, InputVersion(epoch=now.epoch, version=-1))

    def is_computed_from(self, other: "Entry") -> bool:
        """True when both were computed from the same input versions by the same declaration."""
        return self.inputs == other.inputs and self.fingerprint == other.fingerprint

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
    """The newest state of a table that the ledger knows: its entry, and where it stands in the table's history."""

    model_config = ConfigDict(frozen=True)

    table_id: str
    version: int
    timestamp_ms: int
    entry: Entry

    @property
    def as_input(self) -> InputVersion:
        """What a dataset that reads this table records of it."""
        version = self.version if self.entry.changed_at is None else self.entry.changed_at
        return InputVersion(epoch=f"{self.table_id}:{self.entry.epoch_from}", version=version)
