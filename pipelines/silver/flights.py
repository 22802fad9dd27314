"""Flights, assembled from their events."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipelines.bronze import flights as flights_topic
from sluice import silver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

flight_events = silver.events(
    "flight_events",
    source=flights_topic,
    schema="""
        flight_id string, type string, occurred_at timestamp, scheduled_at timestamp,
        carrier string, flight_number int, tail_number string, origin string, destination string, distance_miles int,
        departure_delay_minutes int, arrival_delay_minutes int, air_time_minutes int
    """,
    keys=["flight_id", "type"],
    event_time="occurred_at",
    meaning="Each event of a flight, once.",
    comments={
        "type": "scheduled, departed, arrived or cancelled.",
        "occurred_at": "When it happened; of a schedule, when it was published.",
        "carrier": "The IATA code of the airline.",
        "tail_number": "The registration of the aircraft.",
        "origin": "The IATA code of the airport of departure.",
        "destination": "The IATA code of the airport of arrival.",
        "departure_delay_minutes": "From the scheduled to the actual departure; negative: it left early.",
        "arrival_delay_minutes": "From the scheduled to the actual arrival; negative: it arrived early.",
        "air_time_minutes": "From take-off to landing.",
    },
)


def whole_flights(events: "DataFrame") -> "DataFrame":
    """Joins the schedule of each flight to its outcome; either side may arrive first, or alone."""
    scheduled = events.where("type = 'scheduled'").select(
        "flight_id",
        "scheduled_at",
        "carrier",
        "flight_number",
        "tail_number",
        "origin",
        "destination",
        "distance_miles",
    )
    happened = (
        events.where("type <> 'scheduled'")
        .groupBy("flight_id")
        .agg(
            F.max("scheduled_at").alias("_scheduled_at"),
            F.max(F.when(F.col("type") == "departed", F.col("occurred_at"))).alias("departed_at"),
            F.max("departure_delay_minutes").alias("departure_delay_minutes"),
            F.max(F.when(F.col("type") == "arrived", F.col("occurred_at"))).alias("arrived_at"),
            F.max("arrival_delay_minutes").alias("arrival_delay_minutes"),
            F.max("air_time_minutes").alias("air_time_minutes"),
            F.coalesce(F.bool_or(F.col("type") == "cancelled"), F.lit(False)).alias("_is_cancelled"),
        )
    )
    return (
        scheduled.join(happened, "flight_id", "full_outer")
        .withColumn("scheduled_at", F.coalesce("scheduled_at", "_scheduled_at"))
        .withColumn("is_cancelled", F.coalesce("_is_cancelled", F.lit(False)))
        .drop("_scheduled_at", "_is_cancelled")
    )


flights = silver.join(
    "flights",
    inputs={"events": flight_events},
    keys=["flight_id"],
    shape=whole_flights,
    event_time="scheduled_at",
    meaning="Each flight with its schedule and its outcome.",
)
