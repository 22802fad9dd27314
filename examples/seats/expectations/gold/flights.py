"""What must be true of the flights: the versions of each are 1, 2, 3 …, and no seat is sold beyond those there are."""

from sluice.expect import expect, suite

expectations = suite(
    "gold.flights",
    expect("column_values_to_be_in_set", column="is_gapless", value_set=[True], severity="critical"),
    expect("column_values_to_be_in_set", column="is_sold_once", value_set=[True], severity="critical"),
)
