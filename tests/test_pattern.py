"""Row patterns: what their text means, which are refused, and what a table of matches says about itself."""

import random
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest

from sluice import bronze, silver
from sluice.errors import DeclarationError
from sluice.model.datasets import Dataset
from sluice.model.row_pattern import Automaton, Builder, Element, automaton_of
from tests.laws.drawn_patterns import a_tree, names
from tests.oracles.patterns import Asked, Fits, Seq, Tree, Var, matches

readings = silver.events(
    "readings",
    source=bronze.topic("readings"),
    schema="reading_id string, sensor string, at timestamp, degrees int, note struct<by: string>",
    keys=["reading_id"],
    event_time="at",
)


def rising(name: str = "rising", **options: Any) -> Dataset:
    declared: dict[str, Any] = {
        "source": readings,
        "keys": ["sensor"],
        "order_by": "at",
        "pattern": "A UP{2,} B?",
        "define": {"UP": "degrees > PREV(degrees)", "B": "degrees < 0"},
        "within": "1 hour",
        "measures": {"highest": "LAST(UP.degrees)", "ups": "count(UP.*)"},
    }
    return silver.pattern(name, **(declared | options))


def found_by(automaton: Automaton, until: float, start: int, times: Sequence[float], fits: Fits) -> list[int] | None:
    """The positions of the preferred match that begins at a row, by going along the automaton."""

    @cache
    def end_of(position: int, row: int) -> float:
        at = automaton.positions[position - 1]
        if row == len(times) or fits(row, at.variable) == at.is_absence:
            return float("inf")
        return min(times[row] if each == 0 else end_of(each, row + 1) for each in automaton.follow[position - 1])

    taken: list[int] = []
    follow, row = automaton.first, start
    while position := next((each for each in follow if each == 0 or end_of(each, row) < until), None):
        taken.append(position)
        follow, row = automaton.follow[position - 1], row + 1
    return taken or None


def disagreements(patterns: int) -> Iterator[Any]:
    """Where the automaton of a random pattern takes other rows than the definition, of random rows."""
    chance = random.Random(1)
    for _ in range(patterns):
        asked = Asked(a_tree(chance), within=chance.choice([2.5, 4.0, 100.0]))
        automaton = automaton_of("a test", asked.text)
        for _ in range(4):
            count = chance.randint(1, 7)
            times = sorted(chance.randint(0, 6) for _ in range(count))
            rows = [{name for name in names if chance.random() < 0.6} for _ in range(count)]
            by_row = partial(fits_one, rows)
            expected = next((each for each in matches(asked, times, by_row) if each[0][0] == 0), ())
            found = found_by(automaton, times[0] + asked.within, 0, times, by_row) or ()
            taken = [automaton.positions[each - 1] for each in found]
            if [None if each.is_absence else each.variable for each in taken] != [name for _, name in expected]:
                yield asked.text, times, rows


def fits_one(rows: Sequence[set[str]], row: int, name: str) -> bool:
    return name in rows[row]


def test_the_automaton_prefers_what_the_definition_prefers() -> None:
    assert list(disagreements(600)) == []


def always_greedy(builder: Builder, of: Element, then: int, **options: Any) -> int:
    return loop(builder, of, then, **(options | {"is_reluctant": False}))


def the_last_first(builder: Builder, options: list[int]) -> int:
    options.reverse()
    return choice(builder, options)


loop, choice = Builder.loop, Builder.choice


@pytest.mark.parametrize(("name", "broken"), [("loop", always_greedy), ("choice", the_last_first)])
def test_another_preference_is_noticed(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Builder, name, broken)
    assert list(disagreements(100)) != []


@pytest.mark.parametrize(
    ("text", "rows", "taken"),
    [
        ("A+ B", "aab", "AAB"),
        ("A+ C", "aac", "AAC"),
        ("A+? C*", "aac", "A"),
        ("A* B", "b", "B"),
        ("A{2}", "aaa", "AA"),
        ("A{2,}", "aaa", "AAA"),
        ("A{,2} C", "aac", "AAC"),
        ("A{1,2}?", "aaa", "A"),
        ("(A | B)+ C", "abac", "ABAC"),
        ("(A B?)+ C", "aabac", "AABAC"),
        ("A NOT B C", "axxc", "A..C"),
        ("A (B | C | A)?", "ac", "AC"),
        ("A ?? C", "ac", "AC"),
        ("A ( B C ) +", "abcbc", "ABCBC"),
    ],
)
def test_a_pattern_takes_rows(text: str, rows: str, taken: str) -> None:
    automaton = automaton_of("a test", text)
    found = found_by(automaton, 100, 0, range(len(rows)), lambda row, name: rows[row].upper() == name)
    positions = [automaton.positions[each - 1] for each in found or ()]
    assert "".join("." if each.is_absence else each.variable for each in positions) == taken


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at sign 1: a variable or '(' should come here, but it ends"),
        ("A*", "'A*' can be no row at all, and a match has at least one; let a variable be there"),
        ("A? | B", "can be no row at all"),
        ("(A?)* B", "at sign 5: what is repeated without a limit can be no row at all"),
        ("(A | B*)+ C", "at sign 9: what is repeated without a limit"),
        ("A**", "at sign 3: there is a quantifier of a quantifier; put brackets"),
        ("A{2", "at sign 4: '}' should come here, but it ends"),
        ("A{}", "a number, as in"),
        ("A{3,2}", "can never match"),
        ("A{0} B", "can never match"),
        ("A ) B", "at sign 3: a variable, '|' or the end should come here, but there is ')'"),
        ("(A", "at sign 3: ')' should come here"),
        ("A || B", "at sign 4: a variable or"),
        ("^ A", "a match may begin and end at any row"),
        ("{- A -} B", "rows cannot be excluded"),
        ("PERMUTE(A, B)", "write the orders as alternatives"),
        ("A; B", "';' is no sign of a pattern"),
        ("A{201}", "at sign 1: there are more than 200 variables"),
        ("(" * 51 + "A" + ")" * 51, "more than 50 brackets in one another"),
        ("NOT UP A", "NOT UP could begin a match"),
        ("(A NOT UP) | B", "NOT UP could end a match"),
        ("(A NOT UP)+", "NOT UP could end a match"),
        ("A NOT", "a variable, which NOT says is absent"),
        ("A NOT NOT UP", "at sign 7: a variable, which NOT says is absent"),
        (f"A{{{'9' * 5000}}}", "there are more than 200 variables"),
        ("A NOT UP+", "NOT UP is any number of rows, so it takes no quantifier"),
        (3, "pattern is 3; write for example"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused_with_its_place(text: Any, says: str) -> None:
    with pytest.raises(DeclarationError) as error:
        rising(pattern=text, define={}, measures={"rows": "count(*)"})
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keys": []}, "keys is empty"),
        ({"keys": ["senser"]}, "keys names senser, which silver.readings lacks"),
        ({"order_by": []}, "order_by is empty"),
        ({"order_by": "degrees"}, "order_by is degrees, and in silver.readings that is a int"),
        ({"order_by": ["at", "nothing"]}, "order_by names nothing"),
        ({"within": None}, "within is None; give how long a match may take"),
        ({"within": "soon"}, "within is 'soon', which is no duration"),
        ({"within": "100000000 days"}, "within is '100000000 days'; write at most '10000000 days'"),
        ({"define": {"UPP": "true"}}, "define has UPP, which the pattern does not name; did you mean UP?"),
        ({"define": {"UP": "degree > 1"}}, "define UP reads degree, which is no column here; did you mean degrees?"),
        ({"define": {"UP": "degrees > A.degrees"}}, "it reads A, and a condition is of its own row; PREV"),
        ({"define": {"UP": "max(degrees) > 1"}}, "max is no aggregate that can be used here"),
        ({"define": {"UP": "NEXT(degrees) > 1"}}, "NEXT is not known"),
        ({"define": {"UP": "PREV(degrees, 0) > 1"}}, "a number of rows from 1 to 10000"),
        ({"define": {"UP": f"PREV(degrees, {'9' * 5000}) > 1"}}, "a number of rows from 1 to 10000"),
        ({"define": {"UP": "rand() > 0.5"}}, "rand gives another value each time"),
        ({"define": {"UP": "at > now()"}}, "now gives another value each time"),
        ({"define": {"UP": "PREV(uuid()) > 'a'"}}, "uuid gives another value each time"),
        ({"measures": {"x": "LAST(degrees) IGNORE NULLS"}}, "IGNORE NULLS and RESPECT NULLS are not supported"),
        ({"measures": {"x": "FIRST(degrees IGNORE NULLS)"}}, "IGNORE NULLS and RESPECT NULLS are not supported"),
        ({"measures": {"x": "current_date()"}}, "current_date gives another value each time"),
        ({"measures": {"x": "explode(array(degrees))"}}, "explode makes several rows of one"),
        ({"define": {"UP": "PREV(PREV(degrees)) > 1"}}, "PREV stands within another"),
        ({"define": {"UP": "lag(degrees) OVER (ORDER BY at) > 1"}}, "it has OVER"),
        ({"define": {"UP": "degrees > (SELECT 1)"}}, "it has a subquery"),
        ({"define": {"UP": "degrees >"}}, "this SQL cannot be read"),
        ({"pattern": "A DROP", "define": {}, "measures": {"x": "DROP.degrees"}}, "write the name in backticks: `DROP`"),
        ({"define": {"UP": "Show.me > 1"}}, "Show begins a statement of SQL"),
        ({"define": {"UP": "degrees + 1"}}, "it is a number or a text, and a condition is true or false"),
        ({"define": {"UP": "('x')"}}, "it is a number or a text"),
        ({"define": {"UP": 1}}, "define UP is 1; write a SQL expression"),
        ({"pattern": "a UP A", "define": {}}, "a and A would be one column"),
        ({"pattern": "A AT UP", "define": {}}, "AT is a variable of the pattern and a column of silver.readings"),
        ({"pattern": "A UP NOT C", "define": {}}, "ends with NOT C, and any row fits C; give its condition"),
        ({"measures": {"x": "sum(UP.degrees + A.degrees)"}}, "is of A and UP; write a separate aggregate"),
        ({"measures": {"x": "sum(UP.degree)"}}, "the measure x reads degree"),
        ({"measures": {"x": "collect_list(degrees)"}}, "array_agg is no aggregate that can be used here; there are"),
        ({"measures": {"x": "MATCH_NUMBER()"}}, "MATCH_NUMBER is not known; a match is known by its key"),
        ({"measures": {"x": "CLASSIFIER()"}}, "count the rows of a variable instead"),
        ({"measures": {"x": "PREV(degrees)"}}, "PREV is for conditions"),
        ({"measures": {"x": "LAST(degrees, -1)"}}, "a number of rows from 0"),
        ({"measures": {"x": "count(*) AS y"}}, "it ends with a name"),
        ({"measures": {"x": "count(*) FILTER (WHERE true)"}}, "FILTER is not known here"),
        ({"measures": {"sensor": "count(*)"}}, "sensor and sensor would be one column"),
        ({"measures": {"Match_Start": "count(*)"}}, "match_start and Match_Start would be one column"),
        ({"measures": {"first_reading_id": "count(*)"}}, "first_reading_id and first_reading_id would be one column"),
        ({"measures": {"_x": "count(*)"}}, "names that begin with _ are for bookkeeping"),
        ({"after_match": "stop"}, "after_match is 'stop'; write 'skip past last row'"),
        ({"after_match": "skip to last C"}, "no row is found for C"),
        ({"after_match": "skip to first B"}, "a match can have no row for B"),
        ({"after_match": "skip to first A"}, "a match can begin with that row"),
        ({"after_match": "skip to last A"}, "a match can begin with that row"),
        ({"comments": {"low": "x"}}, "comments names low, which it lacks"),
    ],
)
def test_what_could_not_work_is_refused_with_a_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError) as error:
        rising(**options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "after_match",
    ["skip past last row", "SKIP  TO NEXT ROW", "past last row", "skip to first UP", "skip to last up"],
)
def test_the_next_match_may_be_looked_for_in_four_places(after_match: str) -> None:
    assert rising(after_match=after_match).fingerprint


def test_a_variable_that_is_there_again_can_be_skipped_to_as_the_last() -> None:
    again: dict[str, Any] = {"pattern": "A UP A", "define": {}, "measures": {"rows": "count(*)"}}
    assert rising(**again, after_match="skip to last A").fingerprint
    with pytest.raises(DeclarationError, match="a match can begin with that row"):
        rising(**again, after_match="skip to first A")


def test_a_declaration_is_another_when_what_it_says_is() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"keys": ["sensor", "degrees"]},
        {"order_by": ["at", "degrees"]},
        {"pattern": "A UP+ B?"},
        {"define": {"UP": "degrees > PREV(degrees)", "B": "degrees < 1"}},
        {"within": "2 hours"},
        {"measures": {"highest": "LAST(UP.degrees)"}},
        {"after_match": "skip to next row"},
        {"after_match": "skip to last UP"},
    ]
    assert len({rising(**each).fingerprint for each in options}) == len(options)
    same: dict[str, Any] = {
        "pattern": "A  UP{2,}\n B?",
        "after_match": "SKIP PAST LAST ROW",
        "meaning": "x",
        "owner": "y",
    }
    assert rising(**same).fingerprint == rising().fingerprint


def test_columns_grain_and_lineage_are_known() -> None:
    dataset = rising(measures={"highest": "LAST(UP.degrees)", "by": "A.note.by", "rows": "count(*)"})
    assert dataset.columns == {
        "sensor": "string",
        "match_start": "timestamp",
        "match_end": "timestamp",
        "first_reading_id": "string",
        "highest": None,
        "by": None,
        "rows": None,
    }
    assert dataset.outputs[-1].grain == ("sensor", "match_start", "first_reading_id")
    lineage = dataset.lineage()
    assert [str(each) for each in lineage.columns["highest"].sources] == ["silver.readings.degrees"]
    assert [str(each) for each in lineage.columns["by"].sources] == ["silver.readings.note.by"]
    assert lineage.columns["highest"].by == "LAST(UP.degrees)"
    assert {(each.column, each.how) for each in lineage.rows} == {
        ("sensor", "group by"),
        ("at", "sort"),
        ("reading_id", "sort"),
        ("degrees", "filter"),
    }


def test_an_absence_at_the_end_gives_the_end_of_its_window() -> None:
    dataset = rising(pattern="B NOT UP", measures={"rows": "count(*)"})
    assert list(dataset.columns or ()) == [
        "sensor",
        "match_start",
        "match_end",
        "window_end",
        "first_reading_id",
        "rows",
    ]
    assert dataset.completeness is not None
    assert rising().completeness is None


def size(tree: Tree) -> int:
    return 1 if isinstance(tree, Var) else 1 + sum(map(size, getattr(tree, "parts", getattr(tree, "options", ()))))


def test_the_drawn_patterns_are_of_every_kind() -> None:
    chance = random.Random(1)
    texts = [Asked(a_tree(chance), 1).text for _ in range(300)]
    for sign in ("|", "*", "+", "?", "??", "*?", "{", "NOT", "("):
        assert any(sign in text for text in texts), sign
    assert str(Seq((Var("A"), Var("B")))) == "A B"
