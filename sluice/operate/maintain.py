"""Maintain: compact files, delete unreferenced ones, and trim log records that landed long ago."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluice.engine.catalogue import Catalogue
from sluice.errors import UsageError
from sluice.log import AnyLog
from sluice.model.datasets import Topic
from sluice.operate.replay import replays, unreadable
from sluice.quality.results import checks_table
from sluice.storage.delta import Lake, retention_days

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def maintain(
    spark: "SparkSession", lake: Lake, catalogue: Catalogue, tables: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Compacts and vacuums tables, each in its own commits; returns the files removed from use, added, and deleted.

    Files that versions of the last 30 days refer to stay: cursors, replays and `--as-known-at` read them.
    """
    oldest = datetime.now(UTC) - timedelta(days=retention_days)
    kept = [each.name for each in replays(lake) if each.created_at < oldest]
    if kept:
        raise UsageError(
            f"The replays {', '.join(kept)} are older than {retention_days} days, and refer to files that would be "
            "removed. Promote or drop them first: sluice replay list"
        )
    unknown = unreadable(lake)
    if unknown:
        raise UsageError(
            f"The replays {', '.join(unknown)} cannot be read, so it is unknown which files they refer to. "
            "Drop them first: sluice replay drop NAME"
        )
    outputs = {output.table: output for dataset in catalogue.datasets for output in dataset.outputs}
    return {
        table: maintain_table(spark, lake, table, outputs[table].find_by if table in outputs else ())
        for table in tables
    }


def maintain_table(spark: "SparkSession", lake: Lake, table: str, find_by: Sequence[str] = ()) -> dict[str, int]:
    """Compacts and vacuums one table, by the only program that commits to it."""
    if table == checks_table:
        return lake.compact_added(table)
    return lake.compact(spark, table, find_by) | {"deleted": lake.vacuum(spark, table)}


def trim(log: AnyLog, lake: Lake, catalogue: Catalogue, keep: timedelta) -> dict[str, int]:
    """Removes segments of the embedded log that have landed and whose records are older than `keep`; counts them.

    Bronze keeps every byte. The newest segment that landed stays, because it identifies the log. Kafka removes records
    by a setting of its topics; here nothing is removed from it.
    """
    oldest = datetime.now(UTC) - keep
    return {node.topic: trimmed(log, lake, node, oldest) for node in catalogue.topics if log.exists(node.topic)}


def trimmed(log: AnyLog, lake: Lake, topic: Topic, oldest: datetime) -> int:
    """How many segments of one topic were removed."""
    commit = lake.last_commit(topic.name)
    landed = commit.entry.landed if commit else {}
    return sum(
        log.trim(topic.topic, partition, each.segment, oldest)
        for partition, each in landed.items()
        if each.segment is not None
    )
