"""Stored queries: what is declared, what is refused and with which message, and the guide, step by step."""

import ast
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import Project, bronze, gold, silver
from sluice.engine.catalogue import ordered
from sluice.errors import DeclarationError, UsageError
from sluice.log import Log
from sluice.model.condition import from_sql, text_of
from sluice.model.datasets import Dataset
from sluice.operate import standing
from sluice.shapes.conditions import Conditions, condition_type
from sluice.shapes.standing import StandingQueries, find_matches, touched_by_queries
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.documents import Block, blocks, root, sluice_commands
from tests.kit import rows_of
from tests.test_webhook import receiving, secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

columns = {
    "name": "string",
    "count": "bigint",
    "price": "decimal(10,2)",
    "ratio": "double",
    "good": "boolean",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "tags": "array<string>",
}
trades = silver.events(
    "trades",
    source=bronze.topic("trades"),
    schema="trade_id string, at timestamp, symbol string, price decimal(10,2), tags array<string>",
    keys=["trade_id"],
    event_time="at",
)
totals = gold.aggregate("totals", source=trades, group_by=["symbol"], measures={"price": "sum(price)"})
queries = bronze.topic("alert_queries")


@pytest.mark.parametrize(
    ("sql", "meaning"),
    [
        ("name = 'it''s'", '`name` = "it\'s"'),
        ("NOT (count > 3 OR name IN ('a', 'b'))", "`count` <= '3' AND `name` not in ('a', 'b')"),
        ("NOT (count > 3 AND good)", "(`count` <= '3') OR (`good` = 'false')"),
        ("(count) > 3", "`count` > '3'"),
        ("3 < COUNT AND count < 5", "`count` > '3' AND `count` < '5'"),
        ("count IN (1, NULL)", "`count` in ('1')"),
        ("count NOT IN (1, NULL)", "false"),
        ("count = NULL OR TRUE", "true"),
        ("count <=> NULL", "`count` is null"),
        ("NOT count <=> 3", "(`count` <> '3') OR (`count` is null)"),
        ("count NOT BETWEEN NULL AND 3", "`count` > '3'"),
        ("good IS NOT TRUE", "(`good` <> 'true') OR (`good` is null)"),
        ("name LIKE 'a%' AND name NOT LIKE '%b%'", "`name` starts with 'a' AND `name` not contains 'b'"),
        ("price = 1e3 AND count = -0", "`price` = '1000' AND `count` = '-0'"),
        ("at > '2026-01-01' AND at < TIMESTAMP '2026-01-02 03:00:00+01:00'",
         "`at` > '2026-01-01T00:00:00Z' AND `at` < '2026-01-02T02:00:00Z'"),
        ("local = '2026-01-01 10:00:00' AND day = DATE'2026-01-01'",
         "`local` = '2026-01-01T10:00:00' AND `day` = '2026-01-01'"),
        ("local = TIMESTAMP '2026-01-01 00:00:00+02:00'", "`local` = '2025-12-31T22:00:00'"),
        ("at >= DATE'2026-01-01' AND count > 5L AND ratio = 5D",
         "`at` >= '2026-01-01T00:00:00Z' AND `count` > '5' AND `ratio` = '5'"),
    ],
)  # fmt: skip
def test_a_predicate_becomes_alternatives_of_comparisons(sql: str, meaning: str) -> None:
    assert text_of(from_sql(sql, columns)) == meaning


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "cannot be read"),
        ("count >", "cannot be read"),
        ("count = 'a", "cannot be read"),
        ("conut > 3", "did you mean count?"),
        ("count > 2.5", "'2.5' is no bigint"),
        ("count = 99999999999999999999", "is no bigint"),
        ("price = 3.005", "is no decimal"),
        ("name = 3", "write '3'"),
        ("day = '2026-02-30'", "is no date"),
        ("good > TRUE", "not for that"),
        # Casts that change a value, and what Spark compares as another type than the column's.
        ("ratio > CAST(5.7 AS INT)", "compares columns with values"),
        ("ratio = 0.1F", "compares columns with values"),
        ("price = 5.7D", "compares columns with values"),
        ("at >= CAST('2026-01-01 12:00' AS DATE)", "compares columns with values"),
        ("name = DATE '2026-01-01'", "compares columns with values"),
        ("name = TRUE", "compares columns with values"),
        ("name", "takes a boolean"),
        ("NOT name IS TRUE", "takes a boolean"),
        ("count LIKE '05'", "takes a string"),
        ("count = 9007199254740993e0", "is no bigint"),
        ("day = '20260131'", "is no date"),
        ("at = '2026-01-01 12:00:00,5'", "is no timestamp"),
        (" AND ".join(f"count <> {at}" for at in range(300)), "more than 256 comparisons"),
        ("tags = 'a'", "there is no column tags"),
        ("count > price", "compares columns with values"),
        ("count + 1 > 3", "compares columns with values"),
        ("upper(name) = 'A'", "has UPPER(name), which cannot be stored"),
        ("name RLIKE 'a'", "compares columns with values"),
        ("name LIKE 'a_'", "no other wildcard"),
        ("count IN (SELECT 1)", "compares columns with values"),
        ("count BETWEEN SYMMETRIC 3 AND 1", "compares columns with values"),
        ("t.count = 1", "compares columns with values"),
        ("*", "compares columns with values"),
        ("count = 1; DROP TABLE x", "compares columns with values"),
        (" AND ".join(f"(count = {at} OR name = '{at}')" for at in range(12)), "more than 256 alternatives"),
        ("(" * 5000 + "good" + ")" * 5000, ""),
        (f"name IN ({', '.join(repr(str(at)) for at in range(10_001))})", "too large"),
    ],
)
def test_a_predicate_that_cannot_be_stored_gets_the_reason(sql: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        from_sql(sql, columns)
    assert message in str(error.value)
    assert len(str(error.value)) < 1_000


def test_a_query_that_nobody_has_stored_cannot_be_removed(tmp_path: Path) -> None:
    log, lake = Log(tmp_path / "log"), Lake(str(tmp_path / "lake"))
    alerts = ordered([silver.standing_queries("alerts", source=trades, queries=queries)])
    standing.add(log, alerts, "silver.alerts", "large", "price > 100", past=False, valid_from=None, attributes={})
    standing.remove(log, lake, alerts, "silver.alerts", "large", valid_to=None)
    with pytest.raises(UsageError, match=r"silver\.alerts has no query lrge; list them"):
        standing.remove(log, lake, alerts, "silver.alerts", "lrge", valid_to=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": totals}, "say which column it is"),
        ({"source": totals, "event_time": "symbol"}, "symbol"),
        ({"source": totals, "event_time": "at"}, "at"),
        ({"event_time": "price"}, "declare it there as timestamp"),
        ({"columns": ["prise"]}, "prise"),
        ({"columns": ["query_id"]}, "query_id"),
        ({"attributes": "price string", "columns": ["price"]}, "price"),
        ({"attributes": "price strng"}, "unknown type"),
        ({"attributes": "valid_from timestamp"}, "valid_from"),
        ({"attributes": "condition string"}, "condition"),
        ({"schema": "prise string"}, "prise"),
        ({"schema": "price double"}, "in silver.trades it is a decimal(10,2)"),
        ({"schema": "tags array<string>"}, "no query can compare"),
        ({"queries": trades}, "declare them with bronze.topic"),
        ({"source": queries}, "source is a table"),
        ({"attributes": "Matches_From timestamp"}, "Matches_From"),
    ],
)
def test_a_declaration_that_cannot_work_gets_the_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError) as error:
        silver.standing_queries("alerts", **dict[str, Any](source=trades, queries=queries) | options)
    assert message in str(error.value)


def test_a_declaration_says_its_columns_and_what_decides_its_rows() -> None:
    options: dict[str, Any] = {"queries": queries, "columns": ["price"], "attributes": "who string"}
    alerts = silver.standing_queries("alerts", source=trades, **options)
    assert alerts.columns == {
        "query_id": "string",
        "trade_id": "string",
        "at": "timestamp",
        "price": "decimal(10,2)",
        "who": "string",
        "query_valid_from": "timestamp",
    }
    assert [each.name for each in alerts.upstream] == ["silver.trades", "silver.alerts_queries"]
    other = silver.standing_queries("alerts", source=trades, schema="price decimal(10,2)", **options)
    assert judged(alerts).fingerprint != judged(other).fingerprint, "records are judged again when the columns change"


readings = "name string, key decimal(38,10), slot int, at timestamp"
rule = StandingQueries((("key", "decimal(38,10)"),), grain=("name", "slot"), time="at", columns=("key",), attributes=())
most = "9999999999999999999999999999.9999999999"


def stored(spark: "SparkSession", *conditions: str) -> "DataFrame":
    """Versions of queries without end, one for each condition."""
    made = [(sql, json.dumps(from_sql(sql, dict(rule.reads)))) for sql in conditions]
    versions = spark.createDataFrame(made, "query_id string, condition string").selectExpr(
        "query_id",
        f"from_json(condition, '{condition_type}') AS condition",
        "timestamp_seconds(0) AS valid_from",
        "CAST(NULL AS timestamp) AS valid_to",
        "CAST(NULL AS timestamp) AS matches_from",
        "'a' AS began",
    )
    return Conditions(rule.reads).prepared(versions)


def rows(spark: "SparkSession", *keys: str) -> "DataFrame":
    plain = spark.createDataFrame([(key,) for key in keys], "key string")
    return plain.selectExpr(
        "key AS name", "CAST(key AS decimal(38,10)) AS key", "1 AS slot", "timestamp_seconds(60) AS at"
    )


def test_decimals_of_all_their_digits_are_compared_in_columns_of_any_name(spark: "SparkSession") -> None:
    nearly, least = f"{most[:-1]}8", f"-{most}"
    found = find_matches(
        rows(spark, most, nearly, least, "0"), stored(spark, f"key = {most}", f"key < {most}", "key < 0"), rule
    )
    assert rows_of(found, "query_id", "name") == sorted(
        [
            (f"key = {most}", most),
            (f"key < {most}", nearly),
            (f"key < {most}", least),
            (f"key < {most}", "0"),
            ("key < 0", least),
        ],
        key=repr,
    )


def test_queries_can_have_an_attribute_of_any_name(spark: "SparkSession") -> None:
    versions = stored(spark, "key > 0")
    changed, own = versions.withColumn("_change_type", F.lit("insert")), rows(spark).selectExpr("'' AS query_id", "*")
    assert touched_by_queries(changed, rows(spark, "1", "0"), versions, own, rule).count() == 1


def test_a_column_of_another_type_than_was_declared_is_an_error(spark: "SparkSession") -> None:
    with pytest.raises(DeclarationError, match="read key as a decimal"):
        find_matches(rows(spark, "1").withColumn("key", F.lit(1.5)), stored(spark, "key > 1"), rule)


def judged(alerts: Dataset) -> Dataset:
    (changes,) = alerts.upstream[1].upstream
    return changes


guide = root / "docs/how-to/store-a-query.md"


def shown(kind: str, sign: str) -> Block:
    return next(each for each in blocks(guide) if each.kind == kind and sign in each.text)


@pytest.mark.usefixtures("spark_for_commands")
def test_the_guide_can_be_followed(spark: "SparkSession", tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with Project.create(folder, spark=spark) as project:
        project.append("orders", (folder / "orders.jsonl").read_bytes().splitlines(), key_field="order_id")
    declared = ast.parse(shown("python", "order_alerts =").text).body[-1]
    for name, text in {"bronze": shown("python", "bronze.topic(").text, "silver": ast.unparse(declared)}.items():
        path = folder / "pipelines" / f"{name}.py"
        path.write_text(f"{path.read_text()}\n{text}\n")
    for words in sluice_commands(shown("sh", "standing add")):
        if words[0] == "standing":
            done = sluice(*words, here=folder)
            assert done.returncode == 0, done.stderr
    bad = {"query_id": "bad", "changed_at": "2026-03-01T00:00:00Z", "condition": [[{"column": "x"}]]}
    with Project(folder, spark=spark) as project:
        project.append("order_queries", [shown("json", "query_id").text, bad])
        project.run("silver.order_alerts")
        sql = "SELECT query_id, order_id, quantity, customer FROM silver.order_alerts ORDER BY ALL"
        assert project.query(sql).rows == [("cups", "1004", 4, "bob"), ("large", "1004", 4, "ann")]
        listed = {
            each.query_id: (each.match_past, each.condition) for each in project.standing.list("silver.order_alerts")
        }
        assert listed["large"] == (True, "`quantity` >= '4'")
        assert set(listed) == {"cups", "large", "tea"}
        held = {
            each.reason for each in project.quarantine.list() if each.dataset == "silver.order_alerts_queries_changes"
        }
        assert held == {"condition_of_unknown_column"}
        with receiving(itertools.repeat(200)) as receiver:
            where: dict[str, Any] = {
                "where": "customer = 'ann'",
                "secret": secret,
                "position": tmp_path / "ann.position",
            }
            assert project.deliver("silver.order_alerts", receiver.url, **where) == 1
        (message,) = receiver.messages.values()
        assert (message["type"], message["data"]["new"]["query_id"]) == ("silver.order_alerts.insert", "large")
