"""What the tables of `benchmarks.proportion` cost a script that throws them away and computes them again.

Run by `python -m benchmarks.peers --facts 800000`. DuckDB parses the records of bronze, keeps each sale once, lays the
versions of each customer end to end, joins and sums; delta-rs writes the four tables. They must be equal to Sluice's
before any figure counts.
"""

import tempfile
import time
from pathlib import Path
from typing import Annotated

import duckdb
import typer
from deltalake import DeltaTable, write_deltalake

from benchmarks.proportion import built, log_of
from sluice.cli.printing import print_table
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings

parsed = """
    SELECT unnest(from_json(decode(value), '{shape}')), topic, "partition", "offset" FROM {topic}
"""
sales = """
    SELECT id, customer, CAST(sold_at AS TIMESTAMPTZ) AS sold_at, CAST(amount AS DECIMAL(12, 2)) AS amount
    FROM ({records}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY "partition", "offset") = 1
"""
# A record that changes nothing opens no version.
customers = """
    SELECT customer, segment, changed_at AS valid_from,
        lead(changed_at) OVER (PARTITION BY customer ORDER BY changed_at) AS valid_to
    FROM (
        SELECT customer, segment, CAST(changed_at AS TIMESTAMPTZ) AS changed_at FROM ({records})
        QUALIFY segment IS DISTINCT FROM lag(segment) OVER (PARTITION BY customer ORDER BY changed_at)
    )
"""
sold = """
    SELECT sale.*, CASE WHEN of.customer IS NOT NULL
        THEN struct_pack(segment := of.segment, valid_from := of.valid_from) END AS buyer
    FROM sales AS sale ASOF LEFT JOIN customers AS of
        ON sale.customer = of.customer AND sale.sold_at >= of.valid_from
"""
revenue = """
    SELECT buyer.segment AS segment, CAST(sold_at AS DATE) AS day, count(*) AS sales,
        CAST(sum(amount) AS DECIMAL(22, 2)) AS amount
    FROM sold GROUP BY ALL
"""
shapes = {
    "sales": '{"id": "VARCHAR", "customer": "VARCHAR", "sold_at": "VARCHAR", "amount": "VARCHAR"}',
    "customers": '{"customer": "VARCHAR", "changed_at": "VARCHAR", "segment": "VARCHAR"}',
}
tables = {"sales": "silver", "customers": "silver", "sold": "silver", "revenue": "gold"}


def compute(lake: Path, out: Path) -> None:
    """Reads bronze and writes the four tables."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for topic, shape in shapes.items():
            files = [name.removeprefix("file://") for name in DeltaTable(lake / "bronze" / topic).file_uris()]
            connection.read_parquet(files, hive_partitioning=False).create_view(f"bronze_{topic}")
            records = parsed.format(shape=shape, topic=f"bronze_{topic}")
            connection.execute(f"CREATE TABLE {topic} AS {globals()[topic].format(records=records)}")
        connection.execute(f"CREATE TABLE sold AS {sold}")
        connection.execute(f"CREATE TABLE revenue AS {revenue}")
        for name, layer in tables.items():
            write_deltalake(out / layer / name, connection.table(name).to_arrow_table())


def differences(lake: Path, out: Path) -> dict[str, int]:
    """How many rows are in one of the two and not in the other, by table, in the columns that the script has."""
    found = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, layer in tables.items():
            theirs = DeltaTable(out / layer / name).to_pyarrow_dataset()
            columns = ", ".join(f'"{each}"' for each in theirs.schema.names)
            connection.register("theirs", theirs)
            connection.register("ours", DeltaTable(lake / layer / name).to_pyarrow_dataset())
            either = [
                f"(SELECT {columns} FROM {a} EXCEPT ALL SELECT {columns} FROM {b})"
                for a, b in (("ours", "theirs"), ("theirs", "ours"))
            ]
            [(count,)] = connection.execute(f"SELECT count(*) FROM ({' UNION ALL '.join(either)})").fetchall()
            found[name] = count
    return found


def main(
    facts: Annotated[list[int] | None, typer.Option(help="The facts of a base; give it twice or more.")] = None,
) -> None:
    rows = []
    for count in facts or [80_000]:
        with tempfile.TemporaryDirectory() as folder, spark_session(Settings()) as spark:
            lake, out = Path(folder, "lake"), Path(folder, "out")
            _, ours = built(spark, log_of(count, Path(folder)), Path(folder))
            wall, cpu = time.monotonic(), time.process_time()
            compute(lake, out)
            wall, cpu = time.monotonic() - wall, time.process_time() - cpu
            if any(found := differences(lake, out).values()):
                raise SystemExit(f"The tables differ, so no time counts: {found}")
            rows += [[f"{count:,} facts, sluice run", ours.wall_seconds, ours.cpu_seconds]]
            rows += [[f"{count:,} facts, DuckDB and delta-rs", wall, cpu]]
    print_table(["all of it from nothing", "wall s", "CPU s"], rows)


if __name__ == "__main__":
    typer.run(main)
