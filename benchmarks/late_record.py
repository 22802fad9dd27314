"""One late observation of the weather through a year of flights, in a driver that is warm: where the time goes.

Run by `python -m benchmarks.late_record`. The driver is that of a continuous run. Each observation lies between two
that are known, so a half hour of departures and the cells of gold that they feed follow it.
"""

import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from infra.sources import nycflights
from sluice.cli.printing import print_table
from sluice.engine import catalogue
from sluice.engine.runner import Event, Runner
from sluice.log import Log, Record
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

project = Path(__file__).parents[1]


def observation(number: int) -> Record:
    """A gale at JFK, half an hour after the full hour, on a separate day for each."""
    observed_at = datetime(2013, 1, 15, 13, 30, tzinfo=UTC) + timedelta(days=7 * number)
    value = {
        "origin": "JFK",
        "observed_at": observed_at.isoformat().replace("+00:00", "Z"),
        "wind_speed_mph": 50.0 + number,
        "visibility_miles": 0.5,
    }
    return Record(orjson.dumps(value), key="JFK", timestamp=datetime(2014, 1, 2, tzinfo=UTC))


@dataclass
class Statement:
    """One Spark statement: what it was for, how long it took, and how many jobs and stages it ran."""

    text: str
    seconds: float
    jobs: int


def statements(spark: "SparkSession", after: int) -> list[Statement]:
    """The statements that Spark has run since the one of a number."""
    store = spark._jsparkSession.sharedState().statusStore()
    listed = store.executionsList()
    found = []
    for index in range(listed.size()):
        each = listed.apply(index)
        if each.executionId() > after and each.completionTime().isDefined():
            seconds = (each.completionTime().get().getTime() - each.submissionTime()) / 1000
            found.append(Statement(" ".join(each.description().split())[:70], seconds, each.jobs().size()))
    return found


def newest_statement(spark: "SparkSession") -> int:
    store = spark._jsparkSession.sharedState().statusStore()
    listed = store.executionsList()
    return max((listed.apply(index).executionId() for index in range(listed.size())), default=-1)


def main(
    observations: Annotated[int, typer.Option(help="How many, one after the other.")] = 8,
    months: Annotated[int, typer.Option(help="How much of the year.")] = 12,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, lake = Log(Path(folder, "log")), Lake(str(Path(folder, "lake")))
        nycflights.publish(log, months=months)
        with spark_session(Settings()) as spark:
            runner = Runner(spark, lake, log, catalogue.load(project), batch_records_max=5_000_000)
            runner.until_caught_up()
            took: list[tuple[float, list[Event], list[Statement]]] = []
            for number in range(observations):
                log.append("weather", [observation(number)])
                newest, start = newest_statement(spark), time.monotonic()
                done = [event for event in runner.one_pass() if event.is_effective]
                took.append((time.monotonic() - start, done, statements(spark, newest)))
    print_table(["observation", "seconds until gold"], [[number, each[0]] for number, each in enumerate(took, start=1)])
    _, events, ran = took[-1]
    print_table(
        ["dataset", "seconds", "rows changed"], [[event.name, event.seconds, event.rows.total] for event in events]
    )
    print_table(["statement", "seconds", "jobs"], [[each.text, each.seconds, each.jobs] for each in ran])


if __name__ == "__main__":
    typer.run(main)
