"""Search all files of a lake and a log for a value: as text, in JSON at any depth, and decoded from Parquet."""

import gzip
import json
import re
import unicodedata
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any
from urllib.parse import unquote

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from sluice.errors import UsageError
from sluice.log import AnyLog
from sluice.storage.delta import Lake
from sluice.storage.files import Files

# A shorter value is in too many files to say anything.
characters_min = 4
rows_at_once = 65_536


@dataclass(frozen=True)
class Hit:
    """A file, or a partition on Kafka, in which a value was found, and where in it."""

    file: str
    place: str


def search(lake: Lake, log: AnyLog, value: str, topics: Iterable[str] = ()) -> list[Hit]:
    """Where a value is found, and not as a part of a longer word; a UsageError for one that is too short.

    Of a log that is not in files these topics are read, each as a whole.
    """
    if len(value) < characters_min:
        raise UsageError(f"A value to search for has {characters_min} characters at least.")
    wanted = Wanted(value)
    found = list(in_files(lake.root, wanted))
    if log.folder_of_files and log.folder_of_files.is_dir():
        found += in_files(str(log.folder_of_files), wanted)
    return found + [hit for topic in topics for hit in in_topic(log, topic, wanted)]


def in_topic(log: AnyLog, topic: str, wanted: "Wanted") -> Iterator[Hit]:
    """The records of a topic that are in no file."""
    for partition, offset, parts in log.beside_files(topic):
        if any(map(wanted.is_in, parts)):
            yield Hit(f"{topic}/{partition}", f"offset {offset}")


def in_files(root: str, wanted: "Wanted") -> Iterator[Hit]:
    files = Files(root)
    for name in files.below(""):
        try:
            content = bytes(obstore.get(files.store, name).bytes())
        except FileNotFoundError:
            # A server that works meanwhile has removed it.
            continue
        place = "its name" if wanted.is_in(unquote(name)) else place_in(name, content, wanted)
        if place:
            yield Hit(f"{root}/{name}", place)


def place_in(name: str, content: bytes, wanted: "Wanted") -> str | None:
    """Where in a file the value is; None where it is not."""
    if content[:4] == b"PAR1":
        with suppress(pa.ArrowInvalid, OSError):
            return next(places_in_parquet(pq.ParquetFile(pa.BufferReader(content)), wanted), None)
    if content[:2] == b"\x1f\x8b":
        with suppress(OSError, EOFError):
            content = gzip.decompress(content)
    if content[:4] == b"\x28\xb5\x2f\xfd":
        with suppress(zstandard.ZstdError):
            content = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
    if wanted.is_in(content):
        return "its bytes"
    if name.endswith((".json", ".jsonl", ".jsonl.zst", ".gz")):
        lines = [content, *content.split(b"\n")] if name.endswith(".json") else content.split(b"\n")
        return "its JSON" if any(wanted.is_in_json(line) for line in lines) else None
    return None


def places_in_parquet(file: pq.ParquetFile, wanted: "Wanted") -> Iterator[str]:
    """The columns and statistics with the value; all rows are decoded, those too that a table has marked as deleted."""
    metadata = file.metadata
    if any(wanted.is_in(text) for each in (metadata.metadata or {}).items() for text in each):
        yield "its metadata"
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            statistics = column.statistics
            if statistics and statistics.has_min_max and wanted.is_in([statistics.min, statistics.max]):
                yield f"the statistics of {column.path_in_schema}"
    for batch in file.iter_batches(rows_at_once):
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if any(wanted.is_in_array(leaf) for leaf in leaves(values)):
                yield f"the column {name}"


def leaves(array: Any) -> Iterator[Any]:
    """The arrays that an array is nested of."""
    kind = array.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from leaves(array.field(number))
    elif pa.types.is_map(kind):
        yield from leaves(array.keys)
        yield from leaves(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from leaves(array.flatten())
    elif pa.types.is_dictionary(kind):
        yield from leaves(array.dictionary)
    else:
        yield array


@dataclass(frozen=True)
class Wanted:
    """A value that is looked for: as a word of its own in text, in JSON, and as a number where it is a whole number."""

    value: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        before = r"(?<![^\W_])" if self.value[0].isalnum() else ""
        after = r"(?![^\W_])" if self.value[-1].isalnum() else ""
        return re.compile(f"{before}(?:{'|'.join(map(re.escape, self.spellings))}){after}")

    @cached_property
    def spellings(self) -> tuple[str, ...]:
        """The value, with its letters composed and decomposed."""
        return tuple({self.value, *(unicodedata.normalize(form, self.value) for form in ("NFC", "NFD"))})

    @cached_property
    def number(self) -> int | None:
        return int(self.value) if re.fullmatch(r"-?[0-9]{1,18}", self.value) else None

    def is_in(self, found: Any) -> bool:
        """Whether it is in text, bytes, a number, or what is made of them."""
        if isinstance(found, bytes):
            found = found.decode("utf-8", "surrogateescape")
        if isinstance(found, str):
            # Escaped, the value has another spelling.
            return bool(self.pattern.search(found)) or ("\\" in found and self.is_in_json(found))
        if isinstance(found, dict):
            return any(self.is_in_member(*each) for each in found.items())
        if isinstance(found, list | tuple):
            return any(map(self.is_in, found))
        return isinstance(found, int) and not isinstance(found, bool) and found == self.number

    def is_in_member(self, name: str, found: Any) -> bool:
        if name == "value_base64" and isinstance(found, str):
            with suppress(ValueError):
                found = b64decode(found)
        return self.is_in(name) or self.is_in(found)

    def is_in_json(self, text: str | bytes) -> bool:
        """Whether it is in a text that is JSON, at any depth, texts that are JSON again included."""
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            # A text that is its own JSON would not end.
            return not isinstance(found, str | int) and self.is_in(found)
        return False

    def is_in_array(self, array: Any) -> bool:
        """Whether it is in a value of an array without nesting; only those that can have it are looked at by Python."""
        kind = array.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_binary(kind)):
            # Numbers, dates and times, as they are read from text; most values are none of this kind.
            with suppress(pa.ArrowException):
                return bool(pc.any(pc.equal(array, pa.scalar(self.value).cast(kind))).as_py())
            return False
        can = reduce(pc.or_, (pc.match_substring(array, each) for each in (*self.spellings, "\\")))
        return any(map(self.is_in, array.filter(can).to_pylist()))


def is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
