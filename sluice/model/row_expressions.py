"""The expressions of a row pattern: conditions of its variables, and measures of its matches, as SQL for Spark.

They are checked by a parser and rewritten where they stand in the text, so what is not said here means what it means in
Spark.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model.plain import fault
from sluice.model.sql import backticked, fold, parse, quoted, require_closed, statement_word, tokens

if TYPE_CHECKING:
    from sqlglot import Token, exp

# What is the same whatever order the rows of a match are added in.
aggregates = ("count", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or", "every", "some", "any")
# The columns of a match's rows, beside their own: their place in the order of the key, and the variable that each fits.
number_of_row, variable_of_row = "`_pattern_number`", "`_pattern_variable`"
unknown_words = {
    "next": "a condition can read rows before its own alone: PREV(column)",
    "classifier": "count the rows of a variable instead: count(A.*)",
    "match_number": "a match is known by its key and its first row, and a number would change with every earlier match",
    "running": "measures are those of the whole match",
    "final": "measures are those of the whole match anyway; leave it out",
}


@dataclass(frozen=True)
class Previous:
    """The value of an expression in an earlier row of the key, `rows` before; its name in the condition."""

    name: str
    sql: str
    rows: int


@dataclass(frozen=True)
class Condition:
    """The condition of a variable: SQL over the row and what it reads of earlier rows; `plain` has no qualifiers."""

    sql: str
    plain: str
    previous: tuple[Previous, ...] = ()


@dataclass(frozen=True)
class Measure:
    """A measure: SQL of aggregates over the rows of a match; `plain` has no qualifiers."""

    sql: str
    plain: str


def condition_of(dataset: str, variable: str, text: str, variables: Collection[str]) -> Condition:
    """Reads the condition of a variable; a DeclarationError where it reads what is not known of one row."""
    reader = Expressions(dataset, f"define {variable}", text, {fold(each): each for each in variables})
    return reader.condition(variable)


def measure_of(
    dataset: str, name: str, text: str, variables: Collection[str], columns: Collection[str] | None
) -> Measure:
    """Reads a measure; a DeclarationError where a match has no one value for it."""
    reader = Expressions(dataset, f"the measure {name}", text, {fold(each): each for each in variables})
    return reader.measure(None if columns is None else {fold(each) for each in columns})


@dataclass
class Expressions:
    """Rewrites one expression, from its tokens and the places of its columns."""

    dataset: str
    option: str
    text: str
    variables: Mapping[str, str]

    def fault(self, says: str) -> DeclarationError:
        return DeclarationError(f"{self.dataset}: {self.option} is {self.text!r}: {says}")

    @cached_property
    def tokens(self) -> "Sequence[Token]":
        return tokens(self.text) or ()

    @cached_property
    def parsed(self) -> "exp.Expr":
        if not isinstance(self.text, str):
            raise DeclarationError(f"{self.dataset}: {self.option} is {self.text!r}; write a SQL expression")
        require_closed(self.dataset, self.option, self.text)
        word = statement_word(self.text)
        if word:
            raise self.fault(f"{word} begins a statement of SQL; write the name in backticks: {backticked(word)}")
        found = parse(self.text)
        if found is None:
            raise self.fault("this SQL cannot be read")
        return found

    @cached_property
    def columns(self) -> "dict[int, Sequence[str]]":
        """The columns that are read, as the parts of their names, by the place in the text where they begin."""
        from sqlglot import exp

        found: dict[int, Sequence[str]] = {}
        for each in self.parsed.find_all(exp.Column):
            parts = each.parts
            if "start" in parts[0].meta:
                found[parts[0].meta["start"]] = [part.name for part in parts]
        return found

    def require_expression(self, allowed: Collection[str]) -> None:
        """A DeclarationError where there are subqueries, windows, or aggregates that are not allowed."""
        from sqlglot import exp

        for node in self.parsed.walk():
            if isinstance(node, exp.Query | exp.Command):
                raise self.fault("it has a subquery, and only the rows of the key are known here")
            if isinstance(node, exp.Window):
                raise self.fault("it has OVER; PREV(column) reads the rows before")
            if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
                raise self.fault(
                    "IGNORE NULLS and RESPECT NULLS are not supported here: a null counts as the value of its row"
                )
            if isinstance(node, exp.Alias):
                raise self.fault("it ends with a name; write the expression alone")
        for number, each in enumerate(self.tokens):
            word = fold(each.text)
            if self.is_call(number) and word in unknown_words:
                raise self.fault(f"{each.text.upper()} is not known; {unknown_words[word]}")
        for node in self.parsed.find_all(exp.AggFunc):
            name = node.sql_name().lower()
            if not self.is_among(node, allowed):
                raise self.fault(f"{name} is no aggregate that can be used here; {self.usable(allowed)}")

    def require_repeatable(self, *sql: str) -> None:
        """A DeclarationError where what was made of the expression is another value each time, or several."""
        found = next(filter(None, map(fault, sql)), None)
        if found:
            raise self.fault(found)

    def is_among(self, node: "exp.Expr", allowed: Collection[str]) -> bool:
        """Whether an aggregate is one of those that are allowed, by any of its names."""
        names = {name.lower() for name in type(node).sql_names()} | {type(node).__name__.lower()}  # type: ignore[attr-defined]
        alike = {"logical_and": "bool_and", "logical_or": "bool_or"}
        return bool({alike.get(name, name) for name in names} & set(allowed))

    def usable(self, allowed: Collection[str]) -> str:
        if not allowed:
            return "a condition is of one row, and PREV(column) reads the rows before it"
        return f"there are {', '.join(allowed)}"

    def is_call(self, number: int) -> bool:
        """Whether a token is the name of a function."""
        following = self.tokens[number + 1] if number + 1 < len(self.tokens) else None
        return (
            following is not None
            and following.text == "("
            and not quoted(following)
            and not quoted(self.tokens[number])
        )

    def closing(self, opening: int) -> int:
        """The token that closes the bracket at a token."""
        depth = 0
        for number in range(opening, len(self.tokens)):
            if not quoted(self.tokens[number]):
                depth += (self.tokens[number].text == "(") - (self.tokens[number].text == ")")
            if depth == 0:
                return number
        raise self.fault("the brackets do not match")

    def arguments(self, opening: int, closing: int) -> list[tuple[int, int]]:
        """The first and the last token of each argument between two brackets, the latter excluded."""
        found, begin, depth = [], opening + 1, 0
        for number in range(opening + 1, closing):
            text = "" if quoted(self.tokens[number]) else self.tokens[number].text
            depth += (text in ("(", "[")) - (text in (")", "]"))
            if text == "," and depth == 0:
                found.append((begin, number))
                begin = number + 1
        return [*found, (begin, closing)] if closing > opening + 1 else []

    def raw(self, begin: int, stop: int) -> str:
        """The text of tokens, without what is around them."""
        return self.text[self.tokens[begin].start : self.tokens[stop - 1].end + 1] if stop > begin else ""

    def after(self, number: int) -> str:
        """What stands between a token and the one before it."""
        return self.text[self.tokens[number - 1].end + 1 : self.tokens[number].start] if number else ""

    def qualifier(self, number: int) -> str | None:
        """The variable that qualifies a column which begins at a token; None where no variable does."""
        parts = self.columns.get(self.tokens[number].start)
        return self.variables.get(fold(parts[0])) if parts is not None and len(parts) > 1 else None

    def length(self, number: int) -> int:
        """How many tokens the column at a token has."""
        return 2 * len(self.columns[self.tokens[number].start]) - 1

    def unqualified(self, begin: int, stop: int) -> tuple[str, set[str | None]]:
        """The text of tokens without the variables that qualify columns, and which these are (None: none does)."""
        found, seen, number = "", set[str | None](), begin
        while number < stop:
            found += self.after(number) if number > begin else ""
            if self.tokens[number].start in self.columns:
                variable, length = self.qualifier(number), self.length(number)
                seen.add(variable)
                skipped = 2 if variable else 0
                found += self.raw(number + skipped, number + length)
                number += length
            else:
                found += self.raw(number, number + 1)
                number += 1
        return found, seen

    def of_one(self, begin: int, stop: int) -> tuple[str, str | None]:
        """The text of an argument without qualifiers, and its one variable; None where it is of all rows."""
        for number in range(begin, stop):
            if self.is_call(number) and fold(self.tokens[number].text) in ("first", "last", "prev", *aggregates):
                raise self.fault(f"{self.tokens[number].text} stands within another of its kind")
        sql, seen = self.unqualified(begin, stop)
        if len(seen) > 1:
            named = " and ".join(sorted(each or "all rows" for each in seen))
            raise self.fault(f"{self.raw(begin, stop)} is of {named}; write a separate aggregate for each of them")
        return sql, next(iter(seen), None)

    def number_of(self, arguments: Sequence[tuple[int, int]], least: int, default: int) -> int:
        """The number of rows that FIRST, LAST or PREV is given."""
        if len(arguments) < 2:
            return default
        said = self.raw(*arguments[1])
        is_number = said.isdecimal() and len(said) <= 5
        if len(arguments) > 2 or not is_number or int(said) < least or int(said) > 10_000:
            raise self.fault(f"after the expression comes a number of rows from {least} to 10000, and nothing else")
        return int(said)

    def condition(self, own: str) -> Condition:
        self.require_expression(())
        if isinstance(self.parsed.unnest(), numbers_and_texts()):
            raise self.fault("it is a number or a text, and a condition is true or false; compare it with something")
        plain, seen = self.unqualified(0, len(self.tokens))
        others = sorted(each for each in seen if each not in (None, own))
        if others:
            raise self.fault(
                f"it reads {others[0]}, and a condition is of its own row; PREV(column) reads the rows before it, "
                "whichever variable they are of"
            )
        found, previous, number = "", list[Previous](), 0
        while number < len(self.tokens):
            found += self.after(number)
            if self.is_call(number) and fold(self.tokens[number].text) == "prev":
                closing = self.closing(number + 1)
                arguments = self.arguments(number + 1, closing)
                if not arguments:
                    raise self.fault("PREV needs a column")
                sql, _ = self.of_one(*arguments[0])
                each = Previous(f"_pattern_previous_{own}_{len(previous)}", sql, self.number_of(arguments, 1, 1))
                previous.append(each)
                found += backticked(each.name)
                number = closing + 1
            elif self.tokens[number].start in self.columns:
                skipped, length = 2 if self.qualifier(number) else 0, self.length(number)
                found += self.raw(number + skipped, number + length)
                number += length
            else:
                found += self.raw(number, number + 1)
                number += 1
        self.require_repeatable(found, *[each.sql for each in previous])
        return Condition(found, plain, tuple(previous))

    def measure(self, known: Collection[str] | None) -> Measure:
        self.require_expression(("first", "last", *aggregates))
        plain, _ = self.unqualified(0, len(self.tokens))
        found, number = "", 0
        while number < len(self.tokens):
            found += self.after(number)
            word = fold(self.tokens[number].text)
            if self.is_call(number) and word in ("first", "last", "prev", *aggregates):
                closing = self.closing(number + 1)
                arguments = self.arguments(number + 1, closing)
                if word == "prev" or not arguments:
                    raise self.fault(
                        "PREV is for conditions; LAST(A.x, 1) is the last but one row of A"
                        if word == "prev"
                        else f"{self.tokens[number].text} needs an expression, such as A.x or *"
                    )
                if word in ("first", "last"):
                    sql, variable = self.of_one(*arguments[0])
                    rows = self.number_of(arguments, 0, 0)
                    found += value_at(sql, variable, rows, is_first=word == "first")
                else:
                    found += self.aggregate(number, closing)
                number = closing + 1
                if number < len(self.tokens) and fold(self.tokens[number].text) == "filter":
                    raise self.fault("FILTER is not known here; write sum(CASE WHEN … THEN A.x END)")
            elif self.tokens[number].start in self.columns:
                length, variable = self.length(number), self.qualifier(number)
                parts = self.columns[self.tokens[number].start]
                path = self.raw(number + (2 if variable else 0), number + length)
                is_column = variable is not None or known is None or fold(parts[0]) in known
                found += value_at(path, variable, 0, is_first=False) if is_column else path
                number += length
            else:
                found += self.raw(number, number + 1)
                number += 1
        self.require_repeatable(found)
        return Measure(found, plain)

    def aggregate(self, number: int, closing: int) -> str:
        """An aggregate over the rows of its variable."""
        begin = number + 2
        sql, variable = self.of_one(begin, closing)
        call = f"{self.tokens[number].text}({sql})"
        return call if variable is None else f"{call} FILTER (WHERE {is_of(variable)})"


def numbers_and_texts() -> tuple[type, ...]:
    """What is never true or false, whatever it is made from."""
    from sqlglot import exp

    return exp.Literal, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe


def value_at(sql: str, variable: str | None, rows: int, *, is_first: bool) -> str:
    """The value of an expression in the first or last row of a match, or some rows from there; null where none is."""
    condition = "" if variable is None else f" FILTER (WHERE {is_of(variable)})"
    if not rows:
        return f"{'min_by' if is_first else 'max_by'}({sql}, {number_of_row}){condition}"
    listed = f"array_sort(collect_list(named_struct('number', {number_of_row}, 'value', {sql})){condition})"
    return f"try_element_at({listed}, {rows + 1 if is_first else -rows - 1}).value"


def is_of(variable: str) -> str:
    """The condition that a row of a match is one of a variable."""
    return f"{variable_of_row} = '{variable}'"
