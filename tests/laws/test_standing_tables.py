"""Tables of matches: whatever arrives late, changes or is gone, rows or queries, they hold what the records imply."""

import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, silver
from sluice.model.ledger import RowCounts
from sluice.shapes.standing import StandingQueries, find_matches, touched_by_queries
from tests.kit import Lakehouse, text
from tests.oracles.standing import is_match, versions_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A table whose rows change, move and go; `noted_at` says which record is newer.
things = silver.history(
    "things",
    source=bronze.topic("things"),
    schema="thing string, noted_at timestamp, at timestamp, color string, price decimal(10,2), gone boolean",
    keys=["thing"],
    sequence_by="noted_at",
    stored_as_scd_type=1,
    apply_as_deletes="gone",
    future_tolerance="1000 days",
)
alerts = silver.standing_queries(
    "alerts",
    source=things,
    queries=bronze.topic("alert_queries"),
    columns=["price"],
    attributes="customer string",
    schema="color string, price decimal(10,2)",
    event_time="at",
)
kinds = {"color": "string", "price": "decimal(10,2)"}
seed = int(os.environ.get("SLUICE_LAW_SEED", "7"))
Record = dict[str, Any]


def thing(random: Random, name: str, noted: float) -> Record:
    at = random.choice([None, *range(1, 20)])
    return {
        "thing": name,
        "noted_at": text(noted),
        "at": None if at is None else text(at),
        "hour": at,
        "color": random.choice(["red", "blue", "it's", None]),
        "price": random.choice([1, 5, 10, 10.5, None]),
        "gone": noted > 0 and random.random() < 0.3,
    }


def query(random: Random, name: str, hour: float) -> Record:
    """A query as it is from an hour on."""
    one = {"column": "color", "operator": random.choice(["=", "<>"]), "values": [random.choice(["red", "it's"])]}
    other = {"column": "price", "operator": random.choice([">", "<="]), "values": [random.choice(["5", "10.5", "7"])]}
    wrong = {"column": "color", "operator": "<", "values": []}
    is_wrong, is_deleted = random.random() < 0.1, random.random() < 0.2
    return {
        "query_id": name,
        "changed_at": text(hour),
        "at": hour,
        "condition": [[wrong]] if is_wrong else random.choice([[[one]], [[other]], [[one, other]], [[one], [other]]]),
        "customer": random.choice(["ann", "bob", None]),
        "match_past": random.random() < 0.5,
        "is_deleted": is_deleted,
        "is_wrong": is_wrong and not is_deleted,
    }


def drawn(random: Random) -> tuple[list[Record], list[Record]]:
    """Records of things, each up to three times, and of queries, at different hours of each."""
    facts = [thing(random, f"t{number}", noted) for number in range(40) for noted in range(random.randint(1, 3))]
    queries = [
        query(random, f"q{number}", hour + 0.5)
        for number in range(30)
        for hour in random.sample(range(20), random.randint(1, 4))
    ]
    random.shuffle(facts)
    random.shuffle(queries)
    return facts, queries


def implied(facts: Sequence[Record], queries: Sequence[Record]) -> list[tuple[Any, ...]]:
    """The matches of the things that records leave, by all versions of all queries."""
    rows: dict[str, Record] = {}
    for each in sorted(facts, key=lambda each: each["noted_at"]):
        rows[each["thing"]] = each
    versions = versions_of([each for each in queries if not each["is_wrong"]], ["customer"])
    return sorted(
        (version.query, each["thing"], each["hour"], each["price"], *version.attributes, version.began)
        for each in rows.values()
        if not each["gone"] and each["hour"] is not None
        for version in versions
        if version.is_in_effect(each["hour"]) and is_match(version.condition, priced(each), kinds)
    )


def priced(record: Record) -> Record:
    price = record["price"]
    return record | {"price": None if price is None else Decimal(str(price))}


def found_in(lakehouse: Lakehouse) -> list[tuple[Any, ...]]:
    columns = ("query_id", "thing", "at", "price", "customer", "query_valid_from")
    return sorted(
        (*each[:3], None if each[3] is None else float(each[3]), *each[4:])
        for each in lakehouse.rows("silver.alerts", *columns)
    )


def said(records: Sequence[Record]) -> list[Record]:
    own = ("hour", "is_wrong")
    return [
        {name: value for name, value in each.items() if name not in own and (name, "query_id" in each) != ("at", True)}
        for each in records
    ]


def arrive(lakehouse: Lakehouse, facts: Sequence[Record], queries: Sequence[Record]) -> dict[str, Any]:
    if facts:
        lakehouse.publish("things", *said(facts), hours=30)
    if queries:
        lakehouse.publish("alert_queries", *said(queries), hours=30)
    return lakehouse.run()


@pytest.fixture(scope="module")
def story() -> tuple[list[Record], list[Record]]:
    return drawn(Random(seed))


@pytest.fixture(scope="module")
def begun(spark: "SparkSession", story: Any, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that has most of the records."""
    facts, queries = story
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("begun"), partitions=1).declare(alerts)
    arrive(lakehouse, facts[:60], queries[:45])
    assert found_in(lakehouse) == implied(facts[:60], queries[:45]), seed
    return lakehouse


def test_matches_are_what_the_records_imply_whatever_arrives_and_when(
    begun: Lakehouse, story: Any, tmp_path: Path
) -> None:
    facts, queries = story
    lakehouse = begun.copied_to(tmp_path)
    seen = (60, 45)
    # One thing, then all others and queries at once; one query alone comes in the next test.
    for upto in ((61, 45), (len(facts), len(queries))):
        # The newest first, and some twice.
        done = arrive(lakehouse, [*facts[:5], *facts[seen[0] : upto[0]][::-1]], queries[seen[1] : upto[1]][::-1])
        seen = upto
        assert found_in(lakehouse) == implied(facts[: seen[0]], queries[: seen[1]]), (seed, seen)
        assert done.get("silver.alerts") is None or done["silver.alerts"].cause == "changes"
    assert [law for law in lakehouse.laws() if law.broken] == []
    assert lakehouse.run() == {}
    again = lakehouse.run(rebuild=True)
    assert again["silver.alerts"].rows == RowCounts()


def test_a_query_that_does_not_ask_for_the_past_is_matched_with_no_row_before_it(
    begun: Lakehouse, story: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, queries = story
    lakehouse = begun.copied_to(tmp_path)
    met = list[int]()

    def counted(rows: "DataFrame", versions: "DataFrame", rule: StandingQueries) -> "DataFrame":
        met.append(rows.count())
        return find_matches(rows, versions, rule)

    monkeypatch.setattr("sluice.shapes.standing.find_matches", counted)
    late = query(Random(1), "late", 15.5) | {"condition": [[]], "is_deleted": False, "is_wrong": False}
    late |= {"match_past": False}
    arrive(lakehouse, [], [late])
    assert found_in(lakehouse) == implied(facts[:60], [*queries[:45], late])
    newest = {each["thing"]: each for each in sorted(facts[:60], key=lambda each: each["noted_at"])}
    there = [each["hour"] or 0 for each in newest.values() if not each["gone"]]
    assert met == [sum(hour > 15 for hour in there)]
    assert 0 < met[0] < len(there) / 2


def of_new_rows_alone(changed: "DataFrame", versions: "DataFrame", own: "DataFrame", rule: Any) -> "DataFrame":
    now = changed.where("_change_type IN ('insert', 'update_postimage')")
    return find_matches(now, versions, rule).select(*rule.located)


def of_new_versions_alone(
    changed: "DataFrame", rows: "DataFrame", versions: "DataFrame", own: "DataFrame", rule: Any
) -> "DataFrame":
    return touched_by_queries(changed, rows, versions, own.limit(0), rule)


@pytest.mark.parametrize("mutant", [of_new_rows_alone, of_new_versions_alone])
def test_a_scope_that_forgets_what_was_is_noticed(
    begun: Lakehouse, story: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Any
) -> None:
    facts, queries = story
    is_of_rows = mutant is of_new_rows_alone
    name = "touched_by_rows" if is_of_rows else "touched_by_queries"
    monkeypatch.setattr(f"sluice.silver.standing.{name}", mutant)
    lakehouse = begun.copied_to(tmp_path)
    known = (len(facts), 45) if is_of_rows else (60, len(queries))
    arrive(lakehouse, facts[60 : known[0]], queries[45 : known[1]])
    assert found_in(lakehouse) != implied(facts[: known[0]], queries[: known[1]])
