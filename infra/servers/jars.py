"""The jars of Kafka, Connect and Debezium: fetched by Spark's own resolver, and each checked by its sha256."""

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from infra.servers.server import cache
from sluice.errors import SluiceError
from sluice.runtime.jars import resolved, spark_home

packages = (
    "org.apache.kafka:kafka_2.13:4.3.1",
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.apache.kafka:connect-json:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    "io.debezium:debezium-connector-postgres:3.7.0.Final",
)
# Lines of `sha256sum`: kafka/ is the class path of the broker and of Connect, plugins/ is what Connect loads.
sums = Path(__file__).with_name("jars.sha256")


def install_jars() -> None:
    """Fetches the jars when one of them is missing; a SluiceError when one is not what it was when it was tried."""
    folder().mkdir(parents=True, exist_ok=True)
    with FileLock(folder() / ".lock"):
        if all((folder() / name).exists() for name in wanted().values()):
            return
        with tempfile.TemporaryDirectory(dir=folder()) as aside:
            fetched = resolved(packages, (), Path(aside))
            if not fetched:
                raise SluiceError(f"The jars of {', '.join(packages)} could not be fetched. Check the network.")
            # It brings all but Scala's library, which Spark has itself.
            take([*spark_home().glob("jars/scala-library-*.jar"), *fetched])


def folder() -> Path:
    """Of these versions: others are kept beside it."""
    return cache() / f"jars-{hashlib.sha256(sums.read_bytes()).hexdigest()[:12]}"


def class_path() -> str:
    """What the broker and Connect are started with; a SluiceError when it is not installed."""
    if not all((folder() / name).exists() for name in wanted().values()):
        raise SluiceError("The jars of Kafka are not installed. Run: python -m infra.servers install kafka")
    return f"{folder() / 'kafka'}/*"


def wanted() -> dict[str, str]:
    """The name of each jar by its sha256."""
    return dict(line.split(maxsplit=1) for line in sums.read_text().splitlines())


def take(fetched: list[Path]) -> None:
    """Keeps those that are wanted, known by their content."""
    by_digest = {hashlib.sha256(file.read_bytes()).hexdigest(): file for file in fetched}
    missing = {name for digest, name in wanted().items() if digest not in by_digest}
    if missing:
        raise SluiceError(
            f"{', '.join(sorted(missing))} did not come as {sums.name} says. If a version was changed on purpose, "
            "write the new sums there; else somebody changed what was fetched."
        )
    for digest, name in wanted().items():
        (folder() / name).parent.mkdir(parents=True, exist_ok=True)
        # Copied aside and renamed: a jar is there whole or not at all.
        part = folder() / f"{name}.part"
        shutil.copyfile(by_digest[digest], part)
        part.replace(folder() / name)
