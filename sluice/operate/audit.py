"""The audit: the fate of every landed record, the integrity checks, and what is blocked."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb

from sluice.engine.blocked import blocks
from sluice.engine.catalogue import Catalogue
from sluice.engine.erase import in_the_way, newest_commits, still_held, unerased
from sluice.errors import LogUnreachable, SluiceError
from sluice.log import AnyLog
from sluice.log.erasures import erasures_in
from sluice.model.datasets import Dataset
from sluice.model.erasure import erasures_topic
from sluice.model.integrity import of_dataset
from sluice.operate.query import connection
from sluice.operate.status import broken_by, refusals
from sluice.quality.conservation import Fates, fates_of, without_fates
from sluice.shapes.fates import fates_table
from sluice.storage.delta import Lake


def audit(lake: Lake, catalogue: Catalogue) -> list[Fates]:
    """The fates of all landed records, for each dataset that consumes a topic."""
    present = set(lake.tables())
    with connection(lake) as found:
        if fates_table not in present:
            without_fates(found)
        return [
            fates_known(found, dataset, topic)
            for dataset in catalogue.datasets
            for topic, landed in dataset.landed_in.items()
            if dataset.name in present and landed in present
        ]


def fates_known(found: "duckdb.DuckDBPyConnection", dataset: Dataset, topic: str) -> Fates:
    """The fates of one topic's records; a SluiceError where a table cannot be read, without which none is known."""
    try:
        return fates_of(found, dataset, topic)
    except duckdb.Error as error:
        raise SluiceError(f"The records of {dataset.name} cannot be accounted for: {error}") from error


@dataclass(frozen=True)
class IntegrityCheck:
    """An integrity check of a dataset against its inputs, and how many rows break it.

    Where a table cannot be read, `unknown` says why nothing is known of them.
    """

    dataset: str
    law: str
    broken: int
    unknown: str = ""

    @property
    def balanced(self) -> bool:
        return self.broken == 0 and not self.unknown


def integrity(lake: Lake, catalogue: Catalogue) -> list[IntegrityCheck]:
    """The integrity checks of every dataset that is there with all inputs that it requires."""
    present = set(lake.tables())
    with connection(lake) as found:
        return [
            checked(found, dataset.name, law, sql)
            for dataset in catalogue.datasets
            if {dataset.name, *dataset.required} <= present
            for law, sql in of_dataset(dataset).items()
        ]


def checked(found: "duckdb.DuckDBPyConnection", dataset: str, law: str, sql: str) -> IntegrityCheck:
    try:
        return IntegrityCheck(dataset, law, count_of(found, sql))
    except duckdb.Error as error:
        return IntegrityCheck(dataset, law, 0, unknown=" ".join(str(error).split()))


def count_of(found: "duckdb.DuckDBPyConnection", sql: str) -> int:
    """The one number that a query gives."""
    answer = found.execute(sql).fetchone()
    return int(answer[0]) if answer else 0


def erased_by_none(lake: Lake, log: AnyLog, fates: Sequence[Fates]) -> list[IntegrityCheck]:
    """The erased records that no erasure names, and that are not where the log was compacted before they landed.

    Who writes the log otherwise could make records look so.
    """
    sql = f'SELECT topic, "partition", "offset" FROM {fates_table} WHERE dataset = $dataset AND fate = \'erased\''
    datasets = dict.fromkeys(each.dataset for each in fates if each.erased)
    if not datasets:
        return []
    with connection(lake, versions={fates_table: None}) as found:
        erased = {name: set(found.execute(sql, {"dataset": name}).fetchall()) for name in datasets}
    law = "erased records that no erasure names"
    try:
        # Of an erasure of fields, too: a record that is no JSON object is erased as a whole.
        named = {(each.topic, *place) for each in erasures_in(log).values() for place in each.offsets()}
    except LogUnreachable as error:
        return [IntegrityCheck(name, law, 0, unknown=str(error)) for name in datasets]
    topics = {topic for places in erased.values() for topic, _, _ in places}
    ends = {topic: log.emptied_before(topic) for topic in topics}
    unnamed = {
        name: [place for place in places - named if place[2] >= ends[place[0]].get(place[1], 0)]
        for name, places in erased.items()
    }
    return [IntegrityCheck(name, law, len(places)) for name, places in unnamed.items()]


@dataclass(frozen=True)
class Stopped:
    """A topic or dataset that a run could not bring up to date, since when and why."""

    dataset: str
    since: datetime
    reason: str
    balanced: bool = False


def stopped(lake: Lake, catalogue: Catalogue) -> list[Stopped]:
    """What is blocked, or keeps older rows because the newest were refused."""
    found = {name: (each.since, str(each)) for name, each in blocks(lake.files).items()}
    refused = {
        name: (rows[0]["checked_at"], f"refused: {broken_by(rows)}. Of which rows: sluice check {name}")
        for name, rows in refusals(lake).items()
    }
    return [
        Stopped(node.name, *each)
        for node in catalogue.nodes
        if (each := found.get(node.name) or refused.get(node.name))
    ]


def erasures_left(lake: Lake, log: AnyLog, catalogue: Catalogue) -> list[Stopped]:
    """The topics of which an erasure is incomplete: something still has the old values."""
    try:
        erasures, in_log = erasures_in(log), still_held(lake, log, catalogue.topics)
    except LogUnreachable as error:
        said = f"Whether erasures are complete is not known. {error}"
        return [Stopped(erasures_topic, datetime.now(UTC), said)]
    found = []
    newest = newest_commits(lake, lake.tables()) if erasures else {}
    what_next = "; ".join(in_the_way(lake, newest, catalogue.topics, erasures)) or "sluice run"
    unfinished = f"An erasure of its records is incomplete: {what_next}"
    declared = {node.name for node in catalogue.topics}
    orphans = [name for name in unerased(lake, newest, catalogue.topics, erasures) if name not in declared]
    found += [Stopped(name, datetime.now(UTC), unfinished) for name in orphans]
    for node in catalogue.topics:
        numbers = [number for number, each in erasures.items() if each.topic == node.topic]
        known = newest.get(node.name) if numbers else None
        if known is None:
            continue
        done = min(known.entry.erased, known.entry.forgotten)
        is_here = any(number >= done for number in numbers)
        reason = unfinished if is_here else in_log.get(node.name)
        if reason:
            left = [erasures[number].at for number in numbers if number >= min(done, known.entry.gone)]
            found.append(Stopped(node.name, left[0] or datetime.now(UTC), reason))
    return found
