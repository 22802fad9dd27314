"""Memory that this process has freed goes back to the system."""

import ctypes
import os
from contextlib import suppress

mebibyte = 1024 * 1024
# The numbers are those of options in glibc's malloc.h: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_ARENA_MAX.
options = {-3: 4 * mebibyte, -1: 8 * mebibyte, -8: 8}


def return_freed_memory() -> None:
    """Bounds what glibc keeps of the memory that was freed; other libraries than it are left as they are.

    Each thread that asks for memory may get an arena of its own, up to eight for each core. Of what is freed in one,
    glibc keeps twice the largest block that it has seen, up to 64 MB. So a process of many threads grows for hours,
    by an arena at a time. Who has set glibc's variables wants something else.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for option, value in options.items():
            library.mallopt(option, value)
