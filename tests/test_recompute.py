"""The audit by recomputing: rows that somebody falsified are found, and nothing else is."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice import bronze, gold, silver
from sluice.model.datasets import Dataset
from sluice.operate import recompute
from sluice.operate.recompute import Recomputed
from sluice.windows import session_window, window
from tests.damage import damage, double
from tests.kit import Lakehouse, text
from tests.shop import priced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sold = gold.aggregate(
    "sold",
    source=priced,
    group_by=["product", window("sold_at", "1 hour")],
    measures={"pieces": "sum(pieces)", "price": "max(price.price)"},
)
stock = silver.history_from_snapshots(
    "stock",
    source=bronze.topic("stock"),
    schema="item string, counted_at timestamp, shelf string, items int",
    keys=["item"],
    taken_at="counted_at",
    row_count="items",
)


@pytest.fixture(scope="module")
def shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that was refreshed incrementally, with duplicates and records set aside."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("shop")).declare(sold, stock)
    lakehouse.publish("prices", *[price(product, hour) for product in range(20) for hour in (0, 10)])
    lakehouse.publish("sales", *[sale(number) for number in range(200)], sale(7), b"no JSON")
    lakehouse.publish("stock", *[counted(item, hour) for hour in (1, 2) for item in range(10)])
    lakehouse.run()
    lakehouse.publish("sales", sale(300), sale(301))
    lakehouse.publish("prices", price(3, 5))
    lakehouse.run()
    return lakehouse


def price(product: int, hour: int) -> dict[str, object]:
    return {"product": f"p{product}", "changed_at": text(hour), "price": 100 * product + hour}


def sale(number: int) -> dict[str, object]:
    return {"id": f"s{number}", "product": f"p{number % 20}", "sold_at": text(number / 10), "pieces": number % 5}


def counted(item: int, hour: int) -> dict[str, object]:
    return {"item": f"i{item}", "counted_at": text(hour), "shelf": f"{item % 3}-{hour}", "items": 10}


def audited(lakehouse: Lakehouse, share: float, *names: str) -> dict[str, Recomputed]:
    """What is found of the named datasets, by default of all."""
    wanted = [each for each in lakehouse.catalogue.datasets if each.name in names or not names]
    return {each.dataset: each for each in recompute.recompute(lakehouse.spark, lakehouse.lake, wanted, share, 1)}


def wrong(found: dict[str, Recomputed]) -> dict[str, int]:
    return {name: each.wrong for name, each in found.items() if each.wrong}


def falsify(lakehouse: Lakehouse, *statements: tuple[str, str]) -> None:
    for table, statement in statements:
        damage(lakehouse.lake, table, statement)


ten_falsehoods = (
    ("silver.sales", "UPDATE SET pieces = 77 WHERE id = 's11'"),
    ("silver.sales", "DELETE WHERE id = 's12'"),
    ("silver._fates", "DELETE WHERE fate = 'quarantined'"),
    ("silver.prices_changes", "UPDATE SET price = price + 1 WHERE product = 'p4' AND price = 400"),
    ("silver.prices", "UPDATE SET valid_to = NULL, is_current = true WHERE product = 'p5' AND price = 500"),
    ("silver.prices", "DELETE WHERE product = 'p6' AND price = 610"),
    ("silver.priced", "UPDATE SET price = NULL WHERE id = 's21'"),
    ("silver.stock", "UPDATE SET shelf = 'nowhere' WHERE item = 'i1' AND is_current"),
    ("gold.sold", "UPDATE SET pieces = pieces + 1 WHERE product = 'p9' AND window_start = '2026-01-01T00:00:00Z'"),
    ("gold.sold", "DELETE WHERE product = 'p2' AND window_start = '2026-01-01T02:00:00Z'"),
)


def test_nothing_is_wrong_with_what_nobody_touched(shop: Lakehouse) -> None:
    for share in (0.2, 1.0):
        found = audited(shop, share)
        assert wrong(found) == {}
        assert {name for name, each in found.items() if each.rows == 0 or each.skipped} == set()


def test_each_of_ten_rows_falsified_by_hand_is_found(shop: Lakehouse, tmp_path: Path) -> None:
    lakehouse = shop.copied_to(tmp_path)
    falsify(lakehouse, *ten_falsehoods)
    # Each table is compared with its inputs as they are stored, so what is made from a falsified row is right.
    found = audited(lakehouse, 1.0)
    expected = {
        "silver.sales": 3,
        "silver.prices_changes": 1,
        "silver.prices": 2,
        "silver.priced": 1,
        "silver.stock": 1,
        "gold.sold": 2,
    }
    assert wrong(found) == expected
    (example, *_) = found["silver.stock"].examples
    assert (example.kind, example.key["item"]) == ("different", "i1")
    assert (example.stored, example.recomputed) == ({"shelf": "nowhere"}, {"shelf": "1-2"})
    assert {each.kind for each in found["silver.sales"].examples} == {"different", "missing"}
    assert found["gold.sold"].others == (
        "version 3 is DELETE by another program",
        "version 2 is UPDATE by another program",
    )
    # What changed last is always in the sample, however small that is.
    assert wrong(audited(lakehouse, 0.000001)) == expected


visits = gold.aggregate(
    "visits",
    source=silver.events(
        "views", source=bronze.topic("views"), schema="id string, at timestamp", keys=["id"], event_time="at"
    ),
    group_by=[session_window("at", gap="2 hours")],
    measures={"views": "count(*)"},
)


@pytest.fixture(scope="module")
def merged(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Sessions that have merged, and have grown."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("merged")).declare(visits)
    for hours in ([1, 2, 5, 6, 20], [3.5], [7, 7.5]):
        lakehouse.publish("views", *[{"id": f"v{hour}", "at": text(hour)} for hour in hours]).run()
    return lakehouse


@pytest.mark.parametrize("drawn", ["delete", "insert"])
def test_a_session_that_has_merged_with_others_is_compared_as_it_is_now_whichever_image_is_drawn(
    merged: Lakehouse, monkeypatch: pytest.MonkeyPatch, drawn: str
) -> None:
    monkeypatch.setattr(recompute, "change_columns", ())
    changed = recompute.recently_changed
    monkeypatch.setattr(
        recompute, "recently_changed", lambda *given: (df.where(f"_change_type = '{drawn}'") for df in changed(*given))
    )
    monkeypatch.setattr(recompute, "recently_touched", lambda *given: ())
    found = audited(merged, 0.000001, "gold.visits")["gold.visits"]
    assert (found.rows, found.wrong) == (1, 0)


def test_a_change_that_was_never_applied_is_found_by_its_input(
    shop: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakehouse = shop.copied_to(tmp_path)
    lakehouse.catalogue = lakehouse.catalogue.upstream_of(["gold.sold"])
    forgetful(monkeypatch, lakehouse.catalogue.datasets)
    lakehouse.publish("prices", price(2, 4), price(8, 6)).run()
    assert set(wrong(audited(lakehouse, 0.000001))) == {"silver.priced"}
    assert "rows that are there twice" not in {each.law for each in lakehouse.laws() if each.broken}


def forgetful(monkeypatch: pytest.MonkeyPatch, datasets: Sequence[Dataset]) -> None:
    """Breaks the scope of late dimension changes while a run goes on; the audit uses the true one."""
    (joined,) = [each for each in datasets if each.name == "silver.priced"]
    true_scope = joined.inputs["price"].scope
    calls = iter([True])

    def forget_once(changed: object, inputs: object) -> object:
        scope = true_scope(changed, inputs)  # type: ignore[arg-type]
        return scope.limit(0) if next(calls, False) else scope

    object.__setattr__(joined.inputs["price"], "scope", forget_once)
    monkeypatch.setattr("sluice.engine.touched.rebuild_share", 10)


def test_a_table_whose_declaration_changed_is_not_compared(shop: Lakehouse, tmp_path: Path) -> None:
    lakehouse = shop.copied_to(tmp_path)
    lakehouse.declare(
        gold.aggregate("sold", source=priced, group_by=["product"], measures={"pieces": "sum(pieces)"}), stock
    )
    found = audited(lakehouse, 1.0, "gold.sold")["gold.sold"]
    assert (found.skipped, found.balanced) == ("its declaration changed since it was computed", True)


def test_tables_whose_columns_changed_are_compared(lakehouse: Lakehouse) -> None:
    """Delta reads no change feed across that."""

    def declared(kind: str) -> Dataset:
        return silver.events(
            "readings", source=bronze.topic("readings"), schema=f"id string, at timestamp, value {kind}", keys=["id"]
        )

    lakehouse.declare(declared("int")).publish("readings", {"id": "a", "at": text(1), "value": 1}, b"{").run()
    lakehouse.publish("readings", {"id": "b", "at": text(1), "value": 2}, b"{").run()
    lakehouse.declare(declared("bigint")).run()
    assert wrong(audited(lakehouse, 0.5)) == {}
    lakehouse.publish("readings", {"id": "c", "at": text(1), "value": 3}).run()
    falsify(lakehouse, ("silver.readings", "UPDATE SET value = 7 WHERE id = 'c'"))
    assert wrong(audited(lakehouse, 0.0)) == {"silver.readings": 1}


def test_a_row_that_is_there_twice_breaks_a_law_of_every_table(shop: Lakehouse, tmp_path: Path) -> None:
    lakehouse = shop.copied_to(tmp_path)
    double(lakehouse.lake, "gold.sold", 1, product="p9")
    broken = [(each.dataset, each.law, each.broken) for each in lakehouse.laws() if each.broken]
    assert broken == [("gold.sold", "rows that are there twice", 1)]
    found = audited(lakehouse, 1.0, "gold.sold")["gold.sold"]
    assert found.wrong == 1
    assert "1 rows are there more than once, written by another program" in found.others


def test_a_rebuild_leaves_no_row_twice(shop: Lakehouse, tmp_path: Path) -> None:
    lakehouse = shop.copied_to(tmp_path).declare(sold)
    columns = {name: lakehouse.table(name).columns for name in lakehouse.lake.tables()}
    expected = {name: lakehouse.rows(name, *each) for name, each in columns.items()}
    doubled = ("gold.sold", "silver.priced", "silver.sales")
    for table in doubled:
        double(lakehouse.lake, table, 1)
    twice = {name for name, each in columns.items() if lakehouse.rows(name, *each) != expected[name]}
    assert twice == set(doubled)
    lakehouse.run(rebuild=True)
    assert {name: lakehouse.rows(name, *each) for name, each in columns.items()} == expected
    assert all(each.balanced for each in lakehouse.laws())
    assert lakehouse.run() == {}


def test_a_wrong_row_whose_time_python_cannot_hold_is_shown(lakehouse: Lakehouse) -> None:
    events = silver.events(
        "events",
        source=bronze.topic("events"),
        schema="id string, at timestamp, near struct<at: timestamp>, n int",
        keys=["id"],
    )
    lakehouse.declare(events)
    first_year = "0001-01-01T00:00:00Z"
    lakehouse.publish("events", {"id": "a", "at": first_year, "near": {"at": first_year}, "n": 1}).run()
    falsify(lakehouse, ("silver.events", "UPDATE SET n = 2"))
    found = audited(lakehouse, 1)["silver.events"]
    assert found.wrong == 1
    assert found.examples[0].key == {"id": "a"}
    assert found.examples[0].stored["n"] == 2
