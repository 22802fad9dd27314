"""What a record must say to be something that happened to a flight."""

from sluice.expect import expect, suite

expectations = suite(
    "silver.flight_events",
    expect(
        "column_values_to_be_in_set",
        column="type",
        value_set=["scheduled", "departed", "arrived", "cancelled"],
        severity="quarantine",
        name="known_type",
    ),
    expect("column_values_to_match_regex", column="origin", regex="^[A-Z]{3}$", severity="quarantine"),
    expect(
        "column_values_to_be_between",
        column="departure_delay_minutes",
        min_value=-180,
        max_value=2880,
        severity="quarantine",
        name="departure_within_two_days",
    ),
    expect(
        "column_values_to_be_between",
        column="distance_miles",
        min_value=1,
        max_value=12_450,
        severity="quarantine",
        name="distance_on_earth",
    ),
)
