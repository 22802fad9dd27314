"""Random values of every type, from alphabets so small that they collide; as JSON text, and in one form to compare."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.kit import day_one

Features = frozenset[str]
# What a seed may draw, each by itself, so that a fault can be sought with one of them alone.
all_features: Features = frozenset({"swaps", "partials", "inferred", "signs", "hostile", "loose", "imitations"})
imitations = ("struct", "array", "double")
plain_texts = ["A", "B", "C"]
hostile_texts = [
    "${x}",
    "${env:HOME}",
    "",
    "it's",
    'say "no"',
    "back\\slash",
    "x, y",
    "}{",
    "[null, 1]",
    "\u0000",
    "🙂",
    "%_%",
    "NULL",
]


@dataclass(frozen=True)
class Kind:
    """A type: its DDL, and how a value of it is drawn."""

    ddl: str
    draw: Callable[[random.Random], Any]


@dataclass(frozen=True)
class KeyKind:
    """A type of keys: its DDL, and the keys that a case may have; no two cases share one."""

    ddl: str
    of_case: Callable[[int], list[Any]]


def one_of(*values: Any) -> Callable[[random.Random], Any]:
    return lambda chance: chance.choice(values)


def texts(features: Features) -> list[str]:
    return plain_texts + (hostile_texts if "hostile" in features else [])


def attributes(features: Features) -> dict[str, Kind]:
    """Columns that most tables have, several of one type side by side, all of them nullable."""
    text = one_of(None, None, *texts(features))
    number = one_of(None, 1, 2, 3)
    pair = one_of(None, {"p": "A", "q": None}, {"p": None, "q": "A"}, {"p": None, "q": None}, {"p": "A", "q": "B"})
    found = {
        "x": Kind("string", text),
        "n": Kind("int", number),
        "m": Kind("int", number),
        "amount": Kind(
            "decimal(18,10)", one_of(None, Decimal("0.1000000003"), Decimal("2.5"), Decimal("-7.0000000007"))
        ),
        "weight": Kind("double", one_of(None, 0.5, -0.25, 1e6)),
        "is_hot": Kind("boolean", one_of(None, True, False)),
    }
    if "swaps" in features:
        found |= {
            "y": Kind("string", text),
            "pair": Kind("struct<p: string, q: string>", pair),
            "list": Kind("array<int>", one_of(None, [], [1], [None, 1], [1, None], [None])),
            "nested": Kind("array<array<int>>", one_of(None, [[1], [2]], [[1, 2]], [[1, 2], []], [[], [1, 2]])),
        }
    if "signs" in features:
        found |= {
            "rate_%": Kind("double", one_of(None, 0.5, 0.25, 2.0)),
            "price_€": Kind("int", number),
            "größe": Kind("int", number),
        }
    return found


def chosen(chance: random.Random, kinds: Mapping[str, Kind], fewest: int) -> dict[str, Kind]:
    """Some of the columns. Those of a type that are there to be mistaken for each other stay together."""
    together = [{"x", "y"}, {"n", "m"}, {"rate_%", "price_€"}]
    names = {"x", *chance.sample(list(kinds), chance.randint(min(fewest, len(kinds)), len(kinds)))}
    for group in together:
        names |= (group & set(kinds)) if names & group else set()
    return {name: kind for name, kind in kinds.items() if name in names}


def varied(chance: random.Random, row: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The row with one value that is another, or with two values of one type that changed places."""
    pairs = [
        (one, other) for one, other in (("x", "y"), ("n", "m"), ("price_€", "größe")) if {one, other} <= set(kinds)
    ]
    if pairs and chance.random() < 0.5:
        one, other = chance.choice(pairs)
        return {**row, one: row[other], other: row[one]}
    name = chance.choice(list(kinds))
    return {**row, name: kinds[name].draw(chance)}


def key_kinds(features: Features) -> dict[str, KeyKind]:
    """What keys can be of."""
    endings = chance_free_endings(features)
    found = {
        "string": KeyKind("string", lambda case: [f"{case}-{ending}" for ending in endings(case)]),
        "int": KeyKind("int", lambda case: [10 * case, 10 * case + 1, 10 * case + 2]),
        # As doubles these are one number.
        "decimal": KeyKind(
            "decimal(38,18)",
            lambda case: [Decimal(case) + Decimal(f"0.93661951778562025{digit}") for digit in (7, 8)],
        ),
        "date": KeyKind("date", lambda case: [date(2000, 1, 1) + timedelta(days=3 * case + day) for day in range(3)]),
    }
    if "imitations" in features:
        found |= {
            "struct": KeyKind(
                "struct<a: string, b: string>",
                lambda case: [
                    {"a": f"{case}x, y", "b": "z"},
                    {"a": f"{case}x", "b": "y, z"},
                    {"a": f"{case}x", "b": None},
                    {"a": f"{case}x", "b": "null"},
                ],
            ),
            "array": KeyKind(
                "array<string>", lambda case: [[f"{case}", "a"], [f"{case}, a"], [f"{case}", None], [f"{case}"]]
            ),
            # Zero has a sign, and is one number.
            "double": KeyKind("double", lambda case: [case * 2.0, -0.0 if case == 0 else case * 2.0 + 0.5]),
        }
    return found


def a_key(chance: random.Random, features: Features) -> KeyKind:
    """A type of keys, mostly one that the features are about."""
    kinds = key_kinds(features)
    wanted = (["string"] if "hostile" in features else []) + [name for name in imitations if name in kinds]
    return kinds[chance.choice(wanted if wanted and chance.random() < 0.7 else list(kinds))]


def chance_free_endings(features: Features) -> Callable[[int], list[str]]:
    """The same three endings for a case, whatever else is drawn; few, so that records of a case share keys."""
    known = texts(features)
    return lambda case: [known[(case * 3 + number) % len(known)] for number in range(3)]


def a_time(chance: random.Random, case: int) -> datetime:
    """An event time near those of the case: on quarters of an hour, and a second beside the borders of windows."""
    # The clocks of New York go forward on 8 March and back on 1 November.
    first = day_one + timedelta(hours=[0, 24 * 66, 24 * 303 + 20][case % 3])
    hour = first + timedelta(minutes=15 * chance.choice([0, 1, 4, 7, 8, 12, 16, 24, 40, 100, 190]))
    return hour + timedelta(seconds=chance.choice([0, 0, 0, 0, -1, 1]))


def as_json(value: Any, chance: random.Random | None = None) -> str:
    """A value as JSON text; with a chance the members of objects stand in any order."""
    if isinstance(value, Mapping):
        members = [f"{json.dumps(name)}:{as_json(each, chance)}" for name, each in value.items()]
        if chance is not None:
            chance.shuffle(members)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(as_json(each, chance) for each in value) + "]"
    if isinstance(value, datetime):
        return json.dumps(value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def comparable(value: Any) -> Any:
    """A value in a form that is hashable, and equal exactly where the values are the same.

    Zero is one number whatever its sign, true is not 1, and a decimal is its number of cents.
    """
    if isinstance(value, Mapping):
        return ("struct", *[(name, comparable(each)) for name, each in value.items()])
    if isinstance(value, list | tuple):
        return ("list", *[comparable(each) for each in value])
    if isinstance(value, datetime):
        return ("time", value.astimezone(UTC).isoformat())
    if isinstance(value, float):
        return ("float", repr(value + 0.0))
    if isinstance(value, Decimal):
        return ("decimal", str(value.normalize() + 0))
    return (type(value).__name__, value)
