"""The peers that Sluice is compared with give the right rows, and the report says what the figures say."""

import importlib
import random
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pytest
from deltalake import DeltaTable

from benchmarks.peers import report, shared, steady
from sluice.log import Log, Record

begin = datetime(2025, 1, 1, tzinfo=UTC)
Values = dict[str, Any]


def sale(number: int, customer: str, hour: float) -> Values:
    return {"id": f"s{number}", "customer": customer, "sold_at": at(hour), "amount": number % 700 + 0.07}


def version(customer: str, hour: float, segment: str) -> Values:
    return {"customer": customer, "changed_at": at(hour), "segment": segment}


def at(hour: float) -> str:
    return (begin + timedelta(hours=hour)).isoformat()


chance = random.Random(7)
names = [f"c{number}" for number in range(12)]
known = [sale(number, chance.choice(names), chance.uniform(0, 240)) for number in range(200)]
first = [version(name, -1, "a") for name in names]
later = [version(chance.choice(names), chance.uniform(0, 240), chance.choice("ab")) for _ in range(30)]
# Each step is a run: the sales and the versions that have come since the last one.
steps: dict[str, tuple[list[Values], list[Values]]] = {
    "full load": (known + known[:20], first + later),
    "new facts": ([sale(1000 + number, "c1", 239 - number) for number in range(20)], []),
    # The first lies between two versions of one segment, and the second makes the next one change nothing.
    "late versions": ([], [version("c1", 0.5, "b"), version("c2", 0.25, "b"), version("c2", 0.5, "b")]),
    "a version like the one before it": ([], [version("c3", -0.5, "a")]),
    "a version that lets the next one go": ([], [version(later[0]["customer"], -0.5, later[0]["segment"])]),
    "duplicates": (known[50:80], later[:5]),
    "nothing": ([], []),
    "all at once": ([*known[:3], sale(2000, "c4", 7)], [version("c4", 6.5, "c"), version("c5", 100, "c"), later[7]]),
}


def oracle(sales: Iterable[Values], versions: Iterable[Values]) -> dict[str, list[tuple[Any, ...]]]:
    """The four tables, row by row."""
    facts = {each["id"]: each for each in sales}
    history: list[list[Any]] = []
    for each in sorted(versions, key=lambda each: (each["customer"], datetime.fromisoformat(each["changed_at"]))):
        customer, segment, since = each["customer"], each["segment"], datetime.fromisoformat(each["changed_at"])
        if history and history[-1][0] == customer:
            if history[-1][1] == segment:
                continue
            history[-1][3] = since
        history.append([customer, segment, since, None])
    found: dict[str, list[tuple[Any, ...]]] = {"sales": [], "customers": [tuple(each) for each in history], "sold": []}
    groups: dict[tuple[Any, ...], list[Decimal]] = {}
    for fact in facts.values():
        when, amount = datetime.fromisoformat(fact["sold_at"]), Decimal(str(fact["amount"]))
        [(segment, since)] = [
            (segment, since)
            for customer, segment, since, until in history
            if customer == fact["customer"] and since <= when and (until is None or when < until)
        ]
        row = (fact["id"], fact["customer"], when, amount)
        found["sales"].append(row)
        found["sold"].append((*row, {"segment": segment, "valid_from": since}))
        groups.setdefault((segment, when.date()), []).append(amount)
    found["revenue"] = [(*key, len(amounts), sum(amounts)) for key, amounts in groups.items()]
    return {name: in_order(rows) for name, rows in found.items()}


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def rows_of(lake: Path) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for table in shared.tables:
        rows = pyarrow.table(DeltaTable(lake / table).scan())
        found[table.rpartition("/")[2]] = in_order(
            tuple(utc(value) for value in row.values()) for row in rows.to_pylist()
        )
    return found


def utc(value: Any) -> Any:
    """A time with the zone of the oracle's times, within a struct too."""
    if isinstance(value, dict):
        return {name: utc(each) for name, each in value.items()}
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def append(log: Log, topic: str, values: Sequence[Values]) -> None:
    log.append(topic, [Record(orjson.dumps(each), timestamp=begin) for each in values])


@pytest.mark.parametrize("peer", ["duckdb_from_nothing", "duckdb_incremental", "polars_from_nothing"])
def test_a_peer_has_the_rows_of_the_oracle_after_each_change(tmp_path: Path, peer: str) -> None:
    log, lake = Log(tmp_path / "log", partitions=2), tmp_path / "lake"
    sales: list[Values] = []
    versions: list[Values] = []
    with importlib.import_module(f"benchmarks.peers.{peer}").driver(log.root, lake) as refresh:
        for step, (more_sales, more_versions) in steps.items():
            sales += more_sales
            versions += more_versions
            append(log, "sales", more_sales)
            append(log, "customers", more_versions)
            before = shared.versions(lake) if sales != more_sales else {}
            refresh()
            assert rows_of(lake) == oracle(sales, versions), step
            if peer == "duckdb_incremental" and step in ("duplicates", "nothing"):
                assert shared.versions(lake) == before


def test_rows_that_differ_are_counted_by_table(tmp_path: Path) -> None:
    lakes = [tmp_path / name / "lake" for name in ("ours", "theirs")]
    for lake, lacking in zip(lakes, (0, 1), strict=True):
        log = Log(lake.parent / "log", partitions=2)
        append(log, "sales", known[lacking:])
        append(log, "customers", first)
        with importlib.import_module("benchmarks.peers.duckdb_from_nothing").driver(log.root, lake) as refresh:
            refresh()
    ours, theirs = lakes
    both = shared.versions(ours), shared.versions(theirs)
    wrong = shared.rows_wrong(ours, both[0], theirs, both[1])
    # A sale that is missing, and a group that has one row here and another one there.
    assert wrong == {"silver/sales": 1, "silver/customers": 0, "silver/sold": 1, "gold/revenue": 2}
    assert not any(shared.rows_wrong(ours, both[0], ours, both[0]).values())


def test_known_sales_are_records_of_the_log(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    append(log, "sales", known)
    topic, duplicates = shared.known_sales(random.Random(1), log)
    assert topic == "sales"
    assert len(duplicates) == 100
    assert {each.value for each in duplicates} <= {orjson.dumps(each) for each in known}


def test_a_fact_of_a_flow_is_in_gold_with_the_first_refresh_that_began_after_it() -> None:
    # Ten facts a second, of which the first five warm up.
    appended = [steady.Appended(0, 5, 100.5), steady.Appended(5, 10, 101.1), steady.Appended(10, 20, 102.0)]
    refreshed = [steady.Refreshed(began, ended, cpu) for began, ended, cpu in
                 [(100.4, 101.0, 3.0), (101.0, 101.6, 4.0), (101.6, 103.0, 6.0), (103.0, 170.0, 9.0)]]  # fmt: skip
    found = steady.measured(100.0, appended, refreshed, rate=10)
    # Facts 5 to 9 were due from 100.5 on; those after them come with a refresh that takes too long.
    assert found.latencies.round(3).tolist() == [2.5, 2.4, 2.3, 2.2, 2.1]
    assert (found.lacking, found.refreshes) == (10, 3)
    assert found.cpu_seconds_per_1000 == pytest.approx((9.0 - 3.0) / 15 * 1000)


def figures_of(**cpu_seconds: dict[str, float]) -> dict[str, Any]:
    """Figures of one base as they are written; a peer called `wrong` has rows that are."""
    return {
        "measured_at": "2026-11-26T05:00:00+00:00",
        "machine": {"cores": 2, "load_before": 0.5, "python": "3.11", "packages": {"duckdb": "2"}},
        "names": {peer: f"the {peer}" for peer in cpu_seconds},
        "rounds": 2,
        "bases": [
            {"facts": 5_000, "runs": {peer: runs_of(cpu, 7 * (peer == "wrong")) for peer, cpu in cpu_seconds.items()}}
        ],
    }


def runs_of(cpu_seconds: dict[str, float], wrong: int) -> list[dict[str, Any]]:
    """Two rounds of each workload, of which the first costs a hundred times as much."""
    return [
        {
            "workload": workload,
            "round": number,
            "cpu_seconds": seconds * factor,
            "wall_seconds": 1.0,
            "megabytes_read": None,
            "rows_wrong": {"silver/sold": wrong},
        }
        for number, factor in ((1, 100), (2, 1))
        for workload, seconds in cpu_seconds.items()
    ]


def test_the_report_says_by_what_factor_sluice_loses_and_wins_to_peers_whose_rows_are_right() -> None:
    figures = figures_of(
        ours={"load <all>": 8.0, "change": 1.0, "nothing": 1.0},
        quick={"load <all>": 2.0, "change": 30.0, "nothing": 1.02},
        slow={"load <all>": 24.0, "change": 40.0, "nothing": 5.0},
        wrong={"load <all>": 0.1, "change": 0.1, "nothing": 0.1},
    )
    page = report.page(figures)
    said = re.sub(r"<[^>]+>", "", page)
    assert "CPU, 5,000 facts: Sluice loses to the best peer in 1 of 3 workloads" in said
    assert "load &lt;all&gt;: Sluice loses by 4.0 times: it takes 8.0 CPU s, and the quick 2.0." in said
    assert "It beats the slow by 3.0 times." in said
    assert "change: Sluice wins by 30 times: it takes 1.0 CPU s, and the quick 30." in said
    assert "nothing: Sluice takes 1.0 CPU s, and the quick 1.0: about the same." in said
    assert "the wrong, 5,000 facts, change: 7 rows wrong" in said
    assert "What a base" not in said
    # A dot for each peer and workload in both plots that have figures, those of wrong rows hollow.
    assert (page.count("<circle"), page.count("fill='none'")) == (24, 6)
    assert "http" not in page
    assert "<script" not in page


def test_the_report_says_what_a_larger_base_costs_more() -> None:
    figures = figures_of(ours={"change": 2.0}, quick={"change": 1.0})
    figures["bases"] += [
        {"facts": 50_000, "runs": {"ours": runs_of({"change": 3.0}, 0), "quick": runs_of({"change": 9.0}, 0)}}
    ]
    page = report.page(figures)
    assert "What a base 10 times as large costs more" in page
    assert "<td>change</td><td>1.5 times</td><td>9.0 times</td>" in page
    assert page.count("<polyline") == 2
