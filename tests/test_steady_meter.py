"""The meter of the steady flow: when a table first had a record, from known commits and offsets."""

import numpy as np
import pytest

from benchmarks.ledger_meter import Reach, next_offsets, reached_ms, reaches
from sluice.model.ledger import Commit, Entry, InputVersion, LandedPartition


def landing(version: int, at_ms: int, **ends: int) -> Commit:
    """A commit of a topic; `p0` is the next offset of its partition 0."""
    landed = {int(name[1:]): LandedPartition(next_offset=end) for name, end in ends.items()}
    return Commit(table_id="t", version=version, timestamp_ms=at_ms, entry=Entry(dataset="", landed=landed))


def refresh(version: int, at_ms: int, changed_at: int | None = None, /, **inputs: int) -> Commit:
    """A commit of a dataset, from these versions of its inputs, of which it has the names without a dot."""
    seen = {name.replace("_", ".", 1): InputVersion(epoch="t:0", version=each) for name, each in inputs.items()}
    entry = Entry(dataset="", inputs=seen, changed_at=changed_at)
    return Commit(table_id="t", version=version, timestamp_ms=at_ms, entry=entry)


commits = {
    "bronze.sales": [landing(0, 100, p0=10, p1=5), landing(1, 200, p0=20, p1=5), landing(2, 300, p0=20, p1=9)],
    "bronze.prices": [landing(0, 110, p0=3)],
    "silver.sales": [refresh(0, 150, bronze_sales=0), refresh(1, 250, bronze_sales=1)],
    "silver.priced": [refresh(0, 160, silver_sales=0, bronze_prices=0), refresh(1, 260, silver_sales=1)],
    "gold.revenue": [refresh(0, 170, silver_priced=0), refresh(1, 270, silver_priced=1)],
}


def test_a_table_has_a_record_from_the_first_commit_on_that_was_computed_from_it() -> None:
    found = reaches(commits, "gold.revenue")
    assert [each.since_ms for each in found] == [170, 270]
    assert found[0].next_offsets == {("sales", 0): 10, ("sales", 1): 5, ("prices", 0): 3}
    times = reached_ms(found, ("sales", 0), np.array([0, 9, 10, 19, 20]))
    assert times.tolist()[:4] == [170, 170, 270, 270]
    assert np.isnan(times[4])


def test_silver_has_it_before_gold() -> None:
    times = reached_ms(reaches(commits, "silver.sales"), ("sales", 0), np.array([0, 19]))
    assert times.tolist() == [150, 250]


def test_what_changes_no_row_upstream_has_reached_gold_as_soon_as_that_is_stated() -> None:
    """Gold commits nothing then: it is right as it is."""
    moved = {**commits, "silver.sales": [*commits["silver.sales"], refresh(2, 350, 1, bronze_sales=2)]}
    assert reached_ms(reaches(moved, "gold.revenue"), ("sales", 1), np.array([4, 8])).tolist() == [170, 350]


def test_of_two_ways_the_longer_one_counts() -> None:
    states = {
        ("bronze.sales", 0): landing(0, 1, p0=10).entry,
        ("bronze.sales", 1): landing(1, 2, p0=20).entry,
        ("silver.fast", 1): refresh(1, 3, bronze_sales=1).entry,
        ("silver.slow", 0): refresh(0, 3, bronze_sales=0).entry,
        ("gold.both", 0): refresh(0, 4, silver_fast=1, silver_slow=0).entry,
    }
    assert next_offsets(states, "gold.both", 0) == {("sales", 0): 10}


@pytest.mark.parametrize("found", [[], [Reach(100, {("other", 0): 7})]])
def test_what_a_table_never_had_has_no_time(found: list[Reach]) -> None:
    assert np.isnan(reached_ms(found, ("sales", 0), np.array([0, 5]))).all()
