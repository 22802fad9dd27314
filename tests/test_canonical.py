"""Canonical texts: two rows have the same text, or digest, only when they have the same values."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sluice.shapes import canonical
from sluice.shapes.canonical import digest, key_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

no_checks = list(HealthCheck)
pairs_per_world, rows_per_world = 8, 100
hostile = [
    *("", ",", "\\", "~", "\x00", "\x01", "\x02", "\x021", "\x02N", "\x01\x01"),
    *("null", "(", "1", "2:", "${x}", "e\u0301", "😀", "é" * 50),
]
jan = datetime(2026, 1, 1)  # noqa: DTZ001
leaves: dict[DataType, list[Any]] = {
    StringType(): hostile,
    BinaryType(): [b"", b"\x00", b"\x01", b"\x00\x00", b"N"],
    IntegerType(): [*range(-2, 13)],
    LongType(): [0, 1, -1, 2**63 - 1, -(2**63)],
    DoubleType(): [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 0.1, 0.1 + 2**-56, 1e22],
    FloatType(): [0.0, -0.0, math.nan, math.inf, 1.5, 2.0**-149],
    BooleanType(): [True, False],
    DecimalType(5, 1): [Decimal(number) / 10 for number in range(-11, 12)],
    DateType(): [date(2026, 1, day) for day in range(1, 5)],
    TimestampType(): [(jan + timedelta(microseconds=each)).replace(tzinfo=UTC) for each in range(12)],
    TimestampNTZType(): [jan + timedelta(microseconds=each) for each in range(12)],
}


def kind_of(rng: Random, depth: int = 3) -> DataType:
    """A type at random, nested in arrays and structs."""
    shape = rng.choice(["leaf", "array", "struct"]) if depth else "leaf"
    if shape == "array":
        return ArrayType(kind_of(rng, depth - 1))
    if shape == "struct":
        return struct_of([kind_of(rng, depth - 1) for _ in range(rng.randint(1, 3))])
    return rng.choice(list(leaves))


def struct_of(kinds: Sequence[DataType]) -> StructType:
    return StructType([StructField(f"f`{number}", kind) for number, kind in enumerate(kinds)])


def kind_from(ddl: str) -> StructType:
    return cast(StructType, StructType.fromDDL(ddl))


def value_of(rng: Random, kind: DataType) -> Any:
    """A value of a type, with nulls at every level; there are few, so that many rows nearly meet."""
    if rng.random() < 0.3:
        return None
    if isinstance(kind, ArrayType):
        return [value_of(rng, kind.elementType) for _ in range(rng.randint(0, 2))]
    if isinstance(kind, StructType):
        return tuple(value_of(rng, each.dataType) for each in kind)
    return rng.choice(leaves[kind])


def identity(value: Any) -> Any:
    """What a value is, in plain Python: numbers that are equal are one, whatever else differs is another."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, *[identity(each) for each in value])
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return bytes(value) if isinstance(value, bytearray) else value


def meetings(spark: "SparkSession", kind: StructType, rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Rows that are one by their text or their digest and not by their values, or the other way round.

    Asked of all columns at once, of neighbours, and of each alone.
    """
    names = kind.names
    asked = [names, *[names[at : at + 2] for at in range(0, len(names), 2)], *[[name] for name in names]]
    numbered = StructType([StructField("_number", IntegerType()), *kind])
    df = spark.createDataFrame([(number, *row) for number, row in enumerate(rows)], numbered)
    texts = [key_text(df, columns).alias(f"text of {columns}") for columns in asked]
    digests = [digest(df, columns).alias(f"digest of {columns}") for columns in asked]
    found = df.select("_number", *texts, *digests).collect()
    return [
        meeting
        for columns in asked
        for teller in (f"text of {columns}", f"digest of {columns}")
        for meeting in met(
            {row["_number"]: row[teller] for row in found}, rows, [names.index(name) for name in columns]
        )
    ]


def met(texts: Mapping[int, Any], rows: Sequence[tuple[Any, ...]], places: Sequence[int]) -> list[Any]:
    """The rows whose texts are not one where their values in some places are, or are one where these differ."""
    by_text: dict[Any, Any] = {}
    by_value: dict[Any, Any] = {}
    wrong = []
    for number, row in enumerate(rows):
        text, value = identity(texts[number]), identity([row[place] for place in places])
        if by_text.setdefault(text, value) != value or by_value.setdefault(value, text) != text:
            wrong.append((text, value, by_text[text]))
    return wrong


@settings(max_examples=2, deadline=None, phases=[Phase.generate], print_blob=True, suppress_health_check=no_checks)
@given(seed=st.integers(0, 2**32 - 1))
def test_values_of_any_type_have_one_text_each(spark: "SparkSession", seed: int) -> None:
    rng = Random(seed)
    # Two columns of each type beside each other: values swap between them.
    kind = struct_of([each for each in (kind_of(rng) for _ in range(pairs_per_world)) for _ in range(2)])
    rows = [tuple(value_of(rng, each.dataType) for each in kind) for _ in range(rows_per_world)]
    swapped = [tuple(value for pair in zip(row[1::2], row[::2], strict=True) for value in pair) for row in rows]
    assert meetings(spark, kind, [*rows, *swapped]) == []


cases: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "a value moves to another column": (
        "x string, y string",
        [("A", None), (None, "A"), ("A", "A"), (None, None), ("", None), (None, ""), ("null", None)],
    ),
    "text moves over the border": (
        "x string, y string",
        [("x, y", "z"), ("x", "y, z"), ("x,", " y, z"), ("x\x01y", "z"), ("x", "y\x01z"), ("x\x02", "1y")],
    ),
    "lists in lists": (
        "a array<array<int>>",
        [([[1], [2]],), ([[1, 2]],), ([],), ([[]],), ([None],), (None,), ([[None]],), ([[1], [], [2]],)],
    ),
    "nulls in lists": (
        "a array<int>",
        [([None, 1],), ([1, None],), ([1],), ([],), (None,), ([None],), ([None, None],)],
    ),
    "nothing, no fields, no items": (
        "a array<string>, s struct<x: string, y: string>",
        [
            ([], None),
            (None, None),
            (None, (None, None)),
            ([""], None),
            ([], (None, None)),
            (None, ("", None)),
            (None, (None, "")),
        ],
    ),
    "true is not one": ("b boolean, n int", [(True, None), (None, 1), (False, None), (None, 0)]),
    "a struct's fields": (
        "s struct<x: string, y: string>, z string",
        [(("A", None), None), ((None, "A"), None), ((None, None), "A"), (("x, y", "z"), None), (("x", "y, z"), None)],
    ),
    "numbers": (
        "x double, y float",
        [
            (0.0, None),
            (None, 0.0),
            (math.nan, None),
            (math.inf, None),
            (-math.inf, None),
            (0.1, None),
            (None, math.nan),
        ],
    ),
}


@pytest.mark.parametrize("case", cases)
def test_what_spark_takes_for_one_is_told_apart(spark: "SparkSession", case: str) -> None:
    ddl, rows = cases[case]
    assert meetings(spark, kind_from(ddl), rows) == []


def test_equal_numbers_are_one_key(spark: "SparkSession") -> None:
    ddl = "x double, a array<struct<y: float>>"
    rows = [(0.0, [(-0.0,)]), (-0.0, [(0.0,)])]
    df = spark.createDataFrame(rows, ddl)
    assert df.select(key_text(df, ["x", "a"])).distinct().count() == 1
    assert df.select(digest(df, ["x", "a"])).distinct().count() == 1


def test_maps_have_no_order(spark: "SparkSession") -> None:
    df = spark.sql("SELECT * FROM VALUES (map('a', 1, 'b', 2)), (map('b', 2, 'a', 1)), (map('a', 2, 'b', 1)) AS t(m)")
    assert df.select(key_text(df, ["m"])).distinct().count() == 2


def test_the_type_and_the_name_of_a_column_are_part_of_a_digest(spark: "SparkSession") -> None:
    df = spark.sql("SELECT 1 AS n, 1L AS m, '1' AS t")
    (row,) = df.select(*[digest(df, [name]).alias(name) for name in "nmt"]).collect()
    assert len({bytes(each) for each in row}) == 3


def test_texts_sort_like_their_first_column(spark: "SparkSession") -> None:
    names = ["a", "a!", "a b", "ab", "b", "Zürich", "😀"]
    df = spark.createDataFrame([(name, 9 - number) for number, name in enumerate(names)], "k string, n int")
    sorted_by_text = [row["k"] for row in df.orderBy(key_text(df, ["k", "n"])).collect()]
    assert sorted_by_text == [row["k"] for row in df.orderBy("k").collect()]


@pytest.mark.parametrize("sign", ["end", "escape", "null"])
def test_the_cases_notice_when_a_sign_is_lost(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    if sign == "escape":
        monkeypatch.setattr(canonical, "escaped", lambda text: text)
    else:
        monkeypatch.setattr(canonical, sign, "''")
    wrong = [meetings(spark, kind_from(ddl), rows) for ddl, rows in cases.values()]
    assert any(wrong)
