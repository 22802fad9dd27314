"""Deduplicate: the first record of a key in the log's order wins, and no record is a duplicate of itself."""

from typing import TYPE_CHECKING

from sluice.shapes.deduplicate import deduplicate
from tests.kit import Row, frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

schema = "_key string, _timestamp hours, _topic string, _partition int, _offset bigint, _digest bigint"


def fates(spark: "SparkSession", *records: Row) -> list[Row]:
    return rows_of(deduplicate(frame(spark, schema, records)), "_offset", "_fate", "_reason", "_detail")


def test_the_first_by_log_time_wins(spark: "SparkSession") -> None:
    assert fates(spark, ("k", 2.0, "t", 0, 1, 7), ("k", 1.0, "t", 0, 9, 7)) == [
        (1, "duplicate", "same_payload", "t/0/9"),
        (9, None, None, None),
    ]


def test_partition_and_offset_break_ties(spark: "SparkSession") -> None:
    assert fates(spark, ("k", 1.0, "t", 1, 3, 7), ("k", 1.0, "t", 0, 5, 7), ("k", 1.0, "t", 0, 4, 7)) == [
        (3, "duplicate", "same_payload", "t/0/4"),
        (4, None, None, None),
        (5, "duplicate", "same_payload", "t/0/4"),
    ]


def test_another_payload_under_the_same_key_is_told_apart(spark: "SparkSession") -> None:
    assert fates(spark, ("k", 1.0, "t", 0, 1, 7), ("k", 2.0, "t", 0, 2, 8)) == [
        (1, None, None, None),
        (2, "duplicate", "other_payload", "t/0/1"),
    ]


def test_a_record_read_again_is_one_record(spark: "SparkSession") -> None:
    record = ("k", 1.0, "t", 0, 1, 7)
    assert fates(spark, record, record) == [(1, None, None, None)]
