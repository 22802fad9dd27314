"""Expectations: what must be true of a dataset, in the vocabulary of Great Expectations.

    suite(
        "silver.orders",
        expect("column_values_to_be_between", column="quantity", min_value=1, severity="quarantine"),
        expect("table_row_count_to_be_between", min_value=1, severity="critical"),
    )

What a severity means: `warn` is told, `critical` keeps a table from its readers, and `quarantine` sets single records
aside at the door of silver, in the pass that parses them.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F

from sluice.datasets import valid_name
from sluice.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column

Severity = Literal["warn", "quarantine", "critical"]
severities = ("warn", "quarantine", "critical")


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


@dataclass(frozen=True)
class Suite:
    """What must be true of one dataset."""

    dataset: str
    expectations: tuple[Expectation, ...] = field(default=())


def suite(dataset: str, *expectations: Expectation) -> Suite:
    """The suite of a dataset; a DeclarationError where two expectations have one name, or there is none."""
    if not expectations:
        raise DeclarationError(f"the suite of {dataset} expects nothing")
    names = [each.name for each in expectations]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeclarationError(f"the suite of {dataset} has {', '.join(twice)} twice; give one another name=")
    return Suite(dataset, expectations)


def expect(type: str, *, severity: Severity, name: str | None = None, **arguments: Any) -> Expectation:  # noqa: A002
    """An expectation of Great Expectations by its type, such as `column_values_to_be_between`.

    `name` is what a failure is called, by default `<column>_<what of the type matters>`.
    """
    plain = type.removeprefix("expect_")
    called = name or default_name(plain, arguments)
    if severity not in severities:
        raise DeclarationError(f"{called}: the severity is '{severity}'; it can be {', '.join(severities)}")
    if not valid_name.fullmatch(called):
        raise DeclarationError(f"'{called}' cannot name an expectation; give one with name=, of a-z, 0-9 and _")
    found = Expectation(plain, severity, dict(arguments), called)
    if found.is_row_rule:
        require_row_rule(found)
    return found


def default_name(plain: str, arguments: Mapping[str, Any]) -> str:
    """`quantity_be_between` for `column_values_to_be_between` of the column quantity."""
    what = plain.removeprefix("column_").removeprefix("values_to_").removeprefix("value_")
    return "_".join([*([str(arguments["column"])] if "column" in arguments else []), what]).lower()


def holds(expectation: Expectation, types: Mapping[str, str]) -> "Column":
    """Whether a row keeps a row rule. A value that is not there breaks none but the rule that it must be."""
    column = expectation.arguments["column"]
    value, arguments = F.col(column), typed(expectation, types[column])
    rule = row_rules[expectation.type](value, **arguments)
    return rule if expectation.type in about_nulls else value.isNull() | rule


def not_be_null(value: "Column") -> "Column":
    return value.isNotNull()


def be_null(value: "Column") -> "Column":
    return value.isNull()


def be_between(
    value: "Column",
    min_value: "Column | None" = None,
    max_value: "Column | None" = None,
    strict_min: bool = False,
    strict_max: bool = False,
) -> "Column":
    is_between = F.lit(True)
    if min_value is not None:
        is_between &= (value > min_value) if strict_min else (value >= min_value)
    if max_value is not None:
        is_between &= (value < max_value) if strict_max else (value <= max_value)
    return is_between


def lengths_to_be_between(value: "Column", **bounds: Any) -> "Column":
    return be_between(F.char_length(value), **bounds)


def be_in_set(value: "Column", value_set: "Sequence[Column]") -> "Column":
    return value.isin(list(value_set))


def not_be_in_set(value: "Column", value_set: "Sequence[Column]") -> "Column":
    return ~be_in_set(value, value_set)


def match_regex(value: "Column", regex: str) -> "Column":
    return value.rlike(regex)


def not_match_regex(value: "Column", regex: str) -> "Column":
    return ~value.rlike(regex)


row_rules: Mapping[str, Callable[..., "Column"]] = {
    "column_values_to_not_be_null": not_be_null,
    "column_values_to_be_null": be_null,
    "column_values_to_be_between": be_between,
    "column_value_lengths_to_be_between": lengths_to_be_between,
    "column_values_to_be_in_set": be_in_set,
    "column_values_to_not_be_in_set": not_be_in_set,
    "column_values_to_match_regex": match_regex,
    "column_values_to_not_match_regex": not_match_regex,
}
about_nulls = ("column_values_to_not_be_null", "column_values_to_be_null")
bounds = {"min_value", "max_value", "strict_min", "strict_max"}
arguments_known = {
    "column_values_to_be_between": bounds,
    "column_value_lengths_to_be_between": bounds,
    "column_values_to_be_in_set": {"value_set"},
    "column_values_to_not_be_in_set": {"value_set"},
    "column_values_to_match_regex": {"regex"},
    "column_values_to_not_match_regex": {"regex"},
}
arguments_needed = {
    "column_values_to_be_in_set": {"value_set"},
    "column_values_to_not_be_in_set": {"value_set"},
    "column_values_to_match_regex": {"regex"},
    "column_values_to_not_match_regex": {"regex"},
}


def require_row_rule(found: Expectation) -> None:
    """A DeclarationError where the expectation cannot be asked of a single row."""
    if found.type not in row_rules:
        near = difflib.get_close_matches(found.type, row_rules, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it can be {', '.join(row_rules)}"
        raise DeclarationError(f"{found.name}: {found.type} cannot be asked of a single record; {hint}")
    known = arguments_known.get(found.type, set()) | {"column"}
    unknown = sorted(set(found.arguments) - known)
    if unknown:
        raise DeclarationError(
            f"{found.name}: {found.type} of a single record has no {', '.join(unknown)}; "
            f"it has {', '.join(sorted(known))}"
        )
    missing = sorted((arguments_needed.get(found.type, set()) | {"column"}) - set(found.arguments))
    if missing:
        raise DeclarationError(f"{found.name}: {found.type} needs {', '.join(missing)}")
    if known & bounds and not {"min_value", "max_value"} & set(found.arguments):
        raise DeclarationError(f"{found.name}: {found.type} needs min_value or max_value")
    if "regex" in found.arguments:
        require_regex(found.name, found.arguments["regex"])


def require_regex(name: str, text: str) -> None:
    try:
        re.compile(text)
    except (re.error, TypeError) as error:
        raise DeclarationError(f"{name}: the regex {text!r} cannot be read: {error}") from error


def require_fit(expectation: Expectation, kind: str) -> None:
    """A DeclarationError where the expectation cannot be asked of a column of this type."""
    arguments, name = expectation.arguments, expectation.name
    if "regex" in arguments and kind != "string":
        raise DeclarationError(f"{name}: a regex is for text, and the column is {kind}")
    for bound in values_of(arguments, "min_value", "max_value"):
        if compared_type(expectation, kind) == "string":
            raise DeclarationError(f"{name}: text has no bounds; use a regex, or the length of values")
        require_value(name, bound, compared_type(expectation, kind))
    for value in arguments.get("value_set", ()):
        require_value(name, value, kind)


def values_of(arguments: Mapping[str, Any], *names: str) -> list[Any]:
    return [arguments[name] for name in names if arguments.get(name) is not None]


def compared_type(expectation: Expectation, kind: str) -> str:
    """The type of what is compared: the column's, or that of a length."""
    return "int" if expectation.type == "column_value_lengths_to_be_between" else kind


def require_value(name: str, value: Any, kind: str) -> None:
    """A DeclarationError where no column of a type can have the value: a number is no text, and text no number."""
    plain = kind.split("(", maxsplit=1)[0]
    allowed = python_types.get(plain)
    if allowed is None or not isinstance(value, allowed) or (isinstance(value, bool) and plain != "boolean"):
        raise DeclarationError(f"{name}: {value!r} cannot be compared with a column of type {kind}")
    if plain in ("timestamp", "date") and isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError as error:
            raise DeclarationError(f"{name}: {value!r} is no time; write for example 2013-01-01T00:00:00Z") from error


def typed(expectation: Expectation, kind: str) -> dict[str, Any]:
    """The arguments beside the column, with values as literals that can be compared with it."""
    require_fit(expectation, kind)
    found = {name: value for name, value in expectation.arguments.items() if name != "column"}
    for name in ("min_value", "max_value"):
        if found.get(name) is not None:
            found[name] = literal(found[name], compared_type(expectation, kind))
    if "value_set" in found:
        found["value_set"] = [literal(value, kind) for value in found["value_set"]]
    return found


def literal(value: Any, kind: str) -> "Column":
    """A value as a literal; a bound between two whole numbers stays between them."""
    is_number = "int" in kind or kind in ("long", "float", "double")
    return F.lit(value) if is_number else F.lit(value).cast(kind)


number = (int, float, Decimal)
python_types: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "integer", "bigint", "long", "float", "double", "decimal"), number),
    "string": (str,),
    "boolean": (bool,),
    "timestamp": (str, datetime),
    "date": (str, date),
}
