"""Declarations that could not work are refused when they are made; odd names that can work do."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice import bronze, gold, silver
from sluice.errors import DeclarationError
from sluice.windows import calendar_window, session_window, window
from tests.kit import Lakehouse, text

topic = bronze.topic("things")


def events(schema: str = "id string, at timestamp, shop int, n int", **options: Any) -> Any:
    name = options.pop("name", "things")
    declared: dict[str, Any] = {"source": topic, "schema": schema, "keys": ["id"], "event_time": "at"}
    return silver.events(name, **(declared | options))


def history(schema: str = "shop int, since timestamp, city string", **options: Any) -> Any:
    declared: dict[str, Any] = {"source": topic, "schema": schema, "keys": ["shop"], "sequence_by": "since"}
    return silver.history("shops", **(declared | options))


def as_of(dimension: Any = None, facts: Any = None, alias: str = "shop_then", event_time: str = "at") -> Any:
    dimensions = {alias: dimension or history()}
    return silver.as_of("sold", facts=facts or events(), event_time=event_time, dimensions=dimensions)


def aggregate(**options: Any) -> Any:
    return gold.aggregate(
        "sums", **({"source": events(), "group_by": ["shop"], "measures": {"n_sum": "sum(n)"}} | options)
    )


def state(**options: Any) -> Any:
    declared = {"schema": "total bigint", "initial": {"total": "0"}, "reduce": {"total": "state.total + event.n"}}
    return gold.state("totals", **({"source": events(), "keys": ["shop"], "sequence_by": "at"} | declared | options))


def interval_join(right: Any, **options: Any) -> Any:
    declared = {"left": {"one": events()}, "right": {"two": right}, "keys": ["shop"]}
    return silver.interval_join("pairs", between=("0 seconds", "1 hour"), **(declared | options))


def view(other: Any, keys: list[str]) -> Any:
    return gold.view("both", inputs={"one": events(), "other": other}, keys=keys, shape=lambda one, other: one)


other_type = "shop string, since timestamp, city string"


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: events(keys=["nothing"]), "silver.things: keys names nothing"),
        (lambda: events(keys="id"), r"silver.things: keys is the text 'id'; give a list: keys=\['id'\]"),
        (lambda: history(keys="shop"), "keys is the text 'shop'"),
        (lambda: aggregate(group_by="shop"), "group_by is the text 'shop'"),
        (lambda: state(keys="shop"), "keys is the text 'shop'"),
        (lambda: interval_join(events(name="o"), keys="shop"), "keys is the text 'shop'"),
        (lambda: view(events(name="o"), "shop"), "keys is the text 'shop'"),  # type: ignore[arg-type]
        (lambda: history(stored_as_scd_type="2"), "silver.shops: stored_as_scd_type is '2'; it must be 1 or 2"),
        (lambda: history(stored_as_scd_type=True), "stored_as_scd_type is True; it must be 1 or 2"),
        (lambda: history(ignore_null_updates="city"), "ignore_null_updates is the text 'city'; give a list"),
        (lambda: history(apply_as_deletes=True), "silver.shops: apply_as_deletes is True; it must be text or None"),
        (lambda: events(record_bytes_max="1MB"), "record_bytes_max is '1MB'; it must be a whole number"),
        (lambda: events(future_tolerance=5), "silver.things: future_tolerance is 5; it must be text"),
        (
            lambda: aggregate(measures=["count(*)"]),
            r"measures is \['count\(\*\)'\]; it must be a mapping of text to text",
        ),
        (lambda: aggregate(measures={"n": 1}), "gold.sums: measures is {'n': 1}; it must be a mapping of text to text"),
        (lambda: aggregate(source="silver.things"), "source is 'silver.things'; it must be a Dataset"),
        (lambda: aggregate(group_by=[window("at", 3600)]), "window: duration is 3600; it must be text"),  # type: ignore[arg-type]
        (lambda: state(reduce=["total"]), r"gold.totals: reduce is \['total'\]; it must be a mapping of text to text"),
        (lambda: aggregate(group_by=[window("at", "1 month")]), "no duration; .* those of calendar_window"),
        (lambda: aggregate(owner=7), "gold.sums: owner is 7; write a text"),
        (lambda: aggregate(meaning=["sums"]), r"gold.sums: meaning is \['sums'\]; write a text"),
        (lambda: events("id strng, at timestamp"), "silver.things: schema: id is of an unknown type 'strng'"),
        (lambda: events("id string, at string"), "event_time is at, a string; declare it as timestamp"),
        (lambda: events("id string, at timestamp, `a b` int"), "it has a space"),
        (lambda: events("id string, at timestamp, AT timestamp"), "at and AT would be one column"),
        (lambda: history(apply_as_deletes="gone"), "apply_as_deletes reads gone, which is no column here"),
        (lambda: history(apply_as_deletes="city"), "apply_as_deletes is city, which is string; give a condition"),
        (lambda: history(apply_as_truncates="city = 'all"), "a quotation mark is not closed"),
        (lambda: as_of(history(other_type)), r"silver.things.shop is a int and silver.shops.shop is a string"),
        (lambda: as_of(history("shop int, since date, city string")), "things.at is a timestamp and .* a date"),
        (lambda: as_of(history("id2 int, since timestamp", keys=["id2"])), "things has no column id2; say which"),
        (lambda: as_of(silver.dimension(history(), on={"shop": "sop"})), "things has no column sop"),
        (lambda: as_of(silver.dimension(history(), inferred={"city": "unknown"})), "inferred city reads unknown"),
        (lambda: as_of(alias="shop"), "shop and shop would be one column"),
        (lambda: as_of(alias="Shop"), "shop and Shop would be one column"),
        (lambda: as_of(alias="a shop"), "'a shop' cannot name a column"),
        (lambda: as_of(event_time="n"), "event_time is n, and in silver.things that is a int"),
        (lambda: aggregate(measures={"n_sum": "sum(m)"}), "the measure n_sum reads m, which is no column here"),
        (lambda: aggregate(measures={"n sum": "sum(n)"}), "'n sum' cannot name a column"),
        (lambda: aggregate(measures={"N": "sum(n)", "n": "max(n)"}), "N and n would be one column"),
        (lambda: aggregate(measures={"_net": "sum(n)"}), "_net: names that begin with _ are for bookkeeping"),
        (lambda: aggregate(group_by=["shop AS _operation"]), "_operation: names that begin with _"),
        (lambda: aggregate(measures={"n_sum": "sum(n"}), "brackets do not match"),
        (lambda: aggregate(measures={"n_sum": ""}), "it is empty"),
        (lambda: aggregate(measures={"n_sum": "n"}), r"the measure n_sum is the column n, .* as max\(n\)"),
        (lambda: aggregate(group_by=["year(at)"]), r"give the group a name: 'year\(at\) AS …'"),
        (lambda: aggregate(group_by=["yer"]), "group_by reads yer"),
        (lambda: aggregate(group_by=["shop", "n AS Shop"]), "shop and Shop would be one column"),
        (lambda: aggregate(group_by=[window("time", "1 hour")]), "column of the window names time"),
        (lambda: aggregate(group_by=[session_window("n", gap="1 hour")]), "column of the window is n, .* a int"),
        (lambda: aggregate(group_by=[calendar_window("shop", "day", time_zone="UTC")]), "is shop, .* a int"),
        (lambda: state(keys=["sop"]), "keys names sop, which silver.things lacks"),
        (lambda: state(sequence_by="when"), "sequence_by names when"),
        (lambda: state(reduce={"total": "state.sum + event.n"}), "reduce total reads state.sum, but state has total"),
        (lambda: state(reduce={"total": "state.total + event.m"}), "reads event.m, but event has id, at, shop, n"),
        (lambda: state(reduce={"total": "total + n"}), "reduce total reads total, which is no column here"),
        (lambda: state(initial={"total": "n"}), "initial total reads n"),
        (lambda: state(schema="total bigit"), "gold.totals: schema: total is of an unknown type"),
        (
            lambda: state(schema="shop int", initial={"shop": "0"}, reduce={"shop": "0"}),
            "shop and shop would be one column",
        ),
        (lambda: interval_join(events("id string, at timestamp, n int", name="o")), "keys names shop, which silver.o"),
        (lambda: interval_join(events("id string, at timestamp, shop string", name="o")), "shop is a string"),
        (lambda: interval_join(events(name="o"), left={"shop": events()}), "shop and shop would be one column"),
        (lambda: view(history(other_type), ["shop"]), "shop is a string"),
        (lambda: window("at", "2 hours", every="3 hours"), "every is '3 hours', longer than its '2 hours'"),
        (lambda: view(history(), ["id"]), "silver.shops has no column id; say what its id is"),
        (
            lambda: aggregate(source=as_of(), group_by=["shop_then.ciy AS city"]),
            "group_by reads shop_then.ciy, but shop_then has city, valid_from",
        ),
        (lambda: aggregate(source=as_of(), measures={"n": "max(shop_then.is_inferred)"}), "shop_then has city, valid"),
    ],
)
def test_what_could_not_work_is_refused_with_a_sentence(declare: Callable[[], Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare()


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (
            lambda: aggregate(measures={"n_some": "first(n)"}),
            "measure n_some: what first gives depends on",
        ),
        (lambda: aggregate(measures={"all": "size(collect_set(n)) + any_value(n)"}), "what any_value gives depends"),
        (lambda: aggregate(measures={"all": "collect_list(n)"}), r"write .*array_sort\(collect_list\(value\)\)"),
        (lambda: aggregate(measures={"n": "try_sum(n)"}), r"write sum\(value\), of a bigint sum\(CAST"),
        (lambda: aggregate(measures={"n": "count(*) + Try_Avg (n)"}), "what try_avg gives depends on the order"),
        (lambda: aggregate(measures={"at": "max(CURRENT_TIMESTAMP)"}), "current_timestamp gives another value each"),
        (lambda: aggregate(measures={"n": "sum(n) FILTER (WHERE at < now())"}), "now gives another value each time"),
        (lambda: aggregate(group_by=["n > 10 * rand() AS is_large"]), "group_by: rand gives another value each time"),
        (lambda: aggregate(group_by=["shop COLLATE UTF8_LCASE AS shop"]), "COLLATE takes different texts for one"),
        (lambda: aggregate(where="at < DATE 'today'"), "where: DATE 'today' is another time at each query"),
        (lambda: aggregate(measures={"n": "max((SELECT 1))"}), "a SELECT within an expression"),
        (lambda: aggregate(having="n_sum > rand()"), "having: rand gives another value each time"),
        (lambda: aggregate(where="shop = SESSION_USER"), "where: session_user gives another value each time"),
        (lambda: aggregate(having="shop <> user"), "having: user gives another value each time"),
        (lambda: history(apply_as_deletes="city = user"), "apply_as_deletes: user gives another value each time"),
        (
            lambda: gold.top("best", source=events(), group_by=["shop"], order_by="uuid()", rows=1),
            "order_by: uuid gives",
        ),
        (lambda: state(reduce={"total": "state.total + CAST(rand() AS int)"}), "reduce total: rand gives"),
        (lambda: state(initial={"total": "unix_timestamp()"}), "initial total: unix_timestamp gives another value"),
        (lambda: as_of(silver.dimension(history(), inferred={"city": "uuid()"})), "inferred city: uuid gives"),
        (lambda: history(apply_as_deletes="since < current_date"), "apply_as_deletes: current_date gives another"),
    ],
)
def test_what_is_no_function_of_the_rows_is_refused(declare: Callable[[], Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare()


def test_a_column_may_have_the_name_of_a_function_without_brackets() -> None:
    named = events("id string, at timestamp, user string")
    gold.aggregate("by_user", source=named, group_by=["user"], measures={"n": "count(*)"}, where="user <> 'nobody'")


@pytest.mark.parametrize(
    "measure",
    ["max_by(n, at)", "array_sort(collect_list(n))", "count(*)", "max(unix_timestamp(at))", "max(first)", "sum(n - 1)"],
)
def test_what_is_a_function_of_the_rows_is_not(measure: str) -> None:
    aggregate(source=events("id string, at timestamp, shop int, n int, first int"), measures={"found": measure})


@pytest.mark.parametrize(
    "declare",
    [
        lambda: as_of(history("shop bigint, since timestamp, city string")),
        lambda: as_of(facts=silver.join("j", inputs={"a": events()}, keys=["id"], shape=lambda a: a)),
        lambda: as_of(silver.dimension(history(), inferred={"city": "concat('unknown ', id)"})),
        lambda: aggregate(measures={"late": "max(_lateness_seconds)", "n": "sum(SHOP)"}),
        lambda: aggregate(source=as_of(), measures={"cities": "count(DISTINCT shop_then.city)"}),
        lambda: aggregate(source=aggregate(), group_by=["n_sum"], measures={"shops": "count(shop)"}),
        lambda: state(reduce={"total": "state.total + event.n + shop"}),
    ],
)
def test_what_can_work_is_not(declare: Callable[[], Any]) -> None:
    assert declare().fingerprint


def test_columns_of_odd_names_go_all_the_way(lakehouse: Lakehouse) -> None:
    sold = events(
        "`id%` string, order timestamp, `größe-€` int COMMENT 'a, b', `2x` decimal(9,2) NOT NULL, local timestamp_ntz, "
        "item struct<`a-b`: int>",
        name="sold",
        keys=["id%"],
        event_time="order",
        future_tolerance="1000 days",
        source=bronze.topic("sold"),
    )
    prices = silver.history(
        "prices",
        source=bronze.topic("prices"),
        schema="`größe-€` int, `valid@` timestamp, `price_%` int, gone boolean",
        keys=["größe-€"],
        sequence_by="valid@",
        apply_as_deletes="gone",
        future_tolerance="1000 days",
    )
    priced = silver.as_of("priced", facts=sold, event_time="order", dimensions={"price-€": prices})
    pairs = silver.interval_join(
        "pairs", left={"a-1": sold}, right={"b%": priced}, keys=["größe-€"], between=("0 seconds", "1 hour")
    )
    sums = gold.aggregate(
        "sums",
        source=priced,
        group_by=["größe-€", window("order", "1 day")],
        measures={"sum_€": "sum(`2x` * `price-€`.`price_%`)", "%": "max(item.`a-b`)", "local": "max(local)"},
    )
    totals = gold.state(
        "totals",
        source=sold,
        keys=["größe-€"],
        sequence_by="order",
        schema="`total_€` decimal(12,2)",
        initial={"total_€": "0"},
        reduce={"total_€": "state.`total_€` + event.`2x`"},
    )
    lakehouse.declare(sums, totals, pairs)
    price = {"größe-€": 1, "valid@": text(0), "price_%": 2, "gone": False}
    sale = {"order": text(1), "größe-€": 1, "2x": 1.5, "local": "2026-01-01T00:00:00", "item": {"a-b": 7}}
    lakehouse.publish("prices", price)
    lakehouse.publish("sold", sale | {"id%": "a"}, sale | {"id%": "b", "order": text(3)})
    lakehouse.run()
    assert [float(row[0]) for row in lakehouse.rows("gold.sums", "sum_€")] == [6.0]
    lakehouse.publish("prices", price | {"valid@": text(2), "price_%": 10})
    lakehouse.run()
    assert [(float(row[0]), row[1]) for row in lakehouse.rows("gold.sums", "sum_€", "%")] == [(18.0, 7)]
    assert [float(row[0]) for row in lakehouse.rows("gold.totals", "total_€")] == [3.0]
    assert len(lakehouse.rows("silver.pairs")) == 2
    assert [law for law in lakehouse.laws() if law.broken] == []
    assert lakehouse.changed_by_rebuild() == {}
