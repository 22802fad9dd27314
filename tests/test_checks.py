"""Checks: what keeps a table from its readers, what is reported afterwards, and where that is kept."""

import itertools
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sluice import bronze, gold, silver
from sluice.api import Checked
from sluice.cli.check import print_checked
from sluice.engine import gate as gates
from sluice.engine.backfill import BackfillRange
from sluice.engine.catalogue import expecting, ordered
from sluice.errors import DeclarationError, SluiceError
from sluice.model.expectations import Expectation, built_in, built_in_type, expect, suite
from sluice.operate import checks, replay, report
from sluice.operate.audit import stopped
from sluice.operate.query import query
from sluice.operate.status import refusals, status
from sluice.quality import results as kept
from sluice.quality.measure import measure
from sluice.quality.results import checks_table, is_critical, state_of
from sluice.storage.delta import Lake
from tests.damage import damage, double
from tests.forked import process_of
from tests.kit import Lakehouse, at, clock_off_by, text
from tests.shop import priced, sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sold = gold.aggregate("sold", source=priced, group_by=["product"], measures={"pieces": "sum(pieces)"})
doubled = gold.view(
    "doubled",
    inputs={"sold": sold},
    keys=["product"],
    shape=lambda sold: sold.selectExpr("product", "2 * pieces AS two"),
)
few = expect("column_values_to_be_between", column="pieces", max_value=10, severity="critical", name="few_pieces")
known = expect("column_values_to_be_in_set", column="product", value_set=["tea"], severity="warn", name="known")


def sale(number: int, count: int | None, product: str = "tea") -> dict[str, object]:
    return {"id": f"s{number}", "product": product, "sold_at": text(number), "pieces": count}


def declare(lakehouse: Lakehouse, **expected: Sequence[Expectation]) -> None:
    suites = {name.replace("_", ".", 1): suite(name.replace("_", ".", 1), *each) for name, each in expected.items()}
    # What no suite is for need not be computed.
    nodes = [sales] if set(suites) == {"silver.sales"} else [doubled, sold]
    lakehouse.catalogue = expecting(ordered(nodes), suites)


@pytest.fixture(scope="module")
def first_sale(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that has sold three pieces of tea, without a suite."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("first-sale"))
    declare(lakehouse)
    lakehouse.publish("sales", sale(1, 3)).run()
    return lakehouse


@pytest.fixture
def opened(first_sale: Lakehouse, tmp_path: Path) -> Lakehouse:
    return first_sale.copied_to(tmp_path)


@pytest.fixture(scope="module")
def first_checked(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The same, with a suite from the beginning."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("first-checked"))
    declare(lakehouse, gold_sold=[few, known])
    lakehouse.publish("sales", sale(1, 3)).run()
    return lakehouse


@pytest.fixture
def guarded(first_checked: Lakehouse, tmp_path: Path) -> Lakehouse:
    return first_checked.copied_to(tmp_path)


def check(lakehouse: Lakehouse, *names: str) -> dict[str, list[dict[str, Any]]]:
    wanted = [each for each in lakehouse.catalogue.datasets if not names or each.name in names]
    return checks.check(lakehouse.spark, lakehouse.lake, lakehouse.catalogue, wanted)


def critical(rows: Sequence[dict[str, Any]]) -> set[str]:
    """The expectations whose failure makes the table unfit to be read."""
    return {row["expectation"] for row in rows if is_critical(row)}


def results(lakehouse: Lakehouse, *columns: str) -> list[tuple[Any, ...]]:
    """The kept results in the order in which they were found."""
    rows = query(
        lakehouse.lake, f"SELECT {', '.join(columns)} FROM {checks_table} ORDER BY checked_at, expectation"
    ).rows
    return [tuple(row) for row in rows]


def test_rows_that_break_what_is_critical_never_reach_their_readers(guarded: Lakehouse) -> None:
    before = guarded.versions()

    guarded.publish("sales", sale(2, 9), sale(3, 1, "milk"))
    done = guarded.run()
    assert done["gold.sold"].refused == ("few_pieces",)
    # Readers, and what is made of it, see the last good version; what is upstream goes on.
    after = guarded.versions()
    assert {name for name in before if after[name] != before[name]} == {
        "bronze.sales",
        "silver.sales",
        "silver.priced",
    }
    assert (guarded.rows("gold.sold"), guarded.rows("gold.doubled")) == ([("tea", 3)], [("tea", 6)])
    assert results(guarded, "version", "expectation", "verdict", "unexpected_rows", "rows") == [
        (0, "few_pieces", "passed", 0, 1),
        (0, "known", "passed", 0, 1),
        (None, "few_pieces", "failed", 1, 2),
        (None, "known", "failed", 1, 2),
    ]

    held = {each.dataset: each.held for each in status(guarded.lake, guarded.log, guarded.catalogue)}
    assert {name: why for name, why in held.items() if why} == {"gold.sold": "refused: few_pieces"}

    # It lets through what is right again, whatever was refused before.
    guarded.publish("sales", sale(4, -5))
    assert guarded.run()["gold.sold"].rows.updated == 1
    assert guarded.rows("gold.sold") == [("milk", 1), ("tea", 7)]
    assert not any(each.held for each in status(guarded.lake, guarded.log, guarded.catalogue))
    assert results(guarded, "version", "expectation", "verdict")[-2:] == [
        (guarded.versions()["gold.sold"], "few_pieces", "passed"),
        (guarded.versions()["gold.sold"], "known", "failed"),
    ]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_refusal_is_said_until_rows_are_let_through_whatever_the_clock_says(
    guarded: Lakehouse, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr(kept, "datetime", clock_off_by(hours))
        guarded.publish("sales", sale(2, 9)).run()
    assert list(refusals(guarded.lake)) == ["gold.sold"]
    guarded.publish("sales", sale(4, -5)).run()
    assert refusals(guarded.lake) == {}


def test_a_refusal_is_still_said_when_the_version_before_it_was_checked(
    guarded: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    guarded.publish("sales", sale(2, 9)).run()
    found = check(guarded, "gold.sold")
    assert critical(found["gold.sold"]) == set()
    refused = refusals(guarded.lake)
    assert list(refused) == ["gold.sold"]
    assert critical(refused["gold.sold"]) == {"few_pieces"}
    held = {each.dataset: each.held for each in status(guarded.lake, guarded.log, guarded.catalogue)}
    assert held["gold.sold"] == "refused: few_pieces"
    (open_since,) = stopped(guarded.lake, guarded.catalogue)
    assert (open_since.dataset, open_since.reason) == (
        "gold.sold",
        "refused: few_pieces. Of which rows: sluice check gold.sold",
    )
    checked = Checked(found, refused)
    assert checked.is_critical
    print_checked(checked, {"gold.sold"})
    said = capsys.readouterr().out
    assert re.search(r"gold\.sold +0 +\d+ +0 +good +yes", said)
    assert re.search(r"gold\.sold +refused +1 +1 +critical +yes", said)
    assert "product tea, pieces 12" in said
    # Upkeep repeats the entry of the newest version, which was there before.
    newest = guarded.lake.last_commit("gold.sold")
    assert newest is not None
    guarded.lake.move_cursor("gold.sold", newest.unchanged(newest.entry), newest.fence)
    assert list(refusals(guarded.lake)) == ["gold.sold"]
    # Rows that are right take the place of what was refused.
    guarded.publish("sales", sale(4, -5)).run()
    assert refusals(guarded.lake) == {}
    assert stopped(guarded.lake, guarded.catalogue) == []


def test_what_was_refused_is_not_computed_again_until_something_changes(lakehouse: Lakehouse) -> None:
    declare(lakehouse, gold_sold=[few])
    lakehouse.publish("sales", sale(1, 11))
    runner = lakehouse.runner()
    causes = [event.cause for _ in range(2) for event in runner.one_pass() if event.name == "gold.sold"]
    assert causes == ["first build", None]
    assert "gold.sold" not in lakehouse.versions()
    lakehouse.publish("sales", sale(2, -1))
    assert [event.rows.inserted for event in runner.one_pass() if event.name == "gold.sold"] == [1]


def test_a_first_build_is_refused_before_any_of_its_tables_is_written(lakehouse: Lakehouse) -> None:
    full = expect("table_row_count_to_be_between", min_value=2, severity="critical")
    declare(lakehouse, silver_sales=[full])
    lakehouse.publish("sales", sale(1, 1), b"no JSON")
    assert lakehouse.run()["silver.sales"].refused == ("table_row_count_to_be_between",)
    assert not any(name.startswith("silver.") for name in lakehouse.lake.tables())
    lakehouse.publish("sales", sale(2, 1))
    lakehouse.run()
    assert lakehouse.rows("silver._fates", "reason") == [("malformed_json",)]
    assert all(each.balanced for each in lakehouse.audits())


asked = [
    expect("table_row_count_to_be_between", min_value=1, severity="critical"),
    expect("column_sum_to_be_between", column="pieces", min_value=-99, severity="warn"),
    expect("column_values_to_be_unique", column="product", severity="warn"),
]


@pytest.fixture(scope="module")
def eight_sales(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse that has sold eight products."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("eight"))
    lakehouse.catalogue = expecting(ordered([sold]), {"gold.sold": suite("gold.sold", *asked)})
    lakehouse.publish("sales", *[sale(number, number, f"p{number}") for number in range(8)]).run()
    return lakehouse


def test_the_gate_sees_the_very_rows_that_are_committed(eight_sales: Lakehouse, tmp_path: Path) -> None:
    gate, after = figures_at_the_gate_and_after(eight_sales.copied_to(tmp_path))
    assert gate == after


def test_a_gate_that_sees_only_the_rows_that_changed_is_found_out(
    eight_sales: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "prospect", lambda plan: plan.rows)
    gate, after = figures_at_the_gate_and_after(eight_sales.copied_to(tmp_path))
    assert gate != after


def figures_at_the_gate_and_after(lakehouse: Lakehouse) -> tuple[list[Any], list[Any]]:
    """What the gate saw of rows that were inserted, updated and left alone, and what the committed version says."""
    lakehouse.publish("sales", sale(9, 5, "p1"), sale(10, 1, "p8"))
    lakehouse.run()
    gate = results(lakehouse, "expectation", "observed", "rows")[-3:]
    after = measure(lakehouse.table("gold.sold"), asked)
    return sorted(gate), sorted(
        (each.expectation.name, None if each.observed is None else str(each.observed), each.rows) for each in after
    )


things = silver.history(
    "things",
    source=bronze.topic("things"),
    schema="id string, at timestamp, x double, tags array<string>, part struct<name: string, size: double>",
    keys=["id"],
    sequence_by="at",
    future_tolerance="1000 days",
)
# Keys of which Python does not say as Spark does whether they are equal, or cannot say it.
odd_keys = {
    "nan": "if(x > 100, double('NaN'), x) AS key",
    "zero": "x * 0 AS key",
    "tags": "tags AS key",
    "part": "named_struct('name', part.name, 'size', if(x > 100, double('NaN'), x)) AS key",
}
by_odd_keys = [
    gold.aggregate(
        name, source=things, group_by=[key], measures={"n": "count(*)", "x": "max(x)"}, where="valid_to IS NULL"
    )
    for name, key in odd_keys.items()
]


def test_the_gate_sees_groups_of_any_key_as_they_are_committed(lakehouse: Lakehouse) -> None:
    rows = expect("table_row_count_to_be_between", min_value=0, severity="critical")
    total = expect("column_sum_to_be_between", column="n", min_value=-99, severity="warn")
    names = [each.name for each in by_odd_keys]
    lakehouse.catalogue = expecting(ordered(by_odd_keys), {name: suite(name, rows, total) for name in names})

    def thing(name: str, hour: float, x: float, tag: str) -> dict[str, object]:
        return {"id": name, "at": text(hour), "x": x, "tags": [tag], "part": {"name": tag, "size": x}}

    lakehouse.publish("things", thing("a", 1, 1000.0, "x"), thing("b", 1, 1.0, "y"), thing("c", 1, -1.0, "z"))
    lakehouse.run()
    # A group grows; then it has another key, and so do all of one group.
    for batch in ([thing("d", 2, 2000.0, "x")], [thing("b", 3, 5.0, "w"), thing("c", 3, -2.0, "z")]):
        lakehouse.publish("things", *batch)
        lakehouse.run()
        for name in names:
            kept = query(
                lakehouse.lake,
                f"SELECT observed FROM {checks_table} WHERE dataset = '{name}' "
                "ORDER BY checked_at DESC, expectation LIMIT 2",
            ).rows
            measured = sorted(measure(lakehouse.table(name), [rows, total]), key=lambda each: each.expectation.name)
            assert [tuple(row) for row in kept] == [(str(each.observed),) for each in measured], name


def test_a_group_without_an_equal_in_python_is_refused_when_it_vanishes(lakehouse: Lakehouse) -> None:
    two = expect("table_row_count_to_be_between", min_value=2, severity="critical")
    lakehouse.catalogue = expecting(ordered(by_odd_keys[:1]), {"gold.nan": suite("gold.nan", two)})
    for hour, x in ((1, 1000.0), (2, 1.0)):
        odd = {"id": "a", "at": text(hour), "x": x}
        lakehouse.publish("things", odd, {"id": "b", "at": text(1), "x": 1.0})
        done = lakehouse.run()
    assert done["gold.nan"].refused
    assert len(lakehouse.rows("gold.nan")) == 2


def test_a_promotion_is_no_way_around_the_gate(opened: Lakehouse) -> None:
    more = gold.aggregate("sold", source=priced, group_by=["product"], measures={"pieces": "10 * sum(pieces)"})
    opened.catalogue = expecting(ordered([more]), {"gold.sold": suite("gold.sold", few)})
    planned = replay.plan(opened.lake, opened.catalogue, [], None, "to see")
    list(replay.build(opened.spark, opened.lake, opened.catalogue, planned))
    with pytest.raises(SluiceError, match=r"gold\.sold would break few_pieces\. Nothing was changed"):
        replay.promote(opened.spark, opened.lake, opened.catalogue, planned.name)
    assert opened.rows("gold.sold") == [("tea", 3)]


def test_recomputing_a_part_of_events_is_no_way_around_the_gate(lakehouse: Lakehouse) -> None:
    declare(lakehouse, silver_sales=[few])
    lakehouse.publish("sales", sale(1, 3)).run()
    lakehouse.publish("sales", sale(2, 11), sale(30, 1))
    assert lakehouse.run()["silver.sales"].refused == ("few_pieces",)

    with pytest.raises(SluiceError, match=r"silver\.sales was refused: it would break few_pieces"):
        lakehouse.runner().recompute_range(lakehouse.catalogue.datasets, BackfillRange(since=at(0), until=at(24)))
    assert lakehouse.rows("silver.sales", "id") == [("s1",)]
    assert lakehouse.rows("silver._fates", "fate") == []

    # Without the gate the same part is written, so the test can tell.
    lakehouse.catalogue = expecting(lakehouse.catalogue, {})
    lakehouse.runner().recompute_range(lakehouse.catalogue.datasets, BackfillRange(since=at(0), until=at(24)))
    assert ("s2",) in lakehouse.rows("silver.sales", "id")


CheckedRows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def known_shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> tuple[Lakehouse, CheckedRows]:
    """A lakehouse with some that is odd, and nothing that is wrong, without a suite, and what its check found."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("known"))
    declare(lakehouse)
    for hours, price in ((0, 3), (5, 4)):
        lakehouse.publish("prices", {"product": "tea", "changed_at": text(hours), "price": price})
    lakehouse.publish("sales", sale(1, 3), sale(2, 1, "milk"), sale(3, 1) | {"colour": "red"}, b"no JSON")
    lakehouse.run()
    return lakehouse, check(lakehouse)


def test_what_the_engine_knows_is_checked_without_a_suite(known_shop: tuple[Lakehouse, CheckedRows]) -> None:
    found = known_shop[1]
    said = {
        (name, row["expectation"]): (row["verdict"], row["unexpected_rows"], row["rows"])
        for name, rows in found.items()
        for row in rows
    }
    assert said["silver.sales", "conservation"] == ("passed", 0, 4)
    assert said["silver.sales", "usable_records"] == ("failed", 1, 4)
    assert said["silver.sales", "known_fields"] == ("failed", 1, 3)
    assert said["silver.prices", "versions_that_overlap"] == ("passed", 0, 2)
    assert said["silver.priced", "price_matched"] == ("failed", 1, 3)
    assert said["silver.priced", "price_known"] == ("failed", 1, 3)
    assert state_of(found["silver.prices"]) == "good"
    assert found.keys() == {each.name for each in known_shop[0].catalogue.datasets}
    assert not any(critical(rows) for rows in found.values())


damages = {
    "versions_that_overlap": ("prices", "UPDATE SET valid_to = valid_to + INTERVAL '1 hour' WHERE price = 3"),
    "versions_with_a_wrong_is_current": ("prices", "UPDATE SET is_current = NOT is_current WHERE price = 4"),
    "keys_with_two_current_versions": ("prices", "UPDATE SET is_current = true, valid_to = NULL"),
    "gaps_without_a_change_that_ends_a_version": (
        "prices",
        "UPDATE SET valid_to = valid_to - INTERVAL '1 hour' WHERE price = 3",
    ),
    "conservation": ("sales", "DELETE WHERE id = 's1'"),
}


def test_damage_to_a_table_breaks_its_own_check_and_is_critical(
    known_shop: tuple[Lakehouse, CheckedRows], tmp_path: Path
) -> None:
    lakehouse = known_shop[0].copied_to(tmp_path)
    for law, (name, statement) in damages.items():
        table = f"silver.{name}"
        version = lakehouse.lake.newest_version(table)
        damage(lakehouse.lake, table, statement)
        adopt(lakehouse, table)
        assert law in critical(check(lakehouse, table)[table])
        DeltaTable(lakehouse.lake.path(table)).restore(version)
    double(lakehouse.lake, "silver.priced")
    adopt(lakehouse, "silver.priced")
    assert "rows_that_are_there_twice" in critical(check(lakehouse, "silver.priced")["silver.priced"])


def adopt(lakehouse: Lakehouse, table: str) -> None:
    """Makes the newest version of a table one that the ledger knows, also if another program wrote it."""
    commit = lakehouse.lake.last_commit(table)
    assert commit is not None
    lakehouse.lake.move_cursor(table, commit.entry, commit.fence)


def test_a_bound_of_ones_own_replaces_that_of_the_engine(lakehouse: Lakehouse) -> None:
    lakehouse.publish("sales", *[sale(number, 1) for number in range(9)], b"no JSON")
    for mostly, severity, state in (
        (0.9, "critical", "good"),
        (0.91, "critical", "critical"),
        (0.91, "warn", "warning"),
    ):
        bound = built_in("usable_records", mostly=mostly, severity=severity)  # type: ignore[arg-type]
        declare(lakehouse, silver_sales=[bound])
        lakehouse.run()
        assert state_of(check(lakehouse, "silver.sales")["silver.sales"]) == state


def test_freshness_is_asked_where_a_bound_is_given(opened: Lakehouse) -> None:
    for within, verdict in (("1 day", "failed"), ("5000 weeks", "passed")):
        declare(opened, silver_sales=[built_in("freshness", within=within, severity="warn")])
        found = {row["expectation"]: row for row in check(opened, "silver.sales")["silver.sales"]}
        assert found["freshness"]["verdict"] == verdict
        assert found["freshness"]["observed"].startswith("up to 2026-01-01 00:00:00 UTC")


def test_the_volume_of_an_hour_is_compared_with_what_is_usual_then(lakehouse: Lakehouse) -> None:
    """Six sales at ten o'clock each day; on the ninth, fewer than a third or more than three times as many."""
    lakehouse.catalogue = ordered([sales])

    def sell(day: int, times: int, hour: float = 10.5) -> None:
        numbers = range(sold_before[0], sold_before[0] + times)
        sold_before[0] += times
        records = [sale(number, 1) | {"sold_at": text(24 * day + hour)} for number in numbers]
        lakehouse.publish("sales", *records, key="one partition", hours=24 * day + hour)

    sold_before = [0]
    for day in range(8):
        sell(day, 6)
    sell(8, 1)
    sell(8, 1, hour=11.5)
    for more, count, verdict in ((0, 1, "failed"), (1, 2, "passed"), (16, 18, "passed"), (1, 19, "failed")):
        sell(8, more)
        lakehouse.run()
        found = {row["expectation"]: row for row in check(lakehouse)["silver.sales"]}["usual_volume"]
        assert found["verdict"] == verdict
        assert found["observed"] == f"{count} rows in the hour from 2026-01-09 10:00 UTC, usual are 6"


def test_hours_that_mostly_have_no_rows_are_compared_with_those_that_have_some(lakehouse: Lakehouse) -> None:
    """Of eight days two have four and two sales at ten o'clock: twelve are not unusual, and thirteen are."""
    lakehouse.catalogue = ordered([sales])
    numbers = itertools.count()

    def sell(day: int, times: int, hour: float = 10.5) -> None:
        records = [sale(next(numbers), 1) | {"sold_at": text(24 * day + hour)} for _ in range(times)]
        lakehouse.publish("sales", *records, key="one partition", hours=24 * day + hour)

    sell(0, 4)
    sell(4, 2)
    for more, verdict in ((1, "passed"), (11, "passed"), (1, "failed")):
        sell(8, more)
        sell(8, 1, hour=11.5)
        lakehouse.run()
        found = {row["expectation"]: row for row in check(lakehouse)["silver.sales"]}["usual_volume"]
        assert found["verdict"] == verdict
        assert found["observed"].endswith("usual are 0")


def test_a_check_looks_at_one_version_whatever_is_committed_meanwhile(opened: Lakehouse) -> None:
    declare(opened, gold_sold=[few])
    commit = opened.lake.last_commit("gold.sold")
    sales_commit = opened.lake.last_commit("silver.sales")
    assert commit
    assert sales_commit
    opened.publish("sales", sale(2, 1), b"no JSON")
    opened.run()
    by_name = {each.name: each for each in opened.catalogue.datasets}
    asked = suite("gold.sold", few)
    (then, *_) = checks.check_version(opened.spark, opened.lake, by_name["gold.sold"], commit, asked)
    assert (then["version"], then["rows"]) == (commit.version, 1)
    of_sales = checks.check_version(opened.spark, opened.lake, by_name["silver.sales"], sales_commit)
    assert {row["expectation"]: row["rows"] for row in of_sales}["conservation"] == 1


def test_a_check_that_raises_is_critical_and_says_why(opened: Lakehouse) -> None:
    # A column that the declaration does not have is refused there; those that begin with _ are not declared.
    lost = expect("column_values_to_not_be_null", column="_pieces", severity="warn", name="lost")
    declare(opened, gold_sold=[lost])
    found = check(opened, "gold.sold")["gold.sold"]
    assert state_of(found) == "critical"
    assert results(opened, "verdict", "message") == [
        ("error", "there is no column _pieces; did you mean pieces?"),
        # What is checked of every table.
        ("passed", None),
    ]


def test_counts_agree_between_the_audit_the_results_and_the_report(lakehouse: Lakehouse) -> None:
    small = expect("column_values_to_be_between", column="pieces", max_value=5, severity="quarantine", name="small")
    lakehouse.catalogue = expecting(ordered([sold]), {"silver.sales": suite("silver.sales", small)})
    lakehouse.publish(
        "sales", sale(1, 3), sale(2, 6), sale(3, 7), sale(1, 3), b"no JSON", sale(4, 1) | {"sold_at": "?"}
    )
    lakehouse.run()
    found = check(lakehouse, "silver.sales")
    kept = {
        name: (unexpected, rows)
        for name, unexpected, rows in results(lakehouse, "expectation", "unexpected_rows", "rows")
    }
    audited = lakehouse.audit()["silver.sales"]
    assert kept["usable_records"] == (audited.quarantined, audited.landed) == (4, 6)
    assert kept["small"] == (2, 6)
    index = Path(report.write(lakehouse.lake, lakehouse.catalogue, found))
    page = re.sub(r"\s+", " ", (index.parent / "silver.sales.html").read_text())
    for said in (
        "4 of 6",
        "2 of 6",
        "1 accepted, 1 duplicate, 4 quarantined",
        "small 2, invalid_time_sold_at 1, malformed_json 1",
    ):
        assert said in page
    assert "record sales/" in page
    overview = re.sub(r"\s+", " ", index.read_text())
    assert "usable_records" in overview
    assert "gold.sold no suite".replace(" ", "") in re.sub(r"<[^>]*>|\s", "", overview)
    for html in (page, overview):
        assert not re.search(r'(src|href)="(https?:)?//', html), "a report needs nothing from the network"


def test_a_bound_of_a_check_that_there_is_not_is_reported(lakehouse: Lakehouse) -> None:
    with pytest.raises(DeclarationError, match=r"silver\.sales has no built-in check price_matched; it has"):
        declare(lakehouse, silver_sales=[built_in("price_matched", severity="warn")])
    with pytest.raises(DeclarationError, match="freshness needs within"):
        declare(lakehouse, silver_sales=[built_in("freshness", severity="warn")])
    with pytest.raises(DeclarationError, match="conservation has no within"):
        declare(lakehouse, silver_sales=[built_in("conservation", severity="warn", within="1 day")])
    with pytest.raises(DeclarationError, match="is no duration"):
        declare(lakehouse, silver_sales=[built_in("freshness", severity="warn", within="soon")])


def add_results(root: str, process: int, times: int) -> None:
    for number in range(times):
        Lake(root).add(pa.table({"said": [f"{process} {number}"]}), checks_table)


@pytest.mark.process
def test_two_checks_at_once_lose_no_result(tmp_path: Path) -> None:
    """Four processes, none of which knows of the others, make the table and add to it."""
    processes = [process_of(add_results, (str(tmp_path), number, 10)) for number in range(4)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0] * 4
    found = query(Lake(str(tmp_path)), f"SELECT count(*), count(DISTINCT said) FROM {checks_table}").rows
    assert found == [(40, 40)]
    assert Lake(str(tmp_path)).compact_added(checks_table) == {"compacted": 40, "into": 1, "deleted": 0}
    assert query(Lake(str(tmp_path)), f"SELECT count(*) FROM {checks_table}").rows == [(40,)]


def test_examples_of_a_failure_are_kept_as_json(opened: Lakehouse) -> None:
    milk = expect("column_values_to_be_in_set", column="product", value_set=["milk"], severity="warn", name="milk")
    declare(opened, gold_sold=[milk])
    check(opened, "gold.sold")
    examples = dict(results(opened, "expectation", "examples"))
    assert json.loads(examples["milk"]) == [{"product": "tea"}]


hostile = "<script>alert(1)</script><img src=x onerror=alert(2)>$x ${y} \"'&lt;"


def result_row(**said: Any) -> dict[str, Any]:
    """A result as it is kept, of an expectation that is broken."""
    return {
        "dataset": "silver.sales",
        "version": 1,
        "checked_at": datetime(2026, 1, 1, tzinfo=UTC),
        "expectation": "known",
        "type": "column_values_to_be_in_set",
        "severity": "warn",
        "arguments": json.dumps({"column": "product", "value_set": ["tea"]}),
        "meaning": None,
        "verdict": "failed",
        "observed": None,
        "unexpected_rows": 1,
        "rows": 3,
        "message": None,
        "examples": None,
    } | said


@pytest.mark.parametrize(
    "row",
    [
        result_row(examples=json.dumps([{"id": hostile, hostile: 1}])),
        result_row(meaning=hostile),
        result_row(expectation=hostile),
        result_row(arguments=json.dumps({"column": "product", "value_set": [hostile]})),
        result_row(verdict="error", message=hostile),
        result_row(type=built_in_type, arguments="{}", meaning=hostile, observed=hostile),
        result_row(type="column_max_to_be_between", arguments='{"column": "pieces", "max_value": 3}', observed=hostile),
    ],
    ids=["examples", "meaning", "name", "arguments", "message", "built-in", "observed"],
)
def test_what_comes_from_data_is_text_in_the_report(row: dict[str, Any]) -> None:
    html = report.page([row])
    assert "<script" not in html
    assert "<img" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    # Once, not twice: people read it as it came.
    assert "&amp;lt;script" not in html
    assert "Content-Security-Policy" in html
