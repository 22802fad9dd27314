"""What must be true of the revenue; with the severity critical, rows that break it would never get here."""

from sluice.expect import expect, suite

expectations = suite(
    "gold.revenue_daily",
    expect("column_values_to_be_between", column="revenue_euro", min_value=0, severity="warn"),
)
