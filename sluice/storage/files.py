"""The small files of a lake, written atomically, in a local folder or in an object store."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import LocalStore

from sluice.storage.location import location_of

if TYPE_CHECKING:
    from obstore.store import S3Store


of_local_disk = re.compile(r"Generic LocalFileSystem error.*?\(os error (\d+)\)", re.DOTALL)


@contextmanager
def local_errors(path: str) -> Iterator[None]:
    """An OSError that names the file, where a local disk fails: obstore has one class for all that can go wrong."""
    try:
        yield
    except GenericError as error:
        found = of_local_disk.match(str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), path) from error


@dataclass(frozen=True)
class Files:
    """The files below one root, by names with `/` between their parts."""

    root: str

    @cached_property
    def store(self) -> "LocalStore | S3Store":
        return location_of(self.root).store()

    def read(self, name: str) -> str:
        """The text of a file; a FileNotFoundError when there is none."""
        return bytes(obstore.get(self.store, name).bytes()).decode()

    def write(self, name: str, content: str | bytes) -> None:
        """Writes a file, whole or not at all; makes its folder if need be. An OSError where the disk is full."""
        with local_errors(f"{self.root}/{name}"):
            obstore.put(self.store, name, content.encode() if isinstance(content, str) else content)

    def create(self, name: str, content: str) -> bool:
        """Writes a file that is not there; False where it is, and of several at once for all but one."""
        try:
            with local_errors(f"{self.root}/{name}"):
                obstore.put(self.store, name, content.encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    def below(self, folder: str, after: str | None = None) -> list[str]:
        """The names of all files below a folder, sorted; none when there is no such folder."""
        return sorted(each["path"] for each in obstore.list(self.store, folder, offset=after).collect())

    def times(self, folder: str) -> dict[str, datetime]:
        """When each file below a folder was last written, by name."""
        return {each["path"]: each["last_modified"] for each in obstore.list(self.store, folder).collect()}

    def folders(self, folder: str) -> list[str]:
        """The names of the folders in a folder, without its own, sorted."""
        found = obstore.list_with_delimiter(self.store, folder)["common_prefixes"]
        return sorted(each.rsplit("/", 1)[-1] for each in found)

    def delete(self, name: str) -> None:
        """Deletes a file, if it is there."""
        try:
            obstore.delete(self.store, name)
        except FileNotFoundError:
            # An object store does not report a missing object.
            return

    def delete_folder(self, folder: str) -> None:
        """Deletes all files below a folder, and on a file system the folders too; an object store has none.

        Empty objects by which Spark marks a folder may stay there.
        """
        obstore.delete(self.store, self.below(folder))
        if isinstance(self.store, LocalStore):
            for path, _, _ in os.walk(Path(self.root, folder), topdown=False):
                with suppress(OSError):
                    # Others may write there meanwhile.
                    Path(path).rmdir()
