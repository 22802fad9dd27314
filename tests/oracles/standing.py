"""What stored queries match, by the definition: every row is asked for every version of every query."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isnan
from typing import Any

Row = Mapping[str, Any]
# True, false, or unknown.
Truth = bool | None


def is_match(condition: Sequence[Sequence[Mapping[str, Any]]], row: Row, kinds: Mapping[str, str]) -> bool:
    """Whether a stored condition is true of a row."""
    return any(all(truth_of(atom, row, kinds) is True for atom in each) for each in condition)


def truth_of(atom: Mapping[str, Any], row: Row, kinds: Mapping[str, str]) -> Truth:
    """What an atom says of a row; unknown of a null, but for the two that ask for it."""
    column, operator = atom["column"], atom["operator"]
    value = row[column]
    if operator in ("is null", "is not null"):
        return (value is None) is (operator == "is null")
    if value is None:
        return None
    wanted = [value_of(text, kinds[column]) for text in atom["values"]]
    name = operator.removeprefix("not ")
    return plain[name](value, *wanted) is (name == operator)


def value_of(text: str, kind: str) -> Any:
    """The value that a text in a condition stands for."""
    if kind == "boolean":
        return text == "true"
    if kind in ("int", "bigint"):
        return int(text)
    if kind == "double":
        return float(text)
    if kind.startswith("decimal"):
        return Decimal(text)
    if kind == "date":
        return date.fromisoformat(text)
    return datetime.fromisoformat(text).astimezone(UTC) if kind == "timestamp" else text


def order_of(value: Any) -> Any:
    """What a value is sorted by: NaN is one number and the greatest, and texts are sorted by their bytes."""
    if isinstance(value, float):
        return (isnan(value), 0.0 if isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def same(one: Any, other: Any) -> bool:
    return bool(order_of(one) == order_of(other))


def before(one: Any, other: Any) -> bool:
    return bool(order_of(one) < order_of(other))


plain: dict[str, Callable[..., bool]] = {
    "=": same,
    "<>": lambda value, other: not same(value, other),
    "<": before,
    ">": lambda value, other: before(other, value),
    "<=": lambda value, other: not before(other, value),
    ">=": lambda value, other: not before(value, other),
    "in": lambda value, *others: any(same(value, other) for other in others),
    "between": lambda value, low, high: not before(value, low) and not before(high, value),
    "starts with": str.startswith,
    "ends with": str.endswith,
    "contains": str.__contains__,
}


@dataclass(frozen=True)
class Version:
    """A query as it was for a time; `since` is None where it matches whatever was before."""

    query: str
    began: float
    since: float | None
    until: float | None
    condition: list[list[dict[str, Any]]]
    attributes: tuple[Any, ...]

    def is_in_effect(self, at: float) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


def versions_of(records: Iterable[Row], attributes: Sequence[str] = ()) -> list[Version]:
    """The versions that records of queries imply, each with the hour `at` of its change, which is that of no other."""
    found, by_query = list[Version](), dict[str, list[Row]]()
    for record in records:
        by_query.setdefault(record["query_id"], []).append(record)
    for query, changes in by_query.items():
        states = list[tuple[float, Row | None]]()
        for change in sorted(changes, key=lambda each: each["at"]):
            state = None if change.get("is_deleted") else change
            if not states or said(states[-1][1], attributes) != said(state, attributes):
                states.append((change["at"], state))
        ends = [at for at, _ in states[1:]] + [None]
        lived = [(at, state, end) for (at, state), end in zip(states, ends, strict=True) if state is not None]
        for number, (at, state, end) in enumerate(lived):
            since = None if number == 0 and state.get("match_past") else at
            found.append(
                Version(query, at, since, end, state["condition"], tuple(state.get(name) for name in attributes))
            )
    return found


def said(record: Row | None, attributes: Sequence[str]) -> object:
    """What a record says of a query, by which it is seen that another version begins."""
    if record is None:
        return None
    return [record.get(name) for name in ("condition", "match_past", *attributes)]
