"""Row patterns: whatever is declared and whatever changes, the matches are those of the definition.

Many keys lie side by side, each a small case of its own with one change, so that one pass judges hundreds of cases.
"""

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice.model.scope import Scope, collect
from sluice.shapes.pattern import Matcher, RowPattern, Skip, find_matches, island_start, wanted
from sluice.silver.pattern import skip_of
from tests.kit import frame, plain
from tests.laws.drawn_patterns import asked, names
from tests.oracles.patterns import Asked, Rep, Var, matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Reading = tuple[int, int, float, int | None, int, bool | None, bool | None, bool | None]
Found = tuple[Any, ...]
schema = "k int, id int, at hours, turn int, v int, is_a boolean, is_b boolean, is_d boolean"
columns = ("k", "id", "at", "turn", "v", "is_a", "is_b", "is_d")
within = 2.0
define = {"A": "is_a", "B": "is_b OR v > PREV(v)", "D": "is_d"}
# Each with what it is where its variable has no row.
measures: dict[str, tuple[str, int | None]] = {
    "rows": ("count(*)", 0),
    "as": ("count(A.*)", 0),
    "last": ("LAST(id)", None),
    "first_a": ("FIRST(A.id)", None),
    "b_before": ("LAST(B.id, 1)", None),
    "ds": ("sum(D.v)", None),
    "gain": ("LAST(v) - FIRST(v, 1)", None),
}
keys = 150
seeds = [int(each) for each in os.environ.get("SLUICE_PATTERN_SEEDS", "3 5 8 10").split()]


def of(row: Reading, name: str) -> Any:
    return row[columns.index(name)]


def in_order(rows: Iterable[Reading]) -> list[Reading]:
    """By time, then by turn with nulls first, then by id."""
    return sorted(rows, key=lambda row: (of(row, "at"), of(row, "turn") is not None, of(row, "turn"), of(row, "id")))


def expected(rows: Sequence[Reading], declared: Asked) -> set[Found]:
    """The matches of all keys."""
    found = set()
    for key in {of(row, "k") for row in rows}:
        line = in_order(row for row in rows if of(row, "k") == key)
        times = [of(row, "at") for row in line]
        for taken in matches(declared, times, partial(fits, line)):
            found.add(summary([(line[number], variable) for number, variable in taken]))
    return found


def fits(line: Sequence[Reading], number: int, name: str) -> bool:
    row, before = line[number], line[number - 1] if number else None
    is_near = before is not None and of(row, "at") - of(before, "at") < within
    if name == "B" and before is not None and is_near and of(row, "v") > of(before, "v"):
        return True
    return name not in define or bool(of(row, f"is_{name.lower()}"))


def summary(taken: Sequence[tuple[Reading, str | None]]) -> Found:
    def of_variable(name: str, column: str) -> list[Any]:
        return [of(row, column) for row, variable in taken if variable == name]

    values, bs = [of(row, "v") for row, _ in taken], of_variable("B", "id")
    first, last = taken[0][0], taken[-1][0]
    return (
        of(first, "k"),
        of(first, "at"),
        of(last, "at"),
        of(first, "id"),
        len(taken),
        len(of_variable("A", "id")),
        of(last, "id"),
        next(iter(of_variable("A", "id")), None),
        bs[-2] if len(bs) > 1 else None,
        sum(of_variable("D", "v")) if of_variable("D", "v") else None,
        values[-1] - values[1] if len(values) > 1 else None,
    )


def found_in(df: "DataFrame") -> list[Found]:
    """The matches; measures of a variable that the pattern does not name are as if there were no row for it."""
    given = {name: F.col(name) if name in df.columns else F.lit(without) for name, (_, without) in measures.items()}
    names = ["k", "match_start", "match_end", "first_id"]
    return [tuple(map(plain, row)) for row in df.select(*names, *given.values()).collect()]


@dataclass(frozen=True)
class World:
    """A pattern, rows of many keys, and one change in most keys."""

    declared: Asked
    before: list[Reading]
    after: list[Reading]
    images: list[tuple[str, Reading]]

    @cached_property
    def rule(self) -> RowPattern:
        rule = RowPattern(("k",), ("at", "turn"), self.declared.text, {}, "2 hours", {}, Skip(), ("k", "id"))
        return replace(
            rule,
            define={name: text for name, text in define.items() if name in rule.variables},
            measures={name: text for name, (text, _) in measures.items() if is_of(text, rule.automaton.variables)},
            after_match=skip_of("a test", self.declared.skip, rule.automaton),
        )


def is_of(text: str, variables: Sequence[str]) -> bool:
    return "." not in text or any(f"{name}." in text for name in variables)


def a_reading(chance: random.Random, key: int, number: int) -> Reading:
    said = [chance.choice([True, True, False, None]) for _ in names]
    turn = chance.choice([None, 1, 2])
    return (key, number, chance.randint(0, 24) / 2, turn, chance.randint(1, 4), said[0], said[1], said[2])


# Each row and the next one, whatever they are: where rows follow each other for hours, one more shifts all that follow.
pairs = Asked(Rep(Var("ANY"), 2, 2), within)


def world(declared: Asked, seed: int, *, rows_max: int = 10, keys: int = keys) -> World:
    """With so many rows of a key at most, and at least half as many where they are more than a few."""
    chance = random.Random(f"{seed}/rows")
    before, after, images = list[Reading](), list[Reading](), list[tuple[str, Reading]]()
    for key in range(keys):
        rows = [a_reading(chance, key, number) for number in range(chance.randint(rows_max // 20 * 10 or 1, rows_max))]
        before += rows
        what, other = chance.choice(["insert", "delete", "update", "none"]), a_reading(chance, key, 100)
        if what in ("delete", "update"):
            gone = rows.pop(chance.randrange(len(rows)))
            images.append(("delete" if what == "delete" else "update_preimage", gone))
            other = (key, gone[1], chance.choice([gone[2], other[2]]), *other[3:])
        if what in ("insert", "update"):
            rows.append(other)
            images.append(("insert" if what == "insert" else "update_postimage", other))
        after += rows
    return World(declared, before, after, images)


@dataclass(frozen=True)
class Matched:
    """The matches of a world before its changes, as a table has them."""

    world: World
    own: "DataFrame"
    after: "DataFrame"
    changed: "DataFrame"

    def refreshed(self) -> list[Found]:
        """The matches after the changes, as a refresh makes them: those that the scope does not touch stay."""
        rule = self.world.rule
        scope = collect(rule.touched(self.changed, self.own))
        new = find_matches(rule.within_scope(self.after, scope), rule)
        return [*found_in(new), *found_in(self.untouched(scope))]

    def untouched(self, scope: Scope) -> "DataFrame":
        marked = scope.mark(self.own, [("k", "k"), (island_start, island_start)], "_is_touched")
        return marked.where("NOT _is_touched")


def matched(spark: "SparkSession", of_seed: World) -> Matched:
    before, after = (frame(spark, schema, rows) for rows in (of_seed.before, of_seed.after))
    changed = frame(spark, f"{schema}, _change_type string", [(*row, kind) for kind, row in of_seed.images])
    own = find_matches(before.withColumn(wanted, F.lit(True)), of_seed.rule).localCheckpoint()
    assert sorted(found_in(own), key=repr) == sorted(expected(of_seed.before, of_seed.declared), key=repr), (
        of_seed.declared.text
    )
    return Matched(of_seed, own, after, changed)


def differences(of_seed: World, found: list[Found]) -> tuple[set[Found], set[Found]]:
    wanted_rows = expected(of_seed.after, of_seed.declared)
    return set(found) - wanted_rows, wanted_rows - set(found)


def test_the_drawn_patterns_are_looked_for_in_every_place() -> None:
    skips = {asked(random.Random(seed), within).skip[:12] for seed in (3, 5, 8, 10)}
    assert skips == {"skip to next", "skip past la", "skip to firs", "skip to last"}


@pytest.mark.parametrize("seed", seeds)
def test_the_matches_are_those_of_the_definition_before_and_after_changes(spark: "SparkSession", seed: int) -> None:
    declared = asked(random.Random(seed), within)
    require_right(spark, world(declared, seed))


def test_a_change_reaches_as_far_as_matches_follow_each_other(spark: "SparkSession") -> None:
    require_right(spark, world(pairs, 1, rows_max=30))


def require_right(spark: "SparkSession", of_seed: World) -> None:
    found = matched(spark, of_seed).refreshed()
    assert differences(of_seed, found) == (set(), set()), of_seed.declared
    assert len(found) == len(set(found)), "a match is there twice"


def each_row_alone(matcher: Matcher, state: str, item: str) -> str:
    """As if what begins before a row said nothing of what is found after it."""
    return f"'until', {state}.until, 'island', {item}.row.at"


def only_at_the_row(rule: RowPattern, changed: "DataFrame", own: "DataFrame") -> "DataFrame":
    """The scope of a changed row as if a match had to begin with it."""
    at = changed[rule.time]
    spans = changed.where(at.isNotNull()).select(*rule.keys, at.alias("_from"), at.alias("_to"))
    return rule.with_islands(spans, own.withColumnRenamed(island_start, "_from"))


def without_turn(rule: RowPattern) -> tuple[str, ...]:
    """An order in which rows of one time are as their ids are, whatever else was declared."""
    return (rule.time, *rule.source_grain)


@pytest.mark.parametrize(
    ("kind", "name", "broken"),
    [
        (Matcher, "island", each_row_alone),
        (RowPattern, "touched", only_at_the_row),
        (RowPattern, "order", property(without_turn)),
    ],
)
def test_the_laws_notice(
    kind: Any, name: str, broken: Any, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, broken)
    of_seed = world(pairs, 1, rows_max=30, keys=30)
    if name == "order":
        with pytest.raises(AssertionError):
            matched(spark, of_seed)
    else:
        assert differences(of_seed, matched(spark, of_seed).refreshed()) != (set(), set())
