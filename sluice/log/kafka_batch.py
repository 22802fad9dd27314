"""What lands next from Kafka: a range of offsets of each partition, or an error that names what is lost."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.errors import LogGap, LogRecreated, LogTruncated
from sluice.log.kafka_erase import marks_in
from sluice.model.erasure import Removals, erased_header
from sluice.model.ledger import LandedPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

columns = ("topic", "partition", "offset", "key", "value", "timestamp")


@dataclass(frozen=True)
class KafkaBatch:
    """The offsets that land next, and how far each partition has landed with them.

    Not every offset is a record: the end of a transaction has one, and what was aborted or compacted leaves its own.
    """

    topic: str
    ranges: Mapping[int, range]
    landed: dict[int, LandedPartition]
    options: Mapping[str, str]
    # Spark's error for unreachable brokers is long, so the brokers are probed instead.
    blame: Callable[[], None]
    # What is erased of the topic, by erasures of any time.
    removals: Removals = field(default_factory=dict)

    @property
    def records(self) -> int:
        return sum(map(len, self.ranges.values()))

    def rows(self, spark: "SparkSession") -> "DataFrame":
        """The committed records as rows of a bronze table. The job fails when one of them is lost meanwhile."""
        # Should a header be called `name#2` by its producer, a record must not stop the landing.
        spark.conf.set("spark.sql.mapKeyDedupPolicy", "LAST_WIN")
        starts = {str(partition): wanted.start for partition, wanted in self.ranges.items()}
        ends = {str(partition): wanted.stop for partition, wanted in self.ranges.items()}
        messages = (
            spark.read.format("kafka")
            .options(**self.options)
            .option("assign", json.dumps({self.topic: sorted(self.ranges)}))
            .option("startingOffsets", json.dumps({self.topic: starts}))
            .option("endingOffsets", json.dumps({self.topic: ends}))
            .option("kafka.isolation.level", "read_committed")
            .option("failOnDataLoss", "true")
            .option("includeHeaders", "true")
            .load()
        )
        return self.as_left(messages.select(*columns, headers()))

    def stream(self) -> None:
        """Nothing: Spark reads the records of Kafka."""

    def as_left(self, rows: "DataFrame") -> "DataFrame":
        """The records as the erasures leave them, without their tombstones: `kafka_erase.as_left`, by Spark."""
        from pyspark.sql import functions as F

        if not self.removals:
            return rows
        by = F.col("headers").getItem(erased_header)
        is_bare = F.col("key").isNotNull() & F.col("value").isNull() & (F.size("headers") == 1)
        # One literal, however many erasures there have been.
        marks = F.split(F.lit(",".join(marks_in(self.removals))), ",")
        rows = rows.where(~F.coalesce(is_bare & F.array_contains(marks, by), F.lit(False)))
        places = [
            (partition, offset, str(some[0].number))
            for partition, each in self.removals.items()
            for offset, some in each.items()
            if offset in self.ranges.get(partition, ())
        ]
        if not places:
            return rows
        erased = rows.sparkSession.createDataFrame(places, "partition int, offset long, erased_by string")
        is_erased = F.col("erased_by").isNotNull()
        left = {name: F.when(~is_erased, F.col(name)) for name in ("key", "value")}
        left["headers"] = F.when(is_erased, F.create_map(F.lit(erased_header), "erased_by")).otherwise(F.col("headers"))
        found = rows.join(F.broadcast(erased), ["partition", "offset"], "left").withColumns(left)
        return found.select(*columns, "headers")


def next_batch(
    topic: str, topic_id: str, available: Mapping[int, range], landed: Mapping[int, LandedPartition], records_max: int
) -> tuple[dict[int, range], dict[int, LandedPartition]]:
    """The offsets of each partition that land next, and how far it has landed then. `available` are those in Kafka.

    Raises LogGap when records were removed before they had landed, and LogRecreated when the topic is another.
    """
    fresh = {partition: fresh_offsets(topic, topic_id, partition, available, landed) for partition in sorted(available)}
    gone = sorted(set(landed) - set(available))
    if gone:
        raise recreated(topic, f"has no partition {', '.join(map(str, gone))} any more")
    share = min(1.0, records_max / max(1, sum(map(len, fresh.values()))))
    # Each partition gets its share, and at least one offset, so that none is left behind for ever.
    ranges = {
        partition: wanted[: max(1, int(len(wanted) * share))] for partition, wanted in fresh.items() if len(wanted)
    }
    then = {
        partition: LandedPartition(next_offset=ranges.get(partition, wanted).stop, head=topic_id)
        for partition, wanted in fresh.items()
    }
    return ranges, {**landed, **then}


def fresh_offsets(
    topic: str, topic_id: str, partition: int, available: Mapping[int, range], landed: Mapping[int, LandedPartition]
) -> range:
    """The offsets of a partition that have not landed."""
    before = landed.get(partition)
    if before is not None and before.head != topic_id:
        raise recreated(topic, "was deleted and created again")
    # A partition that is added later must be seen from its beginning; the first look takes what there is.
    first, end = available[partition].start, available[partition].stop
    seen = before.next_offset if before else 0 if landed else first
    if seen > end:
        raise LogTruncated(
            f"topic {topic}, partition {partition}: offsets up to {seen - 1} have landed, but the topic ends at offset "
            f"{end}: {end} to {seen - 1} are gone from Kafka, and new records would "
            "get these offsets again. Restore the topic, or land a new one in another table (bronze.topic(NAME, "
            "topic=...)) or lake (SLUICE_LAKE)."
        )
    if seen < first:
        raise LogGap(
            f"topic {topic}, partition {partition}: offsets {seen} to {first - 1} were removed from "
            "Kafka before they had landed. Raise the topic's retention (retention.ms, retention.bytes). If they can be "
            f"had elsewhere, append them again; then go on without the lost offsets: sluice log skip {topic} "
            "--because REASON"
        )
    return range(seen, end)


def recreated(topic: str, how: str) -> LogRecreated:
    return LogRecreated(
        f"topic {topic} is not the one whose records have landed: it {how}. Restore it, or land the new one in another "
        "table (bronze.topic(NAME, topic=...)) or lake (SLUICE_LAKE)."
    )


def headers() -> "Column":
    """Kafka's list of headers as a map of text, without loss.

    A name that comes again is numbered (`name#2`), and a value that is not UTF-8 stands in base64 as `name_base64`.
    """
    from pyspark.sql import functions as F

    earlier = "size(filter(slice(headers, 1, position), other -> other.key <=> header.key))"
    name = f"header.key || if({earlier} = 0, '', '#' || ({earlier} + 1))"
    text = "try_validate_utf8(CAST(header.value AS STRING))"
    is_text = f"(header.value IS NULL OR {text} IS NOT NULL)"
    return F.expr(
        "coalesce(map_from_entries(transform(headers, (header, position) -> struct("
        f"{name} || if({is_text}, '', '_base64'), if({is_text}, {text}, base64(header.value))))), "
        "CAST(map() AS map<string,string>))"
    ).alias("headers")
