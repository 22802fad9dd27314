"""The jars that a first run fetches."""

from pathlib import Path

from sluice.api.sessions import tell_of_jars
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
