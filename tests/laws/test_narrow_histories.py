"""Convergence by narrow scopes: one record at a time into large tables, where nothing is recomputed as a whole.

Snapshots that become whole late or are whole no more, and members that become known, or unknown, after they ended.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice import bronze, gold, silver
from sluice.engine import touched
from sluice.log import Record
from sluice.model.datasets import Dataset
from sluice.operate.explain import Explainer
from tests.kit import Lakehouse, Row, at, frame, rows_of, text
from tests.laws.narrow import computed, refreshed
from tests.oracles import histories as oracle
from tests.oracles.histories import Change, Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

wide = "1000 days"
counted = bronze.topic("counted")
shelves = silver.history_from_snapshots(
    "shelves",
    source=counted,
    schema="item string, counted_at timestamp, shelf string, items int",
    keys=["item"],
    taken_at="counted_at",
    row_count="items",
    future_tolerance=wide,
)
places = silver.history_from_snapshots(
    "places",
    source=counted,
    schema="item string, counted_at timestamp, shelf string, items int",
    keys=["item"],
    taken_at="counted_at",
    except_column_list=["items"],
    future_tolerance=wide,
)
colours = silver.history(
    "colours",
    source=bronze.topic("painted"),
    schema="kind string, product string, changed_at timestamp, colour string",
    keys=["product"],
    sequence_by="changed_at",
    apply_as_deletes="kind = 'delete'",
    except_column_list=["kind"],
    future_tolerance=wide,
)
captured_options: dict[str, Any] = {
    "source": bronze.topic("captured"),
    "format": "debezium",
    "schema": "product string, colour string",
    "keys": ["product"],
    "future_tolerance": wide,
}
captured = silver.history("captured", **captured_options)
captured_now = silver.history("captured_now", stored_as_scd_type=1, **captured_options)
sales = silver.events(
    "sales",
    source=bronze.topic("sold"),
    schema="sale_id string, product string, sold_at timestamp",
    keys=["sale_id"],
    event_time="sold_at",
    future_tolerance=wide,
)
painted = silver.as_of(
    "painted",
    facts=sales,
    event_time="sold_at",
    dimensions={
        "paint": silver.dimension(colours, inferred={"colour": "'unknown'"}),
        "known": silver.dimension(colours),
    },
)
sold = gold.aggregate("sold", source=painted, group_by=["paint.colour AS colour"], measures={"sales": "count(*)"})

shelf_options = Options(attributes=("shelf",), tracked=("shelf",))
colour_options = Options(attributes=("colour",), tracked=("colour",))


@dataclass(frozen=True)
class Sale:
    """A fact."""

    sale_id: str
    product: str | None
    hour: float


def snapshots(chance: random.Random, cases: int) -> list[Change]:
    """Rows of snapshots that are whole, partial or empty; each case has a few times and keys of its own."""
    rows = []
    for case in range(cases):
        items = [f"{case}-{name}" for name in "abc"]
        for hour in range(5):
            present = [item for item in items if chance.random() < 0.7]
            wanted = chance.choice([len(present), len(present), len(present), len(present) + 1, None])
            for item in present:
                for _ in range(chance.choice([1, 1, 1, 2])):
                    said = chance.choice([wanted, wanted, wanted, wanted, 1])
                    values = {"shelf": chance.choice(["low", "high", None]), "items": said}
                    rows.append(Change("set", item, case * 10.0 + hour, values))
            if not present or chance.random() < 0.1:
                rows.append(Change("none", None, case * 10.0 + hour, {"shelf": None, "items": 0}))
    chance.shuffle(rows)
    return rows


def changes_and_sales(chance: random.Random, cases: int) -> list[Change | Sale]:
    """A few changes, deletes among them, and sales, of each case's one product; some sales name none."""
    found: list[Change | Sale] = []
    for case in range(cases):
        product = str(case)
        for _ in range(chance.randint(0, 4)):
            kind = chance.choice(["set", "set", "delete"])
            found.append(Change(kind, product, chance.randint(0, 6) / 1.0, {"colour": chance.choice(["red", None])}))
        for number in range(chance.randint(1, 3)):
            named = chance.choice([product, product, product, None])
            found.append(Sale(f"{case}-{number}", named, chance.randint(0, 14) / 2))
    chance.shuffle(found)
    return found


def expected_painted(said: Sequence[Change | Sale]) -> set[Row]:
    """(sale_id, hour, colour, since, is_inferred, known colour): inferred where no version has begun by then."""
    lines = oracle.timelines([each for each in said if isinstance(each, Change)], colour_options)
    found: set[Row] = set()
    for sale in said:
        if isinstance(sale, Sale):
            since, state, is_known = oracle.valid_at(lines.get(sale.product or "", []), sale.hour)
            seen: Row = (state["colour"], since, False) if state else (None, None, None)
            known = state["colour"] if state else None
            if sale.product is not None and not is_known:
                seen = ("unknown", None, True)
            found.add((sale.sale_id, sale.hour, *seen, known))
    return found


painted_columns = (
    "sale_id",
    "sold_at",
    "paint.colour AS colour",
    "paint.valid_from AS since",
    "paint.is_inferred AS is_inferred",
    "known.colour AS known",
)


def versions(df: "DataFrame", key: str, attribute: str) -> set[Row]:
    return set(rows_of(df, key, attribute, "valid_from", "valid_to", "is_current"))


# Many cases at once, on plain frames.


def snapshot_rows(spark: "SparkSession", rows: Sequence[Change], but: Set[Row] = frozenset()) -> "DataFrame":
    """Rows as `silver.<name>_changes` has them, all but some; what is said twice is there once, at its first place."""
    distinct = list({each.identity: each for each in rows}.values())
    schema = "item string, counted_at hours, shelf string, items int, _change string, _timestamp hours"
    values = [
        (each.key, each.at, each.values["shelf"], each.values["items"], each.kind, float(number))
        for number, each in enumerate(distinct)
        if each.identity not in but
    ]
    named = frame(spark, schema, values)
    return named.selectExpr("*", "'t' AS _topic", "0 AS _partition", "unix_seconds(_timestamp) AS _offset")


def narrow_snapshots(spark: "SparkSession", dataset: Dataset, seed: int, cases: int = 200) -> tuple[set[Row], set[Row]]:
    """The versions by a narrow scope after a few rows came and others went, and those by all rows."""
    chance = random.Random(seed)
    rows = snapshots(chance, cases)
    gone = {each.identity for each in rows if chance.random() < 0.01}
    come = {each.identity for each in rows if chance.random() < 0.05}
    before, after = snapshot_rows(spark, rows, but=come), snapshot_rows(spark, rows, but=gone)
    found, _ = refreshed(dataset, dict.fromkeys(dataset.inputs, before), dict.fromkeys(dataset.inputs, after))
    whole = computed(dataset, dict.fromkeys(dataset.inputs, after))
    return versions(found, "item", "shelf"), versions(whole, "item", "shelf")


@pytest.mark.parametrize("dataset", [shelves, places], ids=lambda dataset: dataset.name)
def test_whatever_becomes_whole_late_every_key_that_it_bears_on_is_touched(
    spark: "SparkSession", dataset: Dataset, seed: int
) -> None:
    found, whole = narrow_snapshots(spark, dataset, seed)
    assert found == whole


def test_a_corrected_row_of_a_whole_snapshot_touches_its_own_key_alone(spark: "SparkSession") -> None:
    rows = [row(item, hour, 3) for hour in (1, 2, 3) for item in "abc"]
    corrected = Change("set", "b", 2.0, {"shelf": "high", "items": 3})
    before, after = snapshot_rows(spark, rows), snapshot_rows(spark, [*rows, corrected])
    found, scope = refreshed(shelves, dict.fromkeys(shelves.inputs, before), dict.fromkeys(shelves.inputs, after))
    assert rows_of(scope) == [("b",)]
    changes = oracle.from_counted_snapshots([*rows, corrected], "items")
    assert versions(found, "item", "shelf") == oracle.versions(changes, shelf_options)


def captured_rows(spark: "SparkSession", seed: int, share: float) -> "DataFrame":
    """A share of the changes that a database sent: rows that are set, deleted, and moved to other keys and back."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for number in range(600):
        case = number % 50
        product, old = (f"{case}-{chance.choice('abc')}" for _ in range(2))
        kind = chance.choice(["set", "set", "set", "delete"])
        moved = (old,) if kind == "set" and old != product and chance.random() < 0.5 else None
        at = chance.choice([number, chance.randrange(600)])
        rows.append((product, chance.choice(["red", "blue", None]), float(at), at, 1, kind, moved, number))
    rows.append((None, None, 150.0, 150, 1, "truncate", None, 600))
    schema = (
        "product string, colour string, committed_at hours, lsn bigint, transaction_order bigint, _change string, "
        "_moved_from struct<product string>, _offset bigint"
    )
    kept = [row for row in rows if random.Random(f"{seed} {row[-1]}").random() < share]
    return frame(spark, schema, kept).selectExpr(
        "*", "'t' AS _topic", "0 AS _partition", "timestamp_seconds(_offset) AS _timestamp"
    )


def narrow_captured(spark: "SparkSession", dataset: Dataset, seed: int) -> tuple[list[Row], list[Row]]:
    """The rows by a narrow scope after a few changes came, and those by all changes."""
    before, after = ({"changes": captured_rows(spark, seed, share)} for share in (0.97, 1.0))
    found, _ = refreshed(dataset, before, after)
    whole = computed(dataset, after)
    return rows_of(found, *whole.columns), rows_of(whole, *whole.columns)


@pytest.mark.parametrize("dataset", [captured, captured_now], ids=lambda dataset: dataset.name)
def test_a_row_that_moves_to_another_key_tells_of_both_and_of_neither_more_than_all_changes_do(
    spark: "SparkSession", dataset: Dataset, seed: int
) -> None:
    found, whole = narrow_captured(spark, dataset, seed)
    assert found == whole


def versions_of(spark: "SparkSession", changes: Sequence[Change]) -> "DataFrame":
    rows = [(*row, None, None, None) for row in sorted(oracle.versions(changes, colour_options), key=repr)]
    schema = (
        "product string, colour string, valid_from hours, valid_to hours, is_current boolean, "
        "_topic string, _partition int, _offset bigint"
    )
    return frame(spark, schema, rows)


def sales_of(spark: "SparkSession", found: Sequence[Sale]) -> "DataFrame":
    return frame(
        spark,
        "sale_id string, product string, sold_at hours",
        [(each.sale_id, each.product, each.hour) for each in found],
    )


def narrow_painted(spark: "SparkSession", seed: int, cases: int = 400) -> tuple[set[Row], set[Row], int, int]:
    """After some changes and sales came: facts by a narrow scope, as the oracle has them, and how many were touched."""
    chance = random.Random(seed)
    said = changes_and_sales(chance, cases)
    early = [each for each in said if chance.random() < 0.8]

    def tables(known: Sequence[Change | Sale]) -> "dict[str, DataFrame]":
        history = versions_of(spark, [each for each in known if isinstance(each, Change)])
        facts = sales_of(spark, [each for each in known if isinstance(each, Sale)])
        return {"facts": facts, "paint": history, "known": history}

    found, scope = refreshed(painted, tables(early), tables(said))
    rows = set(rows_of(found.selectExpr(*painted_columns)))
    before, after = expected_painted(early), expected_painted(said)
    return rows, after, scope.select("sale_id").distinct().count(), len({row[0] for row in before ^ after})


def test_whenever_a_member_becomes_known_or_unknown_its_facts_are_touched_and_no_others(
    spark: "SparkSession", seed: int
) -> None:
    found, expected, touched, differing = narrow_painted(spark, seed)
    assert found == expected
    # A version may change and give the same values; then its facts are touched in vain.
    assert touched <= 2 * differing


def lone_fact(spark: "SparkSession") -> bool:
    """Whether a fact that comes alone after its key's only version ended is as a walk along the changes says."""
    said = [painting("set", 3), painting("delete", 5), *others]
    history = versions_of(spark, [each for each in said if isinstance(each, Change)])
    facts = [each for each in said if isinstance(each, Sale)]
    before = {"facts": sales_of(spark, facts), "paint": history, "known": history}
    after = {**before, "facts": sales_of(spark, [*facts, fact])}
    found, _ = refreshed(painted, before, after)
    return set(rows_of(found.selectExpr(*painted_columns))) == expected_painted([*said, fact])


def directly_before(
    rows: "DataFrame", changed: "DataFrame", keys: Sequence[str], taken_at: str, row_count: str | None
) -> "DataFrame":
    """The changed snapshots and those before them, whole or not."""
    times = changed.select(taken_at).distinct()
    earlier = rows.select(taken_at).distinct().crossJoin(times.withColumnRenamed(taken_at, "_at"))
    before = earlier.where(f"`{taken_at}` < _at").groupBy("_at").agg({taken_at: "max"}).toDF("_at", taken_at)
    return times.unionByName(before.select(taken_at)).distinct()


def test_a_fact_that_comes_alone_finds_that_its_key_was_known(spark: "SparkSession") -> None:
    assert lone_fact(spark)


def test_the_laws_notice_when_a_scope_is_too_narrow(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    silver_history, silver_as_of = sys.modules["sluice.silver.history"], sys.modules["sluice.silver.as_of"]
    monkeypatch.setattr(silver_history, "bearing_snapshots", directly_before)
    found, whole = narrow_snapshots(spark, shelves, seed=1, cases=50)
    assert found != whole
    monkeypatch.setattr(
        silver_as_of,
        "newly_known",
        lambda changes, versions, keys: changes.selectExpr(*keys, "valid_from AS _from", "valid_to AS _to").limit(0),
    )
    rows, expected, _, _ = narrow_painted(spark, seed=1, cases=100)
    assert rows != expected
    monkeypatch.setattr(silver_history, "moved_away", lambda rule, changes, scope: changes.limit(0))
    rows_found, all_rows = narrow_captured(spark, captured, seed=1)
    assert rows_found != all_rows
    monkeypatch.setattr(silver_as_of, "last_begun", lambda versions, keys, reaches: versions.where(reaches))
    assert not lone_fact(spark)


# One record at a time, through the engine.


def publish(lakehouse: Lakehouse, said: Sequence[Change | Sale], arrived: int) -> int:
    """Appends what is said in its order, each a little after the one before."""
    waiting: dict[str, list[Record]] = {}
    for number, each in enumerate(said, start=arrived + 1):
        topic, value = record_of(each)
        record = Record(json.dumps(value).encode(), key=str(number), timestamp=at(number / 3600))
        waiting.setdefault(topic, []).append(record)
    for topic, records in waiting.items():
        lakehouse.log.append(topic, records)
    return arrived + len(said)


def record_of(said: Change | Sale) -> tuple[str, dict[str, Any]]:
    """The topic and the value of what is said."""
    if isinstance(said, Sale):
        return "sold", {"sale_id": said.sale_id, "product": said.product, "sold_at": text(said.hour)}
    if "items" in said.values:
        return "counted", {"item": said.key, "counted_at": text(said.at), **said.values}
    return "painted", {"kind": said.kind, "product": said.key, "changed_at": text(said.at), **said.values}


Batches = list[list[Change | Sale]]


def one_by_one(seed: int, cases: int, singles: int) -> Batches:
    """Most of what is said at once, then one record of each group at a time."""
    chance = random.Random(seed)
    counted, painting = snapshots(chance, cases), changes_and_sales(chance, cases)
    first = [*counted[:-singles], *painting[:-singles]]
    return [first, *[list(pair) for pair in zip(counted[-singles:], painting[-singles:], strict=True)]]


def lived_through(lakehouse: Lakehouse, batches: Batches, *datasets: Dataset) -> Lakehouse:
    """A lakehouse that ran after each batch."""
    arrived = 0
    lakehouse.declare(*datasets)
    for batch in batches:
        arrived = publish(lakehouse, batch, arrived)
        lakehouse.run()
    return lakehouse


def found(lakehouse: Lakehouse, *names: str) -> dict[str, list[Row]]:
    def rows(name: str) -> list[Row]:
        if name == "silver.painted":
            return rows_of(lakehouse.table(name).selectExpr(*painted_columns))
        version = ("item", "shelf", "valid_from", "valid_to", "is_current")
        return lakehouse.rows(name, *(("colour", "sales") if name == "gold.sold" else version))

    return {name: rows(name) for name in names}


def expected(batches: Batches, *names: str) -> dict[str, list[Row]]:
    said = [each for batch in batches for each in batch]
    counted = [each for each in said if isinstance(each, Change) and "items" in each.values]
    plain = [replace(each, values={"shelf": each.values["shelf"]}) for each in counted if each.kind == "set"]
    painted_rows = expected_painted([each for each in said if each not in counted])
    rows = {
        "silver.shelves": oracle.versions(oracle.from_counted_snapshots(counted, "items"), shelf_options),
        "silver.places": oracle.versions(oracle.from_snapshots(plain), shelf_options),
        "silver.painted": painted_rows,
        "gold.sold": Counter(row[2] for row in painted_rows).items(),
    }
    return {name: sorted(rows[name], key=repr) for name in names}


def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scope is so large that the table is recomputed as a whole, as in a table of millions of rows."""
    monkeypatch.setattr(touched, "rebuild_share", 1e9)


tables = ("silver.shelves", "silver.places", "silver.painted", "gold.sold")


def test_one_record_at_a_time_gives_what_the_records_imply(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    narrow(monkeypatch)
    batches = one_by_one(seed, cases=40, singles=3)
    lived_through(lakehouse, batches, shelves, places, sold)
    assert found(lakehouse, *tables) == expected(batches, *tables)
    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}


def row(item: str, hour: int, items: int) -> Change:
    return Change("set", item, float(hour), {"shelf": "low", "items": items})


def nothing(hour: int) -> Change:
    """A snapshot without rows."""
    return Change("none", None, float(hour), {"shelf": None, "items": 0})


def painting(kind: str, hour: int, product: str = "a") -> Change:
    return Change(kind, product, float(hour), {"colour": "red"})


others: list[Change | Sale] = [Change("set", "z", 1.0, {"colour": "red"}), Sale("z", "z", 2.0)]
fact = Sale("s", "a", 7.0)


@dataclass(frozen=True)
class Story:
    """What is there before, and what comes late, a run at a time."""

    before: list[Change | Sale]
    late: Batches

    @property
    def names(self) -> set[str | None]:
        """The items, or the sales, that it is about."""
        said = [*self.before, *[each for batch in self.late for each in batch]]
        return {each.sale_id if isinstance(each, Sale) else each.key for each in said}


# Of one history: each story has snapshots of its own, between two whole ones that no story is about.
of_shelves = {
    "a snapshot between two others becomes whole late": Story(
        [row("d", 11, 2), row("e", 11, 2), row("d", 12, 2), row("d", 13, 2), row("e", 13, 2)], [[row("f", 12, 2)]]
    ),
    "a snapshot that was whole says that it has more rows": Story(
        [row("g", 21, 2), row("h", 21, 2), row("i", 22, 2), row("g", 23, 1)], [[row("g", 23, 3)]]
    ),
    "an empty snapshot comes late, and then a row of it": Story(
        [row("j", 31, 2), row("k", 31, 2), row("j", 32, 2), row("j", 34, 1)], [[nothing(33)], [row("k", 33, 2)]]
    ),
    "a partial snapshot stands between two whole ones": Story(
        [row("a", 41, 3), row("b", 41, 3), row("c", 41, 3), row("a", 42, 3)], [[row("a", 43, 1)]]
    ),
}
between: list[Change | Sale] = [row("z", hour, 1) for hour in (16, 26, 36)]
# Each of a product of its own.
of_sold = {
    "a set arrives after the delete that ended it": Story(
        [painting("delete", 5, "a"), Sale("sa", "a", 7.0)], [[painting("set", 3, "a")]]
    ),
    "the only version turns out to be a delete": Story(
        [painting("set", 3, "b"), painting("delete", 5, "b"), Sale("sb", "b", 7.0)], [[painting("delete", 3, "b")]]
    ),
    "a fact arrives alone after the delete": Story(
        [painting("set", 3, "c"), painting("delete", 5, "c")], [[], [Sale("sc", "c", 7.0)]]
    ),
    "a first version begins earlier, before one that ended": Story(
        [painting("set", 5, "d"), painting("delete", 6, "d"), Sale("sd", "d", 3.0), Sale("td", "d", 1.0)],
        [[painting("set", 1, "d"), painting("delete", 2, "d")]],
    ),
}


@dataclass(frozen=True)
class Told:
    """A lakehouse after stories: what was said before each of its runs, and what its tables had after it."""

    lakehouse: Lakehouse
    batches: Batches
    found: list[dict[str, list[Row]]]

    def require_right(self, stories: dict[str, Story]) -> None:
        for number, seen in enumerate(self.found):
            assert seen == expected(self.batches[: number + 1], *seen)
        for title, story in stories.items():
            rows = [[row for row in next(iter(seen.values())) if row[0] in story.names] for seen in self.found]
            for number, late in enumerate(story.late, start=1):
                assert (rows[number] != rows[number - 1]) == bool(late), title


def told(
    lakehouse: Lakehouse, stories: dict[str, Story], beside: list[Change | Sale], dataset: Dataset, *names: str
) -> Told:
    """The stories lie side by side, and so does what comes late in them."""
    late = zip_longest(*[story.late for story in stories.values()], fillvalue=list[Change | Sale]())
    batches = [[*beside, *[each for story in stories.values() for each in story.before]], *map(flat, late)]
    arrived, seen = 0, list[dict[str, list[Row]]]()
    lakehouse.declare(dataset)
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        for batch in batches:
            arrived = publish(lakehouse, batch, arrived)
            lakehouse.run()
            seen.append(found(lakehouse, *names))
    return Told(lakehouse, batches, seen)


def flat(batches: Iterable[list[Change | Sale]]) -> list[Change | Sale]:
    return [each for batch in batches for each in batch]


@pytest.fixture(scope="module")
def told_of_shelves(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Told:
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("told"))
    return told(lakehouse, of_shelves, between, shelves, "silver.shelves")


def test_a_late_row_of_a_snapshot_is_seen_by_a_narrow_scope(told_of_shelves: Told, tmp_path: Path) -> None:
    told_of_shelves.require_right(of_shelves)
    assert told_of_shelves.lakehouse.copied_to(tmp_path).changed_by_rebuild() == {}


def test_a_late_change_or_fact_is_seen_by_a_narrow_scope(lakehouse: Lakehouse) -> None:
    told(lakehouse, of_sold, others, sold, "silver.painted", "gold.sold").require_right(of_sold)
    assert lakehouse.changed_by_rebuild() == {}


def test_a_version_that_a_snapshot_ended_can_be_explained(told_of_shelves: Told, tmp_path: Path) -> None:
    lakehouse = told_of_shelves.lakehouse.copied_to(tmp_path)
    publish(lakehouse, [row("a", 44, 2), row("b", 44, 2)], sum(map(len, told_of_shelves.batches)))
    lakehouse.run()
    explainer = Explainer(lakehouse.spark, lakehouse.lake)
    ended = explainer.explain(shelves, {"item": "b", "valid_from": text(41.0)})
    assert [each.row and each.row["is_current"] for each in ended] == [True, False]
    (again,) = explainer.explain(shelves, {"item": "b", "valid_from": text(44.0)})
    assert again.origins[0].path == ("silver.shelves", "silver.shelves_changes")
    assert len(again.origins[0].records) == 1
