"""States of windows under any order of arrival: a reader can trust `complete`, and a revision is never silent.

Records arrive one by one, and every scope is recomputed by itself. After each step the tables are compared with what
was public before it: windows as they are declared, sessions, and a table made from windows.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.model.completeness import Completeness, EvaluationContext
from sluice.windows import session_window, window
from tests.kit import Lakehouse, Row, at, day_one, frame, rows_of, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

steps = 12
before_hour, now_hour = 5.0, 8.0
visits = silver.events(
    "visits",
    source=bronze.topic("visits"),
    schema="id string, user string, at timestamp, amount int",
    keys=["id"],
    event_time="at",
    future_tolerance="1000 days",
)
measures = {"amount": "sum(amount)"}
tumbling = gold.aggregate("tumbling", source=visits, group_by=["user", window("at", "2 hours")], measures=measures)
sessions = gold.aggregate(
    "sessions", source=visits, group_by=["user", session_window("at", gap="1 hour")], measures=measures
)
totals = gold.aggregate(
    "totals", source=tumbling, group_by=["window_start", "window_end"], measures={"amount": "sum(amount)"}
)
grains = {
    "gold.tumbling": ("user", "window_start"),
    "gold.sessions": ("user", "window_start"),
    "gold.totals": ("window_start",),
}


@dataclass(frozen=True)
class Shown:
    """A row as readers see it."""

    group: Row
    start: float
    end: float
    amount: int
    state: str
    revision: int

    @property
    def says(self) -> Row:
        return (self.group, self.start, self.end, self.amount)


def shown(lakehouse: Lakehouse, table: str) -> list[Shown]:
    groups = [name for name in grains[table] if name != "window_start"]
    found = lakehouse.rows(table, *groups, "window_start", "window_end", "amount", "_state", "_revision")
    return [Shown(row[: len(groups)], *row[len(groups) :]) for row in found]


def broken(
    before: list[Shown], after: list[Shown], watermark: float, *, merge: bool, include_end: bool = False
) -> list[str]:
    """What of the promise a step has broken."""
    found = []
    for row in after:
        if (row.state == "open") != (row.end > watermark or (include_end and row.end == watermark)):
            found.append(f"{row} is {row.state} at {watermark}")
        if (row.state == "complete" and row.revision) or (row.state == "revised" and not row.revision):
            found.append(f"{row} has a revision that its state does not tell")
        if row.says in {each.says for each in before}:
            continue
        replaced = [
            each
            for each in before
            if each.group == row.group
            and each.state != "open"
            and (each.start < row.end and row.start < each.end if merge else each.start == row.start)
        ]
        if any(row.revision <= each.revision for each in replaced):
            found.append(f"{row} takes the place of {replaced}")
    return found


def arrivals(seed: int) -> list[dict[str, Any]]:
    """Records of a few users in any order; some take the place of others, some are of a far later time."""
    chance = random.Random(seed)
    records: list[dict[str, Any]] = [
        {"id": f"{number % 40}", "user": chance.choice("abc"), "hour": chance.randint(0, 40) / 2, "amount": number}
        for number in range(40 + steps)
    ]
    for number, record in enumerate(records):
        record["log_hour"] = 30 + number / 60
    for number, record in enumerate(records[40:]):
        # Time goes on, or something is late.
        record["hour"] = chance.choice([record["hour"], 20 + number / 2, 20 + number / 2 + 3])
        # The record of a key that was first appended wins.
        record["log_hour"] = chance.choice([record["log_hour"], 29.0])
    return records


def publish(lakehouse: Lakehouse, record: Mapping[str, Any]) -> None:
    value = {name: record[name] for name in ("id", "user", "amount")} | {"at": text(record["hour"])}
    lakehouse.publish("visits", value, key="one partition", hours=record["log_hour"])


def test_no_step_breaks_what_was_public(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    lakehouse.declare(tumbling, sessions, totals)
    records = arrivals(seed)
    for record in records[:40]:
        publish(lakehouse, record)
    lakehouse.run()
    chance, arriving = random.Random(seed), records[40:]
    while arriving:
        # Several at once: one may let a session grow, and another complete it.
        batch = [arriving.pop(0) for _ in range(min(len(arriving), chance.choice([1, 4])))]
        before = {table: shown(lakehouse, table) for table in grains}
        for record in batch:
            publish(lakehouse, record)
        lakehouse.run()
        commit = lakehouse.lake.last_commit("silver.visits")
        assert commit is not None
        assert commit.entry.watermark is not None
        watermark = (commit.entry.watermark.astimezone(UTC) - day_one).total_seconds() / 3600
        for table in grains:
            is_sessions = table == "gold.sessions"
            found = broken(
                before[table], shown(lakehouse, table), watermark, merge=is_sessions, include_end=is_sessions
            )
            assert not found, (seed, batch)
    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}, seed


def random_sessions(chance: random.Random, group: str) -> list[tuple[str, float, float, int]]:
    """Sessions of a group, which do not overlap."""
    found, hour = [], 0.0
    while hour < 12:
        hour += chance.randint(0, 4) / 2
        length = chance.randint(1, 6) / 2
        found.append((group, hour, hour + length, chance.randint(1, 2)))
        hour += length
    return found


def changed_groups(chance: random.Random) -> tuple[list[Row], list[Row]]:
    """The rows of many groups before and after a change, with any revisions."""
    own: list[Row] = []
    new: list[Row] = []
    for number in range(1500):
        was = [row for row in random_sessions(chance, str(number)) if chance.random() < 0.8]
        is_cut = chance.random() < 0.7
        new += [row for row in was if chance.random() < 0.5] if is_cut else random_sessions(chance, str(number))
        for row in was:
            revision = chance.randint(0, 3)
            state = "open" if row[2] > before_hour else "revised" if revision else "complete"
            own.append((*row, state, revision, 1.0 if revision else None))
    return own, new


def findings(
    spark: "SparkSession",
    own: list[Row],
    new: list[Row],
    judge: Completeness,
    context: EvaluationContext,
    *,
    merge: bool,
) -> list[str]:
    """What the rule breaks of the promise."""
    schema = "user string, window_start hours, window_end hours, amount int"
    states = ", _state string, _revision int, _revised_at hours"
    judged = judge.judged(frame(spark, schema, new), frame(spark, schema + states, own), context)
    columns = ("user", "window_start", "window_end", "amount", "_state", "_revision", "_revised_at")
    rows = rows_of(judged, *columns)
    assert sorted(row[:4] for row in rows) == sorted(new)
    was: dict[str, list[Shown]] = {}
    for row in own:
        was.setdefault(row[0], []).append(Shown((row[0],), *row[1:6]))
    kept = {row[:4]: row[5:] for row in own}
    found = []
    for row in rows:
        here = Shown((row[0],), *row[1:6])
        found += broken(was.get(row[0], []), [here], now_hour, merge=merge)
        if row[:4] in kept and row[5:] != kept[row[:4]]:
            found.append(f"{here} is what it was, and lost its revision")
        if row[:4] not in kept and here.end <= before_hour and (here.state, row[6]) != ("revised", 30.0):
            found.append(f"{here} is new in a window that was complete")
    return found


@pytest.mark.parametrize("merge", [True, False])
def test_thousands_of_groups_judged_at_once(spark: "SparkSession", merge: bool, seed: int) -> None:
    """The same promise of the rule itself, for any rows before and after."""
    own, new = changed_groups(random.Random(seed))
    judge = Completeness(("user", "window_start"), lambda df: df, merge)
    context = EvaluationContext.of(at(before_hour), at(now_hour), at(30))
    assert not findings(spark, own, new, judge, context, merge=merge), seed


def test_mutants_of_the_rule_are_found(spark: "SparkSession") -> None:
    own, new = changed_groups(random.Random(7))
    by_start, by_span = [Completeness(("user", "window_start"), lambda df: df, merge) for merge in (False, True)]
    context = EvaluationContext.of(at(before_hour), at(now_hour), at(30))
    back = EvaluationContext(at(before_hour), at(3), at(30))
    unaware = EvaluationContext(None, at(now_hour), at(30))
    assert findings(spark, own, new, by_start, context, merge=True), "sessions told apart by their start alone"
    assert findings(spark, own, new, by_span, back, merge=True), "a watermark that goes back"
    assert findings(spark, own, new, by_span, unaware, merge=True), "nothing known of what was complete"
