"""What is known of a table, a lock or a query is not taken for another one in its place, whatever clocks say."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice import bronze, silver
from sluice.engine.blocked import Block, blocks, file_name, forget_blocks
from sluice.engine.catalogue import ordered
from sluice.log import Log
from sluice.model.ledger import Commit, Entry
from sluice.operate import standing
from sluice.operate.status import is_standing
from sluice.storage import folder_lock
from sluice.storage.delta import Lake

name = "silver.things"


def commit(lake: Lake, number: int, *values: int, table: str = name, by: str = name) -> None:
    """The rows of a table, replaced in one commit of a dataset, which is its nth."""
    said = CommitProperties({"userMetadata": Entry(dataset=by).to_json()}, app_transactions=[Transaction(by, number)])
    write_deltalake(lake.path(table), pa.table({"value": values}), mode="overwrite", commit_properties=said)


def move_cursor(lake: Lake) -> None:
    known = lake.last_commit(name)
    assert known is not None
    lake.move_cursor(name, known.unchanged(known.entry), known.fence)


def values(lake: Lake, version: int) -> list[int | None]:
    return lake.open(name, version).to_pyarrow_table()["value"].to_pylist()


def test_a_version_that_another_commit_took_after_a_restore_is_not_the_one_that_was_read(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    commit(lake, 1, 1)
    shutil.copytree(lake.path(name), tmp_path / "backup")
    move_cursor(lake)
    assert values(lake, 0) == [1]
    shutil.rmtree(lake.path(name))
    shutil.copytree(tmp_path / "backup", lake.path(name))
    commit(lake, 2, 1, 2)
    move_cursor(lake)
    assert (values(lake, 0), values(lake, 1)) == ([1], [1, 2])


def test_a_table_that_was_made_again_is_not_the_one_of_which_its_log_reaches_back(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for number in (1, 2):
        commit(lake, number, number)
    for _ in range(3):
        move_cursor(lake)
    changed, read = lake.commit_ms(name, 1), lake.commit_ms(name, 3)
    assert changed is not None
    assert read is not None
    for version in range(4):
        Path(lake.path(name), f"_delta_log/{version:020}.json").unlink()
    assert lake.kept_instead(name, 3, read) == 4
    assert lake.kept_instead(name, 1, changed) == 4
    # Of a table before this one, which had come to the same version.
    assert lake.kept_instead(name, 3, changed - 1) is None
    assert lake.kept_instead(name, 1, read) is None
    assert lake.kept_instead(name, 0, None) is None


def test_what_a_dataset_has_in_another_table_is_found_by_the_number_of_its_commit(tmp_path: Path) -> None:
    lake, shared = Lake(str(tmp_path)), "silver._fates"
    for number in (1, 2, 3):
        commit(lake, number, number, table=shared)
        # Others write it, too.
        commit(lake, number, number, table=shared, by="silver.others")

    def beside(number: int) -> int | None:
        entry = Entry(dataset=name, beside={shared: number})
        return lake.version_beside(shared, Commit(table_id="", version=0, timestamp_ms=0, entry=entry))

    assert [beside(number) for number in (1, 2, 3)] == [1, 3, 5]
    # It has come to fewer commits since it was made again.
    assert beside(4) is None
    shutil.rmtree(lake.path(shared))
    assert beside(3) == 0


def test_a_refusal_is_of_the_table_whose_rows_stayed() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    refused = {"table_id": "one", "refused_over": 5, "checked_at": at}

    def newest(table_id: str, version: int) -> Commit:
        return Commit(table_id=table_id, version=version, timestamp_ms=0, entry=Entry(dataset=name))

    assert is_standing(None, refused)
    assert is_standing(newest("one", 5), refused)
    assert not is_standing(newest("one", 6), refused)
    assert not is_standing(newest("made again", 0), refused)
    # As older releases kept it.
    of_before = {"checked_at": at}
    assert is_standing(newest("one", 9), of_before)
    assert not is_standing(newest("one", 9), {"checked_at": at - timedelta(days=30_000)})


def test_an_erasure_forgets_blocks_of_which_nobody_knows_when_they_were(tmp_path: Path) -> None:
    lake, now = Lake(str(tmp_path)), datetime.now(UTC)
    for dataset, tried_at in {"old": now - timedelta(1), "new": now, "of tomorrow": now + timedelta(1)}.items():
        block = Block(name=dataset, reason="a row", since=tried_at, tried_at=tried_at)
        lake.files.write(file_name(dataset), block.model_dump_json())
    forget_blocks(lake.files, now - timedelta(hours=1))
    assert list(blocks(lake.files)) == ["new"]


def test_a_lock_whose_file_was_removed_before_it_was_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = folder_lock.lock_file
    removed = [original(str(tmp_path))]
    Path(tmp_path, ".lock").unlink()
    monkeypatch.setattr(folder_lock, "lock_file", lambda root: removed.pop() if removed else original(root))
    with folder_lock.folder_lock(str(tmp_path)) as descriptor:
        assert os.path.samestat(os.fstat(descriptor), Path(tmp_path, ".lock").stat())
        assert folder_lock.is_folder_locked(str(tmp_path))


def test_the_last_change_of_a_stored_query_is_the_latest_though_a_clock_was_ahead(tmp_path: Path) -> None:
    log, lake = Log(tmp_path / "log"), Lake(str(tmp_path / "lake"))
    schema = "id string, at timestamp, price int"
    trades = silver.events("trades", source=bronze.topic("trades"), schema=schema, keys=["id"], event_time="at")
    alerts = ordered([silver.standing_queries("alerts", source=trades, queries=bronze.topic("queries"))])
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    standing.add(log, alerts, "silver.alerts", "large", "price > 100", past=False, valid_from=tomorrow, attributes={})
    standing.add(log, alerts, "silver.alerts", "other", "price > 1", past=False, valid_from=None, attributes={})
    standing.remove(log, lake, alerts, "silver.alerts", "large", valid_to=None)
    said = [orjson.loads(record.value or b"") for record in log.tail("queries")]
    moments = {
        (each["query_id"], each.get("is_deleted", False)): datetime.fromisoformat(each["changed_at"]) for each in said
    }
    assert moments["large", True] > moments["large", False] == tomorrow
    assert moments["other", False] < tomorrow
