"""What the tables of sales must hold, computed by DuckDB from the files of the log, whatever their number."""

from pathlib import Path

import duckdb

from benchmarks.peers.shared import surplus
from sluice.storage.delta import Lake

types = {
    "sales": {"id": "VARCHAR", "customer": "VARCHAR", "sold_at": "TIMESTAMPTZ", "amount": "DECIMAL(12, 2)"},
    "customers": {"customer": "VARCHAR", "changed_at": "TIMESTAMPTZ", "segment": "VARCHAR", "gone": "BOOLEAN"},
}
place = '"timestamp", "partition", "offset"'
# The columns of each table that are compared, and what is expected of them.
expected = {
    "silver.sales": ("id, customer, sold_at, amount", "SELECT id, customer, sold_at, amount FROM sales"),
    "silver.customers": (
        "customer, segment, valid_from, valid_to",
        "SELECT customer, segment, valid_from, valid_to FROM versions WHERE segment IS NOT NULL",
    ),
    "silver.sold": (
        "id, customer, sold_at, amount, buyer.segment AS segment",
        "SELECT id, customer, sold_at, amount, segment FROM sold",
    ),
    "gold.revenue": (
        "segment, day, sales, amount, least, most",
        """SELECT segment, CAST(sold_at AS DATE) AS day, count(*) AS sales,
            sum(amount) AS amount, min(amount) AS least, max(amount) AS most
        FROM sold GROUP BY ALL""",
    ),
    "gold.large": ("id, twice, segment", "SELECT id, amount * 2 AS twice, segment FROM sold WHERE amount > 900"),
}


def rows_wrong(log: Path, lake: Lake) -> dict[str, int]:
    """How many rows a table has too many or too few, by the table; those that are right are left out.

    The first record of a sale wins, and the last of a customer's change. A change to what was there opens no version.
    """
    with duckdb.connect() as found:
        found.execute("SET TimeZone = 'UTC'")
        found.execute(f"""
            CREATE TABLE sales AS SELECT * FROM ({records(log, "sales")})
            QUALIFY row_number() OVER (PARTITION BY id ORDER BY {place}) = 1
        """)
        found.execute(f"""
            CREATE TABLE changes AS SELECT customer, changed_at, CASE WHEN NOT gone THEN segment END AS segment
            FROM ({records(log, "customers")})
            QUALIFY row_number() OVER (PARTITION BY customer, changed_at ORDER BY {place}) = count(*) OVER (
                PARTITION BY customer, changed_at
            )
        """)
        found.execute("""
            CREATE TABLE versions AS SELECT customer, segment, changed_at AS valid_from,
                lead(changed_at) OVER (PARTITION BY customer ORDER BY changed_at) AS valid_to
            FROM (
                SELECT * FROM changes
                QUALIFY segment IS DISTINCT FROM lag(segment) OVER (PARTITION BY customer ORDER BY changed_at)
            )
        """)
        found.execute("""
            CREATE TABLE sold AS SELECT sales.*, versions.segment FROM sales ASOF LEFT JOIN versions
            ON sales.customer = versions.customer AND sales.sold_at >= versions.valid_from
        """)
        wrong = {table: table_surplus(found, lake, table) for table in expected}
    return {table: count for table, count in wrong.items() if count}


def records(log: Path, topic: str) -> str:
    """The parsed records of a topic, with their place; the files are JSON, a record in each line."""
    shape = ", ".join(f'"{name}": "{kind}"' for name, kind in types[topic].items())
    return f"""
        SELECT unnest(from_json(value, '{{{shape}}}')), "timestamp", split_part(filename, '/', -2) AS "partition",
            "offset"
        FROM read_json('{log}/{topic}/*/*.jsonl', format = 'newline_delimited', filename = true,
            columns = {{'offset': 'BIGINT', 'value': 'VARCHAR', 'timestamp': 'TIMESTAMPTZ'}})
    """


def table_surplus(found: duckdb.DuckDBPyConnection, lake: Lake, table: str) -> int:
    """How many rows a table has too many or too few."""
    columns, sql = expected[table]
    found.register("table_of_arrow", lake.arrow(table))
    found.execute(f"CREATE TABLE own AS SELECT {columns} FROM table_of_arrow")
    found.unregister("table_of_arrow")
    count = surplus(found, ", ".join(found.table("own").columns), "own", f"({sql})")
    found.execute("DROP TABLE own")
    return count
