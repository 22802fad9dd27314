"""What a project declares: each call in its files, whether or not the module has a name for what it made."""

from pathlib import Path

import pytest

from sluice.engine.catalogue import Catalogue, load
from sluice.errors import DeclarationError

orders = """
from sluice import bronze, gold, silver, sql

orders = silver.events(
    "orders",
    source=bronze.topic("orders"),
    schema="order_id string, shop string, amount int",
    keys=["order_id"],
)
"""


def loaded(folder: Path, files: dict[str, str]) -> Catalogue:
    """The catalogue of a project with these files."""
    for name, text in {"pipelines/__init__.py": "", "expectations/__init__.py": "", **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return load(folder)


def test_tables_of_a_list_and_of_a_statement_are_declared(tmp_path: Path) -> None:
    shop = orders + (
        "by_shop = [\n"
        "    gold.aggregate(f'sales_{n}', source=orders, group_by=['shop'], measures={'n': f'sum(amount * {n})'})\n"
        "    for n in (1, 2)\n"
        "]\n"
        "gold.publish(\n"
        "    gold.aggregate('sales', source=orders, group_by=['shop'], measures={'n': 'count(*)'}), kafka='sales'\n"
        ")\n"
    )
    found = loaded(tmp_path, {"pipelines/shop.py": shop})
    assert {each.name for each in found.datasets} == {"silver.orders", "gold.sales_1", "gold.sales_2", "gold.sales"}
    assert [each.targets for each in found.publications] == [{"kafka": "sales"}]


def test_a_loop_that_names_each_table_alike_loses_none(tmp_path: Path) -> None:
    shop = orders + (
        "for measure in ('count(*)', 'sum(amount)'):\n"
        "    table = gold.aggregate(\n"
        "        measure.partition('(')[0] + '_of', source=orders, group_by=['shop'], measures={'value': measure}\n"
        "    )\n"
    )
    found = loaded(tmp_path, {"pipelines/shop.py": shop})
    assert {each.name for each in found.datasets} == {"silver.orders", "gold.count_of", "gold.sum_of"}


def test_two_tables_of_one_name_are_refused_where_neither_has_a_name_in_the_module(tmp_path: Path) -> None:
    said = "gold.n is declared twice (pipelines/shop.py, line 10, pipelines/shop.py, line 11)"
    aggregate = "gold.aggregate('n', source=orders, group_by=['shop'], measures={'n': 'count(*)'})\n"
    with pytest.raises(DeclarationError) as error:
        loaded(tmp_path, {"pipelines/shop.py": orders + aggregate + aggregate})
    assert said in str(error.value)


def test_a_file_in_sql_reads_a_table_without_a_name(tmp_path: Path) -> None:
    files = {
        "pipelines/shop.py": orders.replace("orders = ", "", 1),
        "pipelines/gold/shops.sql": "SELECT shop, count(*) AS n FROM silver.orders GROUP BY shop",
    }
    assert "gold.shops" in {each.name for each in loaded(tmp_path, files).datasets}


def test_a_suite_without_a_name_judges(tmp_path: Path) -> None:
    suite = (
        "from sluice.expect import expect, suite\n"
        "suite('silver.orders', expect('column_values_to_not_be_null', column='shop', severity='critical'))\n"
    )
    found = loaded(tmp_path, {"pipelines/shop.py": orders, "expectations/silver/orders.py": suite})
    assert [each.name for each in found.gate_of(found.dataset("silver.orders"))] == ["shop_not_be_null"]


def test_what_another_package_declares_is_the_projects_only_by_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "shared_tables.py").write_text(
        orders + "gold.aggregate('unused', source=orders, group_by=['shop'], measures={'n': 'count(*)'})\n"
    )
    monkeypatch.syspath_prepend(str(library))
    found = loaded(tmp_path, {"pipelines/shop.py": "from shared_tables import orders\n"})
    assert {each.name for each in found.datasets} == {"silver.orders"}
