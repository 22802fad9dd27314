"""What plans of Spark say that they did, once they ran."""

from typing import Any

from pyspark.sql import DataFrame


def scanned_rows(df: DataFrame) -> int:
    """How many rows the scans of a frame handed on: those of the parts of files that were not skipped."""
    return metric(df, "numOutputRows")


def scanned_files(df: DataFrame) -> int:
    """How many files the scans of a frame had left after Delta skipped some."""
    return metric(df, "numFiles")


def metric(df: DataFrame, name: str) -> int:
    spark: Any = df.sparkSession
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        df = df.select("*")
        df.collect()
        leaves = df._jdf.queryExecution().executedPlan().collectLeaves()
        return sum(int(leaves.apply(at).metrics().apply(name).value()) for at in range(leaves.size()))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
