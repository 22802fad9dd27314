"""Random lakehouses: from a seed a small lakehouse of random declarations, and random records for many cases of it.

The cases lie side by side in the same tables, and what is drawn for one does not hang on the others: a world of fewer
cases has the same records for those that are left.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.laws import drawn_facts, drawn_gold, drawn_histories, drawn_joins, drawn_patterns
from tests.laws.drawn import Drawn, Row, Said, Truth, in_order
from tests.laws.values import Features, KeyKind, a_key, all_features


@dataclass(frozen=True)
class World:
    """A lakehouse that was drawn, upstream first; and by which features."""

    seed: int
    features: Features
    drawn: tuple[Drawn, ...]

    @property
    def text(self) -> str:
        return "\n".join(each.text for each in self.drawn)

    def records(self, cases: Sequence[int]) -> list[Said]:
        """All records of some cases, in the log's order."""
        found: list[Said] = []
        for each in self.drawn:
            if each.of_case is None:
                continue
            said: list[Said] = []
            for case in cases:
                said += each.of_case(random.Random(f"{self.seed}/{each.name}/{case}"), case)
            found += each.finished(random.Random(f"{self.seed}/{each.name}/all"), said)
        return in_order(found)

    def expected(self, records: Sequence[Said]) -> dict[str, list[Row]]:
        """What the tables must hold, of which that is known."""
        truth = Truth(records)
        for each in self.drawn:
            if each.oracle is not None:
                truth.rows[each.name] = list(each.oracle(truth))
        return truth.rows


def world(seed: int, features: Features | None = None) -> World:
    """The lakehouse of a seed; with `features` of these and no others."""
    chance = random.Random(seed)
    if features is None:
        features = frozenset(each for each in sorted(all_features) if chance.random() < 0.5)
    key = a_key(chance, features)
    facts = drawn_facts.facts(chance, "facts", key, features)
    dimensions = dimensions_of(chance, key, features)
    joined = drawn_joins.with_dimensions(chance, "joined", facts, dimensions, features)
    found = [facts, *dimensions.values(), joined]
    more = chance.random()
    if more < 0.3:
        others = drawn_facts.facts(chance, "others", key, features)
        found += [others, drawn_joins.within_interval(chance, "paired", facts, others)]
    elif more < 0.5:
        found.append(drawn_histories.from_changes(chance, "other_things", key, features))
    found += gold_of(chance, found)
    # Chances of their own: what was drawn before there were top lists and patterns stays as it was.
    top, pattern = top_of(random.Random(f"{seed}/top"), found), random.Random(f"{seed}/pattern")
    if pattern.random() < 0.3:
        found.append(drawn_patterns.table(pattern, "matched", pattern.choice([facts, joined])))
    return World(seed, features, (*found, top))


def dimensions_of(chance: random.Random, key: KeyKind, features: Features) -> dict[str, Drawn]:
    """One dimension or two: a history, one of snapshots."""
    thing = drawn_histories.from_changes(chance, "things", key, features)
    if "partials" not in features:
        return {"thing": thing}
    stock = drawn_histories.from_snapshots(chance, "stock", key, features)
    return chance.choice([{"stock": stock}, {"thing": thing, "stock": stock}])


def gold_of(chance: random.Random, silver: Sequence[Drawn]) -> list[Drawn]:
    """An aggregate of what is joined, one of anything, and what is made of these."""
    times: dict[str, str | None] = {
        "silver.facts": "at",
        "silver.others": "at",
        "silver.joined": "at",
        "silver.paired": "event_time",
        "silver.other_things": None,
    }
    by_name = {each.name: each for each in silver if each.oracle is not None}
    joined, source = by_name["silver.joined"], by_name[chance.choice(sorted(by_name))]
    cells = drawn_gold.aggregate(chance, "cells", joined, "at")
    figures = drawn_gold.aggregate(chance, "figures", source, times.get(source.name, "valid_from"))
    word = chance.choice([drawn_gold.again, drawn_gold.view, drawn_gold.state])
    made_from = by_name["silver.facts"] if word is drawn_gold.state else cells
    return [cells, figures, word(chance, word.__name__, made_from)]


def top_of(chance: random.Random, others: Sequence[Drawn]) -> Drawn:
    """The first rows of any table whose rows are known."""
    by_name = {each.name: each for each in others if each.oracle is not None and each.columns}
    return drawn_gold.top(chance, "top", by_name[chance.choice(sorted(by_name))])
