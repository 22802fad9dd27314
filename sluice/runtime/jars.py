"""The jars that Spark needs beside its own: resolved once, checked by sha256, cached, and passed as files."""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from sluice.errors import SluiceError


@dataclass(frozen=True)
class Bundle:
    """Packages that are resolved together; of what comes with them, the jars in `<name>.sha256` are kept."""

    name: str
    packages: tuple[str, ...]
    excludes: tuple[str, ...] = ()

    @property
    def sha256_of_jar(self) -> dict[str, str]:
        lines = Path(__file__).with_name("jars_pinned").joinpath(f"{self.name}.sha256").read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}


delta = Bundle("delta", ("io.delta:delta-spark_4.2_2.13:4.4.0",))
# The two come apart, because the tokens' jar is not published everywhere at Spark's own version (decision 0017).
kafka = (
    Bundle(
        "kafka",
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
        excludes=("org.apache.spark:spark-token-provider-kafka-0-10_2.13",),
    ),
    Bundle(
        "kafka-token",
        ("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",),
        excludes=(
            "org.apache.kafka:kafka-clients",
            "org.apache.hadoop:hadoop-client-api",
            "org.apache.hadoop:hadoop-client-runtime",
        ),
    ),
)
# What S3A uses of the AWS SDK, without the bundle of all services, which is 686 MB.
s3 = Bundle(
    "s3",
    (
        "org.apache.hadoop:hadoop-aws:3.5.0",
        "software.amazon.awssdk:s3:2.35.4",
        "software.amazon.awssdk:s3-transfer-manager:2.35.4",
        "software.amazon.awssdk:sts:2.35.4",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    ),
    excludes=("software.amazon.awssdk:bundle",),
)


by_name = {"s3": s3}


def jar_files(cache: Path, bundles: Iterable[Bundle] = (delta,)) -> list[Path]:
    """The jars as files in `cache`, fetched by Spark's own resolver when they are not there yet.

    Who may only read a cache uses what is in it. A SluiceError says which jars are missing there.
    """
    wanted = list(bundles)
    if not all(is_fetched(each, cache) for each in wanted):
        fetch_missing(cache, wanted)
    return [file for bundle in wanted for file in files_of(bundle, cache)]


def fetch_missing(cache: Path, bundles: Iterable[Bundle]) -> None:
    """Fetches the bundles that are not there, one process at a time."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / ".lock"):
            for bundle in bundles:
                if not is_fetched(bundle, cache):
                    resolve_into(cache, bundle)
    except OSError as error:
        missing = ", ".join(name for each in bundles for name in each.sha256_of_jar if not (cache / name).exists())
        raise SluiceError(
            f"{missing} cannot be written to {cache}: {error.strerror}. Set SLUICE_JARS to a folder that can be "
            "written, or run there as its owner: sluice prepare"
        ) from error


def files_of(bundle: Bundle, cache: Path) -> list[Path]:
    """The jars of one bundle, each with the content that was tried."""
    wanted = bundle.sha256_of_jar
    for name, sha256 in wanted.items():
        check(cache / name, sha256)
    return [cache / name for name in wanted]


def is_fetched(bundle: Bundle, cache: Path) -> bool:
    """Whether the jars of a bundle are there."""
    return all((cache / name).exists() for name in bundle.sha256_of_jar)


def resolve_into(cache: Path, bundle: Bundle) -> None:
    """Takes from what is resolved the jars that are needed."""
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        fetched = resolved(bundle.packages, bundle.excludes, Path(aside))
        if not fetched:
            raise SluiceError(f"The jars of {', '.join(bundle.packages)} could not be fetched. {advice(cache, bundle)}")
        for name, sha256 in bundle.sha256_of_jar.items():
            # Their names begin with those of their publishers.
            found = next((file for file in fetched if file.name.endswith(f"_{name}")), None)
            if found is None:
                raise SluiceError(f"{name} did not come with {', '.join(bundle.packages)}. {advice(cache, bundle)}")
            check(found, sha256)
            shutil.move(found, cache / name)


def resolved(packages: Sequence[str], excludes: Sequence[str], aside: Path) -> list[Path]:
    """The jars of packages and of all that they need, fetched by Spark's resolver; none when that failed."""
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--packages", ",".join(packages)),
        *(("--exclude-packages", ",".join(excludes)) if excludes else ()),
        *("--conf", f"spark.jars.ivy={aside}"),
        *("--class", "org.apache.spark.launcher.NoMainIsRun", "spark-internal"),
    ]
    # Spark resolves the packages before it looks for the class, which does not exist.
    subprocess.run(command, capture_output=True, text=True, check=False)
    return sorted(aside.glob("jars/*.jar"))


def spark_home() -> Path:
    """Where the Spark of the pyspark that is installed is."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def check(file: Path, sha256: str) -> None:
    """Refuses a jar whose content is not the one that was tried."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sha256:
        raise SluiceError(f"{file} has sha256 {found}, not {sha256}: delete it, and it is fetched again.")


def advice(cache: Path, bundle: Bundle) -> str:
    return f"Check the network, or put {', '.join(bundle.sha256_of_jar)} into {cache} yourself."
