"""The right to write a lake, owned by one process at a time: the kernel's lock, or a lease (`Location.lock`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from sluice.storage.folder_lock import Lock, is_lock_of, lock_file
from sluice.storage.location import lease_seconds_default, location_of


def lake_lock(
    lake_root: str,
    *,
    lease_seconds: float = lease_seconds_default,
    is_single_writer: bool = False,
    notify: Callable[[str], None] = lambda text: None,
    kept: int | None = None,
) -> AbstractContextManager[Lock]:
    """Locks the lake for this process and the JVM it starts; a LakeLocked when another process has it.

    A JVM that outlives the lock has inherited the descriptor of its file (`lock_file`): it is the one to lock, `kept`.
    """
    where = location_of(lake_root)
    return where.lock(lease_seconds=lease_seconds, is_single_writer=is_single_writer, notify=notify, kept=kept)


def is_locked(lake_root: str) -> bool:
    """True while some process writes the lake."""
    return location_of(lake_root).is_locked()


__all__ = ["Lock", "is_lock_of", "is_locked", "lake_lock", "lock_file"]
