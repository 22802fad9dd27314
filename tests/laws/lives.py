"""Lives of a lakehouse: the same records in other batches, in another order, with restarts and recomputed ranges."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from sluice.engine import refresh as engine
from sluice.engine import runner as run
from sluice.engine import touched
from sluice.engine.backfill import BackfillRange
from sluice.log import Record, partition_of
from sluice.model import scope, small_frames
from sluice.operate import replay as replaying
from sluice.operate.query import connection
from sluice.shapes import increment
from sluice.storage.delta import upkeep
from tests.kit import Lakehouse
from tests.laws.drawn import Row, Said
from tests.laws.lakehouses import World
from tests.laws.values import a_time, comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

never_as_a_whole = 1e9


@dataclass(frozen=True)
class Life:
    """How the records arrive: which record comes with which run, and what else is done after some runs.

    With a `rebuild_share` that is large, no table is computed as a whole because the scope is a large part of it. The
    driver takes up to `rows_max` rows itself, and more are not broadcast; below zero, Spark does everything. Where it
    does not `adjust`, groups are always recomputed from all their rows. A table of more than `small_files_max` small
    files has them written together.
    """

    name: str
    partitions: int
    rebuild_share: float
    step_of: dict[datetime, int]
    done_after: dict[int, str] = field(default_factory=dict)
    rows_max: int = small_frames.rows_max
    adjusts: bool = True
    small_files_max: int = upkeep.small_files_max

    @property
    def steps(self) -> int:
        return 1 + max(self.step_of.values(), default=0)


@dataclass
class Counts:
    """What was done, for the summary: refreshes by the number of scope rows."""

    worlds: int = 0
    cases: int = 0
    batches: int = 0
    refreshes: int = 0
    narrow: int = 0


def lives(world: World, records: Sequence[Said], singles: int) -> list[Life]:
    """At once; then one by one at the end; then in another order, with all that may happen to a lake."""
    chance = random.Random(f"{world.seed}/lives")
    one_by_one = split(chance, records, singles)
    shares = [never_as_a_whole, chance.choice([never_as_a_whole, touched.rebuild_share])]
    partitions = chance.randint(1, 4)
    done_after = {1: "restart", 2: "replay" if chance.random() < 0.25 else "part"}
    others = chance.randint(1, 4)
    another = waking(records, split(chance, records, max(singles // 2, 2)), others)
    found = [
        Life("at once", partitions, touched.rebuild_share, {each.moment: 0 for each in records}),
        Life("one by one", partitions, shares[0], one_by_one),
        Life("another order", others, shares[1], another, done_after),
    ]
    # One of them has its files written together by each run.
    compacted = 1 + world.seed % 2
    found[compacted] = replace(found[compacted], small_files_max=1)
    # Spark alone in one of them, mostly Spark in another, and the driver as far as it goes in the third.
    rows_max = [-1, 5, small_frames.rows_max]
    turned = world.seed % 3
    found = [
        replace(each, rows_max=rows_max[(index + turned) % 3], adjusts=(index + world.seed // 3) % 2 == 0)
        for index, each in enumerate(found)
    ]
    return [in_fewer_runs(each) if each.rows_max < 0 else each for each in found]


def in_fewer_runs(life: Life) -> Life:
    """The same in four runs: most, what is of many cases, a single one, and the rest. A run costs Spark alone most."""
    fewer = {0: 0, 1: 1, 2: 1, 3: 2}
    return replace(life, step_of={moment: fewer.get(step, 3) for moment, step in life.step_of.items()})


def telling(records: list[Said]) -> list[Said]:
    """Those that do their harm where they are alone: hostile text, and what makes the last snapshot whole."""
    taken = [each.thing["at"] for each in records if isinstance(each.thing, dict) and "items" in each.thing]
    last = [each for each in records if taken and each.thing["at"] == max(taken)]
    return last or [each for each in records if b"${" in (each.value or b"")] or records


def waking(records: Sequence[Said], step_of: dict[datetime, int], partitions: int) -> dict[datetime, int]:
    """The same, but one partition of several is silent at first, then tells what is long past, and the rest last."""
    if partitions == 1:
        return step_of
    silent = [each for each in records if partition_of(key_of(each), partitions) == 0]
    last = 1 + max(step_of.values())
    return step_of | {each.moment: 2 if each.case is None or each.case % 3 == 0 else last for each in silent}


def key_of(said: Said) -> str:
    return said.moment.isoformat()


def split(chance: random.Random, records: Sequence[Said], singles: int) -> dict[datetime, int]:
    """Most records first; then one of each of many cases; then all but a few; then these, one at a time.

    The last ones are of all topics alike, however many records each has.
    """
    arriving = list(records)
    chance.shuffle(arriving)
    by_topic: dict[str, list[Said]] = {}
    for each in arriving:
        by_topic.setdefault(each.topic, []).append(each)
    last = [chance.choice(telling(of_topic)) for of_topic in chance.choices(list(by_topic.values()), k=singles)]
    step_of = {each.moment: 0 for each in arriving}
    seen: set[Any] = set()
    for number, each in enumerate(arriving):
        if number < len(arriving) // 10:
            step_of[each.moment] = 2
        elif each.case is not None and each.case % 2 and each.case not in seen:
            seen.add(each.case)
            step_of[each.moment] = 1
    return step_of | {each.moment: 3 + number for number, each in enumerate(last)}


def lived(
    spark: "SparkSession",
    folder: Path,
    world: World,
    life: Life,
    *,
    records: Sequence[Said],
    counts: Counts,
    tables: Sequence[str] | None = None,
) -> Lakehouse:
    """A lakehouse that lived so; AssertionError where it broke a law on the way. Of `tables` and those upstream."""
    datasets = [each.dataset for each in world.drawn if tables is None or each.name in tables]
    lakehouse = Lakehouse(spark, folder, life.partitions).declare(*datasets)
    topics = {topic.topic for topic in lakehouse.catalogue.topics if not topic.optional}
    for topic in sorted(topics):
        lakehouse.log.append(topic, [])
    watch = Watch()
    with (
        counted(counts),
        mock.patch.object(touched, "rebuild_share", life.rebuild_share),
        mock.patch.object(small_frames, "rows_max", life.rows_max),
        mock.patch.object(scope, "broadcast_rows_max", min(life.rows_max, scope.broadcast_rows_max)),
        mock.patch.object(increment, "is_used", life.adjusts),
        mock.patch.object(upkeep, "small_files_max", life.small_files_max),
    ):
        for step in range(life.steps):
            batch = [each for each in records if life.step_of.get(each.moment, 0) == step and each.topic in topics]
            # What arrives in another order has its own.
            random.Random(f"{world.seed}/{life.name}/{step}").shuffle(batch)
            publish(lakehouse, batch)
            if batch or step == 0:
                lakehouse.run()
                counts.batches += 1
                watch.look(lakehouse)
            if step in life.done_after and (batch or step == 0):
                lakehouse = happened(life.done_after[step], lakehouse, world)
    return lakehouse


def publish(lakehouse: Lakehouse, batch: Sequence[Said]) -> None:
    """Appends records at their own moments; each has the same partition in every life of as many partitions."""
    waiting: dict[str, list[Record]] = {}
    for each in batch:
        record = Record(each.value, key=key_of(each), timestamp=each.moment)
        waiting.setdefault(each.topic, []).append(record)
    for topic, found in waiting.items():
        lakehouse.log.append(topic, found)


def happened(what: str, lakehouse: Lakehouse, world: World) -> Lakehouse:
    """A restart; a recomputed range, which changes no row; or a replay that is promoted, and changes none either."""
    chance = random.Random(f"{world.seed}/part")
    if what == "restart":
        again = Lakehouse(lakehouse.spark, lakehouse.folder, lakehouse.log.default_partitions)
        again.catalogue = lakehouse.catalogue
        assert again.run() == {}, "a restart did something"
        return again
    if what == "part":
        since = a_time(chance, chance.randrange(3))
        part = BackfillRange(since=since, until=since + timedelta(hours=chance.choice([1, 5, 30])))
        changed = lakehouse.runner().recompute_range(lakehouse.catalogue.datasets, part)
        assert not any(changed.values()), f"recomputing {part} changed rows: {changed}"
    if what == "replay":
        names = [dataset.name for dataset in lakehouse.catalogue.datasets]
        planned = replaying.plan(lakehouse.lake, lakehouse.catalogue, [chance.choice(names)], None, "a law")
        for _ in replaying.build(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned):
            pass
        found = replaying.promote(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned.name)
        assert not any(rows.total for rows in found.values()), f"a replay of {planned.datasets} changed rows: {found}"
    return lakehouse


@dataclass
class Watch:
    """What readers saw: a window that was complete is never open again, nor other than it was without a revision."""

    seen: dict[Any, Row] = field(default_factory=dict)

    def look(self, lakehouse: Lakehouse) -> None:
        grains = {dataset.name: dataset.outputs[-1].grain for dataset in lakehouse.catalogue.datasets}
        for table, rows in tables_of(lakehouse).items():
            for row in rows:
                if "_state" not in row:
                    break
                key = (table, comparable({name: row[name] for name in grains[table]}))
                before = self.seen.get(key)
                if before is not None:
                    self.require_trusted(table, before, row)
                if row["_state"] != "open":
                    self.seen[key] = row

    def require_trusted(self, table: str, before: Row, row: Row) -> None:
        # A session may grow, and be open until its new end.
        is_same_window = before.get("window_end") == row.get("window_end")
        is_open_again = is_same_window and row["_state"] == "open"
        assert not is_open_again, f"states are trusted: {table}: open again: {row}"
        if comparable(public(before)) != comparable(public(row)):
            is_told = row["_revision"] > before["_revision"] and row["_revised_at"] is not None
            is_trusted = is_told and row["_state"] != "complete"
            assert is_trusted, f"states are trusted: {table}: complete, and another without a revision: {before} {row}"


@contextmanager
def counted(counts: Counts) -> Iterator[None]:
    """Counts refreshes, and those of a scope of one to three rows."""

    def refresh(*args: Any, **options: Any) -> engine.Refreshed:
        done = engine.refresh(*args, **options)
        counts.refreshes += done.cause is not None
        counts.narrow += done.scope_count is not None and 1 <= done.scope_count <= 3
        return done

    with mock.patch.object(run, "refresh", refresh):
        yield


def rows_of(lakehouse: Lakehouse) -> dict[str, "Counter[Any]"]:
    """The rows of every table of silver and gold, bookkeeping aside, each with how often it is there."""
    return {name: Counter(comparable(public(row)) for row in rows) for name, rows in tables_of(lakehouse).items()}


def tables_of(lakehouse: Lakehouse) -> dict[str, list[Row]]:
    """The rows of every declared table, as they are."""
    names = {dataset.name for dataset in lakehouse.catalogue.datasets}
    with connection(lakehouse.lake) as found:
        tables = {}
        for name in sorted(names & set(lakehouse.lake.tables())):
            answer = found.execute(f"SELECT * FROM {name}")
            columns = [column[0] for column in answer.description or []]
            tables[name] = [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]
        return tables


def public(row: Row) -> Row:
    """A row without bookkeeping, its columns in order."""
    return {name: row[name] for name in sorted(row) if not name.startswith("_")}
