"""The difference between the rows a table has and the rows it should have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

operation = "_operation"
# The metadata columns of a change feed.
feed = StructType().add("_change_type", "string").add("_commit_version", "long").add("_commit_timestamp", "timestamp")
change_columns = tuple(feed.names)


def difference(own: "DataFrame", new: "DataFrame", grain: Sequence[str]) -> "DataFrame":
    """The rows to insert, update and delete so that `own` becomes `new`.

    Both frames have the same columns, and at most one row per `grain`. The result has those columns and `_operation`:
    'inserted' or 'updated' with the new row, 'deleted' with the old one.
    Comparison is null-safe; equal rows do not appear.
    """
    kind = F.when(F.col("before").isNull(), "inserted").when(F.col("after").isNull(), "deleted").otherwise("updated")
    changed = differing(own, new, grain, new.columns)
    return changed.select(kind.alias(operation), F.coalesce("after", "before").alias("row")).select("row.*", operation)


def differing_pairs(own: "DataFrame", new: "DataFrame", grain: Sequence[str], columns: Sequence[str]) -> "DataFrame":
    """`key`, `before` and `after` of every key whose `columns` differ, as structs; null where there is no row."""
    pairs = differing(own, new, grain, columns)
    return pairs.selectExpr("coalesce(key_before, key_after) AS key", "before", "after")


def differing(own: "DataFrame", new: "DataFrame", grain: Sequence[str], columns: Sequence[str]) -> "DataFrame":
    """The same, with the key of either side by itself."""
    left = own.selectExpr(struct_of(grain, "key_before"), struct_of(columns, "before"))
    right = new.selectExpr(struct_of(grain, "key_after"), struct_of(columns, "after"))
    both = left.join(right, F.expr("key_before <=> key_after"), "full_outer")
    return both.where("NOT (before <=> after)")


def sign() -> "Column":
    """The sign of a row in a change feed: 1 for a new image, -1 for an old one. A sum of 0 is no change."""
    return F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)


def struct_of(columns: Sequence[str], name: str) -> str:
    """The columns as one struct; as text, since each expression that Python builds is a call to the JVM."""
    return f"struct({', '.join(f'`{column}`' for column in columns)}) AS {name}"
