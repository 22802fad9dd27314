"""The verb: refresh a dataset, so that its table says what its shape says about the inputs as they are now.

    what changed upstream  →  the scope  →  the shape  →  write the difference

One function does it for every dataset, for the first build and for a single late record alike.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.engine.backfill import Part
from sluice.errors import SluiceError
from sluice.model.completeness import Moment, later_of
from sluice.model.datasets import Dataset, Output, microseconds, same_names
from sluice.model.expectations import Expectation
from sluice.model.ledger import (
    Cause,
    Commit,
    Entry,
    InputVersion,
    Reached,
    RowCounts,
    no_rows,
    same_states,
    watermark_of,
)
from sluice.model.scope import Scope, collect, everything
from sluice.model.times import instant
from sluice.quality.measure import Outcome, measure
from sluice.runtime.session import optimize, sized_for
from sluice.shapes.difference import change_columns, difference, operation
from sluice.storage.delta import Lake
from sluice.storage.small_writes import taken

if TYPE_CHECKING:
    from pyarrow import Table as ArrowTable
    from pyspark.sql import DataFrame, SparkSession

# Beyond this share of its rows a table is recomputed as a whole: pruning and joining by scope would cost more.
rebuild_share = 0.25


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did: why it recomputed, how many scope rows it had, and the rows it changed in its own table.

    One that is `held` stays as it is: its declaration changed, and nobody has promoted that yet. `outcomes` are those
    of the gate; where one is critical the rows were refused, and the tables are as they were.
    """

    dataset: str
    cause: Cause | None
    scope_count: int | None = None
    rows: RowCounts = no_rows
    held: bool = False
    outcomes: tuple[Outcome, ...] = ()

    @property
    def is_refused(self) -> bool:
        return any(each.is_critical for each in self.outcomes)


def refresh(
    spark: "SparkSession",
    lake: Lake,
    dataset: Dataset,
    *,
    rebuild: bool = False,
    part: Part | None = None,
    hold_changed: bool = False,
    pinned: Mapping[str, Commit] | None = None,
    gate: Sequence[Expectation] = (),
) -> Refreshed:
    """Brings the dataset's tables up to its inputs; does nothing when they are the versions it was computed from.

    With `rebuild` all rows are computed anew, with `part` those in it. `pinned` are states of the inputs other than
    the newest. With `hold_changed` a dataset whose declaration changed is left as it is. Rows of which the `gate` finds
    something critical are not written.
    """
    found = begun(spark, lake, dataset, rebuild=rebuild, part=part, hold_changed=hold_changed, pinned=pinned, gate=gate)
    return found.run() if isinstance(found, Refresh) else found


def begun(
    spark: "SparkSession",
    lake: Lake,
    dataset: Dataset,
    *,
    rebuild: bool = False,
    part: Part | None = None,
    hold_changed: bool = False,
    pinned: Mapping[str, Commit] | None = None,
    gate: Sequence[Expectation] = (),
) -> "Refresh | Refreshed":
    """The refresh that there is to do; where there is none, what is said of it."""
    lake = lake.remembering()
    known = lake.last_commit(dataset.name)
    if is_held(dataset, known, hold_changed=hold_changed):
        return Refreshed(dataset.name, None, held=True)
    if pinned is None:
        pinned = newest_inputs(lake, dataset)
    if waits_for(dataset, pinned):
        return Refreshed(dataset.name, None)
    watermark = reached_by_all(dataset, pinned)
    versions = {name: commit.as_input for name, commit in pinned.items()}
    cause = why(lake, dataset, known, versions, rebuild=rebuild, part=part)
    moment = Moment.of(known.entry.watermark if known else None, watermark, datetime.now(UTC))
    if cause is None and dataset.keeps_time and moment.has_moved:
        cause = "watermark"
    if cause is None:
        return Refreshed(dataset.name, None)
    fences = fences_of(lake, dataset, known)
    return Refresh(spark, lake, dataset, known, versions, cause, moment, fences, part, gate)


def put(
    spark: "SparkSession", lake: Lake, dataset: Dataset, entry: Entry, rows: "Mapping[str, tuple[DataFrame, Scope]]"
) -> RowCounts:
    """Makes the dataset's tables equal to rows that are there already, each in one commit that says `entry`.

    `rows` gives for each output table its rows within a scope of keys (its grain); a table that it lacks is so already.
    Whether windows are complete or revised is judged by what is public now, not by what the rows said of themselves.
    """
    outputs = tuple(
        replace(output, scope_columns=same_names(output.grain), prune_columns=()) for output in dataset.outputs
    )
    by_key = replace(dataset, outputs=outputs)
    known = lake.last_commit(dataset.name)
    moment = Moment.of(known.entry.watermark if known else None, entry.watermark, datetime.now(UTC))
    entry = entry.model_copy(update={"watermark": moment.watermark})
    writing = Refresh(spark, lake, by_key, known, entry.inputs, entry.cause, moment, fences_of(lake, dataset, known))
    counts = [
        writing.put(output, *rows[output.table], entry) if output.table in rows else writing.keep(output, entry)
        for output in outputs
    ]
    return counts[-1]


def fences_of(lake: Lake, dataset: Dataset, known: Commit | None) -> dict[str, int]:
    """For each output, what its next commit must follow: read before its rows are, and for its own with the cursor."""
    others = {output.table: lake.fence(output.table, dataset.name) for output in dataset.outputs[:-1]}
    return others | {dataset.name: known.fence if known else lake.fence(dataset.name, dataset.name)}


def is_held(dataset: Dataset, known: Commit | None, *, hold_changed: bool) -> bool:
    """True when the declaration is not the one that the table was made by, and must not replace it by itself."""
    if known is None or known.entry.fingerprint == dataset.fingerprint:
        return False
    return hold_changed or known.entry.rejected == dataset.fingerprint


def newest_inputs(lake: Lake, dataset: Dataset) -> dict[str, Commit]:
    """The states of the inputs that this refresh reads, whatever is committed meanwhile."""
    sources = {each.source.name for each in dataset.inputs.values()}
    commits = {name: lake.last_commit(name) for name in sorted(sources)}
    return {name: commit for name, commit in commits.items() if commit is not None}


def waits_for(dataset: Dataset, pinned: Mapping[str, Commit]) -> set[str]:
    """The inputs that are not there yet and that the dataset cannot do without: their first build was refused."""
    needed = {
        each.source.name
        for each in dataset.inputs.values()
        if isinstance(each.source, Dataset) or not each.source.optional
    }
    return needed - set(pinned)


def reached_by_all(dataset: Dataset, pinned: Mapping[str, Commit]) -> datetime | None:
    """The event time that all inputs which tell the time have reached; None while one of them has reached none."""
    found = [pinned[source.name].entry.watermark for source in dataset.upstream if source.keeps_time]
    reached = [each for each in found if each is not None]
    return min(reached, default=None) if len(reached) == len(found) else None


def why(
    lake: Lake,
    dataset: Dataset,
    known: Commit | None,
    pinned: Mapping[str, InputVersion],
    *,
    rebuild: bool,
    part: Part | None,
) -> Cause | None:
    """Why the dataset must be recomputed, or None when it is up to date."""
    if known is None:
        return "first build"
    if rebuild:
        return "rebuild"
    if part is None and known.entry.fingerprint != dataset.fingerprint:
        return "declaration changed"
    if part is None and same_states(known.entry.inputs, pinned):
        return None
    for name, now in pinned.items():
        then = known.entry.seen(name, now)
        if not then.is_state(now) and not lake.holds_changes(name, then, now):
            return "input rebuilt"
    return "changes" if part is None else "replay"


@dataclass(frozen=True)
class Plan:
    """What is to be written to one output: rows that replace all, or the difference that a scope makes.

    A difference that is a handful of rows is here as `few` too.
    """

    output: Output
    rows: "DataFrame"
    entry: Entry
    scope: Scope | None
    counts: RowCounts = no_rows
    few: "ArrowTable | None" = None


@dataclass(frozen=True)
class Refresh:
    """One refresh under way: the pinned inputs, and the cause that set it off."""

    spark: "SparkSession"
    lake: Lake
    dataset: Dataset
    known: Commit | None
    pinned: Mapping[str, InputVersion]
    cause: Cause
    moment: Moment
    fences: Mapping[str, int]
    part: Part | None = None
    gate: Sequence[Expectation] = ()

    def run(self) -> Refreshed:
        outcomes: tuple[Outcome, ...] = ()
        if self.cause == "watermark" and not self.is_judged:
            return Refreshed(self.dataset.name, self.cause, 0, self.untouched())
        if self.cause == "replay" and self.dataset.is_fold:
            scope, plans = self.plans_of_part()
            rows, outcomes = self.committed(plans)
        else:
            is_incremental = self.cause in ("changes", "watermark", "replay")
            changes = self.changes() if is_incremental else {}
            with sized_for(self.spark, self.rows_changed if is_incremental else None):
                scope = self.scope(changes) if is_incremental else everything
            with sized_for(self.spark, None if scope.is_everything else scope.count):
                is_untouched = not scope.is_everything and scope.count == 0
                rows, outcomes = (self.untouched(), ()) if is_untouched else self.recompute(scope, changes)
        scope_count = None if scope.is_everything else scope.count
        return Refreshed(self.dataset.name, self.cause, scope_count, rows, outcomes=outcomes)

    @cached_property
    def inputs(self) -> dict[str, "DataFrame"]:
        """Every input that exists, as it is at its pinned version."""
        return {
            name: self.lake.read(self.spark, each.source.name, self.pinned[each.source.name].version)
            for name, each in self.dataset.inputs.items()
            if each.source.name in self.pinned
        }

    @cached_property
    def current(self) -> dict[str, "DataFrame"]:
        """Every output as it is before this refresh."""
        return {output.table: self.lake.read(self.spark, output.table) for output in self.dataset.outputs}

    @cached_property
    def is_judged(self) -> bool:
        """True when rows of the table depend on the watermark."""
        completeness = self.dataset.completeness
        return completeness is not None and completeness.bears_on(self.current[self.dataset.name])

    @cached_property
    def own_count(self) -> int:
        """How many rows the dataset's table has before this refresh."""
        return self.lake.row_count(self.dataset.name)

    @cached_property
    def input_count(self) -> int:
        """How many rows the inputs have; looked up once, though each of several outputs asks."""
        sources = {self.dataset.inputs[name].source.name for name in self.inputs}
        return sum(self.lake.row_count(source, self.pinned[source].version) for source in sources)

    def changes(self) -> dict[str, "DataFrame"]:
        """The change feeds of the inputs that moved since the last commit."""
        if self.known is None:
            return {}
        moved = {}
        for name in self.inputs:
            source = self.dataset.inputs[name].source.name
            then, now = self.known.entry.seen(source, self.pinned[source]), self.pinned[source]
            if not then.is_state(now):
                moved[name] = self.lake.changes(self.spark, source, then.version, now.version)
        return moved

    @cached_property
    def rows_changed(self) -> int | None:
        """How many rows changed upstream, by the ledger; None where it does not tell."""
        if self.known is None or self.part is not None:
            return None
        return sum(
            self.lake.rows_changed(source, self.known.entry.seen(source, now).version, now.version)
            for source, now in self.pinned.items()
        )

    def rows_to_read(self, scope: Scope) -> int:
        """About how many rows the scope's are made of: as large a share of the inputs' as it has of the own."""
        return max(scope.count, scope.count * self.input_count // max(self.own_count, 1))

    def scope(self, changes: Mapping[str, "DataFrame"]) -> Scope:
        """The rows of the dataset that the changes touch; everything when that is a large part of the table."""
        touched = self.touched(changes)
        if self.part is not None:
            in_part = self.touched_in_part(self.part)
            if not in_part:
                return everything
            touched += in_part
        found = collect(union(touched))
        is_small = found.count <= rebuild_share * self.own_count
        # A part is no more than what was asked for, whatever that costs.
        return found if self.dataset.is_fold or self.part is not None or is_small else everything

    def touched(self, changes: Mapping[str, "DataFrame"]) -> "list[DataFrame]":
        """The scopes that the changes, and the watermark, touch."""
        tables = {**self.inputs, self.dataset.name: self.current[self.dataset.name]}
        touched = [self.dataset.inputs[name].scope(changed, tables) for name, changed in changes.items()]
        if self.dataset.completeness and self.moment.has_moved and self.is_judged:
            touched.append(self.dataset.completeness.touched(tables[self.dataset.name], self.moment))
        return touched

    def touched_in_part(self, part: Part) -> "list[DataFrame]":
        """The scopes of the input rows and of the own rows in a part; none where neither can be told."""
        own = self.current[self.dataset.name]
        tables = {**self.inputs, self.dataset.name: own}
        touched = []
        for name, rows in self.inputs.items():
            each = self.dataset.inputs[name]
            # When a version of a dimension began says little of the facts in the part; they say it themselves.
            if isinstance(each.source, Dataset) and each.source.tells_time:
                in_part = part.rows(rows, each.source.event_time)
                if in_part is not None:
                    touched.append(each.scope(in_part, tables))
        in_part = part.rows(own, self.dataset.event_time)
        if in_part is not None:
            touched.append(self.dataset.scope_of(in_part))
        return touched

    def plans_of_part(self) -> tuple[Scope, list[Plan]]:
        """The scope of the keys in the part, and what makes their rows equal to a fold of all records from nothing."""
        judged = self.folded_from_nothing()
        touched = self.touched(self.changes())
        for df in (judged, self.current[self.dataset.name]):
            in_part = self.part.rows(df, self.dataset.event_time) if self.part else None
            if in_part is not None:
                touched.append(self.keys_of(in_part))
        scope = collect(union(touched)) if touched else everything
        return scope, self.plans_within(judged, scope)

    def folded_from_nothing(self) -> "DataFrame":
        """All records, judged as if there were no rows yet: only reading them all tells which of them share a key."""
        rows = {name: self.rows(name, everything, {}) for name in self.inputs}
        return self.dataset.shape(rows, {}).localCheckpoint()

    def keys_of(self, df: "DataFrame") -> "DataFrame":
        """The scope columns of the outputs, as far as `df` has them."""
        names = dict.fromkeys(name for output in self.dataset.outputs for _, name in output.scope_columns)
        return df.select(*[name for name in names if name in df.columns])

    def plans_within(self, shaped: "DataFrame", scope: Scope) -> list[Plan]:
        """What makes the outputs' rows of a scope equal to those in `shaped`, which has all rows."""
        entry = self.entry(self.reached(shaped, scope))
        return [
            self.planned(output, scope.filter(output.select(shaped), output.scope_columns), scope, entry)
            for output in self.dataset.outputs
        ]

    def untouched(self) -> RowCounts:
        """Leaves all rows as they are: no change bears on them."""
        return self.keep(self.dataset.outputs[-1], self.entry(dict(self.known.entry.reached) if self.known else {}))

    def recompute(self, scope: Scope, changes: Mapping[str, "DataFrame"]) -> tuple[RowCounts, tuple[Outcome, ...]]:
        """Computes the rows of the scope, and writes what differs."""
        return self.committed(self.plans(scope, changes))

    def plans(self, scope: Scope, changes: Mapping[str, "DataFrame"]) -> list[Plan]:
        """What makes the outputs' rows of the scope equal to what the shape says of the inputs, output by output."""
        shaped, own = self.shaped(scope, changes)
        new = {output.table: output.select(shaped) for output in self.dataset.outputs}
        if self.part is None and not scope.is_everything and self.has_other_columns(new):
            return self.plans(everything, {})
        entry = self.entry(self.reached(shaped, scope))
        return [
            self.planned(output, new[output.table], scope, entry, own.get(output.table))
            for output in self.dataset.outputs
        ]

    def shaped(self, scope: Scope, changes: Mapping[str, "DataFrame"]) -> "tuple[DataFrame, dict[str, DataFrame]]":
        """What the shape makes of the scope's input rows, and the rows that the outputs have in the scope."""
        rows = {name: self.rows(name, scope, changes) for name in self.inputs}
        own = {each.table: self.own(each, scope) for each in self.dataset.outputs} if self.known else {}
        if not scope.is_everything and (self.dataset.is_fold or self.dataset.completeness):
            # The shape looks at them, and so does the difference.
            own = {table: df.localCheckpoint() for table, df in own.items()}
        shaped = self.dataset.shape(rows, {} if scope.is_everything else own)
        shaped = self.with_states(shaped, own.get(self.dataset.name))
        if len(self.dataset.outputs) > 1:
            # Computed once for both; unlike a cache, a checkpoint also spares the writes from planning it again.
            shaped = self.computed(shaped, scope)
        return shaped, own

    def committed(self, plans: Sequence[Plan]) -> tuple[RowCounts, tuple[Outcome, ...]]:
        """Writes the plans one by one; the last commit is the cursor.

        Nothing is written when the gate finds something critical of what the table would be.
        """
        outcomes = self.judged(plans[-1])
        if any(each.is_critical for each in outcomes):
            return no_rows, outcomes
        return [self.write(plan) for plan in plans][-1], outcomes

    def reached(self, shaped: "DataFrame", scope: Scope) -> dict[str, Reached]:
        """How far each partition has come with the rows of this refresh; nothing for what consumes no records."""
        if self.dataset.reached is None:
            return {}
        found = dict(self.known.entry.reached) if self.known and not scope.is_everything else {}
        times = {name: F.unix_micros(name).alias(name) for name in ("event_time", "log_time")}
        for row in self.dataset.reached(shaped).withColumns(times).collect():
            event_time = None if row["event_time"] is None else instant(row["event_time"])
            now = Reached(event_time=event_time, log_time=instant(row["log_time"]))
            found[row["partition"]] = found[row["partition"]].with_more(now) if row["partition"] in found else now
        return found

    def rows(self, name: str, scope: Scope, changes: Mapping[str, "DataFrame"]) -> "DataFrame":
        """The rows of an input that bear on the scope, with the new ones of a fold."""
        each = self.dataset.inputs[name]
        within = each.within(self.inputs[name], scope)
        if scope.is_everything or not each.arrivals or name not in changes:
            return within
        return within.unionByName(changes[name].where("_change_type = 'insert'").drop(*change_columns))

    def own(self, output: Output, scope: Scope) -> "DataFrame":
        """The rows that an output has now and that the scope may change."""
        rows = self.current[output.table].where(output.slice_condition())
        return scope.filter(rows, output.scope_columns, output.prune_columns)

    def with_states(self, df: "DataFrame", own: "DataFrame | None") -> "DataFrame":
        """The rows, and of those of windows whether these are open, complete or revised."""
        completeness = self.dataset.completeness
        return completeness.judged(df, own, self.moment) if completeness and completeness.bears_on(df) else df

    def has_other_columns(self, new: "Mapping[str, DataFrame]") -> bool:
        """True when a table has other columns than its rows should have, and must be written as a whole."""
        return any(df.dtypes != self.current[table].dtypes for table, df in new.items())

    def put(self, output: Output, rows: "DataFrame", scope: Scope, entry: Entry) -> RowCounts:
        """Makes an output's rows of a scope those given, in one commit."""
        own = self.own(output, scope) if self.known else None
        # Some rows cannot bring a column that all the others lack.
        is_judged = own is None or scope.is_everything or "_state" in own.columns
        new = self.with_states(rows, own) if is_judged and output is self.dataset.outputs[-1] else rows
        return self.write(self.planned(output, new, scope, entry, own))

    def planned(
        self, output: Output, new: "DataFrame", scope: Scope, entry: Entry, own: "DataFrame | None" = None
    ) -> Plan:
        """What makes the output's rows of the scope equal to `new`; `own` are those it has, where they were read."""
        if self.known is None:
            return Plan(output, self.kept(new), entry, None)
        own = self.own(output, scope) if own is None else own
        if own.dtypes != new.dtypes:
            if not scope.is_everything:
                raise SluiceError(
                    f"{output.table} has columns of other types than its declaration gives, so no part of it can be "
                    f"computed by itself. Compute all of it first: sluice run {self.dataset.name}"
                )
            anew = entry.model_copy(update={"epoch_from": self.known.version + 1})
            return Plan(output, self.kept(new), anew, None)
        changed = self.computed(difference(own, new, output.grain), scope)
        few = taken(changed)
        return Plan(output, changed, entry, scope, counts_of(changed, few), few)

    def computed(self, df: "DataFrame", scope: Scope) -> "DataFrame":
        """Rows of a scope, computed once, in the way that suits as many as they are made of."""
        optimize(df)
        with sized_for(self.spark, None if scope.is_everything else self.rows_to_read(scope)):
            return df.localCheckpoint()

    def kept(self, new: "DataFrame") -> "DataFrame":
        """Rows that are looked at before they are written, computed once."""
        return new.localCheckpoint() if self.gate else new

    def judged(self, plan: Plan) -> tuple[Outcome, ...]:
        """What the gate says of the table as the plan would make it; nothing where no row changes."""
        is_changed = plan.scope is None or plan.counts.total > 0
        return tuple(measure(self.prospect(plan), self.gate, plan.output.grain)) if self.gate and is_changed else ()

    def prospect(self, plan: Plan) -> "DataFrame":
        """The rows that the table would have."""
        if plan.scope is None:
            return plan.rows
        own = self.current[plan.output.table]
        keys = plan.rows.select(*[F.col(name).alias(f"_changed_{name}") for name in plan.output.grain])
        is_same = reduce(
            lambda left, right: left & right,
            [F.col(name).eqNullSafe(F.col(f"_changed_{name}")) for name in plan.output.grain],
        )
        new = plan.rows.where(F.col(operation) != "deleted").drop(operation)
        return own.join(keys, is_same, "left_anti").unionByName(new)

    def write(self, plan: Plan) -> RowCounts:
        """Does what is planned, in one commit or none."""
        output, entry = plan.output, plan.entry
        fence = self.fences[output.table]
        if plan.scope is None or self.known is None:
            only, cluster_by = dict(output.slice), output.cluster_by
            self.lake.replace(plan.rows, output.table, entry, fence, only=only, cluster_by=cluster_by)
            return RowCounts(inserted=self.lake.row_count(output.table))
        if plan.counts.total == 0:
            return self.keep(output, entry)
        made = entry.model_copy(update={"rows": plan.counts, "epoch_from": self.known.entry.epoch_from})
        if plan.counts.total == plan.counts.inserted:
            few = None if plan.few is None else plan.few.drop_columns([operation])
            self.lake.append(plan.rows.drop(operation), output.table, made, fence, few)
        else:
            condition = output.condition(plan.scope, prefix="own.")
            self.lake.merge(plan.rows, output.table, made, fence, grain=output.grain, condition=condition, few=plan.few)
        return plan.counts

    def keep(self, output: Output, entry: Entry) -> RowCounts:
        """Leaves an output's rows as they are; only the cursor moves, where it is not there already."""
        is_cursor = output is self.dataset.outputs[-1]
        if is_cursor and self.known and not self.known.entry.is_computed_from(entry):
            self.lake.note(output.table, self.known.unchanged(entry), self.fences[output.table])
        return no_rows

    def entry(self, reached: dict[str, Reached]) -> Entry:
        """What a commit of this refresh says of itself."""
        # The rows outside of a part are still by the declaration that they were made by.
        is_part = self.part is not None and self.known is not None
        return Entry(
            dataset=self.dataset.name,
            fingerprint=self.known.entry.fingerprint if is_part and self.known else self.dataset.fingerprint,
            cause=self.cause,
            inputs=dict(self.pinned),
            reached=reached,
            watermark=self.watermark(reached),
        )

    def watermark(self, reached: dict[str, Reached]) -> datetime | None:
        """The event time that the rows have reached: by their own partitions, or with their inputs."""
        if self.dataset.reached is not None:
            idle_after = microseconds(self.dataset.idle_after) if self.dataset.idle_after else None
            now = watermark_of(reached, None if idle_after is None else timedelta(microseconds=idle_after))
            # A partition that wakes up, or is new, is behind what was said already.
            return later_of(self.moment.watermark_before, now)
        return self.moment.watermark


def union(frames: "list[DataFrame]") -> "DataFrame":
    """Rows that are in any of the frames; a column that one lacks is null there."""
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def counts_of(changed: "DataFrame", few: "ArrowTable | None") -> RowCounts:
    """How many rows a difference inserts, updates and deletes."""
    if few is not None:
        return RowCounts(**Counter[str](map(str, few[operation].to_pylist())))
    found = changed.groupBy(operation).count().collect()
    return RowCounts(**{row[operation]: row["count"] for row in found})
