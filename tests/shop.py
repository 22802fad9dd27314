"""A small shop that several tests use: sales, prices, and each sale with the price of its time."""

from sluice import bronze, silver

sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id string, product string, sold_at timestamp, pieces int",
    keys=["id"],
    event_time="sold_at",
    future_tolerance="1000 days",
)
prices = silver.history(
    "prices",
    source=bronze.topic("prices"),
    schema="product string, changed_at timestamp, price int",
    keys=["product"],
    sequence_by="changed_at",
    future_tolerance="1000 days",
)
priced = silver.as_of("priced", facts=sales, event_time="sold_at", dimensions={"price": prices})
