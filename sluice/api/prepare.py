"""Prepare a machine: fetch the jars that Spark needs, and make the archive of its classes."""

from pathlib import Path

from sluice import scaffold
from sluice.api.project import Project
from sluice.errors import SluiceError
from sluice.runtime.class_archive import ClassArchive, remove_unused
from sluice.runtime.jars import jar_files
from sluice.runtime.java import require_java
from sluice.runtime.session import bundles
from sluice.runtime.settings import Settings


def prepared(settings: Settings) -> Path:
    """Makes what every run on this machine reads; returns the archive of classes, which may have been there.

    The classes are those of the project that `sluice init` writes, in its first and its second run. A SluiceError when
    there is no Java, the jars cannot be fetched, or the archive cannot be written.
    """
    java = require_java()
    jar_files(settings.jars, bundles(settings))
    archive = ClassArchive.of(settings.jars, java)
    try:
        if not archive.path.exists():
            with archive.made() as (option, folder):
                run_sample(folder / "project", settings.jars, option)
        remove_unused(settings.jars)
    except OSError as error:
        raise SluiceError(f"{archive.path} cannot be written: {error.strerror}. Set SLUICE_JARS.") from error
    if not archive.path.exists():
        raise SluiceError(f"Java could not write {archive.path}. Is the disk full?")
    return archive.path


def run_sample(folder: Path, jars: Path, java_options: str) -> None:
    """Runs the project of `sluice init`, with no setting of the environment."""
    scaffold.write(folder)
    usual = {name: field.default for name, field in Settings.model_fields.items()}
    own = {"project": folder, "jars": jars, "java_options": java_options, "driver_memory": "512m", "spark": "local[2]"}
    with Project(folder, Settings(**usual | own)) as project:
        for _ in range(2):
            for topic, key in (("products", "product_id"), ("orders", "order_id")):
                project.append(topic, (folder / f"{topic}.jsonl").read_bytes().splitlines(), key_field=key)
            project.run()
