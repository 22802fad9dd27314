"""What a process of many threads has freed is not kept for each of them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# One large block is freed, and then each thread of twelve frees forty of a mebibyte, all of them at the same time.
many_threads = """
import ctypes, threading
from pathlib import Path
from sluice.runtime.heap import return_freed_memory

{first}
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
at_once = threading.Barrier(12)

def use(blocks, size):
    held = [library.malloc(size) for _ in range(blocks)]
    for each in held:
        ctypes.memset(each, 1, size)
    for each in held:
        library.free(each)

def use_at_once():
    at_once.wait()
    use(40, 2**20)
    at_once.wait()

def resident_mebibytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20

use(1, 30 * 2**20)
before = resident_mebibytes()
threads = [threading.Thread(target=use_at_once) for _ in range(12)]
[each.start() for each in threads]
[each.join() for each in threads]
print(resident_mebibytes() - before)
"""


def kept_mebibytes(first: str, **environment: str) -> int:
    command = [sys.executable, "-c", many_threads.format(first=first)]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is kept in other ways")
def test_memory_that_many_threads_have_freed_is_returned() -> None:
    assert kept_mebibytes("return_freed_memory()") < 100
    # What would be kept otherwise, and where somebody has said how it is to be.
    assert kept_mebibytes("") > 300
    assert kept_mebibytes("return_freed_memory()", MALLOC_ARENA_TEST="64") > 300
