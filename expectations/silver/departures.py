"""What must be true of departures: nearly all are seen against their weather, and most against their aircraft."""

from sluice.expect import built_in, expect, suite

expectations = suite(
    "silver.departures",
    built_in("weather_matched", mostly=0.99, severity="warn"),
    # The registry lacks most aircraft of two carriers.
    built_in("aircraft_matched", mostly=0.8, severity="warn"),
    built_in("aircraft_known", mostly=0.8, severity="warn"),
    expect(
        "column_pair_values_a_to_be_greater_than_b",
        column_A="arrived_at",
        column_B="departed_at",
        mostly=0.95,
        severity="warn",
        name="arrives_after_it_departs",
    ),
)
