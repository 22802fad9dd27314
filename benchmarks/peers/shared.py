"""The events of the comparison, what of a log is unread, and the proof that the tables of two drivers are equal."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import duckdb
import orjson
from deltalake import DeltaTable

from benchmarks import proportion
from sluice.log import Log, Record

Refresh = Callable[[], None]
Driver = Callable[[Path, Path], AbstractContextManager[Refresh]]
Files = dict[str, list[str]]
Change = Callable[[random.Random, Log], tuple[str, list[Record]]]

topics = ("customers", "sales")
tables = ("silver/sales", "silver/customers", "silver/sold", "gold/revenue")
full_load = "full load"


def drawn(change: Callable[[random.Random], tuple[str, list[Record]]]) -> Change:
    """A change that is the same whatever the log has."""
    return lambda chance, log: change(chance)


def known_sales(chance: random.Random, log: Log) -> tuple[str, list[Record]]:
    """A thousand sales that the log has already, from one of its segments."""
    segment = chance.choice([each for each in log.segments("sales") if each.base_offset == 0])
    lines = segment.path.read_bytes().splitlines()
    known = [orjson.loads(line) for line in chance.sample(lines, min(1_000, len(lines)))]
    return "sales", [Record(each["value"].encode(), timestamp=proportion.begin) for each in known]


changes: dict[str, Change] = {
    **{name: drawn(change) for name, change in proportion.changes.items()},
    "1,000 duplicates of known facts": known_sales,
}


def segments(log: Path) -> Files:
    """The files of a log by topic, in the order of partitions and offsets."""
    return {topic: sorted(map(str, log.glob(f"{topic}/*/*.jsonl"))) for topic in topics}


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory whose days are those of UTC, and which draws no progress."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        yield connection


@contextmanager
def unread(log: Path, lake: Path) -> Iterator[Files]:
    """The files of a log that are not in the tables yet; they count as read when the block has ended well."""
    cursor = lake / "read.json"
    known = set(json.loads(cursor.read_text())) if cursor.exists() else set()
    found = segments(log)
    yield {topic: [name for name in files if name not in known] for topic, files in found.items()}
    cursor.parent.mkdir(parents=True, exist_ok=True)
    cursor.write_text(json.dumps([name for files in found.values() for name in files]))


def versions(lake: Path) -> dict[str, int]:
    """The version that each table has now; one can be read as long as nobody vacuums."""
    return {table: DeltaTable(lake / table).version() for table in tables}


def rows_wrong(
    ours: Path, our_versions: Mapping[str, int], theirs: Path, their_versions: Mapping[str, int]
) -> dict[str, int]:
    """How many rows are in one of the two and not in the other, by table, in the columns that a peer has."""
    found = {}
    for table in tables:
        with database() as connection:
            for side, lake, known in (("ours", ours, our_versions), ("theirs", theirs, their_versions)):
                rows = DeltaTable(lake / table, version=known[table]).scan()
                connection.register("stream", rows)
                connection.execute(f"CREATE TABLE {side} AS SELECT * FROM stream")
                connection.unregister("stream")
            columns = ", ".join(f'"{name}"' for name in connection.table("theirs").columns)
            found[table] = surplus(connection, columns, "ours", "theirs")
    return found


def surplus(connection: duckdb.DuckDBPyConnection, columns: str, one: str, other: str) -> int:
    """How many rows one of two tables or subqueries has and the other has not."""
    # One pass: a row that both have as often cancels out.
    [(count,)] = connection.execute(
        f"""SELECT coalesce(sum(abs(surplus)), 0)::BIGINT FROM (
            SELECT sum(sign) AS surplus FROM (
                SELECT {columns}, 1 AS sign FROM {one} UNION ALL SELECT {columns}, -1 FROM {other}
            ) GROUP BY {columns} HAVING surplus <> 0
        )"""
    ).fetchall()
    return int(count)
