"""Deduplicate by key, without a horizon: the first record of a key in the log's order wins, whenever it arrives."""

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.model.few_rows import comparable
from sluice.shapes.parse import position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A total order: no two records share topic, partition and offset.
order = ("_timestamp", *position)
verdict = ("_fate", "_reason", "_detail")
Verdict = tuple[str | None, str | None, str | None]
accepted: Verdict = (None, None, None)


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


def deduplicate_few(candidates: pa.Table) -> pa.Table | None:
    """The same of rows that the driver has; None where one of them lacks a key or a place, which is Spark's."""
    sorted_by = [candidates[name] for name in ("_key", *order)]
    if any(column.null_count for column in sorted_by):
        return None
    keys, digests = list(zip(*map(comparable, sorted_by), strict=True)), comparable(candidates["_digest"])
    kept: list[int] = []
    verdicts: list[Verdict] = []
    # Of equal rows the first is kept.
    for _, found in groupby(sorted(range(len(keys)), key=keys.__getitem__), key=lambda row: keys[row][0]):
        rows = list(found)
        winner = rows[0]
        here, payload = keys[winner][2:], digests[winner]
        for row in [winner, *[row for before, row in pairwise(rows) if keys[before][2:] != keys[row][2:]]]:
            kept.append(row)
            is_same = payload is not None and payload == digests[row]
            verdicts.append(accepted if keys[row][2:] == here else duplicate_of(here, is_same=is_same))
    columns = [pa.array(column, pa.string()) for column in zip(*verdicts, strict=True)] or [
        pa.nulls(0, pa.string())
    ] * 3
    rows_kept = candidates.take(pa.array(kept, pa.int64()))
    for name, column in zip(verdict, columns, strict=True):
        rows_kept = rows_kept.append_column(name, column)
    return rows_kept


def duplicate_of(winner: tuple[Any, ...], *, is_same: bool) -> Verdict:
    topic, *place = winner
    return "duplicate", "same_payload" if is_same else "other_payload", "/".join([topic.decode(), *map(str, place)])
