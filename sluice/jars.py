"""The jars that Spark needs beside its own: resolved once, checked by sha256, cached, and passed as files."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

from sluice.errors import SluiceError

packages = ("io.delta:delta-spark_4.2_2.13:4.4.0",)
sha256_of_jar = {
    "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}


def jar_files(cache: Path) -> list[Path]:
    """The jars as files in `cache`, fetched by Spark's own resolver when they are not there yet."""
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".lock"):
        files = [cache / name for name in sha256_of_jar]
        if not all(file.exists() for file in files):
            resolve_into(cache)
        for file in files:
            check(file)
    return files


def resolve_into(cache: Path) -> None:
    """Lets Spark resolve the packages in a folder aside, and takes from it the jars that are needed."""
    from pyspark.find_spark_home import _find_spark_home

    with tempfile.TemporaryDirectory(dir=cache) as aside:
        command = [
            str(Path(_find_spark_home(), "bin", "spark-submit")),
            *("--packages", ",".join(packages)),
            *("--conf", f"spark.jars.ivy={aside}"),
            *("--class", "org.apache.spark.launcher.NoMainIsRun", "spark-internal"),
        ]
        # Spark resolves the packages before it looks for the class, which does not exist.
        subprocess.run(command, capture_output=True, text=True, check=False)
        if not Path(aside, "jars").is_dir():
            raise SluiceError(f"The jars of {', '.join(packages)} could not be fetched. {advice(cache)}")
        for name in sha256_of_jar:
            found = next(Path(aside, "jars").glob(f"*_{name}"), None)
            if found is None:
                raise SluiceError(f"{name} did not come with {', '.join(packages)}. {advice(cache)}")
            check(found, name)
            shutil.move(found, cache / name)


def check(file: Path, name: str = "") -> None:
    """Refuses a jar whose content is not the one that was tried."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    wanted = sha256_of_jar[name or file.name]
    if found != wanted:
        raise SluiceError(f"{file} has sha256 {found}, not {wanted}: delete it, and it is fetched again.")


def advice(cache: Path) -> str:
    return f"Check the network, or put {', '.join(sha256_of_jar)} into {cache} yourself."
