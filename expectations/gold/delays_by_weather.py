"""What must be true of the delays by weather before anybody reads them."""

from sluice.expect import expect, suite

expectations = suite(
    "gold.delays_by_weather",
    expect("table_row_count_to_be_between", min_value=1, max_value=20, severity="critical"),
    expect("column_values_to_be_between", column="flights", min_value=1, severity="critical"),
)
