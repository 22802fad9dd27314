"""What an observation must say to be weather."""

from sluice.expect import expect, suite

expectations = suite(
    "silver.conditions_changes",
    expect(
        "column_values_to_be_between",
        column="temperature_fahrenheit",
        min_value=-60,
        max_value=135,
        severity="quarantine",
        name="temperature_on_earth",
    ),
    expect(
        "column_values_to_be_between",
        column="relative_humidity_percent",
        min_value=0,
        max_value=100,
        severity="quarantine",
    ),
    # An observation at Newark on 12 February 2013 says 1,048 miles per hour.
    expect(
        "column_values_to_be_between",
        column="wind_speed_mph",
        min_value=0,
        max_value=250,
        severity="quarantine",
        name="wind_on_earth",
    ),
    expect(
        "column_values_to_be_between",
        column="visibility_miles",
        min_value=0,
        max_value=10,
        severity="quarantine",
    ),
)
