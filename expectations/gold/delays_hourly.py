"""What must be true of the delays by hour before anybody reads them."""

from sluice.expect import expect, suite

expectations = suite(
    "gold.delays_hourly",
    expect("table_row_count_to_be_between", min_value=1, severity="critical"),
    expect("compound_columns_to_be_unique", column_list=["origin", "window_start"], severity="critical"),
    expect(
        "column_pair_values_a_to_be_greater_than_b",
        column_A="flights",
        column_B="departed",
        or_equal=True,
        severity="critical",
        name="no_more_depart_than_are_scheduled",
    ),
    expect(
        "column_values_to_be_between",
        column="departure_delay_minutes_avg",
        min_value=-60,
        max_value=600,
        mostly=0.999,
        severity="warn",
        name="average_delay_is_plausible",
    ),
)
