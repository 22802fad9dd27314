"""The tables of the project that `sluice init` writes, as they are compared."""

from sluice.delta import Lake
from sluice.look import query

tables = {
    "bronze.orders": '"partition", "offset", value',
    "silver.orders": "order_id, placed_at, quantity, _partition, _offset",
    "silver._fates": 'dataset, topic, "partition", "offset", fate, reason, detail',
    "silver.products": "product_id, price_euro, valid_from, valid_to, is_current",
    "silver.priced_orders": "order_id, product.price_euro",
    "gold.revenue_daily": "product, window_start, orders, revenue_euro",
}


def content(lake: Lake) -> dict[str, list[str]]:
    """The rows of all tables, in an order of their own."""
    return {
        table: sorted(map(repr, query(lake, f"SELECT {columns} FROM {table}").rows))
        for table, columns in tables.items()
    }
