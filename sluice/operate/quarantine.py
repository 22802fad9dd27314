"""The records in quarantine, late ones included: list them, release them, and set others aside.

A release is a record in the topic `sluice_releases`, because the log has all that changes a table: a rebuild applies it
too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson

from sluice.engine.catalogue import Catalogue
from sluice.errors import UsageError
from sluice.log import AnyLog, Record
from sluice.model.datasets import Dataset
from sluice.operate.query import connection
from sluice.shapes.fates import Events, by_command, fates_table, releases
from sluice.storage.delta import Lake

# Where it is said which records are released or set aside.
commands_topic = releases.topic
# Commands differ by as much at least.
least = timedelta(milliseconds=1)
# For the newest of them.
commands_looked_at = 1_000
# A dataset that consumes records.
Consumer = Dataset


@dataclass(frozen=True)
class QuarantinedByRule:
    """The records of a dataset that one rule quarantined; `can_be_released` if they can be used as they are."""

    dataset: str
    fate: str
    reason: str
    records: int
    first_at: datetime
    last_at: datetime
    can_be_released: bool


@dataclass(frozen=True)
class QuarantinedRecord:
    """One quarantined record, as it arrived."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    fate: str
    reason: str
    value: bytes | None

    @property
    def position(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def quarantined_by_rule(lake: Lake, catalogue: Catalogue) -> list[QuarantinedByRule]:
    """The number of quarantined records by dataset and rule."""
    if fates_table not in lake.tables():
        return []
    with connection(lake, versions={fates_table: None}) as found:
        rows = found.execute(
            f"SELECT dataset, fate, reason, count(*), min(_timestamp), max(_timestamp) FROM {fates_table} "
            "WHERE fate IN ('quarantined', 'late') GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    declared = {dataset.name: dataset for dataset in catalogue.datasets if dataset.topics}
    return [
        QuarantinedByRule(name, fate, reason, records, first_at, last_at, can_be_released(declared[name], reason))
        for name, fate, reason, records, first_at, last_at in rows
        if name in declared
    ]


def quarantined_records(
    lake: Lake,
    dataset: Dataset,
    *,
    reason: str | None = None,
    positions: Sequence[str] = (),
    records_max: int | None = None,
) -> list[QuarantinedRecord]:
    """The quarantined records of a dataset in the log's order: of one rule, or at some positions."""
    if not {fates_table, *dataset.landed_in.values()} <= set(lake.tables()):
        return []
    raw = " UNION ALL ".join(f"SELECT * FROM {table}" for table in dataset.landed_in.values())
    sql = f"""
        SELECT topic, "partition", "offset", raw."timestamp", fate, reason, raw.value
        FROM {fates_table} JOIN ({raw}) AS raw USING (topic, "partition", "offset")
        WHERE dataset = $dataset AND fate IN ('quarantined', 'late') AND ($reason IS NULL OR reason = $reason)
            AND ($positions IS NULL OR concat_ws('/', topic, "partition", "offset") IN (SELECT unnest($positions)))
        ORDER BY raw."timestamp", topic, "partition", "offset" LIMIT {records_max or 2**62}
    """
    wanted = {"dataset": dataset.name, "reason": reason, "positions": list(positions) or None}
    with connection(lake) as found:
        return [QuarantinedRecord(*row) for row in found.execute(sql, wanted).fetchall()]


def release(log: AnyLog, dataset: Dataset, records: Sequence[QuarantinedRecord], because: str) -> int:
    """Appends the release of the records to the log; the next run applies it. Returns their number.

    Raises UsageError when one of them cannot be used as it is.
    """
    stuck = sorted({record.reason for record in records if not can_be_released(dataset, record.reason)})
    if stuck:
        raise UsageError(
            f"{dataset.name}: records quarantined for {', '.join(stuck)} cannot be used as they are. Append them "
            f"corrected (sluice log append), or change the declaration: then all records are judged again. "
            f"What can be released: {', '.join(releasable(dataset))}."
        )
    places = [(record.topic, record.partition, record.offset, millis(record.timestamp)) for record in records]
    return say(log, dataset, places, because, "release")


def add(lake: Lake, log: AnyLog, dataset: Dataset, positions: Sequence[str], because: str) -> int:
    """Appends to the log that records are to be set aside, whatever they contain; the next run does it.

    Returns their number; raises UsageError for a position at which none has landed, or that commands decided.
    """
    landed = [table for table in dataset.landed_in.values() if table in lake.tables()]
    raw = " UNION ALL ".join(f'SELECT topic, "partition", "offset", "timestamp" FROM {table}' for table in landed)
    sql = f"""
        SELECT topic, "partition", "offset", epoch_us("timestamp") FROM ({raw})
        WHERE concat_ws('/', topic, "partition", "offset") IN (SELECT unnest($positions))
    """
    with connection(lake) as found:
        rows = found.execute(sql, {"positions": list(positions)}).fetchall() if landed else []
    # DuckDB rounds to milliseconds, and Spark and Kafka cut them off.
    places = [(topic, partition, offset, at_us // 1000) for topic, partition, offset, at_us in rows]
    missing = sorted(set(positions) - {"/".join(map(str, place[:3])) for place in places})
    if missing:
        raise UsageError(
            f"{dataset.name}: nothing has landed at {', '.join(missing)}. A position is topic/partition/offset, of the "
            f"topics {', '.join(dataset.topics)}."
        )
    owners = {topic: log.owner(topic) for topic, *_ in places}
    decided = sorted(topic for topic, owner in owners.items() if owner is not None)
    if decided:
        raise UsageError(
            f"{dataset.name}: {', '.join(decided)} has what commands decided, and later commands were decided by it. "
            "To take a decision back, send another command."
        )
    return say(log, dataset, places, because, "hold")


def say(
    log: AnyLog,
    dataset: Dataset,
    places: Iterable[tuple[str, int, int, int | None]],
    because: str,
    do: str,
    *,
    now: datetime | None = None,
) -> int:
    """Appends what is to be done with each record, given its position and its timestamp in milliseconds.

    Without a timestamp it is about any record at that position, also of a topic that is made again.
    The last command for a record wins, also where the clock of who gave one before was ahead.
    """
    now = now or datetime.now(UTC)
    if log.exists(releases.topic):
        now = max([now, *[each.timestamp + least for each in log.tail(releases.topic, commands_looked_at)[-1:]]])
    said = [
        {
            "dataset": dataset.name,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "because": because,
            "do": do,
            "timestamp_ms": timestamp_ms,
        }
        for topic, partition, offset, timestamp_ms in places
    ]
    log.append(releases.topic, [Record(orjson.dumps(each), key=dataset.name, timestamp=now) for each in said])
    return len(said)


def millis(at: datetime) -> int:
    """A time as milliseconds since 1970, which is all that Kafka has of it."""
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def require_reason(dataset: Dataset, reason: str) -> None:
    """A UsageError for what is no rule of a dataset, nor several with commas between."""
    known = (*dataset.specification.parsing.rules, by_command) if isinstance(dataset.specification, Events) else ()
    if not set(reason.split(",")) <= set(known):
        raise UsageError(f"{dataset.name} has no rule {reason}; its rules are {', '.join(known)}.")


def releasable(dataset: Dataset) -> tuple[str, ...]:
    """The rules of a dataset whose records can be let through as they are."""
    specification = dataset.specification
    return (*specification.parsing.waivable, by_command) if isinstance(specification, Events) else ()


def can_be_released(dataset: Dataset, reason: str) -> bool:
    """True when all the rules that quarantined a record can be lifted."""
    return set(reason.split(",")) <= set(releasable(dataset))


def consumer(catalogue: Catalogue, name: str) -> Consumer:
    """The dataset of that name, which must be one that consumes records; histories do by their changes."""
    consumers = {dataset.name: dataset for dataset in catalogue.datasets if dataset.topics}
    found = consumers.get(name) or consumers.get(f"{name}_changes")
    if found is None:
        raise UsageError(f"{name} consumes no records; {', '.join(consumers)} do.")
    return found
