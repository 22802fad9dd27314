"""What lands next from the embedded log: whole segments, checked to follow what has landed without a gap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import LogGap, LogRecreated
from sluice.ledger import LandedPartition
from sluice.log.segments import Segment, first_bad_line, head_digest, verified_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sluice.log.log import Log

line_schema = (
    "offset bigint, key string, value string, value_base64 string, timestamp timestamp, headers map<string,string>"
)


@dataclass(frozen=True)
class SegmentBatch:
    """Whole segments that have not landed yet, and how far each partition has landed with them."""

    topic: str
    segments: Sequence[Segment]
    landed: dict[int, LandedPartition]
    records: int

    def rows(self, spark: "SparkSession") -> "DataFrame":
        """The records as rows of a bronze table."""
        from pyspark.sql import functions as F

        lines = (
            spark.read.schema(line_schema)
            .options(mode="FAILFAST", maxStringLen=str(2**31 - 1))
            .json([str(segment.path) for segment in self.segments])
        )
        folder = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -2)
        return lines.select(
            F.lit(self.topic).alias("topic"),
            folder.cast("int").alias("partition"),
            "offset",
            F.col("key").cast("binary").alias("key"),
            F.coalesce(F.col("value").cast("binary"), F.unbase64("value_base64")).alias("value"),
            "timestamp",
            "headers",
        )

    def blame(self) -> None:
        """Raises the LogError of the first line that is no record; returns when all are."""
        for segment in self.segments:
            first_bad_line(segment)


def next_batch(log: "Log", topic: str, landed: dict[int, LandedPartition], records_max: int) -> SegmentBatch:
    """The segments to land next.

    Takes whole ones until `records_max` is reached, at least one. Raises LogGap when an offset is missing, and
    LogRecreated when the log is not the one that landed before.
    """
    segments = log.segments(topic) if log.exists(topic) else []
    by_partition: dict[int, list[Segment]] = {partition: [] for partition in landed}
    for segment in segments:
        by_partition.setdefault(segment.partition, []).append(segment)
    fresh = [
        segment
        for partition, found in sorted(by_partition.items())
        for segment in unlanded(topic, partition, found, landed.get(partition))
    ]
    # Across partitions by age, so that a bounded batch takes from all of them alike.
    fresh.sort(key=lambda segment: (segment.base_offset, segment.partition))
    return verified(topic, fresh, dict(landed), records_max)


def unlanded(
    topic: str, partition: int, segments: Sequence[Segment], landed: LandedPartition | None
) -> Sequence[Segment]:
    """The segments after those that have landed; raises LogRecreated when the landed ones are not those of this log."""
    if landed is None:
        return segments
    last = next((segment for segment in segments if segment.base_offset == landed.segment), None)
    is_same = last is not None and head_digest(last) == landed.head
    is_trimmed = last is None and bool(segments) and segments[0].base_offset >= landed.next_offset
    if not is_same and not is_trimmed:
        raise LogRecreated(
            f"topic {topic}, partition {partition}: {landed.next_offset} records have landed, but the log no longer "
            f"holds the segment at offset {landed.segment} that they came from. It was deleted or made anew. Put the "
            "old log back, or give the new one another topic name or lake (SLUICE_LAKE)."
        )
    return [segment for segment in segments if segment.base_offset >= landed.next_offset]


def verified(
    topic: str, fresh: Sequence[Segment], landed: dict[int, LandedPartition], records_max: int
) -> SegmentBatch:
    """As many of the fresh segments as fit, each complete and each beginning where the one before it ended."""
    taken: list[Segment] = []
    records = 0
    for segment in fresh:
        if records >= records_max:
            break
        before = landed.get(segment.partition)
        if before and segment.base_offset != before.next_offset:
            raise LogGap(
                f"topic {topic}, partition {segment.partition}: offsets {before.next_offset} to "
                f"{segment.base_offset - 1} are missing from the log. Bring their segments back, or check the log's "
                "retention: records must not be deleted before they have landed."
            )
        end = verified_end(segment)
        taken.append(segment)
        records += end - segment.base_offset
        landed[segment.partition] = LandedPartition(
            next_offset=end, segment=segment.base_offset, head=head_digest(segment)
        )
    return SegmentBatch(topic, taken, landed, records)
