"""Erase: what an erasure names leaves the log and bronze, by the road of every commit; then no older version keeps it.

Silver and gold follow as they follow any change. When all of them have, the old values are still in older versions:
in files, images of changes, and statistics. Forgetting removes those. A log that cannot change its records removes them
later, and is asked whether it has. Each step can be repeated, and is, until the ledger of the bronze table says that it
is done.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sluice.engine.blocked import forget_blocks
from sluice.engine.commit import commit
from sluice.engine.gate import judge
from sluice.engine.plan import Plan
from sluice.log import AnyLog
from sluice.log.erasures import erasures_in
from sluice.model.datasets import Output, Topic, same_names
from sluice.model.erasure import Erasure, Removals, erased_header, remainder, removals_of
from sluice.model.ledger import Commit, RowCounts, no_rows
from sluice.model.scope import collect
from sluice.model.small_frames import frame_of, small_rows
from sluice.quality.results import checks_table, forget_examples
from sluice.runtime.session import named_jobs
from sluice.shapes.difference import operation
from sluice.shapes.fates import event_outputs, fates_table
from sluice.storage.delta import Lake
from sluice.storage.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

grain = ("partition", "offset")
places_schema = StructType().add("partition", "integer").add("offset", "long")
left_schema = StructType([*places_schema]).add("left_value", "binary").add("erased_by", "string")
# Pages about checks, with examples of rows; they are written again when they are asked for.
reports_folder, replays_folder = "_reports", "_replays"


def erase(spark: "SparkSession", lake: TableFormat, log: AnyLog, topic: Topic) -> int | None:
    """Removes what is to be erased of a topic from the log and from bronze; returns how many rows that changed.

    None where nothing is left to do.
    """
    known = lake.last_commit(topic.name)
    pending = {
        number: each
        for number, each in erasures_in(log).items()
        if each.topic == topic.topic and (known is None or number >= known.entry.erased)
    }
    if not pending:
        return None
    log.erase(topic.topic, removals_of(pending, topic.topic))
    if known is None:
        return None
    # A topic that was made again under its name has other records.
    ids = {each.of_topic for each in known.entry.landed.values()} - {None} or {log.topic_id(topic.topic)}
    of_landed = {number: each for number, each in pending.items() if each.topic_id in {None, *ids}}
    removals = removals_of(of_landed, topic.topic)
    landed = log.marks_after(topic.topic, known.entry.landed, removals)
    said = {"cause": "erasure", "rows": no_rows, "landed": landed, "because": None, "erased": max(pending) + 1}
    said |= {"began_ms": int(time.time() * 1000), "changed_at": None, "changed_ms": None}
    entry = known.entry.model_copy(update=said)
    with named_jobs(spark, topic.name) as own:
        plan = planned(own, lake, Plan(output_of(topic), "none", entry, known.fence, known, is_cursor=True), removals)
        return commit(lake, judge([plan], gate=())).total


def output_of(topic: Topic) -> Output:
    return Output(topic.name, grain=grain, scope_columns=same_names(grain))


def planned(spark: "SparkSession", lake: TableFormat, unchanged: Plan, removals: Removals) -> Plan:
    """The records that are still to be erased, each replaced by what is left of it."""
    table = unchanged.output.table
    bronze = lake.read(spark, table)
    places = [(partition, offset) for partition, each in removals.items() for offset in each]
    scope = collect(frame_of(spark, table_of(places, grain), places_schema))
    old = scope.filter(bronze, unchanged.output.scope_columns)
    left = frame_of(spark, table_of(remainders(old, removals), left_schema.names), left_schema)
    is_gone = F.col("key").isNull() & F.col("value").isNull() & (F.map_keys("headers") == F.array(F.lit(erased_header)))
    numbers = {str(one.number) for each in removals.values() for some in each.values() for one in some}
    is_gone &= F.col("headers").getItem(erased_header).isin(*numbers)
    is_new = F.col("erased_by").isNotNull() & ~F.coalesce(is_gone, F.lit(False))
    is_less = F.col("erased_by").isNull() & ~F.col("value").eqNullSafe(F.col("left_value"))
    headers = F.when(F.col("erased_by").isNull(), F.col("headers")).otherwise(
        F.create_map(F.lit(erased_header), F.col("erased_by"))
    )
    changed = (
        old.join(F.broadcast(left), list(grain))
        .where(is_new | is_less)
        .withColumns(
            {
                "key": F.when(F.col("erased_by").isNull(), F.col("key")),
                "value": F.col("left_value"),
                "headers": headers,
            }
        )
        .select(*bronze.columns, F.lit("updated").alias(operation))
    )
    small = small_rows(changed)
    count = changed.count() if small is None else small.num_rows
    if not count:
        return unchanged
    counts = RowCounts(updated=count)
    entry = unchanged.entry.model_copy(update={"rows": counts})
    found = replace(unchanged, change="difference", entry=entry, scope=scope, before=bronze)
    return replace(found, rows=changed, counts=counts, small=small)


def remainders(old: "DataFrame", removals: Removals) -> list[tuple[object, ...]]:
    """What is left of each record; the driver reads only the values of which a part is to stay."""
    found: list[tuple[object, ...]] = []
    in_part = []
    for partition, each in removals.items():
        for offset, some in each.items():
            if some[0].fields:
                in_part.append((partition, offset))
            else:
                found.append((partition, offset, None, str(some[0].number)))
    if in_part:
        places = frame_of(old.sparkSession, table_of(in_part, grain), places_schema)
        for row in old.join(F.broadcast(places), list(grain)).select(*grain, "value").collect():
            value = None if row["value"] is None else bytes(row["value"])
            left = remainder(value, removals[row["partition"]][row["offset"]])
            by = None if left.erased_by is None else str(left.erased_by)
            found.append((row["partition"], row["offset"], left.value, by))
    return found


def table_of(rows: Iterable[tuple[object, ...]], names: Iterable[str]) -> pa.Table:
    kinds: dict[str, pa.DataType] = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "left_value": pa.binary(),
        "erased_by": pa.string(),
    }
    schema = pa.schema([(name, kinds[name]) for name in names])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def forget_erased(spark: "SparkSession", lake: Lake, log: AnyLog, topics: Iterable[Topic]) -> list[str]:
    """Removes all older versions of the tables that erased records went into, and what else may quote them.

    Returns what of the lake is in the way; the same is tried again by every run. Then what the log has of it is asked
    for, until that is nothing.
    """
    erasures = erasures_in(log)
    if not erasures:
        return []
    topics = list(topics)
    obstacles = forget_versions(spark, lake, topics, erasures)
    for topic in topics:
        known = lake.last_commit(topic.name)
        if known and known.entry.erased > known.entry.gone and not any(True for _ in held(known, log, topic, erasures)):
            note(lake, topic.name, known, gone=known.entry.erased)
    return obstacles


def forget_versions(
    spark: "SparkSession", lake: Lake, topics: Sequence[Topic], erasures: Mapping[int, Erasure]
) -> list[str]:
    """Removes the older versions of all tables, unless something is in the way."""
    names = lake.tables()
    in_bronze = newest_commits(lake, [name for name in names if is_bronze(name)])
    due = remembered(in_bronze)
    if not due and not unerased(lake, in_bronze, topics, erasures):
        return []
    newest = newest_commits(lake, names)
    tables = made_from(due, newest)
    obstacles = in_the_way(lake, newest, topics, erasures)
    if obstacles:
        return obstacles
    forget_examples(lake, newest.keys() - {*tables, *due})
    forget_blocks(lake.files, datetime.fromtimestamp(max(newest[table].timestamp_ms for table in due) / 1000, UTC))
    forget_fates(spark, lake, newest)
    lake.files.delete_folder(reports_folder)
    shared = [checks_table] if lake.exists(checks_table) else []
    for table in [*shared, *tables, *due]:
        lake.forget_history(spark, table)
    for table in due:
        known = lake.last_commit(table)
        if known:
            note(lake, table, known, forgotten=known.entry.erased)
    return []


def newest_commits(lake: TableFormat, tables: Iterable[str]) -> dict[str, Commit]:
    return {table: commit for table in tables if (commit := lake.last_commit(table))}


def is_bronze(table: str) -> bool:
    return table.startswith("bronze.")


def forget_fates(spark: "SparkSession", lake: TableFormat, newest: Mapping[str, Commit]) -> None:
    """Removes the fates of records in datasets that consume none any more: nothing else would ever change them.

    Their tables are gone, or another kind of dataset has the name.
    """
    if fates_table not in newest:
        return
    named = [row[0] for row in lake.read(spark, fates_table).select("dataset").distinct().collect()]
    consuming = {name for name, each in newest.items() if any(map(is_bronze, each.entry.inputs))}
    for name in sorted(set(named) - consuming):
        with named_jobs(spark, name) as own:
            rejected, _ = event_outputs(name, (), None)
            entry = newest[fates_table].entry.model_copy(update={"dataset": name, "cause": "erasure", "because": None})
            none = lake.read(own, fates_table).limit(0)
            plan = Plan(rejected, "all", entry, lake.fence(fates_table, name), None, rows=none)
            commit(lake, judge([plan], gate=()))


def in_the_way(
    lake: Lake, newest: Mapping[str, Commit], topics: Sequence[Topic], erasures: Mapping[int, Erasure]
) -> list[str]:
    """What keeps older versions from being removed, given the newest commits; nothing where none has to be."""
    due, behind = remembered(newest), unerased(lake, newest, topics, erasures)
    if not due and not behind:
        return []
    behind += [table for table in made_from(due, newest) if not is_current(table, newest)]
    return [
        *[
            f"{table} is not up to date: sluice run; if nothing declares it any more, delete its folder in the lake, "
            + table.replace(".", "/")
            for table in behind
        ],
        *copies_of_replays(lake),
    ]


def copies_of_replays(lake: TableFormat) -> list[str]:
    """The replays that keep an erasure from being completed."""
    replays = lake.files.folders(replays_folder)
    return [f"the replay {name} has copies, promoted or not: sluice replay drop {name}" for name in replays]


def unerased(
    lake: Lake, newest: Mapping[str, Commit], topics: Sequence[Topic], erasures: Mapping[int, Erasure]
) -> list[str]:
    """The bronze tables with records that are still to be erased: of a topic that waits, or is no longer declared."""
    last = {each.topic: number for number, each in sorted(erasures.items())}
    declared = {topic.name: topic.topic for topic in topics}
    return [
        name
        for name, each in newest.items()
        if is_bronze(name)
        and each.entry.erased <= max(last.values(), default=-1)
        and each.entry.erased <= last.get(declared.get(name) or topic_in(lake, name), -1)
    ]


def topic_in(lake: Lake, table: str) -> str:
    """The topic whose records a bronze table has, by these; empty where it has none."""
    batches = pa.RecordBatchReader.from_stream(lake.scan(table, lake.newest_version(table)))
    return next((str(batch["topic"][0]) for batch in batches if batch.num_rows), "")


def remembered(newest: Mapping[str, Commit]) -> list[str]:
    """The topics of which older versions have what an erasure removed; only of those is it known how far it is."""
    return [name for name, each in newest.items() if is_bronze(name) and is_remembered(each)]


def note(lake: Lake, table: str, known: Commit, **numbers: int) -> None:
    """States in the ledger of a bronze table how far its erasures are."""
    said = {"cause": "erasure", "rows": no_rows, "because": None, "began_ms": None, **numbers}
    lake.move_cursor(table, known.unchanged(known.entry.model_copy(update=said)), known.fence)


def held(known: Commit, log: AnyLog, topic: Topic, erasures: Mapping[int, Erasure]) -> Iterator[tuple[int, int]]:
    """The erased records of a topic that its log still has."""
    asked = {number: each for number, each in erasures.items() if known.entry.gone <= number < known.entry.erased}
    return log.held(topic.topic, removals_of(asked, topic.topic))


def still_held(lake: TableFormat, log: AnyLog, topics: Iterable[Topic]) -> dict[str, str]:
    """By bronze table, how many erased records of its topic the log still has, in words."""
    erasures, found = erasures_in(log), {}
    for topic in topics:
        known = lake.last_commit(topic.name) if erasures else None
        count = sum(1 for _ in held(known, log, topic, erasures)) if known else 0
        if count:
            found[topic.name] = (
                f"{topic.topic} on {log} still has {count:,} of the erased records, until it is compacted"
            )
    return found


def is_remembered(bronze: Commit) -> bool:
    """Whether older versions have what an erasure removed of a topic."""
    return bronze.entry.erased > bronze.entry.forgotten


def made_from(sources: Iterable[str], newest: Mapping[str, Commit]) -> list[str]:
    """The tables that are made from some, directly or not, by their ledgers; and those that datasets share.

    A table may be made from any where one is gone that it is made from.
    """
    found = {*sources, *(table for table, each in newest.items() if not newest.keys() >= each.entry.inputs.keys())}
    while more := {table for table, each in newest.items() if not found.isdisjoint(each.entry.inputs)} - found:
        found |= more
    shared = {table for table, each in newest.items() if each.entry.dataset != table}
    return sorted((found | shared) - set(sources))


def is_current(table: str, newest: Mapping[str, Commit]) -> bool:
    """Whether a table and all that it is made from are up to date; a shared one is, when those are that write it."""
    entry = newest[table].entry
    return entry.dataset != table or all(
        name in newest and newest[name].as_input.is_state(each) and is_current(name, newest)
        for name, each in entry.inputs.items()
    )
