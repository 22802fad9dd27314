"""A lakehouse of every shape, and random records for it: many small cases side by side in one log."""

import json
import random
from dataclasses import dataclass
from typing import Any

from sluice import bronze, gold, silver
from sluice.log import Record
from sluice.windows import window
from tests.kit import Lakehouse, at, rows_of, text
from tests.oracles import orders as oracle
from tests.oracles.orders import Order, Price

orders_topic = bronze.topic("orders")
prices_topic = bronze.topic("prices")
orders = silver.events(
    "orders",
    source=orders_topic,
    schema="order_id string, product string, placed_at timestamp, amount int",
    keys=["order_id"],
    event_time="placed_at",
    future_tolerance="1000 days",
)
prices = silver.history(
    "prices",
    source=prices_topic,
    schema="product string, changed_at timestamp, colour string",
    keys=["product"],
    sequence_by="changed_at",
    future_tolerance="1000 days",
)
priced = silver.as_of("priced", facts=orders, event_time="placed_at", dimensions={"price": prices})
colour_hours = gold.aggregate(
    "colour_hours",
    source=priced,
    group_by=["price.colour AS colour", window("placed_at", "1 hour")],
    measures={"orders": "count(*)", "amount": "sum(amount)"},
)

cases = 60
Entry = Order | Price | bytes


@dataclass(frozen=True)
class World:
    """Batches of records as they arrive."""

    batches: list[list[Entry]]

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for batch in self.batches for record in batch if isinstance(record, kind)]

    def expected(self) -> dict[str, set[tuple[Any, ...]]]:
        facts, changes = self.of(Order), self.of(Price)
        return {
            "silver.prices": oracle.history(changes),
            "silver.priced": oracle.priced(facts, changes),
            "gold.colour_hours": oracle.colour_hours(facts, changes),
        }


def world(seed: int, batches: int = 3) -> World:
    """Random facts, changes, redeliveries, conflicts and broken records, in random order, split at random."""
    chance = random.Random(seed)
    records: list[Entry] = []
    for case in range(cases):
        products = [f"{case}-x", f"{case}-y"]
        for _ in range(chance.randint(0, 6)):
            amount = chance.choice([1, 2, None])
            place = chance.choice([*products, f"{case}-unpriced"])
            records.append(Order(f"{case}-{chance.randint(1, 4)}", place, chance.randint(0, 12) / 2, amount))
        records += [
            Price(chance.choice(products), chance.randint(0, 12) / 2, chance.choice(["red", "blue", None]))
            for _ in range(chance.randint(0, 6))
        ]
    records += chance.choices(records, k=len(records) // 5)
    records += [b"{", b"\xff", b"[]"] * 3
    chance.shuffle(records)
    ends = sorted(chance.choices(range(len(records)), k=batches - 1))
    return World([records[start:end] for start, end in zip([0, *ends], [*ends, len(records)], strict=True)])


def publish(lakehouse: Lakehouse, batch: list[Entry], arrived: int) -> int:
    """Appends a batch in its order; each record arrives a little after the one before, whatever its partition."""
    waiting: dict[str, list[Record]] = {"orders": [], "prices": []}
    for number, entry in enumerate(batch, start=arrived + 1):
        topic, value = encoded(entry)
        waiting[topic].append(Record(value, key=str(number), timestamp=at(number / 3600)))
    for topic, records in waiting.items():
        lakehouse.log.append(topic, records)
    return arrived + len(batch)


def encoded(entry: Entry) -> tuple[str, bytes]:
    """The topic and the value of an entry; broken ones go among the orders."""
    if isinstance(entry, bytes):
        return "orders", entry
    if isinstance(entry, Price):
        change = {"product": entry.product, "changed_at": text(entry.hour), "colour": entry.colour}
        return "prices", json.dumps(change).encode()
    order = {
        "order_id": entry.order_id,
        "product": entry.product,
        "placed_at": text(entry.hour),
        "amount": entry.amount,
    }
    return "orders", json.dumps(order).encode()


def found(lakehouse: Lakehouse) -> dict[str, set[tuple[Any, ...]]]:
    """What the tables hold, in the oracle's form."""
    colour = lakehouse.table("silver.priced").selectExpr(
        "order_id", "product", "placed_at", "amount", "price.colour", "price.valid_from"
    )
    lists = {
        "silver.prices": lakehouse.rows("silver.prices", "product", "colour", "valid_from", "valid_to", "is_current"),
        "silver.priced": rows_of(colour),
        "gold.colour_hours": lakehouse.rows("gold.colour_hours", "colour", "window_start", "orders", "amount"),
    }
    sets = {name: set(rows) for name, rows in lists.items()}
    assert {name: len(rows) for name, rows in lists.items()} == {name: len(rows) for name, rows in sets.items()}
    return sets
