"""Where a lake is: a folder of this machine, or a bucket of an object store. All that differs between them is here."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.errors import SluiceError
from sluice.storage import bucket, lease
from sluice.storage.folder_lock import Lock, folder_lock, is_folder_locked, kept_lock
from sluice.storage.s3 import S3, scheme

if TYPE_CHECKING:
    from obstore.store import LocalStore, S3Store

lease_seconds_default = 30.0
# The probe at a run's start: enough to detect a server without conditional writes.
probe_rounds, probe_writers = 2, 4


class Location(Protocol):
    """The interface to the place of a lake."""

    @property
    def root(self) -> str:
        """The address of the tables, as Spark and Delta take it."""

    @property
    def folder(self) -> Path | None:
        """The folder on this machine; None where there is none."""

    @property
    def read_files_max(self) -> int:
        """Up to how many files a table may have to be read by them, instead of by its log."""

    def require(self) -> None:
        """A SluiceError when tables there cannot be read."""

    def store(self) -> "LocalStore | S3Store":
        """For small files."""

    def stamp(self, name: str) -> object | None:
        """What another file by this name would differ in; None without a file, or where to ask costs as to read."""

    def delta_options(self) -> dict[str, str] | None:
        """For delta-rs."""

    def spark_settings(self, scratch: str) -> dict[str, str]:
        """For Spark, which may use a scratch folder."""

    @property
    def jars(self) -> tuple[str, ...]:
        """The names of the bundles of jars that Spark needs to reach it."""

    @property
    def ca_bundle(self) -> Path | None:
        """The authorities that vouch for it, in PEM."""

    def lock(
        self, *, lease_seconds: float, is_single_writer: bool, notify: Callable[[str], None], kept: int | None
    ) -> AbstractContextManager[Lock]:
        """Takes the right to write for this process and its JVM; a LakeLocked when another has it."""

    def is_locked(self) -> bool:
        """True while some process writes there."""

    def broken_conditions(self, *, rounds: int, writers: int) -> list[str] | None:
        """What goes wrong when writers compete for an object; None where the kernel's locks make the probe needless."""


def location_of(root: str) -> Location:
    """The place that an address names: `s3a://BUCKET/PREFIX`, or else a folder."""
    return Bucket(root) if is_bucket(root) else Folder(root)


def is_bucket(root: str) -> bool:
    return root.startswith(scheme)


@dataclass(frozen=True)
class Folder:
    """A folder of this machine, locked by the kernel."""

    root: str
    jars: tuple[str, ...] = ()
    ca_bundle: Path | None = None

    @property
    def folder(self) -> Path:
        return Path(self.root)

    @property
    def read_files_max(self) -> int:
        # Who asks opens tables, and has Spark's functions; a receiver has not.
        from sluice.model import small_frames

        return small_frames.read_files_max

    def require(self) -> None:
        """There is nothing to ask: the first run makes the folder."""

    def store(self) -> "LocalStore":
        from obstore.store import LocalStore

        return LocalStore(self.root, mkdir=True)

    def stamp(self, name: str) -> tuple[int, int, int] | None:
        try:
            found = (self.folder / name).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def delta_options(self) -> None:
        return None

    def spark_settings(self, scratch: str) -> dict[str, str]:  # noqa: ARG002 - what a bucket is given
        return {}

    @contextmanager
    def lock(
        self,
        *,
        lease_seconds: float,  # noqa: ARG002 - the kernel's lock ends with its holders
        is_single_writer: bool,  # noqa: ARG002
        notify: Callable[[str], None],  # noqa: ARG002
        kept: int | None,
    ) -> Iterator[Lock]:
        with folder_lock(self.root) if kept is None else kept_lock(self.root, kept) as descriptor:
            yield Lock(descriptors=(descriptor,))

    def is_locked(self) -> bool:
        return is_folder_locked(self.root)

    def broken_conditions(self, *, rounds: int, writers: int) -> None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class Bucket:
    """A prefix of a bucket, on AWS or a server that speaks its protocol; written by the process that owns the lease."""

    root: str
    folder: Path | None = None
    jars: tuple[str, ...] = ("s3",)

    @cached_property
    def where(self) -> S3:
        return S3.of(self.root)

    @property
    def ca_bundle(self) -> Path | None:
        return self.where.ca_bundle

    @property
    def read_files_max(self) -> int:
        from sluice.model import small_frames

        return small_frames.read_objects_max

    def require(self) -> None:
        bucket.require(self.where)

    def store(self) -> "S3Store":
        return self.where.store()

    def stamp(self, name: str) -> None:  # noqa: ARG002 - a request, of which a table takes few
        return None

    def delta_options(self) -> dict[str, str]:
        return self.where.delta_options()

    def spark_settings(self, scratch: str) -> dict[str, str]:
        return self.where.spark_settings() | {"spark.hadoop.fs.s3a.buffer.dir": scratch}

    @contextmanager
    def lock(
        self,
        *,
        lease_seconds: float,
        is_single_writer: bool,
        notify: Callable[[str], None],
        kept: int | None,  # noqa: ARG002 - a lease is taken again as any other
    ) -> Iterator[Lock]:
        """On a store without conditional writes there is no lease; it takes `is_single_writer` to go on there."""
        if bucket.require(self.where, make=True):
            notify(f"Made the bucket {self.where.bucket} at {self.where.address}.")
        store = self.where.store(lease_seconds * lease.renewed_after)
        # Before the probe, because a process that waits for a run checks often.
        seen = lease.free(store, lease_seconds, notify)
        wrong = bucket.broken_conditions(store, rounds=probe_rounds, writers=probe_writers)
        if wrong and is_single_writer:
            yield Lock()
            return
        if wrong:
            raise SluiceError(
                f"{self.where.address} does not support conditional writes: {wrong[0]}. Two writers could "
                "overwrite each other's commits there. Use a server that does, or ensure that only one process writes "
                "the lake, and set SLUICE_SINGLE_WRITER=true"
            )
        taken = lease.take(store, lease_seconds, seen)
        try:
            yield Lock(lease=taken)
        finally:
            taken.release()

    def is_locked(self) -> bool:
        """True also for the lease of a dead owner that has not expired yet."""
        return lease.is_taken(self.where.store())

    def broken_conditions(self, *, rounds: int, writers: int) -> list[str]:
        return bucket.broken_conditions(self.where.store(), rounds=rounds, writers=writers)
