"""Builds the jar of the log store beside its source."""

import sys
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from sluice.errors import SluiceError
from sluice.runtime import jars, logstore
from sluice.runtime.settings import read_settings


def class_path() -> list[Path]:
    """What the source is compiled against: Spark's jars, Delta's and S3A's."""
    own = sorted(Path(_find_spark_home(), "jars").glob("*.jar"))
    return [*own, *jars.jar_files(read_settings(Path()).jars, [jars.delta, jars.s3])]


if __name__ == "__main__":
    try:
        logstore.build(logstore.jar, class_path())
    except SluiceError as problem:
        sys.exit(f"Error: {problem}")
