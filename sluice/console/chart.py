"""Which chart suits a table: a series over time, bars, or a heat map; decided by its columns, and drawn by the page."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from sluice.model.labels import label_of
from sluice.model.sql import double_quoted

Kind = Literal["series", "bars", "heat map"]
Row = Mapping[str, Any]
points_max = 20_000
series_max = 12
bars_max = 60
integers = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
numbers = (*integers, "FLOAT", "DOUBLE", "DECIMAL")


@dataclass(frozen=True)
class Chart:
    """What is drawn of a table: measures, by the columns `by`, and over the times of `time` if it is a series.

    `time_end` is the column with the end of a window, None where times are no windows. `marks` are the columns that
    say which windows are open, and which were revised. `places` are the decimal places of the measures that have a
    fixed number of them.
    """

    kind: Kind
    by: tuple[str, ...]
    measures: tuple[str, ...]
    time: str | None = None
    time_end: str | None = None
    marks: tuple[str, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that identify a point."""
        return (*((self.time,) if self.time else ()), *self.by)


def chart_of(types: Mapping[str, str], keys: Sequence[str]) -> Chart | None:
    """The chart of a table with these columns and DuckDB types, whose rows `keys` tell apart; None: rows only."""
    keys = [name for name in keys if name in types]
    measures = tuple(name for name, kind in types.items() if name not in keys and is_number(kind) and name[0] != "_")
    if not keys or not measures:
        return None
    fixed = {name: found for name in measures if (found := decimal_places(types[name])) is not None}
    if "window_start" in keys and all(is_time(types.get(name, "")) for name in ("window_start", "window_end")):
        by = tuple(name for name in keys if name not in ("window_start", "window_end"))
        marks = tuple(name for name in ("_state", "_revision") if name in types)
        return Chart("series", by, measures, "window_start", "window_end", marks, fixed)
    times = [name for name in keys if is_time(types[name])]
    if len(times) == 1:
        by = tuple(name for name in keys if name != times[0])
        return Chart("series", by, measures, times[0], places=fixed)
    kind: Kind = "heat map" if len(keys) == 2 else "bars"
    return Chart(kind, tuple(keys), measures, places=fixed)


def chart_of_answer(types: Mapping[str, str]) -> Chart | None:
    """The chart of a query's answer: its numbers by the columns before the first of them."""
    keys = []
    for name, kind in types.items():
        if is_number(kind):
            break
        keys.append(name)
    return chart_of(types, keys)


def is_number(kind: str) -> bool:
    return kind.split("(", maxsplit=1)[0] in numbers


def decimal_places(kind: str) -> int | None:
    """The places after the point that each value of a type has; None where they have as many as they need."""
    if kind in integers:
        return 0
    found = re.fullmatch(r"DECIMAL\(\d+,\s*(\d+)\)", kind)
    return int(found[1]) if found else None


def is_time(kind: str) -> bool:
    return kind == "DATE" or kind.startswith("TIMESTAMP")


def sql_of(chart: Chart, source: str, measure: str, conditions: Sequence[str] = ()) -> str:
    """The query for a measure's points where all conditions hold, the newest times first."""
    wanted = [*chart.columns, *([chart.time_end] if chart.time_end else []), *chart.marks, measure]
    conditions = list(conditions)
    if chart.time:
        conditions.append(f"{double_quoted(chart.time)} IS NOT NULL")
    newest_first = [f"{double_quoted(chart.time)} DESC"] if chart.time else []
    order = ", ".join([*newest_first, *map(double_quoted, chart.by)])
    return (
        f"SELECT {', '.join(map(double_quoted, wanted))} FROM {source}"
        f"{' WHERE ' + ' AND '.join(conditions) if conditions else ''} ORDER BY {order} LIMIT {points_max + 1}"
    )


def drawn(
    chart: Chart, measure: str, rows: Sequence[Row], before: Sequence[Row] | None = None, *, unit: str | None = None
) -> dict[str, Any]:
    """The chart as data for the page; with the rows `before`, the difference between the two.

    `unit` is that of the measure, None where only its name can say it.
    """
    label = label_of(measure)
    side = "newest" if is_newest_first(chart, rows) else "first"
    notes = [f"Only the {side} {points_max:,} points are drawn."] if len(rows) > points_max else []
    shown = list(rows[:points_max])
    if before is not None:
        shown = differences(chart, measure, *comparable(chart, rows, before), notes)
    head = {
        "kind": chart.kind,
        "label": label.text,
        "unit": label.unit if unit is None else unit,
        "places": chart.places.get(measure),
        "keys": list(chart.columns),
        "difference": before is not None,
        "notes": notes,
    }
    draw = {"series": series, "bars": bars, "heat map": heat_map}[chart.kind]
    return head | draw(chart, measure, shown, notes)


def is_newest_first(chart: Chart, rows: Sequence[Row]) -> bool:
    times = [row[chart.time] for row in placed(rows, chart.time)] if chart.time else []
    return bool(times) and times[0] > times[-1]


def placed(rows: Sequence[Row], time: str) -> list[Row]:
    """The rows that have a place on an axis of time: what Python has no date for, such as infinity, comes as text."""
    return [row for row in rows if isinstance(row[time], date)]


def comparable(chart: Chart, rows: Sequence[Row], before: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Both sides, as far as neither was cut off: a point beyond the limit of one of them did not disappear."""
    kept, kept_before = list(rows[:points_max]), list(before[:points_max])
    beyond = [side[points_max] for side in (rows, before) if len(side) > points_max]
    if not beyond:
        return kept, kept_before
    if chart.time:
        time = chart.time
        since = max((milliseconds(row[time]) for row in placed(beyond, time)), default=-math.inf)
        newer, newer_before = (
            [row for row in placed(side, time) if milliseconds(row[time]) > since] for side in (kept, kept_before)
        )
        return newer, newer_before
    both = {group_of(chart.columns, row) for row in kept} & {group_of(chart.columns, row) for row in kept_before}
    shared, shared_before = (
        [row for row in side if group_of(chart.columns, row) in both] for side in (kept, kept_before)
    )
    return shared, shared_before


def differences(chart: Chart, measure: str, rows: Sequence[Row], before: Sequence[Row], notes: list[str]) -> list[Row]:
    """The points of which the measure is not what it was, each with how much it moved."""
    was = {group_of(chart.columns, row): row for row in before}
    now = {group_of(chart.columns, row): row for row in rows}
    found: list[Row] = []
    one_sided = 0
    for key, row in {**was, **now}.items():
        new, old = (side[key][measure] if key in side else None for side in (now, was))
        new, old = (None if number(value) is None else value for value in (new, old))
        if new != old:
            one_sided += new is None or old is None
            # Exact, as the values may be decimals.
            found.append({**row, measure: float(Fraction(new or 0) - Fraction(old or 0))})
    if one_sided:
        notes.append(f"{one_sided:,} of these points had a value at only one of the two times; the other counts as 0.")
    return found


def series(chart: Chart, measure: str, rows: Sequence[Row], notes: list[str]) -> dict[str, Any]:
    """One line for each group, with a gap where windows, days or hours are missing."""
    time = chart.time or ""
    groups: dict[tuple[str | None, ...], list[Row]] = {}
    timed = placed(rows, time)
    if len(timed) < len(rows):
        notes.append(f"{len(rows) - len(timed):,} points without a time are not drawn.")
    for row in timed:
        groups.setdefault(group_of(chart.by, row), []).append(row)
    largest = sorted(groups, key=lambda group: (-len(groups[group]), [*map(text_of, group)]))[:series_max]
    if len(groups) > series_max:
        notes.append(f"{series_max} of {len(groups)} groups are drawn; choose one above to see another.")
    lines: list[dict[str, Any]] = []
    times = [name for name in (time, chart.time_end) if name]
    step = None if chart.time_end else step_of([milliseconds(row[time]) for row in timed])
    revised: list[list[Any]] = []
    open_from, open_until = None, 0
    for group in sorted(largest, key=lambda group: [*map(text_of, group)]):
        points: list[list[Any]] = []
        end = None
        for row in sorted(groups[group], key=lambda row: milliseconds(row[time])):
            start = milliseconds(row[time])
            if end is not None and start > end:
                points.append([end, None])
            end = milliseconds(row[chart.time_end]) if chart.time_end and placed([row], chart.time_end) else None
            end = start + step if step else end
            points.append([start, number(row[measure])])
            if row.get("_revision"):
                revised.append([len(lines), start, number(row[measure]), row["_revision"]])
            if row.get("_state") == "open":
                open_until = max(open_until, end or start)
                open_from = start if open_from is None else min(start, open_from)
        name = name_of(group) if chart.by else "all"
        lines.append({"name": name, "group": key_of(chart.by, group), "points": points})
    if revised:
        notes.append(f"{len(revised):,} of these windows were revised after they were complete (red diamonds).")
    return {
        "x": label_of(time).text,
        "series": lines,
        "is_daily": bool(timed) and all(is_midnight(row[name]) for name in times for row in timed if row[name]),
        "revised": revised,
        "open_from": open_from,
        "open_until": open_until,
        "is_empty": not lines,
    }


def step_of(times: Sequence[int]) -> int | None:
    """How far times are apart that are mostly successive days or hours; None where none can be said to be missing."""
    steps = Counter(later - earlier for earlier, later in pairwise(sorted(set(times))))
    (usual, count), *_ = steps.most_common(1) or [(0, 0)]
    return usual if usual in (3_600_000, 86_400_000) and 2 * count > steps.total() else None


def bars(chart: Chart, measure: str, rows: Sequence[Row], notes: list[str]) -> dict[str, Any]:
    """One bar for each group, in the order of their names."""
    if len(rows) > bars_max:
        notes.append(f"The first {bars_max} of {len(rows):,} groups are drawn.")
    kept = rows[:bars_max]
    return {
        "x": ", ".join(label_of(name).text for name in chart.by),
        "categories": [name_of([row[name] for name in chart.by]) for row in kept],
        "groups": [key_of(chart.by, [row[name] for name in chart.by]) for row in kept],
        "values": [number(row[measure]) for row in kept],
        "is_empty": not kept,
    }


def heat_map(chart: Chart, measure: str, rows: Sequence[Row], notes: list[str]) -> dict[str, Any]:
    """One cell for each pair of groups."""
    across, down = chart.by
    columns, lines = (places(rows, name) for name in (across, down))
    cells = [(columns.get(group_of([across], row)), lines.get(group_of([down], row)), row) for row in rows]
    kept = [each for each in cells if each[0] is not None and each[1] is not None]
    if len(kept) < len(rows):
        notes.append(f"{len(kept):,} of {len(rows):,} cells are drawn.")
    if len({(column, line) for column, line, _ in kept}) < len(kept):
        notes.append("Some cells have several rows; the last one is drawn.")
    return {
        "x": label_of(across).text,
        "y": label_of(down).text,
        "columns": [name_of(value) for value in columns],
        "lines": [name_of(value) for value in lines],
        "cells": [[column, line, number(row[measure])] for column, line, row in kept],
        "groups": [key_of(chart.by, [row[name] for name in chart.by]) for _, _, row in kept],
        "is_empty": not kept,
    }


def places(rows: Sequence[Row], name: str) -> dict[tuple[str | None, ...], int]:
    """The place of each value of a column on an axis: numbers by their size, other values by their text, null last."""
    values = {group_of([name], row): row[name] for row in rows}

    def order(group: tuple[str | None, ...]) -> tuple[bool, float, str]:
        return values[group] is None, number(values[group]) or 0, text_of(values[group])

    return {group: place for place, group in enumerate(sorted(values, key=order)[: bars_max * 2])}


def group_of(names: Sequence[str], row: Row) -> tuple[str | None, ...]:
    """What identifies a row among others: unlike the values, always hashable; and null is not the text `null`."""
    return tuple(key_of(names, [row[name] for name in names]).values())


def name_of(group: Sequence[Any]) -> str:
    return ", ".join(map(label_text, group))


def label_text(value: Any) -> str:
    """A value as a label: short, and a text in quotes where it would look like nothing, or like null."""
    text = directions.sub("", text_of(value))
    if value is not None and text in ("", text_of(None)):
        return f'"{text}"'
    is_long = len(text) > label_characters_max
    return f"{text[: label_characters_max - 15]}…{text[-14:]}" if is_long else text


label_characters_max = 100
# Signs that turn the direction of the text that follows them, outside of the label too.
directions = re.compile("[\u202a-\u202e\u2066-\u2069]")


def key_of(names: Sequence[str], values: Sequence[Any]) -> dict[str, str | None]:
    """The columns that identify a point, as a request names them."""
    return {name: None if value is None else text_of(value) for name, value in zip(names, values, strict=True)}


def condition_of(name: str, kind: str, value: str | None) -> str:
    """The SQL condition that a column of a DuckDB type has the value that a request names."""
    if value is None:
        return f"{double_quoted(name)} IS NULL"
    literal = value.replace("'", "''")
    return f"{readable(name, kind)} = CAST('{literal}' AS {'VARCHAR' if kind == 'BLOB' else kind})"


def readable(name: str, kind: str) -> str:
    """A column as it is shown and named in requests: bytes as text where they are text, else in hexadecimal digits."""
    column = double_quoted(name)
    return f"coalesce(try(decode({column})), hex({column}))" if kind == "BLOB" else column


def text_of(value: Any) -> str:
    """A value as it is shown, and as it is named in a request."""
    if isinstance(value, datetime):
        return utc(value).replace(tzinfo=None).isoformat(" ")
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex().upper()
    if isinstance(value, Decimal):
        # All of its places, and never an exponent, as `str` has for 0E-8.
        return f"{value:f}"
    return "null" if value is None else str(value)


def utc(value: datetime) -> datetime:
    """A time in UTC, which one without a zone is in already."""
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def number(value: Any) -> float | int | None:
    """A number that JSON can have; None for what is none."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def is_midnight(value: Any) -> bool:
    """Whether a time is the beginning of a day in UTC, as a date is."""
    return not isinstance(value, datetime) or utc(value).time() == datetime.min.time()


def milliseconds(value: Any) -> int:
    """A time in milliseconds since the epoch; a day begins at midnight UTC."""
    if isinstance(value, datetime):
        return int((value if value.tzinfo else utc(value)).timestamp() * 1000)
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp() * 1000)
    raise TypeError(f"{value!r} is no time")
