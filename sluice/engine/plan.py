"""Plan what to write, table by table: all rows, a difference, or nothing but the cursor. Nothing is written yet."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sluice.engine.evaluation import Evaluation
from sluice.engine.touched import keys_in_range, scope_of
from sluice.errors import DeclarationError, SluiceError
from sluice.model.arrow_stream import ArrowStream
from sluice.model.datasets import Output, same_names
from sluice.model.ddl import refused, require_names, signs_of_delta
from sluice.model.frames import dropped
from sluice.model.ledger import Commit, Entry, InputVersion, RowCounts, no_rows, repairs
from sluice.model.scope import Scope, everything
from sluice.model.small_frames import local, small_rows
from sluice.runtime.session import sized_for
from sluice.shapes.difference import has_doubled, operation

if TYPE_CHECKING:
    from pyarrow import Table as ArrowTable
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Plan:
    """What one table is to become: `rows` and no others, with `rows` too, or with the difference in `rows` applied.

    `known` is the dataset's last commit, and `fence` the number that the table's next commit must follow. A `change`
    of 'none' writes no rows; the dataset's own table then moves its cursor (`is_cursor`) if that is not there already.
    For a small write, `small` has the rows in Arrow too, and for a large one that needs no Spark, `stream` makes them;
    `before` is the table as it is.
    """

    output: Output
    change: Literal["all", "added", "difference", "none"]
    entry: Entry
    fence: int
    known: Commit | None
    is_cursor: bool = False
    rows: "DataFrame | None" = None
    scope: Scope = everything
    counts: RowCounts = no_rows
    small: "ArrowTable | None" = None
    stream: ArrowStream | None = None
    before: "DataFrame | None" = None

    def over(self, inputs: Mapping[str, InputVersion]) -> "Plan":
        """The same rows, as computed from other versions of the inputs."""
        return replace(self, entry=self.entry.model_copy(update={"inputs": dict(inputs)}))

    def after(self, others: Sequence["Plan"]) -> "Plan":
        """The same, once the other tables of the dataset are written."""
        written = {each.output.table: each.fence + (each.rows is not None) for each in others}
        return replace(self, entry=self.entry.model_copy(update={"beside": self.entry.beside | written}))


@dataclass(frozen=True)
class Plans:
    """The plans of a dataset, its own table last, and how many scope rows were recomputed; None: all."""

    tables: tuple[Plan, ...]
    scope_count: int | None


def plan(evaluation: Evaluation) -> Plans:
    """Plans that make the dataset's tables equal to what its shape computes from the pinned inputs."""
    if evaluation.cause == "watermark" and not evaluation.depends_on_watermark:
        return unchanged(evaluation)
    if evaluation.cause == "replay" and evaluation.dataset.is_fold:
        return plan_of_range(evaluation)
    is_incremental = evaluation.cause in ("changes", "watermark", "replay")
    changes: Mapping[str, DataFrame] = evaluation.changes() if is_incremental else {}
    with sized_for(evaluation.spark, evaluation.rows_changed if is_incremental else None):
        changes = evaluation.read_once(changes)
        scope = scope_of(evaluation, changes) if is_incremental else everything
    if not scope.is_everything and scope.count == 0:
        return unchanged(evaluation)
    with sized_for(evaluation.spark, evaluation.rows_to_shape(scope)):
        return plan_of_scope(evaluation, scope, changes)


def unchanged(evaluation: Evaluation) -> Plans:
    """No row is touched: the cursor moves, and nothing else."""
    entry = evaluation.entry(dict(evaluation.known.entry.reached) if evaluation.known else {})
    return Plans((without_change(evaluation, evaluation.dataset.outputs[-1], entry),), 0)


def plan_of_scope(evaluation: Evaluation, scope: Scope, changes: "Mapping[str, DataFrame]") -> Plans:
    """The rows of a scope, from those of the inputs that it needs."""
    outputs = evaluation.dataset.outputs
    shaped, own = evaluation.shaped(scope, changes)
    new = {output.table: output.select(shaped) for output in outputs}
    is_whole = evaluation.backfill is not None or scope.is_everything
    current = evaluation.current
    if not is_whole and any(table not in current or df.dtypes != current[table].dtypes for table, df in new.items()):
        return plan_of_scope(evaluation, everything, {})
    entry = evaluation.entry(evaluation.reached(shaped, scope))
    found = [planned(evaluation, each, new[each.table], scope, entry, own=own.get(each.table)) for each in outputs]
    return Plans((*without_former(evaluation, entry), *found), count_of(scope))


def without_former(evaluation: Evaluation, entry: Entry) -> Iterator[Plan]:
    """What removes the rows that a dataset has in shared tables as one of another kind: it never changes them."""
    lake, name = evaluation.lake, evaluation.dataset.name
    before = evaluation.known.entry.beside if evaluation.known else {}
    for table in sorted(before.keys() - {output.table for output in evaluation.dataset.outputs}):
        if lake.exists(table):
            former = Output(table, grain=(), scope_columns=(), slice=(("dataset", name),))
            fence, shared = lake.fence(table, name), lake.read(evaluation.spark, table)
            if not shared.where(former.slice_condition()).isEmpty():
                yield Plan(former, "all", entry, fence, evaluation.known, rows=shared.limit(0))


def plan_of_range(evaluation: Evaluation) -> Plans:
    """The rows of the keys in a backfill range of a fold, from all records."""
    judged = evaluation.folded_from_nothing()
    scope = keys_in_range(evaluation, judged)
    entry = evaluation.entry(evaluation.reached(judged, scope))
    rows = {each: scope.filter(each.select(judged), each.scope_columns) for each in evaluation.dataset.outputs}
    found = [planned(evaluation, output, df, scope, entry) for output, df in rows.items()]
    return Plans(tuple(found), count_of(scope))


def plan_of_rows(evaluation: Evaluation, entry: Entry, rows: "Mapping[str, tuple[DataFrame, Scope]]") -> Plans:
    """Rows that are there already, for each table those of a scope of keys (its grain), under a given entry.

    A table that `rows` lacks is as it should be. Whether windows are complete or revised follows from what is public
    now, not from the rows' own state columns.
    """
    found = []
    for each in evaluation.dataset.outputs:
        output = replace(each, scope_columns=same_names(each.grain), prune_columns=())
        if each.table not in rows:
            found.append(without_change(evaluation, output, entry))
            continue
        df, scope = rows[each.table]
        own = evaluation.own(output, scope) if evaluation.known and each.table in evaluation.current else None
        # Some of the rows cannot add a column that all the others lack.
        has_states = own is None or scope.is_everything or "_state" in own.columns
        is_own = each.table == evaluation.dataset.name
        new = evaluation.with_states(df, own) if has_states and is_own else df
        found.append(planned(evaluation, output, new, scope, entry, own=own))
    return Plans(tuple(found), None)


def planned(
    evaluation: Evaluation,
    output: Output,
    new: "DataFrame",
    scope: Scope,
    entry: Entry,
    *,
    own: "DataFrame | None" = None,
) -> Plan:
    """What makes the output's rows of the scope equal to `new`; `own` are those it has, where they were read."""
    whole = Plan(output, "all", entry, evaluation.fences[output.table], evaluation.known, rows=new)
    if evaluation.known is None or output.table not in evaluation.current:
        require_storable(output.table, new)
        small = small_rows(new) if evaluation.is_small(scope) else None
        return whole if small is None else replace(whole, rows=local(new, small), small=small)
    own = evaluation.own(output, scope) if own is None else own
    hindrance = why_whole(evaluation, output, own, new)
    if hindrance is not None:
        if not scope.is_everything:
            raise SluiceError(hindrance)
        return replace(whole, entry=entry.model_copy(update={"epoch_from": evaluation.known.version + 1}))
    changed, small = evaluation.difference(own, new, output.grain, scope)
    counts = counts_of(changed, small)
    if counts.total == 0:
        return without_change(evaluation, output, entry)
    made = entry.model_copy(update={"rows": counts, "epoch_from": evaluation.known.entry.epoch_from})
    found = replace(whole, entry=made, scope=scope, counts=counts, before=evaluation.current[output.table])
    if counts.total > counts.inserted:
        return replace(found, change="difference", rows=changed, small=small)
    small = None if small is None else small.drop_columns([operation])
    return replace(found, change="added", rows=dropped(changed, operation), small=small)


def why_whole(evaluation: Evaluation, output: Output, own: "DataFrame", new: "DataFrame") -> str | None:
    """Why no difference can make `new` rows of a table's `own`, so that all are written again; None where one can."""
    table, dataset = output.table, evaluation.dataset.name
    if own.dtypes != new.dtypes:
        return (
            f"{table} has columns of other types than its declaration gives, so no part of it can be "
            f"computed by itself. Compute all of it first: sluice run {dataset}"
        )
    # A difference is written to the files in which its rows are found.
    wrong = evaluation.lake.wrong_bounds(table)
    if wrong is not None:
        return f"{table}: {wrong}. Bring it up to date first: sluice run {dataset}"
    states = (own, new) if evaluation.cause in ("promoted", "rolled back") else (own,)
    if evaluation.cause in repairs and any(has_doubled(each, output.grain) for each in states):
        # No difference by key can take one of two rows away. Another program wrote them, or their key was another one.
        return f"{table} has rows twice. Repair it first: sluice run --rebuild {dataset}"
    return None


def require_storable(table: str, rows: "DataFrame") -> None:
    """A DeclarationError where a table cannot have such columns: not all writers know it, or know it at once."""
    require_names(table, rows.columns, signs_of_delta)
    for name, kind in rows.dtypes:
        if "map<" in kind:
            raise DeclarationError(f"{table}: {name} is {kind}: {refused['map']}")


def without_change(evaluation: Evaluation, output: Output, entry: Entry) -> Plan:
    """Leaves a table's rows as they are."""
    is_cursor = output.table == evaluation.dataset.name
    return Plan(output, "none", entry, evaluation.fences[output.table], evaluation.known, is_cursor=is_cursor)


def counts_of(changed: "DataFrame", small: "ArrowTable | None") -> RowCounts:
    """How many rows a difference inserts, updates and deletes."""
    if small is not None:
        return RowCounts(**Counter[str](map(str, small[operation].to_pylist())))
    found = changed.groupBy(operation).count().collect()
    return RowCounts(**{row[operation]: row["count"] for row in found})


def count_of(scope: Scope) -> int | None:
    return None if scope.is_everything else scope.count
