"""What must be true of flights as a whole."""

from sluice.expect import expect, suite

expectations = suite(
    "silver.flights",
    expect("column_values_to_be_unique", column="flight_id", severity="warn"),
    expect("column_values_to_not_be_null", column="scheduled_at", severity="warn", mostly=0.999),
    expect("column_values_to_not_be_null", column="carrier", severity="warn", mostly=0.999),
)
