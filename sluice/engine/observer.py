"""What hears of work on tables, when it begins and how it ends, and has no part in it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from sluice.engine.catalogue import Catalogue
from sluice.model.ledger import InputVersion

Work = Literal[
    "land", "refresh", "backfill", "check", "maintain", "promote", "rollback", "publish", "release", "quarantine"
]


class Watch:
    """One piece of work, as it goes on. This one tells nobody."""

    def began(self, cause: str, inputs: Mapping[str, InputVersion] | None = None) -> None:
        """There is something to do: for this cause, from these versions of the tables that are read."""

    def done(
        self,
        rows: int = 0,
        *,
        tests: Sequence[Mapping[str, Any]] = (),
        broken: Sequence[str] = (),
        tables: Sequence[str] | None = None,
    ) -> None:
        """It is done: it changed so many `rows`, and `tests` were made, as rows of `gold._checks`.

        Where something critical is `broken`, nothing was written. `tables` are those that it worked on, where that was
        not known before.
        """


class Observer:
    """Hears of all work of a process. This one tells nobody, and costs nothing."""

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A pass over the catalogue, which the work in it is part of."""
        yield

    @contextmanager
    def watching(self, work: Work, tables: Sequence[str], catalogue: Catalogue, *, target: str = "") -> Iterator[Watch]:
        """Work on tables, from here to the end of the block; an error in it is how it ended.

        Where tables are published, `target` is to which table or topic elsewhere: `postgres public.revenue`; where
        records are released or set aside, the topic that says so.
        """
        yield Watch()
