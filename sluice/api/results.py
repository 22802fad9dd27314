"""What a project's methods return: frozen, and as the commands print it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.engine.runner import Event
from sluice.operate.audit import IntegrityCheck, Stopped
from sluice.operate.recompute import Recomputed
from sluice.quality.conservation import Fates
from sluice.quality.results import is_critical


@dataclass(frozen=True)
class RunResult:
    """What a run did: an event for each table that it computed, or could not bring up to date.

    `seconds` is how long it took without Spark's start, `up_to_date` how many tables there was nothing to do for.
    """

    events: tuple[Event, ...]
    seconds: float
    up_to_date: int

    @property
    def is_wrong(self) -> bool:
        """True when something is refused or blocked, or waits for what is blocked."""
        return any(event.is_wrong for event in self.events)

    @property
    def changed(self) -> dict[str, int]:
        """How many rows changed in each table that was computed: landed in bronze, or written in silver and gold."""
        found: dict[str, int] = {}
        for event in self.events:
            if event.is_effective:
                found[event.name] = found.get(event.name, 0) + event.rows.total
        return found

    @property
    def records_landed(self) -> int:
        return sum(event.rows.inserted for event in self.events if event.name.startswith("bronze."))

    @property
    def rows_changed(self) -> int:
        """The rows of silver and gold that were inserted, updated or deleted."""
        return sum(event.rows.total for event in self.events if not event.name.startswith("bronze."))

    @property
    def held(self) -> tuple[str, ...]:
        """The tables on hold, because their declaration changed and is not promoted."""
        return tuple(event.name for event in self.events if event.held)

    @property
    def refused(self) -> tuple[str, ...]:
        """The tables whose new rows would have broken what is critical."""
        return tuple(event.name for event in self.events if event.refused)

    @property
    def blocked(self) -> tuple[str, ...]:
        """The tables that could not be computed; the events say why."""
        return tuple(event.name for event in self.events if event.blocked)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The tables that wait for a blocked one."""
        return tuple(event.name for event in self.events if event.waits_for)


@dataclass(frozen=True)
class Audit:
    """What an audit found: what became of each record, the rows that break an integrity check, what is blocked."""

    fates: tuple[Fates, ...]
    laws: tuple[IntegrityCheck, ...]
    stopped: tuple[Stopped, ...]
    recomputed: tuple[Recomputed, ...] = ()

    @property
    def findings(self) -> tuple[Fates | IntegrityCheck | Stopped | Recomputed, ...]:
        return (*self.fates, *self.laws, *self.stopped, *self.recomputed)

    @property
    def balanced(self) -> bool:
        """True when each record has one fate, no integrity check is broken, nothing is blocked, and no row is wrong."""
        return all(each.balanced for each in self.findings)


@dataclass(frozen=True)
class Checked:
    """What was found of each dataset that was checked: rows with the columns of `gold._checks`.

    `refused` has, of a dataset whose newest rows are not in its table, what was found of these; their version is null.
    """

    found: Mapping[str, Sequence[Mapping[str, Any]]]
    refused: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for found in (self.found, self.refused) for rows in found.values() for row in rows]

    @property
    def broken(self) -> list[Mapping[str, Any]]:
        """The expectations that do not hold."""
        return [row for row in self.rows if row["verdict"] != "passed"]

    @property
    def is_critical(self) -> bool:
        """True when a table should not be read."""
        return any(is_critical(row) for row in self.rows)


@dataclass(frozen=True)
class Maintained:
    """How many files of each table were compacted, into how many, and deleted; and by topic what left the log."""

    tables: Mapping[str, Mapping[str, int]]
    segments_removed: Mapping[str, int]
    records_compacted: Mapping[str, int]


@dataclass(frozen=True)
class TopicOffsets:
    """The offsets of one partition in the log: from `start_offset` until before `end_offset`."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
