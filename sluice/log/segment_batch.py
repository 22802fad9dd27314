"""What lands next from the embedded log: whole segments, checked to follow what has landed without a gap."""

import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from sluice.errors import LogError, LogGap, LogRecreated, LogTruncated
from sluice.log.checksums import crc_bytes, damaged, is_sealed
from sluice.log.segments import (
    Segment,
    content_of,
    decoded,
    head_digest,
    judged,
    last_offset,
    records_in,
    verified_end,
)
from sluice.model.arrow_stream import ArrowStream
from sluice.model.ledger import LandedPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import Table as ArrowTable
    from pyspark.sql import Column, DataFrame, SparkSession

    from sluice.log.log import Log
    from sluice.log.records import StoredRecord

line_schema = (
    "offset bigint, key string, value string, value_base64 string, timestamp timestamp, headers map<string,string>"
)

# As many are in memory at once, however many segments they are in: Spark takes 7 s for 8,500 records in 340 segments,
# and writes a file of bronze for every few.
few_records_max = 20_000
few_bytes_max = 64 * 1024 * 1024
# To start Arrow's reader costs as much as to decode some tens of records.
arrow_bytes_min = 16 * 1024
# A longer line than Arrow reads at once is decoded by itself.
arrow_block_bytes = 4 * 1024 * 1024
decoded_records = 1_000
no_headers = b',"headers":{}'

unsound = "A line of the log has another checksum."
spark_crc_field = r',"crc32":"([0-9a-f]{8})"\}$'


@dataclass(frozen=True)
class SegmentBatch:
    """Whole segments that have not landed yet, and how far each partition has landed with them."""

    topic: str
    segments: Sequence[Segment]
    landed: dict[int, LandedPartition]
    records: int
    # Whether each segment is as this log writes it; else Spark judges the lines.
    is_sealed: bool

    def rows(self, spark: "SparkSession") -> "DataFrame":
        """The records as rows of a bronze table; a few are read here, since Spark takes its time for each segment."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from sluice.model.small_frames import frame_of

        few = self.few() if self.records <= few_records_max else None
        return self.read_by(spark) if few is None else frame_of(spark, few, from_arrow_schema(few.schema))

    def few(self) -> "ArrowTable | None":
        """The same in memory; None where they are large, or a segment is not as this log writes it: Spark judges it."""
        found: list[StoredRecord] = []
        size_bytes = 0
        try:
            for segment in self.segments:
                # Compressed, it may be a hundredth of that.
                content = content_of(segment)
                size_bytes += len(content)
                if size_bytes > few_bytes_max or not is_sealed(content):
                    return None
                found += decoded(segment, io.BytesIO(content))
        except LogError:
            return None
        return table_of(found)

    def stream(self) -> ArrowStream | None:
        """The same of any number, segment by segment; None where Spark judges the lines."""
        return ArrowStream(arrow_schema(), self.parts) if self.is_sealed and self.segments else None

    def parts(self) -> "Iterator[ArrowTable]":
        """The records of one segment after the other; a LogError for one that is not as it was when it was judged."""
        for segment in self.segments:
            content = content_of(segment)
            if not is_sealed(content):
                raise damaged(str(segment.path))
            found = read_by_arrow(segment, content) if len(content) >= arrow_bytes_min else None
            if found is not None:
                yield found
                continue
            records = decoded(segment, io.BytesIO(content))
            while some := list(islice(records, decoded_records)):
                yield table_of(some)

    def read_by(self, spark: "SparkSession") -> "DataFrame":
        """The same, read by Spark."""
        from pyspark.sql import functions as F

        lines = spark.read.option("lineSep", "\n").text([str(segment.path) for segment in self.segments])
        folder = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -2)
        options = {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)}
        records = lines.select(
            folder.cast("int").alias("partition"),
            F.from_json("value", line_schema, options).alias("line"),
            # Not of what is parsed: Spark generates no code for that.
            is_sound(F.col("value")).alias("is_sound"),
        )
        return records.select(
            F.lit(self.topic).alias("topic"),
            "partition",
            F.when(F.col("is_sound"), F.col("line.offset")).otherwise(F.raise_error(unsound)).alias("offset"),
            F.col("line.key").cast("binary").alias("key"),
            F.coalesce(F.col("line.value").cast("binary"), F.unbase64("line.value_base64")).alias("value"),
            "line.timestamp",
            "line.headers",
        )

    def blame(self) -> None:
        """Raises the LogError of the first line that is no record; returns when all are."""
        for segment in self.segments:
            deque(records_in(segment), maxlen=0)


def arrow_schema() -> "pa.Schema":
    """The columns of a bronze table but the time of landing."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema(kinds)


def table_of(records: "Sequence[StoredRecord]") -> "ArrowTable":
    """Decoded records in these columns."""
    import pyarrow as pa

    columns: dict[str, list[Any]] = {
        "topic": [each.topic for each in records],
        "partition": [each.partition for each in records],
        "offset": [each.offset for each in records],
        "key": [None if each.key is None else each.key.encode() for each in records],
        "value": [each.value for each in records],
        "timestamp": [each.timestamp for each in records],
        "headers": [list(each.headers.items()) for each in records],
    }
    return pa.table(columns, schema=arrow_schema())


def read_by_arrow(segment: Segment, content: bytes) -> "ArrowTable | None":
    """The records of a sealed segment; None where one has headers, a value that is no text, or is very long."""
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import json as arrow_json

    count = content.count(b"\n")
    # A quotation mark within a text has a backslash before it, so these are members of the lines.
    if content.count(no_headers) != count or b',"value_base64":"' in content:
        return None
    kinds: dict[str, pa.DataType] = {name: pa.string() for name in ("key", "value", "timestamp")}
    read = pa.schema({"offset": pa.int64(), **kinds})
    try:
        found = arrow_json.read_json(
            io.BytesIO(content),
            read_options=arrow_json.ReadOptions(block_size=arrow_block_bytes),
            parse_options=arrow_json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore"),
        )
        timestamps = pc.cast(found["timestamp"], pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return None
    if found.num_rows != count:
        return None
    none: pa.Array[Any] = pa.array([], pa.string())
    headers = pa.MapArray.from_arrays(cast(Any, pa.array([0] * (count + 1), pa.int32())), none, none)
    columns: dict[str, Any] = {
        "topic": pa.array([segment.topic] * count, pa.string()),
        "partition": pa.array([segment.partition] * count, pa.int32()),
        "offset": found["offset"],
        "key": found["key"].cast(pa.binary()),
        "value": found["value"].cast(pa.binary()),
        "timestamp": timestamps,
        "headers": headers,
    }
    return pa.table(columns, schema=arrow_schema())


def is_sound(line: "Column") -> "Column":
    """Whether the bytes of a line have the checksum that it says, if it says one."""
    from pyspark.sql import functions as F

    content = line.cast("binary")
    field_bytes = F.lit(crc_bytes - 1)  # Without the newline.
    body = F.substring(content, F.lit(1), F.greatest(F.octet_length(line) - field_bytes, F.lit(0)))
    said = F.regexp_extract(F.substring(content, -field_bytes, field_bytes).cast("string"), spark_crc_field, 1)
    return (said == "") | (said == F.lpad(F.lower(F.hex(F.crc32(body))), 8, "0"))


def next_batch(log: "Log", topic: str, landed: dict[int, LandedPartition], records_max: int) -> SegmentBatch:
    """The segments to land next.

    Takes whole ones until `records_max` is reached, at least one. Raises LogGap when an offset is missing,
    LogTruncated when the log ends before what has landed, and LogRecreated when it is not the one that landed before.
    """
    partitions = log.partitions(topic) if log.exists(topic) else []
    landed = as_compacted(log, topic, landed) if partitions else landed
    fresh = [
        segment
        for partition in sorted({*partitions, *landed})
        for segment in unlanded_in(log, topic, partition, landed.get(partition), is_there=partition in partitions)
    ]
    # Across partitions by age, so that a bounded batch takes from all of them alike.
    fresh.sort(key=lambda segment: (segment.base_offset, segment.partition))
    return verified(topic, log.topic_id(topic), fresh, dict(landed), records_max)


def unlanded_in(
    log: "Log", topic: str, partition: int, landed: LandedPartition | None, *, is_there: bool
) -> Sequence[Segment]:
    """The segments of a partition after those that have landed; of the others only the newest is looked at."""
    newest = None if landed is None else landed.segment
    segments = log.segments_since(topic, partition, newest) if is_there else []
    return unlanded(topic, partition, segments, log.said_start(topic, partition), landed)


def as_compacted(log: "Log", topic: str, landed: Mapping[int, LandedPartition]) -> dict[int, LandedPartition]:
    """What has landed, known by its newest segments as they are after a compaction.

    The tables whose project compacted the log are further; those of another lake may not be. A topic that was made
    again is not what has landed, compacted or not.
    """
    found = dict(landed)
    ends, topic_id = log.emptied_before(topic), log.topic_id(topic)
    for partition, known in landed.items():
        is_of_topic = known.topic_id in (None, topic_id)
        if is_of_topic and known.segment is not None and known.segment < ends.get(partition, 0):
            for segment in log.segments_of(topic, partition):
                if segment.base_offset == known.segment:
                    marks = {"head": head_digest(segment), "size_bytes": segment.path.stat().st_size}
                    found[partition] = known.model_copy(update=marks)
    return found


def unlanded(
    topic: str, partition: int, segments: Sequence[Segment], start: int | None, landed: LandedPartition | None
) -> Sequence[Segment]:
    """The segments after those that have landed; `start` is the offset at which the partition is said to begin."""
    if landed is not None:
        require_landed(topic, partition, segments, start or 0, landed)
    missing = missing_before(segments, start, landed)
    if missing:
        raise gap(topic, partition, missing)
    return segments if landed is None else after(segments, landed)


def after(segments: Sequence[Segment], landed: LandedPartition) -> Sequence[Segment]:
    return [segment for segment in segments if segment.base_offset >= landed.next_offset]


def missing_before(segments: Sequence[Segment], start: int | None, landed: LandedPartition | None) -> range:
    """The offsets that are missing before the first segment that has not landed."""
    fresh = segments if landed is None else after(segments, landed)
    expected = start if landed is None else landed.next_offset
    return range(expected, fresh[0].base_offset) if fresh and expected is not None else range(0)


def offsets_reused(segments: Sequence[Segment], landed: LandedPartition) -> Sequence[Segment]:
    """The segments that were appended after a log had lost its end, and begin at offsets that have landed."""
    since = -1 if landed.segment is None else landed.segment
    return [
        segment
        for segment in segments
        if since < segment.base_offset < landed.next_offset
        or (segment.base_offset == since and head_digest(segment) != landed.head)
    ]


def require_landed(
    topic: str, partition: int, segments: Sequence[Segment], start: int, landed: LandedPartition
) -> None:
    """A LogTruncated or LogRecreated when the segments are not those of the log that landed, or end before it did."""
    first = segments[0].base_offset if segments else start
    last = next((segment for segment in segments if segment.base_offset == landed.segment), None)
    if last is None and first >= landed.next_offset:
        # The log has forgotten what landed.
        return
    if last is not None and head_digest(last) != landed.head:
        raise recreated(topic, partition, landed)
    reused = offsets_reused(segments, landed) if last else ()
    if reused:
        raise LogTruncated(
            f"topic {topic}, partition {partition}: offsets up to {landed.next_offset - 1} have landed, but the log "
            f"ended before that, and {reused[0].path} gives offsets from {reused[0].base_offset} on to other records. "
            "Put the old segments back, move that file away, and append its values again."
        )
    end = end_of(segments, start, last, landed)
    if end < landed.next_offset:
        raise LogTruncated(
            f"topic {topic}, partition {partition}: offsets up to {landed.next_offset - 1} have landed, but the log "
            f"ends at offset {end}: {end} to {landed.next_offset - 1} are gone from it, and new records would get "
            "these offsets again. Put the old log back. If it is lost, let the log go on at offset "
            f"{landed.next_offset}: sluice log skip {topic} --because REASON. Give a log that was created again "
            "another topic name or lake (SLUICE_LAKE)."
        )
    if last is None:
        raise recreated(topic, partition, landed)


def end_of(segments: Sequence[Segment], start: int, last: Segment | None, landed: LandedPartition) -> int:
    """Where the log ends, as far as it matters; the segment that landed last is read only when its size changed."""
    if after(segments, landed):
        is_whole = last is None or last.path.stat().st_size == landed.size_bytes
        return landed.next_offset if is_whole or last is None else verified_end(last)
    if last is not None and last.path.stat().st_size == landed.size_bytes:
        return landed.next_offset
    return last_offset(segments[-1]) + 1 if segments else start


def recreated(topic: str, partition: int, landed: LandedPartition) -> LogRecreated:
    return LogRecreated(
        f"topic {topic}, partition {partition}: {landed.next_offset} records have landed, but the log no longer "
        f"has the segment at offset {landed.segment} that they came from. It was deleted or created again. Put the "
        "old log back, or give the new one another topic name or lake (SLUICE_LAKE). If only that segment is lost and "
        "another is in its place, move that one away, go on, and append its values again: "
        f"sluice log skip {topic} --because REASON"
    )


def gap(topic: str, partition: int, missing: range) -> LogGap:
    return LogGap(
        f"topic {topic}, partition {partition}: offsets {missing.start} to {missing.stop - 1} are missing from the log "
        "and have not landed. Bring their segments back, and check the log's retention: records must not be deleted "
        f"before they have landed. If they are lost, go on without them: sluice log skip {topic} --because REASON"
    )


def verified(
    topic: str,
    topic_id: str | None,
    fresh: Sequence[Segment],
    landed: dict[int, LandedPartition],
    records_max: int,
) -> SegmentBatch:
    """As many of the fresh segments as fit, each complete and each beginning where the one before it ended.

    A gap ends the batch: what is before it lands first, and then the gap is an error.
    """
    taken: list[Segment] = []
    records, are_sealed = 0, True
    for segment in fresh:
        if records >= records_max:
            break
        before = landed.get(segment.partition)
        if before and segment.base_offset != before.next_offset:
            break
        end, has_seal = judged(segment)
        are_sealed = are_sealed and has_seal
        taken.append(segment)
        records += end - segment.base_offset
        landed[segment.partition] = LandedPartition(
            next_offset=end,
            segment=segment.base_offset,
            head=head_digest(segment),
            size_bytes=segment.path.stat().st_size,
            topic_id=topic_id,
        )
    return SegmentBatch(topic, taken, landed, records, are_sealed)
