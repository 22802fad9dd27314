"""Law 5 on large tables: a small change reads and writes as much on a base as on one a hundred times as large.

A year of sales with random keys, each with the version of its customer, and the revenue by segment and day. Bytes are
those that the process of the tests and its JVM ask the system for, from memory or disk. The sales of a base are not
landed: they are written to their table with the entry of its last commit, as that would be most of the work.
Making two million of them takes some minutes: `make bench-small`.
"""

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sluice import bronze, gold, silver
from sluice.model.ledger import RowCounts
from sluice.runtime import session as sessions
from sluice.storage import key_filters
from tests.kit import Lakehouse, day_one, statements, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

small = 20_000
large = int(os.environ.get("SLUICE_TEST_FACTS", "0"))
# Of any change on the large base.
megabytes_read_max = 25
facts_of_customer = 100
hours_of_year = 365 * 24
pytestmark = pytest.mark.skipif(not large, reason="takes minutes; make bench-small runs it")
sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id string, customer string, sold_at timestamp, amount decimal(12,2)",
    keys=["id"],
    event_time="sold_at",
    future_tolerance="100000 days",
)
customers = silver.history(
    "customers",
    source=bronze.topic("customers"),
    schema="customer string, changed_at timestamp, segment string",
    keys=["customer"],
    sequence_by="changed_at",
    future_tolerance="100000 days",
)
sold = silver.as_of("sold", facts=sales, event_time="sold_at", dimensions={"buyer": customers})
revenue = gold.aggregate(
    "revenue",
    source=sold,
    group_by=["buyer.segment AS segment", "to_date(sold_at) AS day"],
    measures={"sales": "count(*)", "amount": "sum(amount)", "amounts": "count(amount)", "mean": "avg(amount)"},
)


@dataclass
class Base:
    """A lakehouse with many sales, and what further ones are drawn with."""

    lakehouse: Lakehouse
    facts: int
    chance: random.Random
    first_costs: dict[str, "Cost"] = field(default_factory=dict)

    def sale(self, hour: float) -> dict[str, object]:
        customer = self.chance.randrange(self.facts // facts_of_customer)
        return {
            "id": f"{self.chance.randrange(10**16):016}",
            "customer": f"c{customer}",
            "sold_at": text(hour),
            "amount": self.chance.randrange(100_000) / 100,
        }

    def version(self, customer: int, hour: float) -> dict[str, object]:
        return {"customer": f"c{customer}", "changed_at": text(hour), "segment": f"s{self.chance.randrange(8)}"}


@dataclass(frozen=True)
class Cost:
    """What a run did: bytes asked for, statements of Spark, and per table the commits, and the rows they changed."""

    megabytes_read: float
    statements: int
    commits: Mapping[str, int]
    rows_changed: Mapping[str, int]


@pytest.fixture(scope="module")
def bases(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> dict[int, Base]:
    """A small base and a large one, on which each change was made once: the first late version makes an index."""
    # Of so many rows generated code pays for itself.
    compiled = {name: value for name, value in sessions.spark_settings.items() if "codegen" not in name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "spark_settings", compiled)
        made = {facts: base(spark, tmp_path_factory.mktemp(str(facts)), facts) for facts in (small, large)}
    for each in made.values():
        each.first_costs |= {name: cost_of(each, name) for name in changes}
    return made


def base(spark: "SparkSession", folder: Path, facts: int) -> Base:
    """A base on which everything has run, with two versions of each customer: the first is older than all facts."""
    made = Base(Lakehouse(spark, folder).declare(revenue), facts, random.Random(facts))
    of_customers = [
        made.version(customer, hour)
        for customer in range(facts // facts_of_customer)
        for hour in (-1, made.chance.uniform(0, hours_of_year))
    ]
    made.lakehouse.publish("customers", *of_customers).publish("sales", made.sale(0)).run()
    write_sales(made)
    made.lakehouse.run()
    return made


def write_sales(base: Base) -> None:
    """Fills the table of sales with those of the year, in the order of their time, as a first build does."""
    lake, output = base.lakehouse.lake, sales.outputs[-1]
    table = base.lakehouse.table(output.table)
    micros = hours_of_year * 3_600_000_000 // base.facts
    values = {
        "id": "lpad(CAST(pmod(xxhash64(id), 10000000000000000) AS string), 16, '0')",
        "customer": f"concat('c', pmod(xxhash64(id, 1), {base.facts // facts_of_customer}))",
        "sold_at": f"timestamp_micros({int(day_one.timestamp()) * 1_000_000} + id * {micros})",
        "amount": "pmod(xxhash64(id, 2), 100000) / 100",
        "_topic": "'sales'",
        "_partition": "0",
        "_offset": "1000 + id",
        "_digest": "unhex(sha2(CAST(id AS string), 256))",
    }
    rows = base.lakehouse.spark.range(base.facts).selectExpr(
        *[f"CAST({values.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in table.dtypes]
    )
    known = lake.last_commit(output.table)
    assert known is not None
    entry = known.entry.model_copy(update={"rows": RowCounts(inserted=base.facts)})
    lake.replace_rows(
        rows,
        output.table,
        entry,
        lake.fence(output.table, sales.name),
        cluster_by=output.cluster_by,
        find_by=output.find_by,
    )


Change = Callable[[Base], tuple[str, list[dict[str, Any]]]]
changes: dict[str, Change] = {
    "one new fact": lambda base: ("sales", [base.sale(hours_of_year + 1)]),
    "ten facts scattered over the year": lambda base: (
        "sales",
        [base.sale(base.chance.uniform(0, hours_of_year)) for _ in range(10)],
    ),
    "a thousand facts scattered over the year": lambda base: (
        "sales",
        [base.sale(base.chance.uniform(0, hours_of_year)) for _ in range(1_000)],
    ),
    "three late versions": lambda base: (
        "customers",
        [
            base.version(customer, base.chance.uniform(0, hours_of_year))
            for customer in base.chance.sample(range(base.facts // facts_of_customer), 3)
        ],
    ),
}


def cost_of(base: Base, change: str) -> Cost:
    """Runs a change through all tables."""
    lakehouse, spark = base.lakehouse, base.lakehouse.spark
    topic, values = changes[change](base)
    lakehouse.publish(topic, *values)
    versions, known, bytes_read = lakehouse.versions(), max(statements(spark, after=-1)), asked(spark)
    done = lakehouse.run()
    read = asked(spark) - bytes_read
    return Cost(
        megabytes_read=read / 1e6,
        statements=len(statements(spark, after=known)),
        commits={name: now - versions[name] for name, now in lakehouse.versions().items() if now != versions[name]},
        rows_changed={name: event.rows.total for name, event in done.items()},
    )


def asked(spark: "SparkSession") -> int:
    """The bytes that the process and its JVM have asked the system for."""
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    texts = [Path(f"/proc/{process}/io").read_text() for process in ("self", jvm)]
    return sum(int(each.split("rchar: ")[1].split()[0]) for each in texts)


@pytest.mark.parametrize("change", changes)
def test_a_change_costs_as_much_on_a_large_base_as_on_a_small_one(bases: dict[int, Base], change: str) -> None:
    """The less of two: a Bloom filter is wrong of one of a thousand keys now and then, and its file is searched."""
    on_small = cost_of(bases[small], change)
    on_large = min((cost_of(bases[large], change) for _ in range(2)), key=lambda cost: cost.megabytes_read)
    assert on_large.commits == on_small.commits
    assert on_large.statements <= on_small.statements + 8
    assert on_large.megabytes_read <= min(megabytes_read_max, grown(on_small))


def grown(on_small: Cost) -> float:
    """The megabytes that a change may read on a base a hundred times as large: files have more pages and filters."""
    return 2 * on_small.megabytes_read + 4


def test_ten_scattered_facts_would_read_the_filters_of_all_files(
    bases: dict[int, Base], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above: a reader of Parquet alone decides what is read."""
    monkeypatch.setattr(key_filters, "may_have", lambda files, *_: pa.array([True] * files.num_rows, pa.bool_()))
    change = "ten facts scattered over the year"
    assert cost_of(bases[large], change).megabytes_read > grown(cost_of(bases[small], change))


def test_the_first_late_version_reads_the_base_to_make_an_index(bases: dict[int, Base]) -> None:
    """So the measure notices when a base is read."""
    assert bases[large].first_costs["three late versions"].megabytes_read > 3 * megabytes_read_max
