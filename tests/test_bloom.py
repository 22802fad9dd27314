"""Keys without an order are found by Bloom filters, so that no row of a file that lacks them is read."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.model.datasets import Output, same_names
from sluice.model.found import Among
from sluice.model.ledger import Entry, RowCounts
from sluice.model.small_frames import small_rows
from sluice.shapes.difference import operation
from sluice.storage import key_filters
from sluice.storage.delta import Lake, bloom
from tests.plans import scanned_rows

name, find_by = "silver.things", ("id",)
count = 40_000


def things(spark: SparkSession, salt: str = "") -> DataFrame:
    return spark.range(0, count, 1, 1).selectExpr(f"sha2('{salt}' || id, 256) AS id", "id AS n")


def built(lake: Lake, rows: DataFrame) -> None:
    lake.replace_rows(rows, name, Entry(dataset=name), 0, cluster_by=["n"], find_by=find_by)


@pytest.fixture(scope="module")
def known(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake whose table was built, and not changed since."""
    lake = Lake(str(tmp_path_factory.mktemp("known")))
    built(lake, things(spark))
    return lake


@pytest.fixture(scope="module")
def absent(spark: SparkSession) -> str:
    """A key that no row has, between those that some have."""
    return str(spark.sql("SELECT sha2('absent', 256)").collect()[0][0])


def merged(lake: Lake, rows: DataFrame) -> None:
    changed = rows.where("n % 20000 = 7").selectExpr("id", "-n AS n", f"'updated' AS {operation}")
    lake.merge_rows(changed, name, entry(2), lake.fence(name, name), grain=["id"], find_by=find_by)


def replaced(lake: Lake, rows: DataFrame) -> None:
    changed = rows.where("n % 20000 = 9").selectExpr("id", "-n AS n", f"'updated' AS {operation}")
    small = small_rows(changed)
    lake.merge_rows(changed, name, entry(2), lake.fence(name, name), grain=["id"], find_by=find_by, small=small)
    assert lake.open(name).history(1)[0]["engineInfo"].startswith("delta-rs")


def compacted(lake: Lake, rows: DataFrame) -> None:
    added = things(rows.sparkSession, "more")
    lake.append_rows(added, name, entry(count), lake.fence(name, name), find_by=find_by)
    assert lake.compact(rows.sparkSession, name, find_by)["compacted"] == 2


def entry(changed: int) -> Entry:
    return Entry(dataset=name, rows=RowCounts(updated=changed))


@pytest.mark.parametrize("change", [None, merged, replaced, compacted])
def test_a_key_that_no_file_has_is_looked_for_in_no_row(
    spark: SparkSession,
    known: Lake,
    absent: str,
    tmp_path: Path,
    change: Callable[[Lake, DataFrame], None] | None,
) -> None:
    lake, rows = Lake(str(shutil.copytree(known.root, tmp_path / "lake"))), things(spark)
    if change:
        change(lake, rows)
    table = lake.read(spark, name)
    assert scanned_rows(table.where(F.col("id") == absent)) == 0
    fifth = rows.where("n = 5").collect()[0]["id"]
    assert [row["n"] for row in table.where(F.col("id") == fifth).collect()] == [5]
    assert not any(may_have(lake, absent))
    assert sum(may_have(lake, fifth)) == 1


def test_without_a_filter_all_rows_are_read(
    spark: SparkSession, absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(bloom, "kinds", ())
    lake = Lake(str(tmp_path))
    built(lake, things(spark))
    assert scanned_rows(lake.read(spark, name).where(F.col("id") == absent)) == count


def test_rows_are_found_by_the_columns_that_do_not_order_them() -> None:
    def find(cluster_by: tuple[str, ...]) -> tuple[str, ...]:
        return Output(name, grain=("id",), scope_columns=same_names(["id"]), cluster_by=cluster_by).find_by

    assert find(("sold_at",)) == find(("sold_at", "id")) == find(()) == ("id",)
    assert find(("id",)) == ()


def may_have(lake: Lake, key: str) -> list[bool]:
    """For each file whether the driver takes it for one that may have a key."""
    files = pa.table(lake.open(name).get_add_actions(flatten=True))
    paths = [f"{lake.path(name)}/{each}" for each in files["path"].to_pylist()]
    return [
        bool(each) for each in key_filters.may_have(files, paths, [Among("id", pa.chunked_array([[key]]))]).to_pylist()
    ]
