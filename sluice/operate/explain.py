"""Explain a row: every value it has had, when it became known, and which records or declarations made it so.

This needs only what a refresh leaves anyway: each commit says what it was computed from, and the change feeds say what
changed in between. The functions with which a refresh reads the inputs of a scope select the changes that affect the
row.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.engine.culprit import errors_of_spark
from sluice.errors import UsageError, hint
from sluice.model.datasets import Dataset
from sluice.model.few_rows import meeting
from sluice.model.found import Among
from sluice.model.ledger import Commit
from sluice.model.scope import collect
from sluice.model.small_frames import frame_of, known_rows, local, small_rows
from sluice.quality.collected import collected
from sluice.runtime.session import sized_for
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
        feed = self.feed(dataset.name, commits)
        with sized_by(feed):
            images = kept(feed.where(condition_of(dataset, feed, wanted)))
        with sized_by(images):
            versions = versions_of(visible_changes(images))
            return [self.value(dataset, commits, version, images) for version in versions]

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
        here = of_version(images, version)
        after = collected(without_feed(only(here, "_change_type", ["insert", "update_postimage"])))
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
        known = known_rows(images)
        if known is not None:
            rows = known.select(list(position)).to_pylist()
            found = sorted({"/".join(str(row[name]) for name in position) for row in rows})
            yield Origin("records", path, tuple(found[:records_shown_max]), len(found))
            return
        records = images.select(F.concat_ws("/", *position).alias("record")).distinct()
        shown = tuple(row["record"] for row in records.orderBy("record").limit(records_shown_max).collect())
        yield Origin("records", path, shown, records.count())

    def moved(
        self, dataset: Dataset, before: Commit, commit: Commit, images: "DataFrame", path: tuple[str, ...]
    ) -> Iterator[Origin]:
        """The origins of the changes in each input that affect the rows."""
        scope = collect(dataset.scope_of(without_feed(images)))
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
            with sized_by(changed):
                bearing = each.within(changed, scope)
                if "_commit_version" not in bearing.columns:
                    # A summary of rows that another input has.
                    continue
                bearing = kept(whole_changes(changed, bearing, source))
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
                    of_version(bearing, version),
                    (*path, source.name),
                )


def sized_by(df: "DataFrame") -> AbstractContextManager[None]:
    """Runs statements as it suits the rows of a frame; as many, where their number is not known."""
    known = known_rows(df)
    return sized_for(df.sparkSession, None if known is None else known.num_rows)


def kept(df: "DataFrame") -> "DataFrame":
    """The same rows, computed once: by the driver where they are few."""
    rows = small_rows(df)
    return df.localCheckpoint() if rows is None else local(df, rows)


def of_version(images: "DataFrame", version: int) -> "DataFrame":
    """The images of the changes that one commit made."""
    return only(images, "_commit_version", [version])


def only(df: "DataFrame", column: str, values: list[Any]) -> "DataFrame":
    """The rows that have one of these values, by the driver where it has all rows."""
    known = known_rows(df)
    if known is None:
        return df.where(F.col(column).isin(*values))
    return frame_of(df.sparkSession, meeting(known, [Among(column, pa.chunked_array([pa.array(values)]))]), df.schema)


def without_feed(images: "DataFrame") -> "DataFrame":
    """The rows, without what says when they changed and how."""
    known = known_rows(images)
    if known is None:
        return images.drop(*change_columns)
    kept_fields = [field for field in images.schema if field.name not in change_columns]
    rows = known.select([field.name for field in kept_fields])
    return frame_of(images.sparkSession, rows, StructType(kept_fields))


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
    known = known_rows(images)
    if known is not None:
        return sorted(cast("set[int]", set(known["_commit_version"].to_pylist())))
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
    given = {name: value for name, value in values.items() if wanted[name] != "null"}
    # All at once: most of the time, all of them are.
    doubtful = {} if are_values(rows.sparkSession, given.values()) else {name: wanted[name] for name in given}
    for name, text in doubtful.items():
        if not are_values(rows.sparkSession, [values[name]]):
            example = f", such as {examples[types[name]]}" if types[name] in examples else ""
            raise UsageError(f"{dataset.name}: {name}={text} is no value of {name}, which is {types[name]}{example}")
    same = [F.col(name).eqNullSafe(value) for name, value in values.items()]
    return reduce(lambda left, right: left & right, same)


def are_values(spark: "SparkSession", values: Iterable["Column"]) -> bool:
    """Whether each text is a value of its type, as `value_of` reads it."""
    try:
        (read,) = (
            spark.range(1).select(*[value.isNotNull().alias(f"_{at}") for at, value in enumerate(values)]).collect()
        )
    except errors_of_spark:
        return False
    return all(read)


def value_of(text: str, kind: str) -> "Column":
    """Text from the command line as a value of a type: bytes in hexadecimal, structs and arrays as JSON.

    Null for a text that is no such value; what is nested fails.
    """
    typed = F.lit(None if text == "null" else text)
    if kind == "binary":
        return F.unhex(typed)
    whole = {"mode": "FAILFAST"}
    return F.from_json(typed, kind, whole) if kind.startswith(("struct<", "array<")) else typed.try_cast(kind)
