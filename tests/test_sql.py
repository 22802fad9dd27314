"""What SQL reads, without Spark: never less than what Spark's own analyser resolves."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, ParseException

from sluice.errors import DeclarationError
from sluice.model.sql import Kind, backticked, columns_read, fold, named_expression, require_known
from sluice.shapes.aggregate import Groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

columns = ["id", "rate_%", "price_€", "a.b", "größe", "date", "day", "current_date", "item", "xs", "2x", "x", "y"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sum(`rate_%`)", ["rate_%"]),
        ("sum(`rate_%` * ID)", ["id", "rate_%"]),
        ("max(`price_€`) - min(`a.b`)", ["price_€", "a.b"]),
        ("sum(`rate_`)", []),
        ("größe + `GRÖSSE`", ["größe"]),
        ("count(*)", []),
        ("count(DISTINCT x, y) FILTER (WHERE id > 1)", ["id", "x", "y"]),
        ("count(DISTINCT *)", columns),
        ("max(struct(*))", columns),
        ("max(item.*)", columns),
        ("(SELECT max(x))", columns),
        ("identifier('x')", columns),
        ("x +", columns),
        ("sum(item.x)", ["item"]),
        ("max(xs[0].y.`rate_%`)", ["xs"]),
        ("t.x", ["x"]),
        ("transform(xs, x -> x + y)", ["xs", "y"]),
        ("transform(xs, x -> x + y)[0] + x", ["xs", "x", "y"]),
        ("aggregate(xs, 0, (x, y) -> x + y + id)", ["id", "xs"]),
        ("'x' || \"y\" || '`id`'", []),
        ("x /* y */ -- id", ["x"]),
        ("date + INTERVAL 1 DAY", ["date"]),
        ("extract(DAY FROM date)", ["date"]),
        ("current_date", ["current_date"]),
        ("day(x)", ["x"]),
        ("2x + 2", ["2x"]),
        ("CASE x WHEN 1 THEN y END", ["x", "y"]),
        ("sum(x) OVER (PARTITION BY id ORDER BY date)", ["id", "date", "x"]),
        ("CAST(x AS struct<y: int>)", ["x"]),
        ("named_struct('y', x).y", ["x"]),
    ],
)
def test_the_columns_that_sql_reads_are_found_without_spark(expression: str, expected: list[str]) -> None:
    assert columns_read([expression], columns) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("origin", ("origin", "origin")),
        ("`rate_%`", ("rate_%", "`rate_%`")),
        ("year(at) AS year", ("year", "year(at)")),
        ("year(at) year", ("year", "year(at)")),
        ("year(at) as `y %`", ("y %", "year(at)")),
        ("CAST(at AS date) AS day", ("day", "CAST(at AS date)")),
        ("CAST(at AS date)", (None, "CAST(at AS date)")),
        ("concat(a, ' AS b') AS c", ("c", "concat(a, ' AS b')")),
    ],
)
def test_an_expression_is_told_from_its_name(text: str, expected: tuple[str | None, str]) -> None:
    assert named_expression(text) == expected


def test_a_group_may_be_a_column_of_any_name() -> None:
    groups = Groups.of(["rate_%", "`price_€`", "x"], {"n": "count(*)"}, columns)
    assert groups.expressions == {"rate_%": "`rate_%`", "price_€": "`price_€`", "x": "`x`"}


def test_a_name_that_is_no_column_is_refused_and_what_only_spark_can_read_is_not() -> None:
    device = "struct<temperature: double, battery: struct<level: int, `%`: string>>"
    known: dict[str, Kind] = {
        "state": {"balance": "int"},
        "event": {"amount": None, "at": "timestamp", "device": device},
        "device": device,
        "xs": "array<struct<a: int>>",
    }
    for fine in (
        "state.balance + EVENT.amount",
        "transform(xs, x -> x.anything + 1)",
        "event._offset",
        "_offset",
        "timestampdiff(MINUTE, event.at, current_timestamp)",
        "event.amount MATCHES something",
        "avg(device.Temperature) + device.battery.LEVEL + event.device.battery.level",
        "device.battery.`%` || event.amount.anything",
        "xs.b[0]",
    ):
        require_known("gold.x", "reduce", fine, known)
    for wrong, says in {
        "state.balanse": "reads state.balanse, but state has balance",
        "sum(amount)": "reads amount, which is no column here; there are state, event, device, xs",
        "avg(device.temp)": "reads device.temp, but device has temperature, battery",
        "device.battery.charge": "reads device.battery.charge, but device.battery has level, %",
        "event.device.temp": "reads event.device.temp, but event.device has temperature, battery",
        "sum(state.balance": "brackets do not match",
        "'open": "a quotation mark is not closed",
        " ": "it is empty",
    }.items():
        with pytest.raises(DeclarationError, match=says):
            require_known("gold.x", "reduce", wrong, known)


# Names that look like signs, keywords, functions, numbers, or each other.
letters = st.text(st.sampled_from("aB_1 %€.`$'\"(),:é-"), min_size=1, max_size=4)
names = st.one_of(
    letters,
    st.sampled_from(
        [
            "a",
            "b",
            "x",
            "rate_%",
            "price_€",
            "date",
            "day",
            "count",
            "sum",
            "state",
            "event",
            "current_date",
            "user",
            "order",
            "end",
            "2x",
            "\u017f",
        ]
    ),
)


def schemas() -> st.SearchStrategy[list[str]]:
    return st.lists(names, min_size=2, max_size=5, unique_by=fold)


def expressions(columns: Sequence[str]) -> st.SearchStrategy[tuple[str, bool]]:
    """SQL over integer columns, each of which is also a field of the structs in `nested`, and whether it is plain."""
    column = st.sampled_from(columns).map(backticked)
    cased = st.sampled_from(columns).map(lambda name: backticked(name.upper() if name.isascii() else name))
    plain = st.recursive(
        st.one_of(column, cased, st.sampled_from(["1", "'x'", '"`a`"', "1.5BD", "2L"])),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "%", "<=>", "=", "<", "||"]), inner).map(
                lambda each: "({} {} {})".format(*each)
            ),
            inner.map(lambda each: f"coalesce({each}, 0)"),
            st.tuples(inner, inner).map(lambda each: "CASE WHEN {0} IS NULL THEN {1} ELSE {0} END".format(*each)),
            st.tuples(inner, inner).map(lambda each: "CAST({} AS string) || /* {} */ 'a'".format(*each)),
        ),
        max_leaves=5,
    )
    odd = st.one_of(
        plain.map(lambda each: f"count(*) + sum({each})"),
        column.map(lambda each: f"sum(`nested_1`.{each})"),
        st.tuples(column, column).map(lambda each: "transform(array({0}), {1} -> {1})".format(*each)),
        st.tuples(column, column).map(lambda each: "aggregate(array({0}), 0, ({1}, b) -> {1} + b + {0})".format(*each)),
        st.tuples(column, column).map(lambda each: "max(named_struct('a', {}, 'b', {}).a)".format(*each)),
        st.sampled_from(["count(struct(*))", "count(DISTINCT *)", "max(nested_1.*)", "current_date", "count(*)"]),
        st.tuples(column, column).map(lambda each: "sum({}) FILTER (WHERE {} > 0)".format(*each)),
        st.sampled_from(columns).map(lambda name: f"sum({name})"),
    )
    return st.one_of(plain.map(lambda each: (f"first({each})", True)), odd.map(lambda each: (each, False)))


cases = schemas().flatmap(
    lambda names: st.tuples(st.just(names), st.lists(expressions(names), min_size=6, max_size=12))
)


@settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=cases)
def test_nothing_that_spark_resolves_is_overlooked(
    spark: "SparkSession", case: tuple[list[str], list[tuple[str, bool]]]
) -> None:
    names, texts = case
    fields = ", ".join(f"0 AS {backticked(name)}" for name in names)
    df = spark.sql(f"SELECT {fields}, struct({fields}) AS nested_1")
    for expression, is_plain in texts:
        resolved = resolved_by_spark(df, expression)
        if resolved is None:
            continue
        found = set(columns_read([expression], df.columns))
        assert resolved <= found, expression
        if is_plain:
            assert found - resolved <= {"end"}, expression  # a word of CASE as well


def resolved_by_spark(df: "DataFrame", expression: str) -> set[str] | None:
    """The columns of the frame that Spark's analyser finds in an aggregate; None where it refuses it."""
    try:
        plan = df.selectExpr(expression)._jdf.queryExecution().analyzed()
    except (AnalysisException, ParseException):
        return None
    known = {each.exprId().toString(): each.name() for each in listed(df._jdf.queryExecution().analyzed().output())}
    return {
        known[each.exprId().toString()]
        for node in nodes(plan)
        for each in listed(node.references().toSeq())
        if each.exprId().toString() in known
    }


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for each in listed(plan.children()):
        yield from nodes(each)


def listed(found: Any) -> list[Any]:
    """A sequence of Scala's as a list."""
    return [found.apply(index) for index in range(found.size())]
