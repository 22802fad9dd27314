"""Column lineage: what each kind of declaration says its columns are made from, and how SQL is read for it."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice import bronze, gold, silver, windows
from sluice.engine.catalogue import Catalogue, ordered
from sluice.errors import UsageError
from sluice.model.datasets import Dataset
from sluice.model.lineage import Made, Source, from_sql
from sluice.operate.describe import describe
from sluice.operate.lineage import Traced, trace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

orders_topic, products_topic = bronze.topic("orders"), bronze.topic("products")
orders = silver.events(
    "orders",
    source=orders_topic,
    schema="order_id string, placed_at timestamp, product_id string, quantity int, note string",
    keys=["order_id"],
    event_time="placed_at",
)
products = silver.history(
    "products",
    source=products_topic,
    schema="product_id string, changed_at timestamp, name string, price_euro decimal(10,2)",
    keys=["product_id"],
    sequence_by="changed_at",
    ignore_null_updates=["name"],
)
priced = silver.as_of(
    "priced",
    facts=orders,
    event_time="placed_at",
    dimensions={"product": silver.dimension(products, inferred={"name": "note"})},
)


def summed(orders: "DataFrame") -> "DataFrame":
    return orders


totals = silver.join("totals", inputs={"orders": orders}, keys=["product_id"], shape=summed)


def direct(made: Made) -> dict[str, str]:
    """The sources of the values, with their part."""
    return {str(each): each.how for each in made.sources if each.is_of_values}


def rows(dataset: Dataset) -> dict[str, str]:
    return {str(each): each.how for each in dataset.lineage().rows}


def catalogue(*datasets: Dataset) -> Catalogue:
    return ordered(datasets)


def traced(name: str, *datasets: Dataset) -> Traced:
    return trace(describe(catalogue(*datasets)), name)


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("quantity", {"silver.orders.quantity": "identity"}),
        ("`QUANTITY`", {"silver.orders.quantity": "identity"}),
        ("quantity + 1", {"silver.orders.quantity": "transformation"}),
        (
            "concat(note, order_id)",
            {"silver.orders.note": "transformation", "silver.orders.order_id": "transformation"},
        ),
        (
            "CASE WHEN note IS NULL THEN quantity END",
            {"silver.orders.note": "conditional", "silver.orders.quantity": "transformation"},
        ),
        ("if(note = 'x', 1, 2)", {"silver.orders.note": "conditional"}),
        ("date_trunc('day', placed_at)", {"silver.orders.placed_at": "transformation"}),
        ("timestampadd(DAY, 1, placed_at)", {"silver.orders.placed_at": "transformation"}),
        ("transform(array(quantity), note -> note + 1)", {"silver.orders.quantity": "transformation"}),
        ("current_date", {}),
        ("'quantity'", {}),
        ("1", {}),
    ],
)
def test_sql_is_read_by_a_parser(sql: str, found: dict[str, str]) -> None:
    made = from_sql(sql, orders.name, orders.columns)
    assert (direct(made), made.unknown, made.by) == (found, "", sql)


@pytest.mark.parametrize(
    ("sql", "values", "decide"),
    [
        ("struct(note, quantity).quantity", "quantity", ""),
        ("(named_struct('a', note, 'b', struct(quantity AS c)).B).c + 1", "quantity", ""),
        ("coalesce(struct(note, 1), struct(order_id AS note, quantity)).note", "note order_id", ""),
        ("max(struct(placed_at, note)).note", "note", "note placed_at"),
        ("transform(array(quantity), each -> struct(each, note).note)", "note quantity", ""),
        ("if(note = 'x', struct(quantity AS q), struct(order_id AS q)).q", "order_id quantity", "note"),
        ("CASE note WHEN order_id THEN quantity ELSE product_id END", "product_id quantity", "note order_id"),
        ("nvl2(note, quantity, product_id)", "product_id quantity", "note"),
        ("decode(note, order_id, quantity, product_id)", "product_id quantity", "note order_id"),
        ("decode(note, 'a', order_id, 'b', product_id)", "order_id product_id", "note"),
        ("decode(note, 'utf-8')", "note", ""),
        ("nullif(quantity, note)", "quantity", "note"),
        ("elt(quantity, note, order_id)", "note order_id", "quantity"),
        ("map('a', note)[order_id]", "note", "order_id"),
        ("filter(array(note), each -> each > order_id)", "note", "order_id"),
        ("max_by(note, placed_at)", "note", "placed_at"),
        ("max_by(struct(note, order_id), placed_at).note", "note", "placed_at"),
        ("count_if(note = 'x')", "", "note"),
        ("array_agg(note) WITHIN GROUP (ORDER BY placed_at)", "note", "placed_at"),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY quantity)", "quantity", ""),
        pytest.param(" + ".join(["quantity"] * 5000), "quantity", "", id="a sum of 5,000 terms"),
    ],
)
def test_values_come_from_what_is_taken_and_not_from_what_decides(sql: str, values: str, decide: str) -> None:
    made = from_sql(sql, orders.name, orders.columns)
    parts = {
        is_direct: {each.column for each in made.sources if each.is_direct == is_direct} for is_direct in (True, False)
    }
    assert (parts, made.unknown) == ({True: {*values.split()}, False: {*decide.split()}}, "")


@pytest.mark.parametrize(
    "sql",
    ["quantity +", "((", "SELECT * FROM x", "(SELECT max(a) FROM b)", "'", "struct(*)", f"{'(' * 9000}1{')' * 9000}"],
)
def test_sql_that_cannot_be_followed_may_read_everything_and_says_so(sql: str) -> None:
    made = from_sql(sql, orders.name, orders.columns)
    assert made.unknown == "The parser cannot tell which columns this SQL reads."
    assert [each.column for each in made.sources] == list(orders.columns or ())
    assert [str(each) for each in from_sql(sql, "silver.open", None).sources] == ["silver.open.*"]


signs = r"""
quantity note placed_at `note` state.x ( ) [ ] , . * -> : :: ' " ` 1 1.5e3 NULL CASE WHEN THEN ELSE END AS AND OR NOT IN
BETWEEN LIKE IS FILTER (WHERE OVER PARTITION BY ORDER SELECT FROM sum( count( if( struct( transform( CAST( INT) INTERVAL
DAY x'00' -- /* */ ; {{ }} ${x} @ # % & | ~ ^ ! = <> <=> \ é
"""
words = st.sampled_from([*signs.split(), "\n", "\t", "\u202e", "\x00"])


@settings(max_examples=500, deadline=None)
@given(st.lists(words, max_size=12).map(" ".join) | st.text(max_size=20))
def test_no_text_breaks_the_parser(sql: str) -> None:
    made = from_sql(sql, orders.name, orders.columns)
    assert {each.column.split(".")[0] for each in made.sources} <= {*(orders.columns or ())}
    assert made.by == sql
    from_sql(sql, "silver.open", None)


def test_a_parsed_record_is_made_from_its_value() -> None:
    made = orders.lineage().of("quantity")
    assert direct(made) == {"bronze.orders.value": "transformation"}
    assert made.by == "the field quantity of the JSON"
    assert rows(orders) == {"bronze.orders.value": "filter", "bronze.sluice_releases.value": "filter"}


def test_a_corrected_event_time_is_made_from_the_time_in_the_log_too() -> None:
    sent = silver.events(
        "sent",
        source=orders_topic,
        schema="id string, at timestamp, sent_at timestamp",
        keys=["id"],
        event_time="at",
        sent_time="sent_at",
    )
    assert {*direct(sent.lineage().of("at"))} == {"bronze.orders.value", "bronze.orders.timestamp"}


def test_a_history_has_the_columns_of_its_changes() -> None:
    lineage = products.lineage()
    assert direct(lineage.of("price_euro")) == {"silver.products_changes.price_euro": "identity"}
    assert direct(lineage.of("name")) == {"silver.products_changes.name": "transformation"}
    assert direct(lineage.of("valid_to")) == {"silver.products_changes.changed_at": "transformation"}
    assert rows(products)["silver.products_changes.product_id"] == "group by"


def test_an_as_of_join_passes_its_facts_and_takes_the_fields_of_a_version() -> None:
    lineage = priced.lineage()
    assert lineage.of("quantity") == Made((Source("silver.orders", "quantity", "identity"),))
    assert direct(lineage.of("product.price_euro")) == {"silver.products.price_euro": "identity"}
    assert direct(lineage.of("product.name")) == {
        "silver.products.name": "identity",
        "silver.orders.note": "identity",
    }
    joined = {str(each) for each in lineage.of("product").sources if each.how == "join"}
    assert {"silver.orders.product_id", "silver.orders.placed_at", "silver.products.valid_to"} <= joined


def test_an_aggregate_says_what_measures_and_groups_are_made_from() -> None:
    revenue = gold.aggregate(
        "revenue",
        source=priced,
        group_by=["product.name AS product", windows.window("placed_at", "1 day")],
        measures={"orders": "count(*)", "revenue_euro": "sum(quantity * product.price_euro) FILTER (WHERE note <> '')"},
    )
    lineage = revenue.lineage()
    assert direct(lineage.of("product")) == {"silver.priced.product.name": "identity"}
    assert direct(lineage.of("orders")) == {}
    assert direct(lineage.of("revenue_euro")) == {
        "silver.priced.quantity": "aggregation",
        "silver.priced.product.price_euro": "aggregation",
        "silver.priced.note": "conditional",
    }
    assert direct(lineage.of("window_end")) == {"silver.priced.placed_at": "transformation"}
    assert rows(revenue) == {"silver.priced.product.name": "group by", "silver.priced.placed_at": "group by"}


def test_a_top_list_keeps_the_columns_of_its_source() -> None:
    first = gold.top("first", source=orders, group_by=["product_id"], order_by="quantity DESC", rows=3)
    assert direct(first.lineage().of("note")) == {"silver.orders.note": "identity"}
    assert direct(first.lineage().of("rank")) == {"silver.orders.quantity": "transformation"}
    assert rows(first) == {"silver.orders.product_id": "group by", "silver.orders.quantity": "sort"}


def state_of(schema: str, initial: dict[str, str], reduce: dict[str, str]) -> Dataset:
    """A state of each product."""
    return gold.state(
        "state",
        source=orders,
        keys=["product_id"],
        sequence_by="placed_at",
        schema=schema,
        initial=initial,
        reduce=reduce,
    )


def test_a_state_is_made_from_what_its_other_columns_are_made_from() -> None:
    state = state_of(
        "total int, noted int",
        {"total": "0", "noted": "0"},
        {
            "total": "state.total + event.quantity",
            "noted": "CASE WHEN event.note IS NULL THEN state.noted ELSE state.total END",
        },
    )
    assert direct(state.lineage().of("total")) == {"silver.orders.quantity": "aggregation"}
    assert direct(state.lineage().of("noted")) == {
        "silver.orders.note": "conditional",
        "silver.orders.quantity": "aggregation",
    }


def test_what_only_decides_in_a_state_decides_over_other_columns_too() -> None:
    state = state_of(
        "total int, note string",
        {"total": "0", "note": "null"},
        {
            "total": "state.total + nvl2(event.placed_at, event.quantity, 0)",
            "note": "if(state.total > 3, event.note, state.note)",
        },
    )
    assert direct(state.lineage().of("total")) == {
        "silver.orders.quantity": "aggregation",
        "silver.orders.placed_at": "conditional",
    }
    assert direct(state.lineage().of("note")) == {
        "silver.orders.note": "aggregation",
        "silver.orders.quantity": "conditional",
        "silver.orders.placed_at": "conditional",
    }


def test_pairs_have_the_fields_of_both_sides() -> None:
    pairs = silver.interval_join(
        "pairs",
        left={"one": orders},
        right={"other": priced},
        keys=["product_id"],
        between=("0 seconds", "1 hour"),
    )
    lineage = pairs.lineage()
    assert direct(lineage.of("other.note")) == {"silver.priced.note": "identity"}
    assert direct(lineage.of("product_id")) == {
        "silver.orders.product_id": "identity",
        "silver.priced.product_id": "identity",
    }
    assert rows(pairs)["silver.orders.placed_at"] == "join"


def test_rows_of_a_table_pass_through_events_of_rows() -> None:
    first = silver.events("first", source=orders, keys=["product_id"], sequence_by="placed_at")
    assert direct(first.lineage().of("note")) == {"silver.orders.note": "identity"}
    assert Source("silver.orders", "placed_at", "sort") in first.lineage().rows


def test_what_a_function_computes_is_said_to_be_unknown() -> None:
    lineage = totals.lineage()
    assert lineage.of("product_id") == Made((Source("silver.orders", "product_id", "identity"),))
    made = lineage.of("anything")
    assert made.unknown == "Computed by summed from silver.orders; it cannot be followed further."
    assert direct(made) == {"silver.orders.*": "transformation"}


def test_a_column_is_traced_down_to_the_log() -> None:
    revenue = gold.aggregate(
        "revenue", source=priced, group_by=["order_id"], measures={"euro": "sum(product.price_euro)"}
    )
    found = traced("gold.revenue.euro", revenue)
    assert [(each.source, each.how) for each in found.upstream if each.is_of_values] == [
        ("silver.priced.product.price_euro", "aggregation"),
        ("silver.products.price_euro", "identity"),
        ("silver.products_changes.price_euro", "identity"),
        ("bronze.products.value", "transformation"),
    ]
    # What only chooses the version is named, and not followed.
    assert ("silver.orders.placed_at", "join") in [(each.source, each.how) for each in found.upstream]
    assert "bronze.orders.value" not in [each.source for each in found.upstream]


def test_what_is_made_from_a_column_is_found_and_nothing_else() -> None:
    revenue = gold.aggregate(
        "revenue",
        source=priced,
        group_by=["order_id"],
        measures={"euro": "sum(product.price_euro)", "names": "max(product.name)", "all": "max(product)"},
    )
    found = {each.target for each in traced("silver.products_changes.price_euro", revenue).downstream}
    assert {"gold.revenue.euro", "gold.revenue.all", "silver.priced.product.price_euro"} <= found
    assert "gold.revenue.names" not in found


def test_columns_that_a_function_makes_are_known_by_who_reads_them() -> None:
    summary = gold.aggregate("summary", source=totals, group_by=["product_id"], measures={"most": "max(total)"})
    found = traced("gold.summary.most", summary)
    assert [each.source for each in found.upstream] == ["silver.totals.total", "silver.orders.*", "bronze.orders.value"]
    assert "summed" in found.upstream[1].unknown
    assert {each.target for each in traced("silver.orders.note", summary).downstream} == {
        "silver.totals.total",
        "gold.summary.most",
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gold.nothing", "There is no table gold.nothing"),
        ("silver.order", "did you mean silver.orders?"),
        ("silver.orders.quantty", "did you mean quantity?"),
        ("", "There is no table"),
        ("....", "There is no table"),
    ],
)
def test_a_name_that_is_not_there_is_an_error_that_helps(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", "[?]")):
        traced(name, orders)
