"""The memory of a server's process: what would take more is an error of one statement, and not the end of the server.

DuckDB's own limit does not count one value while it is made, nor what becomes of it after that.
"""

import re
import resource
from pathlib import Path

from sluice.errors import UsageError

state = Path("/proc/self/status")
stack_bytes_usual = 8 * 2**20


class Limited:
    """Lets this process take so many bytes more than it has; `follow` from time to time. Elsewhere than on Linux: all.

    Whatever asks for more gets no memory, and says so.
    """

    def __init__(self, bytes_max: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
        self.stack_bytes = stack_bytes_usual if soft == resource.RLIM_INFINITY else soft
        _, self.most = resource.getrlimit(resource.RLIMIT_DATA)
        mapped, threads = self.counted()
        self.bytes_max = bytes_max + mapped - threads * self.stack_bytes
        self.follow()

    def follow(self) -> None:
        """Stacks do not count: each thread reserves one, and uses little of it."""
        _, threads = self.counted()
        if threads:
            limit = self.bytes_max + threads * self.stack_bytes
            resource.setrlimit(resource.RLIMIT_DATA, (limit if self.most < 0 else min(limit, self.most), self.most))

    @staticmethod
    def counted() -> tuple[int, int]:
        """The bytes that are mapped to be written, and the threads; none where the system does not say."""
        if not state.exists():
            return 0, 0
        found = dict(line.split(":", 1) for line in state.read_text().splitlines())
        return int(found["VmData"].split()[0]) * 1024, int(found["Threads"])


def bytes_of(limit: str) -> int:
    """A limit such as 1GB in bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", limit, re.IGNORECASE)
    if found is None:
        raise UsageError(f"The memory limit is '{limit}'; write for example 1GB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " "))
