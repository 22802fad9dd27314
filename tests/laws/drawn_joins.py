"""Random joins: facts with the versions of their time, and pairs of facts within an interval."""

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sluice import silver
from tests.laws.drawn import Drawn, Row, Truth, declared
from tests.laws.values import Features, comparable


def with_dimensions(
    chance: random.Random, name: str, facts: Drawn, dimensions: Mapping[str, Drawn], features: Features
) -> Drawn:
    """Facts, each with the versions of its time; with members that are inferred, or without."""
    inferred: Mapping[str, str] | None = {"x": "'unknown'"} if "inferred" in features else None
    how = {
        alias: silver.dimension(each.dataset, on=chance.choice([None, {"k": "k"}]), inferred=inferred)
        for alias, each in dimensions.items()
    }
    dataset, text = declared(silver.as_of, name, facts=facts.dataset, event_time="at", dimensions=how)

    def rows(truth: Truth) -> list[Row]:
        found = truth.rows[facts.name]
        for alias, each in dimensions.items():
            lines = by_key(truth.rows[each.name])
            seen = [version_at(lines, fact["k"], fact["at"], each, inferred) for fact in found]
            found = [fact | {alias: version} for fact, version in zip(found, seen, strict=True)]
        return found

    structs = {
        alias: "struct<"
        + ", ".join(f"{column}: {kind}" for column, kind in each.columns.items() if column != "k")
        + ">"
        for alias, each in dimensions.items()
    }
    return Drawn(dataset, text, rows, {**facts.columns, **structs})


def by_key(versions: list[Row]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in versions:
        found.setdefault(comparable(row["k"]), []).append(row)
    return found


def version_at(
    lines: Mapping[Any, list[Row]], key: Any, at: datetime, dimension: Drawn, inferred: Mapping[str, str] | None
) -> Row | None:
    """The struct of the version that holds at a time; the inferred one where none has begun by then."""
    begun = [row for row in lines.get(comparable(key), []) if row["valid_from"] <= at]
    names = [name for name in dimension.columns if name != "k"]
    for row in begun:
        if row["valid_to"] is None or at < row["valid_to"]:
            version = {name: row[name] for name in [*names, "valid_from"]}
            return version if inferred is None else version | {"is_inferred": False}
    if inferred is None or begun or key is None:
        return None
    guessed = {name: value.strip("'") for name, value in inferred.items()}
    return {name: guessed.get(name) for name in names} | {"valid_from": None, "is_inferred": True}


def within_interval(chance: random.Random, name: str, left: Drawn, right: Drawn) -> Drawn:
    """Pairs of facts of one key within an interval, and in an outer join those of either side alone."""
    how = chance.choice(["inner", "left", "right", "full"])
    least, most = chance.choice([(-30, 60), (0, 15), (-120, -60), (-45, 0)])
    dataset, text = declared(
        silver.interval_join,
        name,
        left={"one": left.dataset},
        right={"other": right.dataset},
        keys=["k"],
        between=(f"{least} minutes", f"{most} minutes"),
        how=how,
    )

    def rows(truth: Truth) -> list[Row]:
        ones, others = truth.rows[left.name], truth.rows[right.name]
        pairs = [
            (one, other)
            for one in range(len(ones))
            for other in range(len(others))
            if ones[one]["k"] is not None
            and comparable(ones[one]["k"]) == comparable(others[other]["k"])
            and timedelta(minutes=least) <= others[other]["at"] - ones[one]["at"] <= timedelta(minutes=most)
        ]
        matched_left, matched_right = {one for one, _ in pairs}, {other for _, other in pairs}
        found = [paired(ones[one], others[other]) for one, other in pairs]
        if how in ("left", "full"):
            found += [paired(row, None) for number, row in enumerate(ones) if number not in matched_left]
        if how in ("right", "full"):
            found += [paired(None, row) for number, row in enumerate(others) if number not in matched_right]
        return found

    return Drawn(dataset, text, rows, {"k": left.columns["k"], "event_time": "timestamp"})


def paired(one: Row | None, other: Row | None) -> Row:
    there = one or other or {}
    return {"k": there["k"], "event_time": there["at"], "one": one, "other": other}
