"""Spark's classes as a JVM has them when they are loaded: a start from this archive takes half the work.

`sluice prepare` makes it. The first command on a machine starts that in the background when it has ended.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from sluice.runtime.java import described

# An archive has some 200 MB, and each installation of Spark its own.
unused_seconds = 30 * 24 * 3600
# One that could not be made is not tried again at each command, and what is left of it can be removed.
again_seconds = 3600


@dataclass(frozen=True)
class ClassArchive:
    """An archive at a path, whether or not it is there.

    A JVM refuses, without a word, one that was made from other files, so the name stands for Java, and where and when
    Spark was installed; the jars that Spark loads by itself are in none.
    """

    path: Path

    @classmethod
    def of(cls, cache: Path, java: Path) -> "ClassArchive":
        """The archive for this Java and this installation of Spark."""
        spark = sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
        of_what = [described(java), *(f"{jar} {jar.stat().st_mtime_ns}" for jar in spark)]
        known = hashlib.sha256("\n".join(of_what).encode()).hexdigest()[:16]
        return cls(cache / f"classes-{known}.jsa")

    @property
    def option(self) -> str:
        """The option with which a JVM reads it; none while it is not there."""
        return f"-XX:SharedArchiveFile={self.path} {quiet}" if self.path.exists() else ""

    @contextmanager
    def made(self) -> Iterator[tuple[str, Path]]:
        """Gives the option with which a JVM makes it as it ends, and a folder for what that JVM works on.

        It is to end before the block does.
        """
        with tempfile.TemporaryDirectory(dir=self.path.parent, prefix=unfinished) as folder:
            made = Path(folder, self.path.name)
            yield f"-XX:ArchiveClassesAtExit={made} {quiet}", Path(folder)
            if is_whole(made):
                made.replace(self.path)

    def ask_for(self) -> None:
        """Has it made in the background, unless it is there, or was asked for within an hour."""
        if self.path.exists() or not self.is_first_to_ask():
            return
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        started = subprocess.Popen(
            [sys.executable, "-m", "sluice.cli", "prepare"],
            env=ours | {"SLUICE_JARS": str(self.path.parent)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # It is not this process's to wait for.
        started.returncode = 0

    def is_first_to_ask(self) -> bool:
        asked = self.path.with_suffix(".asked")
        try:
            if asked.exists():
                if time.time() - asked.stat().st_mtime < again_seconds:
                    return False
                asked.unlink()
            asked.touch(exist_ok=False)
        except OSError:
            # Another command was first, or nobody may write there.
            return False
        return True


# How the folders are named in which archives are made.
unfinished = ".classes-"
# A JVM that cannot use it would say so where the command's own errors are.
quiet = "-Xlog:disable -Xlog:all=error:stderr"


def is_whole(archive: Path) -> bool:
    """Whether a JVM has made it to the end: its head is written last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(4))
    except FileNotFoundError:
        return False


def remove_unused(cache: Path) -> None:
    """Removes the archives that no JVM has read for a month, and what is left of those that were not finished."""
    for old in cache.glob("classes-*"):
        with suppress(OSError):
            if time.time() - old.stat().st_atime > unused_seconds:
                old.unlink()
    for old in cache.glob(f"{unfinished}*"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > again_seconds:
                shutil.rmtree(old, ignore_errors=True)
