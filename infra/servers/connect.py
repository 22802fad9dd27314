"""Kafka Connect with Debezium for Postgres: connectors are posted to its REST interface, and kept in Kafka."""

import json
from dataclasses import dataclass
from pathlib import Path

from infra.servers import jars
from infra.servers.kafka import Kafka, java
from infra.servers.server import Server, loopback, page, private_folder


@dataclass(frozen=True, kw_only=True)
class Connect(Server):
    """One worker, beside the Kafka of this address. It trusts every client on loopback."""

    kafka: str

    @classmethod
    def install(cls) -> None:
        Kafka.install()

    def prepare(self) -> None:
        private_folder(self.folder)
        self.configuration.write_text(self.properties())

    def command(self) -> list[str]:
        return java("384m", "org.apache.kafka.connect.cli.ConnectDistributed", str(self.configuration))

    def is_healthy(self) -> bool:
        """Whether it has joined its group, without which it cannot answer this, and knows Debezium."""
        found = page(self.port, "/connectors") and page(self.port, "/connector-plugins")
        return found is not None and any("debezium" in each["class"] for each in json.loads(found))

    @property
    def configuration(self) -> Path:
        return self.folder / "connect.properties"

    def properties(self) -> str:
        return f"""\
bootstrap.servers={self.kafka}
group.id=connect
listeners=http://{self.address}
rest.advertised.host.name={loopback}
rest.advertised.port={self.port}
plugin.path={jars.folder() / "plugins"}
plugin.discovery=service_load
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
config.storage.topic=connect_configs
config.storage.replication.factor=1
offset.storage.topic=connect_offsets
offset.storage.replication.factor=1
offset.storage.partitions=1
status.storage.topic=connect_status
status.storage.replication.factor=1
status.storage.partitions=1
offset.flush.interval.ms=2000
topic.creation.enable=true
"""
