"""Parse: every record gives one row, and what cannot be used says which rule it breaks."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from sluice.parse import Changes, Parsing, parse
from tests.kit import at, text

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

bronze_schema = "topic string, partition int, offset bigint, value binary, timestamp timestamp"
good = {"id": "a", "seen_at": text(1), "size": 3, "tags": ["x"]}


def parsed(spark: "SparkSession", *values: bytes | None, record_bytes_max: int = 1000) -> "list[Row]":
    records = [("t", 0, offset, value, at(2)) for offset, value in enumerate(values)]
    rows = parse(
        spark.createDataFrame(records, bronze_schema),
        Parsing(
            schema="id string, seen_at timestamp, size int, tags array<string>",
            required=("id", "seen_at"),
            event_time="seen_at",
            record_bytes_max=record_bytes_max,
        ),
    )
    return rows.orderBy("_offset").collect()


def encoded(**changes: Any) -> bytes:
    return json.dumps(good | changes).encode()


broken = {
    "null_value": None,
    "empty_value": b"  ",
    "invalid_utf8": b'{"id":"\xff"}',
    "malformed_json": b'{"id":"a"',
    "wrong_type": encoded(size="large"),
    "record_too_large": encoded(id="x" * 2000),
    "null_id": encoded(id=None),
    "null_seen_at": encoded(seen_at=None),
    "seen_at_in_the_future": encoded(seen_at="2999-01-01T00:00:00Z"),
    "seen_at_before_1970_01_03": encoded(seen_at="1970-01-01T00:00:00Z"),
}


def test_each_broken_record_names_its_rule_and_none_is_lost(spark: "SparkSession") -> None:
    rows = parsed(spark, *broken.values())
    assert [row["_rule"] for row in rows] == list(broken)


@pytest.mark.parametrize("value", [b"null", b"17", b"[1]", b'"text"', b"\x00"])
def test_what_is_no_object_is_no_row_of_nulls(spark: "SparkSession", value: bytes) -> None:
    assert parsed(spark, value)[0]["_rule"] is not None


def test_a_good_record_breaks_no_rule(spark: "SparkSession") -> None:
    (row,) = parsed(spark, encoded())
    assert (row["id"], row["size"], row["tags"], row["_rule"], row["_unknown_fields"]) == ("a", 3, ["x"], None, None)


def test_unknown_fields_are_named_and_the_record_kept(spark: "SparkSession") -> None:
    (row,) = parsed(spark, encoded(gate="7"))
    assert (row["id"], row["_rule"], row["_unknown_fields"]) == ("a", None, ["gate"])


def test_missing_fields_are_null(spark: "SparkSession") -> None:
    (row,) = parsed(spark, json.dumps({"id": "a", "seen_at": text(1)}).encode())
    assert (row["size"], row["_rule"]) == (None, None)


def test_a_20_megabyte_record_is_parsed_where_it_is_allowed(spark: "SparkSession") -> None:
    (row,) = parsed(spark, encoded(id="x" * 20_000_000), record_bytes_max=30_000_000)
    assert (len(row["id"]), row["_rule"]) == (20_000_000, None)


timed = Parsing(
    schema="id string, seen_at timestamp, sent_at timestamp, received_at timestamp",
    required=("id", "seen_at"),
    event_time="seen_at",
    sent_time="sent_at",
    received_time="received_at",
    hold_later_than="90 minutes",
)


@pytest.mark.parametrize(
    ("times", "event", "rule"),
    [
        ((1.0, None, 2.0), 1.0, None),  # nothing to correct by
        ((1.0, 1.5, 2.0), 1.5, None),  # the device is half an hour slow
        ((1.0, 2.5, 2.0), 0.5, None),  # or fast, and then it is just in time
        ((1.0, 2.6, 2.0), 0.4, "late"),
        ((1.0, None, None), 1.0, None),  # received when the log took it in, at 2:00
        ((0.4, None, None), 0.4, "late"),
    ],
)
def test_event_time_is_corrected_and_lateness_is_a_property_of_the_record(
    spark: "SparkSession", times: tuple[float | None, ...], event: float, rule: str | None
) -> None:
    seen, sent, received = [None if hours is None else text(hours) for hours in times]
    value = {"id": "a", "seen_at": seen, "sent_at": sent, "received_at": received}
    records = [("t", 0, 0, json.dumps(value).encode(), at(2))]
    (row,) = parse(spark.createDataFrame(records, bronze_schema), timed).collect()
    assert (row["seen_at"].timestamp() - at(0).timestamp()) / 3600 == pytest.approx(event)
    assert row["_rule"] == rule
    assert row["_lateness_seconds"] == pytest.approx(((times[2] or 2.0) - event) * 3600)


captured = Parsing(
    schema="id int, name string",
    required=("id", "lsn", "transaction_order", "committed_at"),
    event_time="committed_at",
    format="debezium",
    changes=Changes(keys=("id",)),
)


def change(op: str, before: Any = None, after: Any = None, lsn: int | None = 7) -> bytes:
    source = {"ts_ms": int(at(1).timestamp() * 1000), "lsn": lsn, "db": "shop"}
    return json.dumps({"op": op, "before": before, "after": after, "source": source, "ts_ms": 1}).encode()


row_before, row_after = {"id": 1, "name": "old"}, {"id": 1, "name": "new"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (change("c", after=row_after), ("set", 1, "new", None, None)),
        (change("r", after=row_after), ("set", 1, "new", None, None)),
        (change("u", row_before, row_after), ("set", 1, "new", None, None)),
        (change("u", {"id": 2, "name": None}, row_after), ("set", 1, "new", 2, None)),
        (change("u", None, row_after), ("set", 1, "new", None, None)),
        (change("d", row_before), ("delete", 1, "old", None, None)),
        (change("t"), ("truncate", None, None, None, None)),
        (change("m"), ("none", None, None, None, None)),
        (None, ("none", None, None, None, None)),  # the tombstone after a delete
        (change("c", after={"name": "x"}), ("set", None, "x", None, "null_id")),
        (change("c", after=row_after, lsn=None), ("set", 1, "new", None, "null_lsn")),
        (change("x", after=row_after), ("set", 1, "new", None, "unknown_op")),
        (b'{"id": 1}', ("set", None, None, None, "unknown_op")),
        (b"{", ("set", None, None, None, "malformed_json")),
    ],
)
def test_an_envelope_of_debezium_is_a_change(
    spark: "SparkSession", value: bytes | None, expected: tuple[Any, ...]
) -> None:
    wrapped = None if value is None else b'{"schema": {"type": "struct"}, "payload": ' + value + b"}"
    for each in (value, wrapped):
        (row,) = parse(spark.createDataFrame([("t", 0, 0, each, at(2))], bronze_schema), captured).collect()
        moved_from = row["_moved_from"] and row["_moved_from"]["id"]
        assert (row["_change"], row["id"], row["name"], moved_from, row["_rule"]) == expected
