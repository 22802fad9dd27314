"""Gold by every kind of window: whatever the order and the batches, each cell is what its rows say."""

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine.backfill import BackfillRange
from sluice.log import Record
from sluice.model.datasets import Dataset
from sluice.shapes import windows
from sluice.windows import calendar_window, session_window, sliding_window, window
from tests.kit import Lakehouse, at, day_one, text
from tests.oracles import windows as oracle
from tests.oracles.windows import Visit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

new_york = "America/New_York"
hour_micros = 3_600_000_000
visits = silver.events(
    "visits",
    source=bronze.topic("visits"),
    schema="visit_id string, user string, at timestamp, amount int",
    keys=["visit_id"],
    event_time="at",
    future_tolerance="1000 days",
)


def by(name: str, each: windows.Window) -> Dataset:
    measures = {"visits": "count(*)", "amount": "sum(amount)", "amount_max": "max(amount)"}
    return gold.aggregate(name, source=visits, group_by=["user", each], measures=measures)


kinds = {
    "tumbling": (by("tumbling", window("at", "2 hours")), oracle.tumbling(2.0)),
    "hopping": (by("hopping", window("at", "2 hours", every="30 minutes")), oracle.hopping(2.0, 0.5)),
    "sliding": (by("sliding", sliding_window("at", "3 hours")), oracle.sliding(3.0)),
    "sessions": (by("sessions", session_window("at", gap="90 minutes")), oracle.sessions(1.5)),
    "days": (
        by("days", calendar_window("at", "day", time_zone=new_york)),
        oracle.calendar("day", new_york, day_one),
    ),
    "months": (
        by("months", calendar_window("at", "month", time_zone=new_york)),
        oracle.calendar("month", new_york, day_one),
    ),
}
# The clocks of New York go forward on 8 March and back on 1 November of the year that begins on day one.
hours = [*[24 * 66 + half / 2 for half in range(60)], *[24 * 303 + half / 2 for half in range(12, 90)]]


def batches(seed: int, users: int) -> list[list[Visit]]:
    """Random visits of some users, with conflicts, in three batches; the last has few, so that little is touched."""
    chance = random.Random(seed)
    rows = []
    for user in range(users):
        near = chance.randint(0, len(hours) - 20)
        for _ in range(chance.randint(0, 9)):
            hour = hours[near + chance.randint(0, 19)]
            rows.append(Visit(f"{user}-{chance.randint(0, 8)}", str(user), hour, chance.randint(1, 9)))
    chance.shuffle(rows)
    first, second = int(len(rows) * 0.6), int(len(rows) * 0.92)
    return [rows[:first], rows[first:second], rows[second:]]


def lived_through(lakehouse: Lakehouse, arriving: list[list[Visit]], seed: int) -> list[Visit]:
    """Runs after each batch; the batches arrive in the order of time or against it. Gives the visits as in the log."""
    chance = random.Random(seed)
    moments = list(range(sum(len(batch) for batch in arriving)))
    chance.shuffle(moments)
    ordered: dict[int, Visit] = {}
    for batch in arriving:
        records = []
        for visit in batch:
            moment = moments.pop()
            ordered[moment] = visit
            value = {"visit_id": visit.visit_id, "user": visit.user, "at": text(visit.hour), "amount": visit.amount}
            records.append(Record(json.dumps(value).encode(), timestamp=at(moment / 3600)))
        lakehouse.log.append("visits", records)
        if batch is arriving[-1]:
            recompute_ahead(lakehouse, chance)
        lakehouse.run()
    return [ordered[moment] for moment in sorted(ordered)]


def recompute_ahead(lakehouse: Lakehouse, chance: random.Random) -> None:
    """Recomputes a range of gold while it lacks records that silver has already, as it does after a kill."""
    Lakehouse(lakehouse.spark, lakehouse.folder).declare(visits).run()
    since = chance.choice(hours)
    part = BackfillRange(since=at(since), until=at(since + chance.choice([2, 24, 24 * 300])))
    lakehouse.runner().recompute_range([dataset for dataset, _ in kinds.values()], part)


def cells(lakehouse: Lakehouse, dataset: Dataset) -> set[Any]:
    columns = ["user", "window_start", "window_end", "visits", "amount", "amount_max"]
    found = lakehouse.rows(dataset.name, *columns)
    assert len(found) == len(set(found))
    return set(found)


@settings(
    max_examples=1,
    deadline=None,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_kind_of_window_follows_what_arrives(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("windows")).declare(
        *[dataset for dataset, _ in kinds.values()]
    )
    seen = oracle.first_visits(lived_through(lakehouse, batches(seed, users=200), seed))
    for dataset, spans in kinds.values():
        assert cells(lakehouse, dataset) == oracle.figures(seen, spans), dataset.name
    assert lakehouse.run() == {}
    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}


@pytest.mark.parametrize(
    ("length", "every"),
    [("1 hour", None), ("2 weeks", None), ("2 hours", "30 minutes"), ("3 hours", "2 hours"), ("10 days", "3 days")],
)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_fixed_windows_are_those_of_spark(spark: "SparkSession", length: str, every: str | None, kind: str) -> None:
    """Also before 1970, at either edge of a window, and without a time."""
    chance = random.Random(length)
    edges = [chance.randrange(-400, 400) * hour_micros + beside for _ in range(40) for beside in (-1, 0, 1)]
    times = [None, *edges, *[chance.randrange(-(10**16), 10**17) for _ in range(80)]]
    df = spark.createDataFrame([(each,) for each in times], "micros bigint").select(
        F.expr(f"CAST(timestamp_micros(micros) AS {kind}) AS `at that time`")
    )
    theirs = df.select("*", F.window("at that time", length, every or length).alias("each"))
    expected = theirs.selectExpr("`at that time`", f"each.start AS {windows.start}", f"each.end AS {windows.end}")
    found = window("at that time", length, every=every).place(df, [])
    assert found.dtypes == expected.dtypes
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
