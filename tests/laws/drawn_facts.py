"""Random events: keys of any type, devices whose clocks are off, late records, and malformed ones."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf
from typing import Any

from sluice import bronze, silver
from tests.laws.drawn import Drawn, Oracle, Row, Said, Truth, declared, moment_of, redelivered, say, schema_of
from tests.laws.values import (
    Features,
    KeyKind,
    Kind,
    a_key,
    a_time,
    as_json,
    attributes,
    chosen,
    comparable,
    varied,
)

wide = "1000 days"
late_hours = 3


def facts(chance: random.Random, name: str, key: KeyKind, features: Features) -> Drawn:
    """Events with a column `k`, by which they meet dimensions and each other."""
    own = chance.choice([None, *[a_key(chance, features)] * 4])
    values = chosen(chance, attributes(features), fewest=3)
    has_sent, has_received, has_lateness = chance.random() < 0.3, chance.random() < 0.5, chance.random() < 0.5
    times = {"at": "timestamp"} | ({"sent": "timestamp"} if has_sent else {})
    times |= {"received": "timestamp"} if has_received else {}
    # Without a column of its own, the key is two: the case and a number.
    identity = {"c": "int", "id": "int"} if own is None else {"c": "int", "id": own.ddl}
    columns = identity | {"k": key.ddl} | times | {column: kind.ddl for column, kind in values.items()}
    keys = ("c", "id") if own is None else ("id",)
    has_lateness = has_lateness and has_received
    dataset, text = declared(
        silver.events,
        name,
        source=bronze.topic(name),
        schema=schema_of(columns),
        keys=list(keys),
        event_time="at",
        sent_time="sent" if has_sent else None,
        received_time="received" if has_received else None,
        hold_later_than=f"{late_hours} hours" if has_lateness else None,
        idle_after=wide,
        future_tolerance=wide,
    )

    def of_case(chance: random.Random, case: int) -> list[Said]:
        ids = [1, 2, 3] if own is None else own.of_case(case)
        found = [fact(chance, case, ids, key, values=values, columns=columns) for _ in range(chance.randint(1, 4))]
        # What is sent again with one value changed is a conflict: the first one in the log's order holds.
        found += [varied(chance, chance.choice(found), values) for _ in range(chance.randint(0, 2))]
        said = [say(chance, name, case, each, corrected(each, has_lateness=has_lateness)) for each in found]
        said += redelivered(chance, said, 0.15)
        return said + (malformed(chance, said, found) if "loose" in features else [])

    return Drawn(dataset, text, first_of(name, keys), columns, of_case)


def fact(
    chance: random.Random,
    case: int,
    ids: list[Any],
    key: KeyKind,
    *,
    values: Mapping[str, Kind],
    columns: Mapping[str, str],
) -> Row:
    """One event as it is sent."""
    at = a_time(chance, case)
    received = at + timedelta(hours=chance.choice([0, 1, 2, late_hours, late_hours + 1, 90]))
    times = {"at": at, "sent": chance.choice([None, received, received - timedelta(hours=1)]), "received": received}
    row = {"c": case, "id": chance.choice(ids), "k": chance.choice([*key.of_case(case), None])}
    row |= {name: time for name, time in times.items() if name in columns}
    return row | {name: kind.draw(chance) for name, kind in values.items()}


def corrected(row: Row, *, has_lateness: bool) -> Row | None:
    """The row by the receiver's clock; None if it is late."""
    at: datetime = row["at"]
    if row.get("sent") is not None:
        # Without a column for it, a record is received when the log says; the oracle gives the moment below.
        at = at + (row["received"] - row["sent"]) if "received" in row else at
    if has_lateness and row["received"] - at > timedelta(hours=late_hours):
        return None
    return row | {"at": at}


def first_of(topic: str, keys: tuple[str, ...]) -> Oracle:
    """The first record of each key in the log's order."""

    def rows(truth: Truth) -> list[Row]:
        found: dict[Any, Row] = {}
        for each in truth.records:
            if each.topic == topic and each.thing is not None:
                row = by_log_time(each)
                found.setdefault(tuple(comparable(row[key]) for key in keys), row)
        return list(found.values())

    return rows


def by_log_time(said: Said) -> Row:
    """A row whose device was corrected by the log's own time, where no column says when it was received."""
    row: Row = said.thing
    if row.get("sent") is None or "received" in row:
        return row
    return row | {"at": row["at"] + (said.moment - row["sent"])}


# What RFC 8259 refuses: each takes the text of a good record and breaks it.
breaks: dict[str, Callable[[str], str]] = {
    "two values": lambda text: text + text,
    "text after the value": lambda text: text + " xyz",
    "one brace too many": lambda text: text + "}",
    "a comment": lambda text: "/* a note */" + text,
    "single quotes": lambda text: text.replace('"c"', "'c'", 1),
    "a member twice": lambda text: text[:-1] + ',"c":' + text.partition('"c":')[2].partition(",")[0].rstrip("}") + "}",
    "half": lambda text: text[: len(text) // 2],
    "a leading zero": lambda text: text.replace('"c":', '"c":0', 1),
}
# What RFC 3339 refuses, or is no text.
times_refused = ['"12:30"', '"2026"', "1767225600", "1767225600000", '"2026-01-01"', '"2026-13-01T00:00:00Z"']


def malformed(chance: random.Random, said: list[Said], rows: list[Row]) -> list[Said]:
    """Records that are none, of keys that good ones may have; and one whose time is written as few would."""
    number = chance.randrange(len(rows))
    good, row = said[number], rows[number]
    text, at = as_json(row), as_json(row["at"])
    bad = [
        chance.choice(list(breaks.values()))(text),
        text.replace(f'"at":{at}', f'"at":{chance.choice(times_refused)}'),
        as_json(row | {"x": "\ud800"}),
        *([as_json(row | {"weight": inf}).replace("Infinity", "1e400")] if "weight" in row else []),
    ]
    refused = [replace(good, value=each.encode(), moment=moment_of(chance), thing=None) for each in bad]
    lower = text.replace(f'"at":{at}', f'"at":{at.lower()}')
    return [*chance.sample(refused, 2), replace(good, value=lower.encode(), moment=moment_of(chance))]
