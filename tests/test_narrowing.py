"""What is found among the rows of the last search is what a search finds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.model import narrowing
from sluice.model.few_rows import meeting
from sluice.model.found import Among, Condition, During
from sluice.model.narrowing import Narrowing

names = ("customer", "id")
micros = pa.timestamp("us", tz="UTC")
texts = st.one_of(st.none(), st.sampled_from(["", "a", "b", "c", "ab"]))
times = st.one_of(st.none(), st.integers(0, 6))


@dataclass
class Table:
    """Rows in which all are found that meet the conditions, and how often they were looked for."""

    rows: pa.Table
    searches: list[Sequence[Condition]] = field(default_factory=list)

    def __call__(self, conditions: Sequence[Condition]) -> pa.Table:
        self.searches.append(conditions)
        return meeting(self.rows, conditions)


def among(column: str, *values: object) -> Among:
    return Among(column, pa.chunked_array([pa.array(values, micros if column == "sold_at" else pa.string())]))


def during(start: int, end: int | None) -> During:
    return During("sold_at", pa.scalar(start, micros), None if end is None else pa.scalar(end, micros))


def table_of(*rows: tuple[str | None, str | None, int | None]) -> Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (pa.string(), pa.string(), micros)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)]
    return Table(pa.table(dict(zip((*names, "sold_at"), arrays, strict=True))))


sales = table_of(("ann", "1", 1), ("ann", "2", 5), ("bob", "3", 3), ("bob", None, None), (None, "5", 2))
lists = st.lists(texts, min_size=1, max_size=4)
conditions = st.lists(
    st.one_of(
        st.builds(lambda name, values: among(name, *values), st.sampled_from(names), lists),
        st.builds(lambda values: among("sold_at", *values), st.lists(times, min_size=1, max_size=4)),
        st.builds(during, st.integers(0, 6), st.one_of(st.none(), st.integers(0, 6))),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each.column,
)


def test_facts_of_a_late_version_are_read_once() -> None:
    table = Table(sales.rows)
    find = Narrowing(table)
    touched = find([among("customer", "ann", "bob"), during(1, 4)])
    assert touched is not None
    assert touched["id"].to_pylist() == ["1", "3"]
    found = find([among("id", "1"), among("sold_at", 1), among("customer", "ann")])
    assert found is not None
    assert found["id"].to_pylist() == ["1"]
    assert len(table.searches) == 1


@pytest.mark.parametrize(
    "further",
    [
        [among("id", "1"), among("sold_at", 1)],
        [among("id", "1"), among("sold_at", 1), among("customer", "ann", "eve")],
        [among("id", "1"), among("sold_at", 1), among("customer", "ann", None)],
        [among("id", "1"), among("sold_at", 1, 4), among("customer", "ann")],
        [among("id", "1"), among("sold_at", 1, None), among("customer", "ann")],
        [among("customer", "ann")],
    ],
)
def test_what_was_not_asked_for_before_is_looked_for(further: list[Condition]) -> None:
    table = Table(sales.rows)
    find = Narrowing(table)
    find([among("customer", "ann", "bob"), during(1, 4)])
    find(further)
    assert len(table.searches) == 2


def test_two_lists_may_have_left_rows_out() -> None:
    table = Table(sales.rows)
    find = Narrowing(table)
    for _ in range(2):
        find([among("customer", "ann"), among("id", "1")])
    assert len(table.searches) == 2


@given(st.lists(st.tuples(texts, texts, times), max_size=12), st.lists(conditions, min_size=2, max_size=5))
def test_any_searches_find_what_each_finds_by_itself(
    rows: list[tuple[str | None, str | None, int | None]], searches: list[list[Condition]]
) -> None:
    table = table_of(*rows)
    find = Narrowing(table)
    for each in searches:
        found = find(each)
        assert found is not None
        assert found.equals(meeting(table.rows, each))


def test_the_law_notices_a_search_among_too_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "are_narrower", lambda *_: True)
    with pytest.raises(AssertionError):
        test_any_searches_find_what_each_finds_by_itself()
