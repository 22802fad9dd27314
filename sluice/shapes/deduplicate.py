"""Deduplicate by key, without a horizon: the first record of a key in the log's order wins, whenever it arrives."""

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.shapes.parse import position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A total order: no two records share topic, partition and offset.
order = ("_timestamp", *position)


def deduplicate(candidates: "DataFrame") -> "DataFrame":
    """Adds `_fate` (null for the winner, else 'duplicate'), `_reason` and `_detail` (the winner's position).

    `candidates` has new records and those already judged, identified by `_key`. A record that occurs twice, as it
    does when a batch is read again after a crash, is one record, not a duplicate of itself.
    """
    same_key = Window.partitionBy("_key").orderBy(*order)
    here = F.struct(*position)
    winner = F.first(here).over(same_key)
    is_winner = winner == here
    is_same = F.first("_digest").over(same_key) == F.col("_digest")
    return (
        candidates.withColumns(
            {
                "_again": F.lag(here).over(same_key) == here,
                "_fate": F.when(~is_winner, "duplicate"),
                "_reason": F.when(~is_winner, F.when(is_same, "same_payload").otherwise("other_payload")),
                "_detail": F.when(~is_winner, F.concat_ws("/", *[winner.getField(name) for name in position])),
            }
        )
        .where(F.coalesce(~F.col("_again"), F.lit(True)))
        .drop("_again")
    )
