"""The lock of a lake in a folder: one writer, and checks that block no process."""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.errors import LakeLocked
from sluice.storage import folder_lock
from sluice.storage.lock import is_locked, lake_lock


def test_a_lake_has_one_writer_and_says_who_it_is(tmp_path: Path) -> None:
    with lake_lock(str(tmp_path)):
        assert is_locked(str(tmp_path))
        with pytest.raises(LakeLocked, match="process"), lake_lock(str(tmp_path)):
            pass
    assert not is_locked(str(tmp_path))


def test_to_look_at_a_lake_makes_nothing(tmp_path: Path) -> None:
    assert not is_locked(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@contextmanager
def looking(folder: Path, seconds: float) -> Iterator[None]:
    """Somebody looks whether the lake is locked, slowly."""
    with open(folder / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        ends = threading.Timer(seconds, fcntl.flock, [file, fcntl.LOCK_UN])
        ends.start()
        yield
        ends.join()


def test_a_run_that_starts_while_somebody_looks_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lake_lock(str(tmp_path)):
        pass
    with looking(tmp_path, 0.1):
        assert not is_locked(str(tmp_path)), "those who look do not meet each other"
        with lake_lock(str(tmp_path)):
            pass
    # The mutant: a run that takes a check for a writer.
    monkeypatch.setattr(folder_lock, "look_seconds_max", -1.0)
    with looking(tmp_path, 0.1), pytest.raises(LakeLocked), lake_lock(str(tmp_path)):
        pass
