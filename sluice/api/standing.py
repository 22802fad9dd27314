"""The stored queries of a project."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluice.api.opened import Opened
from sluice.api.times import with_zone
from sluice.operate import standing
from sluice.operate.standing import StoredQuery


@dataclass(frozen=True)
class Standing:
    """Adds, removes and lists the queries of datasets that are declared with `silver.standing_queries`."""

    _here: Opened

    def add(
        self,
        dataset: str,
        query_id: str,
        condition: str,
        *,
        past: bool = False,
        valid_from: datetime | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Stores a query, or a new version of one, by an SQL predicate: `"price > 100 AND symbol IN ('A', 'B')"`.

        It is valid from an event time on, by default from now; with `past` its first version also matches what was
        before. The next run finds its matches. A UsageError where the predicate does not fit the columns.
        """
        standing.add(
            self._here.log,
            self._here.catalogue(),
            dataset,
            query_id,
            condition,
            past=past,
            valid_from=with_zone(valid_from, "valid_from"),
            attributes=attributes or {},
        )

    def remove(self, dataset: str, query_id: str, *, valid_to: datetime | None = None) -> None:
        """Ends a query at an event time, by default now; its matches before that stay.

        A UsageError for a query that nobody has stored.
        """
        here, ends = self._here, with_zone(valid_to, "valid_to")
        standing.remove(here.log, here.lake, here.catalogue(), dataset, query_id, valid_to=ends)

    def list(self, dataset: str, *, all_versions: bool = False) -> list[StoredQuery]:
        """The stored queries, as the last run took them in: those that are valid now, or all versions."""
        return standing.stored(self._here.lake, self._here.catalogue(), dataset, all_versions=all_versions)
