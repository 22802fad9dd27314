"""Backfill ranges: whatever was damaged, ranges in any order give the rows of a rebuild, each range its own at once."""

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from zoneinfo import ZoneInfo

import pytest

from sluice import gold
from sluice.engine import touched
from sluice.engine.backfill import BackfillRange
from sluice.log import Record
from sluice.model import truncation
from sluice.model.datasets import Dataset
from tests.damage import computed_wrong
from tests.kit import Lakehouse, Row, at, text
from tests.laws.test_windows import visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

new_york = ZoneInfo("America/New_York")
local = "from_utc_timestamp(at, 'America/New_York')"


def by(name: str, *groups: str) -> Dataset:
    measures = {"visits": "count(*)", "amount": "sum(amount)"}
    return gold.aggregate(name, source=visits, group_by=["user", *groups], measures=measures)


# Each with the length of its groups and their time zone.
kinds = {
    "days": (by("days", "to_date(at) AS g"), timedelta(days=1), UTC),
    "local_days": (by("local_days", f"CAST({local} AS date) AS g"), timedelta(days=1), new_york),
    "hours": (
        by("hours", "date_trunc('month', at) AS month", "date_trunc('HOUR', `at`) AS g"),
        timedelta(hours=1),
        UTC,
    ),
    "local_minutes": (by("local_minutes", f"date_trunc('minute', {local}) AS g"), timedelta(minutes=1), new_york),
}
# The clocks of New York go forward on 8 March and back on 1 November of the year that begins on day one.
put_back = [24 * 304 + 5 + sixth / 6 for sixth in range(12)]
times = [*[24 * 66 + sixth / 6 for sixth in range(100)], *[24 * 303 + sixth / 6 for sixth in range(250)], *put_back * 5]


def world(lakehouse: Lakehouse, chance: random.Random, users: int) -> None:
    """Random visits, and the tables of them."""
    records = []
    for n in range(users * 12):
        visit = {"visit_id": str(n), "user": f"u{n % users}", "at": text(chance.choice(times)), "amount": n}
        records.append(Record(json.dumps(visit).encode(), timestamp=at(n / 3600)))
    lakehouse.log.append("visits", records)
    lakehouse.declare(*[dataset for dataset, _, _ in kinds.values()]).run()


def damage_some(lakehouse: Lakehouse, chance: random.Random, table: str, users: int) -> None:
    """Of each table some rows are wrong, some are missing, and some are of groups that no visit is in."""
    names = [f"u{n}" for n in range(users)]
    chance.shuffle(names)
    wrong, missing, vanished = (", ".join(f"'{each}'" for each in names[n::4]) for n in range(3))
    computed_wrong(lakehouse.lake, table, f"UPDATE SET amount = -1 WHERE user IN ({wrong})")
    computed_wrong(lakehouse.lake, table, f"DELETE WHERE user IN ({missing})")
    computed_wrong(lakehouse.lake, table, f"UPDATE SET user = 'nobody ' || user WHERE user IN ({vanished})")


def cuts(chance: random.Random) -> Iterator[tuple[datetime | None, datetime | None]]:
    """Ranges that are all of time, cut anywhere, also between two clocks that show the same."""
    ends = sorted({at(chance.choice(times)) + timedelta(seconds=chance.randrange(3600)) for _ in range(3)})
    back = at(put_back[0]) + timedelta(minutes=chance.randint(40, 59))
    yield from pairwise([None, *sorted([*ends, back, back + timedelta(minutes=30)]), None])


def is_in(row: Row, length: timedelta, zone: Any, since: datetime | None, until: datetime | None) -> bool:
    """Whether the group that ends a row can hold a time of a range; a clock that is put back shows it twice."""
    group = row[-1] if isinstance(row[-1], date) else at(row[-1]).replace(tzinfo=None)
    start = group if isinstance(group, datetime) else datetime.combine(group, time())
    for fold in (0, 1):
        first = start.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        last = (start + length).replace(tzinfo=zone).astimezone(UTC) if length.days else first + length
        if (until is None or first < until) and (since is None or last > since):
            return True
    return False


def times_in(since: datetime | None, until: datetime | None) -> int:
    return sum((since is None or since <= at(each)) and (until is None or at(each) < until) for each in times)


def rows(lakehouse: Lakehouse, name: str) -> list[Row]:
    return lakehouse.rows(f"gold.{name}", "user", "visits", "amount", "g")


def wrong_after(lakehouse: Lakehouse, seed: int, names: Sequence[str], users: int = 24) -> list[str]:
    """Wrong rows in a range after it was backfilled, and the tables that are wrong when all of time was."""
    chance = random.Random(seed)
    world(lakehouse, chance, users)
    right = {name: rows(lakehouse, name) for name in names}
    for name in names:
        damage_some(lakehouse, chance, f"gold.{name}", users)
        assert rows(lakehouse, name) != right[name]
    ranges = list(cuts(chance))
    chance.shuffle(ranges)
    found = []
    in_pieces = max(ranges, key=lambda each: times_in(*each))
    for since, until in ranges:
        datasets = [kinds[name][0] for name in names]
        runner = lakehouse.runner()
        # As a continuous run does it.
        between = runner.turn if (since, until) == in_pieces else None
        with mock.patch.object(touched, "piece_rows_max", users * 4):
            runner.recompute_range(datasets, BackfillRange(since=since, until=until), between)
        for name in names:
            _, length, zone = kinds[name]
            in_range = [row for row in rows(lakehouse, name) if is_in(row, length, zone, since, until)]
            found += [f"{name} {row} from {since} until {until}" for row in in_range if row not in right[name]]
    return found + [name for name in names if rows(lakehouse, name) != right[name]]


def test_ranges_in_any_order_give_what_a_rebuild_gives(spark: "SparkSession", tmp_path: Path, seed: int) -> None:
    lakehouse = Lakehouse(spark, tmp_path)
    assert wrong_after(lakehouse, seed, list(kinds)) == []
    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}


def no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks are never put back."""
    monkeypatch.setattr(truncation, "put_back", timedelta())


def whole_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the groups that inputs are in: those that vanished are not looked for."""
    monkeypatch.setattr("sluice.engine.touched.own_rows_in_range", lambda *_: None)


def but_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece of a range is forgotten."""
    whole = touched.pieces
    monkeypatch.setattr(touched, "pieces", lambda *given: whole(*given)[1:] or whole(*given))


@pytest.mark.parametrize(
    ("mutant", "name"), [(no_margin, "local_minutes"), (whole_range, "days"), (but_one_piece, "days")]
)
def test_the_law_notices(
    mutant: Any, name: str, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert wrong_after(Lakehouse(spark, tmp_path), 1, [name]) != []
