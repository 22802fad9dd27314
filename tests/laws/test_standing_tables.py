"""Tables of matches: whatever arrives late, changes or is gone, rows or queries, they hold what the records imply."""

import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from sluice import bronze, silver
from sluice.model.ledger import RowCounts
from tests.kit import Lakehouse, text
from tests.oracles.standing import is_match, versions_of

if TYPE_CHECKING:
    pass

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


def test_matches_are_what_the_records_imply_in_whatever_order_they_arrive(lakehouse: Lakehouse, tmp_path: Path) -> None:
    random = Random(seed)
    facts, queries = drawn(random)
    lakehouse.declare(alerts)
    steps = [(50, 40), (51, 40), (51, 41), (60, 40), (60, 60), (len(facts), len(queries))]
    seen = (0, 0)
    for of_facts, of_queries in steps:
        done = arrive(lakehouse, facts[seen[0] : of_facts], queries[seen[1] : max(of_queries, seen[1])])
        seen = (of_facts, max(of_queries, seen[1]))
        assert found_in(lakehouse) == implied(facts[: seen[0]], queries[: seen[1]]), (seed, seen)
        assert done.get("silver.alerts") is None or done["silver.alerts"].cause in ("first build", "changes")
    assert [law for law in lakehouse.laws() if law.broken] == []
    assert lakehouse.run() == {}
    again = lakehouse.run(rebuild=True)
    assert again["silver.alerts"].rows == RowCounts()
    # The other way round, and each record twice.
    other = Lakehouse(lakehouse.spark, tmp_path / "other").declare(alerts)
    arrive(other, facts[::-1] * 2, queries[:3])
    arrive(other, [], queries[::-1])
    assert found_in(other) == found_in(lakehouse)
