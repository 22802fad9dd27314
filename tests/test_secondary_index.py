"""An index by a column finds the rows that the table has, whatever happened to either before."""

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.model.found import Among, During
from sluice.storage import secondary_index as index
from sluice.storage import small_reads
from sluice.storage.delta.bloom import writer_properties

values: dict[pa.DataType, list[Any]] = {
    pa.string(): ["", "a", "a'b", "x\x00y", "Zürich 🛫", "%41", "\\"],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 2],
    pa.int8(): [-128, -1, 0, 127],
    pa.date32(): [date(1, 1, 1), date(2026, 1, 1), date(9999, 12, 31)],
    pa.timestamp("us", "UTC"): [-62_135_596_800_000_000, -1, 0, 1_767_225_600_123_456, 253_402_300_799_999_999],
}
law = settings(max_examples=12, deadline=None)
index_folder = f"{index.indexes_folder}/k"
Check = Callable[[int], None]


class World:
    """A table with a key of any type, and its index, to which anything happens."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder / "table", random.Random(seed)
        self.kind = self.chance.choice(list(values))
        self.numbers = iter(range(10**6))
        for _ in range(2):
            self.append()

    def append(self) -> None:
        count = self.chance.choice([1, 1, 2, 30])
        numbers = [next(self.numbers) for _ in range(count)]
        keys = [self.chance.choice([None, *values[self.kind]]) for _ in numbers]
        columns = [pa.array(numbers, pa.int64()), pa.array(keys, self.kind), pa.array([["x", None]] * count)]
        write_deltalake(self.folder, pa.table(columns, ["n", "k", "s"]), mode="append")

    def move(self) -> None:
        """Rows get another key, in files written again."""
        numbers = self.numbers_there()
        moved = [self.chance.choice(numbers) for _ in range(3)] if numbers else []
        kept = self.rows().filter(pc.is_in(pa.chunked_array([numbers], pa.int64()), pa.array(moved, pa.int64())))
        keys = pa.array([self.chance.choice(values[self.kind]) for _ in range(kept.num_rows)], self.kind)
        if kept.num_rows:
            wanted = f"n IN ({', '.join(map(str, moved))})"
            write_deltalake(self.folder, kept.set_column(1, "k", keys), mode="overwrite", predicate=wanted)

    def delete(self) -> None:
        DeltaTable(self.folder).delete(f"n % {self.chance.choice([2, 7])} = 0")

    def compact(self) -> None:
        DeltaTable(self.folder).optimize.compact()

    def restore(self) -> None:
        table = DeltaTable(self.folder)
        table.restore(self.chance.randrange(1, table.version()) if table.version() > 1 else 0)

    def replace(self) -> None:
        """Another table in the same place, of which no version was seen."""
        rows = self.rows()
        for path in self.folder.iterdir():
            if path.name != index.indexes_folder:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_deltalake(self.folder, rows, mode="append")
        self.append()

    def lose_index(self) -> None:
        shutil.rmtree(self.folder / index_folder, ignore_errors=True)

    def lose_run(self) -> None:
        for run in self.runs()[:1]:
            run.unlink()

    def damage(self) -> None:
        """One byte, anywhere in a run."""
        for run in self.runs()[:1]:
            content = bytearray(run.read_bytes())
            content[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
            run.write_bytes(content)

    def truncate(self) -> None:
        for run in self.runs()[:1]:
            run.write_bytes(run.read_bytes()[: self.chance.randrange(100)])

    def double(self) -> None:
        """As two processes do that index the same files at once."""
        for run in self.runs()[:1]:
            shutil.copy(run, run.with_name(f"{next(self.numbers)}-{run.name.rsplit('-', 1)[-1]}"))

    def runs(self) -> list[Path]:
        return self.chance.sample(found := sorted((self.folder / index_folder).glob("*.parquet")), len(found))

    def rows(self, version: int | None = None) -> pa.Table:
        found = pa.table(DeltaTable(self.folder, version).scan().read_all())
        return found.cast(pa.schema([("n", pa.int64()), ("k", self.kind), ("s", pa.list_(pa.string()))]))

    def numbers_there(self) -> list[int]:
        return [int(str(each)) for each in self.rows()["n"].to_pylist()]

    def check(self) -> None:
        """Of the newest version, or of one before: the rows of some keys, and the place of each row."""
        version = self.chance.choice([None, None, self.chance.randrange(1, DeltaTable(self.folder).version() + 1)])
        keys = self.chance.choices([None, *values[self.kind]], k=self.chance.choice([1, 3]))
        first, last = 3, self.chance.choice([None, 40])
        during = During("n", pa.scalar(first, pa.int64()), None if last is None else pa.scalar(last, pa.int64()))
        everything = self.rows(version)
        wanted = [
            (number, key)
            for number, key in comparable(everything)
            if key in comparable_keys(keys, self.kind) and first <= number < (last or 10**6)
        ]
        table, among = DeltaTable(self.folder, version), Among("k", pa.chunked_array([pa.array(keys, self.kind)]))
        found = None
        for _ in range(len(self.runs()) + 1):
            # After an error it is searched without the index; but not for the same run twice.
            with suppress(*index.errors):
                found = index.find_among(table, everything.schema, str(self.folder), among, [among, during])
                break
        assert found is not None
        assert sorted(comparable(found), key=repr) == sorted(wanted, key=repr)
        assert all(each == ["x", None] for each in found["s"].to_pylist())
        for row in found.select(["n", small_reads.file_name, small_reads.place]).to_pylist():
            there = pq.read_table(row[small_reads.file_name], columns=["n"])["n"]
            assert there[row[small_reads.place]].as_py() == row["n"]


def comparable(rows: pa.Table) -> list[tuple[Any, Any]]:
    return list(zip(rows["n"].to_pylist(), as_numbers(rows["k"]).to_pylist(), strict=True))


def comparable_keys(keys: list[Any], kind: pa.DataType) -> list[Any]:
    return list(as_numbers(pa.array(keys, kind)).to_pylist())


def as_numbers(column: Any) -> Any:
    """Python knows no year beyond 9999."""
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


happenings = [
    name for name in vars(World) if not name.startswith("_") and name not in ("check", "runs", "rows", "numbers_there")
]


def lived_through(seed: int, folder: Path) -> bool:
    world = World(folder, seed)
    world.check()
    for _ in range(8):
        getattr(world, world.chance.choice(happenings))()
        world.check()
    return True


@law
@given(seed=st.integers(0, 2**32 - 1))
def test_the_rows_found_are_those_of_the_table(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    lived_through(seed, tmp_path_factory.mktemp("world"))


def without_first(found: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def mutant(*given: Any) -> Iterator[Any]:
        rows = found(*given)
        next(rows, None)
        return rows

    return mutant


known_sources, known_meets = index.sources_of, index.meets
mutants: dict[str, tuple[str, Any]] = {
    "a group of rows is skipped": ("numbers_of_groups", without_first(index.numbers_of_groups)),
    "a new file is not indexed": ("sources_of", lambda table: dict(list(known_sources(table).items())[1:])),
    "rows of files that are gone are found": (
        "shared_out",
        lambda runs, sources: [(run, frozenset(run.rows)) for run in runs if sources.keys() & run.rows.keys()],
    ),
    "nulls are forgotten": (
        "meets",
        lambda rows, condition: pc.and_(known_meets(rows, condition), pc.is_valid(rows[condition.column])),
    ),
}


@pytest.mark.parametrize("mutant", mutants)
def test_the_law_notices_when(mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, *mutants[mutant])
    with pytest.raises((AssertionError, *index.errors)):
        all(lived_through(seed, tmp_path / str(seed)) for seed in range(20))


@pytest.fixture
def made(tmp_path: Path) -> World:
    return World(tmp_path, seed=1)


def find(world: World, number: int = 3) -> list[tuple[Any, Any]]:
    schema, table = world.rows().schema, DeltaTable(world.folder)
    among = Among("k", pa.chunked_array([pa.array([None, *values[world.kind]][:number], world.kind)]))
    found = index.find_among(table, schema, str(world.folder), among, [among])
    assert found is not None
    return sorted(comparable(found), key=repr)


def test_a_changed_byte_is_noticed_or_changes_nothing(made: World) -> None:
    expected = find(made)
    (run,) = made.runs()
    content, noticed = run.read_bytes(), 0
    for at in range(0, len(content), 29):
        run.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        try:
            assert find(made) == expected
        except index.errors:
            noticed += 1
        for path in made.runs():
            path.unlink()
    assert noticed > 10


def test_a_changed_bit_in_a_group_of_rows_is_noticed_also_in_the_header_of_a_page(made: World) -> None:
    find(made)
    (run,) = made.runs()
    content = run.read_bytes()
    (first, last) = index.extent(pq.read_metadata(run).row_group(0))
    assert len(content) > last > first == len(b"PAR1")
    for at in range(first, last, 5):
        run.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        with pytest.raises(index.errors):
            find(made)
        assert made.runs() == []


@pytest.mark.parametrize("step", ["rename", "unlink"])
def test_a_process_that_dies_leaves_nothing_that_matters(
    made: World, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(made)
    for _ in range(4):
        made.append()

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, step, die)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            find(made)
    left = unfinished(made)
    assert len(left) == 1
    os.utime(left[0], (0, 0))
    made.append()
    find(made)
    made.check()
    assert unfinished(made) == []


def unfinished(world: World) -> list[Path]:
    return [path for path in (world.folder / index_folder).iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("how", ["killed", "refused"])
def test_a_table_whose_sorting_fails_is_sorted_again_only_after_a_while(
    made: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_rows = Counter[str]()

    def failing(*given: Any) -> Any:
        sorted_rows.update(path for path, _ in given[3])
        raise SystemExit if how == "killed" else pa.ArrowInvalid("not sorted")

    among = Among("k", pa.chunked_array([pa.array([None], made.kind)]))

    def look() -> pa.Table | None:
        given = (made.rows().schema, str(made.folder), among, [among])
        return index.find_among(DeltaTable(made.folder), *given)

    with monkeypatch.context() as patched:
        patched.setattr(index, "sorted_rows", failing)
        with pytest.raises((SystemExit, pa.ArrowInvalid)):
            look()
        assert look() is None
    assert set(sorted_rows.values()) == {1}
    (left,) = unfinished(made)
    assert list(left.iterdir()) == []
    os.utime(left, (0, 0))
    assert look() is not None
    assert unfinished(made) == []


def test_each_row_is_sorted_again_only_as_often_as_the_index_doubles(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sorted_rows, build = Counter[str](), index.build
    monkeypatch.setattr(
        index, "build", lambda *given: (sorted_rows.update(path for path, _ in given[-1]), build(*given))[1]
    )
    for _ in range(40):
        made.append()
        find(made)
    assert max(sorted_rows.values()) <= 7
    assert len(made.runs()) <= 7


def test_a_table_that_is_vacuumed_keeps_its_index(made: World) -> None:
    find(made)
    table = DeltaTable(made.folder)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(made.runs()) == 1
    # The rows of files that are gone go with the next run.
    find(made)
    (run,) = made.runs()
    assert pq.read_metadata(run).num_rows == made.rows().num_rows


def test_an_index_that_nobody_uses_is_deleted(made: World) -> None:
    find(made)
    home = made.folder / index_folder
    os.utime(home, (time.time() - 40 * 86_400,) * 2)
    find(made)
    index.delete_unused(str(made.folder), days=30)
    assert made.runs()
    os.utime(home, (time.time() - 40 * 86_400,) * 2)
    index.delete_unused(str(made.folder), days=30)
    assert not home.exists()


def test_files_of_more_rows_than_the_log_says_are_not_indexed(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        index, "sources_of", lambda table: {each: rows + 1 for each, rows in known_sources(table).items()}
    )
    with pytest.raises(pa.ArrowInvalid, match="other rows"):
        find(made)
    assert made.runs() == []


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that is ordered by time, with Bloom filters by key, and neither by customer."""
    folder = tmp_path_factory.mktemp("facts")
    for start in range(0, 40_000, 10_000):
        numbers = range(start, start + 10_000)
        rows = pa.table(
            {
                "id": [f"{number * 7_919 % 40_009:016d}" for number in numbers],
                "at": pa.array([number * 1_000_000 for number in numbers], pa.timestamp("us", "UTC")),
                "customer": [f"c{number % 400}" for number in numbers],
                "kind": [f"k{number % 2}" for number in numbers],
            }
        )
        write_deltalake(
            folder, rows, mode="append", writer_properties=writer_properties({"id": "string"}, ["id"], len(rows))
        )
    return folder


@pytest.mark.parametrize(
    ("columns", "numbers", "used"),
    [
        (["customer"], range(3), "customer"),
        (["id"], range(600), None),
        (["id", "at"], range(600), None),
        (["id", "at", "customer"], [1 + 400 * number for number in range(100)], "customer"),
        (["id", "at", "customer"], range(0, 40_000, 397), None),
        (["id", "at", "customer"], range(10), None),
        (["customer"], range(101), None),
    ],
    ids=["customers", "keys", "keys in time", "facts of a customer", "scattered facts", "few facts", "many customers"],
)
def test_an_index_is_used_where_nothing_else_leads_to_few_pages(
    facts: Path, columns: list[str], numbers: range | list[int], used: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "table_bytes_min", 10_000)
    rows = pa.table(DeltaTable(facts).scan().read_all())
    texts = dict.fromkeys(("id", "customer", "kind"), pa.string())
    schema = pa.schema(texts | {"at": pa.timestamp("us", "UTC")})
    wanted = rows.select(schema.names).cast(schema).take(pa.array(numbers))
    conditions = [Among(name, wanted[name]) for name in columns]
    table = DeltaTable(facts)
    found = index.indexed(table, schema, str(facts), conditions, small_reads.candidates(table, conditions))
    assert [each.column for each in found] == ([] if used is None else [used])


def test_no_index_is_made_for_values_that_many_rows_have(facts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "table_bytes_min", 10_000)
    monkeypatch.setattr(small_reads, "rows_max", 10_000)
    schema, table = pa.schema([("customer", pa.string()), ("kind", pa.string())]), DeltaTable(facts)
    for column, value, is_made in (("kind", "k1", False), ("customer", "c1", True)):
        conditions = [Among(column, pa.chunked_array([[value]]))]
        files = small_reads.candidates(table, conditions)
        found = index.find_placed(table, schema, str(facts), conditions, files)
        assert (found is not None) == is_made
        assert (facts / index.indexes_folder / column).exists() == is_made


def test_of_a_key_of_two_columns_that_one_is_indexed_whose_values_few_rows_have(
    facts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "table_bytes_min", 10_000)
    monkeypatch.setattr(small_reads, "rows_max", 10_000)
    table, schema = DeltaTable(facts), pa.schema(dict.fromkeys(("kind", "customer"), pa.string()))
    conditions = [Among(name, pa.chunked_array([[value]])) for name, value in (("kind", "k1"), ("customer", "c7"))]
    candidates = small_reads.candidates(table, conditions)
    found = index.find_placed(table, schema, str(facts), conditions, candidates)
    assert found is not None
    assert found.num_rows == 100
    assert not (facts / index.indexes_folder / "kind").exists()


def test_no_more_of_an_index_is_read_than_of_the_table(facts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, schema = DeltaTable(facts), pa.schema(dict.fromkeys(("customer", "id"), pa.string()))
    among = Among("customer", pa.chunked_array([[f"c{number * 4}" for number in range(100)]]))
    monkeypatch.setattr(index, "indexed", lambda *_: [among])
    everything = small_reads.candidates(table, [among])
    for files, is_used in ((everything, True), (everything.slice(0, 1), False)):
        found = index.find_placed(table, schema, str(facts), [among], files)
        assert (found is not None) == is_used


def test_rows_of_more_bytes_than_the_driver_takes_are_not_collected(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    find(made, number=5)
    monkeypatch.setattr(small_reads, "bytes_max", 10)
    with pytest.raises(AssertionError):
        find(made, number=5)
