"""The condition of a stored query: what a row must be, as data.

A condition is a list of alternatives, each a list of atoms that must all be true of a row (disjunctive normal form):

    [[{"column": "price", "operator": ">", "values": ["100"]}, {"column": "symbol", "operator": "in", "values": ["A"]}]]

Values are texts, in the one form that each type has. As in SQL, an atom of a null is neither true nor false, unless it
asks for nulls. `from_sql` makes a condition of an SQL predicate.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypedDict

from sluice.errors import DeclarationError, UsageError, hint
from sluice.model.ddl import integers
from sluice.model.sql import backticked, fold, is_text, parse, tokens

if TYPE_CHECKING:
    from sqlglot import exp

Family = Literal["whole", "double", "text"]


class Atom(TypedDict):
    """A comparison of one column with values."""

    column: str
    operator: str
    values: list[str]


Condition = list[list[Atom]]

# How many alternatives a condition has at most, how many atoms each of these, and how many values all of them.
alternatives_max, atoms_max, values_max = 256, 256, 10_000
# Each operator with its negation; between them, nulls aside, every value fits one.
negated = {
    "=": "<>",
    "<": ">=",
    ">": "<=",
    "in": "not in",
    "between": "not between",
    "is null": "is not null",
    "starts with": "not starts with",
    "ends with": "not ends with",
    "contains": "not contains",
}
negations = negated | {other: one for one, other in negated.items()}
operators = tuple(sorted(negations))
about_nulls = ("is null", "is not null")
of_order = ("<", "<=", ">", ">=", "between", "not between")
of_text = tuple(name for name in operators if name.endswith(("with", "contains")))
# How many values an operator takes: at least, and at most.
value_counts = {
    **dict.fromkeys(operators, (1, 1)),
    **dict.fromkeys(about_nulls, (0, 0)),
    **dict.fromkeys(("between", "not between"), (2, 2)),
    **dict.fromkeys(("in", "not in"), (1, values_max)),
}
flipped = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}

number = r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?"
day = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
clock = r"T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
decimal_kind = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True)
class Comparable:
    """How values of a type are compared: as whole numbers, doubles or text; and what a condition writes them like."""

    family: Family
    pattern: str
    example: str


comparables = {
    **dict.fromkeys(integers, Comparable("whole", r"[+-]?[0-9]{1,19}", "12")),
    **dict.fromkeys(("float", "double"), Comparable("double", rf"{number}|NaN|-?Infinity", "1.5")),
    "boolean": Comparable("whole", "true|false", "true"),
    "string": Comparable("text", r"[\s\S]*", "some text"),
    "date": Comparable("whole", day, "2026-01-31"),
    "timestamp": Comparable("whole", rf"{day}{clock}(?:Z|[+-][0-9]{{2}}:[0-9]{{2}})", "2026-01-31T12:00:00Z"),
    "timestamp_ntz": Comparable("whole", f"{day}{clock}", "2026-01-31T12:00:00"),
}


def comparable(kind: str | None) -> Comparable | None:
    """How values of a type are compared; None for what no stored query can read."""
    found = decimal_kind.fullmatch(kind or "")
    if found is None:
        return comparables.get(kind or "")
    precision, scale = int(found[1]), int(found[2])
    whole = rf"[+-]?0*[0-9]{{1,{max(precision - scale, 1)}}}"
    return Comparable("text", rf"{whole}(?:\.[0-9]{{0,{scale}}}0*)?", "12." + "5" * scale if scale else "12")


def readable(columns: Mapping[str, str | None]) -> dict[str, str]:
    """The columns that stored queries can read, with their types."""
    return {
        name: kind
        for name, kind in columns.items()
        if kind and not name.startswith("_") and comparable(kind) is not None
    }


def fault(condition: Sequence[Sequence[Atom]], columns: Mapping[str, str]) -> str | None:
    """What is wrong with a condition on these columns, in words; None for a good one."""
    atoms = [atom for each in condition for atom in each]
    if (
        len(condition) > alternatives_max
        or any(len(each) > atoms_max for each in condition)
        or sum(len(atom["values"]) for atom in atoms) > values_max
    ):
        return (
            f"it is too large: at most {alternatives_max} alternatives of {atoms_max} comparisons each, "
            f"and {values_max:,} values in all"
        )
    return next((found for atom in atoms if (found := fault_of(atom, columns))), None)


def fault_of(atom: Atom, columns: Mapping[str, str]) -> str | None:
    """What is wrong with a comparison."""
    column, operator, values = atom["column"], atom["operator"], atom["values"]
    kind = columns.get(column)
    form = comparable(kind)
    if kind is None or form is None:
        return f"there is no column {column} to compare; {hint(column, columns)}there are {', '.join(columns)}"
    if operator not in negations:
        return f"there is no operator {operator!r}; {hint(operator, operators)}there are {', '.join(operators)}"
    if (operator in of_text and kind != "string") or (operator in of_order and kind == "boolean"):
        return f"{column} is a {kind}, and {operator!r} is not for that"
    least, most = value_counts[operator]
    if not least <= len(values) <= most:
        return f"{operator!r} takes {least if least == most else f'{least} to {most:,}'} values, and has {len(values)}"
    wrong = next((value for value in values if not is_value(value, kind, form)), None)
    return (
        None
        if wrong is None
        else f"{shortened(repr(wrong))} is no {kind}, as {column} is; write for example {form.example}"
    )


def is_value(value: str, kind: str, form: Comparable) -> bool:
    """Whether a text is a value of a type, in the form that conditions have."""
    if re.fullmatch(form.pattern, value, re.ASCII) is None:
        return False
    if kind in integers:
        return -(2**63) <= int(value) < 2**63
    if kind in ("date", "timestamp", "timestamp_ntz"):
        return is_time(value)
    return re.search("[\ud800-\udfff]", value) is None


def is_time(text: str) -> bool:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return False
    offset = found.utcoffset()
    return offset is None or abs(offset.total_seconds()) <= 18 * 3600


def from_sql(sql: str, columns: Mapping[str, str] | None = None) -> Condition:
    """The condition that a row fits where an SQL predicate is true of it; a UsageError says what cannot be stored.

    With the types of the `columns`, names and values are checked, and written as each type has them.
    """
    parsed = parse(with_quotes_escaped(sql)) if tokens(sql) else None
    if parsed is None:
        raise UsageError(
            f"The condition {shortened(repr(sql))} cannot be read as SQL; "
            "write for example: price > 100 AND symbol = 'A'"
        )
    try:
        condition = Reader(sql, None if columns is None else readable(columns)).read(parsed)
    except RecursionError:
        raise UsageError("The condition is nested too deeply.") from None
    wrong = fault(condition, readable(columns)) if columns is not None else None
    if wrong:
        raise UsageError(f"The condition {shortened(sql)} cannot be stored: {wrong}.")
    return condition


def with_quotes_escaped(sql: str) -> str:
    r"""The same SQL with `'it''s'` as `'it\'s'`, which the parser would take for two texts."""
    found = tokens(sql) or []
    for one, other in reversed(list(pairwise(found))):
        if is_text(one) and is_text(other) and other.start == one.end + 1 and sql[one.end] == sql[other.start]:
            sql = sql[: one.end] + "\\" + sql[other.start :]
    return sql


def shortened(sql: str) -> str:
    return sql if len(sql) <= 200 else f"{sql[:200]}…"


def text_of(condition: Iterable[Iterable[Atom]]) -> str:
    """A condition in words, for people."""
    said = [" AND ".join(map(text_of_atom, each)) or "true" for each in condition]
    return " OR ".join(said if len(said) == 1 else [f"({each})" for each in said]) or "false"


def text_of_atom(atom: Atom) -> str:
    column, operator, values = backticked(atom["column"]), atom["operator"], [repr(each) for each in atom["values"]]
    if operator in ("in", "not in"):
        return f"{column} {operator} ({', '.join(values)})"
    return " ".join([column, operator, " and ".join(values)]).rstrip()


never: Condition = []
always: Condition = [[]]


@dataclass(frozen=True)
class Reader:
    """Makes a condition of a parsed predicate: negations go inwards to the comparisons, and OR outwards."""

    sql: str
    columns: Mapping[str, str] | None

    def read(self, node: "exp.Expr", *, is_negated: bool = False) -> Condition:
        """The condition that the predicate is true, or that it `is_negated`: false."""
        from sqlglot import exp

        match node:
            case exp.Paren():
                return self.read(node.this, is_negated=is_negated)
            case exp.Not():
                return self.read(node.this, is_negated=not is_negated)
            case exp.And() | exp.Or():
                parts = [self.read(each, is_negated=is_negated) for each in operands(node)]
                is_all = isinstance(node, exp.And) != is_negated
                return self.all_of(parts) if is_all else self.any_of(parts)
            case exp.Boolean():
                return always if node.this != is_negated else never
            case exp.Null():
                return never
        return self.any_of([[[atom]] if isinstance(atom, dict) else atom for atom in self.atoms(node, is_negated)])

    def all_of(self, parts: Iterable[Condition]) -> Condition:
        found = always
        for part in parts:
            found = self.any_of([[[*one, *other]] for one in found for other in part])
        return found

    def any_of(self, parts: Iterable[Condition]) -> Condition:
        """The alternatives of all parts, each once, and each of their atoms once."""
        found: dict[tuple[object, ...], list[Atom]] = {}
        for each in (alternative for part in parts for alternative in part):
            once = {(atom["column"], atom["operator"], *atom["values"]): atom for atom in each}
            found.setdefault(tuple(sorted(once)), list(once.values()))
            if len(once) > atoms_max:
                raise UsageError(f"The condition {shortened(self.sql)} joins more than {atoms_max} comparisons by AND")
            if len(found) > alternatives_max:
                raise UsageError(
                    f"The condition {shortened(self.sql)} has more than {alternatives_max} alternatives, written out "
                    "as OR of AND; store it as several queries"
                )
        return list(found.values())

    def atoms(self, node: "exp.Expr", is_negated: bool) -> "Iterator[Atom | Condition]":
        """The comparisons of which one must be true."""
        from sqlglot import exp

        comparisons: dict[type[exp.Expr], str] = {
            exp.EQ: "=",
            exp.NEQ: "<>",
            exp.LT: "<",
            exp.LTE: "<=",
            exp.GT: ">",
            exp.GTE: ">=",
            exp.StartsWith: "starts with",
            exp.EndsWith: "ends with",
            exp.Contains: "contains",
        }
        match node:
            case exp.Column():
                yield self.atom(self.column(node, "boolean"), "=", ["false" if is_negated else "true"])
            case exp.NullSafeEQ() | exp.NullSafeNEQ():
                yield from self.null_safe(node, isinstance(node, exp.NullSafeEQ) != is_negated)
            case exp.Is(expression=exp.Null()):
                yield self.atom(self.column(node.this), "is not null" if is_negated else "is null", [])
            case exp.Is(expression=exp.Boolean()):
                column, wanted = self.column(node.this, "boolean"), str(bool(node.expression.this)).lower()
                yield self.atom(column, "<>" if is_negated else "=", [wanted])
                if is_negated:
                    yield self.atom(column, "is null", [])
            case exp.In() if not node.args.get("query") and not node.args.get("unnest") and node.expressions:
                column = self.column(node.this)
                values = [self.value(column, each) for each in node.expressions]
                known = list(dict.fromkeys(each for each in values if each is not None))
                if known and not (is_negated and None in values):
                    yield self.atom(column, "not in" if is_negated else "in", known)
            case exp.Between() if not node.args.get("symmetric"):
                yield from self.between(node, is_negated)
            case exp.Like(expression=exp.Literal()):
                yield from self.like(node, bool(node.args.get("negate")) != is_negated)
            case _ if type(node) in comparisons:
                yield from self.compared(node, comparisons[type(node)], is_negated)
            case _:
                raise self.refused(node)

    def compared(self, node: "exp.Expr", operator: str, is_negated: bool) -> "Iterator[Atom]":
        from sqlglot import exp

        left, right = node.this, node.expression
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column) and operator not in of_text:
            left, right, operator = right, left, flipped.get(operator, operator)
        column = self.column(left)
        value = self.value(column, right)
        if value is not None:
            yield self.atom(column, negations[operator] if is_negated else operator, [value])

    def null_safe(self, node: "exp.Expr", is_same: bool) -> "Iterator[Atom]":
        from sqlglot import exp

        left, right = (node.this, node.expression)
        column = self.column(left if isinstance(left, exp.Column) else right)
        value = self.value(column, right if isinstance(left, exp.Column) else left)
        if value is None:
            yield self.atom(column, "is null" if is_same else "is not null", [])
            return
        yield self.atom(column, "=" if is_same else "<>", [value])
        if not is_same:
            yield self.atom(column, "is null", [])

    def between(self, node: "exp.Expr", is_negated: bool) -> "Iterator[Atom]":
        column = self.column(node.this)
        low, high = self.value(column, node.args["low"]), self.value(column, node.args["high"])
        if low is not None and high is not None:
            yield self.atom(column, "not between" if is_negated else "between", [low, high])
        elif is_negated:
            # Of a null bound nothing is certain; beyond the other one it is.
            yield from [self.atom(column, "<", [each]) for each in [low] if each is not None]
            yield from [self.atom(column, ">", [each]) for each in [high] if each is not None]

    def like(self, node: "exp.Expr", is_negated: bool) -> "Iterator[Atom]":
        pattern = node.expression.this
        inner = pattern.strip("%")
        if not isinstance(pattern, str) or re.search(r"[%_\\]", inner):
            raise UsageError(
                f"The condition {shortened(self.sql)} has LIKE {pattern!r}; write LIKE with % at the "
                "beginning, at the end, or both, and no other wildcard"
            )
        begins, ends = not pattern.startswith("%"), not pattern.endswith("%")
        operator = "=" if begins and ends else "starts with" if begins else "ends with" if ends else "contains"
        column = self.column(node.this, "string")
        yield self.atom(column, negations[operator] if is_negated else operator, [inner])

    def column(self, node: "exp.Expr", of_kind: str | None = None) -> "exp.Column":
        """The column that an expression is; one of a type where that is asked, as far as types are known."""
        from sqlglot import exp

        while isinstance(node, exp.Paren):
            node = node.this
        if not isinstance(node, exp.Column) or len(node.parts) > 1 or isinstance(node.this, exp.Star):
            raise self.refused(node)
        kind = self.kind(node)
        if of_kind is not None and kind not in (None, of_kind):
            raise UsageError(
                f"The condition {shortened(self.sql)} uses {node.name}, a {kind}, where Spark takes a {of_kind}"
            )
        return node

    def kind(self, column: "exp.Column") -> str | None:
        """The type of a column; None where it is not known."""
        return None if self.columns is None else self.columns.get(self.name(column))

    def atom(self, column: "exp.Column", operator: str, values: list[str]) -> Atom:
        return {"column": self.name(self.column(column)), "operator": operator, "values": values}

    def name(self, column: "exp.Column") -> str:
        """The column's name as the table has it."""
        named = {fold(name): name for name in self.columns or ()}
        return named.get(fold(column.name), column.name)

    def value(self, column: "exp.Column", node: "exp.Expr") -> str | None:
        """The value of a literal as text, in the form that the column's type has; None for null."""
        from sqlglot import exp

        kind, sign, of = self.kind(column), "", ""
        while isinstance(node, exp.Paren | exp.Neg):
            sign = sign if isinstance(node, exp.Paren) else "" if sign else "-"
            node = node.this
        written = node
        if isinstance(node, exp.Cast):
            of, node = node.to.sql("spark").partition("(")[0].lower(), node.this
        match node:
            case exp.Null():
                return None
            case exp.Boolean() if not sign and not of and kind in (None, "boolean"):
                return str(bool(node.this)).lower()
            case exp.Literal(is_string=False) if is_exact(node.this, of, kind):
                if kind == "string":
                    raise UsageError(
                        f"The condition {shortened(self.sql)} compares the text {column.name} with the number "
                        f"{node.this}; write '{node.this}'"
                    )
                return as_number(f"{sign}{node.this}", kind)
            case exp.Literal(is_string=True) if not sign and (not of or is_time_of(node.this, of, kind)):
                return as_time(node.this, kind, of)
            case exp.Concat(expressions=parts) if not (sign or of) and all(
                isinstance(each, exp.Literal) for each in parts
            ):
                return as_time("".join(each.this for each in parts), kind)
        raise self.refused(written)

    def refused(self, node: "exp.Expr") -> UsageError:
        return UsageError(
            f"The condition {shortened(self.sql)} has {shortened(node.sql('spark'))}, which cannot be stored: a stored "
            "query compares columns with values (=, <>, <, >, IN, BETWEEN, IS NULL, LIKE 'a%'), with AND, OR and NOT"
        )


def operands(node: "exp.Expr") -> "list[exp.Expr]":
    """All that one AND, or one OR, joins: the parser makes a tree as deep as they are many."""
    kind, found, waiting = type(node), list["exp.Expr"](), [node]
    while waiting:
        each = waiting.pop()
        if type(each) is kind:
            waiting += [each.expression, each.this]
        else:
            found.append(each)
    return found


def is_exact(text: str, of: str, kind: str | None) -> bool:
    """Whether a number, cast to the type `of`, is what it says: 5L is, and 0.1F is another number than 0.1."""
    if of in integers:
        return text.isdecimal()
    return not of or (of == "double" and kind in (None, "float", "double"))


def as_number(text: str, kind: str | None) -> str:
    """A number as its type has it: `1e3` is 1000 where whole numbers or decimals are.

    Spark compares these with `1e3` as doubles, which are exact to 15 digits; a text of more is left as it is.
    """
    decimal = decimal_kind.fullmatch(kind or "")
    if kind is None or (kind not in integers and decimal is None):
        return text
    try:
        found = Decimal(text)
    except InvalidOperation:
        return text
    digits = found.adjusted() + 1 + (int(decimal[2]) if decimal else 0)
    return format(found, "f") if "e" not in text.lower() or abs(digits) <= 15 else text


times = ("timestamp", "timestamp_ltz", "timestamp_ntz")


def is_time_of(text: str, of: str, kind: str | None) -> bool:
    """Whether a text, cast to the type `of`, is a time with all that the text says, for a column of times."""
    if kind not in (None, "date", *times):
        return False
    return of in times or (of == "date" and re.fullmatch(day, text.strip()) is not None)


def as_time(text: str, kind: str | None, of: str = "") -> str:
    """A text as it is, and a time as RFC 3339: one without an offset is in UTC, as Spark's session is.

    A time with an offset is one without, of a column of such times, as it is written; if it is a timestamp, as in UTC.
    """
    kind = kind or of
    # Python also reads 20260131, 2026-W05-6 and fractions after a comma, which Spark refuses.
    if re.match(day, text.strip()) is None or "," in text:
        return text
    try:
        if kind == "date":
            return date.fromisoformat(text.strip()).isoformat()
        if kind in times:
            found = datetime.fromisoformat(text.strip())
            if kind == "timestamp_ntz" and of in ("", kind):
                return found.replace(tzinfo=None).isoformat()
            in_utc = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()[:-6]
            return in_utc if kind == "timestamp_ntz" else f"{in_utc}Z"
    except (ValueError, OverflowError):
        return text
    return text


def require_readable(dataset: str, columns: Mapping[str, str | None] | None) -> dict[str, str]:
    """The columns that queries can read; a DeclarationError where there is none."""
    found = readable(columns or {})
    if not found:
        raise DeclarationError(
            f"{dataset}: the types of its source's columns are not known; say which of them queries may read: "
            "schema='symbol string, price decimal(10,2)'"
        )
    return found
