"""The status of every topic and dataset: what has landed, what waits, and why something is not current."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sluice.engine.blocked import Block, blocks
from sluice.engine.catalogue import Catalogue, ordered
from sluice.engine.land import lost, offsets_of, waiting
from sluice.errors import LogError, LogUnreachable
from sluice.log import AnyLog
from sluice.model.datasets import Dataset, Topic
from sluice.model.ledger import Commit, Entry, InputVersion, LandedPartition
from sluice.operate.consistent import readable_commit
from sluice.operate.query import query
from sluice.quality.results import checks_table, is_critical
from sluice.storage.delta import Lake

# The verdicts of the newest check of a dataset.
verdicts_sql = f"SELECT verdict FROM {checks_table} WHERE dataset = ? QUALIFY checked_at = max(checked_at) OVER ()"


@dataclass(frozen=True)
class State:
    """One dataset as it stands; `lag` counts records of the log, or versions of inputs, that it has not seen.

    `lags` has the records by partition. `held` says why it does not follow its declaration, or the log; None: it
    does. The newest commit took `seconds`, None where the ledger does not say.
    """

    dataset: str
    rows: int | None
    version: int | None
    offsets: dict[int, int]
    lag: int
    watermark: datetime | None
    updated_at: datetime | None
    held: str | None = None
    lags: Mapping[int, int] = field(default_factory=dict)
    seconds: float | None = None


def status(lake: Lake, log: AnyLog, catalogue: Catalogue) -> list[State]:
    """Every topic and dataset of the catalogue as it stands, upstream first."""
    refused, blocked = refusals(lake), blocks(lake.files)
    return [
        topic_state(lake, log, node, blocked)
        if isinstance(node, Topic)
        else dataset_state(lake, node, refused, blocked)
        for node in catalogue.nodes
        if not (isinstance(node, Topic) and node.optional and lake.last_commit(node.name) is None)
    ]


def topic_state(lake: Lake, log: AnyLog, topic: Topic, blocked: Mapping[str, Block]) -> State:
    """How much of a topic has landed, and how much waits."""
    try:
        commit = lake.last_commit(topic.name)
    except Exception as error:  # noqa: BLE001 - one broken table hides no other
        return State(topic.name, None, None, {}, 0, None, None, held=f"cannot be read: {error}")
    landed = commit.entry.landed if commit else {}
    available, wrong = log_of(log, topic.topic, landed)
    lags = waiting(available, landed)
    if wrong is None and topic.name in blocked:
        wrong = f"blocked: {blocked[topic.name]}"
    return State(
        dataset=topic.name,
        rows=lake.row_count(topic.name) if commit else None,
        version=commit.version if commit else None,
        offsets={partition: each.next_offset for partition, each in sorted(landed.items())},
        lag=sum(lags.values()),
        watermark=None,
        updated_at=time_of(commit.timestamp_ms) if commit else None,
        held=wrong,
        lags=lags,
        seconds=commit.seconds if commit else None,
    )


def log_of(log: AnyLog, topic: str, landed: dict[int, LandedPartition]) -> tuple[Mapping[int, range], str | None]:
    """The offsets in the log of a topic, and why they cannot land; None: they can."""
    available: Mapping[int, range] = {}
    try:
        available = offsets_of(log, topic)
        said = gone(lost(log, topic, landed))
        if said is None and (available or landed):
            log.next_batch(topic, landed, 0)
    except LogUnreachable:
        raise
    except LogError as error:
        said = str(error)
    return available, said


def gone(found: Mapping[int, range]) -> str | None:
    """The offsets that the log lost before they landed, as text; None when there are none."""
    said = [f"offsets {each.start}-{each.stop - 1} of partition {partition}" for partition, each in found.items()]
    return f"lost: {', '.join(said)}" if said else None


def newest_checks(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """The results of the newest check of each dataset, as they are kept."""
    return by_dataset(kept_checks(lake, "QUALIFY checked_at = max(checked_at) OVER (PARTITION BY dataset)"))


def refusals(lake: Lake) -> dict[str, list[dict[str, Any]]]:
    """By dataset whose newest rows were refused: the results of that check, also of what these rows keep."""
    found = {}
    for name, rows in by_dataset(kept_checks(lake, "WHERE version IS NULL")).items():
        newest = newest_by_itself(lake, name)
        standing = [row for row in rows if is_standing(newest, row)]
        if standing:
            run = max(standing, key=lambda row: row["checked_at"])["run"]
            found[name] = [row for row in standing if row["run"] == run]
    return found


def kept_checks(lake: Lake, which: str) -> list[dict[str, Any]]:
    """Results that are kept, as rows; `which` is SQL."""
    if checks_table not in lake.tables():
        return []
    found = query(lake, f"SELECT * FROM {checks_table} {which}", tables=[checks_table])
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def by_dataset(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [row for row in rows if row["dataset"] == name] for name in sorted({row["dataset"] for row in rows})}


def broken_by(rows: Sequence[Mapping[str, Any]]) -> str:
    """The names of what rows that were refused would have broken."""
    return ", ".join(sorted(row["expectation"] for row in rows if is_critical(row)))


def newest_by_itself(lake: Lake, dataset: str) -> Commit | None:
    """The newest commit of a table that is not of upkeep, which repeats an entry; None where none can be read."""
    with suppress(Exception):
        commits = lake.commits(dataset)
        while len(commits) > 1 and commits[-1].entry.repeats(commits[-2].entry):
            commits.pop()
        return commits[-1] if commits else None
    return None


def is_standing(newest: Commit | None, refused: Mapping[str, Any]) -> bool:
    """Whether nothing was committed to a table after rows of it were refused.

    Results of older releases lack the version, so the time decides.
    """
    if newest is None:
        return True
    over: int | None = refused.get("refused_over")
    checked_at: datetime = refused["checked_at"]
    if over is None:
        return checked_at > time_of(newest.timestamp_ms)
    return refused.get("table_id") == newest.table_id and newest.version <= over


def dataset_state(
    lake: Lake, dataset: Dataset, refused: Mapping[str, Sequence[Mapping[str, Any]]], blocked: Mapping[str, Block]
) -> State:
    """How far a dataset has followed its inputs."""
    stopped = stopped_by(dataset, blocked)
    try:
        commit = lake.last_commit(dataset.name)
    except Exception as error:  # noqa: BLE001 - one broken table hides no other
        return State(dataset.name, None, None, {}, 0, None, None, held=stopped or f"cannot be read: {error}")
    said = stopped or (f"refused: {broken_by(refused[dataset.name])}" if dataset.name in refused else None)
    if commit is None:
        return State(dataset.name, None, None, {}, 0, None, None, held=said)
    behind = 0
    for source in {each.source.name for each in dataset.inputs.values()}:
        newest = readable_commit(lake, source)
        seen = commit.entry.inputs.get(source)
        if newest is not None:
            behind += versions_behind(seen, newest.as_input)
    return State(
        dataset=dataset.name,
        rows=lake.row_count(dataset.name),
        version=commit.version,
        offsets={},
        lag=behind,
        # A history has one too, but its readers do not wait for it.
        watermark=commit.entry.watermark if dataset.keeps_time else None,
        updated_at=time_of(commit.timestamp_ms),
        held=said or not_current(commit.entry, dataset),
        seconds=commit.seconds,
    )


def stopped_by(dataset: Dataset, blocked: Mapping[str, Block]) -> str | None:
    """Why a dataset is blocked, or which others it waits for; None if neither."""
    if dataset.name in blocked:
        return f"blocked: {blocked[dataset.name]}"
    above = [each.name for each in ordered([dataset]).datasets if each.name in blocked]
    return f"waits for {', '.join(above)}" if above else None


def versions_behind(seen: InputVersion | None, newest: InputVersion) -> int:
    """How many versions of an input a dataset has not seen; at least one when the input went back to an older state."""
    if seen is None:
        return newest.version + 1
    return 0 if seen.is_state(newest) else max(1, newest.version - seen.version)


def not_current(entry: Entry, dataset: Dataset) -> str | None:
    """Why a table is not what its declaration says; None when it is."""
    if entry.fingerprint == dataset.fingerprint:
        return None
    return "rolled back" if entry.rejected == dataset.fingerprint else "declaration changed"


def time_of(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
