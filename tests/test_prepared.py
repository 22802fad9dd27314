"""A prepared selection: the plan that Spark made once gives of each frame what it gives when it is made again."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from sluice.model import prepared
from sluice.model.prepared import Prepared
from sluice.model.small_frames import frame_of
from tests.kit import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
texts = st.one_of(st.none(), st.text("aé'`\\", max_size=3))
numbers = st.one_of(st.none(), st.integers(-(2**29), 2**29))


def doubled(df: "DataFrame") -> "DataFrame":
    """Columns that are made of others, one that stays as it is, and one that is made of none."""
    twice = df.select(
        F.col("`a.b`"), (F.col("number") * 2).alias("twice"), F.coalesce("`a.b`", F.lit("-")).alias("text")
    )
    return twice.withColumn("more", F.concat_ws("/", "text", "twice")).withColumn("constant", F.lit(1))


def frame(spark: "SparkSession", *rows: Row, number: str = "int") -> "DataFrame":
    return spark.createDataFrame(list(rows), f"`a.b` string, number {number}")


def rows_of(df: "DataFrame") -> list[Row]:
    return sorted((tuple(row) for row in df.collect()), key=repr)


def is_planned(selection: Prepared) -> list[bool]:
    """For each kind of frame, whether its plan is kept."""
    return [each is not None for each in selection.kept.values()]


def test_frames_of_the_same_columns_share_a_plan(spark: "SparkSession") -> None:
    selection = Prepared(doubled)

    @settings(deadline=None, max_examples=20)
    @given(rows=st.lists(st.tuples(texts, numbers), max_size=4), is_large=st.booleans())
    def gives_what_is_made(rows: list[Row], *, is_large: bool) -> None:
        df = frame(spark, *rows).repartition(2) if is_large else frame(spark, *rows)
        found, expected = selection.of(df), doubled(df)
        assert found.schema == expected.schema
        assert rows_of(found) == rows_of(expected)

    gives_what_is_made()
    assert is_planned(selection) == [True]


def test_frames_of_other_columns_have_another_plan(spark: "SparkSession") -> None:
    selection = Prepared(doubled)
    assert rows_of(selection.of(frame(spark, ("a", 1)))) == [("a", 2, "a", "a/2", 1)]
    assert rows_of(selection.of(frame(spark, ("a", 2**40), number="bigint"))) == [("a", 2**41, "a", f"a/{2**41}", 1)]
    swapped = spark.createDataFrame([(3, "b")], "number int, `a.b` string")
    assert rows_of(selection.of(swapped)) == [("b", 6, "b", "b/6", 1)]
    assert is_planned(selection) == [True, True, True]


def test_a_plan_for_other_columns_is_noticed(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find if plans were kept whatever the columns are."""
    monkeypatch.setattr(prepared, "columns_of", lambda df: "")
    selection = Prepared(lambda df: df.select("number"))
    assert rows_of(selection.of(spark.createDataFrame([(1, 2)], "number int, other int"))) == [(1,)]
    assert rows_of(selection.of(spark.createDataFrame([(1, 2)], "other int, number int"))) == [(1,)]


def test_frames_of_one_plan_are_put_together(spark: "SparkSession") -> None:
    selection = Prepared(doubled)
    one, other = (selection.of(frame(spark, *rows)) for rows in ([("a", 1), ("b", 2)], [("b", 2), ("c", 3)]))
    names = ["`a.b`", "twice"]
    assert rows_of(one.unionByName(other).select(*names)) == [("a", 2), ("b", 4), ("b", 4), ("c", 6)]
    assert rows_of(one.join(other.select("twice"), "twice", "left_semi").select(*names)) == [("b", 4)]
    left, right = one.alias("left"), other.alias("right")
    both = left.join(right, F.col("left.twice") < F.col("right.twice")).select("left.twice", "right.more")
    assert rows_of(both) == [(2, "b/4"), (2, "c/6"), (4, "c/6")]
    again = selection.of(selection.of(frame(spark, ("a", 1))).select("`a.b`", F.col("twice").alias("number")))
    assert rows_of(again.select(*names)) == [("a", 4)]


def test_a_schema_that_is_changed_in_place_is_that_of_one_frame(spark: "SparkSession") -> None:
    selection = Prepared(doubled)
    selection.of(frame(spark, ("a", 1))).schema.add("added", LongType())
    assert "added" not in selection.of(frame(spark, ("a", 1))).columns


def test_the_time_is_that_of_each_frame(spark: "SparkSession") -> None:
    selection = Prepared(lambda df: df.select("number", F.current_timestamp().alias("at")))
    first, second = (selection.of(frame(spark, ("a", 1))).collect()[0]["at"] for _ in range(2))
    assert first < second
    assert is_planned(selection) == [False]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda df: df.where("number > 1"), [("b", 2)]),
        (lambda df: df.groupBy().agg(F.max("number")), [(2,)]),
        (lambda df: df.select(F.expr("number IN (SELECT 1)").alias("is_one")), [(False,), (True,)]),
        (lambda df: df.selectExpr("number", "rank() OVER (ORDER BY number)"), [(1, 1), (2, 2)]),
    ],
    ids=["filter", "aggregate", "subquery", "window"],
)
def test_what_is_no_selection_of_each_row_is_made_each_time(
    spark: "SparkSession", make: "prepared.Make", expected: list[Row]
) -> None:
    selection = Prepared(make)
    for _ in range(2):
        assert rows_of(selection.of(frame(spark, ("a", 1), ("b", 2)))) == expected
    assert is_planned(selection) == [False]


def test_rows_that_the_driver_has_are_selected_alike(spark: "SparkSession") -> None:
    selection, df = Prepared(doubled), frame(spark, ("a", 1), (None, None))
    known = frame_of(spark, df.toArrow(), df.schema)
    assert rows_of(selection.of(known)) == rows_of(doubled(df))
    assert rows_of(selection.of(frame_of(spark, None, df.schema))) == []
