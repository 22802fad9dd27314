"""Histories, events and joins by expression, made from tables whose rows change and go: right in any order."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.log import Record
from sluice.model.datasets import Dataset
from sluice.operate.explain import Explainer
from sluice.quality.built_in import built_ins
from sluice.shapes import rows
from tests.kit import Lakehouse, Row, at, frame, rows_of, text
from tests.oracles import histories as oracle
from tests.oracles.histories import Change, Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

wide = "1000 days"
items = silver.history(
    "items",
    source=bronze.topic("items"),
    schema="kind string, item string, changed_at timestamp, shelf string, serial int",
    keys=["item"],
    sequence_by="changed_at",
    stored_as_scd_type=1,
    apply_as_deletes="kind = 'delete'",
    except_column_list=["kind"],
    future_tolerance=wide,
)
labels = silver.events(
    "labels",
    source=bronze.topic("labels"),
    schema="code string, label string",
    keys=["code"],
)


def labelled(items: "DataFrame", labels: "DataFrame") -> "DataFrame":
    """Each item with the label of its shelf; the position of its record is left behind."""
    return items.join(labels.select("shelf", "label"), "shelf", "left").select("shelf", "item", "changed_at", "label")


stocked = silver.join(
    "stocked",
    inputs={"items": items, "labels": labels},
    keys=["shelf"],
    on={"labels": {"shelf": "lower(code)"}},
    grain=["shelf", "item"],
    shape=labelled,
)
by_place = silver.history(
    "by_place", source=items, keys=["shelf"], sequence_by="changed_at", apply_as_deletes="item LIKE '%z'"
)
by_grain = silver.history(
    "by_grain", source=stocked, keys=["shelf"], sequence_by="changed_at", column_list=["item", "label"]
)
newest = silver.history(
    "newest",
    source=stocked,
    keys=["shelf"],
    sequence_by="changed_at",
    column_list=["item"],
    stored_as_scd_type=1,
)
first = silver.events("first", source=stocked, keys=["shelf"], event_time="changed_at", sequence_by="changed_at")
everything = (by_place, by_grain, newest, first)
last = silver.history("last", source=items, keys=["shelf"], sequence_by="changed_at", column_list=["item"])
first_item = silver.events("first_item", source=items, keys=["shelf"], sequence_by="changed_at")
held = gold.state(
    "held",
    source=items,
    keys=["shelf"],
    sequence_by="changed_at",
    schema="item string",
    initial={"item": "CAST(NULL AS string)"},
    reduce={"item": "event.item"},
)
of_versions = (last, first_item, held)
version = ("valid_from", "valid_to", "is_current")
columns = {
    "silver.stocked": ("shelf", "item", "changed_at", "label"),
    "silver.by_place": ("shelf", "item", "serial", *version),
    "silver.by_grain": ("shelf", "item", "label", *version),
    "silver.newest": ("shelf", "item", "changed_at"),
    "silver.first": ("shelf", "item", "changed_at", "label"),
}
Said = Change | tuple[str, str]


def world(seed: int, cases: int) -> list[Said]:
    """Items that change shelves, come and go, and the labels of shelves in other letters; an item once at a time."""
    chance = random.Random(seed)
    found: list[Said] = []
    for case in range(cases):
        shelves = [f"{case}-a", f"{case}-b", None]
        for name in "xyz":
            for hour in chance.sample(range(5), chance.randint(1, 3)):
                kind = chance.choice(["set", "set", "set", "delete"])
                found.append(Change(kind, f"{case}-{name}", hour / 1.0, {"shelf": chance.choice(shelves)}))
        found += [(f"{case}-A", chance.choice(["one", "two"])), (f"{case}-B", "three")]
    chance.shuffle(found)
    return found


def expected(said: Sequence[Said]) -> dict[str, list[Row]]:
    """What the tables hold; versions lack the log's time, so their grain decides between those of one hour."""
    changes = [
        Change(each.kind, each.key, each.at, {**each.values, "serial": number})
        for number, each in enumerate(said)
        if isinstance(each, Change)
    ]
    named: dict[str, str] = {}
    for each in said:
        if isinstance(each, tuple):
            named.setdefault(each[0].lower(), each[1])
    held = oracle.current(changes, Options(("shelf", "serial"), ()))
    of_place, of_grain = [], []
    for item, shelf, serial, hour in held:
        if shelf is not None:
            values = {"item": item, "serial": serial, "label": named.get(shelf)}
            kind = "delete" if item.endswith("z") else "set"
            of_place.append(Change(kind, shelf, hour, values, sequence=(hour, item)))
            of_grain.append(Change("set", shelf, hour, values, sequence=(hour, item)))
    firsts: dict[str | None, Change] = {}
    for each in sorted(of_grain, key=lambda each: each.sequence):
        firsts.setdefault(each.key, each)
    found: dict[str, Any] = {
        "silver.stocked": [(shelf, item, hour, named.get(shelf or "")) for item, shelf, _, hour in held],
        "silver.by_place": oracle.versions(of_place, Options(("item", "serial"), ("item", "serial"))),
        "silver.by_grain": oracle.versions(of_grain, Options(("item", "label"), ("item", "label"))),
        "silver.newest": oracle.current(of_grain, Options(("item",), ())),
        "silver.first": [(key, each.values["item"], each.at, each.values["label"]) for key, each in firsts.items()],
    }
    return {name: sorted(rows, key=repr) for name, rows in found.items()}


def found(lakehouse: Lakehouse) -> dict[str, list[Row]]:
    return {name: rows_of(lakehouse.table(name).selectExpr(*wanted)) for name, wanted in columns.items()}


def lived_through(lakehouse: Lakehouse, batches: Sequence[Sequence[Said]], *datasets: Dataset) -> Lakehouse:
    """A lakehouse that ran after each batch."""
    lakehouse.declare(*datasets)
    number = 0
    for batch in batches:
        waiting: dict[str, list[Record]] = {"items": [], "labels": []}
        for each in batch:
            value: dict[str, Any]
            if isinstance(each, Change):
                said = {"kind": each.kind, "item": each.key, "changed_at": text(each.at), "serial": number}
                topic, value = "items", said | dict(each.values)
            else:
                topic, value = "labels", {"code": each[0], "label": each[1]}
            waiting[topic].append(Record(json.dumps(value).encode(), key="k", timestamp=at(number / 3600)))
            number += 1
        for topic, records in waiting.items():
            lakehouse.log.append(topic, records)
        lakehouse.run()
    return lakehouse


def test_one_record_at_a_time_gives_what_the_records_imply(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # As in tables of millions of rows: nothing is recomputed as a whole.
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    said = world(seed, cases=40)
    batches = [said[:-6], *[[each] for each in said[-6:]]]
    lakehouse = lived_through(Lakehouse(spark, tmp_path, partitions=1), batches, *everything)
    assert found(lakehouse) == expected(said)
    assert [each for each in lakehouse.laws() if not each.balanced] == []
    assert {each.dataset for each in lakehouse.audits()} == {"silver.items_changes", "silver.labels"}
    assert lakehouse.run() == {}
    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}


def test_rows_of_one_sequence_are_ordered_by_their_grain(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the law notices when they are ordered by something else."""
    said = [(str(shelf), item, 1.0, None) for shelf in range(20) for item in "ba"]
    df = frame(spark, "shelf string, item string, changed_at hours, label string", said)

    def chosen() -> tuple[set[Any], set[Any]]:
        last, earliest = newest.shape({"changes": df}, {}), first.shape({"rows": df}, {})
        return {row["item"] for row in last.collect()}, {row["item"] for row in earliest.collect()}

    assert chosen() == ({"b"}, {"a"})
    monkeypatch.setattr(rows, "total_order", lambda df, grain: F.struct(F.hash(*grain)))
    assert chosen() == ({"a", "b"}, {"a", "b"})


def test_the_order_in_which_records_were_appended_decides_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    """A version has the place of its record in the log, and not its time."""
    values = [
        (hours, {"kind": "set", "item": item, "changed_at": text(1), "shelf": "a", "serial": 0})
        for hours, item in enumerate("xyw")
    ]
    made = []
    for name, said in {"in order": values, "the other way round": values[::-1]}.items():
        lakehouse = Lakehouse(spark, tmp_path / name, partitions=1).declare(*of_versions)
        for hours, value in said:
            lakehouse.publish("items", value, hours=hours)
        lakehouse.run()
        made.append({each.name: lakehouse.rows(each.name) for each in of_versions})
    assert made[0] == made[1]
    assert made[0]["gold.held"] == [("a", "y")]


def test_such_a_table_names_its_records_and_says_which_rows_it_cannot_use(lakehouse: Lakehouse) -> None:
    said: list[Said] = [
        Change("set", "x", 1.0, {"shelf": "a"}),
        Change("set", "y", 2.0, {"shelf": "a"}),
        Change("set", "z", 2.0, {"shelf": None}),
        ("A", "one"),
    ]
    late = Change("set", "w", 1.5, {"shelf": "a"})
    lived_through(lakehouse, [said, [late]], *everything)
    wanted = {"shelf": "a", "valid_from": text(1.5)}
    (value,) = Explainer(lakehouse.spark, lakehouse.lake).explain(by_place, wanted)
    (origin,) = value.origins
    assert origin.path == ("silver.by_place", "silver.items", "silver.items_changes")
    assert len(origin.records) == 1
    for dataset in everything:
        checks = built_ins(dataset)
        assert "usable_rows" in checks
        assert not [name for name in checks if name.startswith(("conservation", "usable_records", "known_fields"))]
    assert lakehouse.table("silver.by_place").columns[-3:] == ["_topic", "_partition", "_offset"]
    assert not [name for name in lakehouse.table("silver.by_grain").columns if name.startswith("_")]
