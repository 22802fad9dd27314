"""What rows cost that are matched with 100, 1,000 and 10,000 stored queries, beside a filter for each query.

Run by `python -m benchmarks.standing_queries`. The queries are prepared in a table, as the engine keeps them. A query
is true of about one row in ten thousand. CPU seconds are those of the JVM, the lesser of two runs.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import functions as F

from sluice.cli.printing import print_table
from sluice.model.condition import Condition, from_sql
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.shapes.conditions import Conditions, condition_type
from sluice.shapes.standing import StandingQueries, find_matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

columns = {
    "symbol": "string",
    "venue": "string",
    "price": "decimal(12,2)",
    "quantity": "bigint",
    "ratio": "double",
    "is_test": "boolean",
}
rule = StandingQueries(tuple(columns.items()), grain=("id",), time="at", columns=(), attributes=())
symbols, filters_timed = 5_000, 20


def trades(spark: "SparkSession", count: int) -> "DataFrame":
    """Trades of 5,000 symbols, with prices and quantities of which few are large."""
    return spark.range(count).select(
        "id",
        F.timestamp_seconds(F.col("id") + 1_767_225_600).alias("at"),
        F.concat(F.lit("S"), F.floor(F.rand(1) * symbols)).alias("symbol"),
        F.concat(F.lit("V"), F.floor(F.rand(2) * 10)).alias("venue"),
        (F.pow(F.rand(3), F.lit(-0.5)) * 10).cast("decimal(12,2)").alias("price"),
        F.floor(F.rand(4) * 10_000).alias("quantity"),
        F.rand(5).alias("ratio"),
        (F.rand(6) < 0.01).alias("is_test"),
    )


def term(random: Random) -> str:
    return f"symbol = 'S{random.randrange(symbols)}' AND ratio > {random.uniform(0.2, 0.8):.3f}"


def above(random: Random) -> str:
    # One price in ten thousand is above 1,000.
    return f"price > {random.uniform(800, 1500):.2f}"


def between(random: Random) -> str:
    begin = random.randrange(10_000)
    return f"quantity BETWEEN {begin} AND {begin + 1} AND venue <> 'V{random.randrange(10)}'"


def either(random: Random) -> str:
    return f"({term(random)}) OR ({above(random)})"


def anything(random: Random) -> str:
    """What no key can be made of."""
    return f"symbol LIKE '%{random.randrange(1000, symbols)}'"


drawn: dict[str, list[Callable[[Random], str]]] = {
    "terms": [term],
    "ranges, one-sided": [above],
    "ranges, two-sided": [between],
    "mixed": [*[term] * 40, *[above] * 25, *[between] * 24, *[either] * 10, anything],
}


def predicates(kind: str, count: int) -> list[str]:
    random = Random(count)  # noqa: S311 - the same queries each time
    return [drawn[kind][at % len(drawn[kind])](random) for at in range(count)]


def prepared(spark: "SparkSession", texts: list[str], path: Path) -> "DataFrame":
    """The queries as the engine keeps them."""
    stored: list[Condition] = [from_sql(each, columns) for each in texts]
    listed = [
        (f"q{at}", [[(a["column"], a["operator"], a["values"]) for a in one] for one in each])
        for at, each in enumerate(stored)
    ]
    versions = spark.createDataFrame(listed, f"query_id string, condition {condition_type}").selectExpr(
        "*",
        "timestamp_seconds(0) AS valid_from",
        "CAST(NULL AS timestamp) AS valid_to",
        "CAST(NULL AS timestamp) AS matches_from",
    )
    Conditions(rule.reads).prepared(versions).coalesce(1).write.mode("overwrite").parquet(str(path))
    return spark.read.parquet(str(path))


def cpu_seconds(jvm: int) -> float:
    fields = Path(f"/proc/{jvm}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(jvm: int, work: Callable[[], object], times: int = 2) -> float:
    """The CPU seconds of some work."""
    found = []
    for _ in range(times):
        began = cpu_seconds(jvm)
        work()
        found.append(cpu_seconds(jvm) - began)
    return min(found)


def measure(spark: "SparkSession", jvm: int, folder: Path, counts: list[int], sizes: list[int]) -> None:
    rows = {}
    for size in sizes:
        trades(spark, size).coalesce(2).write.parquet(str(folder / f"{size}"))
        rows[size] = spark.read.parquet(str(folder / f"{size}"))
    table = []
    for kind in drawn:
        for count in counts:
            texts = predicates(kind, count)
            versions = prepared(spark, texts, folder / "queries")
            line: list[object] = [kind, count]
            for size in sizes:
                found = find_matches(rows[size], versions, rule)
                matched = cost(jvm, partial(run, found))
                filtered = cost(jvm, partial(filters, rows[size], texts[:filters_timed]), 1)
                line += [found.count(), matched, filtered / filters_timed * count]
            table.append(line)
    header = [
        f"{size:,} rows: {each}" for size in sizes for each in ("matches", "CPU s", "CPU s of filters, extrapolated")
    ]
    print_table(["queries", "count", *header], table)


def run(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def filters(rows: "DataFrame", texts: list[str]) -> None:
    """A pass over the rows for each query."""
    for each in texts:
        run(rows.where(each))


def main(
    queries: Annotated[str, typer.Option(help="How many, with commas between.")] = "100,1000,10000",
    rows: Annotated[str, typer.Option(help="How many, with commas between.")] = "1000,100000",
) -> None:
    with tempfile.TemporaryDirectory() as folder, spark_session(Settings(lake=folder, spark="local[2]")) as spark:
        jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        counts, sizes = ([int(each) for each in text.split(",")] for text in (queries, rows))
        # The code is compiled by a first run, which is not shown.
        warm = find_matches(
            trades(spark, 20_000), prepared(spark, predicates("mixed", 500), Path(folder, "warm")), rule
        )
        for _ in range(3):
            run(warm)
        print_plan(warm)
        measure(spark, jvm, Path(folder), counts, sizes)


def print_plan(frame: "DataFrame") -> None:
    """How the plan joins: the one loop is over the single row that says which keys are in use."""
    text = frame._jdf.queryExecution().executedPlan().toString()
    for name in ("BroadcastHashJoin", "BroadcastNestedLoopJoin", "CartesianProduct", "SortMergeJoin"):
        typer.echo(f"{name}: {text.partition('Initial Plan')[0].count(name)}", err=True)


if __name__ == "__main__":
    typer.run(main)
