"""Evaluate a dataset: what its shape says of its inputs at pinned versions. It reads, and writes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.engine.backfill import BackfillRange
from sluice.model import small_frames
from sluice.model.completeness import EvaluationContext, later_of
from sluice.model.datasets import Dataset, Output, Retraction, microseconds
from sluice.model.few_rows import are_comparable
from sluice.model.frames import dropped, where_equal
from sluice.model.ledger import Cause, Commit, Entry, InputVersion, Reached, RowCounts, no_rows, watermark_of
from sluice.model.scope import Scope, collect, everything
from sluice.model.small_frames import is_local
from sluice.model.times import instant
from sluice.runtime.session import sized_for
from sluice.shapes import increment
from sluice.shapes.difference import change_columns, difference, difference_of_few, operation
from sluice.shapes.parse import bronze_position
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyarrow import Table as ArrowTable
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[str, "DataFrame"]


@dataclass(frozen=True)
class Evaluation:
    """A dataset over its inputs as they were pinned, and its tables as they are.

    `fences` are what the next commit of each table must follow, read before its rows; empty if nothing will be written.
    """

    spark: "SparkSession"
    lake: TableFormat
    dataset: Dataset
    known: Commit | None
    pinned: Mapping[str, InputVersion]
    cause: Cause
    context: EvaluationContext
    backfill: BackfillRange | None = None
    fences: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> dict[str, "DataFrame"]:
        """Every input that exists, at its pinned version."""
        return {
            name: self.lake.read(self.spark, each.source.name, self.pinned[each.source.name].version)
            for name, each in self.dataset.inputs.items()
            if each.source.name in self.pinned
        }

    @cached_property
    def current(self) -> dict[str, "DataFrame"]:
        """Every output that there is, as it is now."""
        tables = [output.table for output in self.dataset.outputs if self.lake.exists(output.table)]
        return {table: self.lake.read(self.spark, table) for table in tables}

    @cached_property
    def depends_on_watermark(self) -> bool:
        """True when rows of the table depend on the watermark."""
        completeness = self.dataset.completeness
        return completeness is not None and completeness.bears_on(self.current[self.dataset.name])

    @property
    def read_at(self) -> int | None:
        """The version of the dataset's table up to which a commit of this evaluation accounts for its rows."""
        if self.known is None:
            return None
        is_part = self.backfill is not None or self.cause in ("promoted", "rolled back")
        return self.lake.accounted_until(self.dataset.name, self.known) if is_part else self.known.newest_version

    @cached_property
    def own_count(self) -> int:
        """How many rows the dataset's table has."""
        return self.lake.row_count(self.dataset.name)

    @cached_property
    def input_count(self) -> int:
        """How many rows the inputs have."""
        sources = {self.dataset.inputs[name].source.name for name in self.inputs}
        return sum(self.lake.row_count(source, self.pinned[source].version) for source in sources)

    @cached_property
    def rows_changed(self) -> int | None:
        """How many rows changed upstream, by the ledger; None where it does not say."""
        if self.known is None or self.backfill is not None:
            return None
        return sum(each.total for each in self.row_counts.values())

    @cached_property
    def row_counts(self) -> dict[str, RowCounts]:
        """How many rows of each source were inserted, updated and deleted since the last commit, by the ledger."""
        if self.known is None:
            return {}
        seen = {source: self.known.entry.seen(source, now).version for source, now in self.pinned.items()}
        return {source: self.lake.row_counts(source, seen[source], now.version) for source, now in self.pinned.items()}

    def retractions(self, changes: Frames) -> Iterator[tuple[Retraction, "DataFrame"]]:
        """What is taken back of inputs of which rows were not only added: with the old images of those that are gone.

        Only erasures replace rows of such an input.
        """
        for name, changed in changes.items():
            retraction = self.dataset.inputs[name].retraction
            if retraction is not None and not self.is_only_added_to(name):
                yield retraction, old_images(changed)

    def is_only_added_to(self, name: str) -> bool:
        """Whether all rows of an input that changed since the last commit are new, by the ledger."""
        counts = self.row_counts.get(self.dataset.inputs[name].source.name, no_rows)
        return counts.total == counts.inserted

    @cached_property
    def follows_changes(self) -> bool:
        """Whether the rows are as the last refresh left them, and the inputs say all that changed since.

        A repair relies on neither.
        """
        if self.known is None or self.cause not in ("changes", "watermark"):
            return False
        return not any(self.lake.hides_changes(self.dataset.inputs[name].source.name) for name in self.inputs)

    @cached_property
    def can_adjust(self) -> bool:
        """Whether changes of the inputs may be added to the rows as they are."""
        return self.dataset.adjust is not None and increment.is_used and self.follows_changes

    @cached_property
    def makes_only_new(self) -> bool:
        """Whether the changes are new rows whose scopes are their own, so that the table has no rows of them yet."""
        if self.dataset.completeness is not None or not self.follows_changes:
            return False
        return bool(self.moved) and all(self.is_new_by_row(name) for name in self.moved)

    @cached_property
    def count_beside(self) -> int:
        """How many rows the inputs have that did not move."""
        moved = {self.dataset.inputs[name].source.name for name in self.moved}
        return self.input_count - sum(self.lake.row_count(each, self.pinned[each].version) for each in moved)

    def is_new_by_row(self, name: str) -> bool:
        """Whether all rows of a moved input that changed are new, each the scope of its own row, and by refreshes."""
        each = self.dataset.inputs[name]
        if not (each.is_row_by_row and self.is_only_added_to(name)):
            return False
        return not self.lake.written_by_others(each.source.name, self.moved[name])

    @cached_property
    def moved(self) -> dict[str, int]:
        """The inputs that moved since the last commit, with the version that it read of them."""
        found: dict[str, int] = {}
        if self.known is None:
            return found
        for name in self.inputs:
            source = self.dataset.inputs[name].source.name
            then, now = self.known.entry.seen(source, self.pinned[source]), self.pinned[source]
            if not then.is_state(now):
                found[name] = then.version
        return found

    def changes(self) -> dict[str, "DataFrame"]:
        """The change feeds of the inputs that moved since the last commit."""
        sources = {name: self.dataset.inputs[name].source.name for name in self.moved}
        return {
            name: self.lake.changes(self.spark, source, self.moved[name], self.pinned[source].version)
            for name, source in sources.items()
        }

    def read_once(self, changes: Frames) -> Frames:
        """The change feeds; the new rows of inputs with `arrivals` as the scope and the shape read them.

        The driver has them where they are few.
        """
        found = dict(changes)
        if self.rows_changed is None:
            return found
        for name, changed in changes.items():
            each = self.dataset.inputs[name]
            if each.read is None or not self.is_only_added_to(name):
                continue
            read = each.read(inserted(changed), self.inputs)
            if self.rows_changed > small_frames.rows_max:
                found[name] = read.localCheckpoint()
            elif (few := small_frames.small_rows(read)) is not None:
                found[name] = small_frames.local(read, few)
        return found

    def rows(self, name: str, scope: Scope, changes: Frames) -> "DataFrame":
        """The rows of an input that the scope needs, and the new ones of a fold."""
        each = self.dataset.inputs[name]
        if name in changes and not scope.is_everything and self.makes_only_new:
            return each.within(inserted(changes[name]), everything)
        found = each.within(self.inputs[name], scope)
        if not scope.is_everything and each.arrivals and name in changes:
            new, is_only_new = self.arrived(name, changes[name]), small_frames.is_known_empty(found)
            if each.read is not None and is_read(changes[name]) and not is_only_new:
                found = each.read(found, self.inputs)
            found = new if is_only_new else found.unionByName(new)
        return self.alone(found, each.source.name, scope)

    def arrived(self, name: str, changed: "DataFrame") -> "DataFrame":
        """The new rows of a change feed; one that was erased since it landed is none: the scope has it as it is now."""
        new = inserted(changed)
        if is_read(changed) or self.is_only_added_to(name):
            return new
        gone = old_images(changed).select(*bronze_position).distinct()
        return new.join(F.broadcast(gone), list(bronze_position), "left_anti")

    def own(self, output: Output, scope: Scope, *, is_new: bool = False) -> "DataFrame":
        """The rows of an output that the scope may change: none of them if it is new."""
        if is_new:
            return small_frames.frame_of(self.spark, None, self.current[output.table].schema)
        rows = scope.filter(self.current[output.table], output.scope_columns, output.prune_columns)
        return self.alone(of_slice(rows, output), output.table, scope)

    def alone(self, df: "DataFrame", table: str, scope: Scope) -> "DataFrame":
        """Rows of a small scope in one partition, unless their table is large: nothing of them is then shuffled."""
        if small_frames.is_known_local(df) or not self.is_small(scope):
            return df
        return df.coalesce(1) if self.lake.row_count(table) <= small_frames.read_alone_max else df

    def is_small(self, scope: Scope) -> bool:
        """Whether the driver takes what is made of the scope: it, or all that there is, is of few rows."""
        return (self.input_count if scope.is_everything else scope.count) <= small_frames.rows_max

    def rows_to_shape(self, scope: Scope) -> int | None:
        """How many rows a scope is made of, at first sight; None: many."""
        if not scope.is_everything:
            return scope.count
        return self.input_count if self.is_small(scope) else None

    def shaped(self, scope: Scope, changes: Frames) -> "tuple[DataFrame, dict[str, DataFrame]]":
        """What the shape makes of the scope's input rows, and the rows that the outputs have in the scope."""
        is_new = not scope.is_everything and self.makes_only_new
        there = [each for each in self.dataset.outputs if self.known and each.table in self.current]
        own = {each.table: self.own(each, scope, is_new=is_new) for each in there}
        if not scope.is_everything and (self.dataset.is_fold or self.dataset.completeness or self.dataset.adjust):
            # The shape reads them, and so does the difference.
            own = {table: df if is_local(df) else self.computed(df, scope)[0] for table, df in own.items()}
        shaped = self.adjusted(scope, changes, own)
        if shaped is None:
            shaped = self.shaped_from_inputs(scope, changes, own)
        shaped = self.with_states(shaped, own.get(self.dataset.name))
        if len(self.dataset.outputs) > 1:
            # Computed once for both; unlike a cache, this also spares the writes from planning it again.
            shaped, _ = self.computed(shaped, scope)
        return shaped, own

    def shaped_from_inputs(self, scope: Scope, changes: Frames, own: Frames) -> "DataFrame":
        """What the shape makes of the rows of the inputs that the scope needs."""
        rows = {name: self.rows(name, scope, changes) for name in self.inputs}
        if scope.is_everything:
            return self.dataset.shape(rows, {})
        for retraction, gone in self.retractions(changes):
            own = retraction.own(own, gone)
        return self.dataset.shape(rows, own)

    def adjusted(self, scope: Scope, changes: Frames, own: Frames) -> "DataFrame | None":
        """The rows of the scope as the changes make them, shaped from the inputs only where that is not enough.

        None where it never is, or where rows are to be computed whatever they are now.
        """
        if self.dataset.adjust is None or not self.can_adjust or scope.is_everything:
            return None
        found = self.dataset.adjust(changes, own[self.dataset.name])
        if found is None:
            return None
        found, few = self.computed(found, scope)
        if few is not None and pc.all(few[increment.is_known]).as_py() is not False:
            return dropped(found, increment.is_known)
        known = found.where(increment.is_known).drop(increment.is_known)
        unknown = collect(self.dataset.scope_of(found.where(f"NOT {increment.is_known}")))
        if unknown.count == 0:
            return known
        return known.unionByName(self.shaped_from_inputs(unknown, changes, own))

    def folded_from_nothing(self) -> "DataFrame":
        """All records, judged as if the table were empty: only reading them all shows which of them share a key."""
        rows = {name: self.rows(name, everything, {}) for name in self.inputs}
        return self.dataset.shape(rows, {}).localCheckpoint()

    def with_states(self, df: "DataFrame", own: "DataFrame | None") -> "DataFrame":
        """The rows; those of windows with whether they are open, complete or revised."""
        completeness = self.dataset.completeness
        return completeness.judged(df, own, self.context) if completeness and completeness.bears_on(df) else df

    def computed(self, df: "DataFrame", scope: Scope) -> "tuple[DataFrame, ArrowTable | None]":
        """Rows of a scope, computed once, with the settings that suit how many rows they are made of.

        The driver takes them where they are few.
        """
        few = self.few_rows(df, scope)
        if few is not None:
            return small_frames.local(df, few), few
        small_frames.optimize(df)
        with self.sized(df, scope):
            df = df.localCheckpoint()
        few = small_frames.small_rows(df)
        return (df if few is None else small_frames.local(df, few)), few

    def few_rows(self, df: "DataFrame", scope: Scope) -> "ArrowTable | None":
        """Rows that are made of a small scope; None where they are many, or cannot be the driver's."""
        if not self.is_small(scope):
            return None
        known = small_frames.known_rows(df)
        return small_frames.small_rows(df, sized=lambda run: self.sized(run, scope)) if known is None else known

    def sized(self, df: "DataFrame", scope: Scope) -> AbstractContextManager[None]:
        """The settings that suit how many rows a scope's frame is made of."""
        # Of rows that the driver has none are read, as where groups are adjusted.
        return sized_for(self.spark, small_frames.rows_max if is_local(df) else self.rows_to_read(scope))

    def difference(
        self, own: "DataFrame", new: "DataFrame", grain: Sequence[str], scope: Scope
    ) -> "tuple[DataFrame, ArrowTable | None]":
        """The rows of a scope that differ from those that are there; compared by the driver where it has both."""
        had = small_frames.known_rows(own) if self.is_small(scope) else None
        has = self.few_rows(new, scope) if had is not None and are_comparable(had.schema, grain) else None
        few = None if had is None or has is None else difference_of_few(had, has, grain)
        if few is None:
            return self.computed(difference(own, new, grain), scope)
        schema = cast(StructType, small_frames.nullable(new.schema)).add(operation, "string")
        return small_frames.frame_of(self.spark, few, schema), few

    def rows_to_read(self, scope: Scope) -> int | None:
        """About how many input rows the scope needs: the same share of the inputs as it has of the table."""
        if scope.is_everything:
            return self.rows_to_shape(scope)
        return max(scope.count, scope.count * self.input_count // max(self.own_count, 1))

    def reached(self, shaped: "DataFrame", scope: Scope) -> dict[str, Reached]:
        """How far each partition has come with the rows of this evaluation; nothing for what consumes no records."""
        if self.dataset.reached is None:
            return {}
        found = dict(self.known.entry.reached) if self.known and not scope.is_everything else {}
        rows = small_frames.all_rows(self.dataset.reached(shaped))
        # As numbers: Python knows no year beyond 9999.
        times = [rows[name].cast(pa.int64()).to_pylist() for name in ("event_time", "log_time")]
        for partition, event_time, log_time in zip(rows["partition"].to_pylist(), *times, strict=True):
            now = Reached(event_time=None if event_time is None else instant(event_time), log_time=instant(log_time))
            found[partition] = found[partition].with_more(now) if partition in found else now
        return found

    def entry(self, reached: dict[str, Reached]) -> Entry:
        """The ledger entry of a commit of these rows."""
        # Rows outside a backfill range keep the declaration that they were made by.
        made_by = self.known.entry if self.backfill is not None and self.known is not None else self.dataset
        return Entry(
            dataset=self.dataset.name,
            fingerprint=made_by.fingerprint,
            declared=made_by.declared,
            cause=self.cause,
            inputs=dict(self.pinned),
            beside={table: number for table, number in self.fences.items() if table != self.dataset.name},
            reached=reached,
            watermark=self.watermark(reached),
            began_ms=self.context.began_ms,
            read_at=self.read_at,
            because=repaired(self.lake, self.dataset, self.known, self.cause),
        )

    def watermark(self, reached: dict[str, Reached]) -> datetime | None:
        """The event time that the rows have reached: by their own partitions, or with their inputs."""
        if self.dataset.reached is None:
            return self.context.watermark
        idle_after = microseconds(self.dataset.idle_after) if self.dataset.idle_after else None
        now = watermark_of(reached, None if idle_after is None else timedelta(microseconds=idle_after))
        # A partition that wakes up, or is new, must not take time back.
        return later_of(self.context.watermark_before, now)


def repaired(lake: TableFormat, dataset: Dataset, known: Commit | None, cause: Cause) -> str | None:
    """What is repaired where a dataset is computed as a whole; None where the cause says it all."""
    if known is None or cause not in ("altered", "rebuild"):
        return None
    if cause == "altered":
        return lake.altered_by(dataset.name, known)
    return wrong_bounds_of(lake, dataset)


def wrong_bounds_of(lake: TableFormat, dataset: Dataset) -> str | None:
    """Why rows of one of a dataset's tables may not be found; None: nothing."""
    return next(filter(None, (lake.wrong_bounds(each.table) for each in dataset.outputs)), None)


def is_read(changed: "DataFrame") -> bool:
    """Whether the new rows of a change feed were read once, and are all that is left of it."""
    return change_columns[0] not in changed.columns


def old_images(changed: "DataFrame") -> "DataFrame":
    """The rows of a change feed as they were before they were updated or deleted."""
    return changed.where("_change_type IN ('update_preimage', 'delete')").drop(*change_columns)


def inserted(changed: "DataFrame") -> "DataFrame":
    """The new rows of a change feed."""
    if is_read(changed):
        return changed
    return dropped(where_equal(changed, change_columns[0], "insert"), *change_columns)


def of_slice(rows: "DataFrame", output: Output) -> "DataFrame":
    """The rows of an output in a table that others share."""
    return reduce(lambda df, named: where_equal(df, *named), output.slice, rows)


def union(frames: "list[DataFrame]") -> "DataFrame":
    """Rows that are in any of the frames; a column that one lacks is null there."""
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
