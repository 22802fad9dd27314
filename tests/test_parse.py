"""Parse: every record gives one row, and what cannot be used says which rule it breaks."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from sluice.parse import Parsing, parse
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
