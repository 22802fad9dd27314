"""Gold: delays by airport and hour, by weather, and by carrier and day."""

from pipelines.silver.departures import departures
from sluice import gold
from sluice.windows import window

# An average whose sum and count are measures too follows a change without the other rows of its group.
delay_measures = {
    "flights": "count(*)",
    "departed": "count(departed_at)",
    "cancelled": "count_if(is_cancelled)",
    "departure_delay_minutes_count": "count(departure_delay_minutes)",
    "departure_delay_minutes_sum": "sum(departure_delay_minutes)",
    "departure_delay_minutes_avg": "avg(departure_delay_minutes)",
    "departure_delay_minutes_max": "max(departure_delay_minutes)",
}

delays_hourly = gold.aggregate(
    "delays_hourly",
    source=departures,
    group_by=["origin", window("scheduled_at", "1 hour")],
    measures=delay_measures,
    meaning="Delays by airport and hour of scheduled departure (UTC).",
)

delays_by_weather = gold.aggregate(
    "delays_by_weather",
    source=departures,
    group_by=[
        """CASE
            WHEN weather IS NULL THEN 'unknown'
            WHEN weather.visibility_miles < 1 THEN '1 below 1 mile'
            WHEN weather.visibility_miles < 3 THEN '2 from 1 to 3 miles'
            WHEN weather.visibility_miles < 10 THEN '3 from 3 to 10 miles'
            ELSE '4 10 miles and more'
        END AS visibility""",
        """CASE
            WHEN weather.wind_speed_mph IS NULL THEN 'unknown'
            WHEN weather.wind_speed_mph < 10 THEN '1 below 10 mph'
            WHEN weather.wind_speed_mph < 20 THEN '2 from 10 to 20 mph'
            ELSE '3 20 mph and more'
        END AS wind""",
    ],
    measures=delay_measures,
    meaning="Delays by visibility and wind at the scheduled departure.",
)

carrier_days = gold.aggregate(
    "carrier_days",
    source=departures,
    group_by=["carrier", "to_date(from_utc_timestamp(scheduled_at, 'America/New_York')) AS day"],
    measures={
        **delay_measures,
        "arrival_delay_minutes_count": "count(arrival_delay_minutes)",
        "arrival_delay_minutes_sum": "sum(arrival_delay_minutes)",
        "arrival_delay_minutes_avg": "avg(arrival_delay_minutes)",
        "distance_miles": "sum(distance_miles)",
    },
    meaning="Flights, delays and miles by carrier and day (New York).",
)
