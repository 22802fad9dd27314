"""Replays: tables recomputed beside the live ones, compared, promoted and rolled back."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import Project, bronze, gold, scaffold, silver
from sluice.api.driver import attended
from sluice.engine.backfill import BackfillRange
from sluice.engine.runner import Runner
from sluice.errors import SluiceError, UsageError
from sluice.log import Record
from sluice.model.datasets import Dataset
from sluice.operate import replay as replaying
from sluice.operate import requests
from sluice.silver.history import HistoryOfChanges
from sluice.storage.delta import Lake, writer
from sluice.windows import window
from tests.damage import computed_wrong, damage, double
from tests.kit import Lakehouse, Row, at, clock_off_by, disk_full_at, text
from tests.shop import priced, prices, sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def daily(measure: str = "sum(pieces * price.price)", **more: str) -> Dataset:
    return gold.aggregate(
        "revenue",
        source=priced,
        group_by=["product", window("sold_at", "1 day")],
        measures={"revenue": measure, **more},
    )


revenue = daily()
tenfold = daily("sum(pieces * price.price * 10)")
counted = gold.aggregate(
    "counted", source=sales, group_by=["product"], measures={"n": "count(*)", "sum": "sum(pieces)"}
)
by_product = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id string, product string, sold_at timestamp, pieces int",
    keys=["product"],
)


def sale(number: int, hours: float, product: str = "tea", pieces: int = 1) -> dict[str, object]:
    return {"id": f"s{number}", "product": product, "sold_at": text(hours), "pieces": pieces}


def price(hours: float, amount: int, product: str = "tea") -> dict[str, object]:
    return {"product": product, "changed_at": text(hours), "price": amount}


@pytest.fixture(scope="module")
def opened_shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Four sales on two days at two prices, one of them delivered twice."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("shop")).declare(revenue)
    lakehouse.publish("prices", price(0, 2), price(24, 3), price(0, 5, "coffee"))
    lakehouse.publish("sales", sale(1, 1), sale(2, 2, pieces=2), sale(3, 25), sale(4, 26, "coffee"), sale(1, 1))
    lakehouse.run()
    return lakehouse


@pytest.fixture
def shop(opened_shop: Lakehouse, tmp_path: Path) -> Lakehouse:
    return opened_shop.copied_to(tmp_path)


@pytest.fixture(scope="module")
def shown(opened_shop: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, Any]:
    """The shop, in which ten times its revenue is declared, and a replay of that, built."""
    lakehouse = opened_shop.copied_to(tmp_path_factory.mktemp("shown")).declare(tenfold)
    return lakehouse, build(lakehouse)


@pytest.fixture(scope="module")
def opened_counter(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Three sales on two days, counted, and with their prices."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("counter")).declare(counted, priced)
    lakehouse.publish("prices", price(0, 2))
    lakehouse.publish("sales", sale(1, 1, "cup"), sale(2, 2, pieces=2), sale(3, 25), key="k").run()
    return lakehouse


@pytest.fixture
def counter(opened_counter: Lakehouse, tmp_path: Path) -> Lakehouse:
    return opened_counter.copied_to(tmp_path)


def build(lakehouse: Lakehouse, *names: str, part: BackfillRange | None = None) -> Any:
    """A replay, built."""
    planned = replaying.plan(lakehouse.lake, lakehouse.catalogue, names, part, "a test")
    for _ in replaying.build(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, planned):
        pass
    return replaying.find(lakehouse.lake, planned.name)


def differing(replay: Any) -> dict[str, tuple[int, int, int]]:
    """The rows that would be inserted, updated and deleted, of each table in which there are some."""
    found = {each.dataset: (each.inserted, each.updated, each.deleted) for each in replay.compared}
    return {dataset: counts for dataset, counts in found.items() if any(counts)}


def promote(lakehouse: Lakehouse, replay: Any) -> dict[str, int]:
    changed = replaying.promote(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, replay.name)
    return {name: rows.total for name, rows in changed.items() if rows.total}


def revenues(lakehouse: Lakehouse) -> list[Row]:
    return lakehouse.rows("gold.revenue", "product", "window_start", "revenue")


def rebuilt(lakehouse: Lakehouse) -> dict[str, list[Row]]:
    """What all tables hold when everything is computed from bronze."""
    lakehouse.run(rebuild=True)
    return {name: lakehouse.rows(name) for name in lakehouse.lake.tables()}


def test_a_replay_of_what_is_right_finds_nothing_and_commits_nothing(shop: Lakehouse) -> None:
    before = shop.versions()
    replay = build(shop, "silver.sales", "silver.prices_changes")
    assert replay.tables == ("silver.sales", "silver.prices_changes", "silver.prices", "silver.priced", "gold.revenue")
    assert differing(replay) == {}
    assert promote(shop, replay) == {}
    assert shop.versions() == before
    assert shop.run() == {}


def test_a_changed_declaration_is_held_compared_and_promoted(
    opened_shop: Lakehouse, shown: tuple[Lakehouse, Any], tmp_path: Path
) -> None:
    before, replay = opened_shop.versions(), shown[1]
    shop = shown[0].copied_to(tmp_path)
    assert shop.versions() == before
    (held,) = shop.runner(hold_changed=True).until_caught_up()
    assert (held.name, held.held, held.is_effective) == ("gold.revenue", True, False)

    assert (replay.datasets, replay.changed) == (("gold.revenue",), ("gold.revenue",))
    assert differing(replay) == {"gold.revenue": (0, 3, 0)}
    ((measure,),) = [each.measures for each in replay.compared]
    assert (measure.column, measure.rows, measure.mean_before, measure.mean_after) == ("revenue", 3, 14 / 3, 140 / 3)
    first = replay.compared[0].examples[0]
    assert (first.key["product"], first.before, first.after) == ("coffee", {"revenue": "5"}, {"revenue": "50"})
    assert shop.versions() == before
    assert revenues(shop) == [("coffee", 24.0, 5), ("tea", 0.0, 6), ("tea", 24.0, 3)]

    assert promote(shop, replay) == {"gold.revenue": 3}
    assert revenues(shop) == [("coffee", 24.0, 50), ("tea", 0.0, 60), ("tea", 24.0, 30)]
    assert shop.runner(hold_changed=True).until_caught_up() == []


def test_records_that_come_between_are_in_what_is_promoted(shown: tuple[Lakehouse, Any], tmp_path: Path) -> None:
    shop, replay = shown[0].copied_to(tmp_path), shown[1]
    # The runs go on by the declaration that has not changed for them yet.
    shop.declare(revenue)
    shop.publish("sales", sale(5, 3), sale(6, 50))
    shop.publish("prices", price(1.5, 4))
    shop.run()
    assert revenues(shop) == [("coffee", 24.0, 5), ("tea", 0.0, 14), ("tea", 24.0, 3), ("tea", 48.0, 3)]
    shop.publish("sales", sale(7, 51))

    shop.declare(tenfold)
    promote(shop, replay)
    assert revenues(shop) == [("coffee", 24.0, 50), ("tea", 0.0, 140), ("tea", 24.0, 30), ("tea", 48.0, 30)]
    shop.run()
    found = {name: shop.rows(name) for name in shop.lake.tables()}
    assert revenues(shop) == [("coffee", 24.0, 50), ("tea", 0.0, 140), ("tea", 24.0, 30), ("tea", 48.0, 60)]
    assert rebuilt(shop) == found


@dataclass(frozen=True)
class AllForOne(HistoryOfChanges):
    kind = "history, all for one"


def declare_cheaper_prices(shop: Lakehouse, shape: Any = None) -> None:
    cheaper = replace(prices, specification=AllForOne(**vars(prices.specification)), shape=shape or all_for_one)
    new_priced = replace(priced, inputs={**priced.inputs, "price": replace(priced.inputs["price"], source=cheaper)})
    new_revenue = replace(revenue, inputs={"rows": replace(revenue.inputs["rows"], source=new_priced)})
    shop.declare(new_revenue)


@pytest.fixture(scope="module")
def cheapened(opened_shop: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, Any]:
    """The shop, in which a replay with other prices was promoted."""
    lakehouse = opened_shop.copied_to(tmp_path_factory.mktemp("cheapened"))
    declare_cheaper_prices(lakehouse)
    replay = build(lakehouse)
    promote(lakehouse, replay)
    return lakehouse, replay


def test_a_change_in_silver_reaches_gold_in_the_same_promotion(
    cheapened: tuple[Lakehouse, Any], tmp_path: Path
) -> None:
    shop, replay = cheapened[0].copied_to(tmp_path), cheapened[1]
    assert replay.datasets == ("silver.prices",)
    assert differing(replay) == {"silver.prices": (0, 3, 0), "silver.priced": (0, 4, 0), "gold.revenue": (0, 3, 0)}
    assert revenues(shop) == [("coffee", 24.0, 1), ("tea", 0.0, 3), ("tea", 24.0, 1)]
    assert shop.run() == {}


def test_what_followed_another_table_is_not_rolled_back_by_itself(shop: Lakehouse) -> None:
    declare_cheaper_prices(shop, lambda rows, own: all_for_one(rows, own).withColumn("price", F.lit(1.5)))
    done = shop.run()
    assert (done["silver.prices"].cause, done["gold.revenue"].cause) == ("declaration changed", "input rebuilt")
    followed = [each for each in shop.catalogue.datasets if each.name == "gold.revenue"]
    with pytest.raises(SluiceError, match=r"gold\.revenue was recomputed because a table that it is made from was"):
        replaying.rollback(shop.spark, shop.lake, shop.catalogue, followed, "not wanted")


def all_for_one(rows: Any, own: Any) -> Any:
    """The prices as they were, all 1."""
    return prices.shape(rows, own).selectExpr(
        "product",
        "1 AS price",
        "valid_from",
        "valid_to",
        "is_current",
        "* EXCEPT (product, price, valid_from, valid_to, is_current)",
    )


def test_new_columns_are_promoted_and_rolled_back(shop: Lakehouse) -> None:
    before = revenues(shop)
    shop.declare(daily(sales="count(*)"))
    replay = build(shop)
    assert replay.compared[0].columns_added == ("sales",)
    promote(shop, replay)
    assert sum(count for (count,) in shop.rows("gold.revenue", "sales")) == 4
    assert shop.run() == {}

    replaying.rollback(shop.spark, shop.lake, shop.catalogue, shop.catalogue.datasets[-1:], "not wanted")
    assert "sales" not in shop.table("gold.revenue").columns
    assert revenues(shop) == before


def test_numbers_are_compared_although_their_type_changes(shop: Lakehouse) -> None:
    shop.declare(daily("CAST(2 * sum(pieces * price.price) AS decimal(20,2))"))
    (found,) = build(shop).compared
    assert (found.inserted, found.updated, found.deleted) == (0, 3, 0)
    assert (found.columns_added, found.columns_dropped) == ((), ())
    assert found.columns_retyped == ("revenue: bigint → decimal(20,2)",)
    ((column, before, after),) = [(each.column, each.mean_before, each.mean_after) for each in found.measures]
    assert (column, after) == ("revenue", 2 * before)


def test_a_type_that_changes_without_the_numbers_is_no_difference(shop: Lakehouse) -> None:
    shop.declare(daily("CAST(sum(pieces * price.price) AS decimal(20,2))"))
    (found,) = build(shop).compared
    assert (found.updated, found.measures) == (0, ())
    assert found.columns_retyped == ("revenue: bigint → decimal(20,2)",)


def test_after_a_rollback_the_old_declaration_goes_on_and_the_new_one_is_held(
    shown: tuple[Lakehouse, Any], tmp_path: Path
) -> None:
    shop, replay = shown[0].copied_to(tmp_path), shown[1]
    promote(shop, replay)
    assert replaying.promoted_by(shop.lake, replay) == ("gold.revenue",)
    replaying.rollback(shop.spark, shop.lake, shop.catalogue, [tenfold], "ten times too much")
    assert revenues(shop) == [("coffee", 24.0, 5), ("tea", 0.0, 6), ("tea", 24.0, 3)]

    shop.publish("sales", sale(5, 3))
    assert shop.run()["gold.revenue"].held
    assert revenues(shop) == [("coffee", 24.0, 5), ("tea", 0.0, 6), ("tea", 24.0, 3)]
    with pytest.raises(SluiceError, match="already rolled back"):
        replaying.rollback(shop.spark, shop.lake, shop.catalogue, [tenfold], "once more")

    shop.declare(revenue)
    assert shop.run()["gold.revenue"].rows.updated == 1
    assert revenues(shop) == [("coffee", 24.0, 5), ("tea", 0.0, 8), ("tea", 24.0, 3)]
    assert shop.run() == {}
    # Deploying the new one again is intended.
    shop.declare(tenfold)
    assert shop.run()["gold.revenue"].cause == "declaration changed"


first_day = BackfillRange(since=at(0), until=at(24))
damages = {
    "silver.sales": (
        "DELETE WHERE id = 's2'",
        "UPDATE SET pieces = 99 WHERE id = 's5'",
        "UPDATE SET id = 'nobody' WHERE id = 's6'",
    ),
    "silver._fates": ("DELETE",),
    "silver.priced": ("UPDATE SET pieces = 99 WHERE id = 's1'", "DELETE WHERE id = 's5'"),
    "gold.revenue": ("UPDATE SET revenue = 99 WHERE product = 'tea'", "DELETE WHERE product = 'milk'"),
}


@pytest.fixture(scope="module")
def damaged(opened_shop: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, dict[str, list[Row]]]:
    """The shop after some sales more and the damages, and what its tables had before these."""
    lakehouse = opened_shop.copied_to(tmp_path_factory.mktemp("damaged"))
    lakehouse.publish("sales", sale(5, 3), sale(6, 4, "milk"))
    lakehouse.run()
    right = {name: lakehouse.rows(name) for name in lakehouse.lake.tables()}
    for table, changes in damages.items():
        for change in changes:
            where = " AND window_start = '2026-01-01T00:00:00Z'" if table == "gold.revenue" else ""
            damage(lakehouse.lake, table, change + where)
        assert lakehouse.rows(table) != right[table]
    return lakehouse, right


@pytest.mark.parametrize("is_cloned", [False, True], ids=["copied", "cloned"])
def test_a_damaged_part_is_put_right(
    damaged: tuple[Lakehouse, dict[str, list[Row]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_cloned: bool,
) -> None:
    """Also where the tables are cloned, as large ones are, and not copied."""
    if is_cloned:
        monkeypatch.setattr(writer, "is_read_by_driver", lambda *_: False)
    shop, right = damaged[0].copied_to(tmp_path), damaged[1]
    replay = build(shop, part=first_day)
    assert differing(replay) == {"silver.sales": (2, 1, 1), "silver.priced": (1, 1, 0), "gold.revenue": (1, 1, 0)}
    # What is damaged meanwhile, in a row that the shadow never wrote, is put right as well.
    damage(shop.lake, "silver.priced", "UPDATE SET pieces = 55 WHERE id = 's3'")
    promote(shop, replay)
    assert {name: shop.rows(name) for name in shop.lake.tables()} == right
    # A part says nothing of other rows, so the run looks at all of them, and finds them right.
    done = shop.run()
    assert {event.cause for event in done.values()} == {"altered"}
    assert not any(event.rows.total for event in done.values())


def test_a_part_is_not_promoted_while_a_run_is_half_done(shop: Lakehouse) -> None:
    """The fates that the run left would be taken for those of the rows."""
    expected = shop.declare(sales).fates()
    replay = build(shop, part=first_day)
    with disk_full_at("silver.sales"), pytest.raises(OSError, match="No space left"):
        shop.declare(by_product).run()
    shop.declare(sales)
    assert shop.fates() != expected
    with pytest.raises(SluiceError, match="a run ended in the middle of its commit"):
        promote(shop, replay)
    assert shop.run()["silver.sales"].cause == "unfinished"
    assert shop.fates() == expected
    with pytest.raises(SluiceError, match="sales was repaired since the replay"):
        promote(shop, replay)
    promote(shop, build(shop, part=first_day))
    assert shop.fates() == expected


def test_a_repair_is_not_taken_back_by_a_part_that_was_copied_before_it(counter: Lakehouse) -> None:
    counter.declare(counted)
    computed_wrong(counter.lake, "silver.sales", "UPDATE SET pieces = 99 WHERE id = 's3'")
    counter.publish("sales", sale(5, 25)).run()
    before = build(counter, part=first_day)
    # A table on hold has not seen the repair.
    twice = gold.aggregate("counted", source=sales, group_by=["product"], measures={"n": "2 * count(*)"})
    counter.declare(twice)
    list(counter.runner(hold_changed=True).until_caught_up(rebuild=True))
    right = counter.rows("silver.sales")
    assert ("s3", 1) in counter.rows("silver.sales", "id", "pieces")
    counter.declare(counted)
    with pytest.raises(SluiceError, match="sales was repaired since the replay"):
        promote(counter, before)
    counter.declare(twice)
    promote(counter, build(counter, "silver.sales", part=first_day))
    assert counter.rows("silver.sales") == right


def test_a_repair_is_not_taken_back_though_the_clock_was_ahead_when_the_replay_began(
    counter: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = counter.declare(counted).rows("gold.counted")
    damage(counter.lake, "gold.counted", "DELETE WHERE product = 'tea'")
    with monkeypatch.context() as ahead:
        ahead.setattr(replaying, "datetime", clock_off_by(1))
        replay = build(counter, "silver.sales")
    assert replay.created_at > datetime.now(UTC)
    assert counter.run()["gold.counted"].cause == "altered"
    with pytest.raises(SluiceError, match=r"gold\.counted was repaired since the replay"):
        promote(counter, replay)
    assert counter.rows("gold.counted") == right


def test_fates_are_rolled_back_though_the_clock_was_ahead_when_they_were_committed(shop: Lakehouse) -> None:
    shop.declare(sales).publish("sales", {"id": "bad", "product": "tea", "sold_at": text(1), "pieces": "two"})
    shop.run()
    right, rows = shop.fates(), shop.rows("silver.sales", "id")
    for table in ("silver.sales", "silver._fates"):
        commit_later(shop.lake, table, hours=1)
    in_text = silver.events(
        "sales",
        source=bronze.topic("sales"),
        schema="id string, product string, sold_at timestamp, pieces string",
        keys=["id"],
        event_time="sold_at",
        future_tolerance="1000 days",
    )
    shop.declare(in_text).run()
    assert shop.fates() != right
    replaying.rollback(shop.spark, shop.lake, shop.catalogue, [in_text], "whole pieces only")
    assert (shop.fates(), shop.rows("silver.sales", "id")) == (right, rows)


def commit_later(lake: Lake, table: str, hours: int) -> None:
    """As if the clock had been ahead when the newest version of a table was committed."""
    logs = sorted(Path(lake.path(table), "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in logs[-1].read_text().splitlines()]
    for each in actions:
        if "commitInfo" in each:
            each["commitInfo"]["timestamp"] += hours * 3_600_000
    logs[-1].write_text("".join(json.dumps(each) + "\n" for each in actions))


def forget_silver(shop: Lakehouse) -> None:
    shutil.rmtree(shop.lake.path("silver.sales"))
    shop.run()


def declare_and_restore(shop: Lakehouse) -> None:
    shop.declare(by_product).run()
    shop.declare(sales).run()


@pytest.fixture(scope="module")
def beside_damage(opened_shop: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, Any]:
    """The shop with a damaged row, and a replay of a part that this row is not in, built."""
    lakehouse = opened_shop.copied_to(tmp_path_factory.mktemp("beside"))
    damage(lakehouse.lake, "silver.sales", "UPDATE SET pieces = 99 WHERE id = 's3'")
    return lakehouse, build(lakehouse, part=first_day)


def test_damage_outside_of_the_part_is_left_alone(beside_damage: tuple[Lakehouse, Any]) -> None:
    assert differing(beside_damage[1]) == {}


@pytest.mark.parametrize("heal", [forget_silver, declare_and_restore])
def test_what_healed_a_table_in_any_way_is_not_taken_back(
    opened_shop: Lakehouse, beside_damage: tuple[Lakehouse, Any], tmp_path: Path, heal: Callable[[Lakehouse], None]
) -> None:
    right = opened_shop.rows("silver.sales", "id", "pieces")
    shop, replay = beside_damage[0].copied_to(tmp_path), beside_damage[1]
    assert shop.rows("silver.sales", "id", "pieces") != right
    heal(shop.declare(sales))
    shop.declare(revenue)
    with pytest.raises(SluiceError, match="was repaired since the replay"):
        promote(shop, replay)
    assert shop.rows("silver.sales", "id", "pieces") == right


def test_what_a_replay_mends_counts_once_in_tables_that_never_saw_the_damage(counter: Lakehouse) -> None:
    """The copy has the damage, and the tables that are made from it do not."""
    right = {name: counter.rows(name) for name in ("silver.sales", "silver.priced", "gold.counted")}
    # Of one product a row is gone, and of the other one is wrong.
    damage(counter.lake, "silver.sales", "DELETE WHERE id = 's1'")
    damage(counter.lake, "silver.sales", "UPDATE SET pieces = 99 WHERE id = 's2'")
    promote(counter, build(counter, "silver.sales", part=first_day))
    assert {name: counter.rows(name) for name in right} == right
    counter.run()
    assert {name: counter.rows(name) for name in right} == right


def test_a_damaged_row_that_comes_again_before_a_promotion_counts_once(counter: Lakehouse) -> None:
    right = {name: counter.rows(name) for name in ("silver.sales", "silver.priced", "gold.counted")}
    damage(counter.lake, "silver.sales", "DELETE WHERE id = 's3'")
    damage(counter.lake, "silver.sales", "UPDATE SET pieces = 99 WHERE id = 's2'")
    replay = build(counter, "silver.sales", part=first_day)
    counter.publish("sales", sale(3, 25), key="k")
    promote(counter, replay)
    counter.run()
    assert [row[:4] for row in counter.rows("silver.priced")] == [row[:4] for row in right["silver.priced"]]
    assert counter.rows("gold.counted") == right["gold.counted"]


def test_rows_that_are_there_twice_are_mended_by_a_replay_of_all_and_refused_by_one_of_a_part(shop: Lakehouse) -> None:
    columns = shop.declare(priced).table("silver.priced").columns
    right = shop.rows("silver.priced", *columns)
    double(shop.lake, "silver.priced", id="s1")
    with pytest.raises(SluiceError, match=r"has rows twice\. Repair it first: sluice run --rebuild silver\.priced"):
        build(shop, "silver.priced", part=first_day)
    promote(shop, build(shop, "silver.priced"))
    assert shop.rows("silver.priced", *columns) == right
    assert {name: event.rows.total for name, event in shop.run().items()} == {"silver.priced": 0}
    assert shop.run() == {}
    assert shop.rows("silver.priced", *columns) == right


pieces_of_id = gold.aggregate("pieces", source=sales, group_by=["product", "id"], measures={"pieces": "sum(pieces)"})
pieces_of_product = gold.aggregate(
    "pieces", source=sales, group_by=["product"], measures={"id": "max(id)", "pieces": "sum(pieces)"}
)
per_id = [("coffee", "s4", 1), ("tea", "s1", 1), ("tea", "s2", 2), ("tea", "s3", 1)]
per_product = [("coffee", "s4", 1), ("tea", "s3", 4)]


def pieces(lakehouse: Lakehouse) -> list[Row]:
    return lakehouse.rows("gold.pieces", "product", "id", "pieces")


def test_rows_of_another_key_are_replaced_and_not_compared(shop: Lakehouse) -> None:
    for declared, expected in [(pieces_of_id, per_id), (pieces_of_product, per_product), (pieces_of_id, per_id)]:
        shop.declare(declared).run()
        assert pieces(shop) == expected
        assert [each for each in shop.laws() if not each.balanced] == []
    shop.declare(by_product).run()
    assert len(shop.rows("silver.sales")) == 2
    assert shop.audit()["silver.sales"].balanced
    assert shop.changed_by_rebuild() == {}


def test_rows_of_another_key_are_promoted_and_rolled_back(shop: Lakehouse) -> None:
    shop.declare(pieces_of_id).run()
    shop.declare(pieces_of_product)
    replay = build(shop)
    assert differing(replay) == {"gold.pieces": (1, 0, 3)}
    promote(shop, replay)
    assert pieces(shop) == per_product
    assert shop.run() == {}
    replaying.rollback(shop.spark, shop.lake, shop.catalogue, [pieces_of_product], "groups too large")
    assert pieces(shop) == per_id
    shop.publish("sales", sale(5, 3, "coffee"))
    shop.declare(pieces_of_id).run()
    assert pieces(shop) == sorted([*per_id, ("coffee", "s5", 1)])
    assert [each for each in shop.laws() if not each.balanced] == []


def test_groups_by_other_columns_or_types_are_promoted_and_rolled_back(shop: Lakehouse, tmp_path: Path) -> None:
    def grouped(by: str) -> Dataset:
        return gold.aggregate("pieces", source=sales, group_by=[by], measures={"pieces": "sum(pieces)"})

    shop.declare(grouped("id")).run()
    others: list[tuple[str, tuple[str, ...], list[Row]]] = [
        ("product", ("product",), [("coffee", 1), ("tea", 4)]),
        ("day(sold_at) AS product", (), [(1, 3), (2, 2)]),
        ("id", ("id",), [("s1", 1), ("s2", 2), ("s3", 1), ("s4", 1)]),
    ]
    for by, columns, rows in others:
        before = shop.rows("gold.pieces")
        shop.declare(grouped(by))
        replay = build(shop)
        assert differing(replay) == {"gold.pieces": (len(rows), 0, len(before))}
        assert replay.compared[-1].columns_added == columns
        promote(shop, replay)
        assert shop.rows("gold.pieces") == rows
        assert shop.run() == {}
        beside = shop.copied_to(tmp_path / f"by {by}")
        replaying.rollback(beside.spark, beside.lake, beside.catalogue, [grouped(by)], "a test")
        assert beside.rows("gold.pieces") == before
    # What was rolled back can be promoted again.
    promote(beside, build(beside, "gold.pieces"))
    for each in (shop, beside):
        assert each.rows("gold.pieces") == rows
        assert each.run() == {}
        assert each.changed_by_rebuild() == {}


def test_rows_of_another_key_that_are_compared_are_noticed(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare(pieces_of_id).run()
    monkeypatch.setattr("sluice.engine.plan.has_doubled", lambda df, grain: False)
    shop.declare(pieces_of_product).run()
    assert pieces(shop) != per_product
    assert [each.broken for each in shop.laws() if not each.balanced] == [2]


def test_a_part_is_also_named_by_its_records(shop: Lakehouse) -> None:
    shop.declare(sales)
    damage(shop.lake, "silver.sales", "UPDATE SET pieces = 99 WHERE id IN ('s2', 's3')")
    ((partition, offset),) = [
        place for name, *place in shop.rows("silver.sales", "id", "_partition", "_offset") if name == "s3"
    ]
    part = BackfillRange.of(None, None, [f"sales/{partition}/{offset}"])
    replay = build(shop, "silver.sales", part=part)
    assert differing(replay) == {"silver.sales": (0, 1, 0)}
    promote(shop, replay)
    assert shop.rows("silver.sales", "id", "pieces") == [("s1", 1), ("s2", 99), ("s3", 1), ("s4", 1)]


def test_what_a_changed_declaration_says_of_a_part_can_be_seen_but_not_promoted(shop: Lakehouse) -> None:
    shop.declare(tenfold)
    replay = build(shop, part=first_day)
    assert differing(replay) == {"gold.revenue": (0, 1, 0)}
    with pytest.raises(SluiceError, match="cannot follow two declarations"):
        promote(shop, replay)


def test_of_replays_that_begin_at_the_same_time_each_has_its_own_name(shop: Lakehouse) -> None:
    planned = [
        replaying.plan(shop.lake, shop.catalogue, [name], None, name) for name in ("gold.revenue", "silver.sales")
    ]
    same = planned[1].model_copy(update={"name": planned[0].name})
    first, second = replaying.begun(shop.lake, planned[0]), replaying.begun(shop.lake, same)
    assert [first.name, second.name] == [planned[0].name, f"{planned[0].name}-2"]
    assert [each.because for each in replaying.replays(shop.lake)] == ["gold.revenue", "silver.sales"]


def test_what_a_replay_that_broke_off_left_can_be_dropped(shop: Lakehouse) -> None:
    """Folders of tables without a file, as on a full disk; an erasure would wait for them."""
    left = Path(shop.lake.root, "_replays", "20260101-000000", "lake", "gold", "daily", "_delta_log")
    left.mkdir(parents=True)
    replaying.drop(shop.lake, "20260101-000000")
    assert shop.lake.files.folders("_replays") == []
    with pytest.raises(UsageError, match="There is no replay 20260101-000000"):
        replaying.drop(shop.lake, "20260101-000000")


def test_a_replay_that_fails_names_the_records_and_is_listed_as_failed(shop: Lakehouse) -> None:
    shop.declare(daily("sum(CAST(pieces * 2000000000L AS int))"))
    (record,) = [
        f"{topic}/{partition}/{offset}"
        for name, topic, partition, offset in shop.rows("silver.sales", "id", "_topic", "_partition", "_offset")
        if name == "s2"
    ]
    says = rf"gold.revenue cannot be computed. Spark failed: \[CAST_OVERFLOW\].* At product=tea, .* Records: {record}\."
    with pytest.raises(SluiceError, match=says):
        build(shop)
    (failed,) = replaying.replays(shop.lake)
    assert (failed.state, failed.compared) == ("failed", ())
    with pytest.raises(SluiceError, match=f"{failed.name} failed: .*{record}.* Start again"):
        promote(shop, failed)


def test_a_promotion_that_cannot_follow_new_records_names_them(shop: Lakehouse) -> None:
    billions = daily("sum(CAST(pieces * 1000000000L AS int))")
    replay = build(shop.declare(billions))
    shop.declare(revenue).publish("sales", sale(5, 3, pieces=3)).run()
    before = revenues(shop)
    shop.declare(billions)
    with pytest.raises(SluiceError, match=r"gold.revenue cannot be computed. .* Records: sales/\d/\d\."):
        promote(shop, replay)
    assert revenues(shop) == before
    (kept,) = replaying.replays(shop.lake)
    assert kept.state == "built"


def test_what_cannot_be_replayed_says_why(shop: Lakehouse) -> None:
    with pytest.raises(UsageError, match="No declaration changed"):
        build(shop)
    with pytest.raises(UsageError, match="There is no dataset"):
        build(shop, "gold.nothing")
    with pytest.raises(UsageError, match="There is no replay x"):
        replaying.promote(shop.spark, shop.lake, shop.catalogue, "x")
    with pytest.raises(UsageError, match="no dataset to be replayed is made from this topic; they read prices, sales"):
        build(shop, part=BackfillRange.of(None, None, ["sales/0/1", "others/0/1-2"]))
    ends = {number: shop.log.end_offset("sales", number) for number in range(2)}
    last = ", ".join(f"sales/{number}/{end - 1}" for number, end in ends.items() if end)
    for nowhere in ("sales/9/0-5", "sales/0/1000-1999"):
        with pytest.raises(UsageError, match=f"Nothing has landed at {nowhere}; the last records are {last}."):
            build(shop, part=BackfillRange.of(None, None, [nowhere]))
    for beyond in ("sales/0/0-99999999999999999999", "sales/99999999999/0"):
        with pytest.raises(UsageError, match="names no records"):
            BackfillRange.of(None, None, [beyond])
    assert replaying.replays(shop.lake) == []
    replay = build(shop, "gold.revenue")
    shop.declare(daily("count(*)"))
    with pytest.raises(SluiceError, match="changed since the replay"):
        promote(shop, replay)
    with pytest.raises(SluiceError, match="was not promoted or rebuilt"):
        replaying.rollback(shop.spark, shop.lake, shop.catalogue, [sales], "no reason")
    replaying.drop(shop.lake, replay.name)
    assert replaying.replays(shop.lake) == []


def dies_at_the_second(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> None:
    """Does something whose process dies when it calls a function for the second time."""
    whole = getattr(replaying, name)
    done: list[Any] = []

    def dies(*arguments: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(arguments)
        return whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, name, dies)
        with pytest.raises(KeyboardInterrupt):
            act()


def test_a_promotion_that_stopped_halfway_is_finished_by_the_next(
    counter: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter.declare(counted)
    right = {name: counter.rows(name) for name in ("silver.sales", "gold.counted")}
    damage(counter.lake, "silver.sales", "UPDATE SET pieces = 99 WHERE id = 's2'")
    damage(counter.lake, "gold.counted", "DELETE WHERE product = 'tea'")
    replay = build(counter, "silver.sales", "gold.counted")
    dies_at_the_second(monkeypatch, "promoted", lambda: promote(counter, replay))
    counter.run()
    promote(counter, replay)
    assert {name: counter.rows(name) for name in right} == right
    assert counter.run() == {}


def test_a_rollback_that_stopped_halfway_is_finished_by_the_next(
    opened_shop: Lakehouse,
    cheapened: tuple[Lakehouse, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = opened_shop.rows("silver.prices"), opened_shop.rows("silver.priced"), revenues(opened_shop)
    shop, replay = cheapened[0].copied_to(tmp_path), cheapened[1]
    replaced = [each for each in shop.catalogue.datasets if each.name in replaying.promoted_by(shop.lake, replay)]

    def roll_back() -> dict[str, int]:
        rows = replaying.rollback(shop.spark, shop.lake, shop.catalogue, replaced, "to see")
        return {name: each.total for name, each in rows.items()}

    dies_at_the_second(monkeypatch, "commit", roll_back)
    assert roll_back() == {"silver.prices": 0, "silver.priced": 4, "gold.revenue": 3}
    assert (shop.rows("silver.prices"), shop.rows("silver.priced"), revenues(shop)) == before
    with pytest.raises(SluiceError, match="already rolled back"):
        roll_back()


def test_the_driver_does_what_it_is_asked_by_the_declarations_as_they_are_now(
    spark: "SparkSession", tmp_path: Path
) -> None:
    scaffold.write(tmp_path)
    here = Project(tmp_path, spark=spark)._here
    for topic in ("products", "orders"):
        here.log.append(topic, [Record(line) for line in (tmp_path / f"{topic}.jsonl").read_bytes().splitlines()])
    runner = Runner(spark, here.lake, here.log, here.catalogue(), batch_records_max=1_000)
    runner.until_caught_up()

    declared = tmp_path / "pipelines" / "gold.py"
    declared.write_text(declared.read_text().replace('"sum(quantity)"', '"sum(quantity * 12)"'))
    planned = replaying.plan(here.lake, here.catalogue(), [], None, "dozens")
    assert list(replaying.build(spark, here.lake, here.catalogue(), planned)) == ["copying", "gold.revenue_daily"]

    assert attended(here, runner) is runner.catalogue, "nobody asked for anything"
    # What else another command asks for adopts no edited file.
    table = ("gold.revenue_daily",)
    others = [requests.Request(do="check", datasets=table), requests.Request(do="refresh", datasets=table)]
    asked = [requests.ask(here.lake.files, each) for each in others]
    assert attended(here, runner, flow=()) is runner.catalogue
    # A file that says what the tables are is followed.
    text = declared.read_text()
    declared.write_text(text.replace("quantity * 12", "quantity"))
    again = requests.ask(here.lake.files, others[0])
    assert attended(here, runner, flow=()) is not runner.catalogue
    requests.withdraw(here.lake.files, again)
    declared.write_text(text)
    _, refused = (next(each for each in requests.answered(here.lake.files, name) if each) for name in asked)
    assert "cannot follow two declarations" in (refused.error or "")
    asked = [
        requests.ask(here.lake.files, requests.Request(do="promote", replay=name))
        for name in (planned.name, "unheard-of")
    ]
    catalogue = attended(here, runner, flow=())
    answers = [next(each for each in requests.answered(here.lake.files, name) if each) for name in asked]
    assert answers[0] == requests.Answer(found={"gold.revenue_daily": 3})
    assert answers[1].error
    assert "There is no replay unheard-of" in answers[1].error
    assert here.lake.files.below("_requests") == []
    assert catalogue is not runner.catalogue
    assert replace(runner, catalogue=catalogue).until_caught_up() == []
