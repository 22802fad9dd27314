"""Groups by the day, hour or another unit of a time: which times their rows can have, so that files are skipped."""

import re
from collections.abc import Mapping

from sluice.model.scope import Bounds, any_of
from sluice.model.sql import fold

name = r"(?:[A-Za-z_]\w*|`[^`]+`)"
# What a time zone moves a time by is less than a day.
zoned = (
    rf"(?:(?P<zone>from_utc_timestamp|to_utc_timestamp)\(\s*(?P<moved>{name})\s*,\s*'[^'\\]*'\s*\)|(?P<plain>{name}))"
)
units = ("second", "minute", "hour", "day", "week", "month", "quarter", "year")
lengths = {"week": "7 days", "quarter": "3 months"}
truncations = (
    re.compile(rf"(?:to_date|date)\(\s*{zoned}\s*\)", re.IGNORECASE),
    re.compile(rf"CAST\(\s*{zoned}\s+AS\s+DATE\s*\)", re.IGNORECASE),
    re.compile(rf"date_trunc\(\s*'(?P<unit>{'|'.join(units)})'\s*,\s*{zoned}\s*\)", re.IGNORECASE),
)
last = "timestamp_micros(9223372036854775807)"


def times_of(expression: str, bounds: Bounds, kinds: Mapping[str, str]) -> str | None:
    """The condition, in SQL, on a time whose truncation by `expression` is within the bounds.

    None where the expression is no truncation of a column that is a time, by its type in `kinds`.
    """
    found = next((found for each in truncations if (found := each.fullmatch(expression.strip()))), None)
    if found is None:
        return None
    column = (found["moved"] or found["plain"]).strip("`")
    if {fold(each): kind for each, kind in kinds.items()}.get(fold(column)) not in ("timestamp", "date"):
        return None
    unit = (found.groupdict().get("unit") or "day").lower()
    margin = "1 day" if found["zone"] else "0 days"
    within = [
        f"`{column}` BETWEEN {earlier(least, margin)} AND {later(greatest, lengths.get(unit, f'1 {unit}'), margin)}"
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
