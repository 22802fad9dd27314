"""The archive of Spark's classes: of which installation it is, who makes it, and which are kept."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.runtime import class_archive
from sluice.runtime.class_archive import ClassArchive
from sluice.runtime.java import described, require_java

whole, broken_off = b"\xa8\xba\x0b\xf0 classes", b"\0\0\0\0 classes"


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    return ClassArchive(tmp_path / "classes-1.jsa")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that would be started."""
    found: list[Any] = []

    def popen(command: list[str], **options: Any) -> SimpleNamespace:
        found.append((command, options))
        return SimpleNamespace()

    monkeypatch.setattr(subprocess, "Popen", popen)
    return found


def file_of(option: str) -> Path:
    return Path(option.removeprefix("-XX:ArchiveClassesAtExit=").split()[0])


def names(archive: ClassArchive) -> list[str]:
    return sorted(each.name for each in archive.path.parent.iterdir())


@pytest.mark.process
def test_an_archive_is_of_one_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM refuses one that was made from jars elsewhere, or from others at the same place."""

    def name() -> str:
        return ClassArchive.of(tmp_path, require_java()).path.name

    jars = [tmp_path / home / "jars" / "spark.jar" for home in ("one", "other")]
    for jar in jars:
        jar.parent.mkdir(parents=True)
        jar.touch()
    monkeypatch.setattr(class_archive, "_find_spark_home", lambda: str(tmp_path / "one"))
    first = name()
    assert name() == first
    os.utime(jars[0], ns=(0, 0))
    assert name() != first
    again = name()
    monkeypatch.setattr(class_archive, "_find_spark_home", lambda: str(tmp_path / "other"))
    assert name() not in (first, again)


def test_a_jvm_reads_what_is_there(archive: ClassArchive) -> None:
    assert archive.option == ""
    archive.path.touch()
    assert str(archive.path) in archive.option


@pytest.mark.process
def test_options_in_the_environment_do_not_need_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = described(require_java())
    described.cache_clear()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dwhatever=1")
    assert described(require_java()) == before


def test_what_a_jvm_made_gets_its_name(archive: ClassArchive) -> None:
    with archive.made() as (option, _):
        file_of(option).write_bytes(whole)
        assert archive.option == ""
    assert names(archive) == ["classes-1.jsa"]


@pytest.mark.parametrize("content", [broken_off, b"", None])
def test_what_a_jvm_did_not_finish_is_removed(archive: ClassArchive, content: bytes | None) -> None:
    with archive.made() as (option, _):
        if content is not None:
            file_of(option).write_bytes(content)
    assert names(archive) == []


def test_nothing_is_left_of_what_failed(archive: ClassArchive) -> None:
    def make() -> None:
        with archive.made() as (option, _):
            file_of(option).write_bytes(whole)
            raise ValueError("the sample")

    with pytest.raises(ValueError, match="the sample"):
        make()
    assert names(archive) == []


def test_archives_that_nobody_uses_are_removed(archive: ClassArchive) -> None:
    cache = archive.path.parent
    for name in (".classes-killed", ".classes-at-work"):
        (cache / name / "project").mkdir(parents=True)
    for name in ("classes-2.jsa", "classes-3.jsa", "spark.jar"):
        (cache / name).touch()
    for name in (".classes-killed", "classes-2.jsa", "spark.jar"):
        os.utime(cache / name, (0, 0))
    class_archive.remove_unused(cache)
    assert names(archive) == [".classes-at-work", "classes-3.jsa", "spark.jar"]


def test_it_is_made_in_the_background_once(
    archive: ClassArchive, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LAKE", "s3a://others/lake")
    for _ in range(3):
        archive.ask_for()
    ((command, options),) = started
    assert command == [sys.executable, "-m", "sluice.cli", "prepare"]
    ours = {name: value for name, value in options["env"].items() if name.startswith("SLUICE_")}
    assert ours == {"SLUICE_JARS": str(archive.path.parent)}


def test_one_that_could_not_be_made_is_tried_again_later(archive: ClassArchive, started: list[Any]) -> None:
    archive.ask_for()
    os.utime(archive.path.with_suffix(".asked"), (0, 0))
    archive.ask_for()
    assert len(started) == 2


def test_one_that_is_there_is_not_made(archive: ClassArchive, started: list[Any]) -> None:
    archive.path.touch()
    archive.ask_for()
    assert started == []
