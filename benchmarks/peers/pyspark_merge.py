"""PySpark and Delta from the textbook: MERGE by key, versions rebuilt for the customers touched, a join by range.

Spark has the settings of Sluice's own session, which are made for one machine, and its tables have deletion vectors.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.shared import Files, Refresh, unread
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

schemas = {
    "sales": "id string, customer string, sold_at timestamp, amount decimal(12,2)",
    "customers": "customer string, changed_at timestamp, segment string",
}
columns = {
    "silver/sales": schemas["sales"],
    "silver/customer_changes": schemas["customers"],
    "silver/customers": "customer string, segment string, valid_from timestamp, valid_to timestamp",
    "silver/sold": f"{schemas['sales']}, buyer struct<segment: string, valid_from: timestamp>",
    "gold/revenue": "segment string, day date, sales bigint, amount decimal(22,2)",
}


@contextmanager
def driver(log: Path, lake: Path) -> Iterator[Refresh]:
    with spark_session(Settings()) as spark:
        # Delta's default: a source that is read from the table itself is computed before the table changes.
        spark.conf.unset("spark.databricks.delta.merge.materializeSource")
        for table, schema in columns.items():
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS delta.`{lake / table}` ({schema}) USING delta "
                "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
            )

        def refresh() -> None:
            with unread(log, lake) as files:
                if files["sales"] or files["customers"]:
                    update(spark, lake, files)

        yield refresh


def update(spark: "SparkSession", lake: Path, files: Files) -> None:
    def stored(table: str) -> "DataFrame":
        return spark.read.format("delta").load(str(lake / table))

    arrived = records(spark, "sales", files["sales"]).dropDuplicates(["id"]).cache()
    changes = records(spark, "customers", files["customers"]).distinct().cache()
    touched = changes.select("customer").distinct()
    if files["sales"]:
        insert_new(arrived, lake / "silver/sales", ["id"])
    if files["customers"]:
        insert_new(changes, lake / "silver/customer_changes", ["customer", "changed_at", "segment"])
        right = end_to_end(stored("silver/customer_changes").join(touched, "customer", "left_semi"))
        known = stored("silver/customers").join(touched, "customer", "left_semi")
        merge(right, known, lake / "silver/customers", ["customer", "valid_from"])
    of_arrived = stored("silver/sales").join(arrived, "id", "left_semi")
    of_touched = stored("silver/sales").join(touched, "customer", "left_semi")
    facts = (of_arrived.unionByName(of_touched).distinct() if files["customers"] else of_arrived).cache()
    merge(as_of(facts, stored("silver/customers")), None, lake / "silver/sold", ["id"])
    days = facts.selectExpr("to_date(sold_at) AS day").distinct()
    of_days = stored("silver/sold").selectExpr("*", "to_date(sold_at) AS day").join(days, "day", "left_semi")
    known = stored("gold/revenue").join(days, "day", "left_semi")
    merge(by_segment_and_day(of_days), known, lake / "gold/revenue", ["segment", "day"])
    for each in (arrived, changes, facts):
        each.unpersist()


def records(spark: "SparkSession", topic: str, files: Sequence[str]) -> "DataFrame":
    if not files:
        return spark.createDataFrame([], schemas[topic])
    lines = spark.read.schema("value string").json(list(files))
    return lines.selectExpr(f"from_json(value, '{schemas[topic]}') AS value").select("value.*")


def end_to_end(changes: "DataFrame") -> "DataFrame":
    """The versions of each customer; a change to the same segment opens none."""
    in_order = "OVER (PARTITION BY customer ORDER BY changed_at)"
    opening = changes.selectExpr("*", f"lag(segment) {in_order} AS before").where("NOT segment <=> before")
    valid_to = f"lead(changed_at) {in_order} AS valid_to"
    return opening.selectExpr("customer", "segment", "changed_at AS valid_from", valid_to)


def as_of(facts: "DataFrame", versions: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    is_valid = F.expr(
        "sale.customer = version.customer AND sale.sold_at >= version.valid_from "
        "AND (version.valid_to IS NULL OR sale.sold_at < version.valid_to)"
    )
    return (
        facts.alias("sale")
        .join(versions.alias("version"), is_valid, "left")
        .selectExpr(
            "sale.*",
            "CASE WHEN version.customer IS NOT NULL "
            "THEN named_struct('segment', version.segment, 'valid_from', version.valid_from) END AS buyer",
        )
    )


def by_segment_and_day(sold: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    groups = sold.groupBy(F.col("buyer.segment").alias("segment"), "day")
    return groups.agg(F.count("*").alias("sales"), F.sum("amount").alias("amount"))


def insert_new(rows: "DataFrame", table: Path, keys: Sequence[str]) -> None:
    """Adds the rows whose keys the table has not."""
    merge_into(table, keys, rows, "WHEN NOT MATCHED THEN INSERT *")


def merge(right: "DataFrame", known: "DataFrame | None", table: Path, keys: Sequence[str]) -> None:
    """Makes rows of a table equal to the right ones; of those known, the ones that are not among these go."""
    from pyspark.sql import functions as F

    rows = right.withColumn("gone", F.lit(False))
    if known is not None:
        stale = known.join(right, list(keys), "left_anti").withColumn("gone", F.lit(True))
        rows = rows.unionByName(stale)
    is_other = " OR ".join(f"NOT target.{name} <=> source.{name}" for name in right.columns if name not in keys)
    updated = ", ".join(f"{name} = source.{name}" for name in right.columns)
    names, values = ", ".join(right.columns), ", ".join(f"source.{name}" for name in right.columns)
    merge_into(
        table,
        keys,
        rows,
        f"""
            WHEN MATCHED AND source.gone THEN DELETE
            WHEN MATCHED AND ({is_other}) THEN UPDATE SET {updated}
            WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})
        """,
    )


def merge_into(table: Path, keys: Sequence[str], rows: "DataFrame", clauses: str) -> None:
    rows.createOrReplaceTempView("source")
    matched = " AND ".join(f"target.{name} = source.{name}" for name in keys)
    rows.sparkSession.sql(f"MERGE INTO delta.`{table}` AS target USING source ON {matched} {clauses}")
