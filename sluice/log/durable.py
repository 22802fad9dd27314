"""What is there still after a loss of power: files and folders whose content, or entries, reached the disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: Path, content: str) -> None:
    """Replaces a file, or makes it: afterwards, also if the power is lost, it is the old one or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            with open(aside, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            with suppress(OSError):
                aside.unlink()
        # Until the folder is written too, a machine that loses its power may come back with the old file.
        sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names a file in the errors of writing it: a full disk says what is wrong, and not where."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync(path: Path) -> None:
    """Makes the content of a file durable, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
