"""Blocked: what cannot be computed stops alone and says why, and one command sets aside the record that did it."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from sluice import bronze, gold, silver
from sluice.engine import blocked
from sluice.engine.backfill import BackfillRange
from sluice.engine.blocked import Block, blocks, unblock
from sluice.engine.runner import Event, Runner
from sluice.errors import SluiceError, SparkEnded, UsageError
from sluice.operate import quarantine
from sluice.operate.audit import stopped
from sluice.operate.quarantine import consumer
from sluice.operate.status import State, status
from tests.kit import Lakehouse, at, disk_full_at, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

largest = "9" * 38
payments = silver.events(
    "payments",
    source=bronze.topic("payments"),
    schema="id string, shop string, paid_at timestamp, amount decimal(38,0)",
    keys=["id"],
    event_time="paid_at",
    future_tolerance="1000 days",
)
totals = gold.aggregate("totals", source=payments, group_by=["shop"], measures={"amount": "sum(amount)"})
counts = gold.aggregate("counts", source=payments, group_by=["shop"], measures={"payments": "count(*)"})
best = gold.view("best", inputs={"totals": totals}, keys=["shop"], shape=lambda totals: totals.where("amount > 1"))
# The same as the totals, and what is made from it: their first build is stopped.
sums = gold.aggregate("sums", source=payments, group_by=["shop"], measures={"amount": "sum(amount)"})
most = gold.view("most", inputs={"sums": sums}, keys=["shop"], shape=lambda sums: sums.where("amount > 1"))


def payment(name: str, shop: str = "a", amount: str = "1", hour: float = 0) -> dict[str, object]:
    return {"id": name, "shop": shop, "paid_at": text(hour), "amount": amount}


def passed(lakehouse: Lakehouse, runner: Runner | None = None) -> dict[str, Event]:
    """What a run says of each dataset, blocked ones too."""
    return {event.name: event for event in (runner or lakehouse.runner()).until_caught_up()}


def state(lakehouse: Lakehouse, name: str) -> State:
    return next(each for each in status(lakehouse.lake, lakehouse.log, lakehouse.catalogue) if each.dataset == name)


def block(lakehouse: Lakehouse, name: str) -> Block:
    return blocks(lakehouse.lake.files)[name]


def test_a_full_disk_is_said_plainly_whoever_writes() -> None:
    """What delta-rs says of it."""
    error = DeltaError(
        "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file: "
        "No space left on device (os error 28)"
    )
    assert blocked.reason_of(error) == "No space left on device: free some on the disk of the lake."
    assert blocked.reason_of(DeltaError("Failed to parse parquet: EOF")) == "DeltaError: Failed to parse parquet: EOF"


def position_of(lakehouse: Lakehouse, name: str, table: str = "silver.payments", key: str = "id") -> str:
    rows = lakehouse.rows(table, key, "_topic", "_partition", "_offset")
    (place,) = [place for known, *place in rows if known == name]
    return "/".join(map(str, place))


def overflown(lakehouse: Lakehouse) -> Lakehouse:
    """One of three shops has sold for more than a decimal holds."""
    return lakehouse.publish("payments", payment("x", "b", largest), payment("y", "b", largest))


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """However slow the machine is, no table is tried again because some time has passed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocked, "pauses_of_data", (timedelta(days=1), timedelta(days=1)))
        yield


@pytest.fixture(scope="module")
def first_pass(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, dict[str, Event]]:
    """A lakehouse in which a table could not go on and another one could not be built, and what its run said."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("overflowing")).declare(payments, totals, counts, best)
    lakehouse.publish("payments", *[payment(f"{shop}{n}", shop) for shop in "abc" for n in range(3)]).run()
    overflown(lakehouse).declare(payments, totals, counts, best, sums, most)
    return lakehouse, passed(lakehouse)


@pytest.fixture
def overflowing(first_pass: tuple[Lakehouse, dict[str, Event]], tmp_path: Path) -> Lakehouse:
    """The same, with the table that could not go on."""
    return first_pass[0].copied_to(tmp_path).declare(payments, totals, counts, best)


@pytest.mark.parametrize(
    ("name", "made_from_it"),
    [("gold.totals", "gold.best"), ("gold.sums", "gold.most")],
    ids=["that was built before", "in its first build"],
)
def test_one_value_stops_one_table_and_what_is_made_from_it(
    first_pass: tuple[Lakehouse, dict[str, Event]], name: str, made_from_it: str
) -> None:
    lakehouse, events = first_pass
    assert "ARITHMETIC_OVERFLOW" in (events[name].blocked or "")
    assert events[made_from_it].waits_for == (name,)
    # The group is named, and two records that are too much together.
    found = block(lakehouse, name)
    assert found.culprit == {"shop": "b"}
    assert set(found.records) == {position_of(lakehouse, "x"), position_of(lakehouse, "y")}
    assert (state(lakehouse, name).held or "").startswith("blocked: ")
    assert state(lakehouse, made_from_it).held == f"waits for {name}"


def test_it_stops_no_other_and_all_go_on_without_the_records(
    first_pass: tuple[Lakehouse, dict[str, Event]], tmp_path: Path
) -> None:
    lakehouse = first_pass[0].copied_to(tmp_path)
    assert lakehouse.rows("gold.counts", "shop", "payments") == [("a", 3), ("b", 5), ("c", 3)]
    assert lakehouse.audit()["silver.payments"].balanced
    assert {each.dataset for each in stopped(lakehouse.lake, lakehouse.catalogue)} == {"gold.totals", "gold.sums"}
    assert lakehouse.rows("gold.totals", "shop", "amount") == [("a", 3), ("b", 3), ("c", 3)]
    assert not lakehouse.lake.exists("gold.sums")

    quarantine.add(
        lakehouse.lake, lakehouse.log, payments, [position_of(lakehouse, name) for name in "xy"], because="tests"
    )
    lakehouse.run()
    for table in ("gold.totals", "gold.best", "gold.sums", "gold.most"):
        assert lakehouse.rows(table, "shop", "amount") == [("a", 3), ("b", 3), ("c", 3)], table
        assert state(lakehouse, table).held is None, table
    assert lakehouse.rows("gold.counts", "shop", "payments") == [("a", 3), ("b", 3), ("c", 3)]
    assert lakehouse.rows("silver.payments", "id") == [(f"{shop}{n}",) for shop in "abc" for n in range(3)]
    assert blocks(lakehouse.lake.files) == {}
    assert lakehouse.run() == {}
    assert lakehouse.audit()["silver.payments"].balanced


def test_a_long_key_does_not_fill_the_line() -> None:
    key = {"shop": "é" * 1_000_000, "day": None}
    found = Block(name="gold.totals", reason="Overflow.", since=at(0), tried_at=at(0), culprit=key)
    assert str(found) == f"Overflow. At shop={'é' * 100}… (1000000 characters), day=null."


def test_a_blocked_table_is_tried_again_when_its_inputs_change_and_not_before(overflowing: Lakehouse) -> None:
    first, runner = block(overflowing, "gold.totals"), overflowing.runner()
    assert first.attempts == 1
    # Another run tries it too, and the time since when it is blocked stays.
    passed(overflowing, runner)
    assert block(overflowing, "gold.totals").attempts == 2
    passed(overflowing, runner)
    assert block(overflowing, "gold.totals").attempts == 2
    overflowing.publish("payments", payment("z", "c"))
    passed(overflowing, runner)
    assert block(overflowing, "gold.totals").attempts == 3
    assert block(overflowing, "gold.totals").since == first.since
    assert overflowing.rows("gold.counts", "shop", "payments") == [("a", 3), ("b", 5), ("c", 4)]


def test_a_backfill_that_cannot_be_computed_names_the_records(overflowing: Lakehouse) -> None:
    before = overflowing.rows("gold.totals")
    (dataset,) = [each for each in overflowing.catalogue.datasets if each.name == "gold.totals"]
    # As two records together are too much, both are named, in any order.
    x, y = position_of(overflowing, "x"), position_of(overflowing, "y")
    says = rf"gold.totals cannot be computed. .* At shop=b. Records: ({x}, {y}|{y}, {x})\."
    backfill = BackfillRange.of(None, None, [x])
    assert backfill is not None
    with pytest.raises(SluiceError, match=says):
        overflowing.runner().recompute_range([dataset], backfill)
    assert overflowing.rows("gold.totals") == before


def test_another_declaration_is_tried_at_once(overflowing: Lakehouse) -> None:
    wide = gold.aggregate("totals", source=payments, group_by=["shop"], measures={"amount": "sum(double(amount))"})
    overflowing.declare(payments, wide, counts)
    overflowing.run()
    assert len(overflowing.rows("gold.totals")) == 3
    assert set(blocks(overflowing.lake.files)) == {"gold.sums"}, "which is not declared here"


def raises_key_error(payments: Any) -> Any:
    raise KeyError("price")


# Tables that cannot be computed, each because of another record.
rates = silver.events("rates", source=bronze.topic("rates"), schema="shop string, rate int", keys=["shop"])
shares = gold.view(
    "shares",
    inputs={"payments": payments},
    keys=["id"],
    shape=lambda payments: payments.select("id", (F.lit(100) / F.col("amount").cast("int")).alias("share")),
)
reasons = gold.view(
    "reasons",
    inputs={"payments": payments},
    keys=["id"],
    shape=lambda payments: payments.selectExpr(
        "id", "100 div if(id = 'p9', 0, 5) AS share", "if(id = 'p7', raise_error('it is p7'), 1) AS one"
    ),
)
per = gold.view(
    "per",
    inputs={"payments": payments, "rates": rates},
    keys=["shop"],
    grain=["shop", "id"],
    shape=lambda payments, rates: payments.join(rates, "shop").selectExpr("shop", "id", "100 div rate AS part"),
)
misspelled = gold.view("misspelled", inputs={"payments": payments}, keys=["id"], shape=raises_key_error)
by_number = gold.aggregate(
    "by_number", source=payments, group_by=["CAST(shop AS int) AS number"], measures={"payments": "count(*)"}
)
unresolved = gold.view(
    "unresolved", inputs={"payments": payments}, keys=["id"], shape=lambda payments: payments.select("id", "amuont")
)
mapped = gold.view(
    "mapped",
    inputs={"payments": payments},
    keys=["id"],
    shape=lambda payments: payments.selectExpr("id", "map_entries(map('p3', 1, id, 2)) AS entries"),
)
numbered = gold.view(
    "numbered",
    inputs={"payments": payments},
    keys=["number"],
    on={"payments": {"number": "CAST(shop AS int)"}},
    grain=["number", "id"],
    shape=lambda payments: payments.select("number", "id"),
)


@pytest.fixture(scope="module")
def broken(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse in which none of these can be computed; two of them could be before."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("broken")).declare(payments, rates, by_number, numbered)
    lakehouse.publish("rates", *[{"shop": str(number), "rate": number} for number in range(3)])
    lakehouse.publish("payments", *[payment(f"p{n}", str(n % 3), str(n)) for n in range(40)])
    lakehouse.run()
    lakehouse.publish("payments", payment("fine", "1"), payment("bad", "one"), payment("good", "2"))
    lakehouse.declare(
        payments, rates, shares, reasons, per, misspelled, unresolved, mapped, by_number, numbered, counts
    )
    passed(lakehouse)
    return lakehouse


def test_a_table_beside_those_that_cannot_be_computed_is(broken: Lakehouse) -> None:
    assert set(blocks(broken.lake.files)) == {
        f"gold.{name}"
        for name in ("shares", "reasons", "per", "misspelled", "unresolved", "mapped", "by_number", "numbered")
    }
    assert broken.rows("gold.counts", "shop", "payments") == [("0", 14), ("1", 14), ("2", 14), ("one", 1)]


def test_the_record_that_a_view_cannot_be_computed_from_is_named(broken: Lakehouse) -> None:
    found = block(broken, "gold.shares")
    assert "DIVIDE_BY_ZERO" in found.reason
    assert found.culprit == {"id": "p0"}
    assert found.records == (position_of(broken, "p0"),)


def test_so_is_one_that_makes_a_key_of_a_map_twice(broken: Lakehouse) -> None:
    """Spark says this by another class of SQLSTATE than what is wrong with a value."""
    found = block(broken, "gold.mapped")
    assert "DUPLICATED_MAP_KEY" in found.reason
    assert found.records == (position_of(broken, "p3"),)


def test_the_reason_is_that_of_the_record_that_is_named(broken: Lakehouse) -> None:
    found = block(broken, "gold.reasons")
    (name,) = [name for name in ("p7", "p9") if position_of(broken, name) in found.records]
    assert {"p7": "it is p7", "p9": "DIVIDE_BY_ZERO"}[name] in found.reason


def test_the_input_that_is_at_fault_is_named_and_not_the_rows_beside_it(broken: Lakehouse) -> None:
    found = block(broken, "gold.per")
    assert "DIVIDE_BY_ZERO" in found.reason
    assert found.culprit == {"shop": "0"}
    assert found.records == (position_of(broken, "0", "silver.rates", "shop"),)


@pytest.mark.parametrize("name", ["gold.by_number", "gold.numbered"])
def test_a_record_whose_group_or_key_cannot_be_computed_is_named(broken: Lakehouse, name: str) -> None:
    assert block(broken, name).records == (position_of(broken, "bad"),)
    assert "CAST_INVALID_INPUT" in block(broken, name).reason


def test_an_error_of_a_shape_says_where_it_happened(broken: Lakehouse) -> None:
    reason = block(broken, "gold.misspelled").reason
    assert reason.startswith("KeyError: 'price' (")
    assert "test_blocked.py, line" in reason


def test_so_does_a_name_that_spark_does_not_know(broken: Lakehouse) -> None:
    reason = block(broken, "gold.unresolved").reason
    assert "`amuont` cannot be resolved. Did you mean one of the following? [`amount`" in reason
    assert re.search(r"SQLSTATE: 42703 \(.*test_blocked.py, line \d+\)$", reason)


def test_one_of_a_column_says_where_that_was_built(broken: Lakehouse) -> None:
    """Nothing notes such lines in a refresh: the search for the record does."""
    assert re.search(r"called from\n.*test_blocked\.py:\d+", block(broken, "gold.shares").reason)


def test_so_does_one_that_ends_a_backfill(broken: Lakehouse) -> None:
    backfill = BackfillRange(since=datetime(2020, 1, 1, tzinfo=UTC), until=datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(SluiceError, match=r"called from .*test_blocked\.py:\d+ At id=p0. Records: payments/\d/\d"):
        broken.runner().recompute_range([shares], backfill)


def test_a_topic_with_a_gap_stops_alone(lakehouse: Lakehouse) -> None:
    refunds = silver.events(
        "refunds", source=bronze.topic("refunds"), schema="id string", keys=["id"], future_tolerance="1000 days"
    )
    lakehouse.declare(payments, counts, refunds)
    lakehouse.publish("payments", payment("a"), key="k").publish("payments", payment("b"), key="k")
    lakehouse.publish("refunds", {"id": "r"})
    first = lakehouse.log.segments("payments")[0].path
    first.rename(first.with_name(".away"))
    events = passed(lakehouse)
    assert "are missing from the log" in (events["bronze.payments"].blocked or "")
    assert lakehouse.rows("silver.refunds", "id") == [("r",)]
    assert (state(lakehouse, "bronze.payments").held or "").startswith("lost: offsets 0-0")
    first.with_name(".away").rename(first)
    lakehouse.run()
    assert lakehouse.rows("gold.counts", "shop", "payments") == [("a", 2)]


def test_a_dataset_that_ends_spark_again_and_again_stops_no_other(
    overflowing: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an expression does that overflows the stack of the JVM. Spark lives on here, and is only said to be dead."""
    unblock(overflowing.lake.files, "gold.totals")
    for attempt in (1, 2):
        with monkeypatch.context() as patched:
            patched.setattr("sluice.engine.runner.is_alive", lambda spark: False)
            with pytest.raises(SparkEnded, match=r"It ended while gold\.totals was computed"):
                passed(overflowing)
        assert block(overflowing, "gold.totals").attempts == attempt
    # The next run does not try it.
    events = passed(overflowing)
    assert "It ended while gold.totals was computed" in (events["gold.totals"].blocked or "")
    assert block(overflowing, "gold.totals").attempts == 2
    assert overflowing.rows("gold.counts", "shop", "payments") == [("a", 3), ("b", 5), ("c", 3)]
    # Its inputs changed, so it is tried once more, and this time Spark lives.
    overflowing.publish("payments", payment("z", "c"))
    events = passed(overflowing)
    assert "ARITHMETIC_OVERFLOW" in (events["gold.totals"].blocked or "")
    assert overflowing.rows("gold.counts", "shop", "payments") == [("a", 3), ("b", 5), ("c", 4)]


def test_a_version_that_a_fact_was_joined_to_is_named_beside_the_fact(lakehouse: Lakehouse) -> None:
    rates = silver.history(
        "rates",
        source=bronze.topic("rates"),
        schema="shop string, since timestamp, rate bigint",
        keys=["shop"],
        sequence_by="since",
    )
    rated = silver.as_of("rated", facts=payments, event_time="paid_at", dimensions={"rate": rates})
    due = gold.aggregate(
        "due", source=rated, group_by=["shop"], measures={"due": "sum(CAST(amount AS bigint) * rate.rate)"}
    )
    lakehouse.declare(payments, rates, rated, due)
    lakehouse.publish("rates", *[{"shop": shop, "since": text(-1), "rate": 1} for shop in "ab"])
    lakehouse.publish("payments", *[payment(f"p{n}", "ab"[n % 2], "2") for n in range(8)])
    lakehouse.run()

    lakehouse.publish("rates", {"shop": "a", "since": text(1), "rate": 2**62})
    lakehouse.publish("payments", payment("late", "a", "2", hour=2))
    passed(lakehouse)
    found = block(lakehouse, "gold.due")
    assert found.records == (position_of(lakehouse, "late"),)
    assert found.or_of == ("silver.rates",)
    assert "or what they were joined to of silver.rates" in str(found)


def test_a_record_of_which_a_condition_cannot_be_evaluated_is_set_aside(lakehouse: Lakehouse) -> None:
    things = silver.history(
        "things",
        source=bronze.topic("things"),
        schema="id string, at timestamp, parts int",
        keys=["id"],
        sequence_by="at",
        apply_as_deletes="10 / parts > 9",
        future_tolerance="1000 days",
    )
    lakehouse.declare(things)
    thing = {"id": "a", "at": text(1), "parts": 2}
    lakehouse.publish("things", thing, {**thing, "id": "b"}).run()
    lakehouse.publish("things", {**thing, "id": "bad", "parts": 0}, {**thing, "id": "c"})
    passed(lakehouse)
    (record,) = block(lakehouse, "silver.things_changes").records
    reader = consumer(lakehouse.catalogue, "silver.things")
    quarantine.add(lakehouse.lake, lakehouse.log, reader, [record], because="it has no parts")
    lakehouse.run()
    assert lakehouse.rows("silver.things", "id") == [("a",), ("b",), ("c",)]
    assert [fate[:2] for fate in lakehouse.fates()] == [("quarantined", "by_command")]
    # The next command has all records of that key looked up again, and the one that is held is among them.
    position = position_of(lakehouse, "c", "silver.things_changes")
    quarantine.add(lakehouse.lake, lakehouse.log, reader, [position], because="nor this")
    lakehouse.run()
    assert lakehouse.rows("silver.things", "id") == [("a",), ("b",)]
    assert all(event.rows.total == 0 for event in lakehouse.run(rebuild=True).values())
    assert all(each.balanced for each in lakehouse.audits())


def test_a_time_of_an_envelope_that_is_none_stops_nothing(lakehouse: Lakehouse) -> None:
    rows = silver.history("rows", source=bronze.topic("rows"), schema="id int, v int", keys=["id"], format="debezium")
    lakehouse.declare(rows)

    def change(number: int, at: int) -> dict[str, object]:
        return {"op": "c", "after": {"id": number, "v": 1}, "source": {"ts_ms": at, "lsn": number}}

    none = [2**63 - 1, -(2**63), 253_402_300_800_000]
    times = [1_767_225_600_000, *none, 1_767_225_600_000]
    lakehouse.publish("rows", *[change(number, time) for number, time in enumerate(times)]).run()
    assert lakehouse.rows("silver.rows", "id") == [(0,), (4,)]
    assert [fate[:2] for fate in lakehouse.fates()] == [("quarantined", "invalid_committed_at")] * len(none)


def test_the_first_year_stops_nothing_however_it_arrives(lakehouse: Lakehouse) -> None:
    events = silver.events(
        "events",
        source=bronze.topic("events"),
        schema="id string, at timestamp",
        keys=["id"],
        event_time="at",
        event_time_min=None,
    )
    lakehouse.declare(events)
    for row in ({"id": "a", "at": "0001-01-01T00:00:00Z"}, {"id": "b", "at": text(1)}):
        lakehouse.publish("events", row).run()
    assert lakehouse.rows("silver.events", "id") == [("a",), ("b",)]


def test_a_command_that_lands_before_its_record_counts_when_that_lands(lakehouse: Lakehouse) -> None:
    held = silver.events(
        "held",
        source=bronze.topic("held"),
        schema="id string, at timestamp, v int",
        keys=["id"],
        event_time="at",
        hold_later_than="2 hours",
        future_tolerance="1000 days",
    )
    figures = gold.aggregate("figures", source=held, group_by=["id"], measures={"n": "count(*)", "v": "sum(v)"})
    lakehouse.declare(held, figures)
    for name, hour, arrives, value in (("a", 10, 10, 1), ("b", 10, 10, 1), ("a", 1, 11, 5), ("b", 10, 12, 7)):
        row = {"id": name, "at": text(hour), "v": value}
        lakehouse.publish("held", row, key="k", hours=arrives)
    lakehouse.run()
    late = quarantine.quarantined_records(lakehouse.lake, held, reason="late")
    quarantine.release(lakehouse.log, held, late, because="it counts")
    position = position_of(lakehouse, "b", "silver.held")
    quarantine.add(lakehouse.lake, lakehouse.log, held, [position], because="no")
    lakehouse.run()
    names = ("silver.held", "gold.figures")
    expected = [lakehouse.rows(name, "id", "v") for name in names], lakehouse.fates()
    again = Lakehouse(lakehouse.spark, lakehouse.folder / "again")
    again.log, again.catalogue = lakehouse.log, lakehouse.catalogue
    list(again.runner(batch_records_max=1).until_caught_up())
    assert ([again.rows(name, "id", "v") for name in names], again.fates()) == expected
    assert all(each.balanced for each in again.audits())
    assert all(each.balanced for each in again.laws())


others = [payment(f"other {number}") for number in range(20)]


@pytest.fixture(scope="module")
def half_held(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, str]:
    """A lakehouse whose run ended between the commits of a hold, and the position of the record that is held."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("half-held")).declare(payments)
    lakehouse.publish("payments", payment("a", "one"), payment("a", "two"), payment("b", "one"), *others, key="k").run()
    first = position_of(lakehouse, "a")
    quarantine.add(lakehouse.lake, lakehouse.log, payments, [first], because="no")
    with disk_full_at("silver.payments"):
        assert "No space left" in (passed(lakehouse)["silver.payments"].blocked or "")
    return lakehouse, first


@pytest.mark.parametrize("is_released", [False, True])
def test_a_run_that_ends_between_the_commits_of_a_hold_loses_nothing(
    half_held: tuple[Lakehouse, str], tmp_path: Path, *, is_released: bool
) -> None:
    lakehouse, first = half_held[0].copied_to(tmp_path), half_held[1]
    if is_released:
        held = quarantine.quarantined_records(lakehouse.lake, payments, positions=[first])
        quarantine.release(lakehouse.log, payments, held, because="it was right")
    lakehouse.run()
    expected = [("a", "one" if is_released else "two"), ("b", "one"), *[(each["id"], "a") for each in others]]
    assert lakehouse.rows("silver.payments", "id", "shop") == sorted(expected)
    assert lakehouse.audit()["silver.payments"].balanced
    assert all(event.rows.total == 0 for event in lakehouse.run(rebuild=True).values())


def test_a_declaration_that_came_to_half_of_its_end_and_is_restored_leaves_no_fate(lakehouse: Lakehouse) -> None:
    by_shop = silver.events(
        "payments", source=bronze.topic("payments"), schema="id string, shop string", keys=["id", "shop"]
    )
    lakehouse.declare(payments)
    lakehouse.publish("payments", payment("a", "one"), payment("a", "two"), payment("b", "one"), key="k").run()
    # A command about another dataset moves the cursor, and no row.
    quarantine.say(lakehouse.log, totals, [("payments", 0, 0, None)], because="no", do="hold")
    assert lakehouse.run()["silver.payments"].rows.total == 0
    expected = lakehouse.rows("silver.payments"), lakehouse.fates()
    lakehouse.declare(by_shop)
    with disk_full_at("silver.payments"):
        assert "No space left" in (passed(lakehouse)["silver.payments"].blocked or "")
    assert lakehouse.fates() != expected[1]
    lakehouse.declare(payments)
    with pytest.raises(SluiceError, match="a run ended in the middle of its commit"):
        lakehouse.runner().recompute_range(lakehouse.catalogue.datasets, BackfillRange(since=at(0), until=at(1)))
    assert lakehouse.run()["silver.payments"].cause == "unfinished"
    assert (lakehouse.rows("silver.payments"), lakehouse.fates()) == expected
    assert lakehouse.audit()["silver.payments"].balanced
    assert lakehouse.run() == {}


def test_a_duplicate_takes_the_place_of_a_record_that_is_set_aside_and_gives_it_back(lakehouse: Lakehouse) -> None:
    lakehouse.declare(payments, counts)
    lakehouse.publish("payments", payment("a", "one"), payment("a", "two"), payment("a", "three"), key="k")
    lakehouse.run()
    first = position_of(lakehouse, "a")

    def wins(offset: int, shop: str) -> bool:
        """Whether a run leaves the row of this record, and of which shop that is."""
        lakehouse.run()
        assert lakehouse.audit()["silver.payments"].balanced
        assert lakehouse.rows("gold.counts", "shop", "payments") == [(shop, 1)]
        return lakehouse.rows("silver.payments", "_offset", "shop") == [(offset, shop)]

    def fates() -> dict[int, str]:
        """Why each other record is no row, by its offset."""
        return dict(lakehouse.rows("silver._fates", "offset", "reason"))

    quarantine.add(lakehouse.lake, lakehouse.log, payments, [first], because="wrong shop")
    assert wins(1, "two")
    assert fates() == {0: "by_command", 2: "other_payload"}
    lakehouse.publish("payments", payment("a", "four"), key="k")
    assert wins(1, "two")
    assert fates() == {0: "by_command", 2: "other_payload", 3: "other_payload"}
    quarantine.add(lakehouse.lake, lakehouse.log, payments, [position_of(lakehouse, "a")], because="wrong too")
    assert wins(2, "three")
    assert fates() == {0: "by_command", 1: "by_command", 3: "other_payload"}
    assert lakehouse.changed_by_rebuild() == {}
    quarantined = quarantine.quarantined_records(lakehouse.lake, payments, reason="by_command", positions=[first])
    quarantine.release(lakehouse.log, payments, quarantined, because="it was right")
    assert wins(0, "one")
    assert fates() == {1: "by_command", 2: "other_payload", 3: "other_payload"}
    assert lakehouse.changed_by_rebuild() == {}


def test_only_what_has_landed_can_be_set_aside(overflowing: Lakehouse) -> None:
    with pytest.raises(UsageError, match=r"nothing has landed at payments/7/7, sales/0/0"):
        quarantine.add(overflowing.lake, overflowing.log, payments, ["payments/7/7", "sales/0/0"], because="no")
