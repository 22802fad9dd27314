"""Which aggregates have days: those grouped by a unit of their source's event time."""

import pytest

from sluice import bronze, gold, silver
from sluice.engine.catalogue import Catalogue
from sluice.model.truncation import epoch, finest
from sluice.operate.describe import describe
from sluice.windows import window
from tests.kit import at

facts = silver.events(
    "facts",
    source=bronze.topic("facts"),
    schema="id string, at timestamp, sent timestamp",
    keys=["id"],
    event_time="at",
)
groups = [
    ("to_date(at) AS g", True),
    ("DATE(`AT`) AS g", True),
    ("CAST(from_utc_timestamp(at, 'Europe/Oslo') AS date) AS g", True),
    ("date_trunc('hour', at) AS g", True),
    (window("at", "1 hour"), True),
    # Another time than the event time, and what only looks like a unit of time.
    ("to_date(sent) AS g", False),
    ("date_format(at, 'yyyy-MM-dd') AS g", False),
    ("hour(at) AS g", False),
    ("date_add(to_date(at), 1) AS g", False),
]


@pytest.mark.parametrize(("group", "has_days"), groups)
def test_an_aggregate_by_a_unit_of_event_time_has_days(group: str, has_days: bool) -> None:
    found = gold.aggregate("by_time", source=facts, group_by=["id", group], measures={"facts": "count(*)"})
    assert found.has_days is has_days
    (described,) = describe(Catalogue((found,)))
    assert described.has_days is has_days


def test_the_finest_unit_of_event_time_tells_the_groups_of_a_range() -> None:
    found = finest({"month": "date_trunc('month', at)", "day": "to_date(at)", "sent": "date_trunc('hour', sent)"}, "at")
    assert found is not None
    name, truncation = found
    assert name == "day"
    start, end = (int((each - epoch).total_seconds()) * 1_000_000 for each in (at(0), at(24)))
    assert truncation.holding(name, at(0), None) == f"day >= to_date(timestamp_micros({start}))"
    assert truncation.holding(name, None, at(24)) == f"day <= to_date(timestamp_micros({end - 1}))"
