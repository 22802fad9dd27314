"""What the orders lakehouse of the law tests must hold, computed record by record in plain Python."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracles.histories import Change, Options, timelines, valid_at

Row = tuple[Any, ...]
held_hours = 3.0
earliest_hours, latest_hours = -0.5, 1.0
price_options = Options(attributes=("colour", "size"), tracked=("colour",), fill_nulls=("colour",))
plain_options = Options(attributes=("shelf",), tracked=("shelf",))
customer_options = Options(attributes=("city",), tracked=("city",))


@dataclass(frozen=True)
class Order:
    """A fact; records of one `order_id` are one order. A device's clock may be off by `sent` against `received`."""

    order_id: str
    product: str
    hour: float
    amount: int | None
    sent: float | None
    received: float

    @property
    def placed(self) -> float:
        """When it was placed, by the receiver's clock."""
        return self.hour if self.sent is None else self.hour + (self.received - self.sent)

    @property
    def is_late(self) -> bool:
        return self.received - self.placed > held_hours


@dataclass(frozen=True)
class Payment:
    """Another fact of a product."""

    payment_id: str
    product: str
    hour: float


def first_orders(orders: Sequence[Order], released: Iterable[int] = ()) -> list[Order]:
    """Each order as it first arrived, late ones only if they were released (by their place in the log)."""
    let_through = set(released)
    found: dict[str, Order] = {}
    for number, order in enumerate(orders):
        if not order.is_late or number in let_through:
            found.setdefault(order.order_id, order)
    return list(found.values())


def first_payments(payments: Sequence[Payment]) -> list[Payment]:
    found: dict[str, Payment] = {}
    for payment in payments:
        found.setdefault(payment.payment_id, payment)
    return list(found.values())


def priced(
    orders: Iterable[Order], prices: Sequence[Change], stock: Sequence[Change], customers: Sequence[Change]
) -> set[Row]:
    """(order_id, placed, amount, colour, size, since, is_inferred, shelf, city): each order with what then held."""
    price_lines = timelines(prices, price_options)
    stock_lines = timelines(stock, plain_options)
    customer_lines = timelines(customers, customer_options)
    found: set[Row] = set()
    for order in orders:
        since, price, is_known = valid_at(price_lines.get(order.product, []), order.placed)
        _, shelf, _ = valid_at(stock_lines.get(order.product, []), order.placed)
        _, customer, _ = valid_at(customer_lines.get(order.product, []), order.placed)
        seen: tuple[Any, ...] = (None, None, None, None)
        if price is not None:
            seen = (price["colour"], price["size"], since, False)
        elif not is_known:
            seen = ("unknown", None, None, True)
        found.add(
            (
                order.order_id,
                order.placed,
                order.amount,
                *seen,
                shelf["shelf"] if shelf else None,
                customer["city"] if customer else None,
            )
        )
    return found


def shelved(payments: Iterable[Payment], stock: Sequence[Change]) -> set[Row]:
    """(payment_id, hour, shelf): each payment with the shelf that its product was on."""
    lines = timelines(stock, plain_options)
    states = {each: valid_at(lines.get(each.product, []), each.hour)[1] for each in payments}
    return {(each.payment_id, each.hour, state["shelf"] if state else None) for each, state in states.items()}


def colour_hours(rows: Iterable[Row]) -> set[Row]:
    """(colour, window_start, orders, amount): what was ordered of each colour in each hour."""
    groups: dict[tuple[str | None, int], list[int | None]] = defaultdict(list)
    for _, placed, amount, colour, *_ in rows:
        groups[(colour, int(placed // 1))].append(amount)
    return {
        (colour, float(hour), len(amounts), total([each for each in amounts if each is not None]))
        for (colour, hour), amounts in groups.items()
    }


def total(amounts: Sequence[int]) -> int | None:
    return sum(amounts) if amounts else None


def paid(orders: Sequence[Order], payments: Sequence[Payment]) -> set[Row]:
    """(product, event_time, order_id, payment_id): pairs within the interval, and those of either side alone."""
    pairs = [
        (order, payment)
        for order in orders
        for payment in payments
        if order.product == payment.product and earliest_hours <= payment.hour - order.placed <= latest_hours
    ]
    matched_orders = {order.order_id for order, _ in pairs}
    matched_payments = {payment.payment_id for _, payment in pairs}
    return {
        *[(order.product, order.placed, order.order_id, payment.payment_id) for order, payment in pairs],
        *[(each.product, each.placed, each.order_id, None) for each in orders if each.order_id not in matched_orders],
        *[
            (each.product, each.hour, None, each.payment_id)
            for each in payments
            if each.payment_id not in matched_payments
        ],
    }


def fates(orders: Sequence[Order], released: Iterable[int]) -> Mapping[str, int]:
    """How many order records are accepted, duplicate and late."""
    let_through = set(released)
    late = sum(order.is_late and number not in let_through for number, order in enumerate(orders))
    accepted = len(first_orders(orders, let_through))
    return {"accepted": accepted, "duplicate": len(orders) - late - accepted, "late": late}
