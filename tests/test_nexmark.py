"""NEXMark in SQL alone: the tables follow late rows, and are what another engine says of the same records."""

import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from sluice.engine import touched
from sluice.engine.catalogue import load
from tests.kit import Lakehouse, day_one

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

project = Path(__file__).parent / "nexmark"
# Processing time: which bids are in a window depends on when it is computed.
not_a_function_of_the_records = {"q12"}
Event = dict[str, Any]


def test_every_query_that_is_a_function_of_the_records_is_declared() -> None:
    declared = {dataset.name.removeprefix("gold.") for dataset in load(project).datasets}
    queries = {f"q{number}" for number in range(23)}
    assert queries - declared == not_a_function_of_the_records


def generated(chance: random.Random) -> Iterator[tuple[str, Event]]:
    """A few auctions with bids and people, by topic."""

    def time(seconds: float) -> str:
        return (day_one + timedelta(hours=7, seconds=seconds)).isoformat()

    for number in range(30):
        yield (
            "people",
            {
                "id": number,
                "name": f"person {number}",
                "email_address": f"{number}@example.org",
                "city": chance.choice(["Portland", "Boise", "Kent"]),
                "state": chance.choice(["or", "id", "wa"]),
                "date_time": time(chance.randrange(0, 60)),
            },
        )
    for number in range(40):
        opened = chance.randrange(0, 60)
        yield (
            "auctions",
            {
                "id": 100 + number,
                "item_name": f"item {number}",
                "description": "old",
                "initial_bid": 1,
                "reserve": chance.randrange(100),
                "date_time": time(opened),
                "expires": time(opened + chance.randrange(1, 60)),
                "seller": chance.randrange(12),
                "category": chance.choice([10, 11, 12]),
            },
        )
    for number in range(400):
        yield (
            "bids",
            {
                "bid_id": number,
                "auction": 100 + min(chance.randrange(45), chance.randrange(45)),
                "bidder": chance.randrange(30),
                "price": chance.choice([10, 5_000, 20_000, 1_200_000, 2_000_000, 60_000_000]),
                "channel": chance.choice(["Apple", "Google", "channel-1", "channel-2"]),
                "url": chance.choice(["https://x.org/a/b/c/item.htm?query=1", "https://x.org/d/e/f?q=1&channel_id=77"]),
                "date_time": time(chance.randrange(0, 120)),
                "extra": chance.choice(["abc", "cc", "none"]),
            },
        )
    for number in range(20):
        yield "side_input", {"key": 100 + number, "value": f"value {number}"}


# What DuckDB says, in its own SQL and close to NEXMark's, of columns that both have.
day = "strftime(date_time, '%Y-%m-%d')"
bids_in_time = "bids b JOIN auctions a ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires"
ranks = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
counts = ", ".join(f"count(*) FILTER ({condition}) AS {name}_bids" for name, condition in ranks.items())
distinct = ", ".join(
    f"count(DISTINCT {of}) FILTER ({condition}) AS {name}_{of}s"
    for of in ("bidder", "auction")
    for name, condition in ranks.items()
)
winning = f"""(SELECT b.*, a.seller, a.category FROM {bids_in_time}
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bid_id) = 1)"""
tumbling = "time_bucket(INTERVAL 10 SECONDS, date_time)"
oracle = {
    "q0": "SELECT bid_id, auction, bidder, price, date_time, extra FROM bids",
    "q1": "SELECT bid_id, 0.908 * price AS price FROM bids",
    "q2": "SELECT bid_id, auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN people p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')""",
    "q4": f"""SELECT category, round(avg(final), 3) AS average FROM
        (SELECT max(b.price) AS final, a.category FROM {bids_in_time} GROUP BY a.id, a.category) GROUP BY category""",
    "q5": """WITH counted AS (
            SELECT auction, w AS window_start, count(*) AS bids FROM bids,
                unnest([time_bucket(INTERVAL 2 SECONDS, date_time) - i * INTERVAL 2 SECONDS for i in range(5)]) u(w)
            GROUP BY ALL)
        SELECT window_start, auction, bids FROM counted
        QUALIFY bids = max(bids) OVER (PARTITION BY window_start)""",
    "q6": f"""SELECT auction, seller, round(avg(price) OVER (PARTITION BY seller ORDER BY date_time, auction
        ROWS BETWEEN 10 PRECEDING AND CURRENT ROW), 3) AS average FROM {winning}""",
    "q7": f"""SELECT bid_id, price FROM bids QUALIFY price = max(price) OVER (PARTITION BY {tumbling})""",
    "q8": f"""SELECT DISTINCT p.id, p.name, p.w AS window_start FROM (SELECT *, {tumbling} AS w FROM people) p
        JOIN (SELECT *, {tumbling} AS w FROM auctions) a ON p.id = a.seller AND p.w = a.w""",
    "q9": f"SELECT bid_id, auction, bidder, price, seller FROM {winning}",
    "q10": f"SELECT bid_id, {day} AS day, strftime(date_time, '%H:%M') AS minute FROM bids",
    "q11": """WITH begun AS (SELECT *, coalesce(date_time > INTERVAL 10 SECONDS
                + lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time, bid_id), false) AS begins FROM bids),
            numbered AS (SELECT *, count_if(begins) OVER (PARTITION BY bidder ORDER BY date_time, bid_id) n FROM begun)
        SELECT bidder, min(date_time) AS window_start, max(date_time) + INTERVAL 10 SECONDS AS window_end,
            count(*) AS bids FROM numbered GROUP BY bidder, n""",
    "q13": "SELECT b.bid_id, s.value FROM bids b JOIN side_input s ON b.auction % 10000 = s.key",
    "q14": """SELECT bid_id, 'otherTime' AS bid_time_type, len(regexp_extract_all(extra, 'c')) AS c_counts FROM bids
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {day} AS day, count(*) AS total_bids, {counts}, {distinct} FROM bids GROUP BY 1",
    "q16": f"""SELECT channel, {day} AS day, max(strftime(date_time, '%H:%M')) AS minute, count(*) AS total_bids,
        {counts}, {distinct} FROM bids GROUP BY 1, 2""",
    "q17": f"""SELECT auction, {day} AS day, count(*) AS total_bids, {counts}, min(price) AS min_price,
        max(price) AS max_price, sum(price) AS sum_price FROM bids GROUP BY 1, 2""",
    "q18": """SELECT bid_id, auction, bidder FROM bids
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, bid_id) = 1""",
    "q19": """SELECT bid_id, auction,
            row_number() OVER (PARTITION BY auction ORDER BY price DESC, bid_id) AS rank_number
        FROM bids QUALIFY rank_number <= 10""",
    "q20": """SELECT b.bid_id, b.auction, a.item_name, a.category FROM bids b JOIN auctions a ON b.auction = a.id
        WHERE a.category = 10""",
    "q21": """SELECT bid_id, coalesce(map {'apple': '0', 'google': '1', 'facebook': '2', 'baidu': '3'}[lower(channel)],
            regexp_extract(url, '[&?]channel_id=([^&]*)', 1)) AS channel_id FROM bids
        WHERE lower(channel) IN ('apple', 'google', 'facebook', 'baidu') OR url LIKE '%&channel_id=%'""",
    "q22": """SELECT bid_id, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bids""",
}


@pytest.fixture(scope="module")
def lakehouse(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """The project after two runs, the second with half of the records, of which many are late."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("nexmark"))
    lakehouse.catalogue = load(project)
    events = list(generated(random.Random(3)))
    random.Random(4).shuffle(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(touched, "rebuild_share", 1e9)
        for half in (events[::2], events[1::2]):
            for topic in ("people", "auctions", "bids", "side_input"):
                lakehouse.publish(topic, *[event for name, event in half if name == topic])
            done = lakehouse.run()
    assert {done[dataset.name].cause for dataset in lakehouse.catalogue.datasets} == {"changes"}
    return lakehouse


@pytest.fixture(scope="module")
def answered(lakehouse: Lakehouse) -> duckdb.DuckDBPyConnection:
    """The tables, in another engine."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for dataset in lakehouse.catalogue.datasets:
        frame = lakehouse.table(dataset.name).toArrow()  # noqa: F841
        connection.execute(f"CREATE TABLE {dataset.name.replace('silver.', '').replace('gold.', '')} AS FROM frame")
    return connection


def test_the_answers_are_those_of_another_engine(answered: duckdb.DuckDBPyConnection) -> None:
    wrong = {}
    for query, sql in oracle.items():
        expected = answered.sql(sql)
        said = ", ".join(f"round({name}, 3)" if name == "average" else name for name in expected.columns)
        ours = sorted(answered.sql(f"SELECT {said} FROM {query}").fetchall(), key=repr)
        theirs = sorted(expected.fetchall(), key=repr)
        assert theirs, query
        if ours != theirs:
            wrong[query] = (len(ours), len(theirs), ours[:3], theirs[:3])
    assert wrong == {}
    assert set(oracle) == {f"q{number}" for number in range(23)} - not_a_function_of_the_records


def test_nothing_differs_when_all_is_computed_anew(lakehouse: Lakehouse) -> None:
    again = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in again.items() if event.rows.total} == {}
