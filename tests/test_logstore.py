"""The jar of the log store is what its source gives."""

import shutil
from pathlib import Path

import pytest

from sluice.errors import UsageError
from sluice.runtime import logstore
from sluice.runtime.logstore.__main__ import class_path


@pytest.mark.process
@pytest.mark.skipif(shutil.which("javac") is None, reason="users of the jar need no compiler")
def test_the_jar_is_what_its_source_gives(tmp_path: Path) -> None:
    logstore.build(tmp_path / "built.jar", class_path())
    assert (tmp_path / "built.jar").read_bytes() == logstore.jar.read_bytes(), "Run: make logstore"


def test_without_a_compiler_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install a JDK"):
        logstore.build(tmp_path / "built.jar", [])
