"""A lakehouse of every shape, and random records for it: many small cases side by side in one log."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice import bronze, gold, silver
from sluice.log import Record
from sluice.operate import quarantine
from sluice.windows import window
from tests.kit import Lakehouse, at, rows_of, text
from tests.oracles import histories
from tests.oracles import orders as oracle
from tests.oracles.histories import Change
from tests.oracles.orders import Order, Payment

wide = "1000 days"
north, south = bronze.topic("prices_north"), bronze.topic("prices_south")
orders = silver.events(
    "orders",
    source=bronze.topic("orders"),
    schema=(
        "order_id string, product string, placed_at timestamp, amount int, sent_at timestamp, received_at timestamp"
    ),
    keys=["order_id"],
    event_time="placed_at",
    sent_time="sent_at",
    received_time="received_at",
    hold_later_than="3 hours",
    future_tolerance=wide,
)
payments = silver.events(
    "payments",
    source=bronze.topic("payments"),
    schema="payment_id string, product string, paid_at timestamp",
    keys=["payment_id"],
    event_time="paid_at",
    future_tolerance=wide,
)
prices = silver.history(
    "prices",
    source=[north, south],
    schema="kind string, product string, changed_at timestamp, colour string, size int",
    keys=["product"],
    sequence_by="changed_at",
    apply_as_deletes="kind = 'delete'",
    apply_as_truncates="kind = 'truncate'",
    ignore_null_updates=["colour"],
    except_column_list=["kind"],
    track_history_column_list=["colour"],
    future_tolerance=wide,
)
latest_prices = silver.history(
    "latest_prices",
    source=north,
    schema="kind string, product string, changed_at timestamp, colour string, size int",
    keys=["product"],
    sequence_by="changed_at",
    stored_as_scd_type=1,
    apply_as_deletes="kind = 'delete'",
    apply_as_truncates="kind = 'truncate'",
    except_column_list=["kind"],
    future_tolerance=wide,
)
stock = silver.history_from_snapshots(
    "stock",
    source=bronze.topic("stock"),
    schema="item string, counted_at timestamp, shelf string, items int",
    keys=["item"],
    taken_at="counted_at",
    row_count="items",
    future_tolerance=wide,
)
customers = silver.history(
    "customers",
    source=bronze.topic("customers"),
    format="debezium",
    schema="customer string, city string",
    keys=["customer"],
    future_tolerance=wide,
)
priced = silver.as_of(
    "priced",
    facts=orders,
    event_time="placed_at",
    dimensions={
        "price": silver.dimension(prices, inferred={"colour": "'unknown'"}),
        "stock": silver.dimension(stock, on={"item": "product"}),
        "customer": silver.dimension(customers, on={"customer": "product"}),
    },
)
paid = silver.interval_join(
    "paid",
    left={"order": orders},
    right={"payment": payments},
    keys=["product"],
    between=("-30 minutes", "1 hour"),
    how="full",
)
colour_hours = gold.aggregate(
    "colour_hours",
    source=priced,
    group_by=["price.colour AS colour", window("placed_at", "1 hour")],
    measures={"orders": "count(*)", "amount": "sum(amount)"},
)
shelved = silver.as_of(
    "shelved",
    facts=payments,
    event_time="paid_at",
    dimensions={"stock": silver.dimension(stock, on={"item": "product"})},
)
lakehouse_of_every_shape = (latest_prices, colour_hours, paid)

latest_options = histories.Options(attributes=("colour", "size"), tracked=("colour", "size"))
shelves, snapshot_hours = ["low", "high"], [0.5, 2.0, 2.5, 4.0]


@dataclass(frozen=True)
class Sent:
    """A record: its topic, its value, and the thing that it says, for the oracle."""

    topic: str
    value: bytes
    thing: Any = None


@dataclass(frozen=True)
class World:
    """Batches of records as they arrive; late orders are released after the batch of that number, or never for 0."""

    batches: list[list[Sent]]
    partitions: int
    release_after: int

    def of(self, *topics: str) -> list[Any]:
        """What the records of some topics say, in the log's order."""
        return [sent.thing for batch in self.batches for sent in batch if sent.topic in topics and sent.thing]

    @property
    def released(self) -> list[int]:
        """The places among the order records of those that had arrived, and were late, when late ones were released."""
        before = World(self.batches[: self.release_after], self.partitions, self.release_after).of("orders")
        return [number for number, order in enumerate(before) if order.is_late]

    def expected(self) -> dict[str, set[tuple[Any, ...]]]:
        facts = oracle.first_orders(self.of("orders"), self.released)
        first_payments = oracle.first_payments(self.of("payments"))
        changes = self.of("prices_north", "prices_south")
        snapshots = histories.from_snapshots(self.of("stock"))
        priced_rows = oracle.priced(facts, changes, snapshots, self.of("customers"))
        return {
            "silver.prices": histories.versions(changes, oracle.price_options),
            "silver.latest_prices": histories.current(self.of("prices_north"), latest_options),
            "silver.stock": histories.versions(snapshots, oracle.plain_options),
            "silver.customers": histories.versions(self.of("customers"), oracle.customer_options),
            "silver.priced": priced_rows,
            "silver.shelved": oracle.shelved(first_payments, snapshots),
            "silver.paid": oracle.paid(facts, first_payments),
            "gold.colour_hours": oracle.colour_hours(priced_rows),
        }


def world(seed: int, cases: int, last_share: float, release_after: int = 0) -> World:
    """Random facts and changes, redelivered, conflicting and broken, in random order, in two batches.

    The last batch has `last_share` of them, few enough not to touch everything.
    """
    chance = random.Random(seed)
    records: list[Sent] = []
    stocked: dict[float, dict[str, str]] = {hour: {} for hour in snapshot_hours}
    for case in range(cases):
        products = [f"{case}-x", f"{case}-y"]
        places = [*products, f"{case}-unpriced"]
        records += [order(chance, case, places) for _ in range(chance.randint(0, 5))]
        records += [payment(chance, case, places) for _ in range(chance.randint(0, 4))]
        records += [price(chance, products) for _ in range(chance.randint(0, 6))]
        records += [customer(chance, places) for _ in range(chance.randint(0, 4))]
        for hour in snapshot_hours:
            stocked[hour] |= {product: chance.choice(shelves) for product in products if chance.random() < 0.7}
    records += [truncate(chance, topic) for topic in ("prices_north", "prices_south", "customers")]
    for hour, items in stocked.items():
        records += [counted(hour, item, shelf, len(items)) for item, shelf in items.items()]
    records += chance.choices(records, k=len(records) // 6)
    records += [Sent("orders", value) for value in (b"{", b"\xff", b"[]")]
    records += [Sent("prices_north", json.dumps({"product": "x", "colour": "red"}).encode())]
    records += [Sent("customers", value) for value in (b"{}", b"[1]")]
    chance.shuffle(records)
    end = int(len(records) * (1 - last_share))
    return World([records[:end], records[end:]], partitions=2, release_after=release_after)


def half_hours(chance: random.Random) -> float:
    return chance.randint(0, 12) / 2


def order(chance: random.Random, case: int, products: Sequence[str]) -> Sent:
    """An order, perhaps by a device whose clock is off, perhaps received too late."""
    hour = half_hours(chance)
    received = hour + chance.choice([0.0, 0.5, 1.0, 3.0, 3.5, 9.0])
    sent = chance.choice([None, None, received - 0.5, received + 0.5])
    name, amount = f"{case}-{chance.randint(1, 4)}", chance.choice([1, 2, None])
    said = Order(name, chance.choice(products), hour, amount, sent, received)
    value = {
        "order_id": said.order_id,
        "product": said.product,
        "placed_at": text(hour),
        "amount": said.amount,
        "sent_at": None if sent is None else text(sent),
        "received_at": text(received),
    }
    return Sent("orders", json.dumps(value).encode(), said)


def payment(chance: random.Random, case: int, products: Sequence[str]) -> Sent:
    said = Payment(f"{case}-{chance.randint(1, 4)}", chance.choice(products), half_hours(chance))
    value = {"payment_id": said.payment_id, "product": said.product, "paid_at": text(said.hour)}
    return Sent("payments", json.dumps(value).encode(), said)


def price(chance: random.Random, products: Sequence[str]) -> Sent:
    """A change of a price: mostly a new one, with nulls and ties; sometimes a delete."""
    values = {"colour": chance.choice(["red", "blue", None]), "size": chance.choice([1, 2, None])}
    kind = chance.choice(["set", "set", "set", "set", "delete"])
    said = Change(kind, chance.choice(products), half_hours(chance), values)
    topic = chance.choice(["prices_north", "prices_south"])
    value = {"kind": kind, "product": said.key, "changed_at": text(said.at), **values}
    return Sent(topic, json.dumps(value).encode(), said)


def truncate(chance: random.Random, topic: str) -> Sent:
    """A change that deletes every key."""
    hour = half_hours(chance)
    if topic == "customers":
        return debezium(chance, "t", None, None, hour)
    value = {"kind": "truncate", "changed_at": text(hour)}
    return Sent(topic, json.dumps(value).encode(), Change("truncate", None, hour))


def customer(chance: random.Random, keys: Sequence[str]) -> Sent:
    """A change captured from a database; the key itself may change."""
    key = chance.choice(keys)
    row = {"customer": key, "city": chance.choice(["Oslo", "Rome", None])}
    op = chance.choice(["c", "u", "r", "u", "d"])
    if op == "d":
        return debezium(chance, op, row, None, half_hours(chance))
    before = {"customer": chance.choice(keys), "city": None} if op == "u" and chance.random() < 0.4 else None
    return debezium(chance, op, before, row, half_hours(chance))


def debezium(
    chance: random.Random, op: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, hour: float
) -> Sent:
    """A record of Debezium, with or without its schema, whose time may run against its sequence."""
    lsn, total_order = chance.randint(1, 10), chance.randint(1, 3)
    envelope = {
        "op": op,
        "before": before,
        "after": after,
        "source": {"lsn": lsn, "ts_ms": int(at(hour).timestamp() * 1000), "table": "customers"},
        "transaction": {"id": str(lsn), "total_order": total_order},
        "ts_ms": chance.randint(1, 10**12),
    }
    value = {"schema": {"type": "struct"}, "payload": envelope} if chance.random() < 0.5 else envelope
    row = after or before or {}
    moved = before["customer"] if op == "u" and before else None
    said = Change(
        {"d": "delete", "t": "truncate"}.get(op, "set"),
        row.get("customer"),
        hour,
        {"city": row.get("city"), "op": op},
        moved_from=moved,
        sequence=(lsn, total_order),
    )
    return Sent("customers", json.dumps(value).encode(), said)


def counted(hour: float, item: str, shelf: str, items: int) -> Sent:
    """A row of a snapshot."""
    value = {"item": item, "counted_at": text(hour), "shelf": shelf, "items": items}
    return Sent("stock", json.dumps(value).encode(), Change("set", item, hour, {"shelf": shelf}))


def publish(lakehouse: Lakehouse, batch: Sequence[Sent], arrived: int) -> int:
    """Appends a batch in its order; each record arrives a little after the one before, whatever its partition."""
    waiting: dict[str, list[Record]] = {}
    for number, sent in enumerate(batch, start=arrived + 1):
        record = Record(sent.value, key=str(number), timestamp=at(number / 3600))
        waiting.setdefault(sent.topic, []).append(record)
    for topic, records in waiting.items():
        lakehouse.log.append(topic, records)
    return arrived + len(batch)


def release_late_orders(lakehouse: Lakehouse) -> None:
    """What `sluice quarantine release silver.orders --reason late` does."""
    late = quarantine.quarantined_records(lakehouse.lake, orders, reason="late")
    if late:
        quarantine.release(lakehouse.log, orders, late, because="they count")


def found(lakehouse: Lakehouse, wanted: Sequence[str]) -> dict[str, set[tuple[Any, ...]]]:
    """What the tables hold, in the oracle's form."""
    version = ["valid_from", "valid_to", "is_current"]
    columns = {
        "silver.prices": ["product", "colour", "size", *version],
        "silver.latest_prices": ["product", "colour", "size", "changed_at"],
        "silver.stock": ["item", "shelf", *version],
        "silver.customers": ["customer", "city", *version],
        "silver.priced": [
            "order_id",
            "placed_at",
            "amount",
            "price.colour AS colour",
            "price.size AS size",
            "price.valid_from AS since",
            "price.is_inferred AS is_inferred",
            "stock.shelf AS shelf",
            "customer.city AS city",
        ],
        "silver.shelved": ["payment_id", "paid_at", "stock.shelf AS shelf"],
        "silver.paid": ["product", "event_time", "order.order_id AS order_id", "payment.payment_id AS payment_id"],
        "gold.colour_hours": ["colour", "window_start", "orders", "amount"],
    }
    lists = {name: rows_of(lakehouse.table(name).selectExpr(*columns[name])) for name in wanted}
    sets = {name: set(rows) for name, rows in lists.items()}
    assert {name: len(rows) for name, rows in lists.items()} == {name: len(rows) for name, rows in sets.items()}
    return sets
