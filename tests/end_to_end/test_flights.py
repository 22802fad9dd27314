"""The whole year of flights, from the log to gold, by the command that a user types."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pandas as pd
import pytest

from infra.sources import nycflights
from sluice.log import Log
from sluice.operate.query import query
from sluice.storage.delta import Lake
from tests.commands import sluice, sluice_process
from tests.oracles.flights import flights_with_weather

project = Path(__file__).parents[2]
# At Newark the wind blew at 1,048 miles per hour, says one observation.
implausible = {"flights": 0, "weather": 1, "aircraft": 0}
pytestmark = [pytest.mark.process, pytest.mark.spark]


class Year:
    """A published year and its lake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = Lake(str(folder / "lake"))
        self.log = Log(folder / "log")
        self.published = nycflights.publish(self.log)

    def sluice(self, *arguments: str, by: "Callable[..., CompletedProcess[str]]" = sluice) -> str:
        """Runs a command on the year; returns what it prints."""
        locations = {"SLUICE_LAKE": self.lake.root, "SLUICE_LOG": str(self.log.root)}
        # A million records pay for the second compiler, and the comparisons between two runs take their time.
        options = {"SLUICE_JAVA_OPTIONS": "", "SLUICE_KEEP_SPARK_MINUTES": "3"}
        done = by(*arguments, here=project, environment=locations | options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def versions(self) -> dict[str, int]:
        return {name: commit.version for name in self.lake.tables() if (commit := self.lake.last_commit(name))}


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Year:
    found = Year(tmp_path_factory.mktemp("year"))
    found.sluice("run", "--json", by=sluice_process)
    return found


def test_the_figures_are_those_published(year: Year) -> None:
    sql = """SELECT count(*), count(*) FILTER (departed_at IS NULL), round(avg(departure_delay_minutes), 1),
        count(*) FILTER (is_cancelled), count(DISTINCT flight_id) FROM silver.flights"""
    assert query(year.lake, sql).rows == [(336_776, 8_255, 12.6, 8_255, 336_776)]


def test_each_flight_has_the_weather_that_pandas_gives_it(year: Year) -> None:
    expected = flights_with_weather().set_index("flight_id").sort_index()
    table = query(
        year.lake,
        """SELECT flight_id, weather.temperature_fahrenheit AS temp, weather.wind_speed_mph AS wind_speed,
            weather.visibility_miles AS visib, weather.precipitation_inches AS precip,
            weather.pressure_millibars AS pressure, departure_delay_minutes
        FROM silver.departures""",
    )
    found = pd.DataFrame(table.rows, columns=list(table.columns)).set_index("flight_id").sort_index()
    columns = ["temp", "wind_speed", "visib", "precip", "pressure", "departure_delay_minutes"]
    pd.testing.assert_frame_equal(
        found[columns].astype("float64"), expected[columns].astype("float64"), check_exact=True
    )


def test_gold_adds_up_to_the_flights(year: Year) -> None:
    for table in ("delays_hourly", "delays_by_weather", "carrier_days"):
        sql = f"""SELECT sum(flights), sum(departed), sum(cancelled),
            sum(departure_delay_minutes_avg * departed) / sum(departed) FROM gold.{table}"""
        ((flights, departed, cancelled, delay),) = query(year.lake, sql).rows
        assert (flights, departed, cancelled) == (336_776, 328_521, 8_255)
        assert delay == pytest.approx(12.639, abs=0.001)


def test_the_audit_agrees_with_the_producer(year: Year) -> None:
    fates = {each["topic"]: each for each in json.loads(year.sluice("audit", "--json")) if "topic" in each}
    for topic, published in year.published.items():
        counted = fates[topic]
        assert counted["balanced"]
        assert counted["landed"] == published.records
        assert counted["accepted"] == published.originals - implausible[topic]
        assert counted["duplicate"] == published.redelivered
        assert counted["quarantined"] == published.corrupt + implausible[topic]


def test_what_cannot_be_is_quarantined_under_the_name_of_the_expectation(year: Year) -> None:
    sql = "SELECT dataset, count(*) FROM silver._fates WHERE reason = 'wind_on_earth' GROUP BY ALL"
    assert query(year.lake, sql).rows == [("silver.conditions_changes", 1)]
    assert query(year.lake, "SELECT max(weather.wind_speed_mph) < 60 FROM silver.departures").rows == [(True,)]


def test_drifted_records_are_kept_and_reported(year: Year) -> None:
    sql = (
        "SELECT count(*), min(scheduled_at)::date::text FROM silver.flight_events WHERE _unknown_fields = ['terminal']"
    )
    drifted = int((nycflights.published_year().flights["month"] > 9).sum())
    assert query(year.lake, sql).rows == [(drifted, "2013-10-01")]


def test_a_second_run_commits_nothing(year: Year) -> None:
    before = year.versions()
    assert json.loads(year.sluice("run", "--json", by=sluice_process)) == []
    assert year.versions() == before


late_observation = {
    "origin": "JFK",
    "observed_at": "2013-06-03T11:30:00Z",
    "wind_speed_mph": 41.0,
    "visibility_miles": 0.5,
}
touched = """SELECT flight_id
    FROM silver.departures WHERE origin = 'JFK' AND scheduled_at >= '2013-06-03T11:30:00Z' AND scheduled_at < (
        SELECT min(valid_from) FROM silver.conditions WHERE origin = 'JFK' AND valid_from > '2013-06-03T11:30:00Z')"""


def test_one_late_observation_reaches_exactly_what_depends_on_it(year: Year, tmp_path: Path) -> None:
    flights = [row[0] for row in query(year.lake, touched).rows]
    figures = "SELECT visibility, wind, flights FROM gold.delays_by_weather"
    before = {(visibility, wind): count for visibility, wind, count in query(year.lake, figures).rows}
    file = tmp_path / "late.jsonl"
    file.write_text(json.dumps(late_observation))
    appended = json.loads(year.sluice("log", "append", "weather", str(file), "--key", "JFK"))
    ((partition, next_offset),) = appended.items()
    done = {event["name"]: event["rows"] for event in json.loads(year.sluice("run", "--json", by=sluice_process))}

    assert len(flights) > 5
    assert done["silver.conditions"] == {"inserted": 1, "updated": 1, "deleted": 0}
    assert done["silver.departures"] == {"inserted": 0, "updated": len(flights), "deleted": 0}
    after = {(visibility, wind): count for visibility, wind, count in query(year.lake, figures).rows}
    moved = {cell for cell in after if after[cell] != before.get(cell)}
    assert done["gold.delays_by_weather"] == {"inserted": 0, "updated": len(moved), "deleted": 0}
    assert after["1 below 1 mile", "3 20 mph and more"] == before["1 below 1 mile", "3 20 mph and more"] + len(flights)
    # They say nothing of the weather.
    assert done["gold.delays_hourly"] == done["gold.carrier_days"] == {"inserted": 0, "updated": 0, "deleted": 0}

    cell = ("visibility=1 below 1 mile", "wind=3 20 mph and more")
    explained = json.loads(year.sluice("explain", "gold.delays_by_weather", *cell, "--json"))
    (origin,) = explained[-1]["origins"]
    assert origin["records"] == [f"weather/{partition}/{next_offset - 1}"]
    assert origin["path"][0] == "gold.delays_by_weather"
    year.sluice("audit")
