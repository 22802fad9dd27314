"""Land the records of a topic in bronze: each offset once, as it came, or an error that names what is missing."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType, TimestampType

from sluice.engine.blocked import unblock
from sluice.engine.commit import commit
from sluice.engine.gate import judge
from sluice.engine.observer import Watch
from sluice.engine.plan import Plan
from sluice.errors import SluiceError
from sluice.log import AnyLog, Batch
from sluice.model.arrow_stream import ArrowStream
from sluice.model.datasets import Output, Topic, bronze_columns
from sluice.model.frames import with_constant
from sluice.model.ledger import Commit, Entry, LandedPartition, RowCounts, no_rows
from sluice.model.small_frames import frame_of, made_when_asked, rows_max, small_rows
from sluice.runtime.session import named_jobs
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

bronze_schema = ", ".join(f"{name} {kind}" for name, kind in bronze_columns.items())


def land(
    spark: "SparkSession",
    lake: TableFormat,
    log: AnyLog,
    topic: Topic,
    *,
    records_max: int,
    watch: Watch | None = None,
) -> int:
    """Appends the next records of a topic to its bronze table in one commit, and returns how many offsets they span.

    `watch` hears of the work once there is something to do.
    Raises LogGap when the log has lost what has not landed, and LogRecreated when it is not the one that landed before.
    """
    began_ms = int(time.time() * 1000)
    known = lake.last_commit(topic.name)
    if known is None and topic.optional and not log.exists(topic.topic):
        return 0
    batch = log.next_batch(topic.topic, known.entry.landed if known else {}, records_max)
    if known and not batch.records:
        return 0
    entry = Entry(
        dataset=topic.name,
        cause="changes" if known else "first build",
        landed=batch.landed,
        rows=RowCounts(inserted=batch.records),
        because=forgotten(log, topic.topic, known, batch),
        began_ms=began_ms,
        erased=known.entry.erased if known else 0,
        forgotten=known.entry.forgotten if known else 0,
        gone=known.entry.gone if known else 0,
    )
    if watch is not None:
        watch.began(entry.cause)
    try:
        with named_jobs(spark, topic.name) as own:
            commit(lake, judge([planned(topic, known, entry, *bronze_rows(own, batch))], gate=()))
    except Exception:
        batch.blame()
        raise
    return batch.records


def planned(
    topic: Topic, known: Commit | None, entry: Entry, rows: "DataFrame", stream: ArrowStream | None = None
) -> Plan:
    """Adds the rows to the topic's table, or makes it of them."""
    output, counts = Output(topic.name, grain=(), scope_columns=()), entry.rows
    small = small_rows(rows, counts.inserted) if stream is None else None
    fence = 0 if known is None else known.fence
    plan = Plan(output, "added", entry, fence, known, is_cursor=True, rows=rows, counts=counts)
    return replace(plan, change="all" if known is None else "added", small=small, stream=stream)


def bronze_rows(spark: "SparkSession", batch: Batch) -> "tuple[DataFrame, ArrowStream | None]":
    """The records of a batch as rows of a bronze table; of many, the same as a stream, where the driver reads them."""
    if not batch.records:
        return frame_of(spark, None, cast(StructType, StructType.fromDDL(bronze_schema))), None
    landed_at = datetime.now(UTC)
    stream = batch.stream() if batch.records > rows_max else None
    if stream is None:
        return with_constant(batch.rows(spark), "landed_at", landed_at), None
    stream = stream.with_constant("landed_at", landed_at, to_arrow_type(TimestampType(), timezone="UTC"))
    schema = from_arrow_schema(stream.schema)
    rows = made_when_asked(spark, schema, lambda: with_constant(batch.rows(spark), "landed_at", landed_at))
    return rows, stream


def forgotten(log: AnyLog, topic: str, known: Commit | None, batch: Batch) -> str | None:
    """What a log no longer has of a topic that lands now, so that the table will lack it; None: nothing."""
    landed = known.entry.landed if known else {}
    # Where something has landed before, missing offsets are an error.
    new = batch.landed.keys() - landed.keys() if known else offsets_of(log, topic).keys()
    return "; ".join(filter(None, (removed(log, topic, new), emptied(log, topic, landed)))) or None


def removed(log: AnyLog, topic: str, partitions: Iterable[int]) -> str | None:
    """The offsets before those that land for the first time of some partitions."""
    starts = {partition: start for partition in partitions if (start := log.start_offset(topic, partition))}
    if not starts:
        return None
    return f"the log has forgotten {sum(starts.values()):,} older offsets: {places_before(starts)}"


def emptied(log: AnyLog, topic: str, landed: Mapping[int, LandedPartition]) -> str | None:
    """Where records land that compaction may have emptied: in a new table, or one that is behind or of a backup."""
    next_offsets = {partition: each.next_offset for partition, each in landed.items()}
    ends = log.emptied_before(topic)
    behind = {partition: end for partition, end in ends.items() if next_offsets.get(partition, 0) < end}
    return f"the log was compacted, and old records say nothing: {places_before(behind)}" if behind else None


def places_before(offsets: Mapping[int, int]) -> str:
    return ", ".join(f"of partition {partition} those before {each}" for partition, each in sorted(offsets.items()))


def offsets_of(log: AnyLog, topic: str) -> dict[int, range]:
    """The offsets that are in the log for a topic, by partition; none when there is no such topic."""
    return log.offsets(topic) if log.exists(topic) else {}


def waiting(available: Mapping[int, range], landed: Mapping[int, LandedPartition]) -> dict[int, int]:
    """How many offsets of each partition have not landed yet: its lag."""
    return {
        partition: max(0, offsets.stop - (landed[partition].next_offset if partition in landed else offsets.start))
        for partition, offsets in available.items()
    }


def lost(log: AnyLog, topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, range]:
    """The offsets of each partition that the log no longer has, and that have not landed."""
    return log.lost(topic, landed) if log.exists(topic) else {}


def skip(lake: TableFormat, log: AnyLog, topic: Topic, because: str) -> dict[str, int]:
    """Lets a topic continue after offsets that its log has lost; returns their number by partition.

    They are offsets that are missing before they landed, or that have landed and lie after the log's end.
    """
    known = lake.last_commit(topic.name)
    landed = known.entry.landed if known else {}
    gone = lost(log, topic.topic, landed)
    if log.exists(topic.topic):
        gone = {**log.truncated(topic.topic, landed), **gone}
    if not gone:
        raise SluiceError(f"Topic {topic.topic} has lost no offsets: the log has every record that has not landed.")
    starts = {partition: offsets.stop for partition, offsets in gone.items()}
    log.go_on(topic.topic, landed, starts)
    if known:
        skipped = {
            partition: landed.get(partition, LandedPartition(next_offset=0)).model_copy(update={"next_offset": start})
            for partition, start in starts.items()
        }
        said = {"cause": "changes", "landed": {**landed, **skipped}, "rows": no_rows, "because": because}
        entry = known.unchanged(known.entry.model_copy(update=said))
        lake.move_cursor(topic.name, entry, known.fence)
    unblock(lake.files, topic.name)
    return {str(partition): len(offsets) for partition, offsets in gone.items()}
