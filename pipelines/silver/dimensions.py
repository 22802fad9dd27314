"""The dimensions of a flight: the weather at its airport and the aircraft that flew it, with their histories."""

from pipelines.bronze import aircraft as aircraft_topic
from pipelines.bronze import weather as weather_topic
from sluice import silver

conditions = silver.history(
    "conditions",
    source=weather_topic,
    schema="""
        origin string, observed_at timestamp, temperature_fahrenheit double, dew_point_fahrenheit double,
        relative_humidity_percent double, wind_direction_degrees double, wind_speed_mph double, wind_gust_mph double,
        precipitation_inches double, pressure_millibars double, visibility_miles double
    """,
    keys=["origin"],
    sequence_by="observed_at",
    meaning="The weather at each airport, from each observation until the next different one.",
)

aircraft = silver.history(
    "aircraft",
    source=aircraft_topic,
    schema="""
        tail_number string, effective_at timestamp, year_built int, type string, manufacturer string, model string,
        engines int, seats int, speed_mph int, engine string
    """,
    keys=["tail_number"],
    sequence_by="effective_at",
    meaning="The registration history of each aircraft.",
)
