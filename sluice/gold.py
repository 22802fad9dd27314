"""Gold: the aggregates that people read, declared."""

from collections.abc import Mapping, Sequence

from sluice.aggregate import Groups
from sluice.aggregate import aggregate as aggregate_rows
from sluice.completeness import Completeness
from sluice.datasets import Dataset, Input, Output, checked_name, same_names
from sluice.errors import DeclarationError
from sluice.windows import Window


def aggregate(
    name: str,
    *,
    source: Dataset,
    group_by: Sequence[str | Window],
    measures: Mapping[str, str],
    meaning: str = "",
) -> Dataset:
    """One row per group of the source's rows, with each measure: a SQL aggregate such as `"avg(delay_minutes)"`.

    Groups are columns, SQL expressions with a name (`"to_date(scheduled_at) AS day"`), and at most one window. A group
    is recomputed when a row enters, leaves or changes in it, and disappears with its last row.
    """
    full_name = checked_name("gold", name)
    groups = Groups.of(group_by)
    if not measures or not groups.columns:
        raise DeclarationError(f"{full_name}: give at least one group and one measure")
    if sum(isinstance(each, Window) for each in group_by) > 1:
        raise DeclarationError(f"{full_name}: group by one window at most")
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
        shape=lambda rows, own: aggregate_rows(rows["rows"], groups, measures),
        declaration={
            "kind": "aggregate 2",
            "source": source.name,
            "groups": groups,
            "measures": dict(measures),
        },
        meaning=meaning,
        keys=groups.columns,
        event_time="window_start" if groups.window else None,
        scope_of=groups.scope_of,
        completeness=Completeness(groups.scope_columns, tuple(measures), groups.scope_of) if groups.window else None,
    )
