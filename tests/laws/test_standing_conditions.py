"""Conditions of stored queries: what is found by their keys is what SQL says, and what the definition says."""

import os
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import silver
from sluice.model.condition import Condition, fault, operators
from sluice.shapes import conditions
from sluice.shapes.conditions import Conditions, condition_type
from sluice.shapes.standing import StandingQueries, find_matches
from tests.laws.drawn_conditions import hostile, kinds, predicate, row, value
from tests.oracles.standing import is_match

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

reads = tuple(kinds.items())
rule = StandingQueries(reads=reads, grain=("id",), time="seen_at", columns=(), attributes=())
seed = int(os.environ.get("SLUICE_LAW_SEED", "2024"))
texts_with_anything = (*hostile, "\x00", "a\x00b", "x" * 20_000, "' OR 1=1 --", "${env:HOME}")


def rows_frame(spark: "SparkSession", rows: list[dict[str, Any]]) -> "DataFrame":
    schema = "id int, " + ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    data = [(number, *each.values()) for number, each in enumerate(rows)]
    return spark.createDataFrame(data, schema).withColumn("seen_at", F.lit("2026-01-01T00:00:00Z").cast("timestamp"))


def queries_frame(spark: "SparkSession", stored: dict[str, Condition]) -> "DataFrame":
    listed = [
        (name, [[(a["column"], a["operator"], a["values"]) for a in c] for c in each]) for name, each in stored.items()
    ]
    versions = spark.createDataFrame(listed, f"query_id string, condition {condition_type}").selectExpr(
        "*",
        "CAST(NULL AS timestamp) AS valid_from",
        "CAST(NULL AS timestamp) AS valid_to",
        "CAST(NULL AS timestamp) AS matches_from",
    )
    return Conditions(reads).prepared(versions.withColumn("valid_from", F.timestamp_seconds(F.lit(0))))


def found(spark: "SparkSession", rows: list[dict[str, Any]], stored: dict[str, Condition]) -> list[tuple[str, int]]:
    matches = find_matches(rows_frame(spark, rows), queries_frame(spark, stored), rule).collect()
    return sorted((match["query_id"], match["id"]) for match in matches)


def drawn_atom(random: Random) -> dict[str, Any]:
    """An atom as a producer may write it: of any operator, with text that means something elsewhere."""
    column, kind = random.choice(reads)
    fitting = [
        name
        for name in operators
        if (kind == "string" or ("with" not in name and "contains" not in name))
        and (kind != "boolean" or name in ("=", "<>", "in", "not in", "is null", "is not null"))
    ]
    operator = random.choice(fitting)
    count = {"between": 2, "not between": 2, "is null": 0, "is not null": 0}.get(operator, 1)
    count = random.randint(1, 5) if operator in ("in", "not in") else count
    return {"column": column, "operator": operator, "values": [text(random, kind) for _ in range(count)]}


def text(random: Random, kind: str) -> str:
    if kind == "string":
        return random.choice(texts_with_anything)
    found = value(random, kind)
    if kind == "double":
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(found), repr(found))
    return found.isoformat() if kind in ("timestamp", "date") else str(found).lower()


def drawn_condition(random: Random) -> Any:
    return [[drawn_atom(random) for _ in range(random.randint(0, 3))] for _ in range(random.choice([0, 1, 1, 2, 3]))]


def test_stored_queries_match_what_sql_and_the_definition_say(spark: "SparkSession") -> None:
    random = Random(seed)
    rows = [row(random) for _ in range(90)]
    rows += [row(random) | {"name": each} for each in texts_with_anything]
    asked = {f"sql {number}": predicate(random) for number in range(100)}
    written = {name: each.sql(random) for name, each in asked.items()}
    stored: dict[str, Any] = {name: silver.condition(sql, kinds) for name, sql in written.items()}
    stored |= {f"data {number}": drawn_condition(random) for number in range(100)}
    stored |= {"all": [[]], "none": []}
    defined = {
        (name, at) for name, each in asked.items() for at, values in enumerate(rows) if each.truth(values) is True
    }
    implied = {
        (name, at) for name, each in stored.items() for at, values in enumerate(rows) if is_match(each, values, kinds)
    }
    assert {pair for pair in implied if pair[0] in asked} == defined, f"seed {seed}"
    matches = found(spark, rows, stored)
    assert matches == sorted(implied), f"seed {seed}: {describe({*matches} ^ implied, rows, stored, written)}"
    by_spark = rows_frame(spark, rows).select("id", *[F.expr(sql).alias(name) for name, sql in written.items()])
    said = {(name, each["id"]) for each in by_spark.collect() for name in written if each[name] is True}
    assert said == defined, f"seed {seed}: {describe(said ^ defined, rows, stored, written)}"


real_blocks, real_key = conditions.blocks, conditions.key
mutants = {
    "a rank too few": ("blocks", lambda low, high, alternative: real_blocks(low, f"({high} - 1)", alternative)),
    "one alternative alone": ("key", lambda alternative, kind, value, *more: real_key("0", kind, value, *more)),
}


@pytest.mark.parametrize("mutant", mutants)
def test_faults_in_how_queries_are_found_are_noticed(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    random = Random(1)
    rows = [row(random) for _ in range(40)]
    stored: dict[str, Any] = {f"{number}": [[drawn_atom(random)], [drawn_atom(random)]] for number in range(30)}
    implied = {(name, at) for name, each in stored.items() for at, one in enumerate(rows) if is_match(each, one, kinds)}
    name, fault = mutants[mutant]
    monkeypatch.setattr(f"sluice.shapes.conditions.{name}", fault)
    assert found(spark, rows, stored) != sorted(implied)


def describe(pairs: set[tuple[str, int]], rows: Any, stored: Any, written: Any) -> list[Any]:
    return [(name, written.get(name), stored[name], rows[at]) for name, at in sorted(pairs)[:3]]


def spoilt(random: Random, condition: Any) -> Any:
    """A condition that may be wrong in one place."""
    atom = drawn_atom(random)
    atom |= random.choice(
        [
            {"column": random.choice(["name", "count", "good", "nothing", "Name", ""])},
            {"operator": random.choice([*operators, "like", "", "IN"])},
            {
                "values": random.choice(
                    [[], ["1"], ["1", "2"], ["1", "2", "3"], [""], ["x"], ["1.5"], ["1.505"], ["1e3"]]
                )
            },
            {"values": [random.choice(["2026-02-30", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T25:00:00Z"])]},
            {
                "values": [
                    random.choice(["9" * 19, "9" * 18, "-0", "+1", "1e999", "NaN", "nan", "TRUE", "true", " 1", "1\n"])
                ]
            },
        ]
    )
    return [*condition, [atom]]


def test_a_condition_that_does_not_fit_the_columns_gets_the_same_error_before_and_after_it_is_written(
    spark: "SparkSession",
) -> None:
    random = Random(seed)
    drawn = [spoilt(random, drawn_condition(random)) for _ in range(300)]
    drawn += [[[]] * 256, [[]] * 257, [[drawn_atom(random)] * 257]]
    listed = [
        (at, [[(a["column"], a["operator"], a["values"]) for a in c] for c in each]) for at, each in enumerate(drawn)
    ]
    frame = spark.createDataFrame(listed, f"at int, condition {condition_type}")
    judged = {
        each["at"]: each["fault"]
        for each in frame.select("at", Conditions(reads).fault("condition").alias("fault")).collect()
    }
    for at, each in enumerate(drawn):
        assert (judged[at] is None) == (fault(each, kinds) is None), (seed, each, judged[at], fault(each, kinds))
    assert 30 < sum(each is None for each in judged.values()) < 250
    assert set(judged.values()) >= set(conditions.faults[1:])
