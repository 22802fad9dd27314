"""The difference between the rows a table has and the rows it should have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.model.few_rows import are_same, in_types_of, keys_of
from sluice.model.prepared import shared

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
    return shared(difference_by, tuple(grain)).of(own, new)


def difference_by(own: "DataFrame", new: "DataFrame", grain: Sequence[str]) -> "DataFrame":
    kind = F.when(F.col("before").isNull(), "inserted").when(F.col("after").isNull(), "deleted").otherwise("updated")
    changed = differing(own, new, grain, new.columns)
    return changed.select(kind.alias(operation), F.coalesce("after", "before").alias("row")).select("row.*", operation)


def difference_of_few(own: pa.Table, new: pa.Table, grain: Sequence[str]) -> pa.Table | None:
    """The `difference` of comparable rows that the driver has; None where a key is there twice, which is Spark's."""
    own, new = in_types_of(own, new.schema), in_types_of(new, new.schema)
    had = {key: place for place, key in enumerate(keys_of(own, grain))}
    has = {key: place for place, key in enumerate(keys_of(new, grain))}
    if len(had) < own.num_rows or len(has) < new.num_rows:
        return None
    common = [(had[key], place) for key, place in has.items() if key in had]
    before, after = rows_at(own, [place for place, _ in common]), rows_at(new, [place for _, place in common])
    parts = {
        "inserted": rows_at(new, [place for key, place in has.items() if key not in had]),
        "updated": after.filter(pc.invert(are_same(before, after))),
        "deleted": rows_at(own, [place for key, place in had.items() if key not in has]),
    }
    kinds = pa.array([kind for kind, rows in parts.items() for _ in range(rows.num_rows)], pa.string())
    return pa.concat_tables(parts.values()).append_column(operation, kinds)


def rows_at(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    return rows.take(pa.array(places, pa.int64()))


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


def doubled(df: "DataFrame", grain: Sequence[str]) -> "DataFrame":
    """`count`: of each key that is there more than once, how many rows are too many."""
    return (
        df.groupBy(*[F.col(f"`{name}`") for name in grain]).count().where("count > 1").selectExpr("count - 1 AS count")
    )


def has_doubled(df: "DataFrame", grain: Sequence[str]) -> bool:
    """Whether a key is there more than once."""
    return not doubled(df, grain).isEmpty()


def sign() -> "Column":
    """The sign of a row in a change feed: 1 for a new image, -1 for an old one. A sum of 0 is no change."""
    return F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)


def struct_of(columns: Sequence[str], name: str) -> str:
    """The columns as one struct; as text, since each expression that Python builds is a call to the JVM."""
    return f"struct({', '.join(f'`{column}`' for column in columns)}) AS {name}"
