"""Faults strike for a few minutes, by a fixed seed; `make soak-faults` goes on for as long as wanted with others."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from sluice.engine import commit
from sluice.engine.plan import Plan
from sluice.errors import SluiceError
from sluice.log import checksums, segment_batch, segments
from sluice.storage.delta import Lake
from tests.faults import rounds
from tests.faults.rounds import Life, damaged_file, delete, runnings, small_disk, writings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

given = os.environ.get("SLUICE_FAULTS_SEED")


@pytest.mark.process
@pytest.mark.parametrize("seed", [int(given)] if given else [1])
def test_every_acknowledged_record_is_there_once_after_any_fault(
    spark: "SparkSession", tmp_path: Path, seed: int
) -> None:
    """Each fault of a run and of a segment that lands strikes once, in an order that the seed says."""
    done: list[str] = []
    with small_disk(tmp_path) as folder:
        life = Life(spark, folder, seed)
        strikes = [each for each in writings if is_of_tables(each)]
        others = [each for each in writings if not is_of_tables(each)]
        strikes += life.chance.sample(others, len(runnings) - len(strikes))
        life.chance.shuffle(strikes)
        for writing, running in zip(strikes, life.chance.sample(list(runnings), len(runnings)), strict=True):
            try:
                done.append(life.round_of(writing, running))
            except Exception as error:
                raise AssertionError(f"SLUICE_FAULTS_SEED={seed}: {writing}; {running}, after {done}") from error
        assert life.refused or not folder.is_mount()
    assert life.acknowledged


def is_of_tables(writing: str) -> bool:
    """Whether a fault strikes a file of the log, and shows when that lands."""
    return "segment" in writing


@pytest.mark.process
@pytest.mark.parametrize("tried", [each for each in writings if not is_of_tables(each)])
def test_each_fault_of_a_writer(spark: "SparkSession", tmp_path: Path, tried: str) -> None:
    """Each kind at least once, whatever the seed draws; what it leaves in the log can be read and appended to."""
    with small_disk(tmp_path) as folder:
        life = Life(spark, folder, 2)
        for _ in range(3):
            writings[tried](life)
            life.log.append("sales", [])
            found = {each["id"] for record in life.stored("sales") if (each := rounds.usable(record.value))}
            assert life.acknowledged <= found
        assert life.refused or tried != "a disk that is full while a writer appends" or not folder.is_mount()


# Mutants: each kind of fault turns the harness red when the code that bears it is broken.


def acknowledged_too_early(*_: Any, **__: Any) -> None:
    """Publishes nothing."""


def in_place(folder: Path, base_offset: int, lines: Any, *, compress: bool) -> Path:
    """Writes a segment under its own name, so that half of one can be seen."""
    path = folder / f"{base_offset:020}.jsonl"
    with open(path, "wb", buffering=0) as file:
        content = b"".join(checksums.with_checksums(lines))
        file.write(content[: len(content) // 2])
    raise rounds.Crash


def unchecked(_path: Path, lines: Any) -> Any:
    yield from lines


def test_a_log_that_shows_half_a_segment_is_noticed(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(spark, tmp_path, 3)
    writings["nothing strikes the writer"](life)
    with monkeypatch.context() as patched:
        patched.setattr("sluice.log.log.publish", in_place)
        with pytest.raises(rounds.Crash):
            writings["nothing strikes the writer"](life)
    with pytest.raises(Exception, match="ends in the middle of a line"):
        life.require_all_is_well()


def test_an_acknowledgement_of_what_is_not_durable_is_noticed(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(spark, tmp_path, 3)
    writings["nothing strikes the writer"](life)
    with monkeypatch.context() as patched:
        patched.setattr("sluice.log.log.publish", acknowledged_too_early)
        writings["nothing strikes the writer"](life)
    with pytest.raises(AssertionError, match="acknowledged and missing"):
        life.require_all_is_well()


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_cursor_that_moves_before_the_fates_are_written_is_mended_by_what_it_notes_of_them(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_noted: bool
) -> None:
    original = commit.write

    def cursor_first(lake: Lake, plan: Plan) -> Any:
        """Writes the rows with their cursor first, and ends before the fates of the other records."""
        if plan.entry.dataset != "silver.sales":
            return original(lake, plan)
        if plan.output.table == "silver._fates":
            return plan.counts
        original(lake, plan)
        raise rounds.Crash

    life = Life(spark, tmp_path, 3)
    writings["hostile values"](life)
    writings["nothing strikes the writer"](life)
    runner = life.restarted().runner(parallel=1)
    monkeypatch.setattr(commit, "write", cursor_first)
    if not is_noted:
        monkeypatch.setattr(Plan, "after", lambda own, others: own)
    with pytest.raises(rounds.Crash):
        runner.until_caught_up()
    monkeypatch.undo()
    with nullcontext() if is_noted else pytest.raises(AssertionError):
        life.require_all_is_well()


def another_figure(_life: Life, path: Path) -> None:
    """Turns the bit of a digit that is a figure, so that the line is JSON still."""
    content = bytearray(path.read_bytes())
    content[content.index(b'pieces\\": ') + 10] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "broken"),
    [
        (another_figure, [(segments, "verified_lines", unchecked), (segments, "is_sealed", lambda content: False)]),
        (delete, [(segment_batch, "missing_before", lambda *_: range(0))]),
    ],
    ids=["a flipped bit", "a deleted segment"],
)
def test_a_reader_that_checks_nothing_is_noticed(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Life, Path], None],
    broken: list[tuple[Any, str, Any]],
) -> None:
    for place, name, mutant in broken:
        monkeypatch.setattr(place, name, mutant)
    monkeypatch.setattr(segment_batch, "spark_crc_field", "never")
    with pytest.raises((AssertionError, SluiceError, PySparkException)):
        lives_of(spark, tmp_path, damage)


def lives_of(spark: "SparkSession", folder: Path, damage: Callable[[Life, Path], None]) -> None:
    """Several short lives, each with one file that was damaged."""
    for seed in range(4):
        (folder / str(seed)).mkdir()
        life = Life(spark, folder / str(seed), seed)
        damaged_file(life, damage)
        life.require_all_is_well()
