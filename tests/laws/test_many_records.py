"""Laws 1 and 5 on many records: what batches change that have more keys than are broadcast is what DuckDB makes of all.

A few hundred records are many here, as the limits are lowered. With the limits as they are it takes some minutes:
`make bench-small`.
"""

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from sluice import bronze, gold, silver
from sluice.log import Record
from sluice.model import scope, small_frames
from sluice.runtime import session as sessions
from sluice.runtime.settings import Settings
from tests.kit import Lakehouse, at
from tests.oracles.many_sales import rows_wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

few, many = 400, int(os.environ.get("SLUICE_TEST_FACTS", "0")) // 2
seed = int(os.environ.get("SLUICE_LAW_SEED", "1"))
hours_of_year = 365 * 24
bloom_filter = "spark.sql.optimizer.runtime.bloomFilter"
# Nothing is broadcast, and rows are looked up by a Bloom filter of the keys, which is small.
forced = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    f"{bloom_filter}.enabled": "true",
    f"{bloom_filter}.applicationSideScanSizeThreshold": "0",
    f"{bloom_filter}.expectedNumItems": "1000",
    f"{bloom_filter}.numBits": "8192",
}

sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id string, customer string, sold_at timestamp, amount decimal(12,2)",
    keys=["id"],
    event_time="sold_at",
)
customers = silver.history(
    "customers",
    source=bronze.topic("customers"),
    schema="customer string, changed_at timestamp, segment string, gone boolean",
    keys=["customer"],
    sequence_by="changed_at",
    apply_as_deletes="gone",
)
sold = silver.as_of("sold", facts=sales, event_time="sold_at", dimensions={"buyer": customers})
revenue = gold.aggregate(
    "revenue",
    source=sold,
    group_by=["buyer.segment AS segment", "to_date(sold_at) AS day"],
    measures={"sales": "count(*)", "amount": "sum(amount)", "least": "min(amount)", "most": "max(amount)"},
)
large = gold.view(
    "large",
    inputs={"sold": sold},
    shape="SELECT id, amount * 2 AS twice, buyer.segment AS segment FROM sold WHERE amount > 900",
)


@dataclass
class Shop:
    """Draws sales and customers of a year; later ones are later in the log, but for those that are `early`."""

    customers: int
    chance: random.Random
    known: list[int] = field(default_factory=list)
    drawn: int = 0

    def sales(self, number: int, *, again: float = 0.0, early: float = 0.0) -> list[Record]:
        """Sales, of which a share was sold before with other values; of these a share wins, as it is early."""
        before = len(self.known)
        return [self.sale(before if self.chance.random() < again else 0, early) for _ in range(number)]

    def sale(self, among: int, early: float) -> Record:
        """A sale, or one `among` the first, again."""
        number = self.known[self.chance.randrange(among)] if among else self.chance.randrange(10**15)
        if not among:
            self.known.append(number)
        values = {
            "id": f"é{number:x}" if number % 7 == 0 else f"{number:016}",
            "customer": None if self.chance.random() < 0.02 else self.customer(),
            "sold_at": at(self.chance.uniform(0, hours_of_year)).isoformat(),
            "amount": self.chance.randrange(100_000) / 100,
        }
        return self.record(values, is_early=bool(among) and self.chance.random() < early)

    def versions(self, number: int) -> list[Record]:
        """Changes of customers anywhere in the year, or before it; some are the end of one."""
        return [
            self.record(
                {
                    "customer": self.customer(),
                    "changed_at": at(self.chance.uniform(-500, hours_of_year)).isoformat(),
                    "segment": f"s{self.chance.randrange(6)}",
                    "gone": self.chance.random() < 0.08,
                }
            )
            for _ in range(number)
        ]

    def customer(self) -> str:
        return f"c{self.chance.randrange(self.customers)}"

    def record(self, values: Mapping[str, object], *, is_early: bool = False) -> Record:
        self.drawn += 1
        written = at(hours_of_year + 24) + timedelta(milliseconds=-self.drawn if is_early else self.drawn)
        return Record(orjson.dumps(values), timestamp=written)


Step = Callable[[Shop, int], dict[str, Iterable[Record]]]
steps: dict[str, Step] = {
    "most records": lambda shop, count: {"sales": shop.sales(count), "customers": shop.versions(count // 8)},
    "as many, of which some are known, and some of these win": lambda shop, count: {
        "sales": shop.sales(count, again=0.4, early=0.5),
        "customers": shop.versions(count // 8),
    },
}


def require_right(spark: "SparkSession", folder: Path, count: int) -> None:
    """AssertionError where a table is not what the records imply after one of the steps."""
    shop = Shop(count // 20, random.Random(seed))
    lakehouse = Lakehouse(spark, folder, partitions=3).declare(revenue, large)
    for what, step in steps.items():
        for topic, records in step(shop, count).items():
            lakehouse.log.append(topic, records)
        runner = lakehouse.runner()
        runner.until_caught_up()
        assert runner.blocks.errors == {}
        assert rows_wrong(folder / "log", lakehouse.lake) == {}, f"seed {seed}: {what}"
        assert all(each.balanced for each in lakehouse.audits()), f"seed {seed}: {what}"
        assert all(each.balanced for each in lakehouse.laws()), f"seed {seed}: {what}"


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits from which on records are many, so that a few hundred are."""
    monkeypatch.setattr(small_frames, "rows_max", 5)
    monkeypatch.setattr(scope, "broadcast_rows_max", 20)
    monkeypatch.setattr(sessions, "spark_settings", sessions.spark_settings | forced)
    monkeypatch.setattr(sessions, "settings_up_to_rows", {0: forced})
    monkeypatch.setattr(sessions, "sizes", type(sessions.sizes)())


@pytest.mark.usefixtures("lowered")
def test_batches_of_many_keys_give_what_duckdb_makes_of_the_whole_log(spark: "SparkSession", tmp_path: Path) -> None:
    require_right(spark, tmp_path, few)


@pytest.mark.spark
@pytest.mark.skipif(not many, reason="takes minutes; make bench-small runs it")
def test_so_it_is_with_the_limits_as_they_are(tmp_path: Path) -> None:
    """In a session of its own, which a user has, too."""
    with sessions.spark_session(Settings(java_options="")) as session:
        require_right(session, tmp_path, many)
