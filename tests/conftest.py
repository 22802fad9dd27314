"""One Spark session for the whole run, and a new lakehouse for each test that asks for one."""

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from sluice.model import small_frames
from sluice.model.prepared import shared
from sluice.runtime import session as sessions
from sluice.runtime.settings import Settings
from tests import durations, tiers
from tests.commands import kept_variables
from tests.kit import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# No command lives long enough to earn back what the second compiler costs, nor does the session of a few tests. After
# seven minutes of CPU it has, and from there on the same tests take a fifth less. Classes, and the heap of the session,
# have their room from the beginning: else all is collected several times while they grow.
first_compiler = "-XX:TieredStopAtLevel=1"
light = f"{first_compiler} -XX:ReservedCodeCacheSize=256m -XX:MetaspaceSize=200m"
roomy = "-XX:ReservedCodeCacheSize=512m -XX:MetaspaceSize=200m -Xms3g -Xmn1g"
tests_of_a_whole_run = 1_000

# The next command of the same test takes over the JVM of the last one, as it does for a user.
kept_minutes = "0.25"

# Code that is generated for each plan runs a few rows here, and compiling it is a seventh of the work. Commands in
# processes of their own generate it as they do for a user.
interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

# The packages whose functions make frames of frames.
planning = ("model", "shapes", "silver", "gold")

# Where a machine is, and in which language, changes no figure: so it is in Newfoundland, and speaks Turkish.
time_zone = "America/St_Johns"
language = "-Duser.language=tr -Duser.country=TR"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep-durations", action="store_true", help="Keep the seconds of each file for later runs.")


def pytest_configure(config: pytest.Config) -> None:
    os.environ |= {"SLUICE_JAVA_OPTIONS": light, "SLUICE_KEEP_SPARK_MINUTES": kept_minutes, "TZ": time_zone}
    time.tzset()
    if config.getoption("--keep-durations") and not hasattr(config, "workerinput"):
        if config.getoption("-m") or config.getoption("-k"):
            raise pytest.UsageError("The durations are those of whole files: run them without -m and -k.")
        config.pluginmanager.register(durations.Keeper())


# Before `-m` selects.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tiers.mark(item)
    durations.sort(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> durations.FromBothEnds | None:
    return durations.FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """No process starts while a unit test runs."""
    tiers.unit[:] = [item.nodeid] if tiers.is_unit(item) else []
    try:
        return (yield)
    finally:
        tiers.unit.clear()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings do not reach the tests, except the caches."""
    for name in os.environ:
        if name.startswith("SLUICE_") and name not in kept_variables:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def no_plans_of_other_code() -> Iterator[None]:
    """Tests share plans, until one puts other code in the place of ours, and when that is ours again."""
    put, undo = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo

    def put_and_forget(patch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> None:
        put(patch, *arguments, **options)
        forget(patch)

    def undo_and_forget(patch: pytest.MonkeyPatch) -> None:
        forget(patch)
        undo(patch)

    def forget(patch: pytest.MonkeyPatch) -> None:
        if any(is_planned(target) for target, *_ in patch._setattr):
            shared.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.MonkeyPatch, "setattr", put_and_forget)
        patch.setattr(pytest.MonkeyPatch, "undo", undo_and_forget)
        yield


def is_planned(target: object) -> bool:
    """Whether a module, or something in one, has a part in plans; `small_frames` only chooses who has the rows."""
    name = target.__name__ if isinstance(target, ModuleType) else getattr(target, "__module__", None) or ""
    return name != small_frames.__name__ and name.startswith(tuple(f"sluice.{each}" for each in planning))


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> "Iterator[SparkSession]":
    is_whole = len(request.session.items) >= tests_of_a_whole_run
    is_for_long = is_whole and os.environ.get("PYTEST_XDIST_WORKER") in durations.with_session
    options = roomy if is_for_long else f"{first_compiler} {roomy}"
    # With the jars for Kafka: the session is made before the first broker is.
    settings = Settings(log="kafka://127.0.0.1:1", spark="local[2]", driver_memory="3g", java_options=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "spark_settings", sessions.spark_settings | interpreted)
        patch.setenv("JAVA_TOOL_OPTIONS", language)
        with sessions.spark_session(settings) as session:
            # Not every program that the tests start can be Turkish.
            patch.delenv("JAVA_TOOL_OPTIONS")
            yield session


@pytest.fixture
def lakehouse(spark: "SparkSession", tmp_path: Path) -> Lakehouse:
    """An empty log and an empty lake."""
    return Lakehouse(spark, tmp_path)


@pytest.fixture
def spark_for_commands(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that run in this process use the session of the run."""

    @contextmanager
    def lent(settings: Settings, *_: object, **__: object) -> Iterator["SparkSession"]:
        yield spark

    monkeypatch.setattr("sluice.api.sessions.spark_session", lent)
    monkeypatch.setattr("sluice.api.sessions.require_no_other", lambda settings: None)
