"""Deduplicate by key, without a horizon: the first record of a key in the log's order wins, whenever it arrives."""

from collections.abc import Collection
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.errors import SluiceError
from sluice.model.few_rows import comparable
from sluice.shapes.parse import position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A total order: no two records share topic, partition and offset.
order = ("_timestamp", *position)
verdict = ("_fate", "_reason", "_detail")
Verdict = tuple[str | None, str | None, str | None]
accepted: Verdict = (None, None, None)
lost = "The table has lost the row of which the record at %s is a duplicate. `sluice run --rebuild` makes it again."


def order_in(columns: Collection[str]) -> tuple[str, ...]:
    """The log's order where rows have all of it: the place alone of a version depends on which change came first."""
    return order if {*order} <= {*columns} else ()


def deduplicate(candidates: "DataFrame", duplicates: "DataFrame | None" = None) -> "DataFrame":
    """Adds `_fate` (null for the winner, else 'duplicate'), `_reason` and `_detail` (the winner's position).

    `candidates` has new records and the rows of records that were accepted, identified by `_key`. A record that occurs
    twice, as it does when a batch is read again after a crash, is one record, not a duplicate of itself. Of former
    `duplicates` no more is known than what is compared here: one of them cannot win, which is an error.
    """
    rows = candidates.withColumn("_has_values", F.lit(True))
    if duplicates is not None:
        former = duplicates.withColumn("_has_values", F.lit(False))
        rows = rows.unionByName(former, allowMissingColumns=True)
    same_key = Window.partitionBy("_key").orderBy(*order, F.desc("_has_values"))
    here = F.struct(*position)
    winner = F.first(here).over(same_key)
    is_winner = winner == here
    is_same = F.first("_digest").over(same_key) == F.col("_digest")
    place = F.concat_ws("/", *[winner.getField(name) for name in position])
    is_lost = ~F.first("_has_values").over(same_key)
    return (
        rows.withColumns(
            {
                "_again": F.lag(here).over(same_key) == here,
                "_fate": F.when(is_lost, F.raise_error(F.format_string(lost, place))).when(~is_winner, "duplicate"),
                "_reason": F.when(~is_winner, F.when(is_same, "same_payload").otherwise("other_payload")),
                "_detail": F.when(~is_winner, place),
            }
        )
        .where(F.coalesce(~F.col("_again"), F.lit(True)))
        .drop("_again", "_has_values")
    )


def deduplicate_few(candidates: pa.Table, duplicates: pa.Table | None = None) -> pa.Table | None:
    """The same of rows that the driver has; None where one of them lacks a key or a place, which is Spark's."""
    rows = candidates if duplicates is None else pa.concat_tables([candidates, duplicates])
    sorted_by = ("_key", *order)
    if any(rows[name].null_count for name in sorted_by):
        return None
    values = {name: comparable(rows[name]) for name in dict.fromkeys((*sorted_by, *position, "_digest"))}
    keys, places = (list(zip(*map(values.__getitem__, names), strict=True)) for names in (sorted_by, position))
    digests = values["_digest"]
    kept: list[int] = []
    verdicts: list[Verdict] = []
    # Of equal rows the first is kept.
    for _, found in groupby(sorted(range(len(keys)), key=keys.__getitem__), key=lambda row: keys[row][0]):
        of_key = list(found)
        winner = of_key[0]
        here, payload = places[winner], digests[winner]
        if winner >= candidates.num_rows:
            raise SluiceError(lost % place_of(here))
        for row in [winner, *[row for before, row in pairwise(of_key) if places[before] != places[row]]]:
            kept.append(row)
            is_same = payload is not None and payload == digests[row]
            verdicts.append(accepted if places[row] == here else duplicate_of(here, is_same=is_same))
    columns = [pa.array(column, pa.string()) for column in zip(*verdicts, strict=True)] or [
        pa.nulls(0, pa.string())
    ] * 3
    rows_kept = rows.take(pa.array(kept, pa.int64()))
    for name, column in zip(verdict, columns, strict=True):
        rows_kept = rows_kept.append_column(name, column)
    return rows_kept


def duplicate_of(winner: tuple[Any, ...], *, is_same: bool) -> Verdict:
    return "duplicate", "same_payload" if is_same else "other_payload", place_of(winner)


def place_of(found: tuple[Any, ...]) -> str:
    topic, *place = found
    return "/".join([topic.decode(), *map(str, place)])
