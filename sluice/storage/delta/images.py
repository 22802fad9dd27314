"""The rows that one commit took away and put in their place, as Arrow, from the change feed or from two states."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import ArrowInvalid, RecordBatchReader

from sluice.errors import SluiceError
from sluice.model.ledger import Entry
from sluice.storage.delta.opened import spark_types
from sluice.storage.delta.reader import Reader, not_utf8
from sluice.storage.files import Files


class ChangesLost(SluiceError):
    """The changes that a commit made can no longer be read."""


@dataclass(frozen=True)
class CommitFile:
    """A commit as its file in the log states it."""

    version: int
    actions: tuple[Mapping[str, Any], ...]

    @cached_property
    def info(self) -> Mapping[str, Any]:
        return next((each["commitInfo"] for each in self.actions if "commitInfo" in each), {})

    @property
    def timestamp_ms(self) -> int:
        return int(self.info.get("timestamp", 0))

    @property
    def committed_at(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    @cached_property
    def entry(self) -> Entry | None:
        """The ledger's entry; None for the commit of another program."""
        return Entry.from_json(self.info.get("userMetadata"))

    @property
    def operation(self) -> str:
        return str(self.info.get("operation", "unknown"))

    @property
    def changes_data(self) -> bool:
        """False for a commit that only moves a cursor, or only rewrites files."""
        found = [each.get("add") or each.get("remove") for each in self.actions]
        return self.has("cdc") or any(each.get("dataChange", True) for each in found if each)

    @property
    def changes_metadata(self) -> bool:
        return self.has("metaData")

    @property
    def needs_states(self) -> bool:
        """Whether delta-rs cannot read the change feed: rows were marked as deleted, and no image of them was kept."""
        files = [each.get("add") or each.get("remove") for each in self.actions]
        return not self.has("cdc") and any(each.get("deletionVector") for each in files if each)

    def has(self, kind: str) -> bool:
        return any(kind in each for each in self.actions)


@dataclass(frozen=True)
class Images(Reader):
    """The changes of tables, one commit at a time, through delta-rs."""

    def commit_file(self, table: str, version: int) -> CommitFile:
        """One commit; a ChangesLost when its file is gone."""
        try:
            # Not by splitlines: statistics may have other characters in them that end a line.
            lines = Files(self.path(table)).read(f"_delta_log/{version:020}.json").split("\n")
            return CommitFile(version, tuple(json.loads(line) for line in lines if line.strip()))
        except FileNotFoundError:
            raise ChangesLost(f"the commit of version {version} is no longer in the log") from None
        except ValueError as error:
            raise ChangesLost(f"the commit of version {version} is damaged: {error}") from error

    def columns(self, table: str, version: int) -> dict[str, str]:
        """The columns of a version with their types, as Spark names them."""
        try:
            return spark_types(self.open_own(table, version))
        except (DeltaError, TableNotFoundError) as error:
            raise ChangesLost(f"version {version} cannot be opened: {one_line(error)}") from error

    def state(self, table: str, version: int) -> pa.Table:
        """All rows of a version; a ChangesLost when they cannot be read."""
        try:
            return RecordBatchReader.from_stream(self.open_own(table, version).scan()).read_all()
        # A file that is gone is any of these.
        except (ArrowInvalid, DeltaError, TableNotFoundError, OSError) as error:
            why = (
                "has text that is not UTF-8, so only Spark can read it" if not_utf8 in str(error) else "cannot be read"
            )
            raise ChangesLost(f"version {version} {why}: {one_line(error)}") from error

    def images(self, table: str, commit: CommitFile, old_columns: Mapping[str, str]) -> list[pa.Table]:
        """The old and new rows of a commit, with `_change_type` as in a change feed; rows that stayed may be in both.

        `old_columns` are the columns of the table before, with their types. Of them, the old rows have those that are
        there still with the same type. A ChangesLost when the rows cannot be read.
        """
        version, columns = commit.version, self.columns(table, commit.version)
        if not commit.needs_states and columns == old_columns:
            with suppress(DeltaError, ArrowInvalid, OSError):
                feed = RecordBatchReader.from_stream(self.open_own(table, version).load_cdf(version, version))
                return [feed.read_all().select([*columns, "_change_type"])]
        new = self.state(table, version).select(list(columns))
        old = self.state(table, version - 1) if version else new.slice(0, 0)
        kept = [name for name, kind in columns.items() if old_columns.get(name) == kind]
        return [typed(old.select(kept), "delete"), typed(new, "insert")]


def typed(rows: pa.Table, change_type: str) -> pa.Table:
    """All rows of a state, as images of this type."""
    return rows.append_column("_change_type", pa.array([change_type] * rows.num_rows, pa.string()))


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
