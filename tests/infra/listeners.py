"""Which addresses a process listens on, by what the kernel knows."""

import re
import socket
import struct
from contextlib import suppress
from pathlib import Path

from infra.servers.running import descendants

listening = "0A"


def listeners(pid: int) -> set[str]:
    """The addresses on which a process or a child of it listens for TCP; one of IPv4 that IPv6 maps is one of IPv4."""
    inodes = {inode for each in (pid, *descendants(pid)) for inode in sockets(each)}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {address(line[1].split(":")[0]) for line in lines if line[3] == listening and line[9] in inodes}


def sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open."""
    found = set()
    # The process may end, or close any of its files, while they are listed.
    with suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if socket_of := re.fullmatch(r"socket:\[(\d+)\]", str(entry.readlink())):
                    found.add(socket_of[1])
    return found


def address(digits: str) -> str:
    """The kernel writes each word of an address in the order of this machine's bytes."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    return socket.inet_ntop(socket.AF_INET6, raw).removeprefix("::ffff:")
