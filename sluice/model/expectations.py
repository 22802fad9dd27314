"""Expectations: what must be true of a dataset, in the vocabulary of Great Expectations.

    suite(
        "silver.orders",
        expect("column_values_to_be_between", column="quantity", min_value=1, severity="quarantine"),
        expect("table_row_count_to_be_between", min_value=1, severity="critical"),
        built_in("product_matched", mostly=0.99, severity="warn"),
    )

The severities: `warn` is reported, `critical` keeps new rows out of the table, and `quarantine` sets single records
aside on entry to silver, in the pass that parses them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sluice.errors import DeclarationError, suggestion
from sluice.model.arguments import typed
from sluice.model.datasets import valid_name
from sluice.model.declared import declares
from sluice.model.rules import require_regex, row_rules

Severity = Literal["warn", "quarantine", "critical"]
severities = ("warn", "quarantine", "critical")
Verdict = Literal["passed", "failed", "error"]
critical: Severity = "critical"
built_in_type = "built_in"


@dataclass(frozen=True)
class Expectation:
    """One expectation: its type without the leading `expect_`, and its arguments as Great Expectations names them."""

    type: str
    severity: Severity
    arguments: Mapping[str, Any]
    name: str

    @property
    def is_row_rule(self) -> bool:
        return self.severity == "quarantine"

    @property
    def is_built_in(self) -> bool:
        return self.type == built_in_type

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that must be there for it to be asked."""
        if self.type == "column_to_exist":
            return ()
        named = [self.arguments[name] for name in ("column", "column_A", "column_B") if name in self.arguments]
        return (*named, *self.arguments.get("column_list", ()))

    @property
    def mostly(self) -> float:
        """The share of rows that must satisfy the expectation, from 0 to 1."""
        return float(self.arguments.get("mostly", 1.0))


@dataclass(frozen=True)
class Suite:
    """What must be true of one dataset."""

    dataset: str
    expectations: tuple[Expectation, ...] = field(default=())

    @property
    def row_rules(self) -> tuple[Expectation, ...]:
        """The expectations of single records, evaluated when they are parsed."""
        return tuple(each for each in self.expectations if each.is_row_rule)

    @property
    def of_table(self) -> tuple[Expectation, ...]:
        """The expectations of the rows of one version of the table."""
        return tuple(each for each in self.expectations if not each.is_row_rule and not each.is_built_in)

    @property
    def gate(self) -> tuple[Expectation, ...]:
        """The expectations checked before a commit: all of the table's if any of them is critical, otherwise none."""
        return self.of_table if any(each.severity == critical for each in self.of_table) else ()

    @property
    def bounds(self) -> dict[str, Expectation]:
        """The suite's thresholds for built-in checks, by name."""
        return {each.name: each for each in self.expectations if each.is_built_in}


def is_critical(verdict: Verdict, severity: Severity) -> bool:
    """Whether a table with this outcome should not be read: a critical expectation failed, or one raised an error."""
    return verdict == "error" or (verdict == "failed" and severity == critical)


# `is_critical` as a condition on the columns of `gold._checks`.
is_critical_sql = f"(verdict = 'error' OR (verdict = 'failed' AND severity = '{critical}'))"


@declares
def suite(dataset: str, *expectations: Expectation) -> Suite:
    """The suite of a dataset; raises DeclarationError if it is empty or two expectations have the same name."""
    if not expectations:
        raise DeclarationError(f"the suite of {dataset} expects nothing")
    names = [each.name for each in expectations]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeclarationError(f"the suite of {dataset} has {', '.join(twice)} twice; give one another name=")
    return Suite(dataset, expectations)


@typed
def expect(type: str, *, severity: Severity, name: str | None = None, **arguments: Any) -> Expectation:  # noqa: A002
    """An expectation of Great Expectations by its type, such as `column_values_to_be_between`.

    `name` identifies a failure, by default `<column>_<the distinctive part of the type>`.
    """
    plain = type.removeprefix("expect_")
    called = name or default_name(plain, arguments)
    found = Expectation(plain, severity, dict(arguments), called)
    require_name_and_severity(found)
    require_known(found)
    return found


@typed
def built_in(name: str, *, severity: Severity, mostly: float = 1.0, within: str | None = None) -> Expectation:
    """A built-in check of a dataset, with its own threshold and severity.

    `mostly` is the share of rows that must pass, from 0 to 1; `within` is a duration, required by `freshness`.
    """
    arguments: dict[str, Any] = {"mostly": mostly} | ({"within": within} if within is not None else {})
    found = Expectation(built_in_type, severity, arguments, name)
    require_name_and_severity(found)
    require_mostly(found)
    if severity == "quarantine":
        raise DeclarationError(f"{name}: a built-in check looks at whole tables, so it can be warn or critical")
    return found


def default_name(plain: str, arguments: Mapping[str, Any]) -> str:
    """`quantity_be_between` for `column_values_to_be_between` of the column quantity."""
    what = plain.removeprefix("column_").removeprefix("values_to_").removeprefix("value_")
    return "_".join([*([str(arguments["column"])] if "column" in arguments else []), what]).lower()


@dataclass(frozen=True)
class Arguments:
    """The required and the optional arguments of a type of expectation."""

    needed: frozenset[str]
    optional: frozenset[str] = frozenset()

    @property
    def known(self) -> frozenset[str]:
        return self.needed | self.optional


def taking(needed: str = "", optional: str = "") -> Arguments:
    return Arguments(frozenset(needed.split()), frozenset(optional.split()))


limits = "min_value max_value strict_min strict_max"
vocabulary: Mapping[str, Arguments] = {
    "column_values_to_not_be_null": taking("column", "mostly"),
    "column_values_to_be_null": taking("column", "mostly"),
    "column_values_to_be_between": taking("column", f"mostly {limits}"),
    "column_value_lengths_to_be_between": taking("column", f"mostly {limits}"),
    "column_values_to_be_in_set": taking("column value_set", "mostly"),
    "column_values_to_not_be_in_set": taking("column value_set", "mostly"),
    "column_values_to_match_regex": taking("column regex", "mostly"),
    "column_values_to_not_match_regex": taking("column regex", "mostly"),
    "column_pair_values_a_to_be_greater_than_b": taking("column_A column_B", "or_equal mostly"),
    "column_pair_values_to_be_equal": taking("column_A column_B", "mostly"),
    "column_values_to_be_unique": taking("column"),
    "compound_columns_to_be_unique": taking("column_list"),
    "column_min_to_be_between": taking("column", limits),
    "column_max_to_be_between": taking("column", limits),
    "column_mean_to_be_between": taking("column", limits),
    "column_sum_to_be_between": taking("column", limits),
    "column_stdev_to_be_between": taking("column", limits),
    "column_unique_value_count_to_be_between": taking("column", limits),
    "column_proportion_of_unique_values_to_be_between": taking("column", limits),
    "column_proportion_of_non_null_values_to_be_between": taking("column", limits),
    "table_row_count_to_be_between": taking("", limits),
    "table_row_count_to_equal": taking("value"),
    "table_columns_to_match_set": taking("column_set", "exact_match"),
    "column_to_exist": taking("column"),
    "unexpected_rows_expectation": taking("unexpected_rows_query"),
}


def require_name_and_severity(found: Expectation) -> None:
    if found.severity not in severities:
        raise DeclarationError(f"{found.name}: the severity is '{found.severity}'; it can be {', '.join(severities)}")
    if not valid_name.fullmatch(found.name):
        raise DeclarationError(f"'{found.name}' cannot name an expectation; give one with name=, of a-z, 0-9 and _")


def require_known(found: Expectation) -> None:
    """Raises DeclarationError if the type is unknown or does not take these arguments."""
    types = list(row_rules) if found.is_row_rule else list(vocabulary)
    if found.type not in types:
        hint = suggestion(found.type, types, f"it can be {', '.join(types)}")
        if not found.is_row_rule:
            raise DeclarationError(f"There is no expectation {found.type}; {hint}")
        raise DeclarationError(f"{found.name}: {found.type} cannot be asked of a single record; {hint}")
    takes = vocabulary[found.type]
    known = takes.known - {"mostly"} if found.is_row_rule else takes.known
    unknown = sorted(set(found.arguments) - known)
    if unknown:
        of = " of a single record" if found.is_row_rule else ""
        raise DeclarationError(
            f"{found.name}: {found.type}{of} has no {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    missing = sorted(takes.needed - set(found.arguments))
    if missing:
        raise DeclarationError(f"{found.name}: {found.type} needs {', '.join(missing)}")
    if "min_value" in known and not {"min_value", "max_value"} & set(found.arguments):
        raise DeclarationError(f"{found.name}: {found.type} needs min_value or max_value")
    least, most = (found.arguments.get(name) for name in ("min_value", "max_value"))
    if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
        raise DeclarationError(f"{found.name}: min_value is {least} and max_value {most}, so nothing is between them")
    for name in sorted({"value_set", "column_set", "column_list"} & set(found.arguments)):
        given = found.arguments[name]
        if isinstance(given, str) or not isinstance(given, Collection):
            raise DeclarationError(f"{found.name}: {name} is {given!r}; give a list, even of one value: [{given!r}]")
    if "regex" in found.arguments:
        require_regex(found.name, found.arguments["regex"])
    if "unexpected_rows_query" in found.arguments and "{batch}" not in found.arguments["unexpected_rows_query"]:
        raise DeclarationError(f"{found.name}: the query must select FROM {{batch}}, the rows that are checked")
    require_mostly(found)


def require_mostly(found: Expectation) -> None:
    mostly = found.arguments.get("mostly", 1.0)
    if not isinstance(mostly, int | float) or isinstance(mostly, bool) or not 0 <= mostly <= 1:
        raise DeclarationError(f"{found.name}: mostly is {mostly!r}, and must be between 0 and 1")
