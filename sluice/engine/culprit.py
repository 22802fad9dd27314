"""The culprit: the row and the records that cannot be computed. Found by bisection; nothing is written."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sluice.engine.backfill import BackfillRange
from sluice.engine.blocked import Block, blocked_by, is_of_data, reason_of
from sluice.engine.evaluation import Evaluation, union
from sluice.engine.refresh import due
from sluice.engine.touched import scope_of
from sluice.errors import SluiceError
from sluice.model.datasets import Dataset, Topic
from sluice.model.ledger import Commit
from sluice.model.scope import Scope, collect, everything
from sluice.model.small_frames import local, small_rows
from sluice.quality.collected import collected
from sluice.runtime.session import named_jobs, noting_lines
from sluice.shapes.parse import bronze_position, position
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyarrow import Table as ArrowTable
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]
errors_of_spark = (PySparkException, Py4JJavaError)
place_schema = "_topic string, _partition int, _offset bigint"
records_named_max = 10
# As many bits as the hash that identifies rows has.
halvings_max = 48


@dataclass(frozen=True)
class Culprit:
    """The scope's row that cannot be computed, and the positions of records that it cannot be computed from.

    `or_of` names the histories whose versions may be wrong instead of the records, `error` is what Spark says of them.
    """

    row: dict[str, Any]
    records: tuple[str, ...]
    or_of: tuple[str, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True)
class Attempt:
    """A refresh that fails, by its arguments (see `refresh`)."""

    spark: "SparkSession"
    lake: TableFormat
    dataset: Dataset
    rebuild: bool = False
    backfill: BackfillRange | None = None
    pinned: Mapping[str, Commit] | None = None

    def due(self) -> Evaluation | None:
        """What it evaluates."""
        found = due(
            self.spark,
            self.lake,
            self.dataset,
            rebuild=self.rebuild,
            backfill=self.backfill,
            pinned=self.pinned,
        )
        return found if isinstance(found, Evaluation) else None


@contextlib.contextmanager
def naming_culprits(failing: Attempt) -> Iterator[None]:
    """Where values cannot be computed, a SluiceError that names the row and its records, as a blocked dataset does."""
    try:
        yield
    except errors_of_spark as error:
        if not is_of_data(error):
            raise
        name = failing.dataset.name
        block = with_culprit(blocked_by(error, name, "", {}, None), failing)
        raise SluiceError(f"{name} cannot be computed. {block}") from error


def with_culprit(block: Block, failed: Attempt) -> Block:
    """The block, with the row and the records that cannot be computed, where these can be found."""
    with contextlib.suppress(Exception), named_jobs(failed.spark, failed.dataset.name) as spark, noting_lines(spark):
        work = replace(failed, spark=spark).due()
        found = find(work) if work else None
        if found is not None:
            said = {"reason": reason_of(found.error)} if found.error else {}
            known = {"culprit": found.row or None, "records": found.records, "or_of": found.or_of}
            return block.model_copy(update=known | said)
    return block


def find(work: Evaluation) -> Culprit | None:
    """What keeps a dataset from being computed from its inputs as they are; None when no single row does.

    Computes about twice what the refresh would have.
    """
    if work.dataset.is_fold:
        records = records_of(work, everything)
        return records if records.records else None
    try:
        rows = taken(scope_rows(work))
    except errors_of_spark:
        return of_scope(work)
    found = halved(rows, lambda some: error_with(work, rows_within(work, collect(some))) is not None)
    if found is None:
        return None
    row = collected(found)[0]
    return replace(records_of(work, collect(found)), row=plain(row))


def of_scope(work: Evaluation) -> Culprit | None:
    """The record whose affected rows are unknown, because its key or its group cannot be computed."""
    for name in work.inputs:

        def error_of(places: "DataFrame", name: str = name) -> Exception | None:
            rows = {name: only(work.inputs[name], places)}
            return error_in(lambda: collect(touched(work, rows)))

        places = places_in(work.inputs[name])
        found = None if places is None else halved(taken(places), lambda some: error_of(some) is not None)
        if found is not None and found.count() <= records_named_max:
            return Culprit({}, tuple(sorted(position_of(row) for row in found.collect())), error=error_of(found))
    return None


def scope_rows(work: Evaluation) -> "DataFrame":
    """The rows of the refresh's scope; if that is everything, those that all rows of its inputs touch."""
    scope = scope_of(work, work.changes()) if work.cause in ("changes", "replay") else everything
    return touched(work, work.inputs) if scope.rows is None else scope.rows


def touched(work: Evaluation, rows: "Mapping[str, DataFrame]") -> "DataFrame":
    """The rows that some rows of the inputs touch."""
    inputs = work.dataset.inputs
    tables = {**work.inputs, **(work.current if work.known else empty_tables(work))}
    return union([inputs[name].scope(df, tables) for name, df in rows.items()]).distinct()


def empty_tables(work: Evaluation) -> "dict[str, DataFrame]":
    """The tables of a dataset that was never computed, without rows."""
    shaped = work.dataset.shape({name: df.limit(0) for name, df in rows_within(work, everything).items()}, {})
    return {output.table: output.select(shaped).limit(0) for output in work.dataset.outputs}


def records_of(work: Evaluation, scope: Scope) -> Culprit:
    """The positions of the records without which the scope can be computed, from the input with the fewest of them.

    If several inputs have equally few, the records of all of them: any of them may be wrong.
    """
    rows = {name: near(df) for name, df in rows_within(work, scope).items()}
    found = {name: blamed for name in rows if (blamed := blamed_in(work, rows, name))}
    fewest = min(map(len, found.values()), default=0)
    found = {name: blamed for name, blamed in found.items() if len(blamed) == fewest}
    narrowed = {**rows, **{name: only(rows[name], table_of(rows[name], each)) for name, each in found.items()}}
    return Culprit(
        {},
        tuple(position_of(each) for blamed in found.values() for each in blamed),
        tuple(history for name in found for history in joined_histories(work, narrowed, name)),
        error_with(work, narrowed) or error_with(work, rows),
    )


def joined_histories(work: Evaluation, rows: "Mapping[str, DataFrame]", name: str) -> tuple[str, ...]:
    """The histories whose versions were joined to the rows of an input, where without these all can be computed."""
    joined = versions_in(work.dataset.inputs[name].source)
    nothing = {alias: F.lit(None).cast(rows[name].schema[alias].dataType) for alias in joined}
    if not joined or error_with(work, {**rows, name: rows[name].withColumns(nothing)}) is not None:
        return ()
    return tuple(joined.values())


def versions_in(source: Dataset | Topic) -> dict[str, str]:
    """The columns of a dataset that hold versions of histories, with the names of these."""
    if not isinstance(source, Dataset) or "facts" not in source.inputs:
        return {}
    own = {alias: each.source.name for alias, each in source.inputs.items() if alias != "facts"}
    return {**versions_in(source.inputs["facts"].source), **own}


def position_of(place: "Row | Sequence[Any]") -> str:
    return "/".join(map(str, place))


def blamed_in(work: Evaluation, rows: "Mapping[str, DataFrame]", name: str) -> "list[Row]":
    """The records of one input without which the scope can be computed; none where there are none, or many."""
    rest = places_in(rows[name])
    is_culprit = partial(fails_within, work, rows, name)
    if rest is None or is_culprit(rest.limit(0)):
        return []
    rest = taken(rest)
    blamed: list[Row] = []
    while (found := halved(rest, is_culprit)) is not None:
        needed = without_needless(found, is_culprit)
        blamed += needed
        if not needed or len(blamed) > records_named_max:
            return []
        rest = taken(rest.join(F.broadcast(table_of(rest, needed)), list(position), "left_anti"))
    for each in list(blamed):
        # If the rest can be computed with it again, it was only next to the wrong one.
        more = taken(rest.unionByName(table_of(rest, [each])))
        if not is_culprit(more):
            rest = more
            blamed.remove(each)
    return blamed


def without_needless(places: "DataFrame", is_culprit: "Callable[[DataFrame], bool]") -> "list[Row]":
    """Of a few records, those without which the others are no culprits; none if there are many."""
    kept: list[Row] = [tuple(each) for each in places.orderBy(*position).limit(2 * records_named_max + 1).collect()]
    if len(kept) > 2 * records_named_max:
        return []
    for each in list(kept):
        others = [other for other in kept if other != each]
        if others and is_culprit(table_of(places, others)):
            kept = others
    return kept if len(kept) <= records_named_max else []


def table_of(any_df: "DataFrame", places: "Sequence[Row]") -> "DataFrame":
    return any_df.sparkSession.createDataFrame(list(places), place_schema)


def places_in(df: "DataFrame") -> "DataFrame | None":
    """The positions of the records that rows are of."""
    names = place_columns(df)
    if not set(names) <= set(df.columns):
        return None
    return df.select(*[F.col(name).alias(place) for name, place in zip(names, position, strict=True)]).distinct()


def place_columns(df: "DataFrame") -> tuple[str, ...]:
    """The columns that would have a record's position: those of a dataset, or those of bronze."""
    return position if set(position) <= set(df.columns) else bronze_position


def only(df: "DataFrame", places: "DataFrame") -> "DataFrame":
    """The rows that are of records at some positions."""
    names = place_columns(df)
    wanted = places.select(*[F.col(place).alias(name) for name, place in zip(names, position, strict=True)])
    return df.join(F.broadcast(wanted), list(names), "left_semi")


def taken(rows: "DataFrame") -> "DataFrame":
    """The same rows, computed once: by the driver where they are few."""
    few = small_rows(rows)
    return rows.localCheckpoint() if few is None else local(rows, few)


def near(rows: "DataFrame") -> "DataFrame":
    """The same rows, with the driver where they are few and can be read."""
    try:
        few = small_rows(rows)
    except errors_of_spark:
        few = None
    return rows if few is None else local(rows, few)


def halved(rows: "DataFrame", is_culprit: "Callable[[DataFrame], bool]") -> "DataFrame | None":
    """The smallest set of rows found by bisection to be culprits together; None if all together are none."""
    if not is_culprit(rows):
        return None
    split = F.xxhash64(*rows.columns)
    for bit in range(halvings_max):
        few = small_rows(rows)
        if few is not None:
            return few_halved(rows, few, is_culprit)
        if rows.count() == 1:
            break
        is_set = split.bitwiseAND(F.lit(1 << bit)) != 0
        halves = (rows.where(each).localCheckpoint() for each in (is_set, ~is_set))
        worse = next((half for half in halves if not half.isEmpty() and is_culprit(half)), None)
        if worse is None:
            break
        rows = worse
    return rows


def few_halved(rows: "DataFrame", few: "ArrowTable", is_culprit: "Callable[[DataFrame], bool]") -> "DataFrame":
    """The same of culprits that the driver has."""
    while few.num_rows > 1:
        middle = few.num_rows // 2
        worse = next((half for half in (few[:middle], few[middle:]) if is_culprit(local(rows, half))), None)
        if worse is None:
            break
        few = worse
    return local(rows, few)


def rows_within(work: Evaluation, scope: Scope) -> "dict[str, DataFrame]":
    """The rows of every input that bear on a scope."""
    return {name: work.rows(name, scope, {}) for name in work.inputs}


def fails_within(work: Evaluation, rows: "Mapping[str, DataFrame]", name: str, places: "DataFrame") -> bool:
    """Whether the shape cannot be computed of those rows of one input that are of records at some positions."""
    return error_with(work, {**rows, name: only(rows[name], places)}) is not None


def error_with(work: Evaluation, rows: "Mapping[str, DataFrame]") -> Exception | None:
    """Why the shape cannot be computed of some rows; None when it can."""

    def compute() -> None:
        shaped = work.dataset.shape(rows, {})
        for output in work.dataset.outputs:
            output.select(shaped).write.format("noop").mode("overwrite").save()

    return error_in(compute)


def error_in(compute: Callable[[], object]) -> Exception | None:
    """What Spark raises."""
    try:
        compute()
    except errors_of_spark as error:
        return error
    return None


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row as JSON has them, without those of bookkeeping."""
    return {
        name: value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in row.items()
        if not name.startswith("_")
    }
