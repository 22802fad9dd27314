"""Columns of the record around a value, tombstones and elements of arrays: the same rows in any order."""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import bronze, silver
from sluice.log import Record
from sluice.model.datasets import Dataset
from sluice.shapes import elements, record_columns, strict
from tests.kit import Lakehouse, Row, at, text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

wide = "1000 days"


def declared() -> tuple[Dataset, ...]:
    """The datasets, made again: a declaration keeps its columns, and with them the code that made them."""
    orders = silver.events(
        "orders",
        source=bronze.topic("orders"),
        schema="id string, at timestamp, trace string, attempt int, price decimal(6,2), sent timestamp, shop string, "
        "place bigint, lines array<struct<sku: string, at: timestamp>>, tags array<string>",
        keys=["id", "shop"],
        event_time="at",
        future_tolerance=wide,
        from_record={
            "shop": "key",
            "trace": "headers['trace-id']",
            "attempt": "headers['attempt']",
            "price": "headers['it''s a price']",
            "sent": "Headers['sent']",
            "place": "offset",
        },
    )
    lines = silver.explode("order_lines", source=orders, column="lines", ordinal="line", prefix="line_")
    tags = silver.explode("order_tags", source=orders, column="tags")
    customers = silver.history(
        "customers",
        source=bronze.topic("customers"),
        schema="country string, id int, name string, changed_at timestamp, is_gone boolean",
        keys=["country", "id"],
        sequence_by="changed_at",
        apply_as_deletes="is_gone",
        future_tolerance=wide,
        from_record={
            "country": "key['country']",
            "id": "key['id']",
            "changed_at": "timestamp",
            "is_gone": "value IS NULL",
        },
    )
    return orders, lines, tags, customers


hostile = ("", "é😀", "a\x00b", "null", "}{", "'", '"')
Stored = tuple[str, Record]


def drawn(seed: int) -> list[Stored]:
    """Records with whatever a producer may write around a value."""
    draw = random.Random(seed)
    return [(order if draw.random() < 0.6 else customer)(draw, hour) for hour in range(60)]


def order(draw: random.Random, hour: int) -> Stored:
    headers = {
        "trace-id": draw.choice(hostile),
        "attempt": draw.choice(["1", "-2", "2147483648", "1.0", "007", " 1", ""]) if draw.random() < 0.3 else "3",
        "it's a price": draw.choice(["1.5", "10", "1e1", "0.001", "99999", "x"]) if draw.random() < 0.3 else "2.50",
        "sent": draw.choice(["1969-12-31T23:59:59Z", "2024-05-01T10:00:00", "soon"])
        if draw.random() < 0.2
        else text(0),
    }
    sent = {name: value for name, value in headers.items() if draw.random() < 0.8}
    count = draw.choice([None, 0, 1, 3])
    parts = [{"sku": draw.choice([*hostile, None]), "at": text(each)} for each in range(count or 0)]
    value: dict[str, Any] = {
        "id": draw.choice("abcd"),
        "at": text(hour),
        "lines": None if count is None else parts,
        "trace": "not the header",
    }
    if draw.random() < 0.8:
        value["tags"] = [draw.choice([*hostile, None]) for _ in range(draw.randrange(3))]
    key = draw.choice(["north", "south", None, "é"])
    body = json.dumps(value).encode() if draw.random() < 0.9 else None
    return "orders", Record(body, key=key, timestamp=at(hour), headers=sent)


def customer(draw: random.Random, hour: int) -> Stored:
    name = {"country": draw.choice("AB"), "id": draw.randrange(2)}
    key: str | None = json.dumps(name)
    if draw.random() < 0.2:
        key = draw.choice(["", "A", '{"country":"A","id":"1"}', '{"country":"A"}', '{"id":1,"id":1}', None, "{}{}"])
    value = None if draw.random() < 0.3 else json.dumps({"name": draw.choice("xy"), "id": 7}).encode()
    return "customers", Record(value, key=key, timestamp=at(hour))


def lived(spark: "SparkSession", folder: Path, batches: Sequence[Sequence[Stored]]) -> Lakehouse:
    found = Lakehouse(spark, folder).declare(*declared())
    for batch in batches:
        for topic, record in batch:
            found.log.append(topic, [record])
        found.run()
    return found


columns = {
    "silver.orders": ("id", "shop", "at", "trace", "attempt", "price", "sent"),
    "silver.order_lines": ("id", "shop", "trace", "line", "line_sku", "line_at"),
    "silver.order_tags": ("id", "shop", "ordinal", "tags"),
    "silver.customers": ("country", "id", "name", "valid_from", "valid_to", "is_current"),
}


def tables(found: Lakehouse) -> dict[str, list[Row]]:
    return {name: found.rows(name, *wanted) for name, wanted in columns.items()}


@pytest.fixture(scope="module")
def at_once(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return lived(spark, tmp_path_factory.mktemp("at_once"), [drawn(1)])


def test_any_order_and_any_batches_give_the_same_rows(
    spark: "SparkSession", tmp_path: Path, at_once: Lakehouse
) -> None:
    records = drawn(1)
    shuffled = random.Random(2).sample(records, len(records))
    again = lived(
        spark, tmp_path, [shuffled[:40], *[[each] for each in shuffled[40:42]], [*shuffled[42:], *records[:5]]]
    )
    kept, other = tables(at_once), tables(again)
    # What was sent again has other places in the log, and the timestamps that it had.
    assert other == kept
    assert all(each.balanced for each in again.audits())
    assert [each for each in again.laws() if not each.balanced] == []
    assert again.run() == {}
    assert not any(event.rows.total for event in again.run(rebuild=True).values())


def test_the_rows_are_those_that_the_records_imply(at_once: Lakehouse) -> None:
    assert agrees(at_once)
    assert at_once.rows("silver.customers", *versions_wanted) == expected_versions(drawn(1))
    reasons = {row[0] for row in at_once.rows("silver._fates", "reason")}
    assert {"wrong_type", "invalid_key", "null_value", "null_shop", "invalid_time_sent", "no_offset_sent"} <= reasons


lines_wanted = ("id", "shop", "trace", "line", "line_sku")
versions_wanted = ("country", "id", "name", "valid_from", "valid_to")


def is_good(record: Record) -> bool:
    """Whether an order can be used, by plain Python."""
    headers = record.headers or {}
    return (
        record.value is not None
        and record.key is not None
        and headers.get("attempt", "1") in ("1", "-2", "3")
        and headers.get("it's a price", "10") in ("1.5", "10", "1e1", "2.50")
        and headers.get("sent", text(0)) in ("1969-12-31T23:59:59Z", text(0))
    )


def expected_lines(records: Sequence[Stored]) -> list[Row]:
    """The lines of the first good order of each key."""
    accepted: dict[tuple[str, str | None], list[Row]] = {}
    for record in (each for topic, each in records if topic == "orders" and is_good(each)):
        value, headers = json.loads(record.value or b""), record.headers or {}
        parts = enumerate(value["lines"] or [], start=1)
        found = [(value["id"], record.key, headers.get("trace-id"), place, each["sku"]) for place, each in parts]
        accepted.setdefault((value["id"], record.key), found)
    return sorted((line for found in accepted.values() for line in found), key=repr)


def expected_quarantined(records: Sequence[Stored]) -> int:
    return sum(topic == "orders" and not is_good(each) for topic, each in records)


def agrees(found: Lakehouse) -> bool:
    """Whether the orders are those that plain Python accepts, and the audit and all laws hold."""
    return (
        found.rows("silver.order_lines", *lines_wanted) == expected_lines(drawn(1))
        and found.audit()["silver.orders"].quarantined == expected_quarantined(drawn(1))
        and not any(each.broken for each in found.laws())
    )


def expected_versions(records: Sequence[Stored]) -> list[Row]:
    """The versions of customers, by plain Python: the log's timestamps order them, and tombstones end them."""
    found: list[list[Any]] = []
    current: dict[tuple[str, int], list[Any]] = {}
    for topic, record in records:
        if topic != "customers":
            continue
        try:
            key = json.loads(record.key or "")
            is_good = json.dumps(key) == record.key and isinstance(key["id"], int) and "country" in key
        except (ValueError, KeyError, TypeError):
            continue
        if not is_good:
            continue
        hour = (record.timestamp - at(0)).total_seconds() / 3600 if record.timestamp else 0.0
        name = None if record.value is None else json.loads(record.value)["name"]
        who = (key["country"], key["id"])
        if who in current and current[who][3] is not None and name == current[who][2]:
            continue
        if who in current:
            current.pop(who)[4] = hour
        if record.value is not None:
            current[who] = [*who, name, hour, None]
            found.append(current[who])
    return sorted((tuple(each) for each in found), key=repr)


def guessed(text: "Column", typed: strict.Typed) -> "Column":
    return text.try_cast(typed.kind)


def without_order(rows: "DataFrame", rule: elements.Elements) -> "DataFrame":
    return honest(rows, rule).withColumn(rule.ordinal, F.lit(1))


honest = elements.elements


mutants = {
    "a number in a header is guessed": (record_columns, "of_text", guessed),
    "elements have no places": (sys.modules["sluice.silver.explode"], "elements", without_order),
}


@pytest.mark.parametrize("mutant", mutants)
def test_a_mutant_is_found(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(*mutants[mutant])
    found = Lakehouse(spark, tmp_path).declare(*declared()[:2])
    for topic, record in drawn(1):
        if topic == "orders":
            found.log.append(topic, [record])
    found.run()
    assert not agrees(found)
