"""Tables from tables, by key: what a function makes of all rows of a key."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.datasets import Dataset, Input, Output, same_names
from sluice.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def by_key(source: Dataset, keys: Sequence[str]) -> Input:
    """An input whose rows bear on the dataset's rows of the same keys."""
    return Input(
        source,
        scope=lambda changed, inputs: changed.select(*keys),
        within=lambda df, scope: scope.filter(df, same_names(keys)),
    )


def join_dataset(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    keys: Sequence[str],
    shape: "Callable[..., DataFrame]",
    grain: Sequence[str] | None,
    meaning: str,
    event_time: str | None,
) -> Dataset:
    """The dataset whose rows of a key are what `shape` makes of all input rows of that key."""
    wanted = set(inspect.signature(shape).parameters)
    if wanted != set(inputs):
        raise DeclarationError(
            f"{name}: its shape takes {', '.join(sorted(wanted))}, but its inputs are {', '.join(sorted(inputs))}"
        )
    return Dataset(
        name=name,
        inputs={alias: by_key(source, keys) for alias, source in inputs.items()},
        outputs=(
            Output(
                name,
                grain=tuple(grain or keys),
                scope_columns=same_names(keys),
                cluster_by=(event_time,) if event_time else tuple(keys),
            ),
        ),
        shape=lambda rows, own: shape(**rows),
        declaration={
            "kind": "join 2",
            "inputs": {alias: source.name for alias, source in inputs.items()},
            "keys": tuple(keys),
            "grain": tuple(grain or keys),
            "shape": shape,
        },
        meaning=meaning,
        keys=tuple(grain or keys),
        event_time=event_time,
        scope_of=lambda own: own.select(*keys),
    )
