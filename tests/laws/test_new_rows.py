"""Law 5, of rows that are new: what each of them makes is added to a table, which is not searched for it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.engine.evaluation import Evaluation
from sluice.model import small_frames
from tests.damage import damage
from tests.kit import Lakehouse, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="sale_id int, sensor string, sold_at timestamp, amount int",
    keys=["sale_id"],
    event_time="sold_at",
)
settings = silver.history(
    "settings",
    source=bronze.topic("settings"),
    schema="sensor string, changed_at timestamp, setting int",
    keys=["sensor"],
    sequence_by="changed_at",
)
measured = silver.as_of("measured", facts=sales, event_time="sold_at", dimensions={"setting": settings})
named = {"setting": silver.dimension(settings, inferred={"setting": "-1"})}
inferred = silver.as_of("inferred", facts=sales, event_time="sold_at", dimensions=named)
large = gold.view(
    "large", inputs={"sales": sales}, shape="SELECT sale_id, amount + 1 AS more FROM sales WHERE amount > 1"
)
tables = (measured.name, large.name)


def sale(number: int, amount: int = 2) -> dict[str, Any]:
    return {"sale_id": number, "sensor": f"s{number % 2}", "sold_at": text(1 + number / 60), "amount": amount}


def setting(hour: float, value: int) -> dict[str, Any]:
    return {"sensor": "s1", "changed_at": text(hour), "setting": value}


@pytest.fixture(scope="module")
def base(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Twenty sales and a setting, after a run."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("base")).declare(measured, large)
    lakehouse.publish("sales", *[sale(number) for number in range(20)], hours=2)
    lakehouse.publish("settings", setting(1.0, 1)).run()
    return lakehouse


@pytest.fixture
def begun(base: Lakehouse, tmp_path: Path) -> Lakehouse:
    return base.copied_to(tmp_path / "copy")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables whose rows of a scope were taken to be new."""
    found: list[str] = []
    own = Evaluation.own

    def noted(self: Evaluation, output: Any, scope: Any, *, is_new: bool = False) -> Any:
        found.extend([output.table] if is_new else [])
        return own(self, output, scope, is_new=is_new)

    monkeypatch.setattr(Evaluation, "own", noted)
    return found


def test_new_rows_are_added_whether_few_or_more_than_the_table_has(begun: Lakehouse, added: list[str]) -> None:
    for numbers in (range(20, 21), range(21, 30), range(30, 100)):
        done = begun.publish("sales", *[sale(number, number % 4) for number in numbers]).run()
        assert done[measured.name].rows.inserted == done[measured.name].rows.total == len(numbers)
        assert sorted(added) == sorted(tables)
        added.clear()
    assert begun.changed_by_rebuild() == {}


@pytest.fixture(scope="module")
def resettled(base: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The same with one more table and two more settings, after a run."""
    lakehouse = base.copied_to(tmp_path_factory.mktemp("resettled") / "copy").declare(measured, large, inferred)
    lakehouse.publish("settings", setting(0.5, 3), setting(1.4, 4)).run()
    return lakehouse


@pytest.mark.parametrize(("share", "is_whole"), [(touched.rebuild_share, True), (100, False)])
def test_many_new_rows_are_not_searched_for_and_meet_all_versions(
    resettled: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, *, is_whole: bool
) -> None:
    """Unless these are many beside them: then the versions of their keys are looked up."""
    begun = resettled.copied_to(tmp_path / "copy")
    searched: dict[str, bool] = {}
    scope_of = touched.scope_of

    def noted(evaluation: Evaluation, changes: Any) -> Any:
        scope = scope_of(evaluation, changes)
        searched[evaluation.dataset.name] = bool(scope.bounds)
        return scope

    with monkeypatch.context() as patched:
        patched.setattr(small_frames, "rows_max", 5)
        patched.setattr(touched, "rebuild_share", share)
        patched.setattr("sluice.engine.plan.scope_of", noted)
        done = begun.publish("sales", *[sale(number) for number in range(20, 60)]).run()
    assert done[measured.name].rows.inserted == done[measured.name].rows.total == 40
    assert searched == {sales.name: True, measured.name: not is_whole, large.name: False, inferred.name: not is_whole}
    assert begun.changed_by_rebuild() == {}


def late(lakehouse: Lakehouse) -> None:
    """A record that replaces another, as it is before it in the order of the log, and a new one."""
    lakehouse.publish("sales", sale(3, 1), sale(20), hours=1)


def with_setting(lakehouse: Lakehouse) -> None:
    """A version that other facts meet, too."""
    lakehouse.publish("settings", setting(1.1, 2)).publish("sales", sale(21), sale(22))


def deleted(lakehouse: Lakehouse) -> None:
    """Another program takes a fact away."""
    damage(lakehouse.lake, sales.name, "DELETE WHERE sale_id = 4")
    lakehouse.publish("sales", sale(20))


def updated(lakehouse: Lakehouse) -> None:
    """Another program changes a fact."""
    damage(lakehouse.lake, sales.name, "UPDATE SET amount = 50 WHERE sale_id = 4")
    lakehouse.publish("sales", sale(20))


def written_ahead(lakehouse: Lakehouse) -> None:
    """Another program gives a table a row that will come."""
    damage(lakehouse.lake, measured.name, "UPDATE SET sale_id = 20, amount = 7 WHERE sale_id = 4")
    damage(lakehouse.lake, large.name, "UPDATE SET sale_id = 20, more = 7 WHERE sale_id = 4")
    lakehouse.publish("sales", {**sale(20), "sold_at": sale(4)["sold_at"]})


@pytest.mark.parametrize("change", [late, with_setting, deleted, updated, written_ahead])
def test_what_is_not_only_new_is_compared_with_what_is_there(
    begun: Lakehouse, change: Callable[[Lakehouse], None], added: list[str]
) -> None:
    change(begun)
    begun.run()
    assert measured.name not in added
    assert_follows(begun)


@pytest.mark.parametrize("change", [late, deleted, updated])
def test_rows_that_are_taken_to_be_new_and_are_not_are_noticed(
    begun: Lakehouse, change: Callable[[Lakehouse], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "makes_only_new", property(lambda evaluation: bool(evaluation.moved)))
    change(begun)
    begun.run()
    with pytest.raises(AssertionError):
        assert_follows(begun)


def assert_follows(lakehouse: Lakehouse) -> None:
    """Both tables have what silver.sales implies."""
    facts = {row["sale_id"]: row["amount"] for row in lakehouse.table(sales.name).collect()}
    assert sorted(lakehouse.rows(measured.name, "sale_id", "amount")) == sorted(facts.items())
    expected = sorted((number, amount + 1) for number, amount in facts.items() if amount > 1)
    assert sorted(lakehouse.rows(large.name, "sale_id", "more")) == expected
    begins = {row["sale_id"]: row["setting"] for row in lakehouse.table(measured.name).collect()}
    versions = [(row["valid_from"], row["setting"]) for row in lakehouse.table(settings.name).collect()]
    for row in lakehouse.table(measured.name).collect():
        known = [value for begin, value in sorted(versions) if begin <= row["sold_at"] and row["sensor"] == "s1"]
        assert (begins[row["sale_id"]]["setting"] if begins[row["sale_id"]] else None) == (known[-1] if known else None)
