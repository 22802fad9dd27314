"""What pandas says of the flights: each with the last observation at its airport before its scheduled departure."""

import pandas as pd

from infra.sources.nycflights import published_year


def flights_with_weather() -> pd.DataFrame:
    """flight_id, and the observation's values, null where they were not measured."""
    year = published_year()
    flights = year.flights
    hour = pd.to_datetime(flights["time_hour"])
    # Of each hour once: there are fifty flights for each, and Python writes dates slowly.
    names = {each: each.strftime("%Y%m%dT%HZ-") for each in hour.unique()}
    facts = pd.DataFrame(
        {
            "flight_id": hour.map(names) + flights["carrier"] + "-" + flights["flight"].astype(str),
            "origin": flights["origin"],
            "scheduled_at": hour + pd.to_timedelta(flights["minute"], unit="min"),
            "departure_delay_minutes": flights["dep_delay"],
        }
    ).sort_values("scheduled_at")
    plausible = year.weather[~(year.weather["wind_speed"] > 250)]
    weather = plausible.assign(observed_at=pd.to_datetime(plausible["time_hour"]))
    observed = weather[["origin", "observed_at", "temp", "wind_speed", "visib", "precip", "pressure"]]
    return pd.merge_asof(
        facts, observed.sort_values("observed_at"), left_on="scheduled_at", right_on="observed_at", by="origin"
    )
