"""Random SQL expressions of the part that is evaluated without Spark, and random rows for them."""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

# Columns by scope, with their types: what an expression of commands can read.
scopes = {
    "state": {
        "b": "boolean", "t": "tinyint", "h": "smallint", "i": "int", "n": "bigint", "d": "decimal(10,2)",
        "e": "decimal(5,4)", "s": "string", "w": "timestamp", "y": "date", "a": "array<string>", "g": "array<int>",
    },
    "command": {"b": "boolean", "i": "int", "n": "bigint", "d": "decimal(12,1)", "s": "string", "w": "timestamp"},
}  # fmt: skip
texts = ["", "a", "A", "é", "e\u0301", "z", "😀", "a b", "'", "Ω", "\U0001f1e9", "﷽"]
whole_literals = ("0", "1", "-1", "2147483647", "-2147483648", "3000000000")
integers = ("tinyint", "smallint", "int", "bigint")
bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
kinds = ("boolean", "number", "string", "timestamp", "date", "array<string>", "array<int>")


def value(draw: random.Random, kind: str) -> Any:
    """A value of a type: most often a small one, sometimes the least or the greatest, or null."""
    if draw.random() < 0.15:
        return None
    if kind.startswith("array"):
        return [value(draw, kind[6:-1]) for _ in range(draw.randrange(4))]
    if kind in integers:
        most = 1 << (bits[kind] - 1)
        return draw.choice([0, 1, -1, 2, 7, -7, draw.randrange(-100, 100), most - 1, -most])
    if kind.startswith("decimal"):
        digits, after = (int(each) for each in kind[8:-1].split(","))
        most = 10**digits - 1
        return Decimal(draw.choice([0, 1, -5, 50, draw.randrange(-most, most + 1), most, -most])).scaleb(-after)
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.randrange(-5, 5), microseconds=draw.randrange(2))
    given: dict[str, Any] = {
        "boolean": draw.random() < 0.5,
        "string": draw.choice(texts),
        "timestamp": draw.choice([moment, datetime(9999, 12, 30, tzinfo=UTC), datetime(2, 1, 1, tzinfo=UTC)]),
        "date": date(2026, 1, draw.randrange(1, 4)),
    }
    return given[kind]


def row(draw: random.Random) -> dict[str, dict[str, Any]]:
    return {scope: {name: value(draw, kind) for name, kind in columns.items()} for scope, columns in scopes.items()}


# Each of the functions, over columns that are sometimes null.
each_function = [
    "state.b AND command.b", "state.b OR command.b", "NOT state.b", "state.b IS TRUE", "state.b IS FALSE",
    "state.b <=> command.b", "state.i <=> command.i", "state.s <=> command.s", "state.a IS NULL", "state.i = state.t",
    "state.s < command.s", "state.s >= command.s", "state.d < command.d", "state.w <= command.w", "state.d = state.i",
    "state.i BETWEEN state.t AND command.i", "state.t NOT BETWEEN 0 AND state.i", "state.i IN (1, NULL, state.t)",
    "state.t NOT IN (1, state.h)", "state.s IN ('a', command.s)", "array_contains(state.a, command.s)",
    "NOT array_contains(state.a, state.s)", "array_contains(state.g, state.t)", "array_contains(state.g, state.n)",
    "array_append(state.a, command.s)", "array_append(state.g, state.n)", "array_remove(state.a, command.s)",
    "array_remove(state.g, state.i)", "array(state.s, command.s)", "array(state.t, state.n)", "size(state.a)",
    "size(array_remove(state.a, 'a'))", "length(state.s)", "length(state.s || command.s)", "concat(state.s, 'x')",
    "CASE WHEN state.b THEN state.i ELSE state.n END", "CASE state.s WHEN command.s THEN 1 WHEN 'a' THEN 2.5 END",
    "if(state.b, state.d, state.t)", "coalesce(state.i, state.n, 0)", "nvl(state.d, 1)", "ifnull(state.s, '-')",
    "nullif(state.i, state.t)", "greatest(state.i, state.n, 3)", "least(state.d, state.t)", "greatest(state.s, 'a')",
    "state.t + state.h", "state.i - command.i", "state.n * 3", "state.d + state.e", "state.d - command.d", "-state.t",
    "state.d * state.e", "state.d * state.n", "abs(state.h)", "abs(state.d)", "state.i % state.t",
    "state.n div state.t",
    "-state.d", "CAST(state.d AS int)", "CAST(state.n AS tinyint)", "CAST(state.e AS decimal(3,1))", "0.5 * state.i",
    "CAST(state.d AS decimal(12,4))", "CAST(state.i AS decimal(12,2))", "CAST(state.n AS string)", "state.h % -7",
    "state.w + INTERVAL 90 MINUTES", "state.w - INTERVAL 1 DAY", "state.y < state.y", "state.h div -7",
]  # fmt: skip


class Drawn:
    """Draws expressions of a kind of values, to a depth."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def of(self, kind: str, depth: int) -> str:
        if depth == 0 or self.draw.random() < 0.15:
            return self.leaf(kind)
        makers: dict[str, list[Callable[[int], str]]] = {
            "boolean": [self.logic, self.logic, self.comparison, self.comparison, self.membership],
            "number": [self.arithmetic, self.arithmetic, self.counted, self.cast],
            "string": [self.text],
            "timestamp": [self.moved],
            "array<string>": [self.array],
            "array<int>": [self.array_of_numbers],
        }
        makes: list[Callable[[int], str]] = [*makers.get(kind, []), partial(self.choice, kind)]
        made: str = self.draw.choice(makes)(depth - 1)
        return made

    def leaf(self, kind: str) -> str:
        columns = [
            f"{scope}.{name}"
            for scope, inner in scopes.items()
            for name, its in inner.items()
            if its == kind or (kind == "number" and (its in integers or its.startswith("decimal")))
        ]
        literals = {
            "boolean": ["true", "false", "CAST(NULL AS boolean)"],
            "number": [*whole_literals, "2.50", "0.5", "-0.001", "CAST(7 AS smallint)"],
            "string": [f"'{each.replace(chr(39), chr(39) * 2)}'" for each in texts if "'" not in each],
            "array<string>": ["array('a', 'é')"],
            "array<int>": ["array(1, 2)", "array(-1)"],
        }  # fmt: skip
        return self.draw.choice(columns + self.draw.sample(literals.get(kind, []), min(1, len(literals.get(kind, [])))))

    def logic(self, depth: int) -> str:
        one, other = self.of("boolean", depth), self.of("boolean", depth)
        return self.draw.choice([
            f"({one} AND {other})", f"({one} OR {other})", f"NOT {one}", f"(NOT {one})", f"({one} IS NULL)",
            f"({one} IS NOT NULL)", f"({one} IS TRUE)", f"({one} = {other})", f"({one} <=> {other})",
        ])  # fmt: skip

    def comparison(self, depth: int) -> str:
        kind = self.draw.choice(["number", "number", "string", "timestamp", "date"])
        one, other = self.of(kind, depth), self.of(kind, depth)
        sign = self.draw.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "!=", "=="])
        if self.draw.random() < 0.2:
            return f"({one} BETWEEN {other} AND {self.of(kind, depth)})"
        return f"({one} {sign} {other})"

    def membership(self, depth: int) -> str:
        if self.draw.random() < 0.5:
            return f"array_contains({self.of('array<string>', depth)}, {self.of('string', depth)})"
        kind = self.draw.choice(["number", "string"])
        options = ", ".join(self.of(kind, depth) for _ in range(self.draw.randrange(1, 4)))
        return f"({self.of(kind, depth)} {self.draw.choice(['', 'NOT '])}IN ({options}))"

    def arithmetic(self, depth: int) -> str:
        one, other = self.of("number", depth), self.of("number", depth)
        whole = [f"state.{self.draw.choice('thin')}", f"command.{self.draw.choice('in')}"]
        return self.draw.choice([
            f"({one} + {other})", f"({one} - {other})", f"({one} * {other})", f"(-{one})" if one[0] != "-" else one,
            f"({one} + {other} - {one})", f"({whole[0]} % {whole[1]})", f"({whole[0]} div {whole[1]})", f"abs({one})",
            f"greatest({one}, {other})", f"least({one}, {other})", f"coalesce({one}, {other})",
            f"nullif({one}, {other})",
        ])  # fmt: skip

    def counted(self, depth: int) -> str:
        return self.draw.choice([f"length({self.of('string', depth)})", f"size({self.of('array<string>', depth)})"])

    def cast(self, depth: int) -> str:
        kind = self.draw.choice(["int", "bigint", "smallint", "decimal(8,1)", "decimal(20,6)", "decimal(3,3)"])
        return f"CAST({self.of('number', depth)} AS {kind})"

    def text(self, depth: int) -> str:
        one, other = self.of("string", depth), self.of("string", depth)
        number = self.draw.choice(["state.i", "state.n", "command.i"])
        return self.draw.choice([
            f"({one} || {other})", f"concat({one}, {other}, '-')", f"CAST({number} AS string)",
            f"greatest({one}, {other})",
        ])  # fmt: skip

    def moved(self, depth: int) -> str:
        interval = self.draw.choice(["INTERVAL 15 MINUTES", "INTERVAL '1' DAY", "INTERVAL 1 SECOND", "INTERVAL 2 DAYS"])
        return f"({self.of('timestamp', depth)} {self.draw.choice('+-')} {interval})"

    def array(self, depth: int) -> str:
        one, other = self.of("array<string>", depth), self.of("string", depth)
        return self.draw.choice([
            f"array_append({one}, {other})", f"array_remove({one}, {other})",
            f"array({other}, {self.of('string', depth)})",
        ])  # fmt: skip

    def array_of_numbers(self, depth: int) -> str:
        one = self.of("array<int>", depth)
        number = self.draw.choice(["state.i", "command.i", "1", "state.t"])
        return self.draw.choice([f"array_append({one}, {number})", f"array_remove({one}, {number})"])

    def choice(self, kind: str, depth: int) -> str:
        one, other = self.of(kind, depth), self.of(kind, depth)
        condition = self.of("boolean", depth)
        return self.draw.choice([
            f"CASE WHEN {condition} THEN {one} ELSE {other} END", f"CASE WHEN {condition} THEN {one} END",
            f"if({condition}, {one}, {other})", f"coalesce({one}, {other})",
            f"CASE state.i WHEN 1 THEN {one} WHEN command.i THEN {other} END",
        ])  # fmt: skip
