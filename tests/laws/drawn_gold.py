"""Random gold: aggregates by every kind of group and window, of those again, top lists, states, and views."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import cmp_to_key, partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from sluice import gold
from sluice.windows import Window, calendar_window, session_window, sliding_window, window
from tests.kit import day_one
from tests.laws.drawn import Drawn, Oracle, Row, Truth, declared
from tests.laws.values import comparable
from tests.oracles import windows as oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

new_york = "America/New_York"
# Hours as fractions: a second beside a border is exactly that.
Spans = Callable[[Any, Sequence[Any]], list[tuple[Any, Any]]]
half: Any = Fraction(1, 2)


@dataclass(frozen=True)
class Asked:
    """A group or a measure: SQL, its name, and what it is of a row, or of the rows of a group."""

    sql: str
    name: str
    value: Callable[[Any], Any]


def windows(column: str) -> list[tuple[Window, Spans]]:
    return [
        (window(column, "2 hours"), oracle.tumbling(2)),
        (window(column, "2 hours", every="30 minutes"), oracle.hopping(2, half)),
        (sliding_window(column, "3 hours"), oracle.sliding(3)),
        (session_window(column, gap="90 minutes"), oracle.sessions(3 * half)),
        (calendar_window(column, "day", time_zone=new_york), days("day")),
        (calendar_window(column, "month", time_zone=new_york), days("month")),
    ]


def days(unit: str) -> Spans:
    spans = oracle.calendar(unit, new_york, day_one)
    return lambda hour, hours: spans(float(hour), [])


def aggregate(chance: random.Random, name: str, source: Drawn, time: str | None) -> Drawn:
    """One row for each case and whatever else is drawn, perhaps in each window of `time`."""
    case = Asked("c", "c", partial(column, "c"))
    others = groups_of(source)
    groups = [case, *chance.sample(others, min(len(others), chance.choice([0, 0, 1, 2])))]
    if "c" not in source.columns:
        groups = [Asked("one.c AS c", "c", partial(member, "one", "c"))]
    groups = list({each.name: each for each in groups}.values())
    measured = measures_of(source)
    measures = [Asked("count(*)", "rows", len), *chance.sample(measured, min(len(measured), chance.randint(1, 5)))]
    placed = chance.choice([None, *windows(time)]) if time else None
    # What is drawn elsewhere stays as it is.
    apart = random.Random()
    apart.setstate(chance.getstate())
    measures += averages_of(source, apart)
    hides = placed is None and apart.random() < 0.3
    dataset, text = declared(
        gold.aggregate,
        name,
        source=source.dataset,
        group_by=[*[each.sql for each in groups], *([placed[0]] if placed else [])],
        measures={each.name: each.sql for each in measures},
        having="rows <> 2" if hides else "",
    )
    columns = (
        {each.name: "bigint" for each in measures if not each.name.startswith("mean")}
        | {"c": "int"}
        | ({"window_start": "timestamp"} if placed else {})
    )
    spans = placed[1] if placed else None
    if not source.oracle:
        return Drawn(dataset, text, None, columns)
    found = cells(source, groups, measures, time, spans)
    return Drawn(dataset, text, without_pairs(found) if hides else found, columns)


def groups_of(source: Drawn) -> list[Asked]:
    """What rows can be grouped by: columns, fields of structs, expressions."""
    found = []
    for name, kind in source.columns.items():
        if kind == "int" and name not in ("c", "id"):
            found.append(Asked(f"{plain(name)} % 2 AS odd", "odd", partial(modulo, name)))
        if kind in ("string", "int", "boolean", "date") and name not in ("c", "id"):
            found.append(Asked(plain(name), name, partial(column, name)))
        if kind == "struct<p: string, q: string>":
            found.append(Asked(f"{name}.q AS q", "q", partial(member, name, "q")))
        elif kind.startswith("struct<") and "x: string" in kind:
            found.append(Asked(f"{name}.x AS of_{name}", f"of_{name}", partial(member, name, "x")))
    return found


def measures_of(source: Drawn) -> list[Asked]:
    """What can be measured of rows, exactly whatever their order."""
    found = []
    for name, kind in source.columns.items():
        sql, short = plain(name), "".join(letter for letter in name if letter.isascii() and letter.isalnum())
        value = partial(column, name)
        if kind in ("int", "double") or kind.startswith("decimal"):
            found.append(Asked(f"sum({sql})", f"{short}_sum", partial(total, value)))
        if kind in ("int", "string", "date"):
            found.append(Asked(f"max({sql})", f"{short}_max", partial(greatest, value)))
        if kind in ("int", "string", "boolean"):
            found.append(Asked(f"count(DISTINCT {sql})", f"{short}_distinct", partial(distinct, value)))
        found.append(Asked(f"count({sql})", f"{short}_count", partial(count, value)))
        if kind.startswith("struct<") and "rate_%" in kind:
            rate = partial(member, name, "rate_%")
            found.append(Asked(f"sum({sql}.`rate_%`)", f"{short}_rate", partial(total, rate)))
    return found


def averages_of(source: Drawn, chance: random.Random) -> list[Asked]:
    """An average with the sum and count that it follows from, or none."""
    kinds = {name: kind for name, kind in source.columns.items() if kind == "int" or kind.startswith("decimal")}
    if not kinds or chance.random() < 0.5:
        return []
    name = chance.choice(list(kinds))
    sql, value = plain(name), partial(column, name)
    return [
        Asked(f"avg({sql})", "mean", partial(mean, value)),
        Asked(f"sum({sql})", "mean_sum", partial(total, value)),
        Asked(f"count({sql})", "mean_count", partial(count, value)),
    ]


Value = Callable[[Row], Any]


def column(name: str, row: Row) -> Any:
    return row[name]


def member(name: str, of: str, row: Row) -> Any:
    return None if row[name] is None else row[name][of]


def modulo(name: str, row: Row) -> int | None:
    return None if row[name] is None else row[name] % 2


def known(value: Value, rows: Sequence[Row]) -> list[Any]:
    return [each for row in rows if (each := value(row)) is not None]


def total(value: Value, rows: Sequence[Row]) -> Any:
    values = known(value, rows)
    return sum(values, start=type(values[0])(0)) if values else None


def mean(value: Value, rows: Sequence[Row]) -> Any:
    """As Spark divides: a decimal has four digits more."""
    values = known(value, rows)
    if not values:
        return None
    found = sum(values) / len(values)
    return found.quantize(Decimal("1e-14"), ROUND_HALF_UP) if isinstance(found, Decimal) else found


def greatest(value: Value, rows: Sequence[Row]) -> Any:
    return max(known(value, rows), default=None)


def distinct(value: Value, rows: Sequence[Row]) -> int:
    return len(set(known(value, rows)))


def count(value: Value, rows: Sequence[Row]) -> int:
    return len(known(value, rows))


def plain(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else f"`{name}`"


def cells(
    source: Drawn,
    groups: Sequence[Asked],
    measures: Sequence[Asked],
    time: str | None,
    spans: Spans | None,
) -> Oracle:
    """The rows of an aggregate, group by group."""

    def rows(truth: Truth) -> list[Row]:
        found: dict[Any, tuple[Row, list[Row]]] = {}
        for group, of_group in grouped(truth.rows[source.name], groups):
            for where, row in placed(of_group, time, spans):
                found.setdefault(comparable(group | where), (group | where, []))[1].append(row)
        return [group | {each.name: each.value(of_group) for each in measures} for group, of_group in found.values()]

    return rows


def without_pairs(oracle: Oracle) -> Oracle:
    return lambda truth: [each for each in oracle(truth) if each["rows"] != 2]


def grouped(rows: Sequence[Row], groups: Sequence[Asked]) -> list[tuple[Row, list[Row]]]:
    found: dict[Any, tuple[Row, list[Row]]] = {}
    for row in rows:
        group = {each.name: each.value(row) for each in groups}
        found.setdefault(comparable(group), (group, []))[1].append(row)
    return list(found.values())


def placed(rows: Sequence[Row], time: str | None, spans: Spans | None) -> list[tuple[Row, Row]]:
    """Each row in each window that it is in."""
    if time is None or spans is None:
        return [({}, row) for row in rows]
    hours = {number: hour_of(row[time]) for number, row in enumerate(rows) if row[time] is not None}
    line = sorted(set(hours.values()))
    return [
        ({"window_start": at_hour(start), "window_end": at_hour(end)}, rows[number])
        for number, hour in hours.items()
        for start, end in spans(hour, line)
    ]


def hour_of(at: datetime) -> Fraction:
    return Fraction((at - day_one) // timedelta(microseconds=1), 3_600_000_000)


def at_hour(hour: Any) -> datetime:
    return day_one + timedelta(microseconds=round(hour * 3_600_000_000))


def again(chance: random.Random, name: str, source: Drawn) -> Drawn:
    """An aggregate of an aggregate."""
    groups = [Asked("c", "c", partial(column, "c"))]
    measures = [
        Asked("sum(rows)", "rows", lambda rows: sum(row["rows"] for row in rows)),
        Asked("max(rows)", "most", lambda rows: max(row["rows"] for row in rows)),
        Asked("count(*)", "cells", len),
    ]
    dataset, text = declared(
        gold.aggregate,
        name,
        source=source.dataset,
        group_by=["c"],
        measures={each.name: each.sql for each in measures},
    )
    return Drawn(dataset, text, cells(source, groups, measures, None, None) if source.oracle else None)


def largest(cells: "DataFrame") -> "DataFrame":
    """The largest cells of each case, all that are as large."""
    line = Over.partitionBy("c")
    return (
        cells.withColumn("most", F.max("rows").over(line))
        .where("rows = most")
        .groupBy("c", "most")
        .agg(F.count("*").alias("cells"))
        .select("c", "most", "cells")
    )


def view(chance: random.Random, name: str, source: Drawn) -> Drawn:
    """A view of an aggregate."""
    dataset, text = declared(gold.view, name, inputs={"cells": source.dataset}, keys=["c"], shape=largest)

    def rows(truth: Truth) -> list[Row]:
        by_case: dict[Any, list[int]] = {}
        for row in truth.rows[source.name]:
            by_case.setdefault(row["c"], []).append(row["rows"])
        return [
            {"c": case, "most": max(counts), "cells": counts.count(max(counts))} for case, counts in by_case.items()
        ]

    return Drawn(dataset, text, None if source.oracle is None else rows)


@dataclass(frozen=True)
class Ordered:
    """One order: SQL, what it is of a row, and how it is sorted."""

    sql: str
    value: Value
    is_descending: bool = False
    is_nulls_first: bool = True

    def compare(self, one: Row, other: Row) -> int:
        left, right = self.value(one), self.value(other)
        if left is None or right is None:
            found = (left is not None) - (right is not None)
            return found if self.is_nulls_first else -found
        return -sign_of(left, right) if self.is_descending else sign_of(left, right)


def sign_of(one: Any, other: Any) -> int:
    """How Spark compares two values of one type: texts by their bytes, structs and arrays part by part, null first."""
    if isinstance(one, str):
        one, other = one.encode(), other.encode()
    if isinstance(one, dict):
        one, other = list(one.values()), list(other.values())
    if not isinstance(one, list):
        return int(one > other) - int(one < other)
    for left, right in zip(one, other, strict=False):
        is_null = left is None or right is None
        found = (left is not None) - (right is not None) if is_null else sign_of(left, right)
        if found:
            return found
    return sign_of(len(one), len(other))


def compared(orders: Sequence[Ordered], one: Row, other: Row) -> int:
    return next((found for each in orders if (found := each.compare(one, other))), 0)


def top(chance: random.Random, name: str, source: Drawn) -> Drawn:
    """The first rows of each group of anything, or of the whole table; with rows that tie in every way."""
    grain = source.dataset.outputs[-1].grain
    # The oracle does not know the bookkeeping; and the row of a window that comes back counts as new.
    is_windowed = "window_start" in source.columns
    all_ties = ["row_number"] * is_windowed or ["rank", "dense_rank"] + ["row_number"] * 2 * (grain[0][0] != "_")
    ties, rows = chance.choice(all_ties), chance.randint(1, 3)
    case = Asked("c", "c", partial(column, "c"))
    if "c" not in source.columns:
        case = Asked("one.c AS c", "c", partial(member, "one", "c"))
    more = groups_of(source)
    groups = chance.choice([[], [case], [case], [case], [case, *chance.sample(more, min(len(more), 1))]])
    orders = orders_of(chance, source)
    some = [each for each in source.columns if chance.random() < 0.5]
    columns = chance.choice([None, list(dict.fromkeys([*some, *(each for each in grain if each[0] != "_")]))])
    dataset, text = declared(
        gold.top,
        name,
        source=source.dataset,
        group_by=[each.sql for each in groups],
        order_by=[each.sql for each in orders],
        rows=rows,
        ties=ties,
        rank="place",
        columns=columns,
    )
    last = [Ordered(each, partial(column, each)) for each in grain] if ties == "row_number" else []

    def listed(truth: Truth) -> list[Row]:
        found = []
        for group, of_group in grouped(truth.rows[source.name], groups):
            line = sorted(of_group, key=cmp_to_key(partial(compared, [*orders, *last])))
            for place, row in zip(places(line, orders, ties), line, strict=True):
                kept = {each: row[each] for each in columns or row if each[0] != "_"}
                found += [kept | group | {"place": place}] if place <= rows else []
        return found

    return Drawn(dataset, text, listed if source.oracle else None)


def orders_of(chance: random.Random, source: Drawn) -> list[Ordered]:
    """One order or two, by columns and expressions, in either direction and with nulls at either end."""
    kinds = ("int", "bigint", "string", "double", "boolean", "date", "timestamp")
    names = [each for each, kind in source.columns.items() if kind in kinds or kind.startswith("decimal")]
    found = []
    for each in chance.sample(names, min(len(names), chance.randint(1, 2))):
        is_odd = source.columns[each] == "int" and chance.random() < 0.5
        sql, value = (f"{plain(each)} % 2", partial(modulo, each)) if is_odd else (plain(each), partial(column, each))
        direction, nulls = chance.choice(["", " ASC", " DESC"]), chance.choice(["", " NULLS FIRST", " NULLS LAST"])
        is_descending = direction == " DESC"
        is_nulls_first = nulls == " NULLS FIRST" or (nulls == "" and not is_descending)
        found.append(Ordered(sql + direction + nulls, value, is_descending, is_nulls_first))
    return found


def places(line: Sequence[Row], orders: Sequence[Ordered], ties: str) -> list[int]:
    """The place of each row of a group in order."""
    found: list[int] = []
    for number, row in enumerate(line):
        if number and ties != "row_number" and compared(orders, line[number - 1], row) == 0:
            found.append(found[-1])
        else:
            found.append(found[-1] + 1 if found and ties == "dense_rank" else number + 1)
    return found


def state(chance: random.Random, name: str, source: Drawn) -> Drawn:
    """A state folded from facts, event by event."""
    number = "n" if "n" in source.columns else "c"
    dataset, text = declared(
        gold.state,
        name,
        source=source.dataset,
        keys=["k"],
        sequence_by="at",
        schema="events int, last string, sum bigint",
        initial={"events": "0", "last": "NULL", "sum": "0"},
        reduce={
            "events": "state.events + 1",
            "last": "coalesce(event.x, state.last)",
            "sum": f"2 * state.sum % 1000003 + coalesce(event.{number}, 0)",
        },
    )
    return Drawn(dataset, text)
