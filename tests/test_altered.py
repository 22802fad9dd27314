"""What another program does to the rows of a table is undone by the next run, whenever it was done, which says so."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.engine.backfill import BackfillRange
from sluice.model import small_frames
from sluice.model.ledger import Commit
from sluice.operate.explain import Explainer
from sluice.operate.forecast import forecast
from sluice.operate.maintain import maintain_table
from sluice.operate.recompute import recompute
from sluice.operate.replay import rollback
from sluice.storage.delta import Lake
from sluice.storage.delta.opened import rows_in
from tests.damage import damage, double
from tests.kit import Lakehouse, Row, at, before_each_commit, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="sale_id int, shop string, amount int, sold_at timestamp",
    keys=["sale_id"],
    event_time="sold_at",
)
shops = silver.history(
    "shops",
    source=bronze.topic("shops"),
    schema="shop string, region string, changed_at timestamp",
    keys=["shop"],
    sequence_by="changed_at",
)
sold = silver.as_of("sold", facts=sales, event_time="sold_at", dimensions={"place": shops})
large = gold.view("large", inputs={"sold": sold}, shape="SELECT sale_id, amount FROM sold WHERE amount > 1")
totals = gold.aggregate(
    "totals", source=sold, group_by=["place.region"], measures={"sales": "count(*)", "amount": "sum(amount)"}
)
tables = [each.name for each in (sales, shops, sold, large, totals)]
# Rows that no later record of a test touches.
some = {
    "silver.sales": "sale_id < 4",
    "silver.shops": "shop = 's1'",
    "silver.sold": "sale_id < 4",
    "gold.large": "sale_id < 4",
    "gold.totals": "region = 'south'",
}
changes = dict.fromkeys(tables, "amount = 77") | {"silver.shops": "region = 'moon'"}


def sale(number: int, amount: int = 2, shop: int = 0) -> dict[str, Any]:
    return {"sale_id": number, "shop": f"s{shop}", "amount": amount, "sold_at": text(2 + number / 60)}


@pytest.fixture(scope="module")
def base(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Twenty sales of three shops, after a run."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("base")).declare(large, totals)
    regions = ["north", "south", "west"]
    versions = [{"shop": f"s{n}", "region": each, "changed_at": text(1)} for n, each in enumerate(regions)]
    lakehouse.publish("shops", *versions)
    lakehouse.publish("sales", *[sale(number, 1 + number % 3, number % 2) for number in range(20)], hours=3).run()
    return lakehouse


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    """Every scope is recomputed by itself, as in a table of normal size."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(touched, "rebuild_share", 1e9)
        yield


@pytest.fixture
def begun(base: Lakehouse, tmp_path: Path) -> Lakehouse:
    return base.copied_to(tmp_path / "copy")


@pytest.fixture(scope="module")
def arrived(base: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A sale more, and another region of a shop, which no run has seen."""
    lakehouse = base.copied_to(tmp_path_factory.mktemp("arrived") / "copy")
    return lakehouse.publish("sales", sale(20)).publish(
        "shops", {"shop": "s2", "region": "east", "changed_at": text(5)}
    )


@pytest.fixture(scope="module")
def followed(arrived: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The same, after the run that has seen them, and which was right."""
    lakehouse = arrived.copied_to(tmp_path_factory.mktemp("followed") / "copy")
    lakehouse.run()
    require_right(lakehouse, *tables)
    return lakehouse


@pytest.fixture
def gone_on(followed: Lakehouse, tmp_path: Path) -> Lakehouse:
    return followed.copied_to(tmp_path / "copy")


def require_right(lakehouse: Lakehouse, *names: str) -> None:
    """The rows of tables are those that their inputs imply, and no other program has written to them since."""
    datasets = [lakehouse.catalogue.dataset(name) for name in names]
    found = [*recompute(lakehouse.spark, lakehouse.lake, datasets, 1, 0)]
    assert [each.dataset for each in found if each.skipped] == []
    assert [each.dataset for each in found if each.wrong or each.others] == []


def rows(lakehouse: Lakehouse, table: str) -> list[Row]:
    """The rows of a table, with what is kept of each of them beside what was declared."""
    return lakehouse.rows(table, *all_of(lakehouse, table).column_names)


def state(lakehouse: Lakehouse) -> dict[str, list[Row]]:
    return {name: rows(lakehouse, name) for name in tables}


def written_by_others(lakehouse: Lakehouse) -> dict[str, int]:
    """How many commits of other programs the last run has not accounted for, of the tables that have some."""
    commits = {table: lakehouse.lake.last_commit(table) for table in tables}
    found = {
        table: lakehouse.lake.written_by_others(table, commit.accounts_until)
        for table, commit in commits.items()
        if commit is not None
    }
    return {table: len(each) for table, each in found.items() if each}


def delete(lakehouse: Lakehouse, table: str) -> None:
    damage(lakehouse.lake, table, f"DELETE WHERE {some[table]}")


def update(lakehouse: Lakehouse, table: str) -> None:
    damage(lakehouse.lake, table, f"UPDATE SET {changes[table]} WHERE {some[table]}")


def all_of(lakehouse: Lakehouse, table: str) -> pa.Table:
    found = rows_in(DeltaTable(lakehouse.lake.path(table)))
    assert found is not None
    return found


def double_two(lakehouse: Lakehouse, table: str) -> None:
    double(lakehouse.lake, table, 2)


def restore(lakehouse: Lakehouse, table: str) -> None:
    """Back to the state before the newest sale."""
    found = DeltaTable(lakehouse.lake.path(table))
    found.restore(found.version() - 1)


def to_no_effect(lakehouse: Lakehouse, table: str) -> None:
    """Rows are taken away, and put back."""
    found = all_of(lakehouse, table)
    DeltaTable(lakehouse.lake.path(table)).delete()
    write_deltalake(lakehouse.lake.path(table), found, mode="append")


@contextmanager
def while_it_is_written(table: str, do: Callable[[], None]) -> Iterator[None]:
    """Does something once, between the reading of a table's rows and the commit of a refresh."""
    waiting = [do]

    def once() -> None:
        if waiting:
            waiting.pop()()

    with before_each_commit(table, once):
        yield
    assert not waiting, f"nothing was committed to {table}"


@pytest.mark.parametrize(
    ("alter", "altered"),
    [
        *((delete, [table]) for table in ("silver.sales", "silver.shops", "silver.sold")),
        # Nothing is made from either.
        (delete, ["gold.large", "gold.totals"]),
        *((each, tables) for each in (update, double_two, restore, to_no_effect)),
    ],
)
def test_what_was_done_between_two_runs_is_undone_though_no_record_came(
    followed: Lakehouse, gone_on: Lakehouse, alter: Callable[[Lakehouse, str], None], altered: list[str]
) -> None:
    right = state(followed)
    for table in altered:
        alter(gone_on, table)
        assert (rows(gone_on, table) == right[table]) == (alter is to_no_effect)
    assert written_by_others(gone_on).keys() == set(altered)
    done = gone_on.run()
    assert {name for name, event in done.items() if event.cause == "altered"} == set(altered)
    assert state(gone_on) == right
    assert gone_on.run() == {}
    assert written_by_others(gone_on) == {}


@pytest.mark.parametrize("rows_max", [-1, 20_000], ids=["by Spark", "by the driver"])
def test_what_is_done_while_a_run_commits_is_undone_by_the_next(
    arrived: Lakehouse, followed: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(small_frames, "rows_max", rows_max)
    begun = arrived.copied_to(tmp_path / "copy")
    with ExitStack() as meanwhile:
        for table in tables:
            meanwhile.enter_context(while_it_is_written(table, partial(delete, begun, table)))
        first = begun.run()
    later = {**first, **begun.run()}
    assert {later[table].cause for table in tables} == {"altered"}
    assert state(begun) == state(followed)
    assert begun.run() == {}


def test_a_ledger_that_forgets_what_a_refresh_has_read_is_noticed(
    arrived: Lakehouse, followed: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commit, "accounts_until", property(lambda commit: commit.version))
    begun = arrived.copied_to(tmp_path / "copy").declare(sold)
    with while_it_is_written("silver.sold", lambda: delete(begun, "silver.sold")):
        begun.run()
    begun.run()
    assert rows(begun, "silver.sold") != rows(followed, "silver.sold")
    assert rows(begun, "silver.sales") == rows(followed, "silver.sales")


def test_a_cursor_that_moves_hides_nothing(begun: Lakehouse) -> None:
    right = begun.rows("gold.large")
    begun.declare(large).publish("sales", sale(21, amount=1))
    with while_it_is_written("gold.large", lambda: update(begun, "gold.large")):
        begun.run()
    begun.run()
    assert begun.rows("gold.large") == right


@pytest.mark.parametrize("what", ["a range that is recomputed", "upkeep", "an erasure"])
def test_a_commit_that_leaves_the_rows_hides_nothing(begun: Lakehouse, what: str) -> None:
    right = state(begun)
    delete(begun, "gold.large")
    match what:
        case "a range that is recomputed":
            begun.runner().recompute_range([large], BackfillRange(since=at(2.2), until=at(2.3)))
        case "upkeep":
            DeltaTable(begun.lake.path("gold.large")).optimize.compact()
            maintain_table(begun.spark, begun.lake, "gold.large")
        case _:
            begun.lake.forget_history(begun.spark, "gold.large")
    assert begun.rows("gold.large") != right["gold.large"]
    assert begun.run()["gold.large"].cause == "altered"
    assert state(begun) == right
    assert begun.run() == {}


def test_what_changes_no_row_is_no_alteration(begun: Lakehouse) -> None:
    for table in tables:
        path = begun.lake.path(table)
        begun.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'false')")
        begun.spark.sql(f"OPTIMIZE delta.`{path}`").collect()
        DeltaTable(path).vacuum(dry_run=False)
    begun.lake.forget_history(begun.spark, "gold.large")
    assert begun.run() == {}
    assert "altered" not in {each.cause for each in begun.publish("sales", sale(20)).run().values()}


def test_what_a_rollback_brings_back_is_undone_too(begun: Lakehouse) -> None:
    """The state before the rebuild has what another program did, under an entry that says so."""
    right = begun.rows("gold.totals")
    begun.declare(totals)
    update(begun, "gold.totals")
    maintain_table(begun.spark, begun.lake, "gold.totals")
    begun.run(rebuild=True)
    assert begun.rows("gold.totals") == right
    rollback(begun.spark, begun.lake, begun.catalogue, [totals], "a test")
    assert begun.rows("gold.totals") != right
    assert begun.run()["gold.totals"].cause == "altered"
    assert begun.rows("gold.totals") == right
    assert begun.run() == {}


def test_a_commit_during_an_erasure_leaves_a_table_that_is_put_right(
    begun: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, checkpoint = begun.rows("gold.large"), Lake.write_checkpoint

    def overtaken(lake: Lake, spark: "SparkSession", table: str) -> None:
        checkpoint(lake, spark, table)
        update(begun, table)

    monkeypatch.setattr(Lake, "write_checkpoint", overtaken)
    begun.lake.forget_history(begun.spark, "gold.large")
    assert begun.run()["gold.large"].cause == "altered"
    assert begun.rows("gold.large") == right


def test_properties_before_an_erasure_leave_readers_where_they_are(begun: Lakehouse) -> None:
    path = begun.lake.path("silver.sold")
    begun.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('my.note' = 'x')")
    begun.lake.forget_history(begun.spark, "silver.sold")
    assert begun.run() == {}


def test_a_feed_across_other_columns_is_not_followed(gone_on: Lakehouse) -> None:
    """They are as before at its end, and Delta reads no such feed."""
    begun = gone_on.declare(totals)
    path, version = begun.lake.path("silver.sold"), begun.lake.newest_version("silver.sold")
    begun.spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (more int)")
    update(begun, "silver.sold")
    DeltaTable(path).restore(version)
    done = begun.publish("sales", sale(21)).run()
    assert (done["silver.sold"].cause, done["gold.totals"].cause) == ("altered", "input rebuilt")
    require_right(begun, "silver.sold", "gold.totals")


@pytest.mark.parametrize("is_switched_on", [False, True])
def test_a_feed_that_was_switched_off_is_not_followed(begun: Lakehouse, *, is_switched_on: bool) -> None:
    begun.declare(totals)
    path = begun.lake.path("silver.sold")
    switched = f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '%s')"
    begun.spark.sql(switched % "false")
    done = begun.publish("sales", sale(20)).run()
    assert done["gold.totals"].cause == "input rebuilt"
    if is_switched_on:
        begun.spark.sql(switched % "true")
    begun.publish("sales", sale(21)).run()
    begun.publish("sales", sale(22)).run()
    require_right(begun, "silver.sold", "gold.totals")


def test_files_without_statistics_are_counted_by_their_rows(begun: Lakehouse) -> None:
    right = state(begun)
    begun.spark.conf.set("spark.databricks.delta.stats.collect", "false")
    try:
        for table in ("silver.sales", "gold.large"):
            path = begun.lake.path(table)
            begun.spark.sql(f"UPDATE delta.`{path}` SET {changes[table]} WHERE {some[table]}").collect()
    finally:
        begun.spark.conf.unset("spark.databricks.delta.stats.collect")
    begun.run()
    assert state(begun) == right
    assert begun.run() == {}


@pytest.mark.parametrize(("change", "mapping"), [("ADD COLUMNS (more int)", "none"), ("DROP COLUMN sales", "name")])
def test_other_columns_are_an_alteration(begun: Lakehouse, change: str, mapping: str) -> None:
    right, path = begun.rows("gold.totals"), begun.lake.path("gold.totals")
    begun.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = '{mapping}')")
    begun.spark.sql(f"ALTER TABLE delta.`{path}` {change}")
    assert begun.run()["gold.totals"].cause == "altered"
    assert begun.rows("gold.totals") == right
    assert begun.run() == {}


def test_it_is_said_in_the_plan_and_in_what_explains_the_row(begun: Lakehouse) -> None:
    update(begun, "gold.totals")
    version = begun.lake.newest_version("gold.totals")
    said = f"version {version} is UPDATE by another program"
    steps = {each.name: each for each in forecast(begun.lake, begun.log, begun.catalogue)}
    assert (steps["gold.totals"].action, steps["gold.totals"].because) == ("recompute", said)
    begun.run()
    *_, wrong, right = Explainer(begun.spark, begun.lake).explain(totals, {"region": "south"})
    assert (wrong.cause, right.cause) == ("another program", "altered")
    assert right.origins[0].detail == {"because": said}


def test_an_entry_of_a_compaction_counts_no_rows_again(gone_on: Lakehouse) -> None:
    """Delta's compaction after a commit takes over what the session says of it, which is its entry."""
    begun = gone_on.declare(sales)
    known = begun.lake.last_commit("silver.sales")
    assert known is not None
    before = begun.lake.row_counts("silver.sales", -1, known.version)
    spark, path = begun.spark, begun.lake.path("silver.sales")
    spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", known.entry.to_json())
    try:
        spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    finally:
        spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")
    again = begun.lake.last_commit("silver.sales")
    assert again is not None
    assert again.version == known.version + 1
    assert begun.lake.row_counts("silver.sales", -1, again.version) == before
    delete(begun, "silver.sales")
    assert begun.run()["silver.sales"].cause == "altered"
