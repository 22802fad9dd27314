"""Asks the schema registry for schemas that records name, and appends them to the log, where they stay."""

import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.log import AnyLog, Record
from sluice.model.datasets import Dataset
from sluice.runtime.schema_registry import NoSchemaAnswered, SchemaRegistry
from sluice.shapes.avro import unknown
from sluice.shapes.encoded import known_schemas, schema_id, schema_id_of
from sluice.shapes.fates import fates_table, schemas, schemas_input
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Anyone may write any id: of each pass, and in a while, some are asked for.
asked_max = 1000
asked_again_seconds = 60.0
failures_max = 10


@dataclass
class Learner:
    """What is remembered between the passes of a run: when an id was asked for, and the ids in quarantine."""

    registry: SchemaRegistry
    asked_at: dict[int, float] = field(default_factory=dict)
    waiting: tuple[int, set[int]] = (-1, set())

    def learn(self, spark: "SparkSession", lake: TableFormat, log: AnyLog, datasets: Iterable[Dataset]) -> int:
        """Appends the schemas that the registry knows and the lake does not to the log; returns their number.

        Raises RegistryUnreachable; what was answered before is appended.
        """
        naming = [each for each in datasets if schemas_input in each.inputs]
        if not naming:
            return 0
        wanted = ids_of_new_records(spark, lake, naming) | self.ids_in_quarantine(spark, lake, naming)
        now = time.monotonic()
        wanted = {each for each in wanted if self.is_due(each, now)}
        if not wanted:
            return 0
        due = sorted(wanted - known_ids(spark, lake))[:asked_max]
        found: list[Record] = []
        failures: list[NoSchemaAnswered] = []
        try:
            # In any order: those that fail each time are not always the first.
            for number in random.sample(due, len(due)):
                self.asked_at[number] = now
                try:
                    schema = self.registry.schema(number)
                except NoSchemaAnswered as error:
                    # One schema that it cannot give keeps no other back.
                    failures.append(error)
                    if len(failures) == failures_max:
                        break
                    continue
                if schema is not None:
                    found.append(Record(json.dumps(schema).encode(), key=str(number)))
        except Exception:
            self.asked_at.clear()
            raise
        finally:
            if found:
                log.append(schemas.topic, found)
        if failures:
            self.asked_at.clear()
            raise failures[0]
        return len(found)

    def is_due(self, number: int, now: float) -> bool:
        return now - self.asked_at.get(number, -asked_again_seconds) >= asked_again_seconds

    def ids_in_quarantine(self, spark: "SparkSession", lake: TableFormat, naming: list[Dataset]) -> set[int]:
        """The ids of records that wait for their schema; they are looked up again when fates have changed."""
        commit = lake.last_commit(fates_table)
        if commit is None:
            return set()
        version = commit.version
        if self.waiting[0] != version:
            fates = lake.read(spark, fates_table, version).where(F.col("reason") == unknown)
            of_these = fates.where(F.col("dataset").isin([each.name for each in naming]))
            self.waiting = (version, numbers(of_these.select(F.col("detail").cast("bigint").alias(schema_id))))
        return self.waiting[1]


def ids_of_new_records(spark: "SparkSession", lake: TableFormat, naming: list[Dataset]) -> set[int]:
    """The ids that records name which the datasets have not judged yet."""
    found: set[int] = set()
    seen = set()
    for dataset in naming:
        known = lake.last_commit(dataset.name)
        for topic in dataset.landed_in.values():
            commit = lake.last_commit(topic)
            if commit is None:
                continue
            now = commit.as_input
            then = known.entry.seen(topic, now) if known and known.entry.fingerprint == dataset.fingerprint else None
            since = (topic, None if then is None else then.version)
            if (then is not None and then.is_state(now)) or since in seen:
                continue
            seen.add(since)
            if then is not None and lake.holds_changes(topic, then, now):
                rows = lake.changes(spark, topic, then.version, now.version).where("_change_type = 'insert'")
            else:
                rows = lake.read(spark, topic, now.version)
            found |= numbers(rows.select(schema_id_of(F.col("value")).alias(schema_id)))
    return found


def known_ids(spark: "SparkSession", lake: TableFormat) -> set[int]:
    """The ids whose schemas the lake has."""
    commit = lake.last_commit(schemas.name)
    if commit is None:
        return set()
    return {row[schema_id] for row in known_schemas(lake.read(spark, schemas.name, commit.version)).collect()}


def numbers(ids: "DataFrame") -> set[int]:
    """Some of the distinct ids."""
    return {row[schema_id] for row in ids.dropna().distinct().limit(asked_max).collect()}
