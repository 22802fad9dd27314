"""The verb: refresh a dataset, so that its table says what its shape says about the inputs as they are now.

    what changed upstream  →  the scope  →  the shape  →  the difference: planned, judged by the gate, committed

One function does it for every dataset, for the first build and for a single late record alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.engine import touched
from sluice.engine.backfill import BackfillRange
from sluice.engine.commit import commit
from sluice.engine.evaluation import Evaluation, wrong_bounds_of
from sluice.engine.gate import Verdict, judge
from sluice.engine.observer import Watch
from sluice.engine.plan import Plan, plan, plan_of_rows
from sluice.errors import SluiceError
from sluice.model.completeness import EvaluationContext
from sluice.model.datasets import Dataset
from sluice.model.expectations import Expectation
from sluice.model.ledger import Cause, Commit, Entry, InputVersion, RowCounts, no_rows, same_states
from sluice.model.scope import Scope
from sluice.quality.measure import Outcome
from sluice.runtime.session import named_jobs
from sluice.shapes.fates import fates_table
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did: why it recomputed, how many scope rows it had, and the rows it changed in its own table.

    `rejected` is how many records have a fate now other than a row: duplicate, quarantined, late, erased. One that is
    `held` (on hold) is not refreshed: its declaration changed and is not promoted yet. `outcomes` are those of the
    gate; where it has `broken` something critical, the tables are as they were.
    """

    dataset: str
    cause: Cause | None
    scope_count: int | None = None
    rows: RowCounts = no_rows
    rejected: int = 0
    held: bool = False
    outcomes: tuple[Outcome, ...] = ()
    broken: tuple[str, ...] = ()


def refresh(
    spark: "SparkSession",
    lake: TableFormat,
    dataset: Dataset,
    *,
    rebuild: bool = False,
    backfill: BackfillRange | None = None,
    hold_changed: bool = False,
    pinned: Mapping[str, Commit] | None = None,
    gate: Sequence[Expectation] = (),
    watch: Watch | None = None,
) -> Refreshed:
    """Brings the dataset's tables up to its inputs; does nothing when they are the versions it was computed from.

    With `rebuild` all rows are recomputed, with `backfill` those in its range. `pinned` are states of the inputs other
    than the newest. With `hold_changed` a dataset whose declaration changed is left as it is. Rows that break something
    critical of the `gate` are not written. `watch` hears of the work once there is something to do.
    """
    found = due(spark, lake, dataset, rebuild=rebuild, backfill=backfill, hold_changed=hold_changed, pinned=pinned)
    if isinstance(found, Refreshed):
        return found
    if watch is not None:
        watch.began(found.cause, found.pinned)
    with named_jobs(spark, dataset.name) as own:
        plans = plan(replace(found, spark=own))
        verdict = judge(plans.tables, gate)
        rows = commit(found.lake, verdict)
    fates = () if verdict.broken else [each for each in plans.tables if each.output.table == fates_table]
    rejected = sum(rejected_by(spark, found.lake, dataset, each) for each in fates)
    return Refreshed(
        dataset.name,
        found.cause,
        plans.scope_count,
        rows,
        rejected=rejected,
        outcomes=verdict.outcomes,
        broken=verdict.broken,
    )


def rejected_by(spark: "SparkSession", lake: TableFormat, dataset: Dataset, fates: Plan) -> int:
    """How many fates a commit added for a dataset."""
    if fates.change != "all":
        return fates.counts.inserted
    if fates.small is not None:
        return fates.small.num_rows
    return lake.read(spark, fates_table).where(F.col("dataset") == dataset.name).count()


def pieces(spark: "SparkSession", lake: TableFormat, dataset: Dataset, backfill: BackfillRange) -> list[BackfillRange]:
    """A backfill range in pieces, to be recomputed one after the other with other work in between."""
    found = due(spark, lake, dataset, backfill=backfill)
    return [backfill] if isinstance(found, Refreshed) else touched.pieces(found, backfill)


def judged_rows(
    spark: "SparkSession",
    lake: TableFormat,
    dataset: Dataset,
    entry: Entry,
    rows: "Mapping[str, tuple[DataFrame, Scope]]",
    *,
    gate: Sequence[Expectation],
) -> Verdict:
    """The verdict on tables that are to be equal to rows that are there already (see `plan_of_rows`).

    An entry with `read_at` says that these rows are not accounted for after that version.
    """
    known = lake.last_commit(dataset.name)
    context = EvaluationContext.of(known.entry.watermark if known else None, entry.watermark, datetime.now(UTC))
    entry = entry.model_copy(update={"watermark": context.watermark, "began_ms": context.began_ms})
    fences = fences_of(lake, dataset, known)
    evaluation = Evaluation(spark, lake, dataset, known, entry.inputs, entry.cause, context, fences=fences)
    read_at = [each for each in (entry.read_at, evaluation.read_at) if each is not None]
    entry = entry.model_copy(update={"read_at": min(read_at, default=None)})
    return judge(plan_of_rows(evaluation, entry, rows).tables, gate)


def due(
    spark: "SparkSession",
    lake: TableFormat,
    dataset: Dataset,
    *,
    rebuild: bool = False,
    backfill: BackfillRange | None = None,
    hold_changed: bool = False,
    pinned: Mapping[str, Commit] | None = None,
) -> Evaluation | Refreshed:
    """The evaluation that is due, or the result if there is nothing to evaluate."""
    lake = lake.remembering()
    known = lake.last_commit(dataset.name)
    if is_on_hold(dataset, known, hold_changed=hold_changed):
        return Refreshed(dataset.name, None, held=True)
    if pinned is None:
        pinned = newest_inputs(lake, dataset)
    if waits_for(dataset, pinned):
        return Refreshed(dataset.name, None)
    watermark = reached_by_all(dataset, pinned)
    versions = {name: commit.as_input for name, commit in pinned.items()}
    cause = why(lake, dataset, known, versions, rebuild=rebuild, backfill=backfill)
    if cause == "unfinished" and backfill is not None:
        raise half_done(dataset)
    context = EvaluationContext.of(known.entry.watermark if known else None, watermark, datetime.now(UTC))
    if cause is None and dataset.keeps_time and context.has_moved:
        cause = "watermark"
    if cause is None:
        return Refreshed(dataset.name, None)
    fences = fences_of(lake, dataset, known)
    return Evaluation(spark, lake, dataset, known, versions, cause, context, backfill, fences)


def fences_of(lake: TableFormat, dataset: Dataset, known: Commit | None) -> dict[str, int]:
    """For each output, what its next commit must follow: read before its rows, for its own table with the cursor."""
    others = {output.table: lake.fence(output.table, dataset.name) for output in dataset.outputs[:-1]}
    return others | {dataset.name: known.fence if known else lake.fence(dataset.name, dataset.name)}


def is_on_hold(dataset: Dataset, known: Commit | None, *, hold_changed: bool) -> bool:
    """True when the declaration changed, and must not replace the table without being promoted."""
    if known is None or known.entry.fingerprint == dataset.fingerprint:
        return False
    return hold_changed or known.entry.rejected == dataset.fingerprint


def newest_inputs(lake: TableFormat, dataset: Dataset) -> dict[str, Commit]:
    """The states of the inputs that this refresh reads, regardless of later commits."""
    sources = {each.source.name for each in dataset.inputs.values()}
    commits = {name: lake.last_commit(name) for name in sorted(sources)}
    return {name: commit for name, commit in commits.items() if commit is not None}


def waits_for(dataset: Dataset, pinned: Mapping[str, Commit]) -> set[str]:
    """The required inputs that do not exist yet, because their first build was refused."""
    return dataset.required - set(pinned)


def reached_by_all(dataset: Dataset, pinned: Mapping[str, Commit]) -> datetime | None:
    """The event time that all inputs with a watermark have reached; None while one of them has reached none."""
    found = [pinned[source.name].entry.watermark for source in dataset.upstream if source.keeps_time]
    reached = [each for each in found if each is not None]
    return min(reached, default=None) if len(reached) == len(found) else None


def why(
    lake: TableFormat,
    dataset: Dataset,
    known: Commit | None,
    pinned: Mapping[str, InputVersion],
    *,
    rebuild: bool,
    backfill: BackfillRange | None,
) -> Cause | None:
    """Why the dataset must be recomputed, or None when it is up to date."""
    if known is None:
        return "first build"
    if rebuild:
        return "rebuild"
    if backfill is None and known.entry.fingerprint != dataset.fingerprint:
        return "declaration changed"
    if is_half_done(lake, dataset, known, pinned):
        return "unfinished"
    repair = why_repaired(lake, dataset, known) if backfill is None else None
    return repair or why_followed(lake, known, pinned, backfill)


def why_repaired(lake: TableFormat, dataset: Dataset, known: Commit) -> Cause | None:
    """Why the dataset is computed as a whole though nothing else has changed."""
    if lake.altered_by(dataset.name, known):
        return "altered"
    return "rebuild" if wrong_bounds_of(lake, dataset) else None


def why_followed(
    lake: TableFormat, known: Commit, pinned: Mapping[str, InputVersion], backfill: BackfillRange | None
) -> Cause | None:
    """The same of a dataset that follows its inputs; in a range of a backfill, whether or not they moved."""
    if backfill is None and same_states(known.entry.inputs, pinned):
        return None
    for name, now in pinned.items():
        then = known.entry.seen(name, now)
        if not then.is_state(now) and not lake.holds_changes(name, then, now):
            return "input rebuilt"
    return "changes" if backfill is None else "replay"


def require_whole(lake: TableFormat, dataset: Dataset) -> None:
    """A SluiceError where a run ended between the commits of the dataset's tables, which its next run repairs."""
    known = lake.last_commit(dataset.name)
    pinned = {name: commit.as_input for name, commit in newest_inputs(lake, dataset).items()}
    if known is not None and is_half_done(lake, dataset, known, pinned):
        raise half_done(dataset)


def half_done(dataset: Dataset) -> SluiceError:
    return SluiceError(
        f"{dataset.name}: a run ended in the middle of its commit. Bring it up to date first: sluice run"
    )


def is_half_done(lake: TableFormat, dataset: Dataset, known: Commit, pinned: Mapping[str, InputVersion]) -> bool:
    """Whether a run that ended between the commits of the dataset's tables wanted other rows than are wanted now.

    If it wanted the same ones, their scope is that of the changes, which are still to be followed.
    """
    followed = {each.source.name for each in dataset.inputs.values() if each.arrivals}
    beside = {name: now for name, now in pinned.items() if name not in followed}
    for table, number in known.entry.beside.items():
        fence = lake.fence(table, dataset.name)
        if fence == number:
            continue
        wanted = next((each.entry for each in lake.commits(table)[::-1] if each.entry.dataset == dataset.name), None)
        if wanted is None or fence < number or wanted.cause not in ("changes", "watermark", "erasure"):
            return True
        seen = {name: version for name, version in wanted.inputs.items() if name not in followed}
        if wanted.fingerprint != dataset.fingerprint or not same_states(seen, beside):
            return True
    return False
