"""Predicates, drawn at random: as SQL, as what they say of a row, and the rows that they are asked of."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from tests.oracles.standing import Row, Truth, plain

kinds = {
    "name": "string",
    "count": "bigint",
    "price": "decimal(10,2)",
    "ratio": "double",
    "good": "boolean",
    "day": "date",
    "seen": "timestamp",
    "small": "int",
}
hostile = (
    "it's",
    'say "hi"',
    "a\\b",
    "%x_",
    "ünï",
    "日本",
    "",
    " ",
    "a",
    "ab",
    "abc",
    "b",
    "x" * 300,
    "\U0001f600",
    "\n\t",
    "`",
    "{{a}}",
)
first_day = datetime(2026, 1, 1, tzinfo=UTC)


def value(random: Random, kind: str) -> Any:  # noqa: PLR0911 - one for each type
    """A value out of few, so that comparisons are often true, and of the ends of the type."""
    match kind:
        case "string":
            return random.choice(hostile)
        case "bigint":
            return random.choice([*range(-3, 8), 10**6, 2**63 - 1, -(2**63)])
        case "int":
            return random.choice([*range(-3, 8), 2**31 - 1])
        case "decimal(10,2)":
            return Decimal(
                random.choice(["0", "-0.01", "0.01", "1", "1.50", "12.34", "-12.34", "99999999.99", "-99999999.99"])
            )
        case "double":
            return random.choice(
                [0.0, -0.0, 0.5, -0.5, 1.0, 1e-9, 1e300, -1e300, 12.5, float("nan"), float("inf"), -float("inf")]
            )
        case "boolean":
            return random.random() < 0.5
        case "date":
            return date(2026, 1, 1) + timedelta(days=random.choice([-800_000 // 1000, 0, 1, 2, 3, 10_000]))
    return first_day + timedelta(
        seconds=random.choice([-(10**9), 0, 1, 3600, 7200, 86400]), microseconds=random.choice([0, 1])
    )


def row(random: Random) -> dict[str, Any]:
    return {name: None if random.random() < 0.15 else value(random, kind) for name, kind in kinds.items()}


def literal(each: Any, random: Random) -> str:  # noqa: PLR0911 - one for each type
    """A value as SQL."""
    match each:
        case None:
            return "NULL"
        case bool():
            return str(each).upper()
        case str():
            text = each.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{text}'"
        case float():
            named = {"nan": "'NaN'", "inf": "'Infinity'", "-inf": "'-Infinity'"}
            return named.get(repr(each), f"{each!r}D")
        case datetime():
            zoneless = each.replace(tzinfo=None).isoformat(sep=" ")
            return random.choice([f"TIMESTAMP '{zoneless}'", f"'{each.isoformat()}'"])
        case date():
            return random.choice([f"DATE '{each}'", f"'{each}'"])
    if each == -(2**63):
        return f"'{each}'"
    return str(each)


@dataclass(frozen=True)
class Asked:
    """A comparison of a column with values, which may be null, or a combination of others."""

    operator: str
    column: str = ""
    values: tuple[Any, ...] = ()
    parts: tuple["Asked", ...] = ()

    def truth(self, row: Row) -> Truth:
        """What it says of a row, by SQL's logic of three values."""
        if self.operator in ("and", "or", "not"):
            found = [each.truth(row) for each in self.parts]
            if self.operator == "not":
                return None if found[0] is None else not found[0]
            decides = self.operator == "or"
            return decides if decides in found else None if None in found else not decides
        if self.operator in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[self.operator]
        return self.comparison(row[self.column])

    def comparison(self, value: Any) -> Truth:
        name = self.operator.removeprefix("not ")
        match name:
            case "is null" | "is true" | "is false":
                found: Truth = value is {"is null": None, "is true": True, "is false": False}[name]
            case "<=>":
                other = self.values[0]
                found = value is other is None if None in (value, other) else plain["="](value, other)
            case "in":
                each = [None if None in (value, other) else plain["="](value, other) for other in self.values]
                found = True if True in each else None if None in each else False
            case "between":
                low, high = self.values
                each = [
                    None if None in (value, low) else plain[">="](value, low),
                    None if None in (value, high) else plain["<="](value, high),
                ]
                found = False if False in each else None if None in each else True
            case _:
                found = None if value is None or None in self.values else plain[name](value, *self.values)
        return found if name == self.operator or found is None else not found

    def sql(self, random: Random) -> str:  # noqa: PLR0911 - one for each operator
        """The same in SQL."""
        if self.operator in ("and", "or"):
            joined = f" {self.operator} ".join(each.sql(random) for each in self.parts)
            return f"({joined})"
        if self.operator == "not":
            return f"NOT ({self.parts[0].sql(random)})"
        if self.operator in ("true", "false", "null"):
            return self.operator
        column, values = (
            random.choice([self.column, f"`{self.column}`"]),
            [literal(each, random) for each in self.values],
        )
        name, negated = self.operator.removeprefix("not "), "NOT " * self.operator.startswith("not ")
        match name:
            case "in":
                return f"{column} {negated}IN ({', '.join(values)})"
            case "between":
                return f"{column} {negated}BETWEEN {values[0]} AND {values[1]}"
            case "is null" | "is true" | "is false":
                return f"{column} IS {negated}{name.removeprefix('is ').upper()}"
            case "starts with" | "ends with" | "contains":
                return f"{negated}{name.replace(' ', '')}({column}, {values[0]})"
        if name in ("=", "<>", "<=>") and random.random() < 0.3:
            return f"{values[0]} {name} {column}"
        return f"{column} {name} {values[0]}"


def predicate(random: Random, depth: int = 2) -> Asked:
    """A predicate over the columns."""
    if depth and random.random() < 0.7:
        operator = random.choice(["and", "or", "not"])
        parts = tuple(predicate(random, depth - 1) for _ in range(1 if operator == "not" else random.randint(2, 3)))
        return Asked(operator, parts=parts)
    if random.random() < 0.04:
        return Asked(random.choice(["true", "false", "null"]))
    column, kind = random.choice(list(kinds.items()))
    operators = ["=", "<>", "in", "not in", "is null", "not is null", "<=>"]
    operators += (
        ["is true", "not is true", "is false"]
        if kind == "boolean"
        else ["<", "<=", ">", ">=", "between", "not between"]
    )
    operators += ["starts with", "ends with", "contains", "not contains"] if kind == "string" else []
    operator = random.choice(operators)
    counts = {"in": random.randint(1, 4), "not in": random.randint(1, 4), "between": 2, "not between": 2}
    count = 0 if "is" in operator else counts.get(operator, 1)
    drawn = tuple(None if random.random() < 0.06 else value(random, kind) for _ in range(count))
    return Asked(operator, column, drawn)
