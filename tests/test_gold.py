"""Gold beside windows: views of tables, states folded from events, and approximate measures."""

import random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine.refresh import refresh
from sluice.errors import DeclarationError
from sluice.shapes.aggregate import Groups, aggregate
from sluice.windows import window
from tests.kit import Lakehouse, text
from tests.shop import priced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from sluice.model.datasets import Dataset

moves = silver.events(
    "moves",
    source=bronze.topic("moves"),
    schema="move_id string, account string, at timestamp, kind string, amount bigint",
    keys=["move_id"],
    event_time="at",
    future_tolerance="1000 days",
)
accounts = gold.state(
    "accounts",
    source=moves,
    keys=["account"],
    sequence_by="at",
    schema="balance bigint, is_open boolean, refused int",
    initial={"balance": "0", "is_open": "true", "refused": "0"},
    reduce={
        "balance": "IF(state.is_open AND event.kind = 'pay', state.balance + event.amount, state.balance)",
        "is_open": "state.is_open AND event.kind <> 'close'",
        "refused": "state.refused + IF(state.is_open, 0, 1) -- since it was closed",
    },
)
paid = gold.aggregate(
    "paid", source=moves, group_by=["account"], measures={"paid": "sum(amount) FILTER (WHERE kind = 'pay')"}
)


def compared(accounts: "DataFrame", paid: "DataFrame") -> "DataFrame":
    """What was paid beside what is there."""
    return accounts.join(paid, "account", "full_outer").select(
        "account", "balance", "paid", (F.col("paid") - F.col("balance")).alias("refused_amount")
    )


checked = gold.view("checked", inputs={"accounts": accounts, "paid": paid}, keys=["account"], shape=compared)


# The columns of tables, and what is said of them.
odd_columns = {
    "a_map": (["map(kind, amount) AS amounts"], r"amounts is map<string,bigint>: maps cannot be compared"),
    "maps": (["array(map(kind, 1)) AS m"], r"m is array<map<string,int>>: maps cannot be compared"),
    "a_space": (["amount AS `the amount`"], r"'the amount' cannot name a column: it has a space"),
    "twice": (["amount", "kind AS Amount"], r"amount and Amount would be one column"),
}


def test_columns_that_a_table_cannot_have_are_named_before_the_first_build(lakehouse: Lakehouse) -> None:
    def shape(columns: list[str]) -> "Callable[[DataFrame], DataFrame]":
        return lambda moves: moves.selectExpr("move_id", *columns)

    lakehouse.declare(
        *[
            gold.view(name, inputs={"moves": moves}, keys=["move_id"], shape=shape(columns))
            for name, (columns, _) in odd_columns.items()
        ]
    )
    lakehouse.publish("moves", {"move_id": "1", "account": "a", "at": text(1), "kind": "pay", "amount": 1})
    runner = lakehouse.runner()
    runner.until_caught_up()
    for name, (_, says) in odd_columns.items():
        with pytest.raises(DeclarationError, match=rf"gold\.{name}: {says}"):
            raise runner.blocks.errors[f"gold.{name}"]
    assert [name for name in lakehouse.versions() if name.startswith("gold")] == []


def rebuilt(lakehouse: Lakehouse, dataset: "Dataset") -> int:
    """Computes all rows of one table again; returns how many of them were others before."""
    return refresh(lakehouse.spark, lakehouse.lake, dataset, rebuild=True).rows.total


def replay(events: list[tuple[str, float, str, int]]) -> dict[str, tuple[int, bool, int]]:
    """Every account's state, event by event; `events` are in the log's order."""
    states: dict[str, tuple[int, bool, int]] = {}
    for account, _, kind, amount in sorted(events, key=lambda event: event[1]):
        balance, is_open, refused = states.get(account, (0, True, 0))
        states[account] = (
            balance + amount if is_open and kind == "pay" else balance,
            is_open and kind != "close",
            refused + (0 if is_open else 1),
        )
    return states


def test_a_state_is_what_a_replay_gives_in_whatever_order_events_come(lakehouse: Lakehouse) -> None:
    chance = random.Random(7)
    events = [
        (
            f"a{chance.randint(0, 30)}",
            chance.randint(0, 8) / 2,
            chance.choice(["pay", "pay", "close"]),
            chance.randint(1, 9),
        )
        for _ in range(150)
    ]
    lakehouse.declare(checked)
    for number, (account, hour, kind, amount) in enumerate(events):
        value = {"move_id": str(number), "account": account, "at": text(hour), "kind": kind, "amount": amount}
        lakehouse.publish("moves", value, key=account, hours=10 + number / 3600)
        if number in (100, 140):
            lakehouse.run()
    lakehouse.run()
    expected = replay(events)
    found = lakehouse.rows("gold.accounts", "account", "balance", "is_open", "refused")
    assert {row[0]: row[1:] for row in found} == expected
    totals = {account: sum(e[3] for e in events if e[0] == account and e[2] == "pay") for account in expected}
    assert {row[0]: row[2] or 0 for row in lakehouse.rows("gold.checked", "account", "balance", "paid")} == totals
    assert rebuilt(lakehouse, accounts) == 0


def test_a_state_of_rows_without_a_place_in_the_log_is_in_the_order_of_their_values(lakehouse: Lakehouse) -> None:
    plain = gold.view(
        "plain", inputs={"moves": moves}, keys=["move_id"], shape=lambda moves: moves.select("move_id", "account", "at")
    )
    listed = gold.state(
        "listed",
        source=plain,
        keys=["account"],
        sequence_by="at",
        schema="moves string",
        initial={"moves": "''"},
        reduce={"moves": "state.moves || event.move_id"},
    )
    lakehouse.declare(listed)
    for move, hour in (("d", 3), ("b", 1), ("c", 2), ("a", 1)):
        value = {"move_id": move, "account": "x", "at": text(hour), "kind": "pay", "amount": 1}
        lakehouse.publish("moves", value, hours=10 + hour).run()
    assert lakehouse.rows("gold.listed", "account", "moves") == [("x", "abcd")]
    assert rebuilt(lakehouse, listed) == 0


def test_a_reducer_must_say_something_of_every_column() -> None:
    with pytest.raises(DeclarationError, match="schema names refused"):
        gold.state(
            "x",
            source=moves,
            keys=["account"],
            sequence_by="at",
            schema="balance bigint, refused int",
            initial={"balance": "0"},
            reduce={"balance": "0"},
        )


def test_approximate_measures_are_within_the_error_that_they_state(spark: "SparkSession") -> None:
    rows = spark.range(50_000).selectExpr("id % 2 AS side", "id % 20011 AS user", "pmod(hash(id), 100000) AS delay")

    def measured(**measures: str) -> dict[int, tuple[float, ...]]:
        groups = Groups.of(["side"], measures)
        return {row[0]: tuple(row)[1:] for row in aggregate(groups.grouped(rows), groups).collect()}

    # Spark would keep a sketch for each user beside a count of distinct ones.
    exact = measured(users="count(DISTINCT user)", delay="percentile(delay, 0.95)")
    sketched = measured(
        users="approx_count_distinct(user, 0.02)",
        delay="approx_percentile(delay, 0.95, 1000)",
        delays="count(*)",
        above="count_if(delay > 95000)",
    )
    for side, (users, delay) in exact.items():
        # Three standard deviations, and a rank that is off by a thousandth: delays are spread evenly over 100,000.
        assert abs(sketched[side][0] / users - 1) < 3 * 0.02
        assert abs(sketched[side][1] - delay) < 100_000 / 1000 * 2


def test_the_most_frequent_values_are_found_within_the_error_that_is_stated(spark: "SparkSession") -> None:
    # Value n occurs 10,000/n times for the first ten, among 50,000 that occur once.
    rows = spark.range(50_000).selectExpr("1 AS one", "id + 100 AS user")
    for user in range(1, 11):
        rows = rows.unionByName(spark.range(10_000 // user).selectExpr("1 AS one", f"CAST({user} AS BIGINT) AS user"))
    count = rows.count()
    groups = Groups.of(["one"], {"top": "approx_top_k(user, 5, 1000)"})
    for each in (rows, rows.orderBy(F.desc("user")).repartition(3)):
        top = aggregate(groups.grouped(each), groups).collect()[0]["top"]
        assert [row["item"] for row in top] == [1, 2, 3, 4, 5]
        for row in top:
            assert abs(row["count"] - 10_000 // row["item"]) <= count * 3.5 / 1000


def test_a_distinct_count_by_sketch_does_not_depend_on_the_order_of_rows(spark: "SparkSession") -> None:
    rows = spark.range(30_000).selectExpr("1 AS one", "id % 9973 AS user")
    groups = Groups.of(["one"], {"users": "approx_count_distinct(user)"})
    counts = {
        aggregate(groups.grouped(each), groups).first()
        for each in (rows, rows.orderBy(F.desc("user")).repartition(7), rows.repartition(3))
    }
    assert len(counts) == 1


def test_only_the_columns_that_a_measure_mentions_count() -> None:
    columns = ["origin", "at", "delay_minutes", "delay", "weather"]
    used = {
        "count(*)": [],
        "avg(delay_minutes)": ["delay_minutes"],
        "sum(2 * DELAY)": ["delay"],
        "max(`delay` * delay_minutes)": ["delay_minutes", "delay"],
        "count_if(weather.wind > 3)": ["weather"],
        "count(DISTINCT *)": columns,
        "max(struct(delay, *))": columns,
        "max(weather.*)": columns,
        "count(*) + count(delay)": ["delay"],
    }
    for measure, expected in used.items():
        groups = Groups.of(["upper(origin) AS origin", window("at", "1 hour")], {"measure": measure})
        assert groups.used(columns) == [name for name in columns if name in {"origin", "at", *expected}], measure


by_product = gold.aggregate("by_product", source=priced, group_by=["product"], measures={"sales": "count(*)"})
revenue = gold.aggregate(
    "revenue", source=priced, group_by=["product"], measures={"revenue": "sum(pieces * price.price)"}
)


@pytest.fixture(scope="module")
def nine_sales(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Figures of nine sales, before the price of the last one changes."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("nine")).declare(by_product, revenue)
    lakehouse.publish("sales", *[{"id": f"{n}", "product": "tea", "sold_at": text(n), "pieces": 1} for n in range(9)])
    lakehouse.publish("prices", {"product": "tea", "changed_at": text(0), "price": 1}).run()
    return lakehouse


@pytest.fixture
def new_price(nine_sales: Lakehouse, tmp_path: "Path") -> Lakehouse:
    """These with a change that waits."""
    price = {"product": "tea", "changed_at": text(8), "price": 5}
    return nine_sales.copied_to(tmp_path).publish("prices", price)


def test_a_change_that_no_measure_looks_at_touches_no_group(new_price: Lakehouse) -> None:
    done = new_price.declare(by_product).run()
    assert done["silver.priced"].rows.updated == 1
    assert (done["gold.by_product"].cause, done["gold.by_product"].rows.total) == ("changes", 0)
    assert new_price.run() == {}


def test_a_measure_whose_columns_were_overlooked_goes_stale(
    new_price: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Groups, "used", lambda groups, columns: ["product"])
    new_price.declare(revenue).run()
    assert new_price.rows("gold.revenue") == [("tea", 9)], "the mutant sees no change"
    rebuilt(new_price, revenue)
    assert new_price.rows("gold.revenue") == [("tea", 13)]


def test_gold_follows_columns_whose_names_begin_or_end_with_a_sign(lakehouse: Lakehouse) -> None:
    """Of each product another one changes."""
    offers = silver.history(
        "offers",
        source=bronze.topic("offers"),
        schema="product string, changed_at timestamp, `rate_%` int, `€_price` int",
        keys=["product"],
        sequence_by="changed_at",
        stored_as_scd_type=1,
        future_tolerance="1000 days",
    )
    by_rate = gold.aggregate(
        "by_rate",
        source=offers,
        group_by=["product", "`rate_%` > 5 AS is_high"],
        measures={"rate_%_sum": "sum(`rate_%`)", "€_max": "max(`€_price`)"},
    )
    lakehouse.declare(by_rate)
    products = ["coffee", "milk", "tea"]
    for hour, (rates, prices) in enumerate([((10, 10, 10), (1, 1, 1)), ((20, 10, 1), (1, 7, 1))]):
        rows = list(zip(products, rates, prices, strict=True))
        lakehouse.publish(
            "offers",
            *[
                {"product": product, "changed_at": text(1 + hour), "rate_%": rate, "€_price": price}
                for product, rate, price in rows
            ],
        )
        cause = lakehouse.run()["gold.by_rate"].cause
        assert cause == ("changes" if hour else "first build")
        assert lakehouse.rows("gold.by_rate") == [(product, rate > 5, rate, price) for product, rate, price in rows]
    assert rebuilt(lakehouse, by_rate) == 0
