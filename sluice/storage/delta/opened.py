"""The tables below one root, `<root>/<layer>/<name>`, opened through delta-rs."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar, cast

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyarrow import ArrowInvalid, RecordBatchReader
from pyarrow import Table as ArrowTable
from pyarrow import compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sluice.model.ledger import Entry
from sluice.model.small_frames import deletion_vectors_from_rows_default, kept_bytes_max
from sluice.storage.files import Files
from sluice.storage.location import Location, location_of
from sluice.storage.small_writes import has_deletion_vectors

# A file of a table that is written as a whole; the fewer rows, the more files a scope can skip.
rows_per_file_default = 250_000
table_name = re.compile(r"\w+", re.ASCII)
is_commit = re.compile(r"\d+\.json")
# Operations of commits that leave all rows as they are.
upkeep = ("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END")


Fact = TypeVar("Fact")


def once(table: DeltaTable, name: object, read: Callable[[], Fact]) -> Fact:
    """What the log of a table says, read once; the table is one that nobody changes (`Tables.open`)."""
    known: dict[object, Any] = vars(table).setdefault("_read_once", {})
    if name not in known:
        known[name] = read()
    return cast("Fact", known[name])


@dataclass(frozen=True)
class Newest:
    """A table as it was when it was opened, with what identifies its newest commit; None where that is not known."""

    table: DeltaTable
    log: str
    stamp: object | None

    def is_newest(self, location: Location) -> bool:
        """Whether there is the same commit, and none after it."""
        version = self.table.version()
        is_same = self.stamp is not None and location.stamp(commit_file(self.log, version)) == self.stamp
        return is_same and location.stamp(commit_file(self.log, version + 1)) is None


@dataclass(frozen=True)
class Unchanged:
    """The first and the last of the versions of a table that all have the rows of the last."""

    table_id: str
    since: int
    until: int
    # Of the last one: a table that was restored may have another commit of its number.
    commit_ms: int


def unchanged(table: DeltaTable, before: Unchanged | None) -> Unchanged:
    """The versions with the rows of an opened table; `before` is what was known of an older version."""
    newest = table.history(1)
    commit_ms = int(newest[0]["timestamp"]) if newest else 0
    found = Unchanged(str(table.metadata().id), table.version(), table.version(), commit_ms)
    since = found.until
    for limit in (1, 20, None):
        for commit in newest if limit == 1 else table.history(limit):
            version, entry = int(commit["version"]), Entry.from_json(commit.get("userMetadata"))
            if before is not None and before == replace(
                found, since=before.since, until=version, commit_ms=int(commit["timestamp"])
            ):
                return replace(found, since=before.since)
            if changes_rows(commit, entry):
                return replace(found, since=version)
            # Where the log ends before that version, the entry names it.
            since = min(since, version if entry is None or entry.changed_at is None else entry.changed_at)
    return replace(found, since=since)


def changes_rows(commit: Mapping[str, Any], entry: Entry | None) -> bool:
    """Whether a commit of the log may have changed rows: it is no upkeep, and no entry says otherwise."""
    return commit.get("operation") not in upkeep if entry is None else entry.changed_at is None


def commit_file(log: str, version: int) -> str:
    return f"{log}/{version:020}.json"


@dataclass(frozen=True)
class Tables:
    """The tables below one root."""

    root: str
    rows_per_file: int = rows_per_file_default
    deletion_vectors_from_rows: int = deletion_vectors_from_rows_default
    opened: "dict[tuple[str, int], DeltaTable] | None" = field(default=None, compare=False, repr=False)
    newest: "dict[str, Newest]" = field(default_factory=dict, compare=False, repr=False)
    unchanged: "dict[str, Unchanged]" = field(default_factory=dict, compare=False, repr=False)
    rows: "dict[str, tuple[DeltaTable, ArrowTable]]" = field(default_factory=dict, compare=False, repr=False)
    placed: "dict[str, tuple[DeltaTable, ArrowTable]]" = field(default_factory=dict, compare=False, repr=False)

    def path(self, table: str) -> str:
        return f"{self.root}/{table.replace('.', '/')}"

    @cached_property
    def files(self) -> Files:
        """The small files below the root, beside the tables."""
        return Files(self.root)

    @cached_property
    def location(self) -> Location:
        """Where the tables are."""
        return location_of(self.root)

    @cached_property
    def storage_options(self) -> dict[str, str] | None:
        """What delta-rs must know of an object store."""
        return self.location.delta_options()

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """A table to read, as it is or at a version; a TableNotFoundError when it does not exist.

        Others may read the same object, so nobody may change it.
        """
        if version is None:
            return self.open_newest(table)
        key = (self.path(table), version)
        found = self.opened.get(key) if self.opened else None
        if found is None:
            found = self.newest_like(table, version) or self.open_own(table, version)
        if self.opened is not None:
            self.opened[key] = found
        return found

    def newest_like(self, table: str, version: int) -> DeltaTable | None:
        """The table as it is, where it has the rows of a version still; else None.

        Its files stay, and those of an older version are deleted once upkeep has written the rows to others.
        """
        try:
            newest = self.open_newest(table)
        except DeltaError:
            # An older version may be readable where the newest is damaged.
            return None
        if newest.version() == version:
            return newest
        same = once(newest, "unchanged", lambda: unchanged(newest, self.unchanged.get(table)))
        self.unchanged[table] = same
        return newest if same.since <= version <= same.until else None

    def open_newest(self, table: str) -> DeltaTable:
        """A table as it is, opened again only if there was a commit since."""
        known = self.newest.get(table)
        if known is None or not known.is_newest(self.location):
            known = self.keep_newest(table, self.open_own(table))
        return known.table

    def keep_newest(self, table: str, found: DeltaTable) -> Newest:
        """Keeps a table that its caller has opened, or written, and does not change from now on."""
        log = f"{table.replace('.', '/')}/_delta_log"
        kept = self.newest[table] = Newest(found, log, self.location.stamp(commit_file(log, found.version())))
        return kept

    def rows_of_few(self, table: str, found: DeltaTable) -> ArrowTable | None:
        """All rows of an opened table of few, read once, in Spark's types; None where Arrow has no such values."""
        of, rows = self.rows.get(table, (None, None))
        if of is not found or rows is None:
            rows = rows_in(found)
            # delta-rs has types of its own for texts, with which Arrow computes little.
            rows = None if rows is None else in_types_of_spark(rows, spark_schema(found))
        if rows is not None and rows.nbytes <= kept_bytes_max:
            self.rows[table] = found, rows
        return rows

    def open_own(self, table: str, version: int | None = None) -> DeltaTable:
        """A table that is the caller's own: to write, or to go to another version."""
        try:
            return DeltaTable(self.path(table), version, storage_options=self.storage_options)
        except DeltaError:
            kept = None if version is None else self.kept_instead(table, version)
            if kept is None:
                raise
            return DeltaTable(self.path(table), kept, storage_options=self.storage_options)

    def kept_instead(self, table: str, version: int, commit_ms: int | None = None) -> int | None:
        """The oldest version that is left, if it says that it has the rows of an older one; else None.

        With `commit_ms`, only of the one that was committed at that time: a table made again has the same numbers, and
        later commits.
        """
        oldest = min(map(int, self.log_files(table)), default=0)
        if oldest <= version:
            return None
        entry = Entry.from_json(self.commit_info(table, oldest).get("userMetadata"))
        if entry is None or entry.changed_at is None or entry.changed_at > version:
            return None
        if commit_ms is None:
            return oldest
        if entry.changed_at == version:
            return oldest if entry.changed_ms == commit_ms else None
        return oldest if (entry.changed_ms or 0) <= commit_ms else None

    def commit_info(self, table: str, version: int) -> dict[str, Any]:
        """What the commit of a version says about itself; nothing when the log no longer has the commit."""
        try:
            actions = Files(self.path(table)).read(f"_delta_log/{version:020}.json").split("\n")
        except FileNotFoundError:
            return {}
        return next((json.loads(action)["commitInfo"] for action in actions if '"commitInfo"' in action), {})

    def remembering(self) -> Self:
        """The same lake, which opens a version of a table once: for one refresh, not for a driver of days."""
        return replace(self, opened={})

    def exists(self, table: str) -> bool:
        return DeltaTable.is_deltatable(self.path(table), self.storage_options)

    def tables(self) -> list[str]:
        """The names of all tables that exist, bronze first."""
        layers = ("bronze", "silver", "gold")
        return [
            table
            for layer in layers
            for name in self.files.folders(layer)
            # Other programs leave folders too; and one that is being made has a log without a commit.
            if table_name.fullmatch(name) and self.log_files(table := f"{layer}.{name}")
        ]

    def log_files(self, table: str) -> list[str]:
        """The versions whose commits are still in the log, as named there."""
        names = [name.rsplit("/", 1)[-1] for name in Files(self.path(table)).below("_delta_log")]
        return [name.removesuffix(".json") for name in names if is_commit.fullmatch(name)]


def count_rows(table: DeltaTable) -> int:
    """How many rows a table has, by its log; where another program wrote files without statistics, by reading them."""
    counts = table.get_add_actions(flatten=True)["num_records"].to_pylist()
    if None in counts:
        return sum(batch.num_rows for batch in RecordBatchReader.from_stream(table.scan()))
    deleted = 0
    if has_deletion_vectors(table):
        for batch in RecordBatchReader.from_stream(table.deletion_vectors()):
            kept = pc.list_flatten(batch["selection_vector"])
            deleted += len(kept) - int(pc.sum(kept).as_py() or 0)
    return int(sum(counts)) - deleted


def rows_in(table: DeltaTable) -> ArrowTable | None:
    """All rows of a table; None where Arrow has no such values, as text that is not UTF-8."""
    try:
        return RecordBatchReader.from_stream(table.scan()).read_all()
    except ArrowInvalid:
        return None


def in_types_of_spark(rows: ArrowTable, schema: StructType) -> ArrowTable:
    """The columns of a schema, as Spark gives them to Arrow."""
    return rows.select(schema.names).cast(to_arrow_schema(schema, timezone="UTC"))


def file_sizes(table: DeltaTable) -> list[tuple[int | None, int]] | None:
    """The rows and bytes of each file, None rows where nobody counted them; None where one is of another table."""
    files = table.get_add_actions(flatten=True)
    if files.num_rows == 0:
        return []
    if any(name.startswith("/") or ":" in name for name in files["path"].to_pylist()):
        return None
    return list(zip(files["num_records"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))


def spark_schema(table: DeltaTable) -> StructType:
    return spark_schema_of(table.schema())


def spark_schema_of(schema: Schema) -> StructType:
    found: StructType = StructType.fromJson(json.loads(schema.to_json()))
    return found


def spark_types(table: DeltaTable) -> dict[str, str]:
    """The columns with their types, as Spark names them."""
    return {each.name: each.dataType.simpleString() for each in spark_schema(table)}
