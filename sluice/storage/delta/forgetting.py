"""Forget what tables were: older versions go, with their rows, images of changes and statistics."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from sluice.model.ledger import Commit, changed_here
from sluice.storage import secondary_index
from sluice.storage.delta.reader import delta_log, is_classic
from sluice.storage.delta.writer import Writer, in_turn
from sluice.storage.files import Files
from sluice.storage.small_writes import has_deletion_vectors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A commit, a checkpoint, or what Delta derives from them, with its version.
of_version = re.compile(r"_delta_log/(?:_sidecars/|_staged_commits/)?(\d{20})\.")


@dataclass(frozen=True)
class Forgetting(Writer):
    """Removes older versions, which rows that were erased are still in."""

    def forget_history(self, spark: "SparkSession", table: str) -> None:
        """Removes all versions of a table but the newest, whose rows stay as they are.

        What was read up to the newest change is read on from here. Only by the one process that writes the lake, and
        while no replay refers to the table's files.
        """
        if has_deletion_vectors(self.open(table)):
            # Rows that are only marked as deleted are still in their files.
            spark.sql(f"REORG TABLE delta.`{self.path(table)}` APPLY (PURGE)").collect()
        # Of a table to which other processes append, a file that no commit names may be about to be named by one.
        is_owned = self.last_commit(table) is not None
        # Before the commit that is to be the only one, since it writes some itself.
        self.open_own(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=is_owned)
        known = self.last_commit(table)
        # Commits of rows list the least and greatest values of the files that they removed. This one lists none.
        if known is None:
            in_turn(table, lambda: append_nothing(self.open_own(table), {}))
        else:
            self.begin_history(table, known)
        # Before the checkpoint: what another program commits meanwhile may be in it, or after it.
        oldest = self.open_own(table).version()
        self.write_checkpoint(spark, table)
        files = Files(self.path(table))
        for name in files.below("_delta_log"):
            version = of_version.match(name)
            is_older = version is None or int(version[1]) < oldest
            if is_older and not name.endswith("_last_checkpoint"):
                files.delete(name)
        files.delete_folder(secondary_index.indexes_folder)
        self.newest.pop(table, None)
        self.rows.pop(table, None)
        self.placed.pop(table, None)
        if is_classic(spark):
            # Its memory of the table's log names files that are gone.
            delta_log(spark).clearCache()

    def begin_history(self, table: str, known: Commit) -> None:
        """A commit of nothing but an entry like the last one."""
        entry = known.repeated(self.accounted_until(table, known), "older versions were removed by an erasure")
        if known.entry.dataset != table:
            # In a shared table the numbers of commits say which rows of it belong to which of another table.
            metadata = {"userMetadata": entry.to_json()}
            in_turn(table, lambda: append_nothing(self.open_own(table), metadata))
            return
        entry = entry.model_copy(update={"cause": "erasure"})
        others = self.written_by_others(table, known.as_input.version)
        if any(self.is_alteration(table, each) for each in others):
            # What another program did is in no feed any more, so nothing can go on from the rows before it.
            entry = entry.model_copy(update={**changed_here, "epoch_from": self.newest_version(table) + 1})
        self.move_cursor(table, entry, known.fence)

    def write_checkpoint(self, spark: "SparkSession", table: str) -> None:
        """Writes the state of the newest version, so that nothing before it is needed."""
        try:
            self.open_own(table).create_checkpoint()
        except DeltaError:
            # In an older checkpoint of Spark's are statistics of columns whose type has changed since.
            if not is_classic(spark):
                raise
            delta_log(spark).clearCache()
            delta_log(spark).forTable(spark._jsparkSession, self.path(table)).checkpoint()

    def blank(self, table: str, columns: Sequence[str], where: str) -> None:
        """Makes columns null in the rows that meet a condition; of a table to which several processes append."""
        if self.exists(table):
            in_turn(table, lambda: self.open_own(table).update(dict.fromkeys(columns, "NULL"), predicate=where))


def append_nothing(table: DeltaTable, metadata: dict[str, str]) -> None:
    """A commit that lists no file."""
    partition_by, said = table.metadata().partition_columns, CommitProperties(custom_metadata=metadata)
    table.create_write_transaction([], "append", table.schema(), partition_by, commit_properties=said)
