"""Old files of tables are deleted: by Sluice's own upkeep after a month, or by another program whenever it likes."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from sluice.errors import SluiceError
from sluice.operate.maintain import maintain_table
from sluice.storage.delta import Lake
from tests.kit import Lakehouse, text
from tests.shop import priced, prices, sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def sale(number: int, hours: float) -> dict[str, object]:
    return {"id": f"s{number}", "product": "tea0", "sold_at": text(hours), "pieces": 1}


def price(product: str, hours: float, amount: int) -> dict[str, object]:
    return {"product": product, "changed_at": text(hours), "price": amount}


def vacuum(lakehouse: Lakehouse, table: str) -> list[str]:
    """What is deleted once the retention of the files that are in no newest version is over."""
    found = DeltaTable(lakehouse.lake.path(table))
    return found.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


@pytest.fixture(scope="module")
def three_runs(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Sales and prices that came in three runs."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("three-runs")).declare(priced)
    for number in range(3):
        lakehouse.publish("prices", price(f"tea{number}", number, number)).publish("sales", sale(number, number)).run()
    return lakehouse


@pytest.fixture(scope="module")
def maintained(three_runs: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The same, after the upkeep of all tables."""
    lakehouse = three_runs.copied_to(tmp_path_factory.mktemp("maintained"))
    maintain_all(lakehouse)
    return lakehouse


def maintain_all(lakehouse: Lakehouse) -> None:
    for table in lakehouse.lake.tables():
        maintain_table(lakehouse.spark, lakehouse.lake, table)


def test_an_input_that_was_compacted_and_did_not_change_since_can_be_read(
    three_runs: Lakehouse, tmp_path: Path
) -> None:
    lakehouse = three_runs.copied_to(tmp_path)
    assert DeltaTable(lakehouse.lake.path("silver.prices")).optimize.compact()["numFilesRemoved"] > 1
    DeltaTable(lakehouse.lake.path("silver.sales")).optimize.compact()
    assert vacuum(lakehouse, "silver.prices")
    vacuum(lakehouse, "silver.sales")
    # Another process, which has nothing in memory.
    lakehouse.lake = Lake(lakehouse.lake.root)
    done = lakehouse.publish("sales", sale(7, 7)).run()
    assert done["silver.priced"].rows.inserted == 1
    done = lakehouse.publish("prices", price("tea0", 6.5, 9)).run()
    assert done["silver.priced"].rows.updated == 1


def month_later(lakehouse: Lakehouse, commits_before: int) -> None:
    """Deletes what Delta does once its retention is over: files of older versions, and commits before a checkpoint."""
    for table in lakehouse.lake.tables():
        vacuum(lakehouse, table)
        DeltaTable(lakehouse.lake.path(table)).create_checkpoint()
        newest = lakehouse.lake.last_commit(table)
        assert newest is not None
        for file in Path(lakehouse.lake.path(table), "_delta_log").glob("*.json"):
            if int(file.stem) < newest.version - commits_before:
                file.unlink()
    # Another process, which has nothing in memory.
    lakehouse.lake = Lake(lakehouse.lake.root)


@pytest.mark.parametrize("commits_before", [0, 1])
def test_tables_that_are_maintained_and_do_not_change_go_on_after_months(
    three_runs: Lakehouse, maintained: Lakehouse, tmp_path: Path, commits_before: int
) -> None:
    """The log begins with the newest entry, or with the upkeep before it."""
    before = {table: three_runs.rows(table) for table in three_runs.lake.tables()}
    lakehouse = maintained.copied_to(tmp_path)
    month_later(lakehouse, commits_before)
    maintain_all(lakehouse)
    month_later(lakehouse, commits_before)
    done = lakehouse.run()
    assert {name: each.rows.total for name, each in done.items() if each.is_effective or each.is_wrong} == {}
    assert {table: lakehouse.rows(table) for table in lakehouse.lake.tables()} == before
    done = lakehouse.publish("sales", sale(7, 7)).run()
    assert {name: each.rows.inserted for name, each in done.items() if each.is_effective} == {
        "bronze.sales": 1,
        "silver.sales": 1,
        "silver.priced": 1,
    }
    assert lakehouse.publish("prices", price("tea0", 6.5, 9)).run()["silver.priced"].rows.updated == 1
    assert all(each.balanced for each in lakehouse.audits())
    assert lakehouse.changed_by_rebuild() == {}


def test_a_feed_that_is_switched_off_once_the_log_has_forgotten_what_was_read_is_not_followed(
    three_runs: Lakehouse, tmp_path: Path
) -> None:
    lakehouse = three_runs.copied_to(tmp_path)
    maintain_table(lakehouse.spark, lakehouse.lake, "silver.prices")
    month_later(lakehouse, 0)
    assert lakehouse.run() == {}
    path = lakehouse.lake.path("silver.prices")
    switched = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '%s')"
    lakehouse.spark.sql(switched % "false")
    lakehouse.spark.sql(f"DELETE FROM delta.`{path}` WHERE product = 'tea0'").collect()
    lakehouse.spark.sql(switched % "true")
    done = lakehouse.publish("prices", price("tea0", 1, 9)).run()
    assert (done["silver.prices"].cause, done["silver.priced"].cause) == ("altered", "input rebuilt")
    assert lakehouse.changed_by_rebuild() == {}


def test_changes_that_were_deleted_before_they_were_read_are_found_in_the_rows(lakehouse: Lakehouse) -> None:
    """By a vacuum of another program, which keeps nothing that is older than the newest version."""
    lakehouse.declare(priced).publish("prices", price("tea0", 0, 1)).publish("sales", sale(1, 1), sale(5, 5)).run()
    lakehouse.declare(prices).publish("prices", price("tea0", 4, 2)).run()
    lakehouse.publish("prices", price("tea0", 0.5, 3)).run()
    assert vacuum(lakehouse, "silver.prices")
    done = lakehouse.declare(priced).publish("sales", sale(6, 6)).run()["silver.priced"]
    assert done.cause == "input rebuilt"
    assert lakehouse.rows("silver.priced", "id", "price.price") == [("s1", 3), ("s5", 2), ("s6", 2)]
    assert lakehouse.publish("sales", sale(7, 7)).run()["silver.priced"].cause == "changes"
    assert lakehouse.changed_by_rebuild() == {}


def test_a_table_whose_entries_are_gone_says_so_and_is_made_again(lakehouse: Lakehouse) -> None:
    """Other programs wrote to it for a month, and nobody maintained it."""
    lakehouse.declare(sales).publish("sales", sale(1, 1)).run()
    lakehouse.publish("sales", sale(2, 2)).run()
    before = lakehouse.rows("silver.sales")
    folder = Path(lakehouse.lake.path("bronze.sales"))
    DeltaTable(folder).optimize.compact()
    DeltaTable(folder).create_checkpoint()
    for version in (0, 1):
        (folder / f"_delta_log/{version:020}.json").unlink()
    lakehouse.lake = Lake(lakehouse.lake.root)
    with pytest.raises(SluiceError, match=rf"has no entry of Sluice's left: .*Delete the folder {folder}, and"):
        lakehouse.run()
    shutil.rmtree(folder)
    lakehouse.run()
    assert lakehouse.rows("silver.sales") == before
    assert lakehouse.lake.row_count("bronze.sales") == 2
    assert all(each.balanced for each in lakehouse.audits())
