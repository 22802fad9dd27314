"""The flights as they are published: the real year, and what the log does to it, as documented."""

from collections import Counter
from pathlib import Path

import orjson
import pandas as pd
import pytest

from infra.sources import nycflights
from sluice.log import Log


@pytest.fixture(scope="module")
def month() -> nycflights.Arrivals:
    return nycflights.arrivals(months=1)


def test_the_year_is_whole() -> None:
    kinds: Counter[str] = Counter()
    delays: list[int] = []
    for part in nycflights.flights(months=12):
        kinds.update(part.frame["type"])
        if "departure_delay_minutes" in part.frame:
            delays += part.frame["departure_delay_minutes"].tolist()
    assert kinds == {"scheduled": 336_776, "departed": 328_521, "arrived": 328_063, "cancelled": 8_255}
    assert sum(delays) / len(delays) == pytest.approx(12.639, abs=0.001)
    assert len(nycflights.weather(12).frame) == 26_115
    assert len(nycflights.aircraft().frame) == 3_322


def test_scheduled_times_agree_with_local_time_in_every_row() -> None:
    flights = nycflights.published_year().flights
    local = pd.to_datetime(flights["time_hour"]).dt.tz_convert("America/New_York")
    assert (local.dt.hour == flights["sched_dep_time"] // 100).all()
    assert (local.dt.month == flights["month"]).all()


def test_shares_are_those_documented(month: nycflights.Arrivals) -> None:
    kinds = Counter(kind.partition(":")[0] for kind in month.kinds)
    assert kinds["redelivered"] / kinds["original"] == pytest.approx(nycflights.redelivered_share, rel=0.1)
    assert kinds["corrupt"] / kinds["original"] == pytest.approx(nycflights.corrupt_share, rel=0.5)
    assert {kind for kind in month.kinds if kind.startswith("corrupt")} == {
        f"corrupt:{kind}" for kind in nycflights.corruptions
    }


def test_arrival_is_out_of_the_order_in_which_things_happened(month: nycflights.Arrivals) -> None:
    occurred = [
        orjson.loads(value)["occurred_at"]
        for topic, value, kind in zip(month.topics, month.values, month.kinds, strict=True)
        if topic == "flights" and kind == "original"
    ]
    assert occurred != sorted(occurred)
    assert month.arrived_at == sorted(month.arrived_at)


def test_no_record_is_lost_to_corruption(month: nycflights.Arrivals) -> None:
    originals = Counter(
        key
        for topic, key, kind in zip(month.topics, month.keys, month.kinds, strict=True)
        if kind == "original" and topic == "flights"
    )
    corrupt = {
        key
        for topic, key, kind in zip(month.topics, month.keys, month.kinds, strict=True)
        if kind.startswith("corrupt") and topic == "flights"
    }
    assert corrupt <= set(originals)


def test_the_same_seed_gives_the_same_bytes(month: nycflights.Arrivals) -> None:
    assert nycflights.arrivals(months=1).values == month.values
    assert nycflights.arrivals(months=1, seed=14).values != month.values


def test_what_is_published_is_what_is_counted(tmp_path: Path, month: nycflights.Arrivals) -> None:
    log = Log(tmp_path)
    counts = nycflights.publish(log, months=1)
    for topic, published in counts.items():
        assert sum(log.end_offset(topic, partition) for partition in log.partitions(topic)) == published.records
        assert published.records == published.originals + published.redelivered + published.corrupt
    assert sum(published.records for published in counts.values()) == len(month)
