"""Explain a row: every value it has had, when it became known, and which records or declarations made it so.

This needs only what a refresh leaves anyway: each commit says what it was computed from, and the change feeds say what
changed in between. The functions with which a refresh reads the inputs of a scope select the changes that affect the
row.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.engine.culprit import errors_of_spark
from sluice.errors import UsageError, hint
from sluice.model.datasets import Dataset
from sluice.model.ledger import Commit
from sluice.model.scope import collect
from sluice.quality.collected import collected
from sluice.shapes.difference import change_columns, sign
from sluice.shapes.parse import position
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

records_shown_max = 20
# Causes of commits to which every row of the inputs contributed.
as_a_whole = ("rebuild", "altered", "first build", "replay", "unfinished", "promoted", "rolled back")
examples = {"timestamp": "2026-03-28T10:00:00Z", "date": "2026-03-28"}


@dataclass(frozen=True)
class Origin:
    """The origin of a change, and the datasets on the path from it to the row, the nearest first.

    `records` are positions `topic/partition/offset`, `records_count` how many there are in all.
    """

    by: str
    path: tuple[str, ...]
    records: tuple[str, ...] = ()
    records_count: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """A value that the row had from one commit on; `row` is None when it was not there."""

    version: int
    known_at: datetime
    row: Mapping[str, Any] | None
    cause: str
    origins: tuple[Origin, ...]


@dataclass(frozen=True)
class Explainer:
    """Explains rows from the ledger and the change feeds of a lake."""

    spark: "SparkSession"
    lake: Lake

    def explain(self, dataset: Dataset, wanted: Mapping[str, str]) -> list[Value]:
        """Every value of the row that `wanted` names by column, the oldest first."""
        commits = self.lake.commits(dataset.name)
        if not commits:
            raise UsageError(f"{dataset.name} is not there yet: run it first (sluice run {dataset.name}).")
        images = self.feed(dataset.name, commits)
        images = images.where(condition_of(dataset, images, wanted)).localCheckpoint()
        return [self.value(dataset, commits, version, images) for version in versions_of(visible_changes(images))]

    def feed(self, table: str, commits: Sequence[Commit]) -> "DataFrame":
        """All images of all rows, as far back as the log reaches and the table had the columns that it has now."""
        oldest, newest = (
            max(self.lake.oldest_version(table), commits[-1].entry.epoch_from),
            self.lake.newest_version(table),
        )
        if oldest == 0:
            return self.lake.changes(self.spark, table, -1, newest)
        # What was before is one state, known since then at the latest.
        before = self.lake.read(self.spark, table, oldest).withColumns(
            {"_change_type": F.lit("insert"), "_commit_version": F.lit(oldest).cast("bigint")}
        )
        if oldest == newest:
            return before
        later = self.lake.changes(self.spark, table, oldest, newest)
        return before.unionByName(later, allowMissingColumns=True)

    def value(self, dataset: Dataset, commits: Sequence[Commit], version: int, images: "DataFrame") -> Value:
        """What the row became by one commit, and why."""
        here = images.where(F.col("_commit_version") == version)
        after = collected(here.where("_change_type IN ('insert', 'update_postimage')").drop(*change_columns))
        row = after[0] if after else None
        other = self.written_by_others(dataset.name).get(version)
        if other is not None:
            origin = by_another_program(other, (dataset.name,))
            return Value(version, datetime.fromtimestamp(other["timestamp"] / 1000, UTC), row, origin.by, (origin,))
        number = next((index for index, commit in enumerate(commits) if commit.version >= version), len(commits) - 1)
        commit, before = commits[number], commits[number - 1] if number else None
        origins = tuple(self.origins(dataset, before, commit, here, (dataset.name,)))
        return Value(
            version=version,
            known_at=datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC),
            row=row,
            cause=commit.entry.cause,
            origins=origins,
        )

    def written_by_others(self, table: str) -> dict[int, Mapping[str, Any]]:
        """The commits that no ledger entry explains, by version; what the log begins with is one state."""
        return {each["version"]: each for each in self.lake.written_by_others(table, self.lake.oldest_version(table))}

    def origins(
        self, dataset: Dataset, before: Commit | None, commit: Commit, images: "DataFrame", path: tuple[str, ...]
    ) -> Iterator[Origin]:
        """The origins of the change that a commit made to some rows, `images`: declarations, or records upstream."""
        if before is None or commit.entry.cause in as_a_whole:
            said = {"replay": commit.entry.replay, "because": commit.entry.because}
            yield Origin(commit.entry.cause, path, detail={name: text for name, text in said.items() if text})
            return
        if commit.entry.cause == "declaration changed":
            prints = {"before": before.entry.fingerprint, "after": commit.entry.fingerprint}
            fields = before.entry.changed_fields(commit.entry.declared)
            yield Origin("declaration changed", path, detail=prints | ({"fields": ", ".join(fields)} if fields else {}))
            return
        if dataset.topics:
            yield from self.records(images, path)
            return
        moved = list(self.moved(dataset, before, commit, images, path))
        # Where no input says anything new of these rows, time has come further for them.
        cause = "watermark" if commit.entry.cause == "changes" else commit.entry.cause
        yield from moved or [Origin(cause, path, detail={"watermark": str(commit.entry.watermark)})]

    def records(self, images: "DataFrame", path: tuple[str, ...]) -> Iterator[Origin]:
        """The records that rows of a dataset without upstream datasets are, or were."""
        found = images.select(F.concat_ws("/", *position).alias("record")).distinct()
        shown = tuple(row["record"] for row in found.orderBy("record").limit(records_shown_max).collect())
        yield Origin("records", path, shown, found.count())

    def moved(
        self, dataset: Dataset, before: Commit, commit: Commit, images: "DataFrame", path: tuple[str, ...]
    ) -> Iterator[Origin]:
        """The origins of the changes in each input that affect the rows."""
        scope = collect(dataset.scope_of(images.drop(*change_columns)))
        for each in dataset.inputs.values():
            source = each.source
            now = commit.entry.inputs.get(source.name)
            if now is None or not isinstance(source, Dataset):
                continue
            then = before.entry.seen(source.name, now)
            if then.is_state(now):
                continue
            if not self.lake.holds_changes(source.name, then, now):
                yield Origin("input rebuilt", (*path, source.name))
                continue
            changed = self.lake.changes(self.spark, source.name, then.version, now.version)
            bearing = each.within(changed, scope)
            if "_commit_version" not in bearing.columns:
                # A summary of rows that another input has.
                continue
            bearing = whole_changes(changed, bearing, source).localCheckpoint()
            commits, others = self.lake.commits(source.name), self.written_by_others(source.name)
            for version in versions_of(bearing):
                if version in others:
                    yield by_another_program(others[version], (*path, source.name))
                    continue
                number = next(index for index, each_commit in enumerate(commits) if each_commit.version >= version)
                yield from self.origins(
                    source,
                    commits[number - 1] if number else None,
                    commits[number],
                    bearing.where(F.col("_commit_version") == version),
                    (*path, source.name),
                )


def by_another_program(commit: Mapping[str, Any], path: tuple[str, ...]) -> Origin:
    """The origin of what no refresh wrote."""
    return Origin("another program", path, detail={"operation": str(commit.get("operation"))})


def whole_changes(changed: "DataFrame", bearing: "DataFrame", source: Dataset) -> "DataFrame":
    """Both images of every change of which one affects the rows: a row that left the scope went somewhere."""
    names = [*source.outputs[-1].grain, "_commit_version"]
    wanted = bearing.select(*[F.col(name).alias(f"_wanted_{name}") for name in names]).distinct()
    same = [F.col(name).eqNullSafe(F.col(f"_wanted_{name}")) for name in names]
    return changed.join(F.broadcast(wanted), same, "left_semi")


def visible_changes(images: "DataFrame") -> "DataFrame":
    """The images of visible changes: a row in which only bookkeeping changed is left out, except for its state."""
    values = [name for name in images.columns if name == "_state" or not name.startswith("_")]
    same = Window.partitionBy("_commit_version", *values)
    is_silent = F.sum(sign()).over(same) == 0
    return images.withColumn("_is_silent", is_silent).where("NOT _is_silent").drop("_is_silent")


def versions_of(images: "DataFrame") -> list[int]:
    """The versions in which something changed, the oldest first."""
    return sorted(row[0] for row in images.select("_commit_version").distinct().collect())


def require_grain(dataset: Dataset, wanted: Collection[str]) -> None:
    """A UsageError for columns that do not name one row; it says which do."""
    grain = dataset.outputs[-1].grain
    if set(wanted) != set(grain):
        unknown = [name for name in wanted if name not in grain]
        said = f"{', '.join(unknown)} names no row of it; {hint(unknown[0], grain)}" if unknown else ""
        raise UsageError(
            f"{dataset.name}: {said}say which row by {', '.join(grain)}: sluice explain {dataset.name} "
            + " ".join(f"{name}=…" for name in grain)
        )


def condition_of(dataset: Dataset, rows: "DataFrame", wanted: Mapping[str, str]) -> "Column":
    """The condition that a row is the wanted one."""
    require_grain(dataset, wanted)
    types = dict(rows.dtypes)
    values = {name: value_of(value, types[name]) for name, value in wanted.items()}
    for name, text in wanted.items():
        if text != "null" and not is_value(rows.sparkSession, values[name]):
            example = f", such as {examples[types[name]]}" if types[name] in examples else ""
            raise UsageError(f"{dataset.name}: {name}={text} is no value of {name}, which is {types[name]}{example}")
    same = [F.col(name).eqNullSafe(value) for name, value in values.items()]
    return reduce(lambda left, right: left & right, same)


def is_value(spark: "SparkSession", value: "Column") -> bool:
    """Whether a text is a value of its type, as `value_of` reads it."""
    try:
        return spark.range(1).where(value.isNotNull()).count() > 0
    except errors_of_spark:
        return False


def value_of(text: str, kind: str) -> "Column":
    """Text from the command line as a value of a type: bytes in hexadecimal, structs and arrays as JSON.

    Null for a text that is no such value; what is nested fails.
    """
    typed = F.lit(None if text == "null" else text)
    if kind == "binary":
        return F.unhex(typed)
    whole = {"mode": "FAILFAST"}
    return F.from_json(typed, kind, whole) if kind.startswith(("struct<", "array<")) else typed.try_cast(kind)
