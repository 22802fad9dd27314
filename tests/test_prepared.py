"""What is prepared: the plan that Spark made once gives of each frame what it gives when it is made again."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
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
    return [isinstance(each, prepared.Plan) for each in selection.kept.values()]


of_one = {
    "selection": doubled,
    "filter": lambda df: df.where("number > 1"),
    "aggregate": lambda df: df.groupBy("`a.b`").agg(F.max("number"), F.count("*").alias("n")).where("n > 1"),
    "all rows": lambda df: df.groupBy().agg(F.sum("number")),
    "distinct": lambda df: df.select("number").distinct(),
    "window": lambda df: df.withColumn("before", F.expr("lag(number) OVER (PARTITION BY `a.b` ORDER BY number)")).where(
        "before IS NULL"
    ),
    "several": lambda df: df.select("number", F.explode(F.array(F.lit(1), F.col("number"))).alias("each")),
}
of_two = {
    "union": lambda df, other: df.unionByName(other.withColumn("more", F.lit(1)), allowMissingColumns=True),
    "outer join": lambda df, other: df.selectExpr("struct(*) AS one").join(
        other.selectExpr("struct(*) AS two"), F.expr("one <=> two"), "full_outer"
    ),
    "semi-join": lambda df, other: df.join(F.broadcast(other), "number", "left_semi"),
    "rows of one": lambda df, other: other.select(F.lit(len(df.columns)).alias("columns"), "number"),
}
rows_drawn = st.lists(st.tuples(texts, numbers), max_size=4)


def as_drawn(spark: "SparkSession", rows: list[Row], kind: str) -> "DataFrame":
    """A frame of rows as Spark has them, in several partitions, as the driver has them, or as others made them."""
    df = frame(spark, *rows)
    if kind == "the driver's":
        return frame_of(spark, df.toArrow(), df.schema)
    if kind == "computed":
        return df.selectExpr("*", "number AS twice").drop("twice").where("number IS NULL OR true")
    return df.repartition(2) if kind == "several parts" else df


kinds = st.sampled_from(["Spark's", "several parts", "the driver's", "computed"])


@pytest.mark.parametrize("name", [*of_one, *of_two])
def test_frames_of_the_same_columns_share_a_plan(spark: "SparkSession", name: str) -> None:
    make: Any = of_one.get(name) or of_two.get(name)
    count, selection = (1 if name in of_one else 2), Prepared(make, made_first=1)

    @settings(deadline=None, max_examples=10)
    @given(drawn=st.lists(st.tuples(rows_drawn, kinds), min_size=count, max_size=count))
    def gives_what_is_made(drawn: list[tuple[list[Row], str]]) -> None:
        frames = [as_drawn(spark, rows, kind) for rows, kind in drawn]
        found, expected = selection.of(*frames), make(*frames)
        assert found.schema == expected.schema
        assert rows_of(found) == rows_of(expected)

    gives_what_is_made()
    assert is_planned(selection) == [True]


def test_frames_of_other_columns_have_another_plan(spark: "SparkSession") -> None:
    selection = Prepared(doubled, made_first=1)
    for _ in range(2):
        assert rows_of(selection.of(frame(spark, ("a", 1)))) == [("a", 2, "a", "a/2", 1)]
        large = frame(spark, ("a", 2**40), number="bigint")
        assert rows_of(selection.of(large)) == [("a", 2**41, "a", f"a/{2**41}", 1)]
        swapped = spark.createDataFrame([(3, "b")], "number int, `a.b` string")
        assert rows_of(selection.of(swapped)) == [("b", 6, "b", "b/6", 1)]
    assert is_planned(selection) == [True, True, True]


def test_a_plan_for_other_columns_is_noticed(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find if plans were kept whatever the columns are."""
    monkeypatch.setattr(prepared, "columns_of", lambda df: "")
    selection = Prepared(made_first=1, make=lambda df: df.select("number"))
    for _ in range(2):
        assert rows_of(selection.of(spark.createDataFrame([(1, 2)], "number int, other int"))) == [(1,)]
    assert rows_of(selection.of(spark.createDataFrame([(1, 2)], "other int, number int"))) == [(1,)]


@pytest.mark.parametrize("make", [doubled, lambda df: doubled(df).where("twice > 0")], ids=["selection", "filter"])
def test_frames_of_one_plan_are_put_together(spark: "SparkSession", make: prepared.Make) -> None:
    selection = Prepared(make, made_first=1)
    selection.of(frame(spark))
    one, other = (selection.of(frame(spark, *rows)) for rows in ([("a", 1), ("b", 2)], [("b", 2), ("c", 3)]))
    names = ["`a.b`", "twice"]
    assert rows_of(one.unionByName(other).select(*names)) == [("a", 2), ("b", 4), ("b", 4), ("c", 6)]
    turned = other.select(F.col("constant").alias("twice"), F.col("twice").alias("constant"))
    assert rows_of(one.select("twice", "constant").union(turned)) == [(1, 4), (1, 6), (2, 1), (4, 1)]
    assert rows_of(one.join(other.select("twice"), "twice", "left_semi").select(*names)) == [("b", 4)]
    left, right = one.alias("left"), other.alias("right")
    both = left.join(right, F.col("left.twice") < F.col("right.twice")).select("left.twice", "right.more")
    assert rows_of(both) == [(2, "b/4"), (2, "c/6"), (4, "c/6")]
    assert is_planned(selection) == [True]


def test_a_plan_is_put_upon_what_it_gave(spark: "SparkSession") -> None:
    """The same attributes would mean two things in one plan, so it is made again then."""
    selection = Prepared(
        lambda df: df.select(F.coalesce("number", F.lit(0)).alias("other"), (F.col("other") + 1).alias("number")).where(
            "number > 1"
        )
    )

    def applied(times: int) -> list[Row]:
        df = spark.createDataFrame([(1, 1), (5, 3)], "number int, other int").repartition(2)
        for _ in range(times):
            df = selection.of(df.selectExpr("number", "other"))
        return rows_of(df)

    for times, expected in [(1, [(1, 2), (5, 4)]), (2, [(2, 2), (4, 6)]), (3, [(2, 3), (6, 5)])]:
        assert applied(times) == expected


def test_a_schema_that_is_changed_in_place_is_that_of_one_frame(spark: "SparkSession") -> None:
    selection = Prepared(doubled, made_first=1)
    for _ in range(2):
        selection.of(frame(spark, ("a", 1))).schema.add("added", LongType())
    assert "added" not in selection.of(frame(spark, ("a", 1))).columns


def test_the_time_is_that_of_each_frame(spark: "SparkSession") -> None:
    selection = Prepared(made_first=1, make=lambda df: df.select("number", F.current_timestamp().alias("at")))
    first, second, third = (selection.of(frame(spark, ("a", 1))).collect()[0]["at"] for _ in range(3))
    assert first < second < third
    assert is_planned(selection) == [False]


def test_chance_is_that_of_each_frame(spark: "SparkSession") -> None:
    selection = Prepared(made_first=1, make=lambda df: df.select(F.rand().alias("chance")))
    assert len({row for _ in range(3) for row in selection.of(frame(spark, ("a", 1))).collect()}) == 3
    assert is_planned(selection) == [False]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda df: df.select(F.expr("number IN (SELECT 1)").alias("is_one")), [(False,), (True,)]),
        (lambda df: df.where(F.col("number") == df.groupBy().agg(F.max("number")).collect()[0][0]), [("b", 2)]),
        (lambda df: df.select("number").join(df, "number"), [(1, "a"), (2, "b")]),
        (lambda df: df.where("number > 1").unionByName(df), [("a", 1), ("b", 2), ("b", 2)]),
    ],
    ids=["subquery", "what depends on rows", "joined with itself", "united with itself"],
)
def test_what_cannot_be_put_upon_other_rows_is_made_each_time(
    spark: "SparkSession", make: prepared.Make, expected: list[Row]
) -> None:
    selection = Prepared(make, made_first=1)
    for _ in range(3):
        assert rows_of(selection.of(frame(spark, ("a", 1), ("b", 2)))) == expected
    assert is_planned(selection) == [False]


def test_frames_that_the_driver_computes_at_the_same_time_share_no_lambda(spark: "SparkSession") -> None:
    """A lambda keeps its argument while it is computed."""
    selection = Prepared(
        made_first=1, make=lambda df: df.select("number", F.transform(F.array("number"), lambda n: n + 1).alias("next"))
    )
    parts = [pa.table({"number": pa.array(range(start, start + 2_000), pa.int32())}) for start in (0, 10_000, 20_000)]
    frames = [spark.createDataFrame(part) for part in parts]
    selection.of(frames[0])
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda df: [selection.of(df).collect() for _ in range(4)], frames))
    assert all(row["next"] == [row["number"] + 1] for each in found for rows in each for row in rows)
    assert is_planned(selection) == [True]


def test_rows_that_the_driver_has_are_selected_alike(spark: "SparkSession") -> None:
    selection, df = Prepared(doubled, made_first=1), frame(spark, ("a", 1), (None, None))
    known = frame_of(spark, df.toArrow(), df.schema)
    assert rows_of(selection.of(known)) == rows_of(doubled(df))
    assert rows_of(selection.of(frame_of(spark, None, df.schema))) == []
