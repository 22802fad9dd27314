"""Write a small project: the template that `sluice init` copies."""

import shutil
from pathlib import Path

from sluice.errors import UsageError

template = Path(__file__).with_name("project")


def write(directory: Path) -> None:
    """Copies the template into a new or empty folder; refuses one that is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory.resolve()} is not empty; name a new folder: sluice init my_lakehouse")
    try:
        shutil.copytree(template, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        # Under its real name it would hide files of this repository.
        (directory / "gitignore.txt").rename(directory / ".gitignore")
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error}") from error
