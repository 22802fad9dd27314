"""What the orders lakehouse of the law tests must hold, computed record by record in plain Python."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Order:
    """A fact; records of one `order_id` are one order."""

    order_id: str
    product: str
    hour: float
    amount: int | None


@dataclass(frozen=True)
class Price:
    """A change of a dimension."""

    product: str
    hour: float
    colour: str | None


def first_orders(orders: Sequence[Order]) -> list[Order]:
    """Each order as it first arrived; `orders` are in the log's order."""
    found: dict[str, Order] = {}
    for order in orders:
        found.setdefault(order.order_id, order)
    return list(found.values())


def timelines(prices: Sequence[Price]) -> dict[str, list[tuple[float, str | None]]]:
    """For each product the moments at which its colour changed; a repeated change is no change of its order."""
    distinct = list(dict.fromkeys(prices))
    by_product: dict[str, dict[float, str | None]] = defaultdict(dict)
    for price in distinct:
        by_product[price.product][price.hour] = price.colour
    found: dict[str, list[tuple[float, str | None]]] = {}
    for product, colours in by_product.items():
        line: list[tuple[float, str | None]] = []
        for hour in sorted(colours):
            if not line or line[-1][1] != colours[hour]:
                line.append((hour, colours[hour]))
        found[product] = line
    return found


def history(prices: Sequence[Price]) -> set[Row]:
    """(product, colour, valid_from, valid_to, is_current)."""
    return {
        (product, colour, hour, end, end is None)
        for product, line in timelines(prices).items()
        for (hour, colour), end in zip(line, [*[hour for hour, _ in line[1:]], None], strict=True)
    }


def priced(orders: Sequence[Order], prices: Sequence[Price]) -> set[Row]:
    """(order_id, product, hour, amount, colour, since): each order with the colour of its hour."""
    lines = timelines(prices)
    found: set[Row] = set()
    for order in first_orders(orders):
        before = [each for each in lines.get(order.product, []) if each[0] <= order.hour]
        since, colour = before[-1] if before else (None, None)
        found.add((order.order_id, order.product, order.hour, order.amount, colour, since))
    return found


def colour_hours(orders: Sequence[Order], prices: Sequence[Price]) -> set[Row]:
    """(colour, window_start, orders, amount): what was ordered of each colour in each hour."""
    groups: dict[tuple[str | None, int], list[int | None]] = defaultdict(list)
    for _, _, hour, amount, colour, _ in priced(orders, prices):
        groups[(colour, int(hour // 1))].append(amount)
    return {
        (
            colour,
            float(hour),
            len(amounts),
            sum(known) if (known := [each for each in amounts if each is not None]) else None,
        )
        for (colour, hour), amounts in groups.items()
    }
