"""Departures: each flight with the weather and the aircraft as of its scheduled departure."""

from pipelines.silver.dimensions import aircraft, conditions
from pipelines.silver.flights import flights
from sluice import silver

departures = silver.as_of(
    "departures",
    facts=flights,
    event_time="scheduled_at",
    dimensions={"weather": conditions, "aircraft": aircraft},
    meaning="Each flight with the weather and the aircraft that were valid at its scheduled departure.",
)
