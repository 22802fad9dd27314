"""A shadow of a lake: some of its tables copied, to be recomputed while the live ones stay readable.

A copy of a large table is a shallow clone, so it costs no data; what is recomputed stands beside it. The engine
refreshes a shadow like any lake.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.model.datasets import Dataset
from sluice.model.ledger import Commit, Entry, InputVersion, changed_here, repairs
from sluice.storage.delta import Lake
from sluice.storage.delta.opened import file_sizes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The version of a clone in its own table: the first one only makes the table.
clone_version = 1


@dataclass(frozen=True, kw_only=True)
class Shadow(Lake):
    """A lake in which the tables `copied` are its own and all others those of `live`."""

    live: Lake
    copied: frozenset[str]

    def path(self, table: str) -> str:
        return super().path(table) if table in self.copied else self.live.path(table)

    def allows_small_writes(self, table: str) -> bool:
        """Not where files of the live table are shared: only Spark knows where they are."""
        return not self.exists(table) or file_sizes(self.open(table)) is not None

    def hides_changes(self, table: str) -> bool:
        """A copy has what another program did to the live table, too, which nothing made from it has followed."""
        return table in self.copied


def shadow_of(live: Lake, root: str, datasets: Sequence[Dataset]) -> Shadow:
    """The shadow below `root` that copies what the datasets write."""
    copied = frozenset(output.table for dataset in datasets for output in dataset.outputs)
    return Shadow(root, live.rows_per_file, live.deletion_vectors_from_rows, live=live, copied=copied)


@dataclass(frozen=True)
class Cut:
    """The state of a dataset: its commit, and the versions of its tables."""

    commit: Commit
    versions: Mapping[str, int]


def cut(live: Lake, datasets: Sequence[Dataset]) -> dict[str, Cut]:
    """States of the datasets that fit together: each source as the datasets made from it have seen it.

    `datasets` come upstream first. Where two have seen different states of one source, it is as the first saw it; one
    that was repaired since is as it is now, so that nothing takes the repair back.
    """
    found: dict[str, Cut] = {}
    for dataset in reversed(datasets):
        newest = live.last_commit(dataset.name)
        if newest is None:
            continue
        seen_by = next((each.commit for each in found.values() if dataset.name in each.commit.entry.inputs), None)
        seen = as_seen(live, dataset.name, seen_by) if seen_by else None
        is_usable = seen is not None and not repairs_of(
            live, dataset.name, seen.version, seen.entry.fingerprint, seen.table_id
        )
        commit = seen if seen is not None and is_usable else newest
        # What another program did to the table after its newest commit is there too.
        own = live.newest_version(dataset.name) if commit.version == newest.version else commit.version
        tables = [output.table for output in dataset.outputs[:-1] if live.exists(output.table)]
        others = {table: live.newest_version(table) for table in tables}
        found[dataset.name] = Cut(commit, {**others, dataset.name: own})
    return found


def repairs_of(live: Lake, table: str, since: int, fingerprint: str, table_id: str | None) -> list[Commit]:
    """The commits after a version that changed rows otherwise than the inputs did, under one declaration.

    All commits count of a table that was made again since, which has another id.
    """
    later = [each for each in live.commits(table) if each.version > since or each.table_id != table_id]
    return [each for each in later if each.entry.cause in repairs and each.entry.fingerprint == fingerprint]


def as_seen(live: Lake, table: str, by: Commit) -> Commit | None:
    """The newest commit of a table whose rows another commit was computed from; None when the log has forgotten it."""
    seen = by.entry.inputs[table]
    commits = [
        each for each in live.commits(table) if each.timestamp_ms <= by.timestamp_ms and each.as_input.is_state(seen)
    ]
    return commits[-1] if commits else None


def copy(spark: "SparkSession", shadow: Shadow, datasets: Sequence[Dataset], cuts: Mapping[str, Cut]) -> None:
    """Clones the tables of the datasets as they are in the cut, each with an entry that names its copied inputs."""
    made: set[str] = set()
    for dataset in datasets:
        if dataset.name not in cuts:
            continue
        here = cuts[dataset.name]
        entry = entry_of_copy(shadow, here.commit.entry, cuts)
        for table, version in here.versions.items():
            if table not in made:
                shadow.clone(spark, shadow.live.path(table), version, table, entry)
                made.add(table)


def entry_of_copy(shadow: Shadow, entry: Entry, cuts: Mapping[str, Cut]) -> Entry:
    """The entry with the copies as its inputs; one that was copied in another state than it was seen is of no epoch."""
    inputs = {}
    for name, seen in entry.inputs.items():
        copied = shadow.last_commit(name) if name in cuts else None
        is_as_seen = copied is None or cuts[name].commit.as_input.is_state(seen)
        inputs[name] = (copied.as_input if copied else seen) if is_as_seen else InputVersion(epoch="", version=0)
    nothing: dict[str, object] = {"beside": {}, "read_at": None, "epoch_from": 0, "rejected": None}
    return entry.model_copy(update={"inputs": inputs, **nothing, **changed_here})


def pinned(shadow: Shadow, dataset: Dataset, seen_by: Commit | None) -> dict[str, Commit]:
    """The inputs of a dataset in the shadow: copies as they are, all others as the live table has seen them."""
    found = {}
    for source in {each.source.name for each in dataset.inputs.values()}:
        commit = None
        if source not in shadow.copied and seen_by is not None:
            if source not in seen_by.entry.inputs:
                continue
            commit = as_seen(shadow.live, source, seen_by)
        commit = commit or shadow.last_commit(source)
        if commit is not None:
            found[source] = commit
    return found
