"""Prepared: what is made of frames by their columns alone, planned once by Spark and not again for each frame.

To resolve the names and types of a hundred columns takes 0.1 s of CPU, however few rows there are. A plan is made for
stand-ins that have the columns of the frames and no rows; for each frame it is put upon the rows of that.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., "DataFrame"]
# Kinds of frames, of which each plan takes some 50 KB.
kinds_max = 2_000


@dataclass(frozen=True)
class Prepared:
    """What `make` makes of frames: it may look at their columns, and neither at their rows nor at anything else."""

    make: Make
    # To plan costs as much as to make twice, and most frames in the life of a command are the only ones of their kind.
    # Of selections from one frame it is soon worth it, as these are simplified, too.
    made_first: int = 3
    # By the JVM that has them, and the frames' columns. A number: how often it was made; None: no plan can be kept.
    kept: "dict[tuple[object, ...], Plan | int | None]" = field(default_factory=dict)

    def of(self, *frames: "DataFrame") -> "DataFrame":
        if not all(map(is_classic, frames)):
            # A server of Spark Connect plans each frame itself.
            return self.make(*frames)
        place = (SparkContext._gateway, *map(columns_of, frames))
        found = self.kept.get(place, 0)
        if isinstance(found, int):
            if found < self.made_first:
                self.keep(place, found + 1)
                return self.make(*frames)
            found = planned(self.make, frames)
            self.keep(place, found)
        if found is None:
            return self.make(*frames)
        rows = [plan_of(each) for each in frames]
        return found.of(frames[0].sparkSession, rows) if found.fits(rows) else self.make(*frames)

    def keep(self, place: "tuple[object, ...]", found: "Plan | int | None") -> None:
        self.kept[place] = found
        for oldest in list(self.kept)[:-kinds_max]:
            self.kept.pop(oldest, None)


@lru_cache(maxsize=1_000)
def shared(function: Make, *arguments: Hashable, made_first: int = 3) -> Prepared:
    """What a function makes of frames and these arguments, for all who ask for the same: equal ones must be alike."""
    return Prepared(lambda *frames: function(*frames, *arguments), made_first)


def expressions(*texts: str) -> Prepared:
    """SQL expressions of a row, by their texts."""
    return shared(selected, *texts, made_first=1)


def selected(df: "DataFrame", *texts: str) -> "DataFrame":
    return df.selectExpr(*texts)


def is_classic(df: "DataFrame") -> bool:
    """Whether a frame's plan is in a JVM of this process; else a Spark Connect server has it."""
    return hasattr(df, "_jdf")


def columns_of(df: "DataFrame") -> str:
    """The names and types of a frame's columns, and which of them may be null."""
    if is_classic(df) and "schema" not in vars(df):
        # For Python to read what the JVM says takes a few milliseconds.
        return str(cast(Any, df)._jdf.schema().json())
    return json.dumps(df.schema.jsonValue(), separators=(",", ":"), ensure_ascii=False)


def plan_of(df: "DataFrame") -> Any:
    """The plan of a frame, as Spark has analysed it."""
    return cast(Any, df)._jdf.queryExecution().analyzed()


@dataclass(frozen=True)
class Plan:
    """A plan for frames of which nothing is known but their columns.

    It puts the attributes `own` into its result, which no other plan has.
    """

    schema: StructType
    own: Any
    spark: "Classes"

    def fits(self, rows: Sequence[Any]) -> bool:
        """Whether it can be put upon the plans of these frames.

        None may have attributes that this plan gave it: it would give the same ones to others. And none may have rows
        of the driver that are in no partition: the optimizer computes what is made of those, where threads share what
        an expression keeps meanwhile. Tasks have copies.
        """
        return all(
            self.own.intersect(each.outputSet()).isEmpty()
            and (each.containsPattern(self.spark.in_partitions) or not each.containsPattern(self.spark.of_driver))
            for each in rows
        )

    def of(self, spark: "SparkSession", rows: Sequence[Any]) -> "DataFrame":
        """The same upon the plans of frames with these columns."""
        from pyspark.sql.classic.dataframe import DataFrame

        plan = self.upon(rows)
        # All of it is, so that Spark need not look.
        plan.setAnalyzed()
        made = DataFrame(self.spark.frame_of(spark._jsparkSession, plan), spark)
        # A schema can be changed in place, by whoever asks for it.
        vars(made)["schema"] = deepcopy(self.schema)
        return made

    def upon(self, rows: Sequence[Any]) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Selections(Plan):
    """Selections from one frame with these `columns`, one upon another, simplified for any rows."""

    steps: Sequence[Any]
    columns: Any

    def upon(self, rows: Sequence[Any]) -> Any:
        (plan,) = rows
        columns = self.spark.map_of.apply(self.columns.zip(plan.output()))
        for step in self.steps:
            plan = self.spark.selected(step.rewriteAttrs(columns).projectList(), plan)
        return plan


@dataclass(frozen=True)
class Whole(Plan):
    """Any plan, upon no rows. Beside `nothings` come the rows of the frames, which get their attributes by that.

    Spark's optimizer drops the side without rows, and keeps the attributes.
    """

    plan: Any
    nothings: Sequence[Any]

    def upon(self, rows: Sequence[Any]) -> Any:
        both = [self.spark.nil.prepended(each).prepended(none) for none, each in zip(self.nothings, rows, strict=True)]
        return replaced(self.plan, self.nothings, [self.spark.union(each, False, False) for each in both], self.spark)


@dataclass(frozen=True)
class Classes:
    """Spark's, of a JVM; each one that is named is asked for."""

    map: Any
    map_of: Any
    nil: Any
    no_stream: Any
    selected: Any
    union: Any
    rows: Any
    frame_of: Any
    nothing: Any
    unkept: Sequence[Any]
    lambdas: Any
    of_driver: Any
    in_partitions: Any

    @staticmethod
    @lru_cache(maxsize=1)
    def of(gateway: Any) -> "Classes":
        jvm = gateway.jvm
        sql, immutable = jvm.org.apache.spark.sql, jvm.scala.collection.immutable
        logical, pattern = sql.catalyst.plans.logical, sql.catalyst.trees.TreePattern
        map_of = getattr(getattr(sql.catalyst.expressions, "AttributeMap$"), "MODULE$")
        return Classes(
            map=getattr(getattr(immutable, "Map$"), "MODULE$"),
            map_of=map_of,
            nil=getattr(getattr(immutable, "Nil$"), "MODULE$"),
            no_stream=getattr(getattr(jvm.scala, "None$"), "MODULE$"),
            selected=logical.Project,
            union=logical.Union,
            rows=logical.LocalRelation,
            frame_of=sql.classic.Dataset.ofRows,
            nothing=logical.OneRowRelation(),
            # The time, what another query gives, and functions in Python, which have a number of their own.
            unkept=(pattern.CURRENT_LIKE(), pattern.PLAN_EXPRESSION(), pattern.PYTHON_UDF()),
            lambdas=pattern.LAMBDA_VARIABLE(),
            of_driver=pattern.LOCAL_RELATION(),
            in_partitions=pattern.REPARTITION_OPERATION(),
        )


def planned(make: Make, frames: "Sequence[DataFrame]") -> Plan | None:
    """The plan of what is made of frames; None where that depends on more than their columns."""
    spark = frames[0].sparkSession
    classes, stand_ins = Classes.of(SparkContext._gateway), [stand_in(spark, each.schema) for each in frames]
    try:
        made = make(*stand_ins)
        plan = plan_of(made)
    except (PySparkException, Py4JJavaError):
        return None
    given = [plan_of(each) for each in stand_ins]
    if not plan.deterministic() or any(map(plan.containsPattern, classes.unkept)):
        return None
    schema = deepcopy(made.schema)
    if len(frames) == 1 and steps_between(given[0], plan, classes) is not None:
        own = getattr(plan.outputSet(), "$minus$minus")(given[0].outputSet())
        base = stand_ins[0]._jdf.queryExecution().optimizedPlan()
        steps = steps_between(base, made._jdf.queryExecution().optimizedPlan(), classes)
        return None if steps is None else Selections(schema, own, classes, steps, base.output())
    if plan.containsPattern(classes.lambdas):
        # What a lambda makes of literals is computed by the optimizer, for each frame.
        return None
    leaves = plan.collectLeaves()
    if not all(any(leaves.apply(index).fastEquals(each) for each in given) for index in range(leaves.size())):
        return None
    own = plan.outputSet()
    for each in given:
        own = getattr(own, "$plus$plus")(each.outputSet())
    # The stand-ins would keep their session.
    nothings = [classes.rows(each.output(), classes.nil, False, classes.no_stream) for each in given]
    return Whole(schema, own, classes, replaced(plan, given, nothings, classes), nothings)


def replaced(plan: Any, leaves: Sequence[Any], others: Sequence[Any], spark: Classes) -> Any:
    """A plan with others of its leaves."""
    found = spark.map.empty()
    for leaf, other in zip(leaves, others, strict=True):
        found = found.updated(leaf, other)
    return plan.transformUp(found)


def steps_between(given: Any, plan: Any, spark: Classes) -> list[Any] | None:
    """The selections that make one plan of another, the first one first; None where it takes more than those."""
    steps: list[Any] = []
    while not plan.fastEquals(given):
        if plan.nodeName() != "Project":
            return None
        # Upon nothing, as the frame would keep its rows and its session.
        steps.insert(0, spark.selected(plan.projectList(), spark.nothing))
        plan = plan.child()
    return steps


def stand_in(spark: "SparkSession", schema: StructType) -> "DataFrame":
    """A frame with these columns of which Spark does not know the rows; whoever reads them gets an error."""
    from pyspark.sql.classic.dataframe import DataFrame

    session, jvm = spark._jsparkSession, cast(Any, spark._jvm)
    no_row = jvm.java.util.Collections.singletonList("A plan that is prepared has no rows.")
    rows = spark.sparkContext._jsc.parallelize(no_row, 1)
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)
