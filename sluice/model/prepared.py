"""Prepared: what is computed row by row, planned once by Spark and not again for each frame.

To resolve the names and types of a hundred columns, and to simplify them, takes 0.1 s of CPU, however few rows there
are. Where no more than that is done, the plan is put upon the rows of other frames with the same columns.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pyspark import SparkContext
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[["DataFrame"], "DataFrame"]
# Kinds of frames, of which each plan takes some 50 KB.
kinds_max = 2_000


@dataclass(frozen=True)
class Prepared:
    """What `make` selects of a frame: each row by itself, by nothing but the values of its columns."""

    make: Make
    # By the JVM that has them, and the frame's columns; None: what is made is no such selection.
    kept: "dict[tuple[object, str], Selections | None]" = field(default_factory=dict)

    def of(self, df: "DataFrame") -> "DataFrame":
        if not hasattr(df, "_jdf"):
            # A server of Spark Connect plans each frame itself.
            return self.make(df)
        place = (SparkContext._gateway, columns_of(df))
        if place not in self.kept:
            made = self.make(df)
            self.keep(place, selections(df, made))
            return made
        found = self.kept[place]
        if found is None:
            return self.make(df)
        if not found.is_simple:
            found = simplified(found, df)
            self.keep(place, found)
        return found.of(df)

    def keep(self, place: tuple[object, str], found: "Selections | None") -> None:
        self.kept[place] = found
        for oldest in list(self.kept)[:-kinds_max]:
            self.kept.pop(oldest, None)


@lru_cache(maxsize=1_000)
def expressions(*texts: str) -> Prepared:
    """SQL expressions of a row, by their texts."""
    return Prepared(lambda df: df.selectExpr(*texts))


def columns_of(df: "DataFrame") -> str:
    """The names and types of a frame's columns, and which of them may be null."""
    return df.schema.json()


@dataclass(frozen=True)
class Selections:
    """Selections from a frame, one upon another, as Spark has analysed them, and simplified if `is_simple`.

    `columns` are those of the frame that they were planned for.
    """

    steps: Sequence[Any]
    columns: Any
    schema: StructType
    spark: "Classes"
    is_simple: bool = False

    def of(self, df: "DataFrame") -> "DataFrame":
        """The same from a frame with the same columns."""
        from pyspark.sql.classic.dataframe import DataFrame

        plan = df._jdf.queryExecution().analyzed()
        columns = self.spark.map_of.apply(self.columns.zip(plan.output()))
        for step in self.steps:
            plan = self.spark.selected(step.rewriteAttrs(columns).projectList(), plan)
        # All of it is, so that Spark need not look.
        plan.setAnalyzed()
        made = DataFrame(self.spark.frame_of(df.sparkSession._jsparkSession, plan), df.sparkSession)
        # A schema can be changed in place, by whoever asks for it.
        vars(made)["schema"] = deepcopy(self.schema)
        return made


@dataclass(frozen=True)
class Classes:
    """Spark's, of a JVM; each one that is named is asked for."""

    map_of: Any
    selected: Any
    frame_of: Any
    nothing: Any
    of_time: Any

    @classmethod
    def of(cls, spark: "SparkSession") -> "Classes":
        sql = cast(Any, spark._jvm).org.apache.spark.sql
        logical = sql.catalyst.plans.logical
        map_of = getattr(getattr(sql.catalyst.expressions, "AttributeMap$"), "MODULE$")
        of_time = sql.catalyst.trees.TreePattern.CURRENT_LIKE()
        return cls(map_of, logical.Project, sql.classic.Dataset.ofRows, logical.OneRowRelation(), of_time)


def selections(df: "DataFrame", made: "DataFrame") -> Selections | None:
    """What was made of a frame; None where that is more than selections, or depends on when it is asked."""
    spark, given = Classes.of(df.sparkSession), df._jdf.queryExecution().analyzed()
    plan = made._jdf.queryExecution().analyzed()
    steps = None if plan.containsPattern(spark.of_time) else steps_between(given, plan, spark)
    return None if steps is None else Selections(steps, given.output(), deepcopy(made.schema), spark)


def simplified(found: Selections, df: "DataFrame") -> Selections:
    """The same selections, simplified for any rows of frames with the columns of `df`."""
    frame = of_no_rows(df.sparkSession, df.schema)
    given, plan = frame._jdf.queryExecution().optimizedPlan(), found.of(frame)._jdf.queryExecution().optimizedPlan()
    steps = steps_between(given, plan, found.spark)
    if steps is None:
        return replace(found, is_simple=True)
    return replace(found, steps=steps, columns=given.output(), is_simple=True)


def steps_between(given: Any, plan: Any, spark: Classes) -> list[Any] | None:
    """The selections that make one plan of another, the first one first; None where it takes more than those."""
    steps: list[Any] = []
    while not plan.fastEquals(given):
        if plan.nodeName() != "Project" or plan.subqueries().nonEmpty():
            return None
        # Upon nothing, as the frame would keep its rows and its session.
        steps.insert(0, spark.selected(plan.projectList(), spark.nothing))
        plan = plan.child()
    return steps


def of_no_rows(spark: "SparkSession", schema: StructType) -> "DataFrame":
    """A frame of no rows, of which Spark does not know that there are none."""
    from pyspark.sql.classic.dataframe import DataFrame

    session, none = spark._jsparkSession, spark.sparkContext._jsc.emptyRDD()
    return DataFrame(session.createDataFrame(none, session.parseDataType(schema.json())), spark)
