"""A refresh by a narrow scope, done by hand on plain frames: what the engine would write, without a lake."""

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.model.datasets import Dataset
from sluice.model.scope import collect, everything

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def computed(dataset: Dataset, inputs: "Mapping[str, DataFrame]") -> "DataFrame":
    """The whole table, as a rebuild makes it."""
    return dataset.shape({name: each.within(inputs[name], everything) for name, each in dataset.inputs.items()}, {})


def refreshed(
    dataset: Dataset, before: "Mapping[str, DataFrame]", after: "Mapping[str, DataFrame]"
) -> "tuple[DataFrame, DataFrame]":
    """The table after its inputs changed, by the scope of the changes alone, and the scope's rows in it."""
    # As rows of tables; else each plan would have all that made them, several times.
    own = computed(dataset, before).localCheckpoint()
    touched = [
        each.scope(feed(before[name], after[name]).localCheckpoint(), {**after, dataset.name: own})
        for name, each in dataset.inputs.items()
    ]
    scope = collect(reduce(lambda left, right: left.unionByName(right), touched))
    output = dataset.outputs[-1]
    replaced = scope.filter(own, output.scope_columns, output.prune_columns)
    narrowed = {name: each.within(after[name], scope) for name, each in dataset.inputs.items()}
    return own.exceptAll(replaced).unionByName(dataset.shape(narrowed, {})), scope.frame


def feed(before: "DataFrame", after: "DataFrame") -> "DataFrame":
    """The change feed from one state of a table to another."""
    gone, come = (
        (before.limit(0), after.limit(0)) if before is after else (before.exceptAll(after), after.exceptAll(before))
    )
    gone = gone.withColumn("_change_type", F.lit("delete"))
    come = come.withColumn("_change_type", F.lit("insert"))
    return gone.unionByName(come).withColumns(
        {"_commit_version": F.lit(1).cast("bigint"), "_commit_timestamp": F.lit(None).cast("timestamp")}
    )
