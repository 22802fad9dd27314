"""Find Java and refuse one that Spark cannot run on, before Spark fails without a word."""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from sluice.errors import UsageError

least_version = 17
# `upper` and `lower` are those of the JVM's language: in Turkish, `é i` is `É İ`. A machine must not change figures.
one_language = ("-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8")
advice = (
    "Install Java 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@21; "
    "any system: a build of Eclipse Temurin), or point JAVA_HOME to one."
)


def require_java() -> Path:
    """The `java` that Spark will use; a UsageError where there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if not found.is_file():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise UsageError(f"Java is needed, and {where}. {advice}")
    version = major_version(found)
    if version < least_version:
        raise UsageError(f"{found} is Java {version}, too old for Spark. {advice}")
    return found


def major_version(java: Path) -> int:
    """17 for 17.0.15; 8 for 1.8.0."""
    number = re.search(r'version "(\d+)(?:\.(\d+))?', described(java))
    if number is None:
        raise UsageError(f"{java} does not say its version. {advice}")
    return int(number[2] or 0) if number[1] == "1" else int(number[1])


@cache
def described(java: Path) -> str:
    """What a `java` says of its version and its build, and not of the options that it finds in the environment."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    lines = (said.stderr + said.stdout).splitlines()
    return "\n".join(line for line in lines if not line.startswith("Picked up "))


if __name__ == "__main__":
    try:
        require_java()
    except UsageError as problem:
        sys.exit(f"Error: {problem}")
