"""What a suite costs: a table of ten expectations, against one aggregation written by hand for the same figures.

python -m benchmarks.checks --rows 2000000
"""

import argparse
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.expect import expect
from sluice.quality.measure import measure
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

expectations = [
    expect("table_row_count_to_be_between", min_value=1, severity="critical"),
    expect("column_values_to_not_be_null", column="id", severity="critical"),
    expect("column_values_to_not_be_null", column="amount", mostly=0.9, severity="warn"),
    expect("column_values_to_be_between", column="amount", min_value=0, severity="warn"),
    expect("column_values_to_be_in_set", column="status", value_set=["new", "paid", "shipped"], severity="critical"),
    expect("column_values_to_match_regex", column="email", regex="^[^@]+@[^@]+$", severity="warn"),
    expect("column_mean_to_be_between", column="amount", min_value=0, severity="warn"),
    expect("column_max_to_be_between", column="amount", max_value=1_000_000, severity="warn"),
    expect("column_min_to_be_between", column="at", min_value="2000-01-01T00:00:00Z", severity="warn"),
    expect("column_values_to_be_unique", column="id", severity="critical"),
]


def by_hand(df: "DataFrame") -> None:
    """The figures that the expectations need, as one would write them."""
    df.agg(
        F.count("*"),
        F.count("id"),
        F.count("amount"),
        F.count_if(F.col("amount") < 0),
        F.count_if(~F.col("status").isin("new", "paid", "shipped")),
        F.count_if(~F.col("email").rlike("^[^@]+@[^@]+$")),
        F.avg("amount"),
        F.max("amount"),
        F.min("at"),
        F.count_distinct("id"),
    ).collect()


def main() -> None:
    """Runs both in turn and prints the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    with spark_session(Settings()) as spark, tempfile.TemporaryDirectory() as folder:
        spark.range(options.rows).selectExpr(
            "id",
            "if(id % 50 = 0, null, id % 1000 / 10) AS amount",
            "element_at(array('new', 'paid', 'shipped'), cast(id % 3 + 1 AS int)) AS status",
            "concat('customer', id % 10000, '@example.org') AS email",
            "timestamp_seconds(1700000000 + id) AS at",
        ).write.format("delta").save(folder)
        df = spark.read.format("delta").load(folder)
        seconds: dict[str, list[float]] = {"by hand": [], "by expectations": []}
        # The first round warms both up.
        for turn in range(options.times + 1):
            for name, run in (("by hand", by_hand), ("by expectations", lambda df: measure(df, expectations))):
                start = time.perf_counter()
                run(df)
                if turn:
                    seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        print(f"{name:<16} {median(taken):.2f} s")  # noqa: T201
    print(f"ratio            {median(seconds['by expectations']) / median(seconds['by hand']):.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
