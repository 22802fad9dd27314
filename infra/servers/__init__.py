"""The servers that a lakehouse stands on, without containers: one module a server, and a stack of all of them.

python -m infra.servers up          # all of them, supervised
with running(Kafka(folder)) as kafka: ...   # one of them, for a test
"""

from infra.servers.connect import Connect
from infra.servers.kafka import Kafka
from infra.servers.postgres import Postgres
from infra.servers.running import Running, running
from infra.servers.s3 import S3
from infra.servers.server import Server, free_port
from infra.servers.spark import SparkConnect, SparkMaster, SparkWorker
from infra.servers.thrift import Thrift

__all__ = [
    "S3",
    "Connect",
    "Kafka",
    "Postgres",
    "Running",
    "Server",
    "SparkConnect",
    "SparkMaster",
    "SparkWorker",
    "Thrift",
    "free_port",
    "running",
]
