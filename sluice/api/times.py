"""Times that a caller gives: they have a time zone, or their meaning would depend on where the program runs."""

from collections.abc import Sequence
from datetime import datetime

from sluice.engine.backfill import BackfillRange
from sluice.errors import UsageError


def with_zone(time: datetime | None, name: str) -> datetime | None:
    """The time; a UsageError when it has no zone, or is no datetime at all."""
    if time is not None and getattr(time, "tzinfo", None) is None:
        raise UsageError(f"{name} is {time!r}, without a time zone; give a datetime with one: datetime(…, tzinfo=UTC).")
    return time


def backfill_range(since: datetime | None, until: datetime | None, records: Sequence[str] = ()) -> BackfillRange | None:
    """A backfill range, or records `topic/partition/first-last`; None when nothing is named."""
    return BackfillRange.of(with_zone(since, "since"), with_zone(until, "until"), records)
