"""Row rules: expectations that a single record keeps or breaks, as columns."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sluice.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from sluice.model.expectations import Expectation


def holds(expectation: "Expectation", types: Mapping[str, str]) -> "Column":
    """Whether a row keeps a row rule. A missing value breaks only the rule that it must exist."""
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


def require_regex(name: str, text: str) -> None:
    try:
        re.compile(text)
    except (re.error, TypeError) as error:
        raise DeclarationError(f"{name}: the regex {text!r} cannot be read: {error}") from error


def require_fit(expectation: "Expectation", kind: str) -> None:
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


def compared_type(expectation: "Expectation", kind: str) -> str:
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


def typed(expectation: "Expectation", kind: str) -> dict[str, Any]:
    """The arguments beside the column, with values as literals that can be compared with it."""
    require_fit(expectation, kind)
    found = {name: value for name, value in expectation.arguments.items() if name not in ("column", "mostly")}
    for name in ("min_value", "max_value"):
        if found.get(name) is not None:
            found[name] = literal(found[name], compared_type(expectation, kind))
    if "value_set" in found:
        found["value_set"] = [literal(value, kind) for value in found["value_set"]]
    return found


def literal(value: Any, kind: str) -> "Column":
    """A value as a literal; a bound between two whole numbers stays between them, and a time without a zone is UTC."""
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
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
