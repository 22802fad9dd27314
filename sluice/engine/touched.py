"""Which rows of a dataset to recompute: those that changes upstream, the watermark or a backfill range touch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.engine.backfill import BackfillRange
from sluice.engine.evaluation import Evaluation, union
from sluice.model import small_frames
from sluice.model.datasets import Dataset
from sluice.model.scope import Scope, collect, everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Beyond this share of its rows a table is recomputed as a whole: pruning and joining by scope would cost more.
rebuild_share = 0.25
# A second or a few, while a flow waits.
piece_rows_max = 100_000


def scope_of(evaluation: Evaluation, changes: "Mapping[str, DataFrame]") -> Scope:
    """The rows that the changes touch; everything when that is a large part of a table that is not only adjusted."""
    touched = touched_by(evaluation, changes)
    if evaluation.backfill is not None:
        in_range = touched_in_range(evaluation, evaluation.backfill)
        if not in_range:
            return everything
        touched += in_range
    if are_mostly_new(evaluation):
        # What is beside them is read as a whole, and the table is not searched for them.
        return Scope(union(touched), evaluation.rows_changed or 0)
    found = collect(union(touched))
    is_small = found.count <= rebuild_share * evaluation.own_count
    # A backfill range is never widened to the whole table, whatever it costs.
    dataset = evaluation.dataset
    is_narrow = dataset.is_fold or dataset.is_sparse or evaluation.backfill is not None or evaluation.can_adjust
    return found if is_narrow or is_small or evaluation.makes_only_new else everything


def are_mostly_new(evaluation: Evaluation) -> bool:
    """Whether rows that are only new are many, also beside those of the inputs that did not move."""
    if not evaluation.makes_only_new or evaluation.rows_changed is None:
        return False
    return evaluation.rows_changed > max(small_frames.rows_max, rebuild_share * evaluation.count_beside)


def touched_by(evaluation: Evaluation, changes: "Mapping[str, DataFrame]") -> "list[DataFrame]":
    """The scopes that the changes, and the watermark, touch."""
    dataset, context = evaluation.dataset, evaluation.context
    tables = {**evaluation.inputs, dataset.name: evaluation.current[dataset.name]}
    touched = [dataset.inputs[name].scope(changed, tables) for name, changed in changes.items()]
    touched += [retraction.scope(gone, tables) for retraction, gone in evaluation.retractions(changes)]
    if dataset.completeness and context.has_moved and evaluation.depends_on_watermark:
        touched.append(dataset.completeness.touched(tables[dataset.name], context))
    return touched


def touched_in_range(evaluation: Evaluation, backfill: BackfillRange) -> "list[DataFrame]":
    """The scopes of input rows and of the table's rows in a range; none if neither has the columns to decide."""
    dataset = evaluation.dataset
    own = evaluation.current[dataset.name]
    tables = {**evaluation.inputs, dataset.name: own}
    found = input_rows_in_range(evaluation, backfill)
    touched = [dataset.inputs[name].scope(in_range, tables) for name, (in_range, _) in found.items()]
    in_range = own_rows_in_range(dataset, own, backfill)
    if in_range is not None:
        touched.append(dataset.scope_of(in_range))
    return touched


def input_rows_in_range(evaluation: Evaluation, backfill: BackfillRange) -> "dict[str, tuple[DataFrame, str | None]]":
    """The rows in a range of each input that has the columns to decide, and the column of their event time.

    The begin of a dimension version says little about the facts in the range; the facts have their own times.
    """
    found = {}
    for name, rows in evaluation.inputs.items():
        source = evaluation.dataset.inputs[name].source
        if isinstance(source, Dataset) and source.tells_time:
            in_range = backfill.rows(rows, source.event_time)
            if in_range is not None:
                found[name] = (in_range, source.event_time)
    return found


def pieces(evaluation: Evaluation, backfill: BackfillRange) -> list[BackfillRange]:
    """The range, in pieces that a flow need not wait long for; whole where each piece would read all records.

    Cut by the input with the most rows in it.
    """
    if evaluation.dataset.is_fold or backfill.records:
        return [backfill]
    found = [
        backfill.split(rows, event_time, piece_rows_max)
        for rows, event_time in input_rows_in_range(evaluation, backfill).values()
        if event_time is not None
    ]
    return max(found, key=len, default=[backfill])


def own_rows_in_range(dataset: Dataset, own: "DataFrame", backfill: BackfillRange) -> "DataFrame | None":
    """The table's rows in a range, those included whose inputs are gone; None if it lacks the columns to decide."""
    if dataset.in_range is None or backfill.records:
        return backfill.rows(own, dataset.event_time)
    return own.where(dataset.in_range(backfill.since, backfill.until))


def keys_in_range(evaluation: Evaluation, judged: "DataFrame") -> Scope:
    """Of a fold: the keys of its records (`judged`) and rows in the range, and those that the changes touch."""
    dataset, backfill = evaluation.dataset, evaluation.backfill
    touched = touched_by(evaluation, evaluation.changes())
    for df in (judged, evaluation.current[dataset.name]):
        in_range = backfill.rows(df, dataset.event_time) if backfill else None
        if in_range is not None:
            touched.append(keys_of(dataset, in_range))
    return collect(union(touched)) if touched else everything


def keys_of(dataset: Dataset, df: "DataFrame") -> "DataFrame":
    """The scope columns of the outputs, as far as `df` has them."""
    names = dict.fromkeys(name for output in dataset.outputs for _, name in output.scope_columns)
    return df.select(*[name for name in names if name in df.columns])
