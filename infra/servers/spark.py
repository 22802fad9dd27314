"""Spark standalone: a master and its workers, and Spark Connect, by the scripts of the pyspark that is installed."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.servers.s3 import S3
from infra.servers.server import Server, free_port, loopback, page, private_folder
from sluice.runtime import jars, logstore
from sluice.runtime.class_archive import ClassArchive
from sluice.runtime.jars import spark_home
from sluice.runtime.java import one_language, require_java
from sluice.runtime.session import server_settings
from sluice.runtime.settings import Settings
from sluice.storage import s3 as object_store


@dataclass(frozen=True)
class OfSpark(Server):
    """A server that came with pyspark."""

    @classmethod
    def install(cls) -> None:
        """There is nothing to fetch."""
        require_java()

    def prepare(self) -> None:
        private_folder(self.folder)


@dataclass(frozen=True)
class Daemon(OfSpark):
    """What a master and a worker have in common."""

    web_port: int = field(default_factory=free_port)

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            # Every socket of the daemon, its web pages included, is bound to this.
            "SPARK_LOCAL_IP": loopback,
            "SPARK_PUBLIC_DNS": loopback,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(self.java_options()),
            # The log belongs to the process that starts it.
            "SPARK_LOG_DIR": str(self.folder),
        }

    def java_options(self) -> list[str]:
        return [quick_start(), "-XX:+UseSerialGC", "-Dspark.master.rest.enabled=false"]

    def says(self) -> dict[str, Any]:
        """What its web page knows, or nothing; while it starts there are pages without content."""
        try:
            return dict(json.loads(page(self.web_port, "/json/") or "{}"))
        except ValueError:
            return {}

    def start_class(self, main: str, *arguments: str) -> list[str]:
        address = ["--host", loopback, "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *address, *arguments]


@dataclass(frozen=True)
class SparkMaster(Daemon):
    """It knows the workers and gives them to drivers. It trusts every client on loopback."""

    def command(self) -> list[str]:
        return self.start_class("master.Master")

    def java_options(self) -> list[str]:
        """One that comes back after a crash knows the drivers and workers that it had; else all executors would end."""
        recovery = {"recoveryMode": "FILESYSTEM", "recoveryDirectory": str(self.folder / "recovery")}
        return [*super().java_options(), *[f"-Dspark.deploy.{name}={value}" for name, value in recovery.items()]]

    def is_healthy(self) -> bool:
        return self.says().get("status") == "ALIVE"

    def workers(self) -> int:
        """How many have registered and are alive."""
        return int(self.says().get("aliveworkers", 0))

    def settings(self) -> dict[str, str]:
        return {"SLUICE_SPARK": f"spark://{self.address}"}


@dataclass(frozen=True, kw_only=True)
class SparkWorker(Daemon):
    """It runs executors for drivers, with one core and a bounded heap.

    They have the keys of the object `store`, where there is one: no driver sends its own.
    """

    master: str
    store: S3 | None = None
    cores: int = 1
    memory: str = "1g"

    def command(self) -> list[str]:
        size = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.work)]
        return self.start_class("worker.Worker", *size, f"spark://{self.master}")

    def environment(self) -> dict[str, str]:
        return super().environment() | keys_of(self.store)

    def is_healthy(self) -> bool:
        """Whether the master has taken it: before that it has no address of a master."""
        return bool(self.says().get("masterurl"))

    @property
    def work(self) -> Path:
        return self.folder / "work"


@dataclass(frozen=True, kw_only=True)
class SparkConnect(OfSpark):
    """A Spark for drivers that have none: with Delta, and for tables in an object `store` with its log store."""

    master: str = "local[2]"
    store: S3 | None = None
    memory: str = "1g"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SPARK_LOCAL_IP": loopback} | keys_of(self.store)

    def command(self) -> list[str]:
        found = self.configuration()
        conf = [word for name, value in found.items() for word in ("--conf", f"{name}={value}")]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        size = ["--master", self.master, "--driver-memory", self.memory]
        options = ["--driver-java-options", " ".join([*one_language, quick_start()])]
        return [str(spark_home() / "bin" / "spark-submit"), *size, *options, *main, *conf, "spark-internal"]

    def configuration(self) -> dict[str, str]:
        lake = of_root(self.store.settings()) if self.store else None
        bundles = [jars.delta, *jars.kafka, *([jars.s3] if self.store else [])]
        files = [*jars.jar_files(Settings().jars, bundles), *([logstore.jar] if self.store else [])]
        of_lake = lake.spark_settings() if lake else {}
        return {
            **server_settings(of_lake),
            **of_lake,
            "spark.connect.grpc.binding.address": loopback,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.executor.extraJavaOptions": " ".join(one_language),
            "spark.jars": ",".join(map(str, files)),
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.local.dir": str(self.folder / "scratch"),
        }

    def is_healthy(self) -> bool:
        return self.listens()

    def settings(self) -> dict[str, str]:
        return {"SLUICE_SPARK": f"sc://{self.address}"}


def quick_start() -> str:
    """Options of a JVM that starts and idles cheaply: the fast compiler alone, and the archive of Spark's classes."""
    archive = ClassArchive.of(Settings().jars, require_java())
    return f"-XX:TieredStopAtLevel=1 {archive.option}"


def keys_of(store: S3 | None) -> dict[str, str]:
    """What a process needs to use an object store."""
    known = store.settings() if store else {}
    return {name: value for name, value in known.items() if name.startswith("AWS_")}


def of_root(settings: dict[str, str]) -> object_store.S3:
    """The store that a server's settings name."""
    return object_store.S3.of(settings["SLUICE_LAKE"], settings)
