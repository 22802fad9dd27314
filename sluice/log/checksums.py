"""Checksums of a segment: each line carries the CRC-32 of its record, and the last one the SHA-256 of the segment.

    {"offset":0, …, "headers":{},"crc32":"1c291ca3"}
    {"offset":1, …, "headers":{},"segment_sha256":"9f86d081…","crc32":"8c736521"}

`crc32` covers the bytes of its line before it, and `segment_sha256` all bytes of the file before it. So a
reader notices every changed byte and every missing line. Segments without checksums, of older releases and of other
programs, are read as they are.
"""

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from sluice.errors import LogError

crc_field = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\n')
crc_bytes = len(b',"crc32":"12345678"}\n')
seal_field = re.compile(rb',"segment_sha256":"([0-9a-f]{64})"')
seal_bytes = len(b',"segment_sha256":""') + 64
ending = b"}\n"


def with_checksums(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a whole segment, each with its checksum and the last one with the segment's."""
    digest = hashlib.sha256()
    before: bytes | None = None
    for line in lines:
        if before is not None:
            digest.update(checked := with_crc(before.removesuffix(ending)))
            yield checked
        before = line
    if before is not None:
        body = before.removesuffix(ending)
        digest.update(body)
        yield with_crc(body + b',"segment_sha256":"%s"' % digest.hexdigest().encode())


def with_crc(body: bytes) -> bytes:
    return body + b',"crc32":"%08x"' % zlib.crc32(body) + ending


def crc_of(line: bytes) -> bytes | None:
    """The checksum stated in a line; None if there is none."""
    found = crc_field.fullmatch(line[-crc_bytes:])
    return found and found[1]


def seal_of(line: bytes) -> bytes | None:
    """The checksum of the segment that a line carries; None when it is not the last one, or there is none."""
    found = seal_field.fullmatch(line[-crc_bytes - seal_bytes : -crc_bytes])
    return found and found[1]


def is_marked(line: bytes) -> bool:
    """Whether a line belongs to a segment with checksums: two marks, so that one damaged byte cannot hide both.

    An editor that ends lines in its own way hides neither.
    """
    line = line[:-2] + b"\n" if line.endswith(b"\r\n") else line
    return crc_of(line) is not None or seal_of(line) is not None


def is_sealed(content: bytes) -> bool:
    """Whether a whole segment has a valid checksum of its content."""
    seal = seal_of(content[-crc_bytes - seal_bytes :])
    if seal is None:
        return False
    sealed = content[: -crc_bytes - seal_bytes]
    last = content[content.rfind(b"\n", 0, -1) + 1 :]
    return hashlib.sha256(sealed).hexdigest().encode() == seal and has_valid_crc(last)


def has_valid_crc(line: bytes) -> bool:
    return crc_of(line) == b"%08x" % zlib.crc32(memoryview(line)[:-crc_bytes])


def verified_lines(path: Path, lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines, all of a segment; a LogError when one of them is not as it was written, or the end is missing."""
    digest = hashlib.sha256()
    has_checksums, seal = False, None
    for number, line in enumerate(lines, start=1):
        if number == 1:
            has_checksums = is_marked(line)
        # After the last line of a segment there is none.
        if seal or has_checksums != is_marked(line) or (has_checksums and not has_valid_crc(line)):
            raise damaged(f"{path}, line {number},")
        seal = seal_of(line)
        if seal and sha256_with(digest, line[: -crc_bytes - seal_bytes]) != seal:
            raise damaged(str(path))
        digest.update(line)
        yield line
    if has_checksums and not seal:
        raise cut(path)


def sha256_with(digest: "hashlib._Hash", rest: bytes) -> bytes:
    whole = digest.copy()
    whole.update(rest)
    return whole.hexdigest().encode()


def require_last(path: Path, first: bytes, last: bytes) -> None:
    """A LogError when a segment's last line is not the one that it was published with."""
    if not is_marked(first) and not is_marked(last):
        return
    if not has_valid_crc(last):
        raise damaged(f"{path}, its last line,")
    if not seal_of(last):
        raise cut(path)


def damaged(what: str) -> LogError:
    return LogError(
        f"{what} has another checksum than it was written with: the file was changed, or its disk fails. "
        "Restore the segment from a copy. All that is damaged: sluice log verify"
    )


def cut(path: Path) -> LogError:
    return LogError(
        f"{path} ends before its last record: the file was cut at a line. Restore the segment from a copy. "
        "All that is damaged: sluice log verify"
    )
