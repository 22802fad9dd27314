"""What the engine needs from a table format: versions, change feeds, commits with metadata, and a fence."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from pyarrow import Table as ArrowTable

from sluice.model.arrow_stream import ArrowStream
from sluice.model.ledger import Commit, Entry, InputVersion, RowCounts
from sluice.storage.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableFormat(Protocol):
    """The tables of a lake, by name. `Lake` keeps them in Delta."""

    @property
    def files(self) -> Files:
        """The small files beside the tables."""

    def remembering(self) -> Self:
        """The same tables, each version opened once."""

    def exists(self, table: str) -> bool: ...

    def last_commit(self, table: str) -> Commit | None:
        """The newest ledger entry of a table; None when the table does not exist."""

    def commits(self, table: str) -> list[Commit]:
        """Every commit of a table that the ledger knows, the oldest first."""

    def newest_version(self, table: str) -> int:
        """The newest version of a table, also if another program committed it."""

    def oldest_version(self, table: str) -> int:
        """The oldest version whose commit can still be read."""

    def written_by_others(self, table: str, after: int) -> list[dict[str, Any]]:
        """The commits after a version that no ledger entry explains, without upkeep; the newest first."""

    def altered_by(self, table: str, known: Commit) -> str | None:
        """What another program did to the rows of a table that its newest entry does not account for; None: nothing."""

    def accounted_until(self, table: str, known: Commit) -> int:
        """The version up to which a table's rows are accounted for, also by a commit that leaves them as they are."""

    def fence(self, table: str, dataset: str) -> int:
        """The number of the newest commit that a dataset made to a table; a commit after it must name this number."""

    def row_count(self, table: str, version: int | None = None) -> int: ...

    def row_counts(self, table: str, since: int, until: int) -> RowCounts:
        """How many rows the ledger says were inserted, updated and deleted after version `since`, up to `until`."""

    def holds_changes(self, table: str, then: InputVersion, now: InputVersion) -> bool:
        """Whether the changes from `then` to `now` can be read."""

    def wrong_bounds(self, table: str) -> str | None:
        """Why rows of a table may not be found, by what its log says of its files; None: nothing."""

    def hides_changes(self, table: str) -> bool:
        """Whether what is made from a table may lack changes that are in no feed of it."""

    def read(self, spark: "SparkSession", table: str, version: int | None = None) -> "DataFrame":
        """The rows of a table, at a version when one is given."""

    def changes(self, spark: "SparkSession", table: str, since: int, until: int) -> "DataFrame":
        """The old and new images of the rows changed after version `since`, up to `until`, with `_change_type`."""

    def replace_rows(
        self,
        df: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        only: Mapping[str, str] | None = None,
        cluster_by: Sequence[str] = (),
        find_by: Sequence[str] = (),
        in_arrow: ArrowTable | ArrowStream | None = None,
    ) -> None:
        """Writes all rows of a table, or of `only` one slice, in one commit.

        Files are made so that the values of the columns `find_by` are found without reading all of them, here and by
        the other ways to write rows. `in_arrow` are the same rows, where they can be written without Spark. Superseded
        when another was faster.
        """

    def append_rows(
        self,
        df: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        cluster_by: Sequence[str] = (),
        find_by: Sequence[str] = (),
        in_arrow: ArrowTable | ArrowStream | None = None,
    ) -> None:
        """Adds rows in one commit; `in_arrow` as above. Superseded when another was faster."""

    def merge_rows(
        self,
        difference: "DataFrame",
        table: str,
        entry: Entry,
        fence: int,
        *,
        grain: Iterable[str],
        condition: str = "true",
        find_by: Sequence[str] = (),
        small: ArrowTable | None = None,
    ) -> None:
        """Applies a difference in one commit; Superseded when another was faster."""

    def clone(self, spark: "SparkSession", source: str, version: int, table: str, entry: Entry) -> None:
        """Makes the table a copy of the one at the path `source` at a version; its data files stay where they are."""

    def move_cursor(self, table: str, entry: Entry, fence: int) -> None:
        """A commit of nothing but its entry; Superseded when another was faster."""
