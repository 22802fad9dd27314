"""An import of a file that is killed in the middle, by an exception or as a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice import Project
from sluice.ingest import files


class Killed(BaseException):
    """The end of an import in the middle: nothing of it catches this."""


@contextmanager
def killed_import(*, after_row: int) -> Iterator[None]:
    """An import that ends when rows after this one have come in, and before their position is kept."""
    write = files.write_position

    def killed(place: Path, at: files.Position) -> None:
        if at.row > after_row:
            raise Killed
        write(place, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write_position", killed)
        with pytest.raises(Killed):
            yield


def import_in_small_batches(folder: Path, file: str) -> None:
    """What a process does that can be killed between two of its many batches."""
    files.batch_rows = 2_000
    Project(folder, any_folder=True).log.import_files("orders", folder / file, key="key")
