"""Rows of tables declared as SQL: filters, joins of every kind and windows follow changes as a rebuild does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice import bronze, silver
from sluice.engine import touched
from sluice.model.datasets import Dataset
from sluice.shapes import increment
from sluice.shapes.top import Top
from sluice.sql.translate import translated
from tests.kit import Lakehouse, Row, text

schemas = {
    "orders": "id string, at timestamp, shop string, n int, status string",
    "shops": "shop string, at timestamp, city string",
}


def changing(name: str, key: str) -> Dataset:
    """A table whose rows are those that came last."""
    return silver.history(
        name,
        source=bronze.topic(name),
        schema=schemas[name],
        keys=[key],
        sequence_by="at",
        stored_as_scd_type=1,
        future_tolerance="1000 days",
    )


orders, shops = changing("orders", "id"), changing("shops", "shop")
known = {each.name: each for each in (orders, shops)}
join = "FROM silver.orders o {} silver.shops s ON o.shop = s.shop"
tables = {
    "paid": "SELECT shop, sum(n) AS n, count(*) AS orders FROM silver.orders WHERE status = 'paid' GROUP BY shop",
    "busy": "SELECT shop, count(*) AS orders FROM silver.orders GROUP BY shop HAVING orders > 1",
    "distinct": "SELECT DISTINCT shop, status FROM silver.orders WHERE n > 1",
    "best": "SELECT shop, id, n, row_number() OVER (PARTITION BY shop ORDER BY n DESC) AS rank FROM silver.orders\n"
    "WHERE status = 'paid' QUALIFY rank <= 1",
    "inner": f"SELECT o.id, o.shop, s.city {join.format('JOIN')}",
    "left": f"SELECT o.id, o.shop, s.city {join.format('LEFT JOIN')} AND o.n > 1",
    "right": f"SELECT o.id, s.shop, s.city {join.format('RIGHT JOIN')}",
    "both": f"SELECT o.id, coalesce(o.shop, s.shop) AS shop, s.city {join.format('FULL JOIN')}",
    "semi": f"SELECT o.id, o.shop {join.format('LEFT SEMI JOIN')}",
    "anti": f"SELECT o.id, o.shop {join.format('LEFT ANTI JOIN')}",
    "using": "SELECT id, shop, city FROM silver.orders LEFT JOIN silver.shops USING (shop)",
    "both_using": "SELECT id, shop, city FROM silver.orders FULL JOIN silver.shops USING (shop)",
    "right_using": "SELECT id, shop, city FROM silver.orders RIGHT JOIN silver.shops USING (shop)",
    "pairs": "SELECT a.id, b.id AS other, a.shop FROM silver.orders a\n"
    "JOIN silver.orders b ON a.shop = b.shop AND a.n < b.n",
    "sums": "SELECT id, shop, sum(n) OVER (PARTITION BY shop ORDER BY id ROWS UNBOUNDED PRECEDING) AS n\n"
    "FROM silver.orders",
}


def declared(*names: str) -> list[Dataset]:
    return [translated(f"gold.{name}", tables[name], f"gold/{name}.sql", known.__getitem__) for name in names or tables]


def order(id_: str, hour: float, shop: str | None, n: int, status: str = "paid") -> dict[str, Any]:
    return {"id": id_, "at": text(hour), "shop": shop, "n": n, "status": status}


def shop(name: str, hour: float, city: str) -> dict[str, Any]:
    return {"shop": name, "at": text(hour), "city": city}


def begun(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, *names: str) -> Lakehouse:
    """A lakehouse whose tables were made, and then changed by what came."""
    monkeypatch.setattr(touched, "rebuild_share", 1e9)
    lakehouse.declare(*declared(*names))
    first = [order("1", 1, "a", 1), order("2", 1, "a", 5), order("3", 1, "b", 2), order("4", 1, None, 9)]
    lakehouse.publish("orders", *first, order("5", 1, "c", 3, "open"), order("6", 1, "d", 7))
    lakehouse.publish("shops", shop("a", 1, "Oslo"), shop("b", 1, "Bergen"), shop("e", 1, "Moss"))
    lakehouse.run()
    # One is paid, one no longer, one goes to another shop, one is new; a shop comes, and one moves.
    lakehouse.publish("orders", order("5", 2, "c", 3), order("2", 2, "a", 5, "open"), order("3", 2, "a", 2))
    lakehouse.publish("orders", order("7", 2, "d", 1, "open"))
    lakehouse.publish("shops", shop("d", 2, "Narvik"), shop("a", 2, "Hamar"))
    done = lakehouse.run()
    assert {done[f"gold.{name}"].cause for name in names or tables} == {"changes"}
    return lakehouse


matched = [("1", "a", "Hamar"), ("2", "a", "Hamar"), ("3", "a", "Hamar"), ("6", "d", "Narvik"), ("7", "d", "Narvik")]
alone = [("4", None, None), ("5", "c", None)]
empty = [(None, "b", "Bergen"), (None, "e", "Moss")]
after: dict[str, list[Row]] = {
    "paid": [("a", 3, 2), ("c", 3, 1), ("d", 7, 1), (None, 9, 1)],
    "busy": [("a", 3), ("d", 2)],
    "distinct": [("a", "open"), ("a", "paid"), ("c", "paid"), ("d", "paid"), (None, "paid")],
    "best": [("a", 1, "3", 2), ("c", 1, "5", 3), ("d", 1, "6", 7), (None, 1, "4", 9)],
    "inner": matched,
    "left": [("1", "a", None), *matched[1:4], ("7", "d", None), *alone],
    "right": [*matched, *empty],
    "both": [*matched, *alone, *empty],
    "semi": [row[:2] for row in matched],
    "anti": [row[:2] for row in alone],
    "using": [*matched, *alone],
    "both_using": [*matched, *alone, *empty],
    "right_using": [*matched, *empty],
    "pairs": [("1", "2", "a"), ("1", "3", "a"), ("3", "2", "a"), ("7", "6", "d")],
    "sums": [("1", "a", 1), ("2", "a", 6), ("3", "a", 8), ("4", None, 9), ("5", "c", 3), ("6", "d", 7), ("7", "d", 8)],
}


def test_rows_follow_what_changed(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(lakehouse, monkeypatch)
    columns = {"best": ("shop", "rank", "id", "n")}
    found = {name: lakehouse.rows(f"gold.{name}", *columns.get(name, ())) for name in tables}
    assert found == {name: sorted(rows, key=repr) for name, rows in after.items()}
    assert [law for law in lakehouse.laws() if law.broken] == []
    again = lakehouse.run(rebuild=True)
    assert {name: again[f"gold.{name}"].rows.total for name in tables} == dict.fromkeys(tables, 0)


def overlooks_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    used = Top.used
    monkeypatch.setattr(Top, "used", lambda self, columns: used(without_condition(self), columns))
    monkeypatch.setattr(Top, "touched", lambda self, changed: touched_by(without_condition(self), changed))


touched_by = Top.touched


def without_condition(rule: Top) -> Top:
    return replace(rule, groups=replace(rule.groups, where=""))


def adjusts_hidden_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a group that the table lacks had no rows."""

    def without_having(*said: Any) -> Any:
        return increment.adjusted(*said[:-1])

    monkeypatch.setattr("sluice.shapes.aggregate.adjusted", without_having)


@pytest.mark.parametrize(("table", "mutant"), [("best", overlooks_the_condition), ("busy", adjusts_hidden_groups)])
def test_rows_go_stale_where_the_engine(
    table: str, mutant: Callable[[pytest.MonkeyPatch], None], lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    begun(lakehouse, monkeypatch, table)
    columns = {"best": ("shop", "rank", "id", "n")}.get(table, ())
    assert lakehouse.rows(f"gold.{table}", *columns) != sorted(after[table], key=repr)
