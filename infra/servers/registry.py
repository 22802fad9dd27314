"""A schema registry: Apicurio, which speaks the protocol of Confluent's, from its release on Maven."""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from infra.servers.server import Server, cache, page, private_folder
from sluice.errors import SluiceError
from sluice.runtime.jars import spark_home
from sluice.runtime.java import one_language, require_java

# The newest release that runs on Java 17.
version = "3.0.9"
sha256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
program = f"apicurio-registry-app-{version}-runner.jar"
protocol = "/apis/ccompat/v7"
# Spark's resolver fetches jars alone; this is an archive of them, and Ivy, which that resolver is, can be asked for it.
wanted = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="sluice" module="servers"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{version}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
resolver = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Registry(Server):
    """A registry that keeps its schemas in a file, and trusts every client on loopback."""

    @classmethod
    def install(cls) -> None:
        require_java()
        home().parent.mkdir(parents=True, exist_ok=True)
        with FileLock(home().with_name(f"{home().name}.lock")):
            if not (home() / program).exists():
                fetch()

    def prepare(self) -> None:
        private_folder(self.folder)

    def command(self) -> list[str]:
        if not (home() / program).exists():
            raise SluiceError("The schema registry is not installed. Run: python -m infra.servers install registry")
        small = [*one_language, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return ["java", *small, "-jar", str(home() / program)]

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "QUARKUS_HTTP_HOST": self.address.split(":")[0],
            "QUARKUS_HTTP_PORT": str(self.port),
            "APICURIO_DATASOURCE_URL": f"jdbc:h2:file:{self.folder / 'schemas'}",
        }

    def is_healthy(self) -> bool:
        return page(self.port, f"{protocol}/subjects") is not None

    def settings(self) -> dict[str, str]:
        return {"SLUICE_SCHEMA_REGISTRY": f"http://{self.address}{protocol}"}


def home() -> Path:
    """Where the release is unpacked."""
    return cache() / f"apicurio-{version}"


def fetch() -> None:
    """Fetches the release and unpacks it; a SluiceError if it is not what was tried."""
    with tempfile.TemporaryDirectory(dir=home().parent) as aside:
        folder = Path(aside)
        (folder / "ivy.xml").write_text(wanted)
        (folder / "ivysettings.xml").write_text(resolver)
        ivy = next(spark_home().glob("jars/ivy-*.jar"))
        command = ["java", "-jar", str(ivy), "-settings", "ivysettings.xml", "-ivy", "ivy.xml"]
        command += ["-cache", str(folder / "cache"), "-retrieve", f"{folder}/out/[artifact].[ext]"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        release = folder / "out" / "apicurio-registry-app.tar.gz"
        if done.returncode or not release.exists():
            raise SluiceError(f"Apicurio {version} could not be fetched. Check the network. {done.stdout[-500:]}")
        found = hashlib.sha256(release.read_bytes()).hexdigest()
        if found != sha256:
            raise SluiceError(f"Apicurio {version} has sha256 {found}, not {sha256}.")
        with tarfile.open(release) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        shutil.rmtree(home(), ignore_errors=True)
        (folder / "unpacked").rename(home())
