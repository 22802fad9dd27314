"""Kafka: one broker that is its own controller (KRaft), from the jars of its release."""

import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from infra.servers import jars
from infra.servers.server import Server, free_port, loopback, private_folder
from sluice.errors import SluiceError
from sluice.runtime.java import one_language, require_java

log4j2 = Path(__file__).with_name("log4j2.xml")
small = [
    # In Turkish, Kafka does not find its own settings.
    *one_language,
    # One thread collects garbage, and only the fast compiler works: start and idle are cheap on a small machine.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    f"-Dlog4j2.configurationFile={log4j2}",
]


@dataclass(frozen=True)
class Kafka(Server):
    """A broker. It trusts every client on loopback."""

    controller_port: int = field(default_factory=free_port)

    @classmethod
    def install(cls) -> None:
        require_java()
        jars.install_jars()

    def prepare(self) -> None:
        private_folder(self.folder)
        self.configuration.write_text(self.properties())
        if (self.folder / "data" / "meta.properties").exists():
            return
        tool = "kafka.tools.StorageTool"
        cluster = ["format", "--standalone", "--ignore-formatted", "--cluster-id", str(uuid.uuid4())]
        command = java("128m", tool, *cluster, "--config", str(self.configuration))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SluiceError(f"Kafka cannot use {self.folder}: {done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        return java("384m", "kafka.Kafka", str(self.configuration))

    def is_healthy(self) -> bool:
        """Asks for the metadata, as every client does first."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        # Silent: until it is up, every attempt would say so.
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "socket.timeout.ms": 2000})
        try:
            return bool(client.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def settings(self) -> dict[str, str]:
        return {"SLUICE_LOG": f"kafka://{self.address}"}

    @property
    def configuration(self) -> Path:
        return self.folder / "server.properties"

    def properties(self) -> str:
        controller = f"{loopback}:{self.controller_port}"
        return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{self.address},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{self.address}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={self.folder / "data"}
# One broker: nothing is replicated, and what is internal needs few partitions.
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# After a crash the controller waits this long for the broker that is gone before it takes the new one.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
num.partitions=4
num.network.threads=2
num.io.threads=2
log.segment.bytes=67108864
log.cleaner.dedupe.buffer.size=16777216
# An unknown topic is a mistake in a name.
auto.create.topics.enable=false
"""


def java(heap: str, main: str, *arguments: str) -> list[str]:
    """A JVM of a bounded size on Kafka's class path."""
    sizes = ["-Xms64m", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=128m"]
    return [str(require_java()), *sizes, *small, "-cp", jars.class_path(), main, *arguments]
