"""Joins of tables by key, and of streams by key within an interval of time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model import integrity as laws
from sluice.model.datasets import (
    Dataset,
    Input,
    Output,
    checked_name,
    documented,
    microseconds,
    require_lists,
    require_timestamp,
    same_names,
    timed,
    type_of,
)
from sluice.model.ddl import require_names
from sluice.model.declared import declares
from sluice.model.join import compared_by, require_common_keys
from sluice.model.lineage import Lineage, Made, Source, as_struct, taken, unique
from sluice.model.query import keyed_rows
from sluice.model.select import Select
from sluice.model.specification import Specification
from sluice.shapes.interval_join import How, IntervalJoin, Side, bucket, rows_within, touched_buckets
from sluice.shapes.interval_join import interval_join as join_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class IntervalJoins(Specification):
    """Pairs of rows of two inputs."""

    kind, version = "interval join", 2
    inputs: Mapping[str, str]
    rule: IntervalJoin


@declares
def join(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    keys: Sequence[str] = (),
    shape: "Callable[..., DataFrame] | str | Select",
    on: Mapping[str, Mapping[str, str]] | None = None,
    grain: Sequence[str] | None = None,
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
    event_time: str | None = None,
    version: int | str | None = None,
) -> Dataset:
    """Rows joined by key: `shape` receives one frame per input, with all rows of some keys, and returns one frame.

    Every input has the columns `keys`, or `on` gives SQL for them, by input and key:
    `on={"people": {"customer_id": "lower(email)"}}`. The frames that `shape` receives have these columns. So must the
    result, with at most one row per `grain` (by default the keys). `shape` must return the same rows for a key whatever
    other keys are in the frames. A change in any input recomputes its keys, so inner and outer joins, of events and of
    tables, all follow late rows on either side.

    The table is rebuilt when `shape` changes, or any project code or constant that it uses. If it uses a value whose
    changes cannot be detected, give a `version` and change it with the value.

    `shape` can also be SQL: one SELECT that reads the inputs by their names. Then keys and grain follow from it.
    """
    made = keyed_rows(
        checked_name("silver", name),
        inputs=inputs,
        keys=keys,
        shape=shape,
        on=on,
        grain=grain,
        meaning=meaning,
        event_time=event_time,
        version=version,
    )
    return documented(made, owner, comments)


@declares
def interval_join(
    name: str,
    *,
    left: Mapping[str, Dataset],
    right: Mapping[str, Dataset],
    keys: Sequence[str],
    between: tuple[str, str],
    how: How = "inner",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """Pairs of events with one key whose times lie within an interval; outer joins also return unmatched events.

    `left` and `right` name a dataset with an event time each: `left={"click": clicks}, right={"order": orders}`. A pair
    matches when the right time minus the left one lies in `between`, bounds included: `("0 seconds", "30 minutes")`.

    The result has the keys, `event_time` (of the left row, or of an unmatched right one), and a struct column per side,
    null where nothing matched. Late rows on either side pair up, and replace the unmatched rows of the pair.
    """
    full_name = checked_name("silver", name)
    require_lists(full_name, keys=keys)
    offsets = [microseconds(text) for text in between]
    if offsets[0] is None or offsets[1] is None or offsets[0] > offsets[1]:
        raise DeclarationError(
            f"{full_name}: between is {between}; write two durations, the lesser first: ('-1 hour', '30 minutes')"
        )
    (left_name, left_source), (right_name, right_source) = checked_sides(full_name, left, right)
    require_common_keys(full_name, keys, (left_source, right_source))
    require_names(f"{full_name}: keys and sides", (*keys, "event_time", left_name, right_name))
    rule = IntervalJoin(
        keys=tuple(keys),
        left=side_of(full_name, left_name, left_source),
        right=side_of(full_name, right_name, right_source),
        earliest_us=offsets[0],
        latest_us=offsets[1],
        how=how,
    )
    sides = {left_name: (left_source, rule.left), right_name: (right_source, rule.right)}
    kept = {"inner": (), "left": (left_name,), "right": (right_name,), "full": (left_name, right_name)}[how]
    compared = compared_by(full_name, {alias: source for alias, (source, _) in sides.items()}, rule.keys)
    made = Dataset(
        name=full_name,
        inputs={alias: input_of(full_name, source, side, rule) for alias, (source, side) in sides.items()},
        outputs=(
            Output(
                full_name,
                grain=("_left", "_right"),
                scope_columns=same_names((*keys, bucket)),
                cluster_by=("event_time",),
            ),
        ),
        shape=lambda rows, own: join_rows(compared(rows)[left_name], rows[right_name], rule),
        specification=IntervalJoins({alias: source.name for alias, (source, _) in sides.items()}, rule),
        meaning=meaning,
        keys=tuple(keys),
        event_time="event_time",
        scope_of=lambda own: own.select(*keys, bucket),
        laws={
            law: sql
            for alias in kept
            for law, sql in laws.of_rows_kept(
                full_name, sides[alias][0].name, {column: f'"{alias}"."{column}"' for column in sides[alias][1].grain}
            ).items()
        },
        columns={
            **{key: type_of(left_source, key) for key in keys},
            "event_time": "timestamp",
            left_name: None,
            right_name: None,
        },
        lineage=lambda: lineage_of(rule, left_source, right_source),
    )
    return documented(made, owner, comments)


def lineage_of(rule: IntervalJoin, left: Dataset, right: Dataset) -> Lineage:
    """The lineage of pairs: keys and time of either side, and a struct of each side's columns."""
    sides = ((rule.left, left), (rule.right, right))
    columns = {key: Made(tuple(Source(source.name, key, "identity") for _, source in sides)) for key in rule.keys}
    times = tuple(Source(source.name, side.time, "transformation") for side, source in sides)
    columns["event_time"] = Made(times, by="the left row's, or that of an unmatched right one")
    for side, source in sides:
        columns |= as_struct(side.name, source.name, source.columns)
    rows = (each for side, source in sides for each in taken(source.name, (*rule.keys, side.time), "join"))
    return Lineage(columns, unique(rows))


def checked_sides(
    dataset: str, left: Mapping[str, Dataset], right: Mapping[str, Dataset]
) -> tuple[tuple[str, Dataset], tuple[str, Dataset]]:
    """The name and the dataset of each side."""
    if len(left) != 1 or len(right) != 1 or set(left) == set(right):
        raise DeclarationError(f"{dataset}: name one dataset on each side: left={{'click': clicks}}")
    return next(iter(left.items())), next(iter(right.items()))


def side_of(dataset: str, name: str, source: Dataset) -> Side:
    """What the join knows about a side."""
    if source.event_time is None:
        raise DeclarationError(f"{dataset}: {source.name} has no event_time to join by")
    require_timestamp(dataset, "the event_time", source, source.event_time)
    return Side(name, source.event_time, source.outputs[-1].grain)


def input_of(dataset: str, source: Dataset, side: Side, rule: IntervalJoin) -> Input:
    rows_timed = timed(dataset, "the event_time", source, side.time)
    return Input(
        source,
        scope=lambda changed, inputs: touched_buckets(changed, rule, side),
        within=lambda df, scope: rows_within(rows_timed(df), scope, rule, side),
    )
