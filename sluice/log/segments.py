"""Segments: the files of a partition, published whole and never changed."""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import orjson
import zstandard

from sluice.errors import LogError, LogGap
from sluice.log.records import decode

segment_name = re.compile(r"(\d{20})\.jsonl(\.zst)?")
# Where a line begins with its offset, as this log writes it, the offset is found without parsing the line.
leading_offset = re.compile(rb'^\{"offset":\s?(\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a partition; `base_offset` is that of its first record."""

    topic: str
    partition: int
    base_offset: int
    path: Path


def segments_in(folder: Path, topic: str, partition: int) -> list[Segment]:
    """The segments of a partition, oldest first; a LogError for a file that calls itself one but is not named so."""
    found = []
    for path in folder.iterdir():
        if path.name.startswith(".") or not path.name.endswith((".jsonl", ".jsonl.zst")):
            continue
        name = segment_name.fullmatch(path.name)
        if name is None:
            raise LogError(f"{path} is no segment: its name must be the base offset in 20 digits. Move it away.")
        found.append(Segment(topic, partition, int(name[1]), path))
    return sorted(found, key=lambda segment: segment.base_offset)


def publish(folder: Path, base_offset: int, lines: Iterable[bytes], *, compress: bool) -> Path:
    """Writes a segment aside, makes it durable, and gives it its name; a name that is taken is an error."""
    path = folder / f"{base_offset:020}.jsonl{'.zst' if compress else ''}"
    aside = folder / f".{path.name}.{os.getpid()}"
    try:
        with open(aside, "wb") as file:
            write_lines(file, lines, compress=compress)
            file.flush()
            os.fsync(file.fileno())
        os.link(aside, path)
        sync_folder(folder)
    except OSError as error:
        raise LogError(f"The segment {path} cannot be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return path


def write_lines(file: IO[bytes], lines: Iterable[bytes], *, compress: bool) -> None:
    if not compress:
        file.writelines(lines)
        return
    with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as stream:
        for line in lines:
            stream.write(line)


def sync_folder(folder: Path) -> None:
    """Makes a folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Removes what crashed writers left aside; only for the holder of the partition's lock."""
    for path in folder.glob(".*.jsonl*"):
        path.unlink(missing_ok=True)


def lines_of(segment: Segment) -> Iterator[bytes]:
    """The lines of a segment; a LogError when the last one is torn or there is none."""
    line = b""
    with opened(segment) as file:
        for line in file:
            yield line
    if not line.endswith(b"\n"):
        raise LogError(
            f"{segment.path} {'ends in the middle of a line' if line else 'is empty'}; a segment is published whole. "
            "Restore it from a copy, or ask who wrote it."
        )


def content_of(segment: Segment) -> bytes:
    """A whole segment in memory."""
    with opened(segment) as file:
        return file.read()


@contextlib.contextmanager
def opened(segment: Segment) -> Iterator[io.BufferedReader]:
    """A segment as bytes, whether or not it is compressed."""
    try:
        with open(segment.path, "rb") as file:
            if segment.path.suffix != ".zst":
                yield file
                return
            with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
                yield io.BufferedReader(stream)
    except (OSError, zstandard.ZstdError) as error:
        raise LogError(f"{segment.path} cannot be read: {error}.") from error


def verified_end(segment: Segment) -> int:
    """The offset after a segment's last record.

    Reads it whole. Raises LogGap that names the first offset missing in it, and LogError for a line that is no record.
    """
    content = content_of(segment)
    if not content.endswith(b"\n"):
        list(lines_of(segment))
    lines = content.count(b"\n")
    offsets = [int(number) for number in leading_offset.findall(content)]
    if len(offsets) != lines:
        offsets = parsed_offsets(segment)
    for expected, offset in enumerate(offsets, start=segment.base_offset):
        if offset != expected:
            raise LogGap(
                f"topic {segment.topic}, partition {segment.partition}: offset {expected} is missing; {segment.path} "
                f"holds {offset} in its place. Restore the segment from a copy."
            )
    return segment.base_offset + lines


def parsed_offsets(segment: Segment) -> list[int]:
    """The offsets of a segment whose lines begin otherwise, as another program may write them."""
    return [
        decode(segment.topic, segment.partition, line, f"{segment.path}, line {number},").offset
        for number, line in enumerate(lines_of(segment), start=1)
    ]


def first_bad_line(segment: Segment) -> None:
    """Raises the LogError of the first line that is no record; returns when all are."""
    for number, line in enumerate(lines_of(segment), start=1):
        decode(segment.topic, segment.partition, line, f"{segment.path}, line {number},")


def head_digest(segment: Segment) -> str:
    """The mark by which a segment is known again: the sha256 of its first line."""
    with opened(segment) as file:
        return hashlib.sha256(file.readline()).hexdigest()


def last_offset(segment: Segment) -> int:
    """The offset of a segment's last record, without reading an uncompressed one whole."""
    last = last_line(segment)
    return int(orjson.loads(last)["offset"]) if last else segment.base_offset - 1


def newest_timestamp(segment: Segment) -> datetime:
    """The timestamp of a segment's last record."""
    return datetime.fromisoformat(orjson.loads(last_line(segment))["timestamp"])


def last_line(segment: Segment) -> bytes:
    """The last line of a segment."""
    if segment.path.suffix == ".zst":
        return content_of(segment).rstrip(b"\n").rpartition(b"\n")[2]
    with opened(segment) as file:
        size = file.seek(0, os.SEEK_END)
        reach = 1 << 16
        while True:
            file.seek(max(0, size - reach))
            tail = file.read().rstrip(b"\n")
            if b"\n" in tail or reach >= size:
                return tail.rpartition(b"\n")[2]
            reach *= 16
