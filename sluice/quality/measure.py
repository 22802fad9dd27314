"""Measure: every expectation of a table's rows, in one pass over them.

Each expectation says what it needs to know of the rows, as aggregates; all of them are computed by one query, and each
is then judged by its own figures.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sluice.errors import DeclarationError, suggestion
from sluice.model.expectations import Expectation, Verdict, is_critical
from sluice.model.rules import holds, require_value, row_rules
from sluice.quality.collected import collected

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

examples_max = 10


@dataclass(frozen=True)
class Outcome:
    """What became of one expectation: `unexpected` of `rows` rows broke it, such as `examples`, or a figure was
    `observed`.

    One that could not be evaluated is an 'error', says why in `message`, and counts as critical.
    """

    expectation: Expectation
    verdict: Verdict
    observed: Any = None
    unexpected: int | None = None
    rows: int | None = None
    message: str | None = None
    examples: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_critical(self) -> bool:
        """True when the table should not be read."""
        return is_critical(self.verdict, self.expectation.severity)


@dataclass(frozen=True)
class Question:
    """One expectation as aggregates, and how their values are judged."""

    expectation: Expectation
    aggregates: "Mapping[str, Column]"
    judge: "Callable[[Mapping[str, Any]], Outcome]"
    breaks: "Column | None" = None


def measure(df: "DataFrame", expectations: Sequence[Expectation], grain: Sequence[str] = ()) -> list[Outcome]:
    """What becomes of each expectation, in their order; a row that breaks one is shown by its `grain`."""
    found = {each.name: asked(df, each) for each in expectations}
    questions = [each for each in found.values() if isinstance(each, Question)]
    outcomes = answered(df, questions)
    answers = {
        outcome.expectation.name: with_examples(df, outcome, question, grain)
        for outcome, question in zip(outcomes, questions, strict=True)
    }
    return [answers[name] if isinstance(each, Question) else each for name, each in found.items()]


def with_examples(df: "DataFrame", outcome: Outcome, question: Question, grain: Sequence[str]) -> Outcome:
    """The outcome with some of the rows that broke it; only a failure costs another look at the rows."""
    if outcome.verdict != "failed" or question.breaks is None:
        return outcome
    arguments = question.expectation.arguments
    named = [arguments[name] for name in ("column", "column_A", "column_B") if name in arguments]
    rows = collected(df.where(question.breaks).select(*dict.fromkeys([*grain, *named])).limit(examples_max))
    return replace(outcome, examples=tuple(rows))


def asked(df: "DataFrame", expectation: Expectation) -> Question | Outcome:
    """The expectation as a question to the rows; an outcome where it needs none, or cannot be asked."""
    try:
        require_columns_there(df, expectation)
        if expectation.type in of_columns:
            return of_columns[expectation.type](df.columns, expectation)
        if expectation.type == "unexpected_rows_expectation":
            return unexpected_rows(df, expectation)
        if expectation.type in row_rules:
            return share_of(expectation, ~holds(expectation, dict(df.dtypes)), value_of(expectation))
        return askers[expectation.type](expectation, dict(df.dtypes))
    except (DeclarationError, PySparkException, Py4JError) as error:
        return failure(expectation, error)


def answered(df: "DataFrame", questions: Sequence[Question]) -> list[Outcome]:
    """The outcomes of questions, by one query; where that fails, one by one, to find the one that does it."""
    if not questions:
        return []
    names = {(index, name): f"_{index}_{name}" for index, each in enumerate(questions) for name in each.aggregates}
    columns = [
        each.aggregates[name].alias(names[index, name])
        for index, each in enumerate(questions)
        for name in each.aggregates
    ]
    try:
        (row,) = collected(df.agg(*columns))
        return [
            each.judge({name: row[names[index, name]] for name in each.aggregates})
            for index, each in enumerate(questions)
        ]
    except (DeclarationError, PySparkException, Py4JError) as error:
        if len(questions) == 1:
            return [failure(questions[0].expectation, error)]
        return [outcome for each in questions for outcome in answered(df, [each])]


def failure(expectation: Expectation, error: Exception) -> Outcome:
    """The outcome of an expectation that could not be evaluated."""
    said = str(error).split("JVM stacktrace", maxsplit=1)[0].strip().splitlines()
    return Outcome(expectation, "error", message=said[0] if said else type(error).__name__)


def require_columns_there(df: "DataFrame", expectation: Expectation) -> None:
    """A DeclarationError where the expectation names a column that the table has not."""
    for column in expectation.columns:
        if column not in df.columns:
            hint = suggestion(column, df.columns, f"there are {', '.join(df.columns)}")
            raise DeclarationError(f"there is no column {column}; {hint}")


def value_of(expectation: Expectation) -> "Column":
    """Whether a row has a value to be judged; rules about nulls judge every row."""
    if expectation.type in ("column_values_to_not_be_null", "column_values_to_be_null"):
        return F.lit(True)
    return F.col(expectation.arguments["column"]).isNotNull()


def share_of(expectation: Expectation, breaks: "Column", counts: "Column") -> Question:
    """Of the rows that count, `mostly` must not break it."""

    def judge(found: Mapping[str, Any]) -> Outcome:
        rows, unexpected = found["rows"], found["unexpected"]
        is_kept = rows == 0 or (rows - unexpected) / rows >= expectation.mostly
        return Outcome(expectation, "passed" if is_kept else "failed", unexpected=unexpected, rows=rows)

    return Question(expectation, {"rows": F.count_if(counts), "unexpected": F.count_if(breaks)}, judge, breaks)


def pair(relation: "Callable[[Column, Column], Column]", expectation: Expectation, _: Mapping[str, str]) -> Question:
    """Rows in which two columns stand in a relation; rows that lack both are not judged."""
    left, right = F.col(expectation.arguments["column_A"]), F.col(expectation.arguments["column_B"])
    counts = left.isNotNull() | right.isNotNull()
    return share_of(expectation, counts & ~relation(left, right), counts)


def greater(expectation: Expectation, types: Mapping[str, str]) -> Question:
    def relation(left: "Column", right: "Column") -> "Column":
        return (left >= right) if expectation.arguments.get("or_equal") else (left > right)

    return pair(relation, expectation, types)


def equal(expectation: Expectation, types: Mapping[str, str]) -> Question:
    return pair(lambda left, right: left.eqNullSafe(right), expectation, types)


def unique(expectation: Expectation, _: Mapping[str, str]) -> Question:
    """Each value, or each combination of values, occurs once; all-null combinations are not judged."""
    columns = [F.col(name) for name in expectation.arguments.get("column_list", [expectation.arguments.get("column")])]
    is_there = F.coalesce(*[F.when(column.isNotNull(), True) for column in columns], F.lit(False))
    value = F.when(is_there, F.struct(*columns))

    def judge(found: Mapping[str, Any]) -> Outcome:
        again = found["rows"] - found["distinct"]
        return Outcome(expectation, "failed" if again else "passed", unexpected=again, rows=found["rows"])

    return Question(expectation, {"rows": F.count_if(is_there), "distinct": F.count_distinct(value)}, judge)


def figure(of: "Callable[[Column], Column]", expectation: Expectation, types: Mapping[str, str]) -> Question:
    """One figure of a column, or of all rows, lies between bounds; a missing figure fails."""
    column = expectation.arguments.get("column")
    kind = types[column] if column and expectation.type in of_the_columns_type else "double"
    low, high = (bound(expectation, name, kind) for name in ("min_value", "max_value"))

    def judge(found: Mapping[str, Any]) -> Outcome:
        value = found["figure"]
        verdict: Verdict = "passed" if value is not None and is_between(value, low, high, expectation) else "failed"
        return Outcome(expectation, verdict, observed=value, rows=found["rows"])

    value = of(F.col(column) if column else F.lit(1))
    return Question(expectation, {"figure": value, "rows": F.count(F.lit(1))}, judge)


def bound(expectation: Expectation, name: str, kind: str) -> Any:
    """A bound as a value that the figure can be compared with."""
    value = expectation.arguments.get(name)
    if value is None:
        return None
    require_value(expectation.name, value, kind)
    if kind == "timestamp":
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    if kind == "date" and isinstance(value, str):
        return date.fromisoformat(value)
    return value


def is_between(value: Any, low: Any, high: Any, expectation: Expectation) -> bool:
    arguments = expectation.arguments
    is_above = low is None or (value > low if arguments.get("strict_min") else value >= low)
    is_below = high is None or (value < high if arguments.get("strict_max") else value <= high)
    return bool(is_above and is_below)


def row_count(expectation: Expectation, types: Mapping[str, str]) -> Question:
    return figure(F.count, expectation, types)


def row_count_equal(expectation: Expectation, _: Mapping[str, str]) -> Question:
    def judge(found: Mapping[str, Any]) -> Outcome:
        verdict: Verdict = "passed" if found["rows"] == expectation.arguments["value"] else "failed"
        return Outcome(expectation, verdict, observed=found["rows"], rows=found["rows"])

    return Question(expectation, {"rows": F.count(F.lit(1))}, judge)


def unique_share(column: "Column") -> "Column":
    return F.try_divide(F.count_distinct(column), F.count(column))


def present_share(column: "Column") -> "Column":
    return F.try_divide(F.count(column), F.count(F.lit(1)))


of_the_columns_type = ("column_min_to_be_between", "column_max_to_be_between")
askers: Mapping[str, Callable[[Expectation, Mapping[str, str]], Question]] = {
    "column_pair_values_a_to_be_greater_than_b": greater,
    "column_pair_values_to_be_equal": equal,
    "column_values_to_be_unique": unique,
    "compound_columns_to_be_unique": unique,
    "column_min_to_be_between": partial(figure, F.min),
    "column_max_to_be_between": partial(figure, F.max),
    "column_mean_to_be_between": partial(figure, F.avg),
    "column_sum_to_be_between": partial(figure, F.sum),
    "column_stdev_to_be_between": partial(figure, F.stddev_samp),
    "column_unique_value_count_to_be_between": partial(figure, F.count_distinct),
    "column_proportion_of_unique_values_to_be_between": partial(figure, unique_share),
    "column_proportion_of_non_null_values_to_be_between": partial(figure, present_share),
    "table_row_count_to_be_between": row_count,
    "table_row_count_to_equal": row_count_equal,
}


def columns_match(columns: Sequence[str], expectation: Expectation) -> Outcome:
    """The table has these columns; those that begin with `_` are the engine's own."""
    own = {name for name in columns if not name.startswith("_")}
    wanted = set(expectation.arguments["column_set"])
    is_exact = expectation.arguments.get("exact_match", True)
    differing = sorted(wanted ^ own if is_exact else wanted - own)
    return Outcome(expectation, "failed" if differing else "passed", observed=", ".join(differing) or None)


def column_exists(columns: Sequence[str], expectation: Expectation) -> Outcome:
    return Outcome(expectation, "passed" if expectation.arguments["column"] in columns else "failed")


of_columns: Mapping[str, Callable[[Sequence[str], Expectation], Outcome]] = {
    "table_columns_to_match_set": columns_match,
    "column_to_exist": column_exists,
}


def unexpected_rows(df: "DataFrame", expectation: Expectation) -> Outcome:
    """A custom query finds no row; it takes a separate pass."""
    # A unique view name: with a shared one, concurrent checks would see each other's rows.
    view = f"_batch_{uuid.uuid4().hex}"
    df.createOrReplaceTempView(view)
    try:
        query = expectation.arguments["unexpected_rows_query"].replace("{batch}", view)
        found = df.sparkSession.sql(query).count()
    finally:
        df.sparkSession.catalog.dropTempView(view)
    return Outcome(expectation, "failed" if found else "passed", unexpected=found)
