"""Where each table goes that a project publishes: what was declared, and the servers of the settings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sluice.errors import UsageError
from sluice.model.publication import Kind, Publication
from sluice.operate.publish import Publisher, Target
from sluice.operate.publish.kafka import KafkaTopic
from sluice.operate.publish.postgres import PostgresTable
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake


@contextmanager
def publishers(
    lake: Lake, settings: Settings, declared: Sequence[Publication], tables: Sequence[str]
) -> Iterator[list[Publisher]]:
    """A publisher for each target of these tables, or of all; a UsageError where a table is not published."""
    names = list(dict.fromkeys(each.source.name for each in declared))
    if not names:
        raise UsageError("No table is published. Declare a publication in a module of pipelines: gold.publish(…).")
    unknown = [name for name in tables if name not in names]
    if unknown:
        raise UsageError(f"{', '.join(unknown)} is not published; published are {', '.join(names)}.")
    found = [
        Publisher(lake, each.source.name, each.key, target_of(settings, each, kind, name))
        for each in declared
        if not tables or each.source.name in tables
        for kind, name in each.targets.items()
    ]
    try:
        yield found
    finally:
        for publisher in found:
            publisher.target.close()


def target_of(settings: Settings, publication: Publication, kind: Kind, name: str) -> Target:
    """The table or topic of a publication; a UsageError where no setting says on which server it is."""
    if kind == "postgres":
        address = settings.publish_postgres.get_secret_value()
        if not address:
            raise UsageError(
                f"{publication.source.name} is published to Postgres; say where: "
                "SLUICE_PUBLISH_POSTGRES=postgresql://user@host:5432/database"
            )
        return PostgresTable(address, name)
    address = settings.publish_kafka or (settings.log if settings.is_on_kafka else "")
    if not address:
        raise UsageError(
            f"{publication.source.name} is published to Kafka; say where: SLUICE_PUBLISH_KAFKA=kafka://host:9092"
        )
    return KafkaTopic(settings.kafka(address), name)
