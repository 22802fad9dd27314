"""The names of tables, topics and their copies elsewhere, as OpenLineage prescribes them: a namespace and a name."""

from dataclasses import dataclass

from sluice.runtime.settings import Settings


@dataclass(frozen=True)
class Place:
    """A dataset to OpenLineage: two systems that name it alike mean the same one."""

    namespace: str
    name: str


def of_table(settings: Settings, table: str) -> Place:
    """A table of the lake, by where its files are."""
    path = f"{settings.lake_root}/{table.replace('.', '/')}"
    if path.startswith("s3a://"):
        bucket, _, name = path.removeprefix("s3a://").partition("/")
        return Place(f"s3://{bucket}", name)
    return Place("file", path)


def of_topic(settings: Settings, topic: str) -> Place:
    """A topic of the log, on Kafka or in files."""
    if settings.is_on_kafka:
        return Place(settings.log.split(",", 1)[0], topic)
    return Place("file", f"{settings.log_folder}/{topic}")


def of_target(settings: Settings, target: str) -> Place:
    """Where a table is published to: `postgres public.revenue`, or `kafka revenue`. It says nothing of who logs in."""
    kind, _, name = target.partition(" ")
    if kind == "kafka":
        return Place((settings.publish_kafka or settings.log).split(",", 1)[0], name)
    from psycopg2.extensions import parse_dsn

    address = parse_dsn(settings.publish_postgres.get_secret_value())
    host, port = address.get("host", "localhost").split(",")[0], address.get("port", "5432").split(",")[0]
    return Place(f"postgres://{host}:{port}", f"{address.get('dbname', 'postgres')}.{name}")
