"""Schemas: read as Spark reads them, without a JVM, or refused with a sentence."""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.errors import DeclarationError
from sluice.model.ddl import column_types, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("a string, b int", {"a": "string", "b": "int"}),
        ("a: LONG, b:Integer", {"a": "bigint", "b": "int"}),
        ("a string COMMENT 'one, two', b int NOT NULL COMMENT \"it's\"", {"a": "string", "b": "int"}),
        ("`rate_%` dec(5, 2), `a-b` numeric", {"rate_%": "decimal(5,2)", "a-b": "decimal(10,0)"}),
        ("a array<struct<b: int NOT NULL, `c-d` array<real>>>", {"a": "array<struct<b: int, `c-d`: array<float>>>"}),
        ("timestamp timestamp, date date, struct struct<array array<int>>", None),
        ("at timestamp_ltz, local timestamp_ntz", {"at": "timestamp", "local": "timestamp_ntz"}),
        ("a int, -- the first\n b int /* the, last */", {"a": "int", "b": "int"}),
        ("größe double", {"größe": "double"}),
        ("2x int", {"2x": "int"}),
    ],
)
def test_a_schema_is_read(schema: str, expected: dict[str, str] | None) -> None:
    found = column_types(schema)
    assert found == (expected or {"timestamp": "timestamp", "date": "date", "struct": "struct<array: array<int>>"})
    assert column_types(ddl(found)) == found


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("a strng", "a is of an unknown type 'strng'; there are array"),
        ("a", "after 'a' the type of a should come, but it ends"),
        ("a int b int", "after 'a int' a comma or the end should come, but there is b"),
        ("a int,", "the name of a column should come"),
        ("a array<int", "'>' should come, but it ends"),
        ("a map<string, int>", "a is a map: maps cannot be compared; use array<struct<key"),
        ("a varchar(5)", "a is a varchar: .* use string"),
        ("a interval day", "a is a interval: tables cannot hold it"),
        ("a variant", "a is a variant"),
        ("a decimal(40, 2)", "there can be 38 digits"),
        ("`a b` int", "'a b' cannot name a column: it has a space"),
        ("`a.b` int", "'a.b' cannot name a column: it has '.'"),
        ("`sum(a)` int", r"cannot name a column: it has '\(' '\)'"),
        ("`it's` int", "cannot name a column"),
        ("a struct<`b c`: int>", "'b c' cannot name a column"),
        ("id int, Id int", "id and Id would be one column"),
        ("a int COMMENT 'open", "cannot read"),
        ("a-b int", "cannot read '-b int'"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_with_a_sentence(schema: str, says: str) -> None:
    with pytest.raises(DeclarationError, match=f"silver.x: schema: .*{says}"):
        column_types(schema, "silver.x")


words = "a b_1 `rate_%` `€` date order timestamp comment not 2x struct X"
names = st.sampled_from(words.split())
of_one_word = "boolean byte short INT integer long float real double string binary date timestamp timestamp_ntz decimal"
plain = st.sampled_from([*of_one_word.split(), "DEC(7)", "numeric( 9 , 3 )"])


def columns(kinds: st.SearchStrategy[str], separator: str) -> st.SearchStrategy[str]:
    notes = st.sampled_from(["", " NOT NULL", " COMMENT 'a, b'", ' NOT NULL COMMENT "<x>"'])
    column = st.tuples(names, st.just(separator), kinds, notes).map("".join)
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda each: each.split(separator)[0].lower()).map(
        ", ".join
    )


kinds = st.recursive(
    plain,
    lambda inner: st.one_of(
        inner.map(lambda each: f"array<{each}>"), columns(inner, ": ").map(lambda each: f"STRUCT<{each}>")
    ),
    max_leaves=6,
)


@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(schema=columns(kinds, " "))
def test_spark_reads_the_same(spark: "SparkSession", schema: str) -> None:
    jvm: Any = spark._jvm
    parsed = jvm.org.apache.spark.sql.types.StructType.fromDDL
    ours = parsed(ddl(column_types(schema)))
    assert ours.simpleString() == parsed(schema).asNullable().simpleString()
    assert list(ours.fieldNames()) == list(column_types(schema))
