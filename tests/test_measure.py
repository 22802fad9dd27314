"""Expectations of whole tables: one pass over the rows, with the verdicts and figures of Great Expectations."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from sluice.errors import DeclarationError
from sluice.model.expectations import Expectation, expect, suite, vocabulary
from sluice.quality.measure import measure
from tests.gx import table_verdicts
from tests.kit import in_time_zone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

schema = "id int, whole int, other int, real double, money decimal(10,2), word string, at timestamp, day date"
noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
rows: list[tuple[Any, ...]] = [
    (1, 5, 4, 0.5, Decimal("1.00"), "tea", noon, noon.date()),
    (2, 0, 0, 1.5, Decimal("-0.01"), "", datetime(1970, 1, 5, tzinfo=UTC), date(1970, 1, 5)),
    (3, -1, 7, -2.0, Decimal("99999999.99"), "milk", datetime(2999, 1, 1, tzinfo=UTC), noon.date()),
    (4, 5, None, 4.0, None, "tea", noon, None),
    (5, None, None, None, None, None, None, None),
]


def critical(kind: str, name: str, **arguments: Any) -> Expectation:
    return expect(kind, severity="critical", name=name, **arguments)


asked = [
    critical("column_values_to_not_be_null", "all_there", column="id"),
    critical("column_values_to_not_be_null", "mostly_there", column="word", mostly=0.8),
    critical("column_values_to_not_be_null", "not_there", column="word", mostly=0.81),
    critical("column_values_to_be_null", "nothing", column="word"),
    critical("column_values_to_be_between", "within", column="whole", min_value=-1, max_value=5),
    critical("column_values_to_be_between", "beyond", column="whole", min_value=0, mostly=0.75),
    critical("column_values_to_be_between", "too_far_beyond", column="whole", min_value=0, mostly=0.76),
    critical("column_value_lengths_to_be_between", "short", column="word", max_value=3),
    critical("column_values_to_be_in_set", "one_of", column="word", value_set=["tea", "milk", ""]),
    critical("column_values_to_not_be_in_set", "none_of", column="word", value_set=["tea"]),
    critical("column_values_to_match_regex", "like", column="word", regex="^[a-z]*$"),
    critical("column_values_to_not_match_regex", "unlike", column="word", regex="k$"),
    critical("column_pair_values_a_to_be_greater_than_b", "greater", column_A="whole", column_B="other"),
    critical(
        "column_pair_values_a_to_be_greater_than_b",
        "no_less",
        column_A="id",
        column_B="other",
        or_equal=True,
        mostly=0.6,
    ),
    critical("column_pair_values_to_be_equal", "equal", column_A="whole", column_B="other", mostly=0.45),
    critical("column_values_to_be_unique", "once", column="id"),
    critical("column_values_to_be_unique", "twice", column="word"),
    critical("compound_columns_to_be_unique", "pairs_once", column_list=["whole", "other"]),
    critical("compound_columns_to_be_unique", "pairs_twice", column_list=["word", "day"]),
    critical("compound_columns_to_be_unique", "same_pairs", column_list=["whole", "word"]),
    critical("column_min_to_be_between", "least", column="whole", min_value=-1, max_value=0),
    critical("column_max_to_be_between", "most", column="whole", max_value=4),
    critical("column_max_to_be_between", "last", column="at", max_value="2026-01-02T00:00:00+00:00"),
    critical("column_mean_to_be_between", "mean", column="real", min_value=1, max_value=1, strict_max=False),
    critical("column_mean_to_be_between", "mean_strict", column="real", min_value=1, strict_min=True),
    critical("column_sum_to_be_between", "sum", column="whole", min_value=9, max_value=9),
    critical("column_stdev_to_be_between", "spread", column="real", max_value=2.0),
    critical("column_unique_value_count_to_be_between", "values", column="word", min_value=3, max_value=3),
    critical("column_proportion_of_unique_values_to_be_between", "unique_share", column="word", min_value=0.75),
    critical("column_proportion_of_non_null_values_to_be_between", "present_share", column="money", min_value=0.7),
    critical("table_row_count_to_be_between", "some", min_value=1, max_value=4),
    critical("table_row_count_to_equal", "five", value=5),
    critical("table_columns_to_match_set", "columns", column_set=schema.replace(",", "").split()[::2]),
    critical("table_columns_to_match_set", "more_columns", column_set=["id", "word", "colour"], exact_match=False),
    critical("column_to_exist", "there_is", column="id"),
    critical("column_to_exist", "there_is_not", column="colour"),
    critical("unexpected_rows_expectation", "no_tea", unexpected_rows_query="SELECT * FROM {batch} WHERE word = 'tea'"),
    critical(
        "unexpected_rows_expectation", "no_beer", unexpected_rows_query="SELECT * FROM {batch} WHERE word = 'beer'"
    ),
]


@pytest.fixture
def frame(spark: "SparkSession") -> "DataFrame":
    return spark.createDataFrame(rows, schema)


def test_every_type_is_asked() -> None:
    assert {each.type for each in asked} == set(vocabulary)


@pytest.mark.parametrize("many", [True, False], ids=["rows", "no_rows"])
def test_great_expectations_comes_to_the_same_verdicts(frame: "DataFrame", many: bool) -> None:
    df = frame if many else frame.limit(0)
    ours = {each.expectation.name: each for each in measure(df, asked)}
    theirs = table_verdicts(df, asked)
    assert {name: each.verdict == "passed" for name, each in ours.items()} == {
        name: success for name, (success, _) in theirs.items()
    }
    assert {each.verdict for each in ours.values()} == {"passed", "failed"}
    for name, (_, observed) in theirs.items():
        if isinstance(observed, int | float) and ours[name].observed is not None:
            assert float(ours[name].observed) == pytest.approx(float(observed)), name


def test_all_figures_are_computed_by_one_query(frame: "DataFrame", spark: "SparkSession") -> None:
    kept = [each for each in asked if each.type not in ("unexpected_rows_expectation",)]
    kept = [each for each in kept if measure(frame, [each])[0].verdict == "passed"]
    spark.sparkContext.setJobGroup("one pass", "one pass")
    plans = spark.sparkContext.statusTracker()
    jobs_of_one = len(frame.agg({"id": "count"}).collect()) and len(plans.getJobIdsForGroup("one pass"))
    measure(frame, [each for each in kept if "unique" not in each.type])
    assert len(plans.getJobIdsForGroup("one pass")) == 2 * jobs_of_one


def test_rows_that_break_an_expectation_are_shown(frame: "DataFrame") -> None:
    (found,) = measure(frame, [critical("column_values_to_be_between", "few", column="whole", min_value=0)], ["id"])
    assert (found.unexpected, found.rows, found.examples) == (1, 4, ({"id": 3, "whole": -1},))


def test_one_that_cannot_be_asked_counts_as_critical_and_spares_the_others(frame: "DataFrame") -> None:
    there = critical("column_values_to_not_be_null", "there", column="id")
    lost = expect("column_values_to_not_be_null", severity="warn", column="wrod")
    mistyped = expect("column_mean_to_be_between", severity="warn", column="word", min_value=0)
    unreadable = expect(
        "unexpected_rows_expectation", severity="warn", unexpected_rows_query="SELEC {batch}", name="unreadable"
    )
    found = measure(frame, [lost, there, mistyped, unreadable])
    assert [each.verdict for each in found] == ["error", "passed", "error", "error"]
    assert [each.is_critical for each in found] == [True, False, True, True]
    assert found[0].message == "there is no column wrod; did you mean word?"


def test_times_are_those_of_utc_wherever_the_machine_is(spark: "SparkSession") -> None:
    df = spark.sql("SELECT TIMESTAMP '2026-03-01T23:30:00Z' AS at, TIMESTAMP_NTZ '2026-03-01 23:30:00' AS local")
    low, high = "2026-03-01T23:00:00Z", "2026-03-02T00:00:00Z"
    least = critical("column_min_to_be_between", "least", column="at", min_value=low, max_value=high)
    early = critical("column_values_to_be_between", "early", column="at", max_value="2026-01-01T00:00:00Z")
    local = datetime(2026, 3, 1, 23, 30)  # noqa: DTZ001 - it has no zone
    by_then = critical("column_values_to_be_between", "by_then", column="at", max_value=local)
    with in_time_zone("Asia/Tokyo"):
        found = measure(df, [least, early, by_then], ["at", "local"])
    assert [each.verdict for each in found] == ["passed", "failed", "passed"]
    assert found[0].observed == local.replace(tzinfo=UTC)
    assert found[1].examples == ({"at": local.replace(tzinfo=UTC), "local": local},)


wrong: dict[str, dict[str, Any]] = {
    "There is no expectation column_mean_to_be_betwen; did you mean column_mean_to_be_between": {
        "type": "column_mean_to_be_betwen"
    },
    "has no minimum; it has column, max_value": {"minimum": 0},
    "needs min_value or max_value": {"min_value": None},
    "mostly is 1.5, and must be between 0 and 1": {
        "type": "column_values_to_not_be_null",
        "mostly": 1.5,
        "min_value": None,
    },
    "the query must select FROM {batch}": {
        "type": "unexpected_rows_expectation",
        "unexpected_rows_query": "SELECT 1",
        "column": None,
        "min_value": None,
    },
}


@pytest.mark.parametrize("said", wrong)
def test_a_mistake_in_an_expectation_of_a_table_is_reported(said: str) -> None:
    right: dict[str, Any] = {"type": "column_mean_to_be_between", "column": "whole", "min_value": 0, "severity": "warn"}
    options = {name: value for name, value in (right | wrong[said]).items() if value is not None}
    with pytest.raises(DeclarationError) as caught:
        expect(**options)
    assert said in str(caught.value)


def test_a_gate_asks_everything_of_the_table_where_anything_is_critical() -> None:
    warning = expect("column_values_to_not_be_null", column="id", severity="warn")
    quarantining = expect("column_values_to_not_be_null", column="at", severity="quarantine")
    strict = critical("table_row_count_to_be_between", "some", min_value=1)
    assert suite("silver.x", warning, quarantining).gate == ()
    assert suite("silver.x", warning, quarantining, strict).gate == (warning, strict)
