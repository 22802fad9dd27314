"""Measures that are adjusted by what was added and removed are those of all rows; where they cannot be, it is said."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.engine.evaluation import Evaluation
from sluice.shapes import increment
from sluice.shapes.aggregate import Groups, aggregate
from sluice.windows import sliding_window, window
from tests.kit import Lakehouse, text
from tests.shop import priced

columns = "g string, at timestamp, n bigint, small int, d decimal(12,2), s string, b boolean"
measures = {
    "rows": "count(*)",
    "values": "count(n)",
    "ones": "count(1)",
    "true": "count_if(b)",
    "total": "sum(n)",
    "twice": "sum(small * 2)",
    "amount": "sum(d)",
    "least": "min(n)",
    "greatest": "max(s)",
    "first": "min(at)",
    "any": "max(b)",
}
# Sum and count of the same, and of the largest numbers also the extremes, say what the average is.
averages = {
    "rows": "count(*)",
    "mean": "avg(n)",
    "values": "count(n)",
    "total": "sum( n )",
    "least": "min(n)",
    "most": "max(n)",
    "small_mean": "avg(small)",
    "small_values": "count(small)",
    "small_total": "sum(small)",
    "amount_mean": "avg(d)",
    "amounts": "count(d)",
    "amount": "sum(d)",
}
# Longer decimals have no average that follows from sum and count.
means_up_to = 22
Row = tuple[object, ...]


def drawn_row(chance: random.Random, group: str) -> Row:
    """Few values, so that rows are equal, extremes are shared, and groups without a value are common."""

    def maybe(value: object) -> object:
        return None if chance.random() < 0.4 else value

    at = f"2026-03-0{chance.randint(1, 2)}T{chance.choice(['00', '23'])}:59:59"
    return (
        None if group == "none" else group,
        maybe(at),
        maybe(chance.choice([-3, 0, 1, 2**53 - 1, 2**60, -(2**60)])),
        maybe(chance.randint(-2, 2)),
        maybe(Decimal(chance.choice(["0.01", "-5.55", "1000.00"]))),
        maybe(chance.choice(["", "a", "Ä", "`${x}`"])),
        maybe(chance.random() < 0.5),
    )


def before_and_after() -> tuple[list[Row], list[Row], list[Row]]:
    """The rows of many groups, and those that are removed and added: often none of one, sometimes all of one."""
    chance = random.Random(1)
    kept: list[Row] = []
    removed: list[Row] = []
    added: list[Row] = []
    for number in range(480):
        group = "none" if number == 0 else f"g{number}"
        rows = [drawn_row(chance, group) for _ in range(chance.randint(0, 3))]
        share = chance.choice([0, 0, 0.5, 1])
        leaving = [each for each in rows if chance.random() < share]
        removed += leaving
        kept += [each for each in rows if each not in leaving]
        added += [drawn_row(chance, group) for _ in range(chance.choice([0, 0, 1, 2]))]
    return kept + [each for each in removed if each not in kept], added, removed


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    texts = columns.replace("at timestamp", "at string")
    return spark.createDataFrame(rows, texts).selectExpr(
        "g", "CAST(at AS timestamp) AS at", "n", "small", "d", "s", "b"
    )


def feed(spark: SparkSession, added: list[Row], removed: list[Row]) -> DataFrame:
    inserts = frame(spark, added).selectExpr("*", "'insert' AS _change_type")
    return inserts.unionByName(frame(spark, removed).selectExpr("*", "'delete' AS _change_type"))


def shaped(groups: Groups, df: DataFrame) -> DataFrame:
    grouped = groups.grouped(df)
    return aggregate(groups.window.place(grouped, tuple(groups.expressions)) if groups.window else grouped, groups)


def by_key(df: DataFrame, groups: Groups) -> dict[Row, dict[str, Any]]:
    rows = [each.asDict() for each in df.collect()]
    found = {tuple(each[name] for name in groups.columns): each for each in rows}
    assert len(found) == len(rows)
    return found


by_column = Groups.of(["g"], measures)
# Nothing says how many rows a group has.
uncounted = Groups.of(["g"], {name: text for name, text in measures.items() if name != "rows"})
averaged = Groups.of(["g"], averages)
# Some groups are not shown, until they have more rows, or fewer.
shown = Groups.of(["g"], averages, having="rows <> 2")
by_hour = Groups.of(["g", window("at", "1 hour", every="30 minutes")], measures)
groupings = {"columns": by_column, "uncounted": uncounted, "windows": by_hour, "averages": averaged, "having": shown}


@dataclass(frozen=True)
class World:
    """A table before a change of its input, the change, and what all rows give after it."""

    groups: Groups
    own: DataFrame
    changes: DataFrame
    right: dict[Row, dict[str, Any]]


@pytest.fixture(scope="module")
def worlds(spark: SparkSession) -> Callable[[str], World]:
    """The same rows and changes by each of the groupings; what no rule of an increment decides is computed once."""
    # A row is there once, as in a table with a grain.
    rows, added, removed = before_and_after()
    rows = list(dict.fromkeys(rows))
    left = [each for each in rows if each not in removed]
    added = [each for each in dict.fromkeys(added) if each not in left]
    changes = feed(spark, added, list(dict.fromkeys(removed)))

    @cache
    def of(grouping: str) -> World:
        groups = groupings[grouping]
        own = shaped(groups, frame(spark, rows)).localCheckpoint()
        return World(groups, own, changes, by_key(shaped(groups, frame(spark, left + added)), groups))

    return of


def compared(world: World) -> tuple[int, int]:
    """How many groups were adjusted, and how many are to be recomputed; those that were adjusted are right."""
    found = world.groups.adjusted(world.changes, world.own)
    assert found is not None
    now = by_key(found, world.groups)
    known = {key: row for key, row in now.items() if row.pop(increment.is_known)}
    assert known == {key: row for key, row in world.right.items() if key in known}
    unknown = set(now) - set(known)
    assert set(world.right) - set(known) <= unknown
    return len(known), len(unknown)


@pytest.mark.parametrize("grouping", groupings)
def test_groups_are_adjusted_to_what_all_their_rows_give(worlds: Callable[[str], World], grouping: str) -> None:
    known, unknown = compared(worlds(grouping))
    assert known > 40
    assert unknown > 0


mutants: Mapping[str, tuple[type[increment.Measure], str, str]] = {
    "an extreme that left is kept": (increment.Extreme, "holds", "true"),
    "a sum without values is 0": (increment.Sum, "holds", "true"),
    "a group without rows has a sum": (increment.Sum, "shows_rows", "true"),
    "a count forgets what it was": (increment.Count, "value", "0L"),
    "an average of numbers that are too large": (increment.Average, "holds", "true"),
}


@pytest.mark.parametrize("name", mutants)
def test_a_measure_that_forgets_something_is_found(worlds: Callable[[str], World], name: str) -> None:
    rule, attribute, said = mutants[name]
    telling = [worlds(grouping) for grouping in ("columns", "uncounted", "averages")]
    with mock.patch.object(rule, attribute, said), pytest.raises(AssertionError):
        [compared(world) for world in telling]


def decimals_compared(spark: SparkSession, precision: int, scale: int) -> None:
    """Of rows of which some have no value; in some groups only such rows change."""
    chance, kind = random.Random(precision), f"decimal({precision},{scale})"

    def drawn(group: int, number: int) -> tuple[int, int, Decimal | None]:
        digits = chance.randrange(10**precision) // 10 ** chance.choice([0, 2, precision // 2])
        has_value = group % 4 and chance.random() < 0.8
        return group, number, Decimal(chance.choice([-1, 1]) * digits).scaleb(-scale) if has_value else None

    rows = [drawn(group, number) for group in range(40) for number in range(chance.randrange(1, 60))]
    rows += [(group, 99, Decimal(1).scaleb(-scale)) for group in range(0, 40, 4)]
    removed = [each for each in rows if each[1] < 60 and chance.random() < 0.1]
    added = [drawn(group, 100 + number) for group in range(40) for number in range(chance.randrange(3))]
    kept = [each for each in rows if each not in removed]
    before, after, leaving, coming = [
        spark.createDataFrame(each, f"g int, id int, x {kind}") for each in (rows, [*kept, *added], removed, added)
    ]
    mean = {"values": "count(x)", "mean": "avg(x)"} if precision <= means_up_to else {}
    groups = Groups.of(["g"], {"rows": "count(*)", "total": "sum(x)", **mean})
    changes = coming.withColumn("_change_type", F.lit("insert")).unionByName(
        leaving.withColumn("_change_type", F.lit("delete"))
    )
    found = groups.adjusted(changes, shaped(groups, before))
    assert found is not None
    right = by_key(shaped(groups, after), groups)
    known = {key: row for key, row in by_key(found, groups).items() if row.pop(increment.is_known)}
    assert known == {key: row for key, row in right.items() if key in known}
    # An average of so many digits is known of a few rows only.
    assert len(known) > (30 if precision != means_up_to else 5)


@pytest.mark.parametrize(
    ("precision", "scale"), [(16, 10), (17, 8), (18, 10), (20, 20), (22, 3), (26, 7), (27, 0), (27, 10), (27, 27)]
)
def test_sums_of_decimals_keep_all_their_digits(spark: SparkSession, precision: int, scale: int) -> None:
    decimals_compared(spark, precision, scale)


def test_a_part_that_is_added_with_38_digits_is_found(spark: SparkSession) -> None:
    """The mutant of the test above: Spark rounds the sum, also where only rows without a value came."""
    usual: Any = vars(increment.Sum)["value"].fget
    rounded = mock.patch.object(increment.Sum, "value", property(lambda each: usual(replace(each, kind="bigint"))))
    with rounded, pytest.raises(AssertionError):
        decimals_compared(spark, 18, 10)


@pytest.mark.parametrize(
    "measure",
    [
        "sum(DISTINCT n)",
        "count(DISTINCT n)",
        "count(n, small)",
        "avg(n)",
        "sum(n) + 1",
        "sum(n) FILTER (WHERE n > 0)",
        "max_by(n, at)",
        "sum(n) / count(n)",
        "(sum(n))",
        "sum(ALL n)",
        "count(s.*)",
    ],
)
def test_what_only_all_rows_of_a_group_say_is_not_adjusted(measure: str) -> None:
    assert increment.measure_of("m", measure) is None


def test_fractions_are_added_up_again(spark: SparkSession) -> None:
    """Their sum depends on the order."""
    groups = Groups.of(["g"], {"total": "sum(CAST(n AS double))"})
    rows = frame(spark, [("a", None, 1, None, None, None, None)])
    assert groups.adjusted(feed(spark, [], []), shaped(groups, rows)) is None


def test_a_window_that_depends_on_other_rows_is_not_adjusted() -> None:
    assert not Groups.of(["g", sliding_window("at", "1 hour")], {"rows": "count(*)"}).is_adjustable
    assert Groups.of(["g"], {"rows": "count(*)"}).is_adjustable


least = gold.aggregate(
    "least", source=priced, group_by=["price.price"], measures={"sales": "count(*)", "pieces": "min(pieces)"}
)


def sale(number: int, hour: int, pieces: int) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea", "sold_at": text(hour), "pieces": pieces}


def price(hour: int, euro: int) -> dict[str, object]:
    return {"product": "tea", "changed_at": text(hour), "price": euro}


def read_again(lakehouse: Lakehouse) -> int:
    """How often a run computes rows of gold from the rows of their groups."""
    counted = mock.patch.object(
        Evaluation, "shaped_from_inputs", autospec=True, side_effect=Evaluation.shaped_from_inputs
    )
    with counted as shaped_again:
        lakehouse.run()
    return sum(each.args[0].dataset.name == "gold.least" for each in shaped_again.call_args_list)


@pytest.fixture(scope="module")
def twenty_sales(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that ran once; the least at the first price is that of hour 1, and one sale has the other price."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("twenty")).declare(least)
    lakehouse.publish("prices", price(0, 1), price(10, 1), price(20, 3))
    pieces = {hour: (hour - 1) ** 2 + 1 for hour in range(20)} | {21: 60}
    lakehouse.publish("sales", *[sale(hour, hour, count) for hour, count in pieces.items()]).run()
    return lakehouse


@pytest.fixture
def shop(twenty_sales: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    return twenty_sales.copied_to(tmp_path)


def by_price(lakehouse: Lakehouse) -> dict[int, tuple[int, int]]:
    """How many sales there were, and the least pieces of one."""
    return {each: (count, pieces) for each, count, pieces in lakehouse.rows("gold.least", "price", "sales", "pieces")}


def test_a_group_is_read_again_only_where_its_change_is_not_enough(shop: Lakehouse) -> None:
    shop.publish("sales", sale(22, 5, 50), sale(23, 25, 50))
    assert read_again(shop) == 0, "rows are added"
    shop.publish("prices", price(5, 2))
    assert read_again(shop) == 0, "rows leave, and the least stays"
    shop.publish("prices", price(1, 2))
    assert read_again(shop) == 1, "the least leaves"
    assert by_price(shop) == {1: (11, 2), 2: (10, 1), 3: (2, 50)}


def test_a_table_that_another_program_changed_is_recomputed_from_its_inputs(shop: Lakehouse) -> None:
    DeltaTable(shop.lake.path("gold.least")).update(predicate="price = 1", updates={"sales": "100"})
    shop.publish("sales", sale(22, 2, 5))
    assert read_again(shop) == 1
    shop.publish("sales", sale(23, 3, 6))
    assert read_again(shop) == 0
    assert by_price(shop) == {1: (22, 1), 3: (1, 60)}


def test_a_group_is_not_read_again_after_upkeep_of_its_table(shop: Lakehouse) -> None:
    DeltaTable(shop.lake.path("gold.least")).optimize.z_order(["sales"])
    known = shop.lake.last_commit("gold.least")
    assert known is not None
    assert known.version < shop.lake.newest_version("gold.least")
    shop.publish("sales", sale(22, 2, 5))
    assert read_again(shop) == 0
    table = DeltaTable(shop.lake.path("gold.least"))
    table.update(predicate="price = 3", updates={"sales": "100"})
    table.optimize.z_order(["sales"])
    shop.publish("sales", sale(23, 22, 4))
    assert read_again(shop) == 1, "another program changed it before the upkeep"
    assert by_price(shop) == {1: (21, 1), 3: (2, 4)}


def test_zeros_of_either_sign_are_changes_of_each_other(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    values = silver.events("values", source=bronze.topic("values"), schema="id string, g string, x double", keys=["id"])
    negative = "CAST(x AS string) = '-0.0'"
    zeros = gold.aggregate(
        "zeros",
        source=values,
        group_by=["g"],
        measures={"negative": f"count(IF({negative}, 1, NULL))", "most": "max(CAST(x AS string))"},
    )
    lakehouse.declare(zeros).publish("values", {"id": "a", "g": "g", "x": 0.0}, {"id": "b", "g": "h", "x": 1.0}).run()
    for number in range(2):
        lakehouse.publish("values", {"id": f"n{number}", "g": "g", "x": -0.0}).run()
        assert lakehouse.rows("gold.zeros", "g", "negative", "most") == [("g", number + 1, "0.0"), ("h", 0, "1.0")]
    assert lakehouse.changed_by_rebuild() == {}


def test_a_value_that_came_and_went_before_gold_looked_is_no_extreme(lakehouse: Lakehouse) -> None:
    rows = silver.history(
        "rows",
        source=bronze.topic("rows"),
        schema="id string, n int, x int, w double",
        keys=["id"],
        sequence_by="n",
        stored_as_scd_type=1,
    )
    measures = {"least": "min(x)", "most": "max(x)", "rows": "count(*)", "total": "sum(ALL x)", "all": "count(ALL x)"}
    extremes = {name: measures[name] for name in ("least", "most", "rows")}
    tables = [
        gold.aggregate(f"{name}_{of}", source=rows, where=where, group_by=["w > 0 AS g"], measures=each)
        for name, each in (("extremes", extremes), ("all", measures))
        for of, where in (("some", "w > 0"), ("any", ""))
    ]

    def publish(name: str, n: int, x: int) -> None:
        lakehouse.publish("rows", {"id": name, "n": n, "x": x, "w": 1.5})

    for name, x in (("a", 5), ("b", 1), ("c", 3)):
        publish(name, 1, x)
    lakehouse.declare(*tables).run()
    # Gold is behind by several commits: it was blocked, or a run was killed.
    lakehouse.declare(rows)
    for n, x in ((2, 100), (3, -100), (4, 1)):
        publish("b", n, x)
        lakehouse.run()
    lakehouse.declare(*tables).run()
    for of in ("some", "any"):
        assert lakehouse.rows(f"gold.extremes_{of}", "least", "most", "rows") == [(1, 5, 3)], of
        assert lakehouse.rows(f"gold.all_{of}", "least", "most", "total", "all") == [(1, 5, 9, 3)], of
    assert lakehouse.changed_by_rebuild() == {}


def test_text_that_is_not_utf8_is_replaced_by_spark(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    values = silver.events("values", source=bronze.topic("values"), schema="id string, g string, x binary", keys=["id"])
    texts = gold.aggregate(
        "texts", source=values, group_by=["g"], measures={"n": "count(*)", "most": "max(CAST(x AS string))"}
    )
    copied = gold.view("copied", inputs={"texts": texts}, keys=["g"], shape=lambda texts: texts, grain=["g"])
    lakehouse.declare(copied)
    lakehouse.publish("values", *[{"id": f"{g}0", "g": g, "x": "YQ=="} for g in "abc"]).run()
    # The byte 0xff.
    lakehouse.publish("values", {"id": "a1", "g": "a", "x": "/w=="}).run()
    rows = {"a": 2, "b": 1, "c": 1}
    # Its own row has such a text, and then another one of the file.
    for number, group in enumerate("ab"):
        lakehouse.publish("values", {"id": f"n{number}", "g": group, "x": "YQ=="}).run()
        rows[group] += 1
        expected = [(each, count, "FF" if each == "a" else "61") for each, count in rows.items()]
        assert counted(lakehouse) == {"gold.texts": expected, "gold.copied": expected}
    lakehouse.run(rebuild=True)
    assert counted(lakehouse) == {"gold.texts": expected, "gold.copied": expected}


def counted(lakehouse: Lakehouse) -> dict[str, list[Row]]:
    """The groups of both tables, with the bytes of their greatest text."""
    return {
        name: sorted(tuple(row) for row in lakehouse.table(name).selectExpr("g", "n", "hex(most)").collect())
        for name in ("gold.texts", "gold.copied")
    }
