"""Doctor: is everything there that a run needs? Each requirement is tried, not looked up."""

from collections.abc import Callable
from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.operate.json_text import counted
from sluice.runtime import connect, jars
from sluice.runtime.java import major_version, require_java
from sluice.runtime.session import bundles, spark_session
from sluice.runtime.settings import Settings
from sluice.storage import bucket
from sluice.storage.delta import Lake
from sluice.storage.lock import is_locked

# Enough for a server that decides in the wrong order now and then; a run asks less.
probe_rounds, probe_writers = 10, 8


@dataclass(frozen=True)
class Finding:
    """One requirement of a run, and what was found, or what to do."""

    check: str
    ok: bool
    found: str


def examine(settings: Settings) -> list[Finding]:
    """Everything that a run needs, in the order in which it needs it."""
    checks: dict[str, Callable[[Settings], str]] = {"java": java, "jars": jar_files}
    if settings.is_remote:
        checks = {"spark": spark}
    checks |= {"log": log, "lake": lake}
    if settings.location.folder is None:
        checks["conditional writes"] = conditional_writes
    return [finding(name, check, settings) for name, check in checks.items()]


def finding(name: str, check: Callable[[Settings], str], settings: Settings) -> Finding:
    try:
        return Finding(name, True, check(settings))
    except SluiceError as error:
        return Finding(name, False, str(error))


def java(_: Settings) -> str:
    found = require_java()
    return f"Java {major_version(found)}, {found}"


def spark(settings: Settings) -> str:
    """Whether a Spark Connect server gives a session, and has what the tables need."""
    with spark_session(settings) as session:
        return f"Spark {session.version} at {connect.public(settings.spark)}, with Delta"


def jar_files(settings: Settings) -> str:
    found = jars.jar_files(settings.jars, bundles(settings))
    return f"{len(found)} in {settings.jars}, each with its sha256"


def log(settings: Settings) -> str:
    found = settings.open_log()
    found.require()
    return f"{counted(len(found.topics()), 'topic')} in {settings.log or '.sluice/log'}"


def lake(settings: Settings) -> str:
    """Whether the tables can be read and something be written beside them."""
    root = settings.lake_root
    settings.location.require()
    found = Lake(root)
    try:
        found.files.write("_probe", "")
        found.files.delete("_probe")
    except bucket.StoreError as error:
        raise SluiceError(f"{root} cannot be written: {str(error).splitlines()[0]}") from error
    state = "a run is under way" if is_locked(root) else "no run is under way"
    return f"{counted(len(found.tables()), 'table')} in {root}, {state}"


def conditional_writes(settings: Settings) -> str:
    """Whether exactly one of several writers of an object wins: commits and the lake's lease depend on it."""
    where = settings.location
    where.require()
    try:
        wrong = where.broken_conditions(rounds=probe_rounds, writers=probe_writers)
    except bucket.StoreError as error:
        raise SluiceError(f"They could not be tried: {str(error).splitlines()[0]}") from error
    if wrong:
        raise SluiceError(
            f"The store of {settings.lake_root} does not keep them: {wrong[0]}. Only one process may write the lake "
            "there, and must be configured for it: SLUICE_SINGLE_WRITER=true"
        )
    return f"{probe_rounds} rounds of {probe_writers} writers, each won by one, by If-None-Match and by If-Match"
