"""What must be true of the carriers' days before anybody reads them."""

from sluice.expect import expect, suite

expectations = suite(
    "gold.carrier_days",
    expect("compound_columns_to_be_unique", column_list=["carrier", "day"], severity="critical"),
    expect("column_unique_value_count_to_be_between", column="carrier", min_value=1, max_value=16, severity="warn"),
    expect("column_values_to_be_between", column="distance_miles", min_value=1, severity="warn"),
)
