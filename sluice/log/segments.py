"""Segments: the files of a partition, published whole and changed by nothing but an erasure or compaction."""

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

import zstandard

from sluice.errors import LogError, LogGap
from sluice.log.checksums import is_sealed, require_last, verified_lines, with_checksums
from sluice.log.durable import sync
from sluice.log.records import StoredRecord, decode

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
    """The segments of a partition, oldest first."""
    found = names_in(folder)
    return [Segment(topic, partition, base_offset, folder / found[base_offset]) for base_offset in sorted(found)]


def names_in(folder: Path) -> dict[int, str]:
    """The files of a partition by base offset; there may be many, and every append and landing looks at them all.

    A LogError for a file that calls itself a segment but is not named so, and for two with one base offset.
    """
    found: dict[int, str] = {}
    for file in os.listdir(folder):  # noqa: PTH208 - a path for each would take ten times as long
        if file.startswith(".") or not file.endswith((".jsonl", ".jsonl.zst")):
            continue
        name = segment_name.fullmatch(file)
        if name is None:
            path = folder / file
            raise LogError(f"{path} is no segment: its name must be the base offset in 20 digits. Move it away.")
        other = found.setdefault(int(name[1]), file)
        if other is not file:
            path = folder / other
            raise LogError(f"{path} and {file} have the same offsets. Compare them, and move one of them away.")
    return found


def publish(folder: Path, base_offset: int, lines: Iterable[bytes], *, compress: bool) -> Path:
    """Writes a segment with its checksums; a name that is taken is an error."""
    path = folder / f"{base_offset:020}.jsonl{'.zst' if compress else ''}"
    put(path, with_checksums(lines), os.link)
    return path


def put(path: Path, lines: Iterable[bytes], name: Callable[[Path, Path], object]) -> None:
    """Writes the lines of a segment aside, makes them durable, and then gives them the segment's name."""
    aside = path.parent / f".{path.name}.{os.getpid()}"
    try:
        with open(aside, "wb") as file:
            write_lines(file, lines, compress=path.suffix == ".zst")
            file.flush()
            os.fsync(file.fileno())
        name(aside, path)
        sync(path.parent)
    except OSError as error:
        raise LogError(f"The segment {path} cannot be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def write_lines(file: IO[bytes], lines: Iterable[bytes], *, compress: bool) -> None:
    """Writes the lines of a segment."""
    if not compress:
        file.writelines(lines)
        return
    with zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(file, closefd=False) as stream:
        for line in lines:
            stream.write(line)


def remove_leftovers(folder: Path) -> None:
    """Removes what crashed writers left aside; only while the partition is locked."""
    for file in os.listdir(folder):  # noqa: PTH208 - as above
        if file.startswith(".") and ".jsonl" in file:
            (folder / file).unlink(missing_ok=True)


def lines_of(segment: Segment) -> Iterator[bytes]:
    """The lines of a segment; a LogError when one is not as it was written, the last one is torn or there is none."""
    line = b""
    with opened(segment) as file:
        for line in verified_lines(segment.path, whole_lines(file, segment.path)):
            yield line
    if not line:
        raise torn(segment.path, "is empty")


def whole_lines(file: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """The lines of a file; a LogError when the last one is torn."""
    for line in file:
        if not line.endswith(b"\n"):
            raise torn(path, "ends in the middle of a line")
        yield line


def torn(path: Path, how: str) -> LogError:
    return LogError(
        f"{path} {how}; a segment is published whole. Restore it from a copy, or ask who wrote it. "
        "All that is damaged: sluice log verify"
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
            yield io.BufferedReader(Chunks(decompressed(file)))
    except (OSError, zstandard.ZstdError) as error:
        raise LogError(f"{segment.path} cannot be read: {error}.") from error


def decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """The content of a compressed file; a ZstdError when it ends in the middle of a frame."""
    frame, is_in_frame = zstandard.ZstdDecompressor().decompressobj(), False
    while rest := file.read(1 << 20):
        while rest:
            yield frame.decompress(rest)
            is_in_frame, rest = not frame.eof, frame.unused_data
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
    if is_in_frame:
        raise zstandard.ZstdError("it ends in the middle of a frame")


class Chunks(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks = chunks
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        target = memoryview(buffer)
        while not self.rest:
            chunk = next(self.chunks, None)
            if chunk is None:
                return 0
            self.rest = memoryview(chunk)
        count = min(len(target), len(self.rest))
        target[:count], self.rest = self.rest[:count], self.rest[count:]
        return count


def verified_end(segment: Segment) -> int:
    """The offset after a segment's last record.

    Reads it whole. Raises LogGap that names the first offset missing in it, and LogError for a line that is no record.
    """
    return judged(segment)[0]


def judged(segment: Segment) -> tuple[int, bool]:
    """The same, and whether the segment has the checksums of one that this log wrote."""
    content = content_of(segment)
    if is_sealed(content):
        offsets = [int(number) for number in leading_offset.findall(content)]
        if len(offsets) == content.count(b"\n"):
            return contiguous_end(segment, offsets), True
    # Damaged, of a time before checksums, or of another program: what Spark reads is less strict than a record is.
    return contiguous_end(segment, (record.offset for record in records_in(segment))), False


def contiguous_end(segment: Segment, offsets: Iterable[int]) -> int:
    """The offset after the last of a segment's; a LogGap that names the first that is missing."""
    end = segment.base_offset
    for expected, offset in enumerate(offsets, start=segment.base_offset):
        if offset != expected:
            raise LogGap(
                f"topic {segment.topic}, partition {segment.partition}: offset {expected} is missing; {segment.path} "
                f"has {offset} in its place. Restore the segment from a copy."
            )
        end = offset + 1
    return end


def records_in(segment: Segment) -> Iterator[StoredRecord]:
    """The records of a segment; a LogError for the first line that is damaged or no record."""
    return decoded(segment, lines_of(segment))


def decoded(segment: Segment, lines: Iterable[bytes]) -> Iterator[StoredRecord]:
    """The records of a segment's lines; a LogError for the first that is none."""
    for number, line in enumerate(lines, start=1):
        yield decode(segment.topic, segment.partition, line, f"{segment.path}, line {number},")


def head_digest(segment: Segment) -> str:
    """The digest that identifies a segment: the sha256 of its first line."""
    with opened(segment) as file:
        return hashlib.sha256(file.readline()).hexdigest()


def last_offset(segment: Segment) -> int:
    """The offset of a segment's last record, without reading an uncompressed one whole."""
    return last_record(segment).offset


def forgettable(
    segments: Sequence[Segment], before_offset: int, oldest: datetime | None, bytes_max: int | None
) -> list[Segment]:
    """The oldest segments that end before an offset, and are older than a time, or more than fits in a size."""
    found: list[Segment] = []
    size = sum(each.path.stat().st_size for each in segments)
    for segment, following in pairwise(segments):
        is_too_much = bytes_max is not None and size > bytes_max
        if following.base_offset > before_offset or not (is_too_much or is_older(segment, oldest)):
            break
        size -= segment.path.stat().st_size
        found.append(segment)
    return found


def is_older(segment: Segment, oldest: datetime | None) -> bool:
    """Whether all records of a segment are older than a time."""
    # The last one, which is most often the newest, can be had without the others.
    if oldest is None or last_record(segment).timestamp >= oldest:
        return False
    return all(record.timestamp < oldest for record in records_in(segment))


def last_record(segment: Segment) -> StoredRecord:
    """The last record of a segment; a LogError when it is not the one that the segment was published with."""
    first, last = ends_of(segment)
    if not last.endswith(b"\n"):
        raise torn(segment.path, "ends in the middle of a line" if last else "is empty")
    require_last(segment.path, first, last)
    return decode(segment.topic, segment.partition, last, f"{segment.path}, its last line,")


def ends_of(segment: Segment) -> tuple[bytes, bytes]:
    """The first and the last line of a segment."""
    if segment.path.suffix == ".zst":
        content = content_of(segment)
        return content[: content.find(b"\n") + 1], content[content.rfind(b"\n", 0, -1) + 1 :]
    with opened(segment) as file:
        first = file.readline()
        size = file.seek(0, os.SEEK_END)
        reach = 1 << 16
        while True:
            file.seek(max(0, size - reach))
            tail = file.read()
            start = tail.rfind(b"\n", 0, -1)
            if start >= 0 or reach >= size:
                return first, tail[start + 1 :]
            reach *= 16
