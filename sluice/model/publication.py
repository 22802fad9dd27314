"""A gold table that is kept equal in another system, for those who serve from there."""

import re
from dataclasses import dataclass
from typing import Literal

from sluice.errors import DeclarationError
from sluice.model.datasets import Dataset

Kind = Literal["postgres", "kafka"]
# Lower case, so that nobody needs to quote it; Postgres cuts longer names off.
postgres_name = re.compile(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
# A topic of its own, with a longer name, keeps the position.
kafka_name = re.compile(r"[a-zA-Z0-9._-]{1,200}")


@dataclass(frozen=True, eq=False)
class Publication:
    """A table of gold, and where it is published: a table of Postgres, a topic of Kafka, or both.

    It decides no row of the lake, so no fingerprint has it: to declare one rebuilds nothing.
    """

    source: Dataset
    postgres: str | None = None
    kafka: str | None = None

    @property
    def targets(self) -> dict[Kind, str]:
        """The name of the table or topic in each system."""
        found: dict[Kind, str | None] = {"postgres": self.postgres, "kafka": self.kafka}
        return {kind: name for kind, name in found.items() if name is not None}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self.source.outputs[-1].grain


def checked_publication(source: Dataset, postgres: str | None, kafka: str | None) -> Publication:
    """The publication; a DeclarationError where there is nothing to publish, or nowhere."""
    if not isinstance(source, Dataset) or not source.name.startswith("gold."):
        raise DeclarationError(f"gold.publish: {getattr(source, 'name', source)!r} is no table of gold")
    if postgres is None and kafka is None:
        raise DeclarationError(f"{source.name}: publish it where? Give postgres='schema.table', kafka='topic', or both")
    if postgres is not None and not postgres_name.fullmatch(postgres):
        raise DeclarationError(
            f"{source.name}: postgres is '{postgres}'; write TABLE or SCHEMA.TABLE in lower-case letters, digits and _"
        )
    if kafka is not None and not kafka_name.fullmatch(kafka):
        raise DeclarationError(f"{source.name}: kafka is '{kafka}'; use up to 200 letters, digits, dots, _ and -")
    found = Publication(source, postgres if postgres is None or "." in postgres else f"public.{postgres}", kafka)
    if not found.key:
        raise DeclarationError(f"{source.name} has one row, with nothing to identify it by, so it cannot be published")
    return found
