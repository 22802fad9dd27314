"""The difference between the rows a table has and the rows it should have."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

operation = "_operation"


def difference(own: "DataFrame", new: "DataFrame", grain: Sequence[str]) -> "DataFrame":
    """The rows to insert, update and delete so that `own` becomes `new`.

    Both frames have the same columns, and at most one row per `grain`. The result has those columns and `_operation`:
    'inserted' or 'updated' with the new row, 'deleted' with the old one.
    Comparison is null-safe; equal rows do not appear.
    """
    columns = new.columns
    before = own.select(F.struct(*grain).alias("grain"), F.struct(*columns).alias("before"))
    after = new.select(F.struct(*grain).alias("grain"), F.struct(*columns).alias("after"))
    both = before.join(after, before["grain"].eqNullSafe(after["grain"]), "full_outer")
    changed = both.where(~F.col("before").eqNullSafe(F.col("after"))).select(
        F.when(F.col("before").isNull(), "inserted")
        .when(F.col("after").isNull(), "deleted")
        .otherwise("updated")
        .alias(operation),
        F.coalesce("after", "before").alias("row"),
    )
    return changed.select("row.*", operation)
