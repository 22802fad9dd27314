"""Spark's Thrift server: SQL for JDBC and Hive's drivers, over the tables of a lake in a catalogue in Postgres."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from infra.servers import jars as of_servers
from infra.servers import readonly
from infra.servers.postgres import Postgres, user
from infra.servers.s3 import S3
from infra.servers.server import Server, loopback, private_folder, project, write_private
from infra.servers.spark import keys_of
from sluice.runtime import jars, logstore
from sluice.runtime.java import require_java
from sluice.runtime.session import spark_settings
from sluice.runtime.settings import Settings
from sluice.storage import s3 as object_store
from sluice.storage.location import is_bucket

database = "metastore"
# For executors with nothing, with blocks that are cached, and with files of a shuffle.
idle_timeouts = ("executorIdleTimeout", "cachedExecutorIdleTimeout", "shuffleTracking.timeout")
log4j2 = Path(__file__).with_name("log4j2.xml")


@dataclass(frozen=True, kw_only=True)
class Thrift(Server):
    """HiveThriftServer2. It trusts every client on loopback; its catalogue may be shared with other processes."""

    lake: str
    metastore: Postgres
    store: S3 | None = None
    spark: str = "local[*]"
    memory: str = "1g"

    @classmethod
    def install(cls) -> None:
        """Spark has the server itself; the driver for its catalogue comes with Debezium."""
        require_java()
        Postgres.install()
        of_servers.install_jars()

    def prepare(self) -> None:
        """The files that Spark and Hive read. The password of the catalogue is in Hive's alone."""
        private_folder(self.folder)
        private_folder(self.configuration)
        # Hive writes there, and makes no folder for it.
        private_folder(self.scratch / "hive")
        self.metastore.make_database(database)
        spark = "".join(f"{name} {value}\n" for name, value in self.spark_defaults().items())
        write_private(self.configuration / "spark-defaults.conf", spark)
        write_private(self.configuration / "hive-site.xml", as_xml(self.hive_site()))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "infra.servers.thrift_driver", self.lake]

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "PYTHONPATH": str(project),
            "SPARK_CONF_DIR": str(self.configuration),
            "SPARK_LOCAL_IP": loopback,
            **(keys_of(self.store) if is_bucket(self.lake) else {}),
        }

    def is_healthy(self) -> bool:
        """It listens when it has registered the tables."""
        return self.listens()

    def settings(self) -> dict[str, str]:
        return {"THRIFT_URL": f"jdbc:hive2://{self.address}"}

    @property
    def configuration(self) -> Path:
        return self.folder / "conf"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def spark_defaults(self) -> dict[str, str]:
        lake = self.bucket() if is_bucket(self.lake) else None
        files = jars.jar_files(Settings().jars, [jars.delta, *([jars.s3] if lake else [])])
        files += [logstore.jar] if lake else []
        # Hive's own class loader does not see `spark.jars`, which executors need.
        class_path = [*files, readonly.jar, postgres_driver()]
        return {
            **spark_settings,
            **(lake.spark_settings() if lake else {}),
            "spark.app.name": "thrift",
            "spark.sql.extensions": f"{spark_settings['spark.sql.extensions']},{readonly.extension}",
            "spark.master": self.spark,
            "spark.driver.memory": self.memory,
            # On a cluster it gives back the cores that it does not use, so that others find some.
            "spark.dynamicAllocation.enabled": str(self.spark.startswith("spark://")).lower(),
            **{f"spark.dynamicAllocation.{name}": "60s" for name in idle_timeouts},
            "spark.driver.host": loopback,
            "spark.driver.bindAddress": loopback,
            "spark.driver.extraClassPath": ":".join(map(str, class_path)),
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j2}",
            "spark.jars": ",".join(map(str, files)),
            "spark.local.dir": str(self.scratch),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }

    def bucket(self) -> object_store.S3:
        return object_store.S3.of(self.lake, self.store.settings() if self.store else os.environ)

    def hive_site(self) -> dict[str, str]:
        return {
            "hive.server2.thrift.bind.host": loopback,
            "hive.server2.thrift.port": str(self.port),
            "hive.server2.enable.doAs": "false",
            "hive.server2.logging.operation.log.location": str(self.folder / "operations"),
            "hive.exec.scratchdir": str(self.scratch / "hive"),
            "hive.exec.local.scratchdir": str(self.scratch / "hive"),
            "javax.jdo.option.ConnectionURL": f"jdbc:postgresql://{self.metastore.address}/{database}",
            "javax.jdo.option.ConnectionDriverName": "org.postgresql.Driver",
            "javax.jdo.option.ConnectionUserName": user,
            "javax.jdo.option.ConnectionPassword": self.metastore.password,
            "hive.metastore.schema.verification": "false",
            # With constraints too, which `autoCreateAll` means, it waits for itself at the first table.
            "datanucleus.schema.autoCreateAll": "false",
            "datanucleus.schema.autoCreateSchema": "true",
            "datanucleus.schema.autoCreateTables": "true",
            "datanucleus.schema.autoCreateColumns": "true",
            "datanucleus.schema.autoCreateConstraints": "false",
        }


def postgres_driver() -> Path:
    """Of the version that `jars.sha256` names."""
    names = [name for name in of_servers.wanted().values() if Path(name).name.startswith("postgresql-")]
    return of_servers.folder() / names[0]


def as_xml(properties: dict[str, str]) -> str:
    lines = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in properties.items()
    ]
    return f"<configuration>\n{''.join(lines)}</configuration>\n"
