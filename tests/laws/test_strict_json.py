"""Strict records: Spark accepts the texts that a strict parser in plain Python does, and reads the same in them."""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from sluice.shapes.parse import Parsing, parse
from tests.kit import at
from tests.oracles.strict_json import not_json, verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

parsing = Parsing(
    schema="id string, n bigint, ratio double, at timestamp, inner struct<id: string, at: timestamp>, "
    "list array<bigint>",
    required=(),
    event_time=None,
)
texts_of_a_world = 1_500
times = (
    *("2024-05-01T10:00:00Z", "2024-05-01t10:00:00.123456789z", "2024-05-01T10:00Z", "2024-02-29T23:59:59+23:59"),
    *("2016-12-31T23:59:60Z", "2017-01-01T05:29:60.5+05:30", "2024-05-01T10:00:60Z", "2023-02-29T00:00:00Z"),
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:00", "2024-05-01T10:00:00"),
    *("2024-05-01 10:00:00Z", "2024-05-01", "12:30", "2026", "1714557600000", "-2024-05-01T10:00:00Z", ""),
)
strings = (
    "a",
    "",
    "a,b",
    ",",
    "é😀",
    "}{][",
    '"',
    "\\",
    "\\ud800",
    "// /* */ ' NaN",
    "1.5",
    "NaN",
    "null",
    "\u2028",
    "{}",
    "}]",
    "\ud83d",
)
numbers = (
    "0",
    "-1",
    "7",
    "9223372036854775807",
    "9223372036854775808",
    "1.5",
    "2.10",
    "1e2",
    "-1E+5",
    "1e400",
    "1.0E10",
)
pieces = (
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "\\",
        "'",
        "//",
        "/**/",
        "NaN",
        "-Infinity",
        "1e400",
        "-",
        "0",
        "01",
        ".5",
        "1.",
    ),
    *(
        "\\ud83d",
        "\\uDE00",
        "\\u0069d",
        "\\x",
        "\x00",
        "\t",
        "\n",
        " ",
        "\ufeff",
        "null",
        "true",
        '"id":"b",',
        '"n":1,',
    ),
    *(
        '{"a":1,"a":2}',
        '{"a":{"b":1}}',
        "é",
        "😀",
        "}}",
        "}]",
        "]}",
        '{"id":"c"}',
        "T",
        "z",
        "+01:00",
        "9" * 30,
        "#",
        "\x7f",
    ),
)


@settings(max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2**32))
def test_a_record_is_accepted_and_read_as_by_a_strict_parser(spark: "SparkSession", seed: int) -> None:
    require_as_strict(spark, seed)


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        pytest.param("parse.names_of", "CAST(NULL AS array<string>)", id="every member is taken for a value"),
        pytest.param("parse.has_others", "false", id="names are not compared"),
        pytest.param("strict.has_one_closing_brace", "true", id="objects inside are not looked at"),
    ],
)
def test_a_check_that_is_left_out_is_noticed(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, function: str, answer: str
) -> None:
    monkeypatch.setattr(f"sluice.shapes.{function}", lambda _: F.expr(answer))
    # What a declaration has made of its columns, it keeps.
    monkeypatch.setitem(globals(), "parsing", replace(parsing))
    with pytest.raises(AssertionError, match="more items"):
        require_as_strict(spark, 1)


def require_as_strict(spark: "SparkSession", seed: int) -> None:
    """An AssertionError unless Spark reads texts as a strict parser does."""
    chance = Random(seed)
    values = [hostile(chance) for _ in range(texts_of_a_world)]
    records: list[tuple[Any, ...]] = [("t", 0, offset, value, at(2), {}) for offset, value in enumerate(values)]
    frame = spark.createDataFrame(
        records,
        "topic string, partition int, offset bigint, value binary, timestamp timestamp, headers map<string,string>",
    )
    inner = F.struct(F.col("inner.id"), F.unix_micros("inner.at"))
    found = parse(frame, parsing).select(
        "_offset",
        "_rule",
        "_unknown_fields",
        F.struct("id", "n", "ratio", F.unix_micros("at"), inner, "list").alias("row"),
    )
    differing: list[tuple[Any, ...]] = []
    for offset, broken, unknown, row in found.collect():
        rule, expected = verdict(values[offset])
        said = not_json if broken in ("malformed_json", "trailing_content") else broken
        read = tuple(tuple(each) if isinstance(each, list | tuple) else each for each in row)
        if said != rule or (expected is not None and not same(read, expected)):
            differing.append((values[offset], broken, read, rule, expected))
        if rule is None and (unknown or []) != unknown_in(values[offset]):
            differing.append((values[offset], unknown))
    assert differing == []
    accepted = sum(verdict(value)[0] is None for value in values)
    assert accepted > len(values) / 20
    assert len(values) - accepted > len(values) / 4


def unknown_in(value: bytes) -> list[str]:
    """The names in an accepted text that are no columns."""
    return [name for name in json.loads(value) if name not in parsing.row_columns]


def same(read: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    """Equal column by column; how an object is written into a column of text is not compared."""
    return all(
        left == right
        or (right is None and isinstance(left, str) and left[:1] in "{[")
        or (isinstance(left, tuple) and isinstance(right, tuple) and same(left, right))
        for left, right in zip(read, expected, strict=True)
    )


def hostile(chance: Random) -> bytes:
    """The text of a record, broken in up to three places."""
    text = written(chance, record(chance))
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 3))):
        begin = chance.randrange(len(text) + 1)
        end = min(len(text), begin + chance.choice((0, 0, 0, 1, 1, 2)))
        text = text[:begin] + chance.choice(("", *pieces)) + text[end:]
    if chance.random() < 0.1:
        text += chance.choice(("}", "]", "]}", "}}", " x", ",1", text, "\n", '],"w":1}', "},null]"))
    return text.encode("utf-8", "surrogatepass")


def record(chance: Random) -> dict[str, Any]:
    """An object with some of the columns, and others."""
    made: dict[str, Callable[[], Any]] = {
        "id": lambda: chance.choice((*strings, number(chance), True, None, [], {"a": [1]})),
        "n": lambda: chance.choice((number(chance), 5, 6, None, "1")),
        "ratio": lambda: chance.choice((number(chance), number(chance), None, "1.5")),
        "at": lambda: chance.choice(times),
        "inner": lambda: chance.choice((None, {}, {"id": "x", "at": chance.choice(times)}, {"at": 5})),
        "list": lambda: chance.choice(([], [1, None], [1, 2, 3], [number(chance)], "x")),
        "ID": lambda: "other",
        "more": lambda: chance.choice(({"id": {"id": 1}}, [{"a": 1}, {"a": 2}], [[[]]], "}", 1.5)),
    }
    names = chance.sample(list(made), chance.randint(0, 4))
    return {name: made[name]() for name in names}


class Number(float):
    """A number that is written in its own way."""

    text = ""

    def __repr__(self) -> str:
        return self.text


def number(chance: Random) -> Number:
    text = chance.choice(numbers)
    found = Number(float(text))
    found.text = text
    return found


def written(chance: Random, value: Any) -> str:
    """JSON with blanks and escapes as they come."""
    if isinstance(value, dict):
        pairs = list(value.items())
        if pairs and chance.random() < 0.05:
            pairs.insert(chance.randrange(len(pairs) + 1), chance.choice(pairs))
        members = (f"{quoted(chance, name)}{gap(chance)}:{gap(chance)}{written(chance, each)}" for name, each in pairs)
        return "{" + gap(chance) + ",".join(members) + gap(chance) + "}"
    if isinstance(value, list):
        return "[" + f",{gap(chance)}".join(written(chance, each) for each in value) + "]"
    if isinstance(value, str):
        return quoted(chance, value)
    return value.text if isinstance(value, Number) else json.dumps(value)


def quoted(chance: Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=chance.random() < 0.3)


def gap(chance: Random) -> str:
    return chance.choice(("", "", "", " ", "\n\t"))
