"""Random row patterns: trees of every kind of element, and where the next match is looked for."""

import random

from sluice.errors import DeclarationError
from sluice.model.row_pattern import automaton_of
from sluice.silver.pattern import skip_of
from tests.oracles.patterns import Alt, Asked, Not, Rep, Seq, Tree, Var

names = ("A", "B", "C")
times: list[tuple[int, int | None]] = [(0, None), (1, None), (0, 1), (2, 2), (1, 3), (0, 2), (2, None)]


def a_tree(chance: random.Random) -> Tree:
    """A tree whose text is accepted."""
    while True:
        found = an_element(chance, 3)
        try:
            automaton_of("drawn", str(found))
        except DeclarationError:
            continue
        return found


def an_element(chance: random.Random, depth: int) -> Tree:
    kind = chance.random()
    if depth == 0 or kind < 0.25:
        return Var(chance.choice(names))
    if kind < 0.6:
        parts = [an_element(chance, depth - 1) for _ in range(chance.randint(2, 3))]
        if len(parts) == 3 and chance.random() < 0.3:
            parts[1] = Not(chance.choice(names))
        return Seq(tuple(parts))
    if kind < 0.75:
        return Alt(tuple(an_element(chance, depth - 1) for _ in range(2)))
    least, most = chance.choice(times)
    return Rep(an_element(chance, depth - 1), least, most, chance.random() < 0.4)


def asked(chance: random.Random, within: float, skips: list[str] | None = None) -> Asked:
    """A pattern, perhaps with an absence at its end, and a place to look for the next match that it allows."""
    tree = a_tree(chance)
    while len(str(tree)) < 5:
        tree = a_tree(chance)
    absent = chance.choice([None, None, "C"])
    whole = automaton_of("drawn", Asked(tree, within, absent).text)
    while True:
        skip = chance.choice(
            skips
            or [
                "skip past last row",
                "skip to next row",
                f"skip to first {chance.choice(names)}",
                f"skip to last {chance.choice(names)}",
            ]
        )
        try:
            skip_of("drawn", skip, whole)
        except DeclarationError:
            continue
        return Asked(tree, within, absent, skip)
