"""Lay the changes of each key end to end: the history of a dimension (SCD type 2) as half-open intervals."""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.deduplicate import order
from sluice.parse import position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def history(
    changes: "DataFrame", *, keys: tuple[str, ...], sequence_by: str, attributes: tuple[str, ...]
) -> "DataFrame":
    """Deduplicated change events → versions: keys, attributes, `valid_from`, `valid_to` (null: current), `is_current`.

    Of changes with the same key and sequence the last in the log's order counts. Neighbours with equal attributes are
    one version. The position of a version is that of the change which opened it.
    """
    by_time = Window.partitionBy(*keys).orderBy(sequence_by, *order)
    state = F.struct(*attributes)
    last_of_instant = changes.withColumn("_next", F.lead(sequence_by).over(by_time)).where(
        ~F.col("_next").eqNullSafe(F.col(sequence_by))
    )
    opening = last_of_instant.withColumn("_previous", F.lag(state).over(by_time)).where(
        ~F.col("_previous").eqNullSafe(state)
    )
    valid_to = F.lead(sequence_by).over(by_time)
    return opening.select(
        *keys,
        *attributes,
        F.col(sequence_by).alias("valid_from"),
        valid_to.alias("valid_to"),
        valid_to.isNull().alias("is_current"),
        *position,
    )
