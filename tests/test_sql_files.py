"""Tables declared as SQL: each SELECT is what Python would declare, or an error that says why not."""

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sluice import bronze, gold, silver
from sluice.engine.catalogue import Catalogue, load
from sluice.errors import DeclarationError
from sluice.model import words as sql_words
from sluice.model.datasets import Dataset
from sluice.model.ledger import Entry
from sluice.model.lineage import Source
from sluice.model.words import spaced
from sluice.operate import documents
from sluice.operate.describe import describe
from sluice.operate.lineage import trace
from sluice.sql import translate
from sluice.sql.translate import translated
from sluice.windows import calendar_window, session_window, sliding_window, window

topic = bronze.topic("shop")
orders = silver.events(
    "orders",
    source=topic,
    schema="order_id string, placed_at timestamp, product_id string, shop string, quantity int, status string",
    keys=["order_id"],
    event_time="placed_at",
)
products = silver.history(
    "products",
    source=topic,
    schema="product_id string, since timestamp, name string, price int",
    keys=["product_id"],
    sequence_by="since",
)
shops = silver.events("shops", source=topic, schema="shop string, city string, opened_at timestamp", keys=["shop"])
visits = silver.events("visits", source=topic, schema="visit_id bigint, shop string, at timestamp", keys=["visit_id"])
readings = silver.events(
    "readings", source=topic, schema="id string, device struct<temperature: double, name: string>", keys=["id"]
)
daily = gold.aggregate("daily", source=orders, group_by=["shop"], measures={"orders": "count(*)"})
known = {each.name: each for each in (orders, products, shops, visits, readings, daily)}
place = "pipelines/gold/made.sql"


def made(text: str, layer: str = "gold") -> Dataset:
    def source(name: str) -> Dataset:
        if name not in known:
            raise DeclarationError(f"there is no table {name}")
        return known[name]

    return translated(f"{layer}.made", text, f"pipelines/{layer}/made.sql", source)


def aggregate(**options: Any) -> Dataset:
    declared: dict[str, Any] = {"source": orders, "group_by": ["shop"], "measures": {"orders": "count(*)"}}
    return gold.aggregate("made", **(declared | options))


def top(**options: Any) -> Dataset:
    declared: dict[str, Any] = {"source": orders, "group_by": ["shop"], "order_by": ["quantity DESC"], "rows": 3}
    return gold.top("made", **(declared | {"columns": ["order_id", "quantity"]} | options))


ranked = "row_number() OVER (PARTITION BY shop ORDER BY quantity DESC)"
counted = "SELECT shop, window_start, window_end, count(*) AS orders FROM silver.orders GROUP BY shop, "

# What the SQL says, and what says the same in Python.
same: dict[str, tuple[str, Callable[[], Dataset]]] = {
    "a GROUP BY is an aggregate": (
        "SELECT shop, count(*) AS orders FROM silver.orders GROUP BY shop",
        aggregate,
    ),
    "keywords have any case, and the name of the table may stand before a column": (
        "select o.shop, count(*) as orders from silver.orders o group by o.shop;",
        aggregate,
    ),
    "groups may be numbers": ("SELECT shop, count(*) AS orders FROM silver.orders GROUP BY 1", aggregate),
    "groups may be all that is no measure": (
        "SELECT shop, count(*) AS orders FROM silver.orders GROUP BY ALL",
        aggregate,
    ),
    "one column may be two groups": (
        "SELECT shop, shop AS again, count(*) AS orders FROM silver.orders GROUP BY again, shop",
        lambda: aggregate(group_by=["shop AS again", "shop"]),
    ),
    "also without measures": (
        "SELECT shop FROM silver.orders GROUP BY shop",
        lambda: aggregate(measures={}),
    ),
    "as which DISTINCT is": (
        "SELECT DISTINCT o.shop, date(placed_at) AS day FROM silver.orders o WHERE quantity > 1",
        lambda: aggregate(group_by=["shop", "date(placed_at) AS day"], measures={}, where="quantity > 1"),
    ),
    "names, keywords and functions have any case, and backticks only where they need them": (
        "SELECT upper(Shop) AS shop, CAST(placed_at AS DATE) AS day, sum(quantity) AS n, COUNT(*) AS orders\n"
        "FROM silver.orders GROUP BY UPPER(`shop`), cast(Placed_At as date)\n"
        "HAVING Count(*) > 1 AND SUM(`quantity`) > 2",
        lambda: aggregate(
            group_by=["upper(Shop) AS shop", "CAST(placed_at AS DATE) AS day"],
            measures={"n": "sum(quantity)", "orders": "COUNT(*)"},
            having="orders > 1 AND n > 2",
        ),
    ),
    "a percentile may say its order": (
        "SELECT shop, percentile_cont(0.5) WITHIN GROUP (ORDER BY quantity) AS m FROM silver.orders GROUP BY shop",
        lambda: aggregate(measures={"m": "percentile_cont(0.5) WITHIN GROUP (ORDER BY quantity)"}),
    ),
    "measures may come first": ("SELECT count(*) AS orders, shop FROM silver.orders GROUP BY shop", aggregate),
    "a group is an expression with a name": (
        "SELECT date_trunc('day', placed_at) AS day, sum(quantity) / count(*) AS mean FROM silver.orders GROUP BY day",
        lambda: aggregate(
            group_by=["date_trunc('day', placed_at) AS day"], measures={"mean": "sum(quantity) / count(*)"}
        ),
    ),
    "or an expression that is written twice": (
        "SELECT date_trunc('day', placed_at) AS day, count(*) AS orders FROM silver.orders\n"
        "GROUP BY date_trunc( 'day' , placed_at )",
        lambda: aggregate(group_by=["date_trunc('day', placed_at) AS day"]),
    ),
    "WHERE says which rows count": (
        "SELECT shop, count(*) AS orders FROM silver.orders o WHERE o.status = 'paid' GROUP BY shop",
        lambda: aggregate(where="status = 'paid'"),
    ),
    "HAVING says which groups are shown, by a measure or by its name": (
        "SELECT shop, count(*) AS orders FROM silver.orders GROUP BY shop HAVING count(*) > 3 AND orders < 9",
        lambda: aggregate(having="orders > 3 AND orders < 9"),
    ),
    "of measures alone, and of no part of one": (
        "SELECT shop, 1 AS one, count(*) AS orders, count(*) FILTER (WHERE quantity > 1) AS many FROM silver.orders\n"
        "GROUP BY shop, one HAVING count(*) FILTER(WHERE quantity>1) > 1 + count(*) AND 'it''s' <> shop",
        lambda: aggregate(
            group_by=["shop", "1 AS one"],
            measures={"orders": "count(*)", "many": "count(*) FILTER (WHERE quantity > 1)"},
            having="many > 1 + orders AND 'it''s' <> shop",
        ),
    ),
    "a window is a group": (
        f"{counted}window(placed_at, '1 hour')",
        lambda: aggregate(group_by=["shop", window("placed_at", "1 hour")]),
    ),
    "a window may hop": (
        f"{counted}window(placed_at, '1 hour', every => '10 minutes')",
        lambda: aggregate(group_by=["shop", window("placed_at", "1 hour", every="10 minutes")]),
    ),
    "or be a session": (
        f"{counted}session_window(placed_at, '10 minutes')",
        lambda: aggregate(group_by=["shop", session_window("placed_at", gap="10 minutes")]),
    ),
    "or slide": (
        f"{counted}sliding_window(placed_at, '10 minutes')",
        lambda: aggregate(group_by=["shop", sliding_window("placed_at", "10 minutes")]),
    ),
    "or be a day of a place": (
        f"{counted}calendar_window(placed_at, 'day', time_zone => 'Europe/Oslo')",
        lambda: aggregate(group_by=["shop", calendar_window("placed_at", "day", time_zone="Europe/Oslo")]),
    ),
    "Spark's own names of a window's bounds are known": (
        "SELECT window.start AS window_start, window.end AS window_end, count(*) AS orders FROM silver.orders\n"
        "GROUP BY window(placed_at, '1 hour')",
        lambda: aggregate(group_by=[window("placed_at", "1 hour")]),
    ),
    "row_number() with QUALIFY is a top list": (
        f"SELECT shop, order_id, quantity, {ranked} AS rank FROM silver.orders QUALIFY rank <= 3",
        top,
    ),
    "whose groups and rank have any case": (
        "SELECT shop, order_id, quantity, ROW_NUMBER() OVER (PARTITION BY Shop ORDER BY quantity DESC) AS rank\n"
        "FROM silver.orders QUALIFY row_number() over (partition by shop order by quantity desc) <= 3",
        lambda: top(group_by=["Shop AS shop"]),
    ),
    "and so it is with a SELECT in brackets": (
        f"SELECT shop, order_id, quantity, t.rank FROM (SELECT *, {ranked} AS rank FROM silver.orders) AS t\n"
        "WHERE t.rank < 4",
        top,
    ),
    "of which WHERE says which rows count": (
        f"SELECT * FROM (SELECT *, {ranked} AS place FROM silver.orders WHERE status = 'paid') WHERE place = 1",
        lambda: top(rows=1, rank="place", columns=None, where="status = 'paid'"),
    ),
    "also under a name of WITH, before which tables may get names": (
        f"WITH o AS (SELECT * FROM silver.orders), paid AS (SELECT * FROM o WHERE o.status = 'paid'),\n"
        f"ranked AS (SELECT *, {ranked} AS place FROM paid), final AS (SELECT * FROM ranked WHERE place = 1)\n"
        "SELECT * FROM final",
        lambda: top(rows=1, rank="place", columns=None, where="status = 'paid'"),
    ),
    "the conditions of a SELECT and of one that it reads must both be true": (
        "WITH some AS (SELECT shop, quantity AS quantity FROM silver.orders o WHERE o.quantity > 1 OR shop = 'a')\n"
        "SELECT shop, count(*) AS orders FROM some WHERE some.shop <> 'b' OR quantity < 9 GROUP BY some.shop",
        lambda: aggregate(where="(quantity > 1 OR shop = 'a') AND (shop <> 'b' OR quantity < 9)"),
    ),
    "and so they must in brackets": (
        "SELECT shop, count(*) AS orders FROM (SELECT * FROM silver.orders WHERE status = 'paid') GROUP BY shop",
        lambda: aggregate(where="status = 'paid'"),
    ),
    "ties may count, and the whole table may be one group": (
        "SELECT order_id, quantity, dense_rank() OVER (ORDER BY quantity DESC NULLS LAST, shop) AS rank\n"
        "FROM silver.orders QUALIFY dense_rank() OVER (ORDER BY quantity DESC NULLS LAST, shop) <= 3",
        lambda: top(group_by=[], order_by=["quantity DESC NULLS LAST", "shop"], ties="dense_rank"),
    ),
    "rows of one table are a view by its grain": (
        "SELECT order_id, quantity * 2 AS twice FROM silver.orders WHERE status IN ('paid', 'sent')",
        lambda: gold.view(
            "made",
            inputs={"orders": orders},
            shape="SELECT order_id, quantity * 2 AS twice FROM orders WHERE status IN ('paid', 'sent')",
        ),
    ),
    "a JOIN is a view by the columns that are equal": (
        "SELECT o.order_id, o.shop, s.city FROM silver.orders AS o LEFT JOIN silver.shops AS s ON o.shop = s.shop",
        lambda: gold.view(
            "made",
            inputs={"orders": orders, "shops": shops},
            shape="SELECT o.order_id, o.shop, s.city FROM orders o LEFT JOIN shops s ON o.shop = s.shop",
        ),
    ),
    "also of tables that WITH gives names": (
        "WITH orders AS (SELECT * FROM silver.orders), places AS (SELECT * FROM silver.shops)\n"
        "SELECT o.order_id, o.shop, s.city FROM orders o LEFT JOIN places s ON o.shop = s.shop",
        lambda: gold.view(
            "made",
            inputs={"orders": orders, "shops": shops},
            shape="SELECT o.order_id, o.shop, s.city FROM orders o LEFT JOIN shops s ON o.shop = s.shop",
        ),
    ),
}


@pytest.mark.parametrize("sentence", same)
def test_the_same_in_python_and_in_sql_has_one_fingerprint(sentence: str) -> None:
    text, declare = same[sentence]
    in_sql, in_python = made(text), declare()
    assert in_sql.fingerprint == in_python.fingerprint
    assert in_sql.specification == in_python.specification
    assert (in_sql.columns, in_sql.lineage()) == (in_python.columns, in_python.lineage())
    assert (in_sql.keys, in_sql.event_time) == (in_python.keys, in_python.event_time)
    assert in_sql.outputs[0].scope_columns == in_python.outputs[0].scope_columns


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("SELECT shop, count(*) AS orders FROM silver.orders WHERE quantity > 1 GROUP BY shop", ("groups.where",)),
        ("SELECT shop, sum(quantity) AS orders FROM silver.orders GROUP BY 1", ("groups.measures",)),
        ("SELECT status, count(*) AS orders FROM silver.orders GROUP BY ALL", ("groups.expressions",)),
        ("SELECT order_id, shop FROM silver.orders", ("kind",)),
        ("select SHOP AS shop, count(*) AS orders FROM silver.orders o GROUP BY o.shop", ("groups.expressions",)),
        ("SELECT shop, count( * ) AS orders FROM silver.orders GROUP BY shop HAVING true", ("groups.having",)),
    ],
)
def test_the_fields_that_changed_are_known(text: str, fields: tuple[str, ...]) -> None:
    before = Entry(dataset="gold.made", declared=aggregate().declared)
    assert before.changed_fields(aggregate().declared) == ()
    assert before.changed_fields(made(text).declared) == fields


@pytest.mark.parametrize(
    "text",
    [
        "SELECT o.*, product FROM silver.orders AS o\n"
        "LEFT JOIN silver.products FOR SYSTEM_TIME AS OF o.placed_at AS product ON o.product_id = product.product_id",
        "SELECT order_id, placed_at, product_id, shop, quantity, status, product FROM silver.orders AS o\n"
        "LEFT JOIN silver.products TIMESTAMP AS OF placed_at AS product USING (product_id)",
    ],
)
def test_a_join_as_of_a_time_is_the_one_of_silver(text: str) -> None:
    declared = silver.as_of("made", facts=orders, event_time="placed_at", dimensions={"product": products})
    assert made(text, "silver").fingerprint == declared.fingerprint


def test_a_history_is_found_by_another_column() -> None:
    other = silver.events("carts", source=topic, schema="id string, at timestamp, item string", keys=["id"])
    known["silver.carts"] = other
    found = made(
        "SELECT c.*, p FROM silver.carts c\n"
        "LEFT JOIN silver.products FOR SYSTEM_TIME AS OF c.at p ON p.product_id = c.item",
        "silver",
    )
    declared = silver.as_of(
        "made", facts=other, event_time="at", dimensions={"p": silver.dimension(products, on={"product_id": "item"})}
    )
    assert found.fingerprint == declared.fingerprint


def grain_of(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found = made(text)
    return tuple(name for name, _ in found.outputs[0].scope_columns), found.outputs[0].grain


orders_and_shops = "FROM silver.orders o {} silver.shops s ON o.shop = s.shop"


@pytest.mark.parametrize(
    ("text", "keys", "grain"),
    [
        ("SELECT order_id AS id FROM silver.orders", ["id"], ["id"]),
        # A shop is there once, so it adds nothing to what tells orders apart.
        (f"SELECT o.order_id, o.shop {orders_and_shops.format('JOIN')}", ["shop"], ["shop", "order_id"]),
        (f"SELECT o.order_id, s.shop AS s {orders_and_shops.format('JOIN')}", ["s"], ["s", "order_id"]),
        (f"SELECT o.order_id, o.shop {orders_and_shops.format('LEFT SEMI JOIN')}", ["shop"], ["shop", "order_id"]),
        (f"SELECT o.order_id, o.shop {orders_and_shops.format('LEFT ANTI JOIN')}", ["shop"], ["shop", "order_id"]),
        (f"SELECT o.order_id, s.shop {orders_and_shops.format('RIGHT JOIN')}", ["shop"], ["shop", "order_id"]),
        (
            f"SELECT o.order_id, coalesce(o.shop, s.shop) AS shop {orders_and_shops.format('FULL JOIN')}",
            ["shop"],
            ["shop", "order_id"],
        ),
        (
            "SELECT order_id, visit_id, shop FROM silver.orders JOIN silver.visits USING (shop)",
            ["shop"],
            ["shop", "order_id", "visit_id"],
        ),
        (
            "SELECT a.order_id, b.order_id AS other, a.shop FROM silver.orders a\n"
            "JOIN silver.orders b ON a.shop = b.shop",
            ["shop"],
            ["shop", "order_id", "other"],
        ),
        (
            "SELECT o.order_id, lower(o.shop) AS s FROM silver.orders o\n"
            "JOIN silver.shops s ON lower(o.shop) = lower(s.shop)",
            ["s"],
            None,
        ),
        (
            "SELECT o.order_id, o.shop, s.city, v.visit_id FROM silver.orders o\n"
            "LEFT JOIN silver.shops s ON o.shop = s.shop\n"
            "LEFT JOIN silver.visits v ON v.shop = o.shop AND v.at < o.placed_at",
            ["shop"],
            ["shop", "order_id", "visit_id"],
        ),
        (
            "SELECT order_id, visit_id, shop FROM silver.orders FULL JOIN silver.visits USING (shop)\n"
            "LEFT JOIN silver.shops USING (shop)",
            ["shop"],
            ["shop", "order_id", "visit_id"],
        ),
        (
            "SELECT order_id, shop, sum(quantity) OVER (PARTITION BY shop ORDER BY placed_at) AS s FROM silver.orders",
            ["shop"],
            ["shop", "order_id"],
        ),
        (
            "SELECT order_id, shop, status, count(*) OVER (PARTITION BY shop, status) AS a,\n"
            "    lag(quantity) OVER (PARTITION BY shop ORDER BY placed_at, order_id) AS b FROM silver.orders",
            ["shop"],
            ["shop", "order_id"],
        ),
    ],
)
def test_keys_and_grain_follow_from_the_joins(text: str, keys: list[str], grain: list[str] | None) -> None:
    if grain is None:
        with pytest.raises(DeclarationError, match=r"also select s\.shop: it identifies the rows of silver.shops"):
            made(text)
        return
    assert grain_of(text) == (tuple(keys), tuple(grain))


def test_columns_have_their_types_and_their_lineage() -> None:
    found = made(
        "SELECT o.order_id, o.shop, s.city, quantity * 2 AS twice FROM silver.orders o\n"
        "LEFT JOIN silver.shops s ON o.shop = s.shop WHERE o.status = 'paid'"
    )
    assert found.columns == {"order_id": "string", "shop": "string", "city": "string", "twice": None}
    assert found.lineage().of("city").sources == (Source("silver.shops", "city", "identity"),)
    assert found.lineage().of("twice").sources == (Source("silver.orders", "quantity", "transformation"),)
    assert set(found.lineage().rows) == {
        Source("silver.orders", "shop", "join"),
        Source("silver.shops", "shop", "join"),
        Source("silver.orders", "status", "filter"),
    }


def test_the_comments_at_the_top_are_for_people() -> None:
    text = "SELECT shop, count(*) AS orders FROM silver.orders GROUP BY shop"
    found = made(
        "-- Meaning: How many orders a shop has,\n--   late ones included.\n-- owner: sales\n-- Another remark: none.\n"
        f"-- column orders: without those returned [pieces]\n\n{text} -- meaning: not this"
    )
    assert found.meaning == "How many orders a shop has, late ones included."
    assert (found.owner, dict(found.comments)) == ("sales", {"orders": "without those returned [pieces]"})
    assert found.fingerprint == made(text).fingerprint
    with pytest.raises(DeclarationError, match=r"made\.sql:\d:1: gold.made: comments names order, which it lacks"):
        made(f"-- column order: a word\n{text}")


def refused_in(layer: str) -> dict[str, str]:
    """The texts of `refused_in_….txt` with what the error says of each."""
    blocks = (Path(__file__).parent / f"refused_in_{layer}.txt").read_text().split("\n\n")[1:]
    return dict(each.strip().split("\n--> ") for each in blocks)


# And those that are better built than written.
built = {
    "": "1:1: there is no SELECT here",
    "SELECT order_id, " + "(" * 500 + "1" + ")" * 500 + " AS one FROM silver.orders": "nested too deep",
    "SELECT order_id, " + "NOT " * 5000 + "true AS yes FROM silver.orders": "nested too deep",
    "SELECT order_id FROM silver.orders WHERE shop = '" + "x" * 1_000_000 + "'": "1:1: this is longer than 100,000",
    "SELECT order_id\0 FROM silver.orders": "1:16: U+0000 is no character of SQL",
    "SELECT \u043erder_id FROM silver.orders": "1:8: there is no column \u043erder_id",
    "SELECT device.name, avg(device.temp) AS mean FROM silver.readings GROUP BY device.name": (
        "device.temp, but device has temperature, name"
    ),
    "SELECT r.device.nam AS name, count(*) AS n FROM silver.readings AS r GROUP BY r.device.nam": (
        "device.nam, but device has temperature, name"
    ),
}
refused = [("gold", *each) for each in (refused_in("gold") | built).items()]
refused += [("silver", *each) for each in refused_in("silver").items()]


@pytest.mark.parametrize(("layer", "text", "says"), refused, ids=[text[:60] for _, text, _ in refused])
def test_what_is_no_table_is_refused_with_place_and_reason(layer: str, text: str, says: str) -> None:
    with pytest.raises(DeclarationError) as error:
        made(text, layer)
    assert str(error.value).startswith(f"pipelines/{layer}/made.sql:")
    assert says in str(error.value)


# Spaces and comments

columns = ["shop", "quantity", "status", "`product_id`"]
values = st.sampled_from(["'paid'", "'it''s; -- no comment'", "'a \" /* b'", "3", "-1", "2.5D", "1L", "TRUE", *columns])
gaps = st.sampled_from([" ", "\n", "\t  ", " -- said 'so'\n", "/* (a, */ ", " /* x */\n"])


def calls(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map(lambda each: f"coalesce({each[0]}, {each[1]})"),
        pair.map(lambda each: f"{each[0]} - {each[1]}"),
        pair.map(lambda each: f"({each[0]} || {each[1]})"),
        pair.map(lambda each: f"CASE WHEN {each[0]} = {each[1]} THEN {each[0]} ELSE -({each[1]}) END"),
        pair.map(lambda each: f"({each[0]} BETWEEN {each[1]} AND 3 AND NOT shop IN ({each[0]}, {each[1]}))"),
        inner.map(lambda each: f"CAST({each} AS ARRAY<STRUCT<a: INT, b: DECIMAL(10, 2)>>)[0].a"),
        inner.map(lambda each: f"filter(array({each}), x -> x IS DISTINCT FROM {each})"),
    )


expressions = st.recursive(values, calls, max_leaves=6)
measured = st.builds("{}({})".format, st.sampled_from(["sum", "min", "count", "approx_count_distinct"]), expressions)
filtered = st.builds("{} FILTER (WHERE {} > 1)".format, measured, expressions)


@st.composite
def aggregates(draw: st.DrawFn) -> tuple[dict[str, Any], list[str]]:
    """The options of an aggregate in Python, and the words of the SELECT that says the same."""
    group = draw(st.one_of(st.just(None), expressions))
    measures = {f"m{at}": each for at, each in enumerate(draw(st.lists(measured | filtered, min_size=1, max_size=3)))}
    where = draw(st.one_of(st.just(""), expressions.map("{} = 1".format)))
    items = ["shop", *([f"{group} AS g"] if group else []), *(f"{text} AS {name}" for name, text in measures.items())]
    words = ["SELECT", ", ".join(items), "FROM silver.orders", *([f"WHERE {where}"] if where else []), "GROUP BY shop"]
    having = draw(st.sampled_from(["", "m0 > 1"]))
    words += [", g" if group else "", *([f"HAVING {having}"] if having else [])]
    groups = ["shop", *([f"{group} AS g"] if group else [])]
    return {"group_by": groups, "measures": measures, "where": where, "having": having}, words


def reformatted(text: str, draw: Callable[[st.SearchStrategy[str]], str]) -> str:
    """The same SQL with other spaces and comments between its words, none within a text or a number."""
    found = sql_words.tokens_of(text)
    said = ""
    for at, each in enumerate(found):
        touches = at > 0 and found[at - 1].end + 1 == each.start
        must_touch = touches and (sql_words.is_text_of(each, text) or "." in (each.text, found[at - 1].text))
        closes = (touches and each.text == "(") or must_touch
        said += ("" if at == 0 or closes else draw(gaps)) + text[each.start : each.end + 1]
    return said


def one_aggregate_in_any_format(data: st.DataObject) -> None:
    options, words = data.draw(aggregates())
    text = reformatted(" ".join(words), data.draw)
    assert made(text).fingerprint == aggregate(**options).fingerprint


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_an_aggregate_written_as_sql_in_any_format_is_the_same_one(data: st.DataObject) -> None:
    one_aggregate_in_any_format(data)


def forgets_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate.Translator, "condition", lambda self, where: "")


def counts_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    as_written = lambda text, found, at: found[at].start > found[at - 1].end + 1  # noqa: E731
    monkeypatch.setattr(sql_words, "is_apart", as_written)


@pytest.mark.parametrize("mutant", [forgets_where, counts_spaces])
def test_the_law_notices_a_translator_that(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = settings(phases=[Phase.generate], deadline=None, database=None, report_multiple_bugs=False)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        quick(given(data=st.data())(one_aggregate_in_any_format))()


@settings(max_examples=200, deadline=None)
@given(text=expressions)
def test_spaces_change_no_word(text: str) -> None:
    once = spaced(text)
    assert [each.text for each in sql_words.tokens_of(once)] == [each.text for each in sql_words.tokens_of(text)]
    assert spaced(once) == once == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count( * )FILTER(WHERE a>1)", "count(*) FILTER (WHERE a > 1)"),
        ("a- -1", "a - -1"),
        ("- -a", "- -a"),
        ("a IN(1,2)", "a IN (1, 2)"),
        ("left(a,2)||`b c` [0] . d", "left(a, 2) || `b c`[0].d"),
        ("x::int", "x::int"),
        ("'it''s'", "'it''s'"),
        ("'a' 'b'", "'a' 'b'"),
        ("row_number()OVER(PARTITION BY a ORDER BY b DESC)", "row_number() OVER (PARTITION BY a ORDER BY b DESC)"),
        ("interval'1'day", "interval '1' day"),
        ("a/*x*/--y\n+1", "a + 1"),
        ('"a  /* b"||c', '"a  /* b" || c'),
    ],
)
def test_spaces_are_ordinary(text: str, expected: str) -> None:
    assert spaced(text) == expected


def test_what_this_project_declares_has_ordinary_spaces() -> None:
    found = load(Path(__file__).parents[1])
    texts = [
        text
        for dataset in found.datasets
        if hasattr(dataset.specification, "groups")
        for text in (
            *dataset.specification.groups.expressions.values(),
            *dataset.specification.groups.measures.values(),
        )
    ]
    assert len(texts) > 5
    assert [text for text in texts if spaced(text) != " ".join(text.split())] == []


# Hostile texts

words = """
    SELECT FROM WHERE GROUP BY HAVING QUALIFY ORDER LIMIT JOIN LEFT FULL ON USING AS OF FOR SYSTEM_TIME OVER PARTITION
    AND OR NOT IN CASE WHEN END UNION ( ) [ ] , . ; * + - / = < > <=> -> => :: ' " ` -- /* */ { } $ @ ? : | & ! ~ % \\
    1 \'a\' WITH     silver.orders o.shop shop count(*) sum( row_number() window(placed_at,'1h') é \u202e \0
"""
hostile = st.lists(st.sampled_from([*words.split(), "\n"]), max_size=25).map(" ".join)
beginnings = ["", "SELECT order_id FROM silver.orders ", "SELECT shop, count(*) AS n FROM silver.orders "]


@settings(max_examples=400, deadline=None)
@given(text=hostile, begins=st.sampled_from(beginnings))
def test_any_text_is_a_table_or_a_documented_error(text: str, begins: str) -> None:
    with contextlib.suppress(DeclarationError):
        assert made(begins + text).name == "gold.made"


refused_and_made = [text for text, _ in same.values()] + [text for _, text, _ in refused if len(text) < 600]
parts = sorted({part for text in refused_and_made for part in re.findall(r"\w+|\S", text)})


@settings(max_examples=400, deadline=None)
@given(text=st.sampled_from(refused_and_made), data=st.data())
def test_a_text_with_words_changed_is_a_table_or_a_documented_error(text: str, data: st.DataObject) -> None:
    found = re.findall(r"\w+|\s+|\S", text)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(found)))
        found[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([[], *([" ", each] for each in parts)])
        )
    with contextlib.suppress(DeclarationError):
        assert made("".join(found)).name == "gold.made"


# Files

python = """
from sluice import bronze, gold, silver, sql

topic = bronze.topic("orders")
orders = silver.events(
    "orders",
    source=topic,
    schema="order_id string, at timestamp, shop string, n int",
    keys=["order_id"],
    event_time="at",
)
"""


def loaded(folder: Path, files: dict[str, str | bytes]) -> Catalogue:
    """The catalogue of a project whose `pipelines` are these files."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "pipelines" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(folder)


sums = "SELECT shop, sum(n) AS n FROM silver.paid GROUP BY shop"
paid = "SELECT order_id, shop, n FROM silver.orders WHERE n > 0"


def test_files_and_modules_may_be_in_any_order(tmp_path: Path) -> None:
    catalogue = loaded(
        tmp_path,
        {
            # Imported first, and made from a file that is made from a later module and another file.
            "a_gold.py": "from sluice import gold, sql\n"
            "best = gold.top('best', source=sql.table('gold.sums'), group_by=[], order_by='n DESC', rows=3)\n"
            "served = gold.publish(sql.table('gold.sums'), kafka='sums')\n",
            "z_silver.py": python,
            "gold/finance/sums.sql": sums,
            "silver/paid.sql": paid,
            "gold/more.sql": "SELECT shop, n, rank FROM gold.best WHERE n > 3",
        },
    )
    names = [node.name for node in catalogue.nodes]
    assert set(names) - {"bronze.sluice_releases"} == {
        "bronze.orders",
        *(f"gold.{n}" for n in ("best", "sums", "more")),
        "silver.orders",
        "silver.paid",
    }
    assert names.index("silver.paid") < names.index("gold.sums") < names.index("gold.best") < names.index("gold.more")
    assert [each.source.name for each in catalogue.publications] == ["gold.sums"]


def test_a_table_that_moves_from_python_to_sql_is_the_same(tmp_path: Path) -> None:
    in_python = loaded(
        tmp_path / "python",
        {
            "__init__.py": f"{python}\n"
            f"paid = silver.join('paid', inputs={{'orders': orders}}, shape={paid.replace('silver.', '')!r})\n"
            "sums = gold.aggregate('sums', source=paid, group_by=['shop'], measures={'n': 'sum(n)'})\n"
        },
    )
    in_sql = loaded(
        tmp_path / "sql",
        {
            "__init__.py": python,
            "silver/paid.sql": f"-- meaning: Other words.\n{paid.lower()}",
            "gold/sums.sql": sums.replace(" ", "\n\t"),
        },
    )
    assert {each.name: each.fingerprint for each in in_sql.datasets} == {
        each.name: each.fingerprint for each in in_python.datasets
    }


def test_every_view_of_the_catalogue_shows_it(tmp_path: Path) -> None:
    catalogue = loaded(
        tmp_path, {"__init__.py": python, "silver/paid.sql": f"-- owner: sales\n{paid}", "gold/sums.sql": sums}
    )
    tables = describe(catalogue)
    found = {each.name: each for each in tables}
    assert [str(link.source) for link in trace(tables, "gold.sums.n").upstream][:2] == [
        "silver.paid.n",
        "silver.orders.n",
    ]
    assert "gold.sums" in documents.write(tmp_path / "docs", "shop", tables).read_text()
    assert found["silver.paid"].owner == "sales"
    assert [column.name for column in found["gold.sums"].columns if not column.name.startswith("_")] == ["shop", "n"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"gold/a.sql": "SELECT shop, n FROM gold.b", "gold/b.sql": "SELECT shop, n FROM gold.a"},
            "gold.a reads gold.b reads gold.a: no table can be made from itself",
        ),
        ({"gold/a.sql": "SELECT shop, n FROM gold.a"}, "gold.a reads gold.a: no table can be made from itself"),
        (
            {"gold/sums.sql": sums.replace("silver.paid", "silver.order")},
            "pipelines/gold/sums.sql:1:31: there is no table silver.order; did you mean silver.orders?",
        ),
        ({"gold/sums.sql": sums}, "pipelines/gold/sums.sql:1:31: there is no table silver.paid"),
        ({"gold/sums.sql": "SELECT shop FROM bronze.orders"}, "bronze.orders has raw bytes"),
        ({"sums.sql": sums}, "pipelines/sums.sql: the folder says the layer; move the file to pipelines/silver or"),
        ({"gold/sums.SQL": sums, "gold/sums.sql": sums, "silver/paid.sql": paid}, "gold.sums is declared in"),
        ({"bronze/sums.sql": sums}, "pipelines/bronze/sums.sql: the folder says the layer"),
        ({"gold/Sums 2.sql": sums}, "pipelines/gold/Sums 2.sql: 'Sums 2' cannot name a table"),
        ({"silver/orders.sql": paid}, "silver.orders reads silver.orders"),
        ({"silver/paid.sql": paid, "silver/x/paid.sql": paid}, "silver.paid is declared in silver/paid.sql, too"),
        ({"silver/paid.sql": b"SELECT \xff"}, "pipelines/silver/paid.sql:1:1: this cannot be read as UTF-8"),
        ({"more.py": "from sluice import sql\nx = sql.table('gold.x')"}, "there is no file of gold.x"),
        (
            {
                "silver/paid.sql": paid,
                "more.py": "from sluice import silver\nfrom pipelines import orders\n"
                "p = silver.events('paid', source=orders, keys=['order_id'])",
            },
            "silver.paid is declared twice (pipelines/more.py, line 3, its .sql file)",
        ),
        (
            {"more.py": "from sluice import bronze\nx = bronze.topic('orders')"},
            "bronze.orders is declared twice (pipelines/__init__.py, line 4, pipelines/more.py, line 2)",
        ),
        (
            {
                "gold/sums.sql": "SELECT shop, n, rank FROM gold.best WHERE n > 1",
                "best.py": "from sluice import gold, sql\n"
                "best = gold.top('best', source=sql.table('gold.sums'), group_by=[], order_by='n', rows=3)",
            },
            "pipelines/gold/sums.sql:1:27: there is no table gold.best",
        ),
    ],
)
def test_a_project_whose_files_cannot_be_tables_says_why(
    tmp_path: Path, files: dict[str, str | bytes], says: str
) -> None:
    with pytest.raises(DeclarationError) as error:
        loaded(tmp_path, {"__init__.py": python, **files})
    assert says in str(error.value)


def test_sql_table_is_for_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice import sql

    monkeypatch.delitem(sys.modules, "pipelines", raising=False)
    with pytest.raises(DeclarationError, match=r"sql\.table is for the declarations of a project"):
        sql.table("gold.sums")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keys": ["order_id"]}, "gold.made: its shape is SQL, from which keys follow; leave them out"),
        ({"inputs": {"orders": orders, "shops": shops}}, "gold.made: shape:1:1: shops is an input and is not read"),
        ({"shape": "SELECT order_id FROM order"}, "gold.made: shape:1:22: order is no input; there are orders"),
        (
            {"shape": "SELECT shop, count(*) AS n FROM orders GROUP BY shop"},
            "gold.made: shape:1:1: a view is rows of tables",
        ),
    ],
)
def test_sql_as_the_shape_of_a_view_is_checked(options: dict[str, Any], says: str) -> None:
    declared: dict[str, Any] = {"inputs": {"orders": orders}, "shape": "SELECT order_id FROM orders"}
    with pytest.raises(DeclarationError) as error:
        gold.view("made", **(declared | options))
    assert says in str(error.value)
