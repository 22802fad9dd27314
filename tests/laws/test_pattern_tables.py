"""Tables of patterns: whatever arrives late, changes or is gone, they hold the matches that the rows imply."""

import dataclasses
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, silver
from sluice.engine import touched
from sluice.model.ledger import RowCounts
from sluice.operate.explain import Explainer
from sluice.shapes.pattern import RowPattern, find_matches
from tests.kit import Lakehouse, text
from tests.laws.test_proportion import files_read
from tests.oracles.patterns import Asked, Not, Rep, Seq, Var, matches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A table whose rows change, move and go; `seen_at` says which record is newer.
taps = silver.history(
    "taps",
    source=bronze.topic("taps"),
    schema="tap string, seen_at timestamp, card string, at timestamp, kind string, gone boolean",
    keys=["tap"],
    sequence_by="seen_at",
    stored_as_scd_type=1,
    apply_as_deletes="gone",
    future_tolerance="1000 days",
)
a, b, c = Var("A"), Var("B"), Var("C")
declared = {
    "behind": Asked(Seq((a, Rep(b, 1, None), Rep(c, 0, 1))), 3),
    "without": Asked(Seq((a, Not("B"), c)), 3, absent="B", skip="skip to first C"),
}
datasets = {
    name: silver.pattern(
        name,
        source=taps,
        keys=["card"],
        order_by="at",
        pattern=asked.text,
        define={"A": "kind = 'a'", "B": "kind = 'b'", "C": "kind = 'c'"}
        | ({} if name != "behind" else {"B": "kind = 'b' OR kind = 'e' AND PREV(kind) = 'a'"}),
        within="3 hours",
        measures={"rows": "count(*)", "last": "LAST(tap)", "cs": "count(C.*)", "ends": "max(at)"},
        after_match=asked.skip,
    )
    for name, asked in declared.items()
}
# Taps of a card as kind and hour, then what becomes of it: `x2` is one more, `-a1` is gone, `a1>b4` has changed.
stories = {
    "a late row completes a match": ("a0 b2", "b1 c2.5"),
    "a late row that fits nothing parts a match": ("a0 b1 b2 c2.5", "d1.5"),
    "a late row shifts the matches behind it": ("a0 b0.5 a1 b1.5 a2 b2.5 a3 b3.5", "b0.2 a0.3"),
    "a late row before all others": ("b1 b2 c2.5", "a0.5"),
    "a row is gone that a match begins with": ("a0 b1 c2", "-a0"),
    "a row is gone that parted two": ("a0 b1 d1.5 b2 c2.5", "-d1.5"),
    "a row moves away in time": ("a0 b1 c2", "b1>b9"),
    "a row becomes another": ("a0 b1 c2", "b1>d1"),
    "a row goes to another card": ("a0 b1 c2", "b1>other"),
    "rows of one time are in the order of their names": ("a1 b1 b1 c1", "a1"),
    "a match that takes just as long as it may is none": ("a0 b3 c3", "b2.999"),
    "matches that are far apart": ("a0 b1 a10 b11 c12", "c1.5 b11.5"),
    "many that overlap": ("a0 a0.5 a1 a1.5 a2 c2.9 a3 c3.2", "b2.5"),
    "what is absent comes late": ("a0 c1", "b1.5"),
    "what is absent comes too late": ("a0 c1", "b4"),
    "what is absent is gone": ("a0 b0.5 c1", "-b0.5"),
    "the row before says what a row is": ("a0 e1 a5 d5.5 e6", "-d5.5"),
    "the row before is far": ("a0 e3.5", "a0.6"),
    "taps without a time": ("a0 b1 a", "b c2"),
    "nothing changes": ("a0 b1 c2 a2.5 c3", ""),
    "all is gone": ("a0 b1", "-a0 -b1"),
    "a card with nothing yet": ("", "a0 b1 c1.5"),
}


def tap(card: str | None, said: str, number: int, **more: Any) -> dict[str, Any]:
    kind, hour = said[0], said[1:]
    at = text(float(hour)) if hour else None
    name = more.pop("tap", f"{card}: {said} {number}")
    return {"tap": name, "seen_at": text(0), "card": card, "at": at, "kind": kind, **more}


def changed(card: str | None, before: list[dict[str, Any]], words: str) -> list[dict[str, Any]]:
    """The records that `b1 -a0 b1>b9` stands for."""
    found = []
    for number, word in enumerate(words.split()):
        said, _, then = word.lstrip("-").partition(">")
        known = next((each for each in before if each["tap"].startswith(f"{card}: {said} ")), None)
        if word.startswith("-") and known is not None:
            found.append(known | {"seen_at": text(1), "gone": True})
        elif then and known is not None:
            moved = {"card": "other"} if then == "other" else tap(card, then, 0)
            found.append(
                known | {key: moved[key] for key in ("card", "at", "kind") if key in moved} | {"seen_at": text(1)}
            )
        else:
            found.append(tap(card, said, 100 + number, seen_at=text(1)))
    return found


def implied(records: list[dict[str, Any]], asked: Asked, *, looks_back: bool) -> set[tuple[Any, ...]]:
    """The matches of the rows that records leave."""
    rows = {each["tap"]: each for each in records}
    lines: dict[str | None, list[tuple[float, str, str]]] = {}
    for each in rows.values():
        if not each.get("gone") and each["at"]:
            hour = hours(each["at"])
            lines.setdefault(each["card"], []).append((hour, each["tap"], each["kind"]))
    found = set()
    for card, line in lines.items():
        line.sort()
        times = [hour for hour, _, _ in line]
        for taken in matches(asked, times, partial(fits, line, looks_back)):
            first, last = line[taken[0][0]], line[taken[-1][0]]
            cs = sum(variable == "C" for _, variable in taken)
            found.add((card, first[0], last[0], first[1], len(taken), last[1], cs, last[0]))
    return found


def fits(line: list[tuple[float, str, str]], looks_back: bool, row: int, name: str) -> bool:
    kind, is_near = line[row][2], row > 0 and line[row][0] - line[row - 1][0] < 3
    if name == "B" and looks_back and kind == "e":
        return is_near and line[row - 1][2] == "a"
    return kind == name.lower()


def hours(at: str) -> float:
    found = re.fullmatch(r"2026-01-(\d\d)T(\d\d):(\d\d):([\d.]+)Z", at)
    assert found is not None
    day, hour, minute, second = map(float, found.groups())
    return 24 * (day - 1) + hour + minute / 60 + second / 3600


def found_in(lakehouse: Lakehouse, name: str) -> set[tuple[Any, ...]]:
    columns = ("card", "match_start", "match_end", "first_tap", "rows", "last", "cs", "ends")
    return {
        tuple(round(each, 6) if isinstance(each, float) else each for each in row)
        for row in lakehouse.rows(f"silver.{name}", *columns)
    }


def expected(records: list[dict[str, Any]], name: str) -> set[tuple[Any, ...]]:
    found = implied(records, declared[name], looks_back=name == "behind")
    return {tuple(round(each, 6) if isinstance(each, float) else each for each in row) for row in found}


def lived(lakehouse: Lakehouse, *names: str) -> tuple[Lakehouse, list[dict[str, Any]]]:
    """A lakehouse in which every story was told, each of a card of its own; the first is of taps without a card."""
    lakehouse.declare(*[datasets[name] for name in names])
    cards = dict(zip(stories, [None, *list(stories)[1:]], strict=True))
    first, then = list[dict[str, Any]](), list[dict[str, Any]]()
    for story, (before, change) in stories.items():
        said = [tap(cards[story], word, number) for number, word in enumerate(before.split())]
        first, then = first + said, then + changed(cards[story], said, change)
    lakehouse.publish("taps", *first).run()
    for name in names:
        assert found_in(lakehouse, name) == expected(first, name), name
    lakehouse.publish("taps", *then)
    done = lakehouse.run()
    assert {done[f"silver.{name}"].cause for name in names} == {"changes"}
    return lakehouse, [*first, *then]


def test_a_table_of_matches_is_right_after_each_change(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    _, records = lived(lakehouse, *datasets)
    for name in datasets:
        assert found_in(lakehouse, name) == expected(records, name), name
    assert [law for law in lakehouse.laws() if law.broken] == []
    assert lakehouse.run() == {}
    again = lakehouse.run(rebuild=True)
    assert [again[f"silver.{name}"].rows.total for name in datasets] == [0, 0]
    story = "a late row completes a match"
    values = Explainer(lakehouse.spark, lakehouse.lake).explain(
        datasets["behind"], {"card": "null", "match_start": text(0), "first_tap": "None: a0 0"}
    )
    assert stories[story] == ("a0 b2", "b1 c2.5")
    assert [value.row and value.row["rows"] for value in values] == [2, 4]
    assert values[-1].cause == "changes"
    assert len(values[-1].origins[0].records) == 2
    assert values[-1].origins[0].path == ("silver.behind", "silver.taps", "silver.taps_changes")


orders = silver.events(
    "orders",
    source=bronze.topic("orders"),
    schema="event string, customer string, at timestamp, kind string",
    keys=["event"],
    event_time="at",
    future_tolerance="1000 days",
)
unpaid = silver.pattern(
    "unpaid",
    source=orders,
    keys=["customer"],
    order_by="at",
    pattern="ORDERED NOT PAID",
    define={"ORDERED": "kind = 'ordered'", "PAID": "kind = 'paid'"},
    within="1 hour",
    measures={"event": "ORDERED.event"},
)


def test_an_absence_is_open_until_the_watermark_passes_it(lakehouse: Lakehouse) -> None:
    lakehouse.declare(unpaid)

    def arrives(customer: str, kind: str, hour: float) -> dict[str, dict[str, object]]:
        event = {"event": f"{customer} {kind} {hour}", "customer": customer, "at": text(hour), "kind": kind}
        lakehouse.publish("orders", event, hours=20)
        lakehouse.run()
        found = lakehouse.rows("silver.unpaid", "customer", "window_end", "_state", "_revision")
        return {name: {"end": end, "state": state, "revision": revision} for name, end, state, revision in found}

    assert arrives("ann", "ordered", 1) == {"ann": {"end": 2, "state": "open", "revision": 0}}
    assert arrives("bob", "ordered", 1.5)["ann"]["state"] == "open"
    assert arrives("bob", "paid", 2.25) == {"ann": {"end": 2, "state": "complete", "revision": 0}}
    assert arrives("ann", "paid", 1.5) == {}, "a payment that arrives late takes the match back"
    assert lakehouse.run() == {}


# Sensors that report each minute; a match is found in each hour of a sensor, and its rows are near each other.
readings = silver.events(
    "readings",
    source=bronze.topic("readings"),
    schema="reading string, sensor string, at timestamp, degrees int",
    keys=["reading"],
    event_time="at",
    future_tolerance="1000 days",
)
peaks = silver.pattern(
    "peaks",
    source=readings,
    keys=["sensor"],
    order_by="at",
    pattern="UP+ DOWN+",
    define={"UP": "degrees > PREV(degrees)", "DOWN": "degrees < PREV(degrees)"},
    within="30 minutes",
    measures={"highest": "LAST(UP.degrees)", "rows": "count(*)"},
)


def reading(sensor: int, minute: float, degrees: int) -> dict[str, Any]:
    name = f"{sensor} {minute:09.2f}"
    return {"reading": name, "sensor": f"s{sensor}", "at": text(minute / 60), "degrees": degrees}


def test_a_late_row_costs_what_its_island_costs_however_long_the_key_is(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matched, read = [], []

    def counted(rows: "DataFrame", rule: RowPattern) -> "DataFrame":
        matched.append(rows.count())
        return find_matches(rows, rule)

    monkeypatch.setattr(sys.modules["sluice.silver.pattern"], "find_matches", counted)
    for times in (1, 4):
        lakehouse = Lakehouse(spark, tmp_path / str(times)).declare(peaks)
        lakehouse.lake = dataclasses.replace(lakehouse.lake, rows_per_file=150)
        # Five minutes up and five down in every half hour, and nothing new in between.
        values = [reading(1, minute, max(5 - abs(5 - minute % 30), 0)) for minute in range(600 * times)]
        lakehouse.publish("readings", *values).run()
        lakehouse.publish("readings", reading(1, 5 * 60 + 5.5, 99))
        with files_read(spark) as files:
            done = lakehouse.run()
        assert done["silver.peaks"].rows == RowCounts(updated=1)
        read.append(sum(files))
    (whole, narrow), (whole_of_four, narrow_of_four) = matched[:2], matched[2:]
    assert whole_of_four == 4 * whole == 2_400
    assert narrow == narrow_of_four < 200
    assert read[1] <= read[0] + 4
