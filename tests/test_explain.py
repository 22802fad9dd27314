"""Explain: each value of a cell, and the record, version or declaration that made it so."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, gold, silver
from sluice.errors import UsageError
from sluice.model import small_frames
from sluice.model.datasets import Dataset
from sluice.model.ledger import changed_here
from sluice.operate.explain import Explainer, Value, are_values, value_of
from sluice.operate.query import query
from sluice.windows import window
from tests.damage import damage
from tests.kit import Lakehouse, at, in_time_zone, text
from tests.shop import priced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def revenue(measure: str = "sum(pieces * price.price)") -> Dataset:
    return gold.aggregate(
        "revenue", source=priced, group_by=["product", window("sold_at", "1 hour")], measures={"revenue": measure}
    )


def sale(name: str, product: str, hour: float, pieces: int = 1) -> dict[str, Any]:
    return {"id": name, "product": product, "sold_at": text(hour), "pieces": pieces}


def price(product: str, hour: float, each: int) -> dict[str, Any]:
    return {"product": product, "changed_at": text(hour), "price": each}


def explained(lakehouse: Lakehouse, dataset: Dataset, **wanted: str) -> list[Value]:
    return Explainer(lakehouse.spark, lakehouse.lake).explain(dataset, wanted)


@pytest.fixture(scope="module")
def opened(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Sales at several hours and prices."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("shop")).declare(revenue())
    lakehouse.publish("prices", price("tea", 0, 2), price("cup", 0, 9), key="p", hours=1)
    lakehouse.publish("sales", *[sale(f"tea {hour}", "tea", hour) for hour in range(8)], key="s", hours=9)
    lakehouse.publish("sales", sale("cup", "cup", 3), key="s", hours=9).run()
    return lakehouse


@pytest.fixture
def lived(opened: Lakehouse, tmp_path: Path) -> Lakehouse:
    return opened.copied_to(tmp_path)


@pytest.fixture(scope="module")
def repriced(opened: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The same, after a price came late."""
    lakehouse = opened.copied_to(tmp_path_factory.mktemp("repriced"))
    lakehouse.publish("prices", price("tea", 3, 5), key="p", hours=20).run()
    return lakehouse


def test_a_late_dimension_change_is_named_by_its_offset(repriced: Lakehouse) -> None:
    before, after = explained(repriced, revenue(), product="tea", window_start=text(3))
    assert (before.cause, before.row and before.row["revenue"]) == ("first build", 2)
    assert (after.cause, after.row and after.row["revenue"]) == ("changes", 5)
    (origin,) = after.origins
    partition = repriced.rows("bronze.prices", "partition")[0][0]
    assert origin.records == (f"prices/{partition}/2",)
    assert origin.path == ("gold.revenue", "silver.priced", "silver.prices", "silver.prices_changes")
    # A cell that the change does not touch has one value.
    assert len(explained(repriced, revenue(), product="cup", window_start=text(3))) == 1
    assert len(explained(repriced, revenue(), product="tea", window_start=text(2))) == 1


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns"])
def test_the_times_of_a_row_are_those_of_utc_wherever_the_machine_is(opened: Lakehouse, zone: str) -> None:
    with in_time_zone(zone):
        (found,) = explained(opened, revenue(), product="cup", window_start=text(3))
    assert found.row
    assert (found.row["window_start"], found.row["window_end"]) == (at(3), at(4))


def test_a_late_fact_and_one_that_gives_way_are_named(lived: Lakehouse) -> None:
    lived.publish("sales", sale("late", "tea", 3.5, 4), key="s", hours=21).run()
    # An earlier record of the same key takes its place in another hour: the cell of the cup is gone.
    lived.publish("sales", sale("cup", "cup", 5), key="s", hours=2).run()
    values = explained(lived, revenue(), product="tea", window_start=text(3))
    assert [each.row and each.row["revenue"] for each in values] == [2, 10]
    partition = lived.rows("bronze.sales", "partition")[0][0]
    assert values[1].origins[0].records == (f"sales/{partition}/9",)
    gone = explained(lived, revenue(), product="cup", window_start=text(3))
    assert [each.row is None for each in gone] == [False, True]
    assert set(gone[1].origins[0].records) == {f"sales/{partition}/8", f"sales/{partition}/10"}


def test_what_another_program_wrote_is_no_records_doing(lived: Lakehouse) -> None:
    cell = {"product": "cup", "window_start": text(3)}
    damage(lived.lake, "gold.revenue", "UPDATE SET revenue = 99 WHERE product = 'cup'")
    values = explained(lived, revenue(), **cell)
    assert [(each.cause, each.row and each.row["revenue"]) for each in values[1:]] == [("another program", 99)]
    lived.run()
    damage(lived.lake, "silver.priced", "UPDATE SET pieces = 3 WHERE id = 'cup'")
    # An older release did not notice it.
    known = lived.lake.last_commit("silver.priced")
    assert known is not None
    unnoticed = known.repeated(known.newest_version).model_copy(update=changed_here)
    lived.lake.move_cursor("silver.priced", unnoticed, known.fence)
    lived.publish("sales", sale("other", "cup", 3, 2), key="s", hours=21).run()
    values = explained(lived, revenue(), **cell)
    assert [(each.cause, each.row and each.row["revenue"]) for each in values[1:]] == [
        ("another program", 99),
        ("altered", values[0].row and values[0].row["revenue"]),
        ("changes", 45),
    ]
    assert values[1].origins[0].detail == {"operation": "UPDATE"}
    by = {origin.by: origin.path for origin in values[3].origins}
    assert by["another program"] == ("gold.revenue", "silver.priced")
    assert by["records"][-1] == "silver.sales"


def test_a_version_ends_because_of_the_record_that_moved_its_row_to_another_key(lakehouse: Lakehouse) -> None:
    things = silver.history(
        "things",
        source=bronze.topic("things"),
        format="debezium",
        schema="id string, size int",
        keys=["id"],
        future_tolerance="1000 days",
    )

    def envelope(lsn: int, op: str, after: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, Any]:
        source = {"lsn": lsn, "ts_ms": int(at(lsn).timestamp() * 1000)}
        return {"op": op, "before": before, "after": after, "source": source, "transaction": None}

    first = {"id": "a", "size": 1}
    lakehouse.declare(things).publish("things", envelope(1, "c", first), key="a").run()
    lakehouse.publish("things", envelope(2, "u", {"id": "b", "size": 1}, first), key="a").run()
    begun, ended = explained(lakehouse, things, id="a", valid_from=text(1))
    assert [each.row and each.row["is_current"] for each in (begun, ended)] == [True, False]
    # The second of its partition.
    assert [(each.by, [record.split("/")[-1] for record in each.records]) for each in ended.origins] == [
        ("records", ["1"])
    ]


def test_a_window_that_becomes_complete_is_a_change(lived: Lakehouse) -> None:
    lived.publish("sales", sale("next day", "tea", 30), key="s", hours=31).run()
    before, after = explained(lived, revenue(), product="tea", window_start=text(7))
    assert [each.row and (each.row["revenue"], each.row["_state"]) for each in (before, after)] == [
        (2, "open"),
        (2, "complete"),
    ]
    assert [each.by for each in after.origins] == ["watermark"]


def test_a_changed_declaration_is_named(lived: Lakehouse) -> None:
    changed = revenue("-sum(pieces * price.price)")
    lived.declare(changed).run()
    values = explained(lived, changed, product="tea", window_start=text(3))
    assert [(each.cause, each.row and each.row["revenue"]) for each in values] == [
        ("first build", 2),
        ("declaration changed", -2),
    ]
    assert values[1].origins[0].by == "declaration changed"
    assert values[1].origins[0].detail["fields"] == "groups.measures"
    # With another type the table is another: what it said before cannot be compared.
    lived.declare(revenue("max(price.price)")).run()
    (value,) = explained(lived, changed, product="tea", window_start=text(3))
    assert (value.cause, value.row and value.row["revenue"]) == ("declaration changed", 2)


def test_many_changes_are_explained_as_few_are(repriced: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Spark, and by the driver, which has the few rows that a figure is made of."""
    few = explained(repriced, revenue(), product="tea", window_start=text(3))
    monkeypatch.setattr(small_frames, "rows_max", -1)
    assert explained(repriced, revenue(), product="tea", window_start=text(3)) == few


def test_readers_that_ask_at_once_get_what_each_gets_alone(repriced: Lakehouse) -> None:
    cells = [(product, hour) for product in ("tea", "cup") for hour in (3, 4)]

    def ask(cell: tuple[str, int]) -> list[Value]:
        return explained(repriced, revenue(), product=cell[0], window_start=text(cell[1]))

    alone = [ask(cell) for cell in cells]
    with ThreadPoolExecutor(len(cells)) as readers:
        assert list(readers.map(ask, cells)) == alone
    assert [len(each) for each in alone] == [2, 2, 1, 0]


def test_each_value_is_explained_by_a_few_jobs(lived: Lakehouse) -> None:
    def jobs(call: str) -> int:
        context = lived.spark.sparkContext
        context.setJobGroup(call, call)
        explained(lived, revenue(), product="tea", window_start=text(3))
        return len(context.statusTracker().getJobIdsForGroup(call))

    counts = []
    for hours, late in enumerate(("late", "later"), start=21):
        lived.publish("sales", sale(late, "tea", 3), key="s", hours=hours).run()
        counts.append(jobs(late))
    assert counts[1] - counts[0] <= 6


def test_a_table_is_seen_as_it_was_known(repriced: Lakehouse) -> None:
    first, _ = explained(repriced, revenue(), product="tea", window_start=text(3))
    sql = f"SELECT revenue FROM gold.revenue WHERE product = 'tea' AND window_start = '{text(3)}'"
    assert query(repriced.lake, sql).rows == [(5,)]
    assert query(repriced.lake, sql, first.known_at).rows == [(2,)]
    with pytest.raises(UsageError, match="cannot be answered"):
        query(repriced.lake, sql, first.known_at.replace(year=2000))


@pytest.mark.parametrize(
    ("kind", "text", "is_one"),
    [
        ("struct<x: double, y: string>", '{"x": 1.5, "y": "a"}', True),
        ("struct<x: double, y: string>", '{"x": null}', True),
        ("struct<x: double, y: string>", '{"x": "abc"}', False),
        ("struct<x: double, y: string>", "x", False),
        ("array<int>", "[1, null]", True),
        ("array<int>", '[1, "a"]', False),
        ("binary", "0g", False),
        ("int", "3000000000", False),
    ],
)
def test_a_text_is_a_value_of_a_type_or_is_refused(spark: "SparkSession", kind: str, text: str, is_one: bool) -> None:
    assert are_values(spark, [value_of(text, kind)]) == is_one


def test_a_row_is_named_by_all_that_tells_it_apart(opened: Lakehouse) -> None:
    with pytest.raises(UsageError, match="say which row by product, window_start"):
        explained(opened, revenue(), product="tea")
    with pytest.raises(
        UsageError, match=r"gold\.revenue: produkt names no row of it; did you mean product\? say which row by"
    ):
        explained(opened, revenue(), produkt="tea", window_start=text(3))
    assert explained(opened, revenue(), product="nothing", window_start=text(3)) == []
    assert explained(opened, revenue(), product="tea", window_start="null") == []
    with pytest.raises(UsageError, match=r"window_start=noon is no value of .*, which is timestamp, such as 2026-"):
        explained(opened, revenue(), product="tea", window_start="noon")
