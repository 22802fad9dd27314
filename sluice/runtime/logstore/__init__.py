"""The log store that commits to S3: its source, and the jar that is built from it and kept beside it.

    python -m sluice.runtime.logstore     # needs a JDK, 17 or newer, and the jars of Delta and S3

Users need no compiler. Builds are reproducible to the byte, so a test checks that the jar belongs to the source.
"""

import os
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from sluice.errors import UsageError

source = Path(__file__).with_name("S3ConditionalLogStore.java")
jar = Path(__file__).with_name("sluice-logstore.jar")
# The least that Spark runs on.
java_release = "17"
# The earliest timestamp that an archive can store.
long_ago = (1980, 1, 1, 0, 0, 0)


def build(to: Path, class_path: list[Path], source: Path = source) -> None:
    """Compiles a source into a jar; a UsageError when it cannot be compiled."""
    javac = shutil.which("javac")
    if javac is None:
        raise UsageError(
            "There is no javac on the PATH: install a JDK (Debian: apt-get install openjdk-17-jdk-headless)."
        )
    with tempfile.TemporaryDirectory() as folder:
        command = [javac, "--release", java_release, "-g:none", "-proc:none", "-Xlint:-options", "-encoding", "UTF-8"]
        command += ["-classpath", os.pathsep.join(map(str, class_path)), "-d", folder, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UsageError(f"{source.name} cannot be compiled:\n{done.stderr}")
        pack(Path(folder), to)


def pack(folder: Path, to: Path) -> None:
    """A jar of the classes below a folder, without the time and the machine that it was made on."""
    with zipfile.ZipFile(to, "w") as archive:
        manifest = zipfile.ZipInfo("META-INF/MANIFEST.MF", long_ago)
        archive.writestr(manifest, "Manifest-Version: 1.0\r\n\r\n")
        for path in sorted(folder.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), long_ago)
            archive.writestr(entry, path.read_bytes())
