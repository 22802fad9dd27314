"""Groups by the day, hour or another unit of a time: which times their rows can have, and which groups a time has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice.model.scope import Bounds, any_of
from sluice.model.sql import fold

name = r"(?:[A-Za-z_]\w*|`[^`]+`)"
# What a time zone moves a time by is less than a day.
zoned = (
    rf"(?:(?P<zone>from_utc_timestamp|to_utc_timestamp)\(\s*(?P<moved>{name})\s*,\s*'[^'\\]*'\s*\)|(?P<plain>{name}))"
)
times = ("timestamp", "date")
units = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
lengths = {"week": "7 days", "quarter": "3 months"}
truncations = (
    re.compile(rf"(?:to_date|date)\(\s*{zoned}\s*\)", re.IGNORECASE),
    re.compile(rf"CAST\(\s*{zoned}\s+AS\s+DATE\s*\)", re.IGNORECASE),
    re.compile(rf"date_trunc\(\s*'(?P<unit>{'|'.join(units)})'\s*,\s*{zoned}\s*\)", re.IGNORECASE),
)
last = "timestamp_micros(9223372036854775807)"
epoch = datetime(1970, 1, 1, tzinfo=UTC)
# Clocks are put back by two hours at most, a change of the date line aside.
put_back = timedelta(hours=3)


@dataclass(frozen=True)
class Truncation:
    """A truncation of the time `column` to a unit, perhaps in a time zone: `before` and `after` stand around it."""

    before: str
    column: str
    after: str
    unit: str
    is_zoned: bool

    def of(self, time: timedelta) -> str:
        """The group, in SQL, of a time since the epoch."""
        return f"{self.before}timestamp_micros({time // timedelta(microseconds=1)}){self.after}"

    def holding(self, group: str, since: datetime | None, until: datetime | None) -> str:
        """The condition, in SQL, that a group can hold times from `since` until before `until`."""
        # A later time has no earlier group, except where clocks are put back in between.
        margin = put_back if self.is_zoned else timedelta()
        bounds = []
        if since is not None:
            bounds.append(f"{group} >= {self.of(since - epoch - margin)}")
        if until is not None:
            bounds.append(f"{group} <= {self.of(until - epoch - timedelta(microseconds=1) + margin)}")
        return " AND ".join(bounds) or "true"


def truncation_of(expression: str) -> Truncation | None:
    """How an expression truncates a time; None where it is not known to."""
    text = expression.strip()
    found = next((found for each in truncations if (found := each.fullmatch(text))), None)
    if found is None:
        return None
    start, end = found.span("moved" if found["zone"] else "plain")
    unit = (found.groupdict().get("unit") or "day").lower()
    return Truncation(text[:start], text[start:end].strip("`"), text[end:], unit, is_zoned=bool(found["zone"]))


def finest(expressions: Mapping[str, str], column: str) -> tuple[str, Truncation] | None:
    """Of named expressions the finest truncation of a column, with its name; None where none is one."""
    known = ((name, truncation_of(text)) for name, text in expressions.items())
    found = [(name, each) for name, each in known if each is not None and fold(each.column) == fold(column)]
    return min(found, key=lambda each: units.index(each[1].unit), default=None)


def times_of(expression: str, bounds: Bounds, kinds: Mapping[str, str]) -> str | None:
    """The condition, in SQL, on a time whose truncation by `expression` is within the bounds.

    None where the expression is no truncation of a column that is a time, by its type in `kinds`.
    """
    found = truncation_of(expression)
    if found is None or {fold(each): kind for each, kind in kinds.items()}.get(fold(found.column)) not in times:
        return None
    column, length = found.column, lengths.get(found.unit, f"1 {found.unit}")
    margin = "1 day" if found.is_zoned else "0 days"
    within = [
        f"`{column}` BETWEEN {earlier(least, margin)} AND {later(greatest, length, margin)}"
        for least, greatest in bounds.ranges
    ]
    return any_of([*within, *([f"`{column}` IS NULL"] if bounds.has_nulls else [])])


def earlier(least: str, margin: str) -> str:
    """A time before all that the first group can hold; of the first of all times, itself."""
    at = f"try_cast({least} AS timestamp)"
    return f"coalesce(try_subtract({at}, INTERVAL {margin}), {at}, timestamp_micros(-9223372036854775808))"


def later(greatest: str, length: str, margin: str) -> str:
    """A time after all that the last group can hold; the last of all times where there is none."""
    return (
        f"coalesce(try_add(try_add(try_cast({greatest} AS timestamp), INTERVAL {length}), INTERVAL {margin}), {last})"
    )
