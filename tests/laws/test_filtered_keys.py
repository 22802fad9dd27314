"""Convergence where the driver finds keys by Bloom filters, as in large tables, and writes small files together."""

import random
from collections import Counter
from typing import Any

import pytest

from sluice import bronze, silver
from sluice.engine import touched
from sluice.model import small_frames
from sluice.storage import key_filters, small_reads
from sluice.storage.delta import bloom, upkeep
from sluice.storage.delta.opened import rows_per_file_default
from tests.kit import Lakehouse, text

visits = silver.events(
    "visits",
    source=bronze.topic("visits"),
    schema="id string, device bigint, at timestamp, seconds int",
    keys=["id", "device"],
    event_time="at",
    future_tolerance="1000 days",
)
devices = [0, -1, 2**31, 2**53 + 1, -(2**63), 2**63 - 1]
# Statistics have the first 32 characters of a text.
ids = ["", "a", "é" * 40, "é" * 40 + "1", "\U0010ffff" * 40, "it's", "%_%", *(f"{number:03}" for number in range(100))]
asked = Counter[bool]()


@pytest.fixture(autouse=True)
def filters_are_asked_in_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does the driver read a table whole, nor is one computed whole because the scope is a large part of it."""
    asked.clear()
    limits: dict[Any, dict[str, float]] = {
        small_frames: {"read_bytes_max": 0, "rows_max": 10},
        key_filters: {"rows_min": 1},
        bloom: {"rows_min": 1},
        small_reads: {"read_whole_share_min": 1},
        upkeep: {"small_files_max": 3},
        touched: {"rebuild_share": 1e9},
    }
    for module, values in limits.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    may_have = key_filters.may_have

    def counted(*given: Any) -> Any:
        found = may_have(*given)
        asked.update(map(bool, found.to_pylist()))
        return found

    monkeypatch.setattr(key_filters, "may_have", counted)


def visit(chance: random.Random) -> dict[str, object]:
    key = {"id": chance.choice(ids), "device": chance.choice(devices)}
    return key | {"at": text(chance.randrange(-9, 9) / 7), "seconds": chance.choice([None, 1])}


def lived(lakehouse: Lakehouse) -> Lakehouse:
    """Some visits in several files, then a few that are new, some that were told before, and some told otherwise.

    Of one key the record that the log has as the earliest counts, whenever it arrives.
    """
    chance = random.Random(7)
    object.__setattr__(lakehouse.lake, "rows_per_file", 20)
    lakehouse.declare(visits)
    known = [visit(chance) for _ in range(60)]
    lakehouse.publish("visits", *known, hours=50).run()
    # Else these files are full, and stay as they are.
    object.__setattr__(lakehouse.lake, "rows_per_file", rows_per_file_default)
    for hours in (40, 60):
        again, other = chance.sample(known, 2)
        moved = other | {"at": text(5), "seconds": 7}
        lakehouse.publish("visits", again, moved, visit(chance), hours=hours)
        lakehouse.runner().compact_small(list(lakehouse.run().values()))
    return lakehouse


def test_what_is_found_by_filters_gives_what_a_rebuild_gives(lakehouse: Lakehouse) -> None:
    lived(lakehouse)
    assert min(asked[True], asked[False]) >= 2
    assert "OPTIMIZE" in {each["operation"] for each in lakehouse.lake.open("silver.visits").history()}
    assert all(each.balanced for each in lakehouse.audits())
    assert all(each.balanced for each in lakehouse.laws())
    assert lakehouse.changed_by_rebuild() == {}


def test_the_audit_shows_that_a_filter_lied(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the law: rows of keys that are there already are taken for new ones."""
    monkeypatch.setattr(key_filters.Filter, "may_hold", lambda *_: False)
    lived(lakehouse)
    assert {each.law for each in lakehouse.laws() if each.broken} == {"rows that are there twice"}
