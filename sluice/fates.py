"""Fates: what became of every record that a dataset consumes, so that none is lost in silence.

An accepted record is the row that carries its position. The others stand in `silver._fates`: a duplicate with the
position of the winner, a quarantined record with the rule that it breaks.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sluice.datasets import Frames, Output, same_names
from sluice.deduplicate import deduplicate
from sluice.parse import parse, position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

fates_table = "silver._fates"
bookkeeping = (*position, "_timestamp", "_digest", "_unknown_fields")
verdict = ("_fate", "_reason", "_detail")


def judge(
    records: "DataFrame",
    *,
    parsing: Mapping[str, Any],
    distinct: tuple[str, ...],
    own: Frames | None = None,
    table: str = "",
) -> "DataFrame":
    """Every record of a scope with its fate (`_fate` null: accepted), reason and detail.

    The scope is the new `records` and those judged before, `own`, that share a key with them.
    """
    is_good = F.col("_rule").isNull()
    # One pass for good and bad: a filter on the rule would parse every record again for each column it looks at.
    candidates = parse(records, **parsing).withColumn(
        "_key", F.when(is_good, key_text(distinct)).otherwise(position_text())
    )
    for judged in judged_before(own or {}, table, distinct):
        candidates = candidates.unionByName(judged, allowMissingColumns=True)
    return deduplicate(candidates).withColumns(
        {
            "_fate": F.when(is_good, F.col("_fate")).otherwise("quarantined"),
            "_reason": F.when(is_good, F.col("_reason")).otherwise(F.col("_rule")),
        }
    )


def judged_before(own: Frames, table: str, distinct: tuple[str, ...]) -> "list[DataFrame]":
    """The accepted rows and the duplicates of a scope, as candidates to be judged again."""
    if not own:
        return []
    duplicates = (
        own[fates_table]
        .where("fate = 'duplicate'")
        .select(
            *[F.col(column.removeprefix("_")).alias(column) for column in position],
            "_timestamp",
            "_digest",
            "_key",
        )
    )
    return [own[table].withColumn("_key", key_text(distinct)), duplicates]


def touched_keys(records: "DataFrame", *, parsing: Mapping[str, Any], distinct: tuple[str, ...]) -> "DataFrame":
    """The scope of new records: their key columns, and the text by which `silver._fates` knows the key."""
    parsed = parse(records, **parsing)
    is_good = F.col("_rule").isNull()
    return parsed.select(
        *[F.when(is_good, F.col(name)).alias(name) for name in distinct],
        F.when(is_good, key_text(distinct)).otherwise(position_text()).alias("_key"),
    )


def position_text() -> "Column":
    """A record's position as `topic/partition/offset`."""
    return F.concat_ws("/", *position)


def key_text(distinct: tuple[str, ...]) -> "Column":
    """A key as one text that sorts like its first column; commas within a value are escaped, so no two keys meet."""
    values = [F.replace(F.col(name).cast("string"), F.lit("\\"), F.lit("\\\\")) for name in distinct]
    return F.concat_ws(",", *[F.replace(value, F.lit(","), F.lit("\\,")) for value in values])


def event_outputs(name: str, distinct: tuple[str, ...]) -> tuple[Output, ...]:
    """First the fates of the records that are not accepted, then the table of those that are."""
    rejected = Output(
        fates_table,
        grain=("dataset", *[column.removeprefix("_") for column in position]),
        scope_columns=(("_key", "_key"),),
        select=lambda judged: fate_rows(judged, name),
        slice=(("dataset", name),),
    )
    accepted = Output(
        name,
        grain=distinct,
        scope_columns=same_names(distinct),
        select=lambda judged: judged.where("_fate IS NULL").drop(*verdict, "_key", "_rule"),
    )
    return (rejected, accepted)


def fate_rows(judged: "DataFrame", dataset: str) -> "DataFrame":
    """The rejected records of one dataset as rows of `silver._fates`."""
    return judged.where("_fate IS NOT NULL").select(
        F.lit(dataset).alias("dataset"),
        *[F.col(column).alias(column.removeprefix("_")) for column in position],
        *[F.col(column).alias(column.removeprefix("_")) for column in verdict],
        "_key",
        "_timestamp",
        "_digest",
    )
