"""DuckDB computes the four tables from the whole log each time, and delta-rs replaces them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deltalake import write_deltalake

from benchmarks.peers.shared import Refresh, database, segments, tables

shapes = {
    "sales": '{"id": "VARCHAR", "customer": "VARCHAR", "sold_at": "TIMESTAMPTZ", "amount": "DECIMAL(12, 2)"}',
    "customers": '{"customer": "VARCHAR", "changed_at": "TIMESTAMPTZ", "segment": "VARCHAR"}',
}


def records(topic: str, files: Sequence[str]) -> str:
    """The parsed records of segments, with their position; names sort as partitions and offsets do."""
    return f"""
        SELECT unnest(from_json(value, '{shapes[topic]}')), filename, "offset"
        FROM read_json({list(files)}, format = 'newline_delimited', filename = true,
            columns = {{'offset': 'BIGINT', 'value': 'VARCHAR'}})
    """


def first_of_each(sales: str) -> str:
    return f"""
        SELECT id, customer, sold_at, amount
        FROM ({sales}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY filename, "offset") = 1
    """


def end_to_end(changes: str) -> str:
    """The versions of each customer; a change to the same segment opens none."""
    return f"""
        SELECT customer, segment, changed_at AS valid_from,
            lead(changed_at) OVER (PARTITION BY customer ORDER BY changed_at) AS valid_to
        FROM (
            SELECT customer, segment, changed_at FROM ({changes})
            QUALIFY segment IS DISTINCT FROM lag(segment) OVER (PARTITION BY customer ORDER BY changed_at)
        )
    """


def as_of(sales: str, customers: str) -> str:
    return f"""
        SELECT sale.*, CASE WHEN version.customer IS NOT NULL
            THEN struct_pack(segment := version.segment, valid_from := version.valid_from) END AS buyer
        FROM ({sales}) AS sale ASOF LEFT JOIN ({customers}) AS version
            ON sale.customer = version.customer AND sale.sold_at >= version.valid_from
    """


def by_segment_and_day(sold: str) -> str:
    return f"""
        SELECT buyer.segment AS segment, CAST(sold_at AS DATE) AS day, count(*) AS sales,
            CAST(sum(amount) AS DECIMAL(22, 2)) AS amount
        FROM ({sold}) GROUP BY ALL
    """


@contextmanager
def driver(log: Path, lake: Path) -> Iterator[Refresh]:
    def refresh() -> None:
        files = segments(log)
        with database() as connection:
            shape = {
                "sales": first_of_each(records("sales", files["sales"])),
                "customers": end_to_end(records("customers", files["customers"])),
                "sold": as_of("FROM sales", "FROM customers"),
                "revenue": by_segment_and_day("FROM sold"),
            }
            for table in tables:
                name = table.rpartition("/")[2]
                connection.execute(f"CREATE TABLE {name} AS {shape[name]}")
                write_deltalake(lake / table, connection.table(name).to_arrow_table(), mode="overwrite")

    yield refresh
