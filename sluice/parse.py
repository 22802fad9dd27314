"""Parse raw records into typed rows, and say of each one that cannot be used which rule it breaks."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

position = ("_topic", "_partition", "_offset")
# No clock wrote a time before this by intent: it is epoch zero, in some time zone.
event_time_least = "TIMESTAMP '1970-01-03 00:00:00'"


def parse(
    records: "DataFrame",
    *,
    schema: str,
    columns: tuple[str, ...],
    required: tuple[str, ...],
    event_time: str | None,
    future_tolerance: str,
    record_bytes_max: int,
) -> "DataFrame":
    """Bronze records as rows of `schema`, with the record's position, and `_rule`: the rule it breaks, or null.

    Every record gives exactly one row. `_digest` is a hash of the parsed values, `_unknown_fields` the names of fields
    that the schema lacks (null when there are none).
    """
    size = F.octet_length("value")
    text = F.when(size <= record_bytes_max, F.col("value").cast("string"))
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "_corrupt",
        "maxStringLen": str(record_bytes_max),
    }
    parsed = records.select(
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        size.alias("_size"),
        text.alias("_text"),
        F.from_json(text, f"{schema}, _corrupt string", options).alias("_parsed"),
    )
    named = parsed.select("*", *[F.col("_parsed").getField(name).alias(name) for name in columns])
    rule = broken_rule(required, event_time, future_tolerance, record_bytes_max)
    known = F.array(*[F.lit(name) for name in columns])
    unknown = F.array_except(F.json_object_keys("_text"), known)
    return named.select(
        *columns,
        *position,
        "_timestamp",
        F.xxhash64(*columns).alias("_digest"),
        F.when(F.size(unknown) > 0, unknown).alias("_unknown_fields"),
        rule.alias("_rule"),
    )


def broken_rule(
    required: tuple[str, ...], event_time: str | None, future_tolerance: str, record_bytes_max: int
) -> "Column":
    """The first rule that a parsed record breaks; null for a good one."""
    text = F.col("_text")
    rule = (
        F.when(F.col("_size").isNull(), "null_value")
        .when(F.col("_size") > record_bytes_max, "record_too_large")
        .when(~F.is_valid_utf8(text), "invalid_utf8")
        .when(F.trim(text) == "", "empty_value")
        .when(F.col("_parsed._corrupt").isNotNull() & F.try_parse_json(text).isNull(), "malformed_json")
        .when(F.col("_parsed._corrupt").isNotNull(), "wrong_type")
    )
    for name in required:
        rule = rule.when(F.col(name).isNull(), f"null_{name}")
    if event_time is not None:
        latest = F.col("_timestamp") + F.expr(f"INTERVAL {future_tolerance}")
        rule = rule.when(F.col(event_time) > latest, f"{event_time}_in_the_future")
        rule = rule.when(F.col(event_time) < F.expr(event_time_least), f"{event_time}_before_1970_01_03")
    return rule
