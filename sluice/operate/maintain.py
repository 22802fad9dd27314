"""Maintain: compact files, delete unreferenced ones, and remove from the log what landed and is not retained."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluice.engine.catalogue import Catalogue
from sluice.errors import UsageError
from sluice.log import AnyLog, Retention, is_reserved
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
    done = lake.compact(spark, table, find_by)
    repeat_entry(lake, table)
    done["deleted"] = lake.vacuum(spark, table)
    repeat_entry(lake, table)
    return done


def repeat_entry(lake: Lake, table: str) -> None:
    """Says after upkeep again how far a table is: of a table that does not change, Delta deletes all older commits."""
    known = lake.last_commit(table)
    if known is None or known.entry.dataset != table or known.version == lake.newest_version(table):
        return
    lake.move_cursor(table, known.repeated(lake.accounted_until(table, known)), known.fence)


@dataclass(frozen=True)
class Retained:
    """What left the log of a topic: whole segments, and records that were emptied because their key has newer ones."""

    segments_removed: int
    records_compacted: int


def retain(log: AnyLog, lake: Lake, catalogue: Catalogue, keep: timedelta | None = None) -> dict[str, Retained]:
    """Removes from the embedded log what its topics do not retain, as far as it has landed; says what by topic.

    `keep` is for the topics that say nothing themselves. Bronze keeps every byte. The newest segment that landed stays,
    because it identifies the log; so do the topics that steer the engine. Kafka removes records by itself.
    """
    names = dict.fromkeys(node.topic for node in catalogue.topics if not is_reserved(node.topic))
    return {name: retained(log, lake, catalogue, name, keep) for name in names if log.exists(name)}


def retained(log: AnyLog, lake: Lake, catalogue: Catalogue, topic: str, keep: timedelta | None) -> Retained:
    """What left the log of one topic."""
    found, now = log.retention(topic), datetime.now(UTC)
    said = found or Retention()
    if found is not None:
        keep = None if found.days is None else timedelta(days=found.days)
    oldest = None if keep is None else now - keep
    segments, records = 0, 0
    for partition, before_offset in landed_everywhere(lake, catalogue, topic).items():
        segments += log.trim(topic, partition, before_offset, oldest, said.partition_bytes)
        if said.compact:
            records += log.compact(topic, partition, before_offset, now - timedelta(days=said.tombstone_days))
    return Retained(segments, records)


def landed_everywhere(lake: Lake, catalogue: Catalogue, topic: str) -> dict[int, int]:
    """Where the newest segment begins that has landed in every table of a topic, by partition."""
    commits = [lake.last_commit(node.name) for node in catalogue.topics if node.topic == topic]
    found = [
        {partition: each.segment for partition, each in (commit.entry.landed if commit else {}).items()}
        for commit in commits
    ]
    of_all = {
        partition: [each[partition] for each in found]
        for partition in found[0]
        if all(partition in each for each in found)
    }
    return {
        partition: min(each for each in segments if each is not None)
        for partition, segments in of_all.items()
        if None not in segments
    }
