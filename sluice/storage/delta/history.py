"""The versions in a table's log: the ledger, and whether the changes between two can still be read."""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from sluice.errors import SluiceError
from sluice.model.ledger import Commit, Entry, InputVersion, RowCounts, by_another_program, no_rows
from sluice.storage.delta.opened import Tables, once, upkeep
from sluice.storage.delta.statistics import has_wrong_bounds
from sluice.storage.files import Files

# The operation of the commit that a vacuum ends with.
vacuumed = "VACUUM END"
of_long_decimals = "its log may have wrong bounds of long decimals, which an older release wrote"
feed_property = "delta.enableChangeDataFeed"
# The operations that give a table other columns, by Spark and by delta-rs.
column_changes = ("ADD COLUMNS", "ADD COLUMN", "DROP COLUMNS", "RENAME COLUMN", "REPLACE COLUMNS")


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

    @property
    def feed_files(self) -> list[str]:
        """The files below the table's folder in which its changes are."""
        written = [each["cdc"] for each in self.actions if "cdc" in each]
        files = [each.get("add") or each.get("remove") for each in self.actions]
        paths = [each["path"] for each in written or files if each and (written or each.get("dataChange", True))]
        return [unquote(path) for path in paths if not path.startswith("/") and ":" not in path]

    def has(self, kind: str) -> bool:
        return any(kind in each for each in self.actions)


@dataclass(frozen=True)
class History(Tables):
    """The versions of tables, through delta-rs."""

    def last_commit(self, table: str) -> Commit | None:
        """The newest ledger entry of a table, or None when the table does not exist."""
        try:
            found = self.open(table)
        except TableNotFoundError:
            return None
        return once(found, "last commit", lambda: last_commit_of(found))

    def fence(self, table: str, dataset: str) -> int:
        """The number of the newest commit that a dataset made to a table, which it may share; 0: none.

        A commit carries the number after the one that was read with its inputs, and Delta accepts each number once.
        So two drivers cannot both write on top of the same state, however late one of them is.
        """
        try:
            return self.open(table).transaction_version(dataset) or 0
        except TableNotFoundError:
            return 0

    def commits(self, table: str) -> list[Commit]:
        """Every commit of a table that the ledger knows, the oldest first."""
        try:
            found = self.open(table)
        except TableNotFoundError:
            return []
        table_id = str(found.metadata().id)
        return [
            Commit(table_id=table_id, version=each["version"], timestamp_ms=each["timestamp"], entry=entry)
            for each in reversed(found.history())
            if (entry := Entry.from_json(each.get("userMetadata"))) is not None
        ]

    def row_counts(self, table: str, since: int, until: int) -> RowCounts:
        """How many rows the ledger says were inserted, updated and deleted after version `since`, up to `until`."""
        # Delta's own compaction after a commit repeats what the session says of that.
        found = [each for each in self.commits_between(table, since, until) if each.get("operation") not in upkeep]
        return sum((each.rows for each in entries_of(found) if each), no_rows)

    def commits_between(self, table: str, since: int, until: int) -> list[dict[str, Any]]:
        """The log's entries for the commits after version `since`, up to `until`, the newest first."""
        if until <= since:
            return []
        return [each for each in self.commits_after(table, since) if each["version"] <= until]

    def commits_after(self, table: str, since: int) -> list[dict[str, Any]]:
        """The log's entries for all commits after a version, the newest first."""
        # Of an older version delta-rs gives the history with wrong numbers.
        newest = self.open(table)
        if newest.version() <= since:
            return []
        found = once(newest, ("commits after", since), lambda: newest.history(newest.version() - since))
        return [each for each in found if since < each["version"]]

    def written_by_others(self, table: str, after: int) -> list[dict[str, Any]]:
        """The commits after a version that no ledger entry explains, the newest first: another program wrote them.

        Upkeep, which leaves all rows as they are, is not among them.
        """
        return of_others(self.commits_after(table, after))

    def altered_by(self, table: str, known: Commit) -> str | None:
        """What another program did to the rows of a table that its newest entry does not account for; None: nothing."""
        after = known.accounts_until
        if after == known.newest_version:
            return None
        for each in reversed(of_others(self.commits_between(table, after, known.newest_version))):
            if self.is_alteration(table, each):
                return by_another_program(each)
        if after < known.version and self.oldest_version(table) > after + 1:
            return f"the commits after version {after} are no longer in the log"
        return None

    def is_alteration(self, table: str, commit: Mapping[str, Any]) -> bool:
        """False of a commit that leaves rows and columns as they are, as one of properties; True when it is gone."""
        try:
            return commit.get("operation") in column_changes or self.commit_file(table, commit["version"]).changes_data
        except ChangesLost:
            return True

    def accounted_until(self, table: str, known: Commit) -> int:
        """The version up to which a table's rows are accounted for, also by a commit that leaves them as they are."""
        return known.accounts_until if self.altered_by(table, known) else known.newest_version

    def wrong_bounds(self, table: str) -> str | None:
        """Why rows of a table may not be found, by what its log says of its files; None: nothing."""
        try:
            found = self.open(table)
        except TableNotFoundError:
            return None
        return of_long_decimals if has_wrong_bounds(found) else None

    def hides_changes(self, table: str) -> bool:  # noqa: ARG002 - a shadow looks at it
        """Whether what is made from a table may lack changes that are in no feed of it."""
        return False

    def newest_version(self, table: str) -> int:
        """The newest version of a table, also if another program committed it."""
        return self.open(table).version()

    def version_at(self, table: str, timestamp_ms: int) -> int | None:
        """The newest version of a table that the ledger knows from a time or before it.

        The first when it knows none; None when that is gone, as after an erasure.
        """
        known = [each.version for each in self.commits(table) if each.timestamp_ms <= timestamp_ms]
        return known[-1] if known else (None if self.oldest_version(table) else 0)

    def version_beside(self, table: str, commit: Commit) -> int | None:
        """The newest version of another table that a dataset writes, as one of the dataset's commits left it.

        It is known by the number of the dataset's newest commit to that table, whatever clocks said; by the time where
        a commit of an older release does not state it. None when that version is gone, as after an erasure, or when
        the other table was made again since.
        """
        number = commit.entry.beside.get(table)
        if number is None or not self.exists(table):
            return self.version_at(table, commit.timestamp_ms)

        def number_at(version: int) -> int:
            return self.open_own(table, version).transaction_version(commit.entry.dataset) or 0

        versions = range(self.oldest_version(table), self.newest_version(table) + 1)
        later = bisect_right(versions, number, key=number_at)
        return versions[later - 1] if later and number_at(versions[-1]) >= number else None

    def oldest_version(self, table: str) -> int:
        """The oldest version whose commit is still in the log."""
        return min(map(int, self.log_files(table)), default=0)

    def holds_changes(self, table: str, then: InputVersion, now: InputVersion) -> bool:
        """False when the changes from `then` to `now` cannot be read.

        That is the case if the table was created again in between, went back to a state before `then`, its log no
        longer reaches back, or files with the changes were deleted.
        """
        if then.epoch != now.epoch or then.version > now.version:
            return False
        oldest, since = self.oldest_version(table), then.version
        if oldest > max(0, since):
            is_same, since = self.kept_instead(table, since, then.commit_ms) == oldest, oldest
        else:
            is_same = then.commit_ms is None or then.commit_ms == self.commit_ms(table, since)
        if not (is_same and self.keeps_feed(table)):
            return False
        later = self.commits_after(table, since)
        if any(each.get("operation") == vacuumed for each in later) and self.lacks_files(table, since, now):
            return False
        others = [each["version"] for each in of_others(later) if each["version"] <= now.version]
        return not any(self.breaks_feed(table, version) for version in others)

    def keeps_feed(self, table: str) -> bool:
        """Whether the table still has the property by which Delta records changes."""
        return self.open(table).metadata().configuration.get(feed_property) == "true"

    def breaks_feed(self, table: str, version: int) -> bool:
        """Whether the change feed cannot be read across a commit of another program.

        Delta reads none that was switched off, nor one in which columns differ, though they are as before at its end.
        """
        try:
            commit = self.commit_file(table, version)
        except ChangesLost:
            return True
        if feed_property in json.dumps(commit.info.get("operationParameters", {})):
            return True
        columns = columns_of(self.open(table).schema().to_json())
        schemas = [each["metaData"]["schemaString"] for each in commit.actions if "metaData" in each]
        return any(columns_of(each) != columns for each in schemas)

    def lacks_files(self, table: str, since: int, now: InputVersion) -> bool:
        """Whether files are gone that the change feed reads after a version, up to another one."""
        versions = range(since + 1, now.version + 1)
        read = {path for version in versions for path in self.commit_file(table, version).feed_files}
        return not read <= set(Files(self.path(table)).below(""))

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

    def commit_ms(self, table: str, version: int) -> int | None:
        """The timestamp in the commit of a version; None when the log no longer has the commit."""
        found = self.commit_info(table, version)
        return int(found["timestamp"]) if found else None


def columns_of(schema: str) -> list[tuple[str, object]]:
    """The names and types of a schema in JSON."""
    return [(each["name"], each["type"]) for each in json.loads(schema)["fields"]]


def last_commit_of(table: DeltaTable) -> Commit | None:
    """The newest commit of an opened table that the ledger knows."""
    for limit in (1, 20, None):
        for commit in table.history(limit):
            entry = Entry.from_json(commit.get("userMetadata"))
            if entry is not None:
                return Commit(
                    table_id=str(table.metadata().id),
                    version=commit["version"],
                    timestamp_ms=commit["timestamp"],
                    entry=entry,
                    fence=table.transaction_version(entry.dataset) or 0,
                    newest_version=table.version(),
                )
    return None


def of_others(commits: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The commits that no ledger entry explains, without upkeep."""
    changed = [each for each in commits if each.get("operation") not in upkeep]
    return [each for each in changed if Entry.from_json(each.get("userMetadata")) is None]


def entries_of(commits: Sequence[Mapping[str, Any]]) -> list[Entry | None]:
    """The ledger entries of commits; None for the commit of another program."""
    return [Entry.from_json(each.get("userMetadata")) for each in commits]
