"""The jars that a first run fetches."""

from pathlib import Path

import pytest

from sluice.api.sessions import tell_of_jars
from sluice.errors import SluiceError
from sluice.runtime import jars
from sluice.runtime.settings import Settings


def test_jars_are_announced_before_they_are_fetched_and_never_again(tmp_path: Path) -> None:
    settings, said = Settings(jars=tmp_path), list[str]()
    tell_of_jars(settings, said.append)
    assert said == [f"Fetching the jars that Spark needs, once, into {tmp_path} …"]
    for name in jars.delta.sha256_of_jar:
        (tmp_path / name).touch()
    tell_of_jars(settings, said.append)
    assert len(said) == 1
    # Those of Kafka are others.
    tell_of_jars(Settings(jars=tmp_path, log="kafka://127.0.0.1:1"), said.append)
    assert len(said) == 2


@pytest.fixture
def is_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(jars, "FileLock", refused)


@pytest.mark.usefixtures("is_read_only")
def test_a_cache_that_can_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "check", lambda file, sha256: None)
    for name in jars.delta.sha256_of_jar:
        (tmp_path / name).touch()
    assert jars.jar_files(tmp_path) == [tmp_path / name for name in jars.delta.sha256_of_jar]


@pytest.mark.usefixtures("is_read_only")
def test_where_jars_cannot_be_written_it_is_said_which_are_missing(tmp_path: Path) -> None:
    with pytest.raises(SluiceError, match=r"delta-spark.*cannot be written to .*Permission denied.*SLUICE_JARS"):
        jars.jar_files(tmp_path)
