"""Prepared: what is computed row by row, planned once by Spark and not again for each frame.

To resolve the names and types of a hundred columns, and to simplify them, takes 0.1 s of CPU, however few rows there
are. Where no more than that is done, the plan is put upon the rows of other frames with the same columns.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from pyspark import SparkContext
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[["DataFrame"], "DataFrame"]


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
            self.kept[place] = selections(self.make, df.sparkSession, df.schema)
        found = self.kept[place]
        return self.make(df) if found is None else found.of(df)


@lru_cache(maxsize=1_000)
def expressions(*texts: str) -> Prepared:
    """SQL expressions of a row, by their texts."""
    return Prepared(lambda df: df.selectExpr(*texts))


def columns_of(df: "DataFrame") -> str:
    """The names and types of a frame's columns, and which of them may be null."""
    return df.schema.json()


@dataclass(frozen=True)
class Selections:
    """Selections from a frame, one upon another, as Spark has planned them.

    `columns` are those of the frame that they were planned for. The classes of Spark are kept, too: each one that is
    named is asked for.
    """

    steps: Sequence[Any]
    columns: Any
    schema: StructType
    map_of: Any
    selected: Any
    frame_of: Any

    def of(self, df: "DataFrame") -> "DataFrame":
        """The same from a frame with the same columns."""
        from pyspark.sql.classic.dataframe import DataFrame

        plan = df._jdf.queryExecution().analyzed()
        columns = self.map_of.apply(self.columns.zip(plan.output()))
        for step in self.steps:
            plan = self.selected(step.rewriteAttrs(columns).projectList(), plan)
        # All of it is, so that Spark need not look.
        plan.setAnalyzed()
        made = DataFrame(self.frame_of(df.sparkSession._jsparkSession, plan), df.sparkSession)
        # A schema can be changed in place, by whoever asks for it.
        vars(made)["schema"] = deepcopy(self.schema)
        return made


def selections(make: Make, spark: "SparkSession", schema: StructType) -> Selections | None:
    """What `make` selects of frames with a schema; None where it does more, or depends on when it is asked."""
    sql = cast(Any, spark._jvm).org.apache.spark.sql
    frame = of_no_rows(spark, schema)
    given, made = frame._jdf.queryExecution().optimizedPlan(), make(frame)
    plans = made._jdf.queryExecution()
    if plans.analyzed().containsPattern(sql.catalyst.trees.TreePattern.CURRENT_LIKE()):
        return None
    logical = sql.catalyst.plans.logical
    # Upon nothing, as their frame would keep its session.
    nothing = logical.OneRowRelation()
    plan, steps = plans.optimizedPlan(), list[Any]()
    while not plan.fastEquals(given):
        if plan.nodeName() != "Project" or plan.subqueries().nonEmpty():
            return None
        steps.insert(0, logical.Project(plan.projectList(), nothing))
        plan = plan.child()
    map_of = getattr(getattr(sql.catalyst.expressions, "AttributeMap$"), "MODULE$")
    return Selections(steps, given.output(), made.schema, map_of, logical.Project, sql.classic.Dataset.ofRows)


def of_no_rows(spark: "SparkSession", schema: StructType) -> "DataFrame":
    """A frame of no rows, of which Spark does not know that there are none."""
    from pyspark.sql.classic.dataframe import DataFrame

    session, none = spark._jsparkSession, spark.sparkContext._jsc.emptyRDD()
    return DataFrame(session.createDataFrame(none, session.parseDataType(schema.json())), spark)
