"""The verb: refresh a dataset, so that its table says what its shape says about the inputs as they are now.

    what changed upstream  →  the scope  →  the shape  →  write the difference

One function does it for every dataset, for the first build and for a single late record alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from sluice.datasets import Dataset, Output
from sluice.delta import Lake, change_columns
from sluice.difference import difference, operation
from sluice.ledger import Cause, Commit, Entry, InputVersion, RowCounts, no_rows
from sluice.scope import Scope, collect, everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Beyond this share of its rows a table is recomputed as a whole: pruning and joining by scope would cost more.
rebuild_share = 0.25


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did: why it recomputed, how many scope rows it had, and the rows it changed in its own table."""

    dataset: str
    cause: Cause | None
    scope_count: int | None = None
    rows: RowCounts = no_rows


def refresh(spark: "SparkSession", lake: Lake, dataset: Dataset, *, rebuild: bool = False) -> Refreshed:
    """Brings the dataset's tables up to its inputs; does nothing when they are the versions it was computed from."""
    known = lake.last_commit(dataset.name)
    pinned = pinned_inputs(lake, dataset)
    cause = why(lake, dataset, known, pinned, rebuild=rebuild)
    if cause is None:
        return Refreshed(dataset.name, None)
    return Refresh(spark, lake, dataset, known, pinned, cause).run()


def pinned_inputs(lake: Lake, dataset: Dataset) -> dict[str, InputVersion]:
    """The versions of the inputs that this refresh reads, whatever is committed meanwhile."""
    sources = {each.source.name for each in dataset.inputs.values()}
    commits = {name: lake.last_commit(name) for name in sorted(sources)}
    return {name: commit.as_input for name, commit in commits.items() if commit is not None}


def why(
    lake: Lake,
    dataset: Dataset,
    known: Commit | None,
    pinned: Mapping[str, InputVersion],
    *,
    rebuild: bool,
) -> Cause | None:
    """Why the dataset must be recomputed, or None when it is up to date."""
    if known is None:
        return "first build"
    if rebuild:
        return "rebuild"
    if known.entry.fingerprint != dataset.fingerprint:
        return "declaration changed"
    if known.entry.inputs == pinned:
        return None
    for name, now in pinned.items():
        then = known.entry.seen(name, now)
        if then.epoch != now.epoch or not lake.holds_changes_since(name, then.version):
            return "input rebuilt"
    return "changes"


@dataclass(frozen=True)
class Refresh:
    """One refresh under way: the pinned inputs, and the cause that set it off."""

    spark: "SparkSession"
    lake: Lake
    dataset: Dataset
    known: Commit | None
    pinned: Mapping[str, InputVersion]
    cause: Cause

    def run(self) -> Refreshed:
        changes = self.changes() if self.cause == "changes" else {}
        scope = self.scope(changes) if changes else everything
        rows = self.recompute(scope, changes)
        return Refreshed(self.dataset.name, self.cause, None if scope.is_everything else scope.count, rows)

    @cached_property
    def inputs(self) -> dict[str, "DataFrame"]:
        """Every input that exists, as it is at its pinned version."""
        return {
            name: self.lake.read(self.spark, each.source.name, self.pinned[each.source.name].version)
            for name, each in self.dataset.inputs.items()
            if each.source.name in self.pinned
        }

    def changes(self) -> dict[str, "DataFrame"]:
        """The change feeds of the inputs that moved since the last commit."""
        if self.known is None:
            return {}
        moved = {}
        for name in self.inputs:
            source = self.dataset.inputs[name].source.name
            then, now = self.known.entry.seen(source, self.pinned[source]), self.pinned[source]
            if then != now:
                moved[name] = self.lake.changes(self.spark, source, then.version, now.version)
        return moved

    def scope(self, changes: Mapping[str, "DataFrame"]) -> Scope:
        """The rows of the dataset that the changes touch; everything when that is a large part of the table."""
        tables = {**self.inputs, self.dataset.name: self.lake.read(self.spark, self.dataset.name)}
        touched = [self.dataset.inputs[name].scope(changed, tables) for name, changed in changes.items()]
        found = collect(reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), touched))
        if self.dataset.is_fold or found.count <= rebuild_share * self.lake.row_count(self.dataset.name):
            return found
        return everything

    def recompute(self, scope: Scope, changes: Mapping[str, "DataFrame"]) -> RowCounts:
        """Computes the rows of the scope, and writes output by output what differs; the last commit is the cursor."""
        rows = {name: self.rows(name, scope, changes) for name in self.inputs}
        own = {} if scope.is_everything else {each.table: self.own(each, scope) for each in self.dataset.outputs}
        shaped = self.dataset.shape(rows, own)
        if len(self.dataset.outputs) > 1:
            # Computed once for both; unlike a cache, a checkpoint also spares the writes from planning it again.
            shaped = shaped.localCheckpoint()
        counts = [self.write(output, output.select(shaped), scope) for output in self.dataset.outputs]
        return counts[-1]

    def rows(self, name: str, scope: Scope, changes: Mapping[str, "DataFrame"]) -> "DataFrame":
        """The rows of an input that bear on the scope, with the new ones of a fold."""
        each = self.dataset.inputs[name]
        within = each.within(self.inputs[name], scope)
        if scope.is_everything or not each.arrivals or name not in changes:
            return within
        return within.unionByName(changes[name].where("_change_type = 'insert'").drop(*change_columns))

    def own(self, output: Output, scope: Scope) -> "DataFrame":
        """The rows that an output has now and that the scope may change."""
        rows = self.lake.read(self.spark, output.table).where(output.slice_condition())
        return scope.filter(rows, output.scope_columns, output.prune_columns)

    def write(self, output: Output, new: "DataFrame", scope: Scope) -> RowCounts:
        """Makes the output's rows of the scope equal to `new`, in one commit or none."""
        if self.known is None:
            return self.replace(output, new, self.entry())
        own = self.own(output, scope)
        if own.dtypes != new.dtypes:
            return self.replace(output, new, self.entry(epoch_from=self.known.version + 1))
        changed = difference(own, new, output.grain).localCheckpoint()
        found = changed.groupBy(operation).count().collect()
        counts = RowCounts(**{row[operation]: row["count"] for row in found})
        self.apply(output, changed, counts, scope, self.known)
        return counts

    def replace(self, output: Output, new: "DataFrame", entry: Entry) -> RowCounts:
        """Writes the output's rows anew: there are none yet, or they had other columns."""
        self.lake.replace(new, output.table, entry, dict(output.slice), output.cluster_by)
        return RowCounts(inserted=self.lake.row_count(output.table))

    def apply(self, output: Output, changed: "DataFrame", counts: RowCounts, scope: Scope, known: Commit) -> None:
        """Writes a difference by the cheapest commit that holds it; without one, only the cursor moves."""
        entry = self.entry(rows=counts, epoch_from=known.entry.epoch_from)
        is_cursor = output is self.dataset.outputs[-1]
        if counts.total == 0:
            if is_cursor and not known.entry.is_computed_from(entry):
                unchanged_since = known.as_input.version
                self.lake.note(self.spark, output.table, entry.model_copy(update={"changed_at": unchanged_since}))
        elif counts.total == counts.inserted:
            self.lake.append(changed.drop(operation), output.table, entry)
        else:
            self.lake.merge(changed, output.table, entry, output.grain, output.condition(scope, prefix="own."))

    def entry(self, rows: RowCounts = no_rows, epoch_from: int = 0) -> Entry:
        """What a commit of this refresh says of itself."""
        return Entry(
            dataset=self.dataset.name,
            fingerprint=self.dataset.fingerprint,
            cause=self.cause,
            inputs=dict(self.pinned),
            rows=rows,
            epoch_from=epoch_from,
        )
