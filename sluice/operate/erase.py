"""Find the records of a subject, and state in the log that they are to be erased, without saying whose they are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import duckdb
import pyarrow as pa

from sluice.engine.catalogue import Catalogue
from sluice.errors import UsageError
from sluice.log import AnyLog, erasures, require_open
from sluice.model.commands import metadata
from sluice.model.datasets import Topic
from sluice.model.erasure import Erasure, Removal, erased_header, erasures_topic, has_field, remainder
from sluice.model.ledger import Entry, are_of_another_topic
from sluice.operate.query import connected
from sluice.operate.search import Wanted
from sluice.shapes.fates import Events
from sluice.storage.delta import Lake

records_at_once = 10_000
# With offsets of any length they are less than the megabyte that Kafka's topics take by default.
ranges_max = 20_000
waiting_columns: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True)
class Erased:
    """How many records of a topic an erasure names, by partition; and what keeps it from its end, if anything does.

    No record that was looked at has one of the `unknown_fields`.
    """

    topic: str
    records: Mapping[int, int]
    in_the_way: tuple[str, ...] = ()
    unknown_fields: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.records.values())


@dataclass(frozen=True)
class Subject:
    """The records to erase: those of a `key`, or that meet a condition in SQL; and the `fields` of them, or all."""

    topic: str
    key: str | None = None
    where: str | None = None
    fields: Sequence[str] = ()


@dataclass(frozen=True)
class Found:
    """The offsets of the records to erase, by partition, and the fields to erase that none of them has."""

    offsets: dict[int, list[int]]
    unknown_fields: tuple[str, ...] = ()


def found(lake: Lake, log: AnyLog, catalogue: Catalogue, subject: Subject) -> Found:
    """The records that are meant, those that have landed and those that have not; none of erased ones.

    A UsageError for what cannot be looked for, or cannot be erased.
    """
    require_sense(lake, log, catalogue, subject)
    nodes = [node for node in catalogue.topics if node.topic == subject.topic]
    offsets: dict[int, set[int]] = {}
    unseen: list[str] = []
    for number, (partition, offset, value) in enumerate(matching(lake, log, nodes, subject)):
        unseen = [name for name in (unseen if number else subject.fields) if not has_field(value, name)]
        is_less = remainder(value, [Removal(0, tuple(subject.fields))]).value != value
        if not subject.fields or is_less:
            offsets.setdefault(partition, set()).add(offset)
    log.require_erasable(subject.topic, offsets, subject.fields)
    return Found({partition: sorted(each) for partition, each in sorted(offsets.items())}, tuple(unseen))


def state(log: AnyLog, subject: Subject, offsets: Mapping[int, Sequence[int]], reason: str) -> None:
    """Appends the erasure to the log: from now on each run does what is left to do of it."""
    if not reason.strip():
        raise UsageError("Say why: --reason TEXT. It stays in the log.")
    if any(Wanted(each).is_in(reason) for each in texts_in(subject)):
        raise UsageError("The reason stays in the log, so it must not name the key, or a text of the condition.")
    whole = Erasure.of(subject.topic, offsets, subject.fields, reason, log.topic_id(subject.topic))
    for part in parts(whole.model_copy(update={"mark": token_hex(8)})):
        erasures.add(log, part)


def parts(erasure: Erasure) -> Iterator[Erasure]:
    """The same as several erasures, each of which fits into a record of Kafka."""
    ranges = [(partition, each) for partition, some in erasure.ranges.items() for each in some]
    for begin in range(0, len(ranges), ranges_max):
        found: dict[int, list[tuple[int, int]]] = {}
        for partition, each in ranges[begin : begin + ranges_max]:
            found.setdefault(partition, []).append(each)
        yield erasure.model_copy(update={"ranges": found})


def texts_in(subject: Subject) -> list[str]:
    """The key, or the texts in the condition that are no names of JSON fields."""
    if subject.where is None:
        return [subject.key] if subject.key else []
    without_names = re.sub(r"->>?\s*'[^']*'", "", subject.where)
    return [each.strip("%").replace("''", "'") for each in re.findall(r"'((?:[^']|'')+)'", without_names)]


def require_sense(lake: Lake, log: AnyLog, catalogue: Catalogue, subject: Subject) -> None:
    if (subject.key is None) == (subject.where is None):
        raise UsageError("Say which records: --key KEY, or --where CONDITION.")
    if subject.where is not None and not subject.where.strip():
        raise UsageError(
            "--where is empty. Say which records, for example: --where \"record ->> 'email' = 'ann@example.org'\""
        )
    require_open(subject.topic)
    catalogue.topic(subject.topic)
    require_decisions_stay(log, catalogue, subject)
    # Before the records are looked for.
    log.require_erasable(subject.topic, {}, subject.fields)
    require_landed_topic(lake, log, catalogue, subject.topic)
    require_earlier_erasures(lake, log, catalogue, subject.topic)
    for dataset in catalogue.datasets:
        parts = dataset.specification
        if isinstance(parts, Events) and subject.topic in dataset.topics:
            needed = {*parts.parsing.required, *parts.distinct} & set(subject.fields)
            if needed:
                raise UsageError(
                    f"{dataset.name} needs {', '.join(sorted(needed))}, and would quarantine the records. Erase other "
                    "fields, or all of the records: without --fields."
                )


def require_landed_topic(lake: Lake, log: AnyLog, catalogue: Catalogue, topic: str) -> None:
    """A UsageError where bronze has the records of another topic of this name, which have the same offsets."""
    now = log.topic_id(topic)
    for table, entry in landed_from(lake, catalogue, topic):
        if are_of_another_topic(entry.landed, now):
            raise UsageError(
                f"{table} has the records of a topic {topic} that was deleted and made again. Restore that one, or "
                "land the new one in another table or lake, and erase there."
            )


def require_earlier_erasures(lake: Lake, log: AnyLog, catalogue: Catalogue, topic: str) -> None:
    """A UsageError where the log lacks erasures that a table has: the next would get a number that counts as done."""
    stated = erasures.erasures_in(log)
    for table, entry in landed_from(lake, catalogue, topic):
        if entry.erased and entry.erased - 1 not in stated:
            raise UsageError(
                f"{log} lacks erasures that {table} has followed. Restore its topic {erasures_topic}, or the right "
                "to read it."
            )


def landed_from(lake: Lake, catalogue: Catalogue, topic: str) -> Iterator[tuple[str, Entry]]:
    """The bronze tables that a topic has landed in, each with what its ledger says now."""
    for node in catalogue.topics:
        known = lake.last_commit(node.name) if node.topic == topic else None
        if known:
            yield node.name, known.entry


def require_decisions_stay(log: AnyLog, catalogue: Catalogue, subject: Subject) -> None:
    """A UsageError where decisions of commands would be gone: versions, and ids that must not be decided again."""
    owner = log.owner(subject.topic)
    if owner is None:
        return
    keys = [key for each in catalogue.commands if each.name == owner for key in each.keys]
    needed = {*metadata, *keys} & set(subject.fields)
    if not subject.fields or needed:
        raise UsageError(
            f"{subject.topic} has what the commands {owner} decided, and versions follow from all of it: "
            f"{', '.join(sorted(needed)) or 'whole records'} must stay. Name other fields to erase: "
            "--fields …"
        )


def matching(
    lake: Lake, log: AnyLog, nodes: Sequence[Topic], subject: Subject
) -> Iterator[tuple[int, int, bytes | None]]:
    """The partition, offset and value of each record that is meant, in bronze and in the log behind it."""
    present = [node for node in nodes if lake.exists(node.name)]
    columns = ", ".join(f'"{name}"' for name in waiting_columns)
    raw = " UNION ALL ".join(f"SELECT {columns} FROM {each}" for each in (*[n.name for n in present], "_waiting"))
    condition = "key = $key" if subject.where is None else f"({subject.where}\n)"
    sql = f"""
        WITH raw AS ({raw}),
        texts AS (
            SELECT "partition", "offset", TRY(decode(key)) AS key, TRY(decode(value)) AS value, "timestamp", headers,
                value AS _value
            FROM raw WHERE NOT coalesce(key IS NULL AND value IS NULL AND map_keys(headers) = ['{erased_header}']
                AND list_contains($erased, map_values(headers)[1]), false)
        ),
        records AS (SELECT *, CASE WHEN json_valid(value) THEN CAST(value AS JSON) END AS record FROM texts)
        SELECT "partition", "offset", _value FROM records WHERE {condition}
    """
    waiting = pa.Table.from_pylist(list(not_landed(lake, log, nodes)), schema=pa.schema(waiting_columns))
    versions = {node.name: None for node in present}

    def prepare(connection: "duckdb.DuckDBPyConnection") -> None:
        connection.register("_waiting", waiting)

    with connected(lake, versions=versions, prepare=prepare) as connection:
        try:
            # One expression: what closes the bracket around it could choose records of no topic.
            duckdb.SQLExpression(subject.where or "true")
            erased = {"erased": [str(number) for number in erasures.erasures_in(log)]}
            answer = connection.execute(sql, erased if subject.where is not None else {**erased, "key": subject.key})
            while some := answer.fetchmany(records_at_once):
                yield from some
        except duckdb.Error as error:
            said = str(error).partition("\n\nLINE ")[0]
            raise UsageError(
                f"The condition cannot be evaluated: {said} It may use key, value, timestamp, headers, partition, "
                "\"offset\", and record, the value as JSON: record ->> 'name' = 'x'"
            ) from error


def not_landed(lake: Lake, log: AnyLog, nodes: Sequence[Topic]) -> Iterator[dict[str, Any]]:
    """The records of the log that some table of their topic lacks."""
    topic = nodes[0].topic
    if not log.exists(topic):
        return
    commits = [lake.last_commit(node.name) for node in nodes]
    for partition, offsets in log.offsets(topic).items():
        landed = [each.entry.landed.get(partition) if each else None for each in commits]
        begin = min(each.next_offset if each else offsets.start for each in landed)
        for record in log.read(topic, partition, max(begin, offsets.start)) if begin < offsets.stop else ():
            key = None if record.key is None else record.key.encode()
            yield {
                "partition": partition,
                "offset": record.offset,
                "key": key,
                "value": record.value,
                "timestamp": record.timestamp,
                "headers": list(record.headers.items()),
            }
