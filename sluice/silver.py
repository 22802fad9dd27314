"""Silver: events without duplicates, histories, joins by key and as-of joins, declared."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sluice import as_of as as_of_join
from sluice.datasets import (
    Dataset,
    Frames,
    Input,
    Output,
    Topic,
    checked_name,
    column_names,
    require_columns,
    same_names,
)
from sluice.errors import DeclarationError
from sluice.fates import event_outputs, judge, touched_keys
from sluice.history import history as lay_end_to_end
from sluice.scope import Scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def events(
    name: str,
    *,
    source: Topic,
    schema: str,
    keys: Sequence[str],
    event_time: str | None = None,
    meaning: str = "",
    future_tolerance: str = "1 day",
    record_bytes_max: int = 10 * 1024 * 1024,
) -> Dataset:
    """The records of a topic, parsed, each key once: the first record in the log's order wins, whenever it arrives.

    `schema` is Spark DDL for the JSON value. A record with a null in `keys` or `event_time`, of another type, larger
    than `record_bytes_max`, or more than `future_tolerance` ahead of its log timestamp is quarantined under its rule.
    """
    columns = column_names(schema)
    full_name = checked_name("silver", name)
    require_columns(full_name, "keys", tuple(keys), columns)
    require_columns(full_name, "event_time", (event_time,) if event_time else (), columns)
    if not keys:
        raise DeclarationError(f"{full_name}: give the keys that tell its events apart")
    return event_dataset(
        full_name,
        source=source,
        schema=schema,
        required=tuple(dict.fromkeys([*keys, *([event_time] if event_time else [])])),
        distinct=tuple(keys),
        event_time=event_time,
        meaning=meaning,
        future_tolerance=future_tolerance,
        record_bytes_max=record_bytes_max,
    )


def event_dataset(
    name: str,
    *,
    source: Topic,
    schema: str,
    required: tuple[str, ...],
    distinct: tuple[str, ...],
    event_time: str | None,
    meaning: str,
    future_tolerance: str,
    record_bytes_max: int,
) -> Dataset:
    """Events told apart by the columns `distinct`, which may include the bookkeeping column `_digest`."""
    if "map<" in schema.replace(" ", "").lower():
        raise DeclarationError(
            f"{name}: the schema has a map, and maps cannot be compared; use array<struct<key: …, value: …>>"
        )
    parsing = {
        "schema": schema,
        "columns": column_names(schema),
        "required": required,
        "event_time": event_time,
        "future_tolerance": future_tolerance,
        "record_bytes_max": record_bytes_max,
    }
    judging = partial(judge, parsing=parsing, distinct=distinct)
    return Dataset(
        name=name,
        inputs={
            "arrivals": Input(
                source,
                scope=lambda changed, inputs: touched_keys(changed, parsing=parsing, distinct=distinct),
                within=lambda df, scope: df,
                arrivals=True,
            )
        },
        outputs=event_outputs(name, distinct),
        shape=lambda rows, own: judging(rows["arrivals"], own=own, table=name),
        declaration={"kind": "events 1", "source": source.name, "distinct": distinct, **parsing},
        meaning=meaning,
        keys=distinct,
        event_time=event_time,
        topics=(source.topic,),
    )


def history(
    name: str,
    *,
    source: Topic,
    schema: str,
    keys: Sequence[str],
    sequence_by: str,
    meaning: str = "",
    future_tolerance: str = "1 day",
    record_bytes_max: int = 10 * 1024 * 1024,
) -> Dataset:
    """Every version of each key and when it was valid (SCD type 2), from change events in any order.

    The deduplicated changes are kept beside it as `silver.<name>_changes`: a version that was collapsed into its
    neighbour is needed again when a change arrives between them.
    """
    columns = column_names(schema)
    full_name = checked_name("silver", name)
    require_columns(full_name, "keys", tuple(keys), columns)
    require_columns(full_name, "sequence_by", (sequence_by,), columns)
    attributes = tuple(column for column in columns if column not in (*keys, sequence_by))
    changes = event_dataset(
        checked_name("silver", f"{name}_changes"),
        source=source,
        schema=schema,
        required=(*keys, sequence_by),
        distinct=(*keys, sequence_by, "_digest"),
        event_time=sequence_by,
        meaning=f"The distinct changes that {full_name} is made of.",
        future_tolerance=future_tolerance,
        record_bytes_max=record_bytes_max,
    )
    return Dataset(
        name=full_name,
        inputs={"changes": by_key(changes, keys)},
        outputs=(Output(full_name, grain=(*keys, "valid_from"), scope_columns=same_names(keys)),),
        shape=lambda rows, own: lay_end_to_end(
            rows["changes"], keys=tuple(keys), sequence_by=sequence_by, attributes=attributes
        ),
        declaration={
            "kind": "history 1",
            "source": changes.name,
            "keys": tuple(keys),
            "sequence_by": sequence_by,
            "attributes": attributes,
        },
        meaning=meaning,
        keys=tuple(keys),
        event_time="valid_from",
    )


def join(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    keys: Sequence[str],
    shape: "Callable[..., DataFrame]",
    meaning: str = "",
    event_time: str | None = None,
) -> Dataset:
    """Rows joined by key: `shape` gets all input rows of some keys, a frame per input by name, and returns their rows.

    Every input has the columns `keys`, and the result has at most one row per key. `shape` must give the same rows for
    a key whatever other keys come with it. A change in any input recomputes its keys, so inner and outer joins, of
    events and of tables, all follow late rows on either side.
    """
    full_name = checked_name("silver", name)
    wanted = set(inspect.signature(shape).parameters)
    if wanted != set(inputs):
        raise DeclarationError(
            f"{full_name}: its shape takes {', '.join(sorted(wanted))}, but its inputs are {', '.join(sorted(inputs))}"
        )
    return Dataset(
        name=full_name,
        inputs={alias: by_key(source, keys) for alias, source in inputs.items()},
        outputs=(Output(full_name, grain=tuple(keys), scope_columns=same_names(keys)),),
        shape=lambda rows, own: shape(**rows),
        declaration={
            "kind": "join 1",
            "inputs": {alias: source.name for alias, source in inputs.items()},
            "keys": tuple(keys),
            "shape": shape,
        },
        meaning=meaning,
        keys=tuple(keys),
        event_time=event_time,
    )


def as_of(
    name: str,
    *,
    facts: Dataset,
    event_time: str,
    dimensions: Mapping[str, Dataset],
    meaning: str = "",
) -> Dataset:
    """Each fact with the version of every dimension that was valid at its event time.

    A dimension is a history, found by its own keys among the fact's columns; its version is one struct column of that
    name, null where nothing was valid. A version that arrives late or changes re-joins the facts in its interval.
    """
    full_name = checked_name("silver", name)
    for alias, dimension in dimensions.items():
        if dimension.declaration["kind"].split()[0] != "history":
            raise DeclarationError(f"{full_name}: the dimension {alias} is no history; declare it with silver.history")
    keys = {alias: dimension.keys for alias, dimension in dimensions.items()}
    grain = facts.outputs[-1].grain

    def facts_of_versions(alias: str, changed: "DataFrame", inputs: Frames) -> "DataFrame":
        intervals = as_of_join.changed_intervals(changed, keys[alias])
        touched = as_of_join.facts_within(inputs["facts"], intervals, event_time, keys[alias])
        return touched.select(*grain, event_time)

    def versions_within(df: "DataFrame", scope: Scope) -> "DataFrame":
        if event_time not in scope.bounds:
            return df
        return df.where(scope.bounds[event_time].reaches("valid_from", "valid_to"))

    fact_input = Input(
        facts,
        scope=lambda changed, inputs: changed.select(*grain, event_time),
        within=lambda df, scope: scope.filter(df, same_names(grain), same_names([event_time])),
    )
    return Dataset(
        name=full_name,
        inputs={
            "facts": fact_input,
            **{
                alias: Input(dimension, scope=partial(facts_of_versions, alias), within=versions_within)
                for alias, dimension in dimensions.items()
            },
        },
        outputs=(
            Output(
                full_name,
                grain=grain,
                scope_columns=same_names(grain),
                prune_columns=same_names([event_time]),
            ),
        ),
        shape=lambda rows, own: as_of_join.as_of(
            rows["facts"],
            {alias: rows[alias] for alias in dimensions},
            event_time=event_time,
            keys=keys,
        ),
        declaration={
            "kind": "as_of 1",
            "facts": facts.name,
            "event_time": event_time,
            "dimensions": {alias: dimension.name for alias, dimension in dimensions.items()},
        },
        meaning=meaning,
        keys=facts.keys,
        event_time=event_time,
    )


def by_key(source: Dataset, keys: Sequence[str]) -> Input:
    """An input whose rows bear on the dataset's rows of the same keys."""
    return Input(
        source,
        scope=lambda changed, inputs: changed.select(*keys),
        within=lambda df, scope: scope.filter(df, same_names(keys)),
    )
