"""Expectations: what can be asked of a single record, and that Great Expectations answers the same."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from sluice.errors import DeclarationError
from sluice.expect import Expectation, expect, suite
from sluice.model.rules import holds, require_fit, row_rules
from tests.gx import failing_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

types = {
    "whole": "int",
    "real": "double",
    "money": "decimal(10,2)",
    "word": "string",
    "at": "timestamp",
    "day": "date",
}
noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
rows: list[tuple[Any, ...]] = [
    (1, 5, 0.5, Decimal("1.00"), "tea", noon, noon.date()),
    (2, 0, float("nan"), Decimal("-0.01"), "", datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)),
    (3, -1, float("inf"), Decimal("99999999.99"), "grüner tee", datetime(2999, 1, 1, tzinfo=UTC), noon.date()),
    (4, 10, -0.0, Decimal("10.00"), "TEA", noon, None),
    (5, None, None, None, None, None, None),
    (6, 2_000_000_000, 1e-9, Decimal("0.00"), "tea\nand milk", noon, noon.date()),
]
asked = [
    expect("column_values_to_not_be_null", column="word", severity="quarantine"),
    expect("column_values_to_be_null", column="word", severity="quarantine"),
    expect("column_values_to_be_between", column="whole", min_value=0, severity="quarantine"),
    expect("column_values_to_be_between", column="whole", max_value=5, severity="quarantine", name="at_most"),
    expect(
        "column_values_to_be_between",
        column="whole",
        min_value=0,
        max_value=10,
        strict_min=True,
        strict_max=True,
        severity="quarantine",
        name="strict",
    ),
    expect("column_values_to_be_between", column="real", min_value=0, max_value=1, severity="quarantine"),
    expect("column_values_to_be_between", column="money", min_value=0, max_value=10, severity="quarantine"),
    expect("column_values_to_be_between", column="at", min_value="2000-01-01T00:00:00+00:00", severity="quarantine"),
    expect("column_value_lengths_to_be_between", column="word", min_value=1, max_value=4, severity="quarantine"),
    expect("column_values_to_be_in_set", column="word", value_set=["tea", "TEA"], severity="quarantine"),
    expect("column_values_to_be_in_set", column="whole", value_set=[0, 5], severity="quarantine"),
    expect("column_values_to_not_be_in_set", column="word", value_set=["tea", ""], severity="quarantine"),
    expect("column_values_to_match_regex", column="word", regex="^t.*$", severity="quarantine"),
    expect("column_values_to_not_match_regex", column="word", regex="[A-Z]", severity="quarantine"),
]


def test_every_row_rule_is_asked() -> None:
    assert {each.type for each in asked} == set(row_rules)


@pytest.mark.parametrize("expectation", asked, ids=lambda each: each.name)
def test_great_expectations_sets_the_same_rows_aside(expectation: Expectation, spark: "SparkSession") -> None:
    frame = spark.createDataFrame(rows, "id int, " + ", ".join(f"{name} {kind}" for name, kind in types.items()))
    ours = {row["id"] for row in frame.where(~holds(expectation, types)).collect()}
    assert ours == failing_rows(frame, expectation)
    assert ours, "an expectation that no row breaks says nothing here"


wrong: dict[str, dict[str, Any]] = {
    "did you mean column_values_to_be_between": {"type": "column_value_to_be_between"},
    "the severity is 'fatal'; it can be warn, quarantine, critical": {"severity": "fatal"},
    "cannot be asked of a single record": {"type": "column_mean_to_be_between"},
    "has no minimum; it has column, max_value": {"minimum": 3},
    "needs column": {"column": None},
    "needs min_value or max_value": {"min_value": None},
    "needs value_set": {"type": "column_values_to_be_in_set", "min_value": None},
    "value_set is 'abc'; give a list, even of one value: ['abc']": {
        "type": "column_values_to_be_in_set",
        "min_value": None,
        "value_set": "abc",
    },
    "the regex '(' cannot be read": {"type": "column_values_to_match_regex", "min_value": None, "regex": "("},
    "cannot name an expectation": {"name": "Not a name"},
    "min_value is 9 and max_value 3, so nothing is between them": {"min_value": 9, "max_value": 3},
}


@pytest.mark.parametrize("said", wrong)
def test_a_mistake_in_an_expectation_is_reported(said: str) -> None:
    right: dict[str, Any] = {
        "type": "column_values_to_be_between",
        "column": "whole",
        "min_value": 0,
        "severity": "quarantine",
    }
    options = {name: value for name, value in (right | wrong[said]).items() if value is not None}
    with pytest.raises(DeclarationError) as caught:
        expect(**options)
    assert said in str(caught.value)


unfit = [("whole", "3"), ("word", "a"), ("at", "yesterday"), ("whole", True), ("at", 17)]


@pytest.mark.parametrize(("column", "value"), unfit)
def test_a_value_that_no_column_of_its_type_can_have_is_reported(column: str, value: Any) -> None:
    expectation = expect("column_values_to_be_between", column=column, min_value=value, severity="quarantine")
    with pytest.raises(DeclarationError, match=r"cannot be compared|is no time|has no bounds"):
        require_fit(expectation, types[column])


def test_a_suite_names_each_expectation_once() -> None:
    once = expect("column_values_to_not_be_null", column="word", severity="warn")
    with pytest.raises(DeclarationError, match="has word_not_be_null twice"):
        suite("silver.orders", once, once)
    with pytest.raises(DeclarationError, match="expects nothing"):
        suite("silver.orders")
