"""Random row patterns: trees of every kind of element, where the next match is looked for, and tables of them."""

import random
from collections.abc import Sequence
from datetime import timedelta
from functools import cmp_to_key, partial

from sluice import silver
from sluice.errors import DeclarationError
from sluice.model.row_pattern import automaton_of
from sluice.silver.pattern import skip_of
from tests.kit import day_one
from tests.laws.drawn import Drawn, Row, Truth, declared
from tests.laws.drawn_gold import Asked as Group
from tests.laws.drawn_gold import Ordered, column, compared, grouped, plain
from tests.oracles.patterns import Alt, Asked, Not, Rep, Seq, Tree, Var, matches

names = ("A", "B", "D")
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
    absent = chance.choice([None, None, "D"])
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


def table(chance: random.Random, name: str, source: Drawn) -> Drawn:
    """The matches of a pattern among the rows of each case, by their time `at` and then by their grain."""
    hours = chance.choice([1, 2, 5])
    pattern = asked(chance, hours * 3_600_000_000)
    seen = chance.choice([each for each in source.columns if each not in ("c", "id", "at")])
    sql, read = plain(seen), partial(column, seen)
    grain = source.dataset.outputs[-1].grain
    first = [each for each in grain if each not in ("c", "at")]
    named = [each for each in names if each in pattern.text]
    conditions = {"A": f"{sql} IS NOT NULL", "B": f"PREV({sql}) IS NULL"}
    counts = {f"rows_of_{each.lower()}": f"count({each}.*)" for each in automaton_of("drawn", pattern.text).variables}
    dataset, text = declared(
        silver.pattern,
        name,
        source=source.dataset,
        keys=["c"],
        order_by="at",
        pattern=pattern.text,
        define={each: condition for each, condition in conditions.items() if each in named}
        | ({"D": "minute(at) >= 15"} if pattern.absent else {}),
        within=f"{hours} hours",
        measures={"rows": "count(*)", "known": f"count({sql})", "ends_with": f"LAST({sql})", **counts},
        after_match=pattern.skip,
    )
    order = [Ordered("at", partial(column, "at")), *[Ordered(each, partial(column, each)) for each in grain]]

    def fits(line: Sequence[Row], number: int, variable: str) -> bool:
        row, before = line[number], line[number - 1] if number else None
        if variable == "A":
            return read(row) is not None
        if variable == "B":
            is_near = before is not None and row["at"] - before["at"] < timedelta(hours=hours)
            return before is None or not is_near or read(before) is None
        return pattern.absent is None or row["at"].minute >= 15

    def rows(truth: Truth) -> list[Row]:
        found = []
        for key, of_case in grouped(truth.rows[source.name], [Group("c", "c", partial(column, "c"))]):
            line = sorted(of_case, key=cmp_to_key(partial(compared, order)))
            times = [(row["at"] - day_one) // timedelta(microseconds=1) for row in line]
            for taken in matches(pattern, times, partial(fits, line)):
                of_match = [line[number] for number, _ in taken]
                variables = [variable for _, variable in taken]
                ends = {"match_start": of_match[0]["at"], "match_end": of_match[-1]["at"]}
                if pattern.absent:
                    ends["window_end"] = ends["match_end"] + timedelta(hours=hours)
                figures = {
                    "rows": len(of_match),
                    "known": sum(read(each) is not None for each in of_match),
                    "ends_with": read(of_match[-1]),
                    **{each: variables.count(each[-1].upper()) for each in counts},
                }
                found.append({**key, **ends, **{f"first_{each}": of_match[0][each] for each in first}, **figures})
        return found

    return Drawn(dataset, text, rows if source.oracle else None)
