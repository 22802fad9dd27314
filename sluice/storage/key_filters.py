"""Which files of a table may have a wanted row, by the Bloom filters of its keys, of which a few pages are read.

A reader of Parquet reads the filters of all files for each search, and columns of a file where its filter is wrong of
one of the keys. Here a key is asked only of the files whose bounds allow the other values of its row. To ask takes a
page of a filter, which is kept: the files of a table never change.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.model.found import Among, Condition
from sluice.storage.bounds import bounds_of
from sluice.storage.xxh64 import xxh64

# A file of fewer rows is read as fast without a filter.
rows_min = 10_000
page_bytes = 4_096
# 64 MB.
pages_kept_max = 16_384
files_kept_max = 100_000
block_bytes = 32
# How Parquet writes that a filter has so many bytes, and is of blocks, by XXH64, and not compressed.
header = re.compile(rb"\x15([\x80-\xff]*[\x00-\x7f])(?:\x1c\x1c\x00\x00){3}\x00")
# A value sets a bit in each of the eight words of a block.
salts = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
whole_number_bytes = {"INT32": 4, "INT64": 8}
# A value as filters know it: its hash, and the bits that it sets in a block; None where nothing can be said.
Key = tuple[int, int] | None


@dataclass(frozen=True)
class Filter:
    """The filter of a column in one group of a file's rows: its `blocks` begin at `start`."""

    path: str
    start: int
    blocks: int

    def may_hold(self, hashed: int, bits: int) -> bool:
        number, at = divmod(((hashed >> 32) * self.blocks >> 32) * block_bytes, page_bytes)
        block = page(self.path, self.start + number * page_bytes)[at : at + block_bytes]
        if len(block) < block_bytes:
            raise OSError(f"{self.path} ends within a Bloom filter")
        return int.from_bytes(block, "little") & bits == bits


@dataclass(frozen=True)
class Filters:
    """The filters of a column in a file, one for each group of its rows, and Parquet's type of the column."""

    kind: str
    groups: Sequence[Filter]

    def may_hold(self, key: Key) -> bool:
        return key is None or any(each.may_hold(*key) for each in self.groups)


known: dict[str, Mapping[str, Filters]] = {}


def may_have(files: pa.Table, paths: Sequence[str], conditions: Sequence[Condition]) -> "pa.Array[Any]":
    """For each of a table's files, which are at these paths, whether it may have a wanted row."""
    wanted = [each for each in conditions if isinstance(each, Among)]
    columns = {each.column: each.values for each in wanted if is_hashed(each.values.type)}
    counts = files["num_records"].to_pylist()
    large = [path for path, count in zip(paths, counts, strict=True) if count is not None and count >= rows_min]
    filters, keys, found = filters_of(large) if columns else {}, Keys(columns), []
    for number, path in enumerate(paths):
        asked = [(keys.of(name, each.kind), each) for name, each in filters.get(path, {}).items() if name in columns]
        rows = rows_within(files.slice(number, 1), wanted) if asked else []
        found.append(not asked or any(all(each.may_hold(of[row]) for of, each in asked) for row in rows))
    return pa.array(found, pa.bool_())


class Keys:
    """The keys of the wanted rows, by column and Parquet's type of it in a file."""

    def __init__(self, columns: "Mapping[str, pa.ChunkedArray[Any]]") -> None:
        self.columns = columns
        self.known: dict[tuple[str, str], list[Key]] = {}

    def of(self, column: str, kind: str) -> list[Key]:
        if (column, kind) not in self.known:
            self.known[column, kind] = [key_of(each, kind) for each in self.columns[column].to_pylist()]
        return self.known[column, kind]


def rows_within(file: pa.Table, wanted: Sequence[Among]) -> list[int]:
    """Which of the wanted rows a file can have, by what the log says of it."""
    can_be: Any = pa.repeat(pa.scalar(True), len(wanted[0].values))
    for each in wanted:
        bounds = bounds_of(file, each.column)
        if bounds is not None:
            least, greatest, nulls = (column[0] for column in bounds)
            values: Any = each.values
            within = pc.and_kleene(pc.greater_equal(values, least), pc.less_equal(values, greatest))
            has_nulls = not nulls.is_valid or nulls.as_py() > 0
            can_be = pc.and_(can_be, pc.if_else(pc.is_null(values), has_nulls, pc.fill_null(within, True)))
    return [number for number, is_within in enumerate(can_be.to_pylist()) if is_within]


def is_hashed(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_signed_integer(kind)


def key_of(value: object, kind: str) -> Key:
    """A value of a column of one of Parquet's types; None where a filter says nothing of it, as of null."""
    if isinstance(value, int) and kind in whole_number_bytes:
        size_bytes = whole_number_bytes[kind]
        is_known = value.bit_length() < 8 * size_bytes
        return hashed(value.to_bytes(size_bytes, "little", signed=True)) if is_known else None
    if isinstance(value, str | bytes) and kind == "BYTE_ARRAY":
        return hashed(value.encode() if isinstance(value, str) else value)
    return None


@lru_cache(maxsize=10_000)
def hashed(content: bytes) -> tuple[int, int]:
    return bits_of(xxh64(content))


def bits_of(found: int) -> tuple[int, int]:
    """A hash, and the bits that it sets in a block."""
    low = found & 2**32 - 1
    return found, sum(1 << (32 * at + ((low * salt & 2**32 - 1) >> 27)) for at, salt in enumerate(salts))


def filters_of(paths: Sequence[str]) -> Mapping[str, Mapping[str, Filters]]:
    """The filters of files by column, of which each file is asked once."""
    missing = [path for path in paths if path not in known]
    if len(known) + len(missing) > files_kept_max:
        known.clear()
        missing = list(paths)
    if missing:
        known.update(read_filters(missing))
    return known


def read_filters(paths: Sequence[str]) -> dict[str, Mapping[str, Filters]]:
    return {path: filters_in(path, pq.read_metadata(path)) for path in paths}


def filters_in(path: str, said: pq.FileMetaData) -> dict[str, Filters]:
    """The filters of the columns of which all groups have one."""
    found = {}
    for number in range(said.num_columns):
        column = said.schema.column(number)
        parts: list[Any] = [said.row_group(group).column(number) for group in range(said.num_row_groups)]
        offsets = [each.bloom_filter_offset for each in parts]
        groups = [None if offset is None else filter_at(path, offset) for offset in offsets]
        # The field b of a struct a is no column of the table.
        if column.name == column.path and parts and None not in groups:
            found[column.name] = Filters(column.physical_type, [each for each in groups if each is not None])
    return found


def filter_at(path: str, offset: int) -> Filter | None:
    """The filter at a place in a file; None where it is of another kind than this module knows."""
    said = header.match(page(path, offset))
    if said is None:
        return None
    bits = reduce(lambda value, byte: value << 7 | byte & 0x7F, reversed(said[1]), 0)
    # Whole numbers are written with their sign in the last bit.
    return Filter(path, offset + said.end(), (bits >> 1) // block_bytes)


@lru_cache(maxsize=pages_kept_max)
def page(path: str, start: int) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.pread(file, page_bytes, start)
    finally:
        os.close(file)
