"""The right to write a lake, held by one process at a time: the kernel's lock, or a lease."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import LakeLocked, SluiceError
from sluice.storage import bucket, lease
from sluice.storage.s3 import S3, is_s3

lease_seconds_default = 30.0
# A look at a run's start: enough to tell a server that has no conditions from one that has.
probe_rounds, probe_writers = 2, 4
# Longer than anybody looks at whether a lake is locked.
look_seconds_max = 0.5


@dataclass(frozen=True)
class Lock:
    """The right to write a lake. The JVM inherits the `descriptors`, and ends with the `lease`."""

    descriptors: tuple[int, ...] = ()
    lease: "lease.Lease | None" = None


@contextmanager
def lake_lock(
    lake_root: str,
    *,
    lease_seconds: float = lease_seconds_default,
    is_single_writer: bool = False,
    told: Callable[[str], None] = lambda text: None,
    kept: int | None = None,
) -> Iterator[Lock]:
    """Holds the lake for this process and the JVM it starts; a LakeLocked when another does.

    A JVM that outlives the lock has inherited the descriptor of its file (`lock_file`): it is the one to lock, `kept`.
    On an object store without conditional writes there is no lock; it takes `is_single_writer` to go on there.
    """
    if not is_s3(lake_root):
        with folder_lock(lake_root) if kept is None else kept_lock(lake_root, kept) as descriptor:
            yield Lock(descriptors=(descriptor,))
        return
    where = S3.of(lake_root)
    if bucket.require(where, make=True):
        told(f"Made the bucket {where.bucket} at {where.address}.")
    store = where.store(lease_seconds * lease.renewed_after)
    # Before the probe: whoever waits for a run under way looks often.
    seen = lease.free(store, lease_seconds, told)
    wrong = bucket.broken_conditions(store, rounds=probe_rounds, writers=probe_writers)
    if wrong and is_single_writer:
        yield Lock()
        return
    if wrong:
        raise SluiceError(
            f"{where.address} does not keep conditions: {wrong[0]}. Two writers could overwrite each other's commits "
            "there. Use a server that does, or see to it that one process alone writes the lake, and say so: "
            "SLUICE_SINGLE_WRITER=true"
        )
    held = lease.take(store, lease_seconds, seen)
    try:
        yield Lock(lease=held)
    finally:
        held.release()


@contextmanager
def folder_lock(root: str) -> Iterator[int]:
    """Locks a folder for this process and those that inherit the descriptor, until all are gone, however they end."""
    descriptor = lock_file(root)
    try:
        take(descriptor, root)
        yield descriptor
    finally:
        os.close(descriptor)


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
    """Whether the kernel's lock was free, or became so in this time: whoever looks at it has it for an instant."""
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


def is_locked(lake_root: str) -> bool:
    """True while some process writes the lake; of a lease, also when its holder died and nobody has noticed yet."""
    if is_s3(lake_root):
        return lease.is_held(S3.of(lake_root).store())
    try:
        descriptor = os.open(Path(lake_root, ".lock"), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        # Shared: those who look do not meet each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
