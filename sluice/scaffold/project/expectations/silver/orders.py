"""What a record must say to be an order."""

from sluice.expect import expect, suite

expectations = suite(
    "silver.orders",
    expect("column_values_to_be_between", column="quantity", min_value=1, severity="quarantine"),
)
