"""Gold: declares the aggregates, views and states that people read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model.datasets import (
    Dataset,
    Input,
    Output,
    checked_name,
    require_columns,
    require_columns_of,
    require_timestamp,
    same_names,
    type_of,
)
from sluice.model.ddl import column_types, ddl, is_storable, require_names
from sluice.model.join import by_key, join_dataset, require_reads
from sluice.model.specification import Specification
from sluice.model.sql import backticked, require_known
from sluice.shapes.aggregate import Groups
from sluice.shapes.aggregate import aggregate as aggregate_rows
from sluice.shapes.state import Reducer, fold
from sluice.shapes.windows import Session, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["aggregate", "state", "view"]


@dataclass(frozen=True)
class Aggregate(Specification):
    """Groups and measures of the rows of a source."""

    kind, version = "aggregate", 3
    source: str
    groups: Groups


@dataclass(frozen=True)
class State(Specification):
    """The events of a source, folded in an order."""

    kind, version = "state", 1
    source: str
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    reducer: Reducer


def aggregate(
    name: str,
    *,
    source: Dataset,
    group_by: Sequence[str | Window],
    measures: Mapping[str, str],
    meaning: str = "",
) -> Dataset:
    """One row per group of the source's rows. Each measure is a SQL aggregate such as `"avg(delay_minutes)"`.

    Groups are columns, named SQL expressions (`"to_date(scheduled_at) AS day"`), and at most one window. A group is
    recomputed when one of its rows is added, removed or changed, and disappears with its last row.
    """
    full_name = checked_name("gold", name)
    groups = Groups.of(group_by, measures, source.columns or ())
    if not measures or not groups.columns:
        raise DeclarationError(f"{full_name}: give at least one group and one measure")
    if sum(isinstance(each, Window) for each in group_by) > 1:
        raise DeclarationError(f"{full_name}: group by one window at most")
    require_groups(full_name, groups, source)
    return Dataset(
        name=full_name,
        inputs={
            "rows": Input(
                source,
                scope=lambda changed, inputs: groups.touched(changed, inputs[full_name]),
                within=groups.within,
            )
        },
        outputs=(
            Output(
                full_name,
                grain=groups.scope_columns,
                scope_columns=same_names(groups.scope_columns),
                cluster_by=groups.clustered,
            ),
        ),
        shape=lambda rows, own: aggregate_rows(rows["rows"], groups),
        specification=Aggregate(source.name, groups),
        meaning=meaning,
        keys=groups.columns,
        event_time="window_start" if groups.window else None,
        scope_of=groups.scope_of,
        has_windows=groups.window is not None,
        windows_merge=isinstance(groups.window, Session),
        columns=columns_of(groups, source),
    )


def require_groups(dataset: str, groups: Groups, source: Dataset) -> None:
    """Raises DeclarationError if groups or measures cannot be columns, or read columns that the source lacks."""
    for name, text in groups.expressions.items():
        if name == text and not is_storable(name):
            raise DeclarationError(f"{dataset}: give the group a name: '{text} AS …'")
    require_names(f"{dataset}: group_by and measures", (*groups.columns, *groups.measures))
    for option, texts in {"group_by": groups.expressions, "the measure": groups.measures}.items():
        for name, text in texts.items():
            require_reads(dataset, option if option == "group_by" else f"{option} {name}", text, source)
    if groups.window is not None:
        require_timestamp(dataset, "the column of the window", source, groups.window.column)


def columns_of(groups: Groups, source: Dataset) -> dict[str, str | None]:
    """The columns of the aggregate, with the types of those taken from the source."""
    own = {backticked(name): kind for name, kind in (source.columns or {}).items()}
    found = {name: own.get(text) for name, text in groups.expressions.items()}
    window = dict.fromkeys(("window_start", "window_end"), "timestamp") if groups.window else {}
    return {**found, **window, **dict.fromkeys(groups.measures)}


def view(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    keys: Sequence[str],
    shape: "Callable[..., DataFrame]",
    on: Mapping[str, Mapping[str, str]] | None = None,
    grain: Sequence[str] | None = None,
    meaning: str = "",
    event_time: str | None = None,
    version: int | str | None = None,
) -> Dataset:
    """A table made from gold and silver tables: `shape` receives all their rows of a key and returns the result.

    This is `silver.join` for the gold layer. Every input has the columns `keys`, or `on` gives SQL for them. The result
    has at most one row per `grain` (by default the keys), and a change in any input recomputes its keys.

    The table is rebuilt when `shape` changes, or any project code or constant that it uses. If it uses a value whose
    changes cannot be detected, give a `version` and change it with the value.
    """
    return join_dataset(
        checked_name("gold", name),
        inputs=inputs,
        keys=keys,
        shape=shape,
        on=on,
        grain=grain,
        meaning=meaning,
        event_time=event_time,
        version=version,
    )


def state(
    name: str,
    *,
    source: Dataset,
    keys: Sequence[str],
    sequence_by: str | Sequence[str],
    schema: str,
    initial: Mapping[str, str],
    reduce: Mapping[str, str],
    meaning: str = "",
) -> Dataset:
    """The latest state of each key: a declared reducer folds its events in order.

    `schema` is DDL for the state. `initial` and `reduce` give SQL for each of its columns, `reduce` over `state` (what
    was before) and `event` (a row of the source): `{"balance": "state.balance + event.amount"}`. `sequence_by`
    orders the events, and the log breaks ties. After a late event, the state is what replaying all events would give.
    """
    full_name = checked_name("gold", name)
    types = column_types(schema, full_name)
    columns = tuple(types)
    for option, values in {"initial": initial, "reduce": reduce}.items():
        require_columns(full_name, option, tuple(values), columns)
        require_columns(full_name, "schema", columns, tuple(values))
    reducer = Reducer(ddl(types), dict(initial), dict(reduce))
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    require_columns_of(full_name, "keys", keys, source)
    require_columns_of(full_name, "sequence_by", sequence, source)
    require_names(f"{full_name}: keys and schema", (*keys, *columns))
    of_keys = dict.fromkeys(keys)
    for column in columns:
        require_known(full_name, f"initial {column}", initial[column], of_keys)
        require_known(
            full_name, f"reduce {column}", reduce[column], {"state": columns, "event": source.columns, **of_keys}
        )
    return Dataset(
        name=full_name,
        inputs={"events": by_key(source, keys)},
        outputs=(Output(full_name, grain=tuple(keys), scope_columns=same_names(keys), cluster_by=tuple(keys)),),
        shape=lambda rows, own: fold(rows["events"], tuple(keys), sequence, reducer),
        specification=State(source.name, tuple(keys), sequence, reducer),
        meaning=meaning,
        keys=tuple(keys),
        scope_of=lambda own: own.select(*keys),
        columns={**{name: type_of(source, name) for name in keys}, **types},
    )
