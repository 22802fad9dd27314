"""How the as-of join grows: ten times the facts and versions, spread over many keys or all on one.

Run by `python -m benchmarks.as_of_skew`. Prints seconds as ratios to the small, spread case of the same run.
"""

import time
from typing import TYPE_CHECKING

from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.shapes.as_of import Joined, join_as_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

rule = Joined(keys=("key",), fact_keys=("key",))
small_facts, small_versions, many_keys = 200_000, 20_000, 1_000
repeats = 3


def frames(spark: "SparkSession", times: int, keys: int) -> "tuple[DataFrame, DataFrame]":
    """Facts and versions spread evenly over the keys and over a million seconds."""
    facts, versions = small_facts * times, small_versions * times
    at = f"timestamp_seconds(cast(id * 1000000 / {facts} AS bigint))"
    begins = f"timestamp_seconds(cast(id * 1000000 / {versions} AS bigint))"
    ends = f"timestamp_seconds(cast((id + {keys}) * 1000000 / {versions} AS bigint))"
    return (
        spark.range(facts).selectExpr("id", f"id % {keys} AS key", f"{at} AS at"),
        spark.range(versions).selectExpr(
            f"id % {keys} AS key", "id AS price", f"{begins} AS valid_from", f"{ends} AS valid_to"
        ),
    )


def seconds(spark: "SparkSession", times: int, keys: int) -> float:
    """The least of a few runs of one join."""
    facts, versions = frames(spark, times, keys)
    found = []
    for _ in range(repeats):
        start = time.monotonic()
        join_as_of(facts, versions, "price", "at", rule).write.format("noop").mode("overwrite").save()
        found.append(time.monotonic() - start)
    return min(found)


def main() -> None:
    cases = {
        "1x, 1,000 keys": (1, many_keys),
        "10x, 1,000 keys": (10, many_keys),
        "1x, 1 key": (1, 1),
        "10x, 1 key": (10, 1),
    }
    with spark_session(Settings()) as spark:
        seconds(spark, 1, many_keys)
        measured = {name: seconds(spark, *case) for name, case in cases.items()}
    floor = measured["1x, 1,000 keys"]
    for name, each in measured.items():
        print(f"{name:18} {each / floor:5.1f}x")  # noqa: T201 - a benchmark prints


if __name__ == "__main__":
    main()
