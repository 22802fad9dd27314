"""What is there still after a loss of power: files and folders whose content, or entries, reached the disk."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: str) -> None:
    """Replaces a file, or makes it: afterwards, also if the power is lost, it is the old one or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
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


def sync(path: Path) -> None:
    """Makes the content of a file durable, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
