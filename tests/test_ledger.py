"""The cursor: it names the commit that was read, so a table that went back to an older state is noticed."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice import bronze, gold, silver
from sluice.model.ledger import Commit, Entry, InputVersion
from sluice.operate import replay
from sluice.operate.maintain import maintain
from sluice.windows import window
from tests.kit import Lakehouse, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

events = silver.events(
    "events",
    source=bronze.topic("readings"),
    schema="id string, at timestamp, value int",
    keys=["id"],
    event_time="at",
    future_tolerance="1000 days",
)
sums = gold.aggregate("sums", source=events, group_by=[window("at", "1 hour")], measures={"value": "sum(value)"})
ids = "abcdefghijklmnopqrst"


def publish(lakehouse: Lakehouse, *names: str) -> None:
    """One segment for each record."""
    for name in names:
        hour = ids.index(name)
        lakehouse.publish("readings", {"id": name, "at": text(hour), "value": 1}, key="k", hours=hour + 1)


def log_of(lakehouse: Lakehouse, table: str) -> Path:
    return Path(lakehouse.lake.path(table)) / "_delta_log"


def went_back(lakehouse: Lakehouse, table: str, version: int) -> None:
    """Removes the commits after a version, as a restored backup would; a driver that starts later has no memory."""
    for path in log_of(lakehouse, table).iterdir():
        found = re.match(r"\.?(\d{20})\.", path.name)
        if found and int(found[1]) > version:
            path.unlink()
    lakehouse.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def seen(lakehouse: Lakehouse) -> str:
    return "".join(name for (name,) in lakehouse.rows("silver.events", "id"))


@pytest.fixture(scope="module")
def twelve(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Twelve events, landed in two commits."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("twelve")).declare(sums)
    publish(lakehouse, *ids[:10])
    lakehouse.run()
    publish(lakehouse, *ids[10:12])
    lakehouse.run()
    assert lakehouse.versions()["bronze.readings"] == 1
    return lakehouse


@pytest.fixture
def begun(twelve: Lakehouse, tmp_path: Path) -> Lakehouse:
    return twelve.copied_to(tmp_path)


def test_bronze_that_went_back_one_commit_and_uses_its_number_again_is_read_again(begun: Lakehouse) -> None:
    went_back(begun, "bronze.readings", 0)
    publish(begun, *ids[12:14])
    done = begun.run()
    assert begun.versions()["bronze.readings"] == 1, "the number that silver has seen already"
    assert seen(begun) == ids[:14]
    assert (done["silver.events"].cause, done["silver.events"].rows.total) == ("input rebuilt", 2)
    assert (done["gold.sums"].cause, done["gold.sums"].rows.inserted) == ("changes", 2)
    assert all(each.balanced for each in begun.audits())
    assert begun.run() == {}


def test_bronze_that_grew_past_the_cursor_after_it_went_back_is_read_again(begun: Lakehouse) -> None:
    went_back(begun, "bronze.readings", 0)
    publish(begun, *ids[12:16])
    # Silver looks again when bronze has come further than it was.
    (topic,) = [each for each in begun.catalogue.topics if each.name == "bronze.readings"]
    runner = begun.runner(batch_records_max=3)
    for _ in range(2):
        runner.step(topic, rebuild=False)
    assert begun.versions()["bronze.readings"] == 2
    done = begun.run()
    assert seen(begun) == ids[:16]
    assert (done["silver.events"].cause, done["silver.events"].rows.total) == ("input rebuilt", 4)
    assert begun.run() == {}


def test_bronze_with_fewer_commits_than_were_seen_is_read_again(begun: Lakehouse) -> None:
    publish(begun, ids[12])
    begun.run()
    publish(begun, ids[13])
    begun.run()
    went_back(begun, "bronze.readings", 1)
    publish(begun, ids[14])
    done = begun.run()
    assert begun.versions()["bronze.readings"] == 2
    assert seen(begun) == ids[:15]
    assert done["silver.events"].cause == "input rebuilt"
    assert all(each.balanced for each in begun.audits())


def test_a_folder_of_silver_from_a_backup_is_caught_up_and_gold_follows(lakehouse: Lakehouse, tmp_path: Path) -> None:
    lakehouse.declare(sums)
    publish(lakehouse, *ids[:10])
    lakehouse.run()
    here = Path(lakehouse.lake.path("silver.events"))
    shutil.copytree(here, tmp_path / "backup")
    publish(lakehouse, ids[10])
    lakehouse.run()
    shutil.rmtree(here)
    shutil.copytree(tmp_path / "backup", here)
    lakehouse.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    publish(lakehouse, ids[11])
    done = lakehouse.run()
    assert seen(lakehouse) == ids[:12]
    assert (done["gold.sums"].cause, done["gold.sums"].rows.inserted) == ("input rebuilt", 1)
    assert len(lakehouse.rows("gold.sums")) == 12
    assert all(each.balanced for each in lakehouse.audits())


def without_identities(lakehouse: Lakehouse) -> None:
    """Makes the ledger what it was before commits had an identity."""
    for table in lakehouse.lake.tables():
        for path in log_of(lakehouse, table).glob("*.json"):
            path.write_text(re.sub(r',\\"(commit_ms|changed_ms)\\":\d+', "", path.read_text()))
            # Hadoop's checksum of what was there before.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    lakehouse.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def test_a_lake_that_knows_no_identities_goes_on_without_a_rebuild(begun: Lakehouse) -> None:
    without_identities(begun)
    known = begun.lake.last_commit("silver.events")
    assert known is not None
    assert {each.commit_ms for each in known.entry.inputs.values()} == {None}
    assert begun.run() == {}
    publish(begun, ids[12])
    done = begun.run()
    assert {name: event.cause for name, event in done.items()} == {
        "bronze.readings": "records",
        "silver.events": "changes",
        "gold.sums": "changes",
    }


def noted(lakehouse: Lakehouse) -> None:
    """A duplicate: silver's cursor moves, and no row does."""
    lakehouse.publish("readings", {"id": "a", "at": text(0), "value": 1}, key="k", hours=1)
    lakehouse.run()


def checkpointed(lakehouse: Lakehouse) -> None:
    lakehouse.lake.open("silver.events").create_checkpoint()


def maintained(lakehouse: Lakehouse) -> None:
    assert maintain(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, ["silver.events"])["silver.events"][
        "compacted"
    ]


@pytest.mark.parametrize("done", [noted, checkpointed, maintained])
def test_the_identity_of_a_commit_survives_what_changes_no_row(
    begun: Lakehouse, done: Callable[[Lakehouse], None]
) -> None:
    before = begun.lake.last_commit("silver.events")
    done(begun)
    after = begun.lake.last_commit("silver.events")
    assert before is not None
    assert after is not None
    assert before.as_input.commit_ms is not None
    assert after.as_input == before.as_input
    publish(begun, ids[12])
    assert begun.run()["gold.sums"].cause == "changes"


def test_a_replay_promoted_and_rolled_back_is_followed_by_changes(begun: Lakehouse) -> None:
    planned = replay.plan(begun.lake, begun.catalogue, ["silver.events"], None, "to see")
    list(replay.build(begun.spark, begun.lake, begun.catalogue, planned))
    assert replay.find(begun.lake, planned.name).rows_that_differ == 0
    replay.promote(begun.spark, begun.lake, begun.catalogue, planned.name)
    assert begun.run() == {}
    publish(begun, ids[12])
    done = begun.run()
    assert [done[name].cause for name in ("silver.events", "gold.sums")] == ["changes", "changes"]


def test_an_entry_without_identity_is_the_state_of_its_version() -> None:
    old, new = InputVersion(epoch="t", version=3), InputVersion(epoch="t", version=3, commit_ms=5)
    assert old.is_state(new)
    assert new.is_state(old)
    assert not new.is_state(new.model_copy(update={"commit_ms": 6}))
    assert not old.is_state(new.model_copy(update={"version": 4}))
    assert Entry(dataset="d", inputs={"t": old}).is_computed_from(Entry(dataset="d", inputs={"t": new}))
    assert not Entry(dataset="d", inputs={"t": old}).is_computed_from(Entry(dataset="d"))


def test_a_commit_says_how_long_it_took_and_an_entry_is_the_same_whenever_it_began() -> None:
    began = Entry(dataset="silver.a", began_ms=1_000)
    commit = Commit(table_id="t", version=0, timestamp_ms=3_500, entry=began)
    assert commit.seconds == 2.5
    assert commit.model_copy(update={"entry": Entry(dataset="silver.a")}).seconds is None
    assert began.says_the_same(Entry(dataset="silver.a", began_ms=2_000))
    assert not began.says_the_same(Entry(dataset="silver.b", began_ms=1_000))
    assert not began.says_the_same(None)


def test_commits_that_do_not_say_what_was_declared_are_no_others() -> None:
    older, newer = Entry(dataset="silver.a"), Entry(dataset="silver.a", declared={"kind": "join 2", "keys": "1"})
    assert newer.says_the_same(older)
    assert older.changed_fields(newer.declared) == ()
    assert newer.changed_fields({"kind": "join 2", "keys": "2", "grain": "1"}) == ("keys", "grain")
    assert newer.changed_fields({"kind": "join 3", "keys": "2"}) == ("kind",)
