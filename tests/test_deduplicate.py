"""Deduplicate: the first record of a key in the log's order wins, and no record is a duplicate of itself."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from sluice.errors import SluiceError
from sluice.model.few_rows import comparable
from sluice.model.small_frames import frame_of, small_rows
from sluice.shapes.deduplicate import deduplicate, deduplicate_few, verdict
from sluice.shapes.few_fates import in_columns_of
from tests.kit import Row, frame, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

schema = "_key string, _timestamp hours, _topic string, _partition int, _offset bigint, _digest bigint"


def by_driver(candidates: "DataFrame", *duplicates: "DataFrame") -> "DataFrame":
    """What the driver says of rows that it has."""
    rows, *former = map(rows_in_driver, [candidates, *duplicates])
    found = deduplicate_few(rows, *[in_columns_of(rows.schema, each) for each in former])
    assert found is not None
    columns = StructType([*candidates.schema, *[StructField(name, StringType()) for name in verdict]])
    return frame_of(candidates.sparkSession, found, columns)


def rows_in_driver(df: "DataFrame") -> pa.Table:
    rows = small_rows(df)
    assert rows is not None
    return rows


judges = pytest.mark.parametrize("judge", [deduplicate, by_driver])
record = ("k", 1.0, "t", 0, 1, 7)
# Records, and what is said of each: by Spark, or by the driver.
judged: dict[str, tuple[list[Row], list[Row]]] = {
    "the first by log time wins": (
        [("k", 2.0, "t", 0, 1, 7), ("k", 1.0, "t", 0, 9, 7)],
        [(1, "duplicate", "same_payload", "t/0/9"), (9, None, None, None)],
    ),
    "partition and offset break ties": (
        [("k", 1.0, "t", 1, 3, 7), ("k", 1.0, "t", 0, 5, 7), ("k", 1.0, "t", 0, 4, 7)],
        [
            (3, "duplicate", "same_payload", "t/0/4"),
            (4, None, None, None),
            (5, "duplicate", "same_payload", "t/0/4"),
        ],
    ),
    "another payload under the same key is told apart": (
        [("k", 1.0, "t", 0, 1, 7), ("k", 2.0, "t", 0, 2, 8)],
        [(1, None, None, None), (2, "duplicate", "other_payload", "t/0/1")],
    ),
    "a record that is read again is one record": ([record, record], [(1, None, None, None)]),
    "a record without a digest is like no other": (
        [("k", 1.0, "t", 0, 1, None), ("k", 2.0, "t", 0, 2, None)],
        [(1, None, None, None), (2, "duplicate", "other_payload", "t/0/1")],
    ),
}


@judges
def test_the_first_record_of_a_key_in_the_logs_order_wins(
    spark: "SparkSession", judge: Callable[..., "DataFrame"]
) -> None:
    """The cases lie side by side, each with a key of its own."""
    rows = [(case, *values[1:]) for case, (records, _) in judged.items() for values in records]
    found: dict[str, list[Row]] = {case: [] for case in judged}
    for case, *verdicts in rows_of(judge(frame(spark, schema, rows)), "_key", "_offset", "_fate", "_reason", "_detail"):
        found[case].append(tuple(verdicts))
    assert found == {case: expected for case, (_, expected) in judged.items()}


@judges
def test_nothing_is_deduplicated_to_nothing(spark: "SparkSession", judge: Callable[..., "DataFrame"]) -> None:
    assert rows_of(judge(frame(spark, schema, [])), "_offset", *verdict) == []


@judges
def test_a_former_duplicate_gives_way_to_the_same_record_with_its_values(
    spark: "SparkSession", judge: Callable[..., "DataFrame"]
) -> None:
    former = frame(spark, schema, [("k", 1.0, "t", 0, 1, 7), ("k", 2.0, "t", 0, 2, 7)])
    again = frame(spark, f"{schema}, value string", [("k", 1.0, "t", 0, 1, 7, "a")])
    found = rows_of(judge(again, former), "_offset", "value", "_fate", "_detail")
    assert found == [(1, "a", None, None), (2, None, "duplicate", "t/0/1")]


@judges
def test_a_former_duplicate_whose_accepted_row_is_gone_is_no_row(
    spark: "SparkSession", judge: Callable[..., "DataFrame"]
) -> None:
    new = frame(spark, schema, [("k", 3.0, "t", 0, 3, 7)])
    former = frame(spark, schema, [("k", 2.0, "t", 0, 2, 7)])
    with pytest.raises((SluiceError, PySparkException), match="has lost the row of which the record at t/0/2"):
        judge(new, former).collect()


def test_the_driver_leaves_rows_without_a_place_to_spark(spark: "SparkSession") -> None:
    rows = rows_in_driver(frame(spark, schema, [record]))
    assert deduplicate_few(rows) is not None
    for place, field in enumerate(list(rows.schema)[:5]):
        assert deduplicate_few(rows.set_column(place, field, pa.nulls(1, field.type))) is None, field.name


# Few values, so that keys, times and places are often the same; of one place there is one time.
places = st.tuples(st.sampled_from(["t", "é", "a/b"]), st.integers(0, 1), st.integers(0, 3))
records = st.lists(
    st.tuples(st.sampled_from(["", "k", "k\x01", "\U0001f600", "\uffff"]), places, st.none() | st.integers(0, 1)),
    max_size=12,
)
Drawn = list[tuple[str, tuple[str, int, int], int | None]]


# The cases of an example lie side by side: the first one has its keys as they are, those of the others begin alike.
# The first example is the least one, with cases of no records.
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(records, min_size=6, max_size=6))
def test_the_driver_judges_as_spark_does(spark: "SparkSession", drawn: list[Drawn]) -> None:
    rows: list[Row] = []
    for case, of_case in enumerate(drawn):
        # One record has one key and one payload, however often it is read.
        of_places = {
            place: (f"{case}/{key}" if case else key, (place[1] + place[2]) % 3 / 2, *place, digest)
            for key, place, digest in of_case
        }
        rows += [of_places[place] for _, place, _ in of_case]
    made = frame(spark, schema, rows)
    columns = ("_key", "_timestamp", "_topic", "_partition", "_offset", "_digest", *verdict)
    assert rows_of(by_driver(made), *columns) == rows_of(deduplicate(made), *columns)


def test_a_driver_that_takes_the_last_record_is_found_out(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the law above."""
    made = frame(spark, schema, [("k", 1.0, "t", 0, 1, 7), ("k", 2.0, "t", 0, 2, 7)])
    monkeypatch.setattr("sluice.shapes.deduplicate.comparable", comparable_backwards)
    assert rows_of(by_driver(made), *verdict, "_offset") != rows_of(deduplicate(made), *verdict, "_offset")


def comparable_backwards(column: "pa.ChunkedArray[Any]") -> list[object]:
    """Times that run backwards."""
    found = comparable(column)
    return [-each for each in found] if pa.types.is_timestamp(column.type) else found
