"""The rows that one commit took away and put in their place, as Arrow, from the change feed or from two states."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import ArrowInvalid, RecordBatchReader

from sluice.storage.delta.history import ChangesLost, CommitFile
from sluice.storage.delta.opened import spark_types
from sluice.storage.delta.reader import Reader, not_utf8


@dataclass(frozen=True)
class RowImages:
    """Old or new rows of a commit, with `_change_type` as in a change feed.

    `columns` are those that the table has after the commit with the same type. Old rows may have others.
    """

    rows: pa.Table
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Images(Reader):
    """The changes of tables, one commit at a time, through delta-rs."""

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

    def images(self, table: str, commit: CommitFile, old_columns: Mapping[str, str]) -> list[RowImages]:
        """The old and new rows of a commit; rows that stayed may be in both.

        `old_columns` are the columns of the table before, with their types. A ChangesLost when the rows cannot be read.
        """
        version, columns = commit.version, self.columns(table, commit.version)
        if not commit.needs_states and columns == old_columns:
            with suppress(DeltaError, ArrowInvalid, OSError):
                feed = RecordBatchReader.from_stream(self.open_own(table, version).load_cdf(version, version))
                return [RowImages(feed.read_all().select([*columns, "_change_type"]), tuple(columns))]
        new = self.state(table, version).select(list(columns))
        old = self.state(table, version - 1) if version else new.slice(0, 0)
        kept = [name for name, kind in columns.items() if old_columns.get(name) == kind]
        return [of_state(old, "delete", kept), of_state(new, "insert", tuple(columns))]


def of_state(rows: pa.Table, change_type: str, columns: Sequence[str]) -> RowImages:
    """All rows of a state, as images of this type."""
    changes = pa.array([change_type] * rows.num_rows, pa.string())
    return RowImages(rows.append_column("_change_type", changes), tuple(columns))


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
