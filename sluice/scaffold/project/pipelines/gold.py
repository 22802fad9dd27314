"""Gold: what people read."""

from pipelines.silver import priced_orders
from sluice import gold
from sluice.windows import window

revenue_daily = gold.aggregate(
    "revenue_daily",
    source=priced_orders,
    group_by=["product.name AS product", window("placed_at", "1 day")],
    measures={
        "orders": "count(*)",
        "quantity": "sum(quantity)",
        "revenue_euro": "sum(quantity * product.price_euro)",
    },
    meaning="Orders and revenue by product and day (UTC).",
)
