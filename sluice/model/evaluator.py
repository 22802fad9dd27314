"""SQL expressions evaluated over one row without Spark, where the result is certain to be what Spark's is.

Only a part of SQL is known here: the expressions below, over the types of `model.values`. Everything else is a
DeclarationError when it is declared. Where Spark would fail, for a number that is out of range, so does this.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sluice.errors import DeclarationError, hint
from sluice.model.ddl import column_types
from sluice.model.sql import fold, is_text, parse, require_closed, tokens
from sluice.model.values import (
    OutOfRange,
    decimal_type,
    digits_max,
    digits_of,
    element_of,
    exact,
    fitted,
    in_range,
    integer_bits,
    is_known,
    whole,
)

if TYPE_CHECKING:
    from sqlglot import exp

# The values that an expression reads, by scope and name; those without a scope are in "".
Row = Mapping[str, Mapping[str, Any]]
Evaluate = Callable[[Row], Any]
void = "void"
# Spark turns the sign of a decimal with the precision of IEEE 754's decimal128.
negated_digits_max = 34
interval_units = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
known = (
    "AND, OR, NOT, comparisons, <=>, IS NULL, BETWEEN, IN, CASE, if, coalesce, nvl, ifnull, nullif, greatest, least; "
    "+, -, *, %, div, abs and CAST of whole numbers and decimals; || and concat, length; array, size, array_contains, "
    "array_append, array_remove; a timestamp + INTERVAL n DAY, HOUR, MINUTE or SECOND"
)


@dataclass(frozen=True)
class Expression:
    """An expression with the type of its values, as a function of a row. It raises OutOfRange where Spark would.

    `written` is the value of a number that stands in the text.
    """

    kind: str
    of: Evaluate
    written: Decimal | None = None


class Refused(ValueError):
    """What is not known here."""


def compiled(place: str, text: str, scopes: Mapping[str, Mapping[str, str]]) -> Expression:
    """An expression over columns of scopes, such as `state.balance`; those of the scope "" are written alone.

    `place` says in a DeclarationError which option of which declaration the text is.
    """
    require_closed(*two_parts(place), text)
    if "\\" in text:
        raise DeclarationError(f"{place} has a backslash, which texts of commands and states cannot have: {text}")
    if any(is_text(one) and is_text(following) for one, following in pairwise(tokens(text) or [])):
        raise DeclarationError(
            f"{place} has two texts without an operator between: {text}. Join them with ||, and put a text with the "
            'one quotation mark in the other: "it\'s"'
        )
    parsed = parse(text)
    if parsed is None:
        raise DeclarationError(f"{place} cannot be read: {text}")
    require_two_values(place, text, parsed)
    try:
        return Compiler(scopes).expression(parsed)
    except Refused as error:
        raise DeclarationError(f"{place} is {text}: {error}") from error


def require_two_values(place: str, text: str, parsed: "exp.Expr") -> None:
    """A DeclarationError for an nvl of more or fewer than two values, which is coalesce to the parser only."""
    names = {fold(each.text) for each in tokens(text) or []} & {"nvl", "ifnull"}
    if names and any(node.key == "coalesce" and len(node.expressions) != 1 for node in parsed.walk()):
        raise DeclarationError(f"{place} is {text}: {' and '.join(sorted(names))} takes two values; write coalesce")


def two_parts(place: str) -> tuple[str, str]:
    declaration, _, option = place.rpartition(": ")
    return declaration, option


def cast(place: str, text: str, scopes: Mapping[str, Mapping[str, str]], kind: str) -> Evaluate:
    """An expression whose values become those of a type, as Spark's CAST makes them."""
    found = compiled(place, text, scopes)
    try:
        return converted(found, kind).of
    except Refused as error:
        raise DeclarationError(f"{place} is {text}: {error}") from error


@dataclass(frozen=True)
class Compiler:
    """Makes functions of parsed expressions, given the types of the columns that they can read."""

    scopes: Mapping[str, Mapping[str, str]]

    def expression(self, node: "exp.Expr") -> Expression:
        make = {**logic, **numbers, **texts_and_arrays}.get(type(node).__name__)
        if make is None:
            words = type(node).__name__ if not node.name else node.name
            raise Refused(f"{words} is not decided without Spark; there are {known}")
        return make(self, node)

    def all(self, nodes: "Sequence[exp.Expr]") -> list[Expression]:
        return [self.expression(each) for each in nodes]

    def operands(self, *nodes: "exp.Expr") -> list[Expression]:
        """What is compared. Where another comparison is among it, Spark binds it in another order than the parser."""
        for node in nodes:
            if type(node).__name__ in predicates:
                raise Refused(f"put brackets around {node.sql()}, which is compared")
        return self.all(nodes)

    def of_kind(self, node: "exp.Expr", kind: str) -> Expression:
        found = self.expression(node)
        if found.kind not in (kind, void):
            raise Refused(f"{node.sql()} is a {found.kind}, and a {kind} is needed")
        return found

    def column(self, node: "exp.Column") -> Expression:
        parts = [part.name for part in node.parts]
        scope, name = ("", parts[0]) if len(parts) == 1 else (fold(parts[0]), parts[1])
        columns = self.scopes.get(scope)
        there_are = [f"{each}.{column}".lstrip(".") for each, inner in self.scopes.items() for column in inner]
        if columns is None or len(parts) > 2:
            raise Refused(f"{'.'.join(parts)} is not known here; there are {', '.join(there_are)}")
        found = next((each for each in columns if fold(each) == fold(name)), None)
        if found is None:
            raise Refused(f"there is no {'.'.join(parts)}; {hint(name, columns)}there are {', '.join(there_are)}")
        if not is_known(columns[found]):
            raise Refused(f"{'.'.join(parts)} is a {columns[found]}, and only Spark knows its values exactly")
        return Expression(columns[found], lambda row: row[scope][found])


def strict(kind: str, compute: Callable[..., Any], *parts: Expression) -> Expression:
    """An expression that is null where one of its parts is."""
    if len(parts) == 1:
        first = parts[0].of

        def of_one(row: Row) -> Any:
            value = first(row)
            return None if value is None else compute(value)

        return Expression(kind, of_one)

    def of_all(row: Row) -> Any:
        values = [part.of(row) for part in parts]
        return None if any(value is None for value in values) else compute(*values)

    return Expression(kind, of_all)


def common(found: Sequence[str]) -> str:
    """The type in which values of several types are compared, or one of them is chosen."""
    return reduce(wider, found, void)


def wider(one: str, other: str) -> str:
    if other in (one, void):
        return one
    if one == void:
        return other
    if one in integer_bits and other in integer_bits:
        return max(one, other, key=lambda kind: integer_bits[kind])
    first, second = digits_of(one), digits_of(other)
    if first and second:
        return decimal(max(first[0], second[0]), max(first[1], second[1]))
    inner, its = element_of(one), element_of(other)
    if inner is not None and its is not None:
        return f"array<{wider(inner, its)}>"
    raise Refused(f"a {one} and a {other} do not go together; CAST one of them")


def decimal(before: int, after: int) -> str:
    """The decimal type of so many digits; refused where Spark would round, or lose the first ones."""
    if before + after > digits_max:
        raise Refused(f"its result may need {before + after} digits, and there are {digits_max}; CAST to fewer before")
    return f"decimal({max(before + after, 1)},{after})"


def converted(found: Expression, kind: str) -> Expression:
    """The values of an expression as those of another type."""
    if found.kind in (kind, void):
        return Expression(kind, found.of)
    element, own = element_of(kind), element_of(found.kind)
    if element is not None and own is not None:
        each = converted(Expression(own, lambda row: row["value"]["it"]), element).of
        return strict(kind, lambda values: [each({"value": {"it": value}}) for value in values], found)
    if found.kind in integer_bits and kind in integer_bits:
        return strict(kind, in_range(kind), found)
    if found.kind in integer_bits and kind == "string":
        return strict(kind, str, found)
    if digits_of(found.kind) and kind in integer_bits:
        fit = in_range(kind)
        return strict(kind, lambda value: fit(whole(value)), found)
    if digits_of(found.kind) and decimal_type.fullmatch(kind):
        fit_digits = fitted(kind)
        return strict(kind, lambda value: fit_digits(Decimal(value)), found)
    raise Refused(f"a {found.kind} cannot become a {kind} without Spark")


# Truth and choice


def connective(*, decides: bool) -> "Callable[[Compiler, exp.Binary], Expression]":
    """AND, which a false decides alone, or OR, which a true does; unknown where a null is left."""

    def made(compiler: Compiler, node: "exp.Binary") -> Expression:
        left, right = compiler.of_kind(node.this, "boolean").of, compiler.of_kind(node.expression, "boolean").of

        def value(row: Row) -> bool | None:
            first = left(row)
            second = first if first is decides else right(row)
            if second is decides:
                return decides
            return None if first is None or second is None else not decides

        return Expression("boolean", value)

    return made


def comparison(compare: Callable[[Any, Any], bool]) -> "Callable[[Compiler, exp.Binary], Expression]":
    def made(compiler: Compiler, node: "exp.Binary") -> Expression:
        left, right = compiler.operands(node.this, node.expression)
        require_comparable(left, right)
        return strict("boolean", compare, left, right)

    return made


def require_comparable(*parts: Expression) -> None:
    kind = common([part.kind for part in parts])
    if element_of(kind) is not None:
        raise Refused("arrays are not compared here; use array_contains or size")
    # Spark knows the answer without looking at the value, and so says it of a null, too.
    if any(part.kind in integer_bits for part in parts):
        for part in parts:
            if part.written is not None and not -(1 << 63) <= part.written < 1 << 63:
                raise Refused(f"no whole number is near {part.written:f}; leave the comparison out")


def null_safe(compiler: Compiler, node: "exp.NullSafeEQ") -> Expression:
    left, right = compiler.operands(node.this, node.expression)
    require_comparable(left, right)
    return Expression("boolean", lambda row: left.of(row) == right.of(row))


def is_it(compiler: Compiler, node: "exp.Is") -> Expression:
    wanted = type(node.expression).__name__
    (value,) = compiler.operands(node.this)
    found = value.of
    if wanted == "Null":
        return Expression("boolean", lambda row: found(row) is None)
    if wanted != "Boolean":
        raise Refused("IS is followed by NULL, TRUE or FALSE")
    if value.kind not in ("boolean", void):
        raise Refused(f"{node.this.sql()} is a {value.kind}, and a boolean is needed")
    truth = bool(node.expression.this)
    return Expression("boolean", lambda row: found(row) is truth)


def between(compiler: Compiler, node: "exp.Between") -> Expression:
    if node.args.get("symmetric"):
        raise Refused("Spark has no BETWEEN SYMMETRIC")
    value, low, high = compiler.operands(node.this, node.args["low"], node.args["high"])
    require_comparable(value, low)
    require_comparable(value, high)

    def within(row: Row) -> bool | None:
        its, least = value.of(row), low.of(row)
        if its is not None and least is not None and its < least:
            return False
        most = high.of(row)
        if its is not None and most is not None and its > most:
            return False
        return None if its is None or least is None or most is None else True

    return Expression("boolean", within)


def among(compiler: Compiler, node: "exp.In") -> Expression:
    if not node.expressions:
        raise Refused("IN is followed by values in brackets")
    (value,), options = compiler.operands(node.this), compiler.all(node.expressions)
    require_comparable(value, *options)

    def found(row: Row) -> bool | None:
        its = value.of(row)
        if its is None:
            return None
        has_null = False
        for option in options:
            other = option.of(row)
            if other is not None and other == its:
                return True
            has_null = has_null or other is None
        return None if has_null else False

    return Expression("boolean", found)


def case(compiler: Compiler, node: "exp.Case") -> Expression:
    branches = node.args["ifs"]
    subject = node.args.get("this")
    conditions = [equal(compiler, subject, each.this) if subject else condition(compiler, each) for each in branches]
    default = node.args.get("default")
    return first_true(compiler, conditions, [*(each.args["true"] for each in branches), default])


def if_else(compiler: Compiler, node: "exp.If") -> Expression:
    if "false" not in node.args:
        raise Refused("if has three values: write if(condition, value, other)")
    return first_true(compiler, [condition(compiler, node)], [node.args["true"], node.args["false"]])


def condition(compiler: Compiler, node: "exp.If") -> Evaluate:
    return compiler.of_kind(node.this, "boolean").of


def equal(compiler: Compiler, one: "exp.Expr", other: "exp.Expr") -> Evaluate:
    left, right = compiler.all([one, other])
    require_comparable(left, right)
    return strict("boolean", operator.eq, left, right).of


def first_true(compiler: Compiler, conditions: Sequence[Evaluate], values: "Sequence[exp.Expr | None]") -> Expression:
    nothing = Expression(void, lambda row: None)
    results = [nothing if each is None else compiler.expression(each) for each in values]
    kind = common([each.kind for each in results])
    *chosen, otherwise = [converted(each, kind).of for each in results]
    pairs = list(zip(conditions, chosen, strict=True))

    def value(row: Row) -> Any:
        for is_true, of in pairs:
            if is_true(row):
                return of(row)
        return otherwise(row)

    return Expression(kind, value)


def coalesce(compiler: Compiler, node: "exp.Coalesce") -> Expression:
    found = compiler.all([node.this, *node.expressions])
    kind = common([each.kind for each in found])
    options = [converted(each, kind).of for each in found]

    def value(row: Row) -> Any:
        return next((its for of in options if (its := of(row)) is not None), None)

    return Expression(kind, value)


def null_if(compiler: Compiler, node: "exp.Nullif") -> Expression:
    value = compiler.expression(node.this)
    is_equal = equal(compiler, node.this, node.expression)
    return Expression(value.kind, lambda row: None if is_equal(row) else value.of(row))


def extreme(choose: Callable[[list[Any]], Any]) -> "Callable[[Compiler, exp.Expr], Expression]":
    def made(compiler: Compiler, node: "exp.Expr") -> Expression:
        found = compiler.all([node.this, *node.expressions])
        require_comparable(*found)
        if len(found) < 2:
            raise Refused("greatest and least are of two values or more")
        kind = common([each.kind for each in found])
        options = [converted(each, kind).of for each in found]

        def value(row: Row) -> Any:
            values = [its for of in options if (its := of(row)) is not None]
            return choose(values) if values else None

        return Expression(kind, value)

    return made


# Numbers


def literal(_compiler: Compiler, node: "exp.Literal") -> Expression:
    text = str(node.this)
    if node.is_string:
        return Expression("string", lambda row: text)
    return number(text)


def number(text: str) -> Expression:
    """A number as it is written: of the least type of whole numbers from int on, or a decimal of its digits."""
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        value = int(text)
        for kind in ("int", "bigint"):
            if -(1 << (integer_bits[kind] - 1)) <= value < 1 << (integer_bits[kind] - 1):
                return Expression(kind, lambda row: value, Decimal(value))
    elif not re.fullmatch(r"-?(\d+\.\d*|\.\d+)", text, re.ASCII):
        raise Refused(f"{text} is no exact number here; write its digits")
    digits = Decimal(text)
    after = max(0, -int(digits.as_tuple().exponent))
    found = decimal(max(0, digits.adjusted() + 1), after)
    value_of = fitted(found)(digits)
    return Expression(found, lambda row: value_of, value_of)


def negative(compiler: Compiler, node: "exp.Neg") -> Expression:
    if type(node.this).__name__ == "Literal" and not node.this.is_string:
        return number(f"-{node.this.this}")
    found = compiler.expression(node.this)
    if found.kind in integer_bits:
        fit = in_range(found.kind)
        return strict(found.kind, lambda value: fit(-value), found)
    return strict(found.kind, exact.minus, short(found))


def absolute(compiler: Compiler, node: "exp.Abs") -> Expression:
    found = compiler.expression(node.this)
    if found.kind in integer_bits:
        fit = in_range(found.kind)
        return strict(found.kind, lambda value: fit(abs(value)), found)
    return strict(found.kind, exact.abs, short(found))


def short(found: Expression) -> Expression:
    """A decimal of which Spark makes the negative without rounding."""
    require_number(found)
    if sum(digits_of(found.kind) or (0, 0)) > negated_digits_max:
        raise Refused(f"Spark rounds the negative of a {found.kind}; CAST to {negated_digits_max} digits before")
    return found


def require_number(*parts: Expression) -> None:
    for part in parts:
        if part.kind != void and not digits_of(part.kind):
            raise Refused(f"a {part.kind} is no number")


def arithmetic(
    of_integers: Callable[[int, int], int],
    of_decimals: Callable[[Any, Any], Decimal] | None,
    digits: Callable[[tuple[int, int], tuple[int, int]], tuple[int, int]],
) -> "Callable[[Compiler, exp.Binary], Expression]":
    def made(compiler: Compiler, node: "exp.Binary") -> Expression:
        if type(node.expression).__name__ == "Interval":
            return moved(compiler, node)
        left, right = compiler.all([node.this, node.expression])
        require_number(left, right)
        if void in (left.kind, right.kind):
            raise Refused("NULL in arithmetic is always NULL")
        if left.kind in integer_bits and right.kind in integer_bits:
            kind = wider(left.kind, right.kind)
            fit = in_range(kind)
            return strict(kind, lambda one, other: fit(of_integers(one, other)), left, right)
        if of_decimals is None:
            raise Refused("% takes whole numbers here; CAST decimals to one")
        kind = decimal(*digits(digits_of(left.kind) or (0, 0), digits_of(right.kind) or (0, 0)))
        return strict(kind, of_decimals, left, right)

    return made


def of_sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]) + 1, max(one[1], other[1])


def of_product(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0] + 1, one[1] + other[1]


def quotient(one: int, other: int) -> int:
    if other == 0:
        raise OutOfRange("a division by zero")
    found = abs(one) // abs(other)
    return found if (one < 0) == (other < 0) else -found


def rest(one: int, other: int) -> int:
    return one - other * quotient(one, other)


def whole_quotient(compiler: Compiler, node: "exp.IntDiv") -> Expression:
    left, right = compiler.all([node.this, node.expression])
    if left.kind not in integer_bits or right.kind not in integer_bits:
        raise Refused("div is of whole numbers here")
    fit = in_range("bigint")
    return strict("bigint", lambda one, other: fit(quotient(one, other)), left, right)


def division(_compiler: Compiler, _node: "exp.Div") -> Expression:
    raise Refused("/ is not exact; use div, or multiply by a decimal")


def moved(compiler: Compiler, node: "exp.Binary") -> Expression:
    """A time plus or minus an interval."""
    interval = node.expression
    unit = fold(str(interval.args["unit"].name if interval.args.get("unit") else "")).removesuffix("s")
    count = str(interval.this.name) if interval.this is not None else ""
    if unit not in interval_units or not re.fullmatch(r"\d{1,9}", count, re.ASCII):
        raise Refused("write an interval as INTERVAL 15 MINUTES: a whole number, and DAY, HOUR, MINUTE or SECOND")
    by = timedelta(seconds=int(count) * interval_units[unit] * (-1 if type(node).__name__ == "Sub" else 1))

    def later(time: Any) -> Any:
        try:
            return time + by
        except OverflowError as error:
            raise OutOfRange(f"{time} and {by} are no time") from error

    return strict("timestamp", later, compiler.of_kind(node.this, "timestamp"))


def cast_to(compiler: Compiler, node: "exp.Cast") -> Expression:
    if node.args.get("safe"):
        raise Refused("try_cast is not known here; CAST, which rejects what does not fit")
    said = node.args["to"].sql("spark")
    if said.upper() == "DECIMAL":
        raise Refused("say how many digits: DECIMAL(10, 2)")
    try:
        kind = column_types(f"it {said}")["it"]
    except DeclarationError as error:
        raise Refused(f"{said} is not known here") from error
    return converted(compiler.expression(node.this), kind)


# Text and arrays


def concatenated(compiler: Compiler, nodes: "Sequence[exp.Expr]") -> Expression:
    return strict("string", lambda *texts: "".join(texts), *[compiler.of_kind(each, "string") for each in nodes])


def array(compiler: Compiler, node: "exp.Array") -> Expression:
    found = compiler.all(node.expressions)
    kind = common([each.kind for each in found])
    if element_of(kind) is not None:
        raise Refused("arrays of arrays are not known here")
    elements = [converted(each, kind).of for each in found]
    return Expression(f"array<{kind}>", lambda row: [of(row) for of in elements])


def array_and_element(compiler: Compiler, node: "exp.Expr") -> tuple[Expression, Expression]:
    values, value = compiler.all([node.this, node.args["expression"]])
    element = element_of(values.kind)
    if element is None:
        raise Refused(f"{node.this.sql()} is a {values.kind}, and an array is needed")
    kind = wider(element, value.kind)
    if void in (value.kind, kind):
        raise Refused("NULL has no type; CAST it, or leave it out")
    if element != value.kind and decimal_type.fullmatch(kind):
        raise Refused(f"{node.this.sql()} has elements of {element}, and this is a {value.kind}; CAST it")
    return converted(values, f"array<{kind}>"), converted(value, kind)


def contains(compiler: Compiler, node: "exp.ArrayContains") -> Expression:
    def found(values: list[Any], value: Any) -> bool | None:
        return True if value in values else None if None in values else False

    return strict("boolean", found, *array_and_element(compiler, node))


def appended(compiler: Compiler, node: "exp.ArrayAppend") -> Expression:
    values, value = array_and_element(compiler, node)

    def longer(row: Row) -> list[Any] | None:
        found = values.of(row)
        return None if found is None else [*found, value.of(row)]

    return Expression(values.kind, longer)


def removed(compiler: Compiler, node: "exp.ArrayRemove") -> Expression:
    values, value = array_and_element(compiler, node)

    def shorter(found: list[Any], without: Any) -> list[Any]:
        return [each for each in found if each is None or each != without]

    return strict(values.kind, shorter, values, value)


def size(compiler: Compiler, node: "exp.Expr") -> Expression:
    found = compiler.expression(node.this)
    if element_of(found.kind) is None:
        raise Refused(f"{node.this.sql()} is a {found.kind}, and size is of an array")
    return strict("int", len, found)


# What compares. Put together without brackets, these are read by Spark from left to right.
predicates = frozenset(["EQ", "NEQ", "LT", "LTE", "GT", "GTE", "NullSafeEQ", "Is", "Between", "In", "Not", "And", "Or"])
Make = Callable[[Compiler, Any], Expression]
logic: dict[str, Make] = {
    "Paren": lambda compiler, node: compiler.expression(node.this),
    "Column": lambda compiler, node: compiler.column(node),
    "Boolean": lambda compiler, node: Expression("boolean", lambda row, truth=bool(node.this): truth),  # type: ignore[misc]
    "Null": lambda compiler, node: Expression(void, lambda row: None),
    "And": connective(decides=False),
    "Or": connective(decides=True),
    "Not": lambda compiler, node: strict("boolean", operator.not_, compiler.of_kind(node.this, "boolean")),
    "EQ": comparison(operator.eq),
    "NEQ": comparison(operator.ne),
    "LT": comparison(operator.lt),
    "LTE": comparison(operator.le),
    "GT": comparison(operator.gt),
    "GTE": comparison(operator.ge),
    "NullSafeEQ": null_safe,
    "Is": is_it,
    "Between": between,
    "In": among,
    "Case": case,
    "If": if_else,
    "Coalesce": coalesce,
    "Nullif": null_if,
    "Greatest": extreme(max),
    "Least": extreme(min),
}
numbers: dict[str, Make] = {
    "Literal": literal,
    "Neg": negative,
    "Abs": absolute,
    "Add": arithmetic(operator.add, exact.add, of_sum),
    "Sub": arithmetic(operator.sub, exact.subtract, of_sum),
    "Mul": arithmetic(operator.mul, exact.multiply, of_product),
    "Mod": arithmetic(rest, None, of_sum),
    "IntDiv": whole_quotient,
    "Div": division,
    "Cast": cast_to,
    "TryCast": cast_to,
}
texts_and_arrays: dict[str, Make] = {
    "DPipe": lambda compiler, node: concatenated(compiler, [node.this, node.expression]),
    "Concat": lambda compiler, node: concatenated(compiler, node.expressions),
    "Length": lambda compiler, node: strict("int", len, compiler.of_kind(node.this, "string")),
    "Array": array,
    "ArrayContains": contains,
    "ArrayAppend": appended,
    "ArrayRemove": removed,
    "ArraySize": size,
}
