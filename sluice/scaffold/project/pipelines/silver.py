"""Silver: each order once, with the product as of the time the order was placed."""

from pipelines import bronze
from sluice import silver

orders = silver.events(
    "orders",
    source=bronze.orders,
    schema="order_id string, placed_at timestamp, product_id string, quantity int",
    keys=["order_id"],
    event_time="placed_at",
    meaning="Each order once.",
)

products = silver.history(
    "products",
    source=bronze.products,
    schema="product_id string, changed_at timestamp, name string, price_euro decimal(10,2)",
    keys=["product_id"],
    sequence_by="changed_at",
    meaning="Every version of a product, and when it was valid.",
)

priced_orders = silver.as_of(
    "priced_orders",
    facts=orders,
    event_time="placed_at",
    dimensions={"product": products},
    meaning="Each order with its product as of the time the order was placed.",
)
