"""Recompute rows from the inputs that their table was computed from, and compare: an audit of values, not of counts.

A sample of every table is chosen by a hash of its rows and of its inputs' rows, so that rows that are missing are found
as well as rows that are wrong, and what changed last is always in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict
from pyspark.sql import functions as F

from sluice.engine.evaluation import Evaluation, union
from sluice.engine.touched import keys_of
from sluice.model.completeness import EvaluationContext
from sluice.model.datasets import Dataset, Output
from sluice.model.ledger import Commit, InputVersion, by_another_program
from sluice.model.scope import Scope, collect, everything
from sluice.quality.collected import are_equal, collected
from sluice.shapes.difference import change_columns, differing_pairs, doubled
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

examples_max = 10
recent_commits = 5
recent_rows_max = 1_000
hash_buckets = 1_000_000


class WrongRow(BaseModel):
    """A row that differs from what its inputs imply: it is `missing`, `unexpected`, or has other values.

    `stored` and `recomputed` have the columns that differ; all of them where only one of the two rows exists.
    """

    model_config = ConfigDict(frozen=True)

    table: str
    kind: Literal["missing", "unexpected", "different"]
    key: Mapping[str, Any]
    stored: Mapping[str, Any]
    recomputed: Mapping[str, Any]


class Recomputed(BaseModel):
    """How many rows of a dataset were recomputed, how many are wrong, and up to ten of these.

    `others` names commits by other programs since the last evaluation. `skipped` says why a table was not recomputed.
    """

    model_config = ConfigDict(frozen=True)

    dataset: str
    rows: int = 0
    wrong: int = 0
    examples: tuple[WrongRow, ...] = ()
    others: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def balanced(self) -> bool:
        return self.wrong == 0


def recompute(
    spark: "SparkSession", lake: Lake, datasets: Sequence[Dataset], share: float, seed: int
) -> Iterator[Recomputed]:
    """Recomputes a `share` of the rows of each dataset, 1 for all of them; another `seed` chooses other rows."""
    for dataset in datasets:
        known = lake.last_commit(dataset.name)
        reason = not_comparable(lake, dataset, known)
        if known is None or reason:
            yield Recomputed(dataset=dataset.name, skipped=reason)
        else:
            yield recompute_dataset(evaluation_at(spark, lake.remembering(), dataset, known), known, share, seed)


def not_comparable(lake: Lake, dataset: Dataset, known: Commit | None) -> str | None:
    """Why a table cannot be compared with what its declaration says; None when it can."""
    if known is None:
        return "there is no table yet"
    if known.entry.fingerprint != dataset.fingerprint:
        return "its declaration changed since it was computed"
    gone = [output.table for output in dataset.outputs if not lake.exists(output.table)]
    if gone:
        return f"{', '.join(gone)} is gone; run it first"
    remade = [name for name, seen in known.entry.inputs.items() if not is_there(lake, name, seen)]
    return f"the state of {', '.join(remade)} that it was computed from is gone; run it first" if remade else None


def is_there(lake: Lake, table: str, seen: InputVersion) -> bool:
    """Whether a table still has the version that was read, and not another one of the same number."""
    if lake.newest_version(table) < seen.version:
        return False
    return seen.commit_ms is None or lake.commit_ms(table, seen.version) in (None, seen.commit_ms)


def evaluation_at(spark: "SparkSession", lake: Lake, dataset: Dataset, known: Commit) -> Evaluation:
    """The dataset over the very inputs of its last commit."""
    context = EvaluationContext(known.entry.watermark, known.entry.watermark, datetime.now(UTC))
    return Evaluation(spark, lake, dataset, known, known.entry.inputs, "rebuild", context)


def recompute_dataset(evaluation: Evaluation, known: Commit, share: float, seed: int) -> Recomputed:
    """Compares the sampled rows of each table that the dataset writes with what its shape says of them."""
    if evaluation.dataset.is_fold:
        judged = evaluation.folded_from_nothing()
        scope = everything if share >= 1 else collect(union(sampled_keys(evaluation, known, judged, share, seed)))
        pairs = {
            output: (evaluation.own(output, scope), scope.filter(output.select(judged), output.scope_columns))
            for output in evaluation.dataset.outputs
        }
    else:
        scope = everything if share >= 1 else sampled_scope(evaluation, known, share, seed)
        shaped, own = evaluation.shaped(scope, {})
        pairs = {output: (own[output.table], output.select(shaped)) for output in evaluation.dataset.outputs}
    found = [compared(output, own, new) for output, (own, new) in pairs.items()]
    return reduce(added, found, Recomputed(dataset=evaluation.dataset.name, others=others_of(evaluation, known)))


def others_of(evaluation: Evaluation, known: Commit) -> tuple[str, ...]:
    """The commits to the dataset's own table that are not from an evaluation, since the last one."""
    others = evaluation.lake.written_by_others(evaluation.dataset.name, known.accounts_until)
    return tuple(by_another_program(each) for each in others)


def added(left: Recomputed, right: Recomputed) -> Recomputed:
    """The findings of two tables of one dataset."""
    return Recomputed(
        dataset=left.dataset,
        rows=left.rows + right.rows,
        wrong=left.wrong + right.wrong,
        examples=(left.examples + right.examples)[:examples_max],
        others=left.others + right.others,
    )


def sampled_scope(evaluation: Evaluation, known: Commit, share: float, seed: int) -> Scope:
    """The scope of sampled rows of the table and of its inputs, and of those that changed last."""
    dataset = evaluation.dataset
    own = evaluation.current[dataset.name]
    tables = {**evaluation.inputs, dataset.name: own}
    changed = recently_changed(evaluation, dataset.outputs[-1], known)
    chosen = [dataset.scope_of(df) for df in (sampled(own, share, seed), *changed)]
    for name, rows in evaluation.inputs.items():
        as_new = sampled(rows, share, seed).withColumn("_change_type", F.lit("insert"))
        chosen.append(dataset.inputs[name].scope(as_new, tables))
    found = union([*chosen, *recently_touched(evaluation, tables)])
    # A row that changed is known by its old image, too, or by that alone.
    return collect(dataset.widened(found, own))


def recently_touched(evaluation: Evaluation, tables: "Mapping[str, DataFrame]") -> "Iterator[DataFrame]":
    """The scopes of what changed in the inputs between the last two refreshes that saw a change."""
    lake, dataset = evaluation.lake, evaluation.dataset
    commits = lake.commits(dataset.name)
    before = commits[-2].entry if len(commits) > 1 else None
    for name in evaluation.inputs:
        source = dataset.inputs[name].source.name
        now = evaluation.pinned[source]
        then = before.seen(source, now) if before else now
        if not then.is_state(now) and lake.holds_changes(source, then, now):
            changed = lake.changes(evaluation.spark, source, then.version, now.version).limit(recent_rows_max)
            yield dataset.inputs[name].scope(changed, tables)


def sampled_keys(
    evaluation: Evaluation, known: Commit, judged: "DataFrame", share: float, seed: int
) -> "list[DataFrame]":
    """The keys of sampled records, and those of sampled rows of the tables, which may stand for no record."""
    chosen = [sampled(judged, share, seed)]
    for output in evaluation.dataset.outputs:
        chosen += [
            sampled(evaluation.own(output, everything), share, seed),
            *recently_changed(evaluation, output, known),
        ]
    return [keys_of(evaluation.dataset, df) for df in chosen]


def recently_changed(evaluation: Evaluation, output: Output, known: Commit) -> "Iterator[DataFrame]":
    """The rows of a table that its last commits changed, also those of other programs, since it has its columns."""
    newest = evaluation.lake.newest_version(output.table)
    # No feed is read across a change of columns; a table that datasets share has the same ones for ever.
    epoch_from = known.entry.epoch_from if output.table == known.entry.dataset else 0
    since = max(newest - recent_commits, evaluation.lake.oldest_version(output.table), epoch_from)
    if newest > since:
        changed = evaluation.lake.changes(evaluation.spark, output.table, since, newest)
        yield changed.where(output.slice_condition()).drop(*change_columns).limit(recent_rows_max)


def sampled(df: "DataFrame", share: float, seed: int) -> "DataFrame":
    """About a share of the rows, always the same for one seed."""
    place = F.pmod(F.xxhash64(F.lit(seed), *df.columns), F.lit(hash_buckets))
    return df.where(place < int(share * hash_buckets))


def compared(output: Output, own: "DataFrame", new: "DataFrame") -> Recomputed:
    """The rows of one table that are not as they were recomputed."""
    if own.dtypes != new.dtypes:
        differing = sorted(set(own.dtypes) ^ set(new.dtypes))
        columns = ", ".join(f"{name} {kind}" for name, kind in differing)
        count = own.count()
        return Recomputed(dataset=output.table, rows=count, wrong=count, others=(f"other columns: {columns}",))
    pairs = differing_pairs(own, new, output.grain, new.columns).localCheckpoint()
    examples = tuple(wrong_row(output, row) for row in collected(pairs.orderBy("key").limit(examples_max)))
    again = doubled(own, output.grain).agg(F.sum("count")).collect()[0][0] or 0
    others = (f"{again} rows are there more than once, written by another program",) if again else ()
    return Recomputed(
        dataset=output.table, rows=own.count(), wrong=pairs.count() + again, examples=examples, others=others
    )


def wrong_row(output: Output, pair: Mapping[str, Any]) -> WrongRow:
    """A pair of differing rows, in words."""
    before, after = (row or {} for row in (pair["before"], pair["after"]))
    kind: Literal["missing", "unexpected", "different"] = (
        "missing" if not before else "unexpected" if not after else "different"
    )
    is_pair = bool(before and after)
    names = [each for each in {**before, **after} if not (is_pair and are_equal(before[each], after[each]))]
    return WrongRow(
        table=output.table,
        kind=kind,
        key=readable(pair["key"]),
        stored=readable({name: before[name] for name in names if name in before}),
        recomputed=readable({name: after[name] for name in names if name in after}),
    )


def readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them; bytes as hexadecimal digits."""
    return {name: value.hex() if isinstance(value, bytes | bytearray) else value for name, value in values.items()}
