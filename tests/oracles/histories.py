"""What histories must hold, computed change by change in plain Python."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
State = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A change as it arrived; `kind` is set, delete or truncate, and a truncate has no key.

    `sequence` orders the changes of a key, by default their time. `identified_by` identifies it, if the fields
    here do not suffice.
    """

    kind: str
    key: str | None
    at: float
    values: Mapping[str, Any] = field(default_factory=dict)
    moved_from: str | None = None
    sequence: tuple[float, ...] = ()
    identified_by: Any = None

    @property
    def identity(self) -> Row:
        if self.identified_by is not None:
            return (self.identified_by,)
        values = tuple(sorted(self.values.items(), key=repr))
        return (self.kind, self.key, self.at, values, self.moved_from, self.sequence)


@dataclass(frozen=True)
class Options:
    """The options of a history that change what it holds."""

    attributes: tuple[str, ...]
    tracked: tuple[str, ...]
    fill_nulls: tuple[str, ...] = ()


def versions(changes: Sequence[Change], options: Options) -> set[Row]:
    """(key, *attributes, valid_from, valid_to, is_current); `changes` are in the log's order."""
    return {
        (key, *[state[name] for name in options.attributes], start, end, end is None)
        for key, line in timelines(changes, options).items()
        for start, end, state in line
    }


def current(changes: Sequence[Change], options: Options) -> set[Row]:
    """(key, *attributes, at) of the keys that are not deleted: the type 1 table."""
    found = set()
    for key, events in by_key(changes).items():
        state, at = None, 0.0
        for at, change in events:  # noqa: B007 - the last one's time is wanted
            state = applied(state, change, options)
        if state is not None:
            found.add((key, *[state[name] for name in options.attributes], at))
    return found


def timelines(changes: Sequence[Change], options: Options) -> dict[str, list[tuple[float, float | None, State]]]:
    """For each key its versions as (start, end, state)."""
    return {key: timeline(events, options) for key, events in by_key(changes).items()}


def by_key(changes: Sequence[Change]) -> dict[str, list[tuple[float, Change]]]:
    """Each key's changes in sequence, then as in the log, with the time each takes effect: never before the last.

    Identical changes are one, at its first position.
    """
    distinct: dict[Row, Change] = {}
    for change in changes:
        distinct.setdefault(change.identity, change)
    keys = {change.key for change in changes if change.kind == "set" and change.key is not None}
    lines: dict[str, list[tuple[float, Change]]] = defaultdict(list)
    for change in sorted(distinct.values(), key=lambda change: change.sequence or (change.at,)):
        touched: list[tuple[str | None, Change]] = [(change.key, change)]
        if change.kind == "truncate":
            touched = [(key, Change("delete", key, change.at)) for key in sorted(keys)]
        if change.moved_from not in (None, change.key):
            touched.append((change.moved_from, Change("delete", change.moved_from, change.at)))
        for key, each in touched:
            if key is not None:
                before = lines[key][-1][0] if lines[key] else each.at
                lines[key].append((max(before, each.at), each))
    return lines


def applied(state: State | None, change: Change, options: Options) -> State | None:
    """The state of a key after a change."""
    if change.kind != "set":
        return None
    before = state or {}
    return {
        # A change that does not name an attribute leaves it as it was.
        name: before.get(name)
        if name not in change.values or (change.values[name] is None and name in options.fill_nulls)
        else change.values[name]
        for name in options.attributes
    }


def timeline(events: Iterable[tuple[float, Change]], options: Options) -> list[tuple[float, float | None, State]]:
    """A walk along a key's changes: what held at the end of each instant, then neighbours that say the same joined."""
    instants: dict[float, State | None] = {}
    state: State | None = None
    for at, change in events:
        state = applied(state, change, options)
        instants[at] = state
    found: list[tuple[float, float | None, State]] = []
    for at, held in instants.items():
        last = found[-1] if found and found[-1][1] is None else None
        if held is None:
            if last:
                found[-1] = (last[0], at, last[2])
        elif last and all(last[2][name] == held[name] for name in options.tracked):
            found[-1] = (last[0], None, held)
        else:
            if last:
                found[-1] = (last[0], at, last[2])
            found.append((at, None, held))
    return found


def from_snapshots(rows: Sequence[Change], empty: Iterable[float] = ()) -> list[Change]:
    """The changes that full snapshots amount to: a key that a snapshot lacks is deleted by it."""
    times = sorted({row.at for row in rows} | set(empty))
    keys = {row.key for row in rows}
    present = {(row.key, row.at) for row in rows}
    gone = [Change("delete", key, at) for at in times for key in keys if (key, at) not in present]
    return [*rows, *gone]


def from_counted_snapshots(rows: Sequence[Change], row_count: str) -> list[Change]:
    """The same from snapshots that say how many rows they have: one counts when it has as many keys as it says."""
    by_time: dict[float, list[Change]] = defaultdict(list)
    for row in rows:
        by_time[row.at].append(row)
    whole: dict[float, list[Change]] = {}
    for at, snapshot in by_time.items():
        counts = [row.values[row_count] for row in snapshot if row.values[row_count] is not None]
        present = [row for row in snapshot if row.values[row_count] != 0]
        if counts and len({row.key for row in present}) >= max(counts):
            whole[at] = present
    return from_snapshots([row for snapshot in whole.values() for row in snapshot], empty=whole)


def valid_at(line: Sequence[tuple[float, float | None, State]], at: float) -> tuple[float | None, State | None, bool]:
    """(valid_from, state) of the version valid at a time, and whether any version had begun by then."""
    begun = [each for each in line if each[0] <= at]
    if not begun:
        return None, None, False
    start, end, state = begun[-1]
    return (start, state, True) if end is None or at < end else (None, None, True)
