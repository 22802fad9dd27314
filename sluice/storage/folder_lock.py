"""The right to write a lake in a folder: the kernel's lock, which the JVM inherits."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import LakeLocked, SluiceError
from sluice.storage.lease import Lease

# Longer than any check of whether a lake is locked.
look_seconds_max = 0.5


@dataclass(frozen=True)
class Lock:
    """The right to write a lake. The JVM inherits the `descriptors`, and ends with the `lease`."""

    descriptors: tuple[int, ...] = ()
    lease: Lease | None = None


@contextmanager
def folder_lock(root: str) -> Iterator[int]:
    """Locks a folder for this process and those that inherit the descriptor, until all are gone, however they end."""
    descriptor = lock_file(root)
    try:
        take(descriptor, root)
        if not is_lock_of(descriptor, root):
            # It was removed with its folder before it was locked.
            os.close(descriptor)
            descriptor = lock_file(root)
            take(descriptor, root)
        yield descriptor
    finally:
        os.close(descriptor)


def is_lock_of(descriptor: int, root: str) -> bool:
    """Whether an open file is that of a folder's lock still: the folder may have been removed and made again."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), Path(root, ".lock").stat())
    return False


@contextmanager
def kept_lock(root: str, descriptor: int) -> Iterator[int]:
    """The same by a descriptor that stays open. Those that inherited it keep the lock only if this process dies."""
    take(descriptor, root)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_file(root: str) -> int:
    """The open file of a folder's lock, not locked yet."""
    path = Path(root, ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SluiceError(f"The lake {root} cannot be written: {error.strerror}. Set SLUICE_LAKE.") from error


def take(descriptor: int, root: str) -> None:
    """Locks the file, and writes into it which process did; a LakeLocked when another has it."""
    if not taken_within(descriptor, look_seconds_max):
        holder = os.pread(descriptor, 32, 0).decode() or "unknown"
        raise LakeLocked(f"Another sluice (process {holder}) is writing the lake {root}. Wait for it, or stop it.")
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def taken_within(descriptor: int, seconds: float) -> bool:
    """Whether the kernel's lock was free, or became free within this time: a check takes it for an instant."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def is_folder_locked(root: str) -> bool:
    """True while some process has the lock; neither makes a folder nor blocks other processes."""
    try:
        descriptor = os.open(Path(root, ".lock"), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that concurrent checks do not conflict.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
