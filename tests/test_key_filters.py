"""Which files may have a wanted row is known from pages of their Bloom filters, whoever wrote them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.model.found import Among, Condition
from sluice.storage import key_filters
from sluice.storage.delta.bloom import writer_properties
from sluice.storage.key_filters import rows_min
from sluice.storage.xxh64 import xxh64

count = 500
texts = [f"{'é' * (number % 70)}{number}" for number in range(2 * count)]
# Of each type as many values that are there as others.
values: "dict[str, pa.Array[Any]]" = {
    "string": pa.array(texts, pa.string()),
    "binary": pa.array([each.encode() for each in texts], pa.binary()),
    "bigint": pa.array([(-1) ** number * number * 2**52 for number in range(2 * count)], pa.int64()),
    "int": pa.array([(-1) ** number * number * 2**21 for number in range(2 * count)], pa.int32()),
}


class Asked:
    """A table of these files, the oldest first, with filters of `id`; it says which may have one of the wanted rows."""

    def __init__(self, folder: Path, *files: pa.Table, kind: str = "string") -> None:
        properties = writer_properties({"id": kind}, ["id"], rows_min)
        for rows in files:
            write_deltalake(folder, rows, mode="append", writer_properties=properties)
        actions = pa.table(DeltaTable(folder).get_add_actions(flatten=True))
        self.files = actions.sort_by("modification_time")
        self.paths = [f"{folder}/{name}" for name in self.files["path"].to_pylist()]

    def __call__(self, **wanted: "pa.Array[Any]") -> list[bool]:
        conditions: list[Condition] = [Among(name, pa.chunked_array([each])) for name, each in wanted.items()]
        return [bool(each) for each in key_filters.may_have(self.files, self.paths, conditions).to_pylist()]


@pytest.fixture(autouse=True)
def files_of_few_rows_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filters, "rows_min", 1)


@pytest.mark.parametrize(
    ("content", "hashed"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_hash_is_that_of_others(content: bytes, hashed: int) -> None:
    assert xxh64(content) == hashed


@pytest.mark.parametrize("kind", values)
def test_a_value_that_is_there_is_always_found_and_another_hardly_ever(tmp_path: Path, kind: str) -> None:
    there, absent = values[kind].slice(0, count), values[kind].slice(count)
    table = Asked(tmp_path, pa.table({"id": there}), kind=kind)
    assert all(table(id=there.slice(number, 1)) == [True] for number in range(count))
    assert sum(table(id=absent.slice(number, 1)) == [True] for number in range(count)) <= 1


def test_with_another_hash_a_value_would_be_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test above."""
    monkeypatch.setattr(key_filters, "hashed", lambda content: key_filters.bits_of(xxh64(content) + 1))
    there = values["string"].slice(0, count)
    table = Asked(tmp_path, pa.table({"id": there}))
    assert table(id=there.slice(0, 1)) == [False]


def test_a_key_is_asked_of_the_files_that_may_have_the_rest_of_its_row(tmp_path: Path) -> None:
    times = pa.timestamp("us", "UTC")

    def rows(ids: list[str], start: int) -> pa.Table:
        return pa.table({"id": ids, "at": pa.array([start, start + 1], times)})

    table = Asked(tmp_path, rows(["a", "b"], 0), rows(["c", "d"], 10_000_000))

    def held(ids: list[str], at: list[int | None]) -> list[bool]:
        return table(id=pa.array(ids), at=pa.array(at, times))

    assert held(["a", "d"], [0, 10_000_001]) == [True, True]
    assert held(["a"], [0]) == [True, False]
    assert held(["a", "c"], [10_000_000, 0]) == [False, False]
    # No row is without a time.
    assert held(["a"], [None]) == [False, False]


def test_a_key_that_is_null_is_in_the_files_that_have_nulls(tmp_path: Path) -> None:
    table = Asked(tmp_path, pa.table({"id": ["a", "b"]}), pa.table({"id": ["a", None]}))
    assert table(id=pa.array([None], pa.string())) == [False, True]


def test_a_file_without_filters_may_have_any_row(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": ["a", "c"]}))
    assert Asked(tmp_path)(id=pa.array(["b"])) == [True]


def test_a_filter_of_another_kind_says_nothing(tmp_path: Path) -> None:
    table = Asked(tmp_path, pa.table({"id": ["a", "c"]}))
    file = Path(table.paths[0])
    start = key_filters.read_filters(table.paths)[str(file)]["id"].groups[0].start
    content = bytearray(file.read_bytes())
    content[start - 2] = 7
    file.write_bytes(content)
    key_filters.page.cache_clear()
    assert table(id=pa.array(["b"])) == [True]
