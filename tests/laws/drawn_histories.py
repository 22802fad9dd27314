"""Random histories: every option, from changes in any order, from captured rows, and from snapshots."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice import bronze, silver
from tests.kit import day_one
from tests.laws.drawn import Drawn, Row, Said, Truth, declared, redelivered, say, schema_of
from tests.laws.drawn_facts import wide
from tests.laws.values import Features, KeyKind, Kind, a_time, as_json, attributes, chosen, comparable, varied
from tests.oracles import histories
from tests.oracles.histories import Change, Options


def from_changes(chance: random.Random, name: str, key: KeyKind, features: Features) -> Drawn:
    """A history of changes, by the options that the seed draws."""
    values = chosen(chance, attributes(features), fewest=2)
    topics = [f"{name}_{number}" for number in range(chance.choice([1, 1, 2]))]
    by_column = chance.random() < 0.2
    sequence = chance.choice([["at"], ["at", "turn"], ["turn"]])
    has_truncates = chance.random() < 0.3
    # An inferred member is of a key of which nothing is known; what has ended is known.
    ops = ["u", "u", None, "d", "d"] if "inferred" in features else ["u", "u", "u", "u", None, "d"]
    # Of a struct, null means as before field by field: that is Spark's own business, and not asked here.
    plain = [each for each, kind in values.items() if "<" not in kind.ddl]
    filled: Any = chance.choice([False, False, plain[:2]]) if not by_column else False
    tracked = chance.choice([None, None, chance.sample(list(values), chance.randint(1, len(values)))])
    scd_type = chance.choice([1, 1, 2]) if name.startswith("other") else 2
    columns = {"op": "string", "k": key.ddl, "c": "int", "at": "timestamp", "turn": "int"}
    columns |= {"said": "array<string>"} if by_column else {}
    schema = columns | {column: kind.ddl for column, kind in values.items()}
    left_out = ["op", *(["turn"] if "turn" not in sequence else [])]
    dataset, text = declared(
        silver.history,
        name,
        source=[bronze.topic(topic) for topic in topics],
        schema=schema_of(schema),
        keys=["k"],
        sequence_by=sequence,
        valid_from="at",
        apply_as_deletes="op = 'd'",
        apply_as_truncates="op = 't'" if has_truncates else None,
        ignore_null_updates=filled,
        columns_to_update="said" if by_column else None,
        except_column_list=left_out,
        **({"stored_as_scd_type": 1} if scd_type == 1 else {"track_history_column_list": tracked}),
        future_tolerance=wide,
        idle_after=wide,
    )
    names = ["c", *values]
    options = Options(
        attributes=tuple(names), tracked=tuple(tracked or names), fill_nulls=tuple(filled) if filled else ()
    )

    def of_case(chance: random.Random, case: int) -> list[Said]:
        changes = [change(chance, case, key, values, ops=ops, by_column=by_column) for _ in range(chance.randint(1, 4))]
        # A correction: the same instant, and one value changed.
        changes += [varied(chance, chance.choice(changes), values) for _ in range(chance.randint(0, 3))]
        said = [say(chance, chance.choice(topics), case, row, change_of(row, names, sequence)) for row in changes]
        return said + redelivered(chance, said, 0.15)

    def finished(chance: random.Random, said: Sequence[Said]) -> list[Said]:
        if not has_truncates:
            return list(said)
        # Late in the line, so that not all that came before is lost.
        at = day_one + timedelta(hours=chance.choice([2, 24 * 66 + 3]))
        row: Row = {"op": "t", "at": at, "turn": chance.choice([1, 9])}
        thing = change_of(row, [], sequence)
        return [*said, say(chance, topics[0], None, row, thing)]

    def rows(truth: Truth) -> list[Row]:
        changes = truth.of(*topics)
        return latest(changes, options, sequence) if scd_type == 1 else versions(changes, options)

    return Drawn(dataset, text, rows, {"k": key.ddl, **{each: schema[each] for each in names}}, of_case, finished)


def change(
    chance: random.Random,
    case: int,
    key: KeyKind,
    values: dict[str, Kind],
    *,
    ops: Sequence[str | None],
    by_column: bool,
) -> Row:
    """A change: mostly one that sets, for one in five keys never."""
    keys = key.of_case(case)
    k = chance.choice(keys)
    never_set = case % 5 == 0 and k == keys[-1]
    row: Row = {"op": "d" if never_set else chance.choice(ops), "k": k, "c": case}
    row |= {"at": a_time(chance, case), "turn": chance.choice([1, 1, 2, 3])}
    row |= {name: kind.draw(chance) for name, kind in values.items()}
    if by_column:
        row["said"] = chance.choice([None, ["c", *chance.sample(list(values), chance.randint(1, len(values)))]])
    return row


def change_of(row: Row, names: Sequence[str], sequence: Sequence[str]) -> Change:
    """A row as a change for the oracle, identified by all its values, also those that change nothing."""
    kind = {"d": "delete", "t": "truncate"}.get(row["op"] or "", "set")
    said = row.get("said")
    values = {name: row[name] for name in names if said is None or name in said} if kind == "set" else {}
    order = tuple(row[name].timestamp() if name == "at" else row[name] for name in sequence)
    key = None if kind == "truncate" else Key(row["k"])
    return Change(kind, key, row["at"].timestamp(), values, None, order, comparable(row))  # type: ignore[arg-type]


class Key:
    """A key of any type; equal and in order by what it is, and it remembers how it was written."""

    def __init__(self, value: Any) -> None:
        self.value, self.comparable = value, comparable(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.comparable == other.comparable

    def __hash__(self) -> int:
        return hash(self.comparable)

    def __lt__(self, other: "Key") -> bool:
        return repr(self.comparable) < repr(other.comparable)


def versions(changes: Sequence[Change], options: Options) -> list[Row]:
    """The table of a history of type 2."""
    return [
        {"k": key.value, **state}  # type: ignore[attr-defined]
        | {"valid_from": time(start), "valid_to": None if end is None else time(end), "is_current": end is None}
        for key, line in histories.timelines(changes, options).items()
        for start, end, state in line
    ]


def latest(changes: Sequence[Change], options: Options, sequence: Sequence[str]) -> list[Row]:
    """The table of a history of type 1: the last state of each key, with the columns that put its changes in order."""
    found = []
    for key, line in histories.by_key(changes).items():
        state: dict[str, Any] | None = None
        for _, each in line:
            state = histories.applied(state, each, options)
        if state is not None:
            last: Row = dict(zip(sequence, line[-1][1].sequence, strict=True))
            if "at" in last:
                last["at"] = time(last["at"])
            found.append({"k": key.value, **state, **last})  # type: ignore[attr-defined]
    return found


def time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def from_snapshots(chance: random.Random, name: str, key: KeyKind, features: Features) -> Drawn:
    """A history of snapshots, some never whole, some empty; with or without the number of their rows in them."""
    values = chosen(chance, attributes(features), fewest=2)
    counted = chance.random() < 0.7
    times = [day_one + timedelta(hours=hours) for hours in (0, 3, 24 * 66, 24 * 66 + 4, 24 * 303 + 20)]
    columns = {"k": key.ddl, "c": "int", "at": "timestamp"} | ({"items": "int"} if counted else {})
    columns |= {column: kind.ddl for column, kind in values.items()}
    names = ["c", *values]
    tracked = chance.choice([None, chance.sample(list(values), chance.randint(1, len(values)))])
    dataset, text = declared(
        silver.history_from_snapshots,
        name,
        source=bronze.topic(name),
        schema=schema_of(columns),
        keys=["k"],
        taken_at="at",
        row_count="items" if counted else None,
        track_history_column_list=tracked,
        future_tolerance=wide,
    )
    options = Options(attributes=tuple(names), tracked=tuple(tracked or names))

    def of_case(chance: random.Random, case: int) -> list[Said]:
        # The last snapshot has few rows: what went before is deleted by it.
        shares = dict(zip(times, [0.8, 0.5, 0.8, 0.3, 0.15], strict=True))
        rows = [
            {"k": k, "c": case, "at": at} | {name: kind.draw(chance) for name, kind in values.items()}
            for k in key.of_case(case)
            for at in times
            for _ in range(chance.choice([1, 1, 1, 2]))
            if chance.random() < shares[at]
        ]
        return [say(chance, name, case, row, row) for row in rows]

    def finished(chance: random.Random, said: Sequence[Said]) -> list[Said]:
        """The same with the number of rows in each, which for some snapshots is more than will ever come."""
        if not counted:
            return list(said)
        missing = {at: chance.choice([0, 0, 1, 1]) for at in times}
        keys = {at: {comparable(each.thing["k"]) for each in said if each.thing["at"] == at} for at in times}
        found = []
        for each in said:
            at = each.thing["at"]
            row = each.thing | {"items": len(keys[at]) + missing[at]}
            found.append(replace(each, value=as_json(row).encode(), thing=row))
        empty: Row = {"at": day_one + timedelta(hours=chance.choice([2, 30, 24 * 70])), "items": 0}
        return [*found, say(chance, name, None, empty, empty)] if chance.random() < 0.5 else found

    def rows(truth: Truth) -> list[Row]:
        said = truth.of(name)
        whole = whole_times(said, counted=counted)
        changes = [
            change_of(row | {"op": "u"}, names, ["at"])
            for row in said
            if row["at"] in whole and row.get("k") is not None
        ]
        return versions(histories.from_snapshots(changes, [at.timestamp() for at in whole]), options)

    types = {"k": key.ddl, "c": "int", **{name: columns[name] for name in values}}
    return Drawn(dataset, text, rows, types, of_case, finished)


def whole_times(rows: Sequence[Row], *, counted: bool) -> set[datetime]:
    """The times of the snapshots of which as many keys have come as there are to be."""
    wanted: dict[datetime, int] = {}
    keys: dict[datetime, set[Any]] = {}
    for row in rows:
        wanted[row["at"]] = max(wanted.get(row["at"], 0), row["items"] if counted else 0)
        keys.setdefault(row["at"], set()).update([comparable(row["k"])] if row.get("k") is not None else [])
    return {at for at in wanted if len(keys[at]) >= wanted[at]}
