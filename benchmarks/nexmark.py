"""What late bids cost in NEXMark's queries, all of them at once: CPU-seconds, bytes read, and how many tables changed.

Run by `python -m benchmarks.nexmark`, or with `--events 100000`. Events are as NEXMark's generator makes them: of
fifty, one is a person, three are auctions and 46 are bids, half of them on a few auctions. Thirty bids, whose times lie
anywhere in the flow, come late, three times in a driver that stays. CPU is that of the driver and its JVM.
"""

import random
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from benchmarks.proportion import Meter
from sluice.cli.printing import print_table
from sluice.engine.catalogue import load
from sluice.engine.runner import Runner
from sluice.log import Log, Record
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

project = Path(__file__).parents[1] / "tests" / "nexmark"
begin, events_per_second = datetime(2026, 1, 1, 7, tzinfo=UTC), 100
late, rounds = 30, 3
# Of 50 events; a bid is on one of the latest auctions, every other on the one that is hot.
people, auctions, recent, hot = 1, 3, 100, 20


def main(events: Annotated[int, typer.Option(help="How many events there are before.")] = 100_000) -> None:
    chance = random.Random(events)  # noqa: S311 - drawn data, the same in each run
    with tempfile.TemporaryDirectory() as folder, spark_session(Settings()) as spark:
        log = Log(Path(folder, "log"))
        append(log, generated(chance, events))
        append(log, (("side_input", {"key": number, "value": f"value {number}"}) for number in range(1_000)))
        runner = Runner(spark, Lake(f"{folder}/lake"), log, load(project), batch_records_max=10_000_000)
        meter = Meter(spark)
        found = []
        for number in range(rounds + 1):
            if number:
                times = [chance.randrange(events) for _ in range(late)]
                append(log, (("bids", bid(chance, events + late * number + at, time)) for at, time in enumerate(times)))
            before = meter.read()
            done = list(runner.until_caught_up())
            wall, cpu, read, _, statements = meter.since(before)
            changed = [event for event in done if event.rows.total]
            what = f"{late} late bids, {number}" if number else "all of it from nothing"
            rows = sum(event.rows.total for event in changed)
            found.append([what, wall, cpu, read, statements, len(changed), rows])
    print_table(["change", "wall s", "CPU s", "MB read", "statements", "tables that changed", "rows"], found)


def append(log: Log, events: Iterator[tuple[str, dict[str, Any]]]) -> None:
    by_topic: dict[str, list[Record]] = {}
    for topic, values in events:
        by_topic.setdefault(topic, []).append(Record(orjson.dumps(values)))
    for topic, records in by_topic.items():
        log.append(topic, records)


def generated(chance: random.Random, events: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """People, auctions and bids by topic, in the order of their times."""
    for number in range(events):
        if number % 50 < people:
            yield "people", person(chance, number)
        elif number % 50 < people + auctions:
            yield "auctions", auction(chance, number)
        else:
            yield "bids", bid(chance, number, number)


def time_of(number: int, more_seconds: float = 0) -> str:
    return (begin + timedelta(seconds=number / events_per_second + more_seconds)).isoformat()


def person(chance: random.Random, number: int) -> dict[str, Any]:
    at = number // 50
    return {
        "id": at,
        "name": f"person {at}",
        "email_address": f"{at}@example.org",
        "city": chance.choice(["Portland", "Boise", "Kent", "Phoenix", "Seattle"]),
        "state": chance.choice(["or", "id", "wa", "az", "ca"]),
        "date_time": time_of(number),
    }


def auction(chance: random.Random, number: int) -> dict[str, Any]:
    return {
        "id": auctions_before(number),
        "item_name": f"item {number}",
        "description": "as new",
        "initial_bid": chance.randrange(1, 100),
        "reserve": chance.randrange(100, 1_000),
        "date_time": time_of(number),
        "expires": time_of(number, chance.randrange(1, 60)),
        "seller": chance.randrange(number // 50 + 1),
        "category": chance.choice([10, 11, 12, 13, 14]),
    }


def bid(chance: random.Random, number: int, time: int) -> dict[str, Any]:
    newest = auctions_before(time)
    recently = max(0, newest - recent)
    return {
        "bid_id": number,
        "auction": newest // hot * hot if chance.randrange(2) else chance.randrange(recently, newest + 1),
        "bidder": chance.randrange(time // 50 + 1),
        "price": round(10 ** (chance.random() * 6) * 100),
        "channel": chance.choice(["Apple", "Google", "Facebook", "Baidu", *(f"channel-{n}" for n in range(100))]),
        "url": f"https://www.nexmark.com/a/b/c/item.htm?query=1&channel_id={chance.randrange(10_000)}",
        "date_time": time_of(time),
        "extra": chance.choice(["abc", "cc", "none"]),
    }


def auctions_before(number: int) -> int:
    return number // 50 * auctions + min(max(number % 50 - people, 0), auctions)


if __name__ == "__main__":
    typer.run(main)
