"""Quality: expectations at the entrance of silver, and what happens when they change."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sluice import gold, scaffold
from sluice.engine import catalogue
from sluice.engine.catalogue import Catalogue, expecting, ordered
from sluice.errors import DeclarationError
from sluice.expect import Expectation, expect, suite
from sluice.operate import quarantine
from tests.kit import Lakehouse, text
from tests.shop import priced, prices, sales

sold = gold.aggregate("sold", source=priced, group_by=["product"], measures={"pieces": "sum(pieces)"})


def pieces(most: int, name: str = "a_basket_full") -> Expectation:
    return expect(
        "column_values_to_be_between", column="pieces", min_value=1, max_value=most, severity="quarantine", name=name
    )


named = expect("column_values_to_match_regex", column="product", regex="^[a-z]+$", severity="quarantine")


def shop(*expected: Expectation) -> Catalogue:
    return expecting(ordered([sold]), {"silver.sales": suite("silver.sales", *expected)} if expected else {})


def sale(number: int, count: int | None, product: str = "tea") -> dict[str, object]:
    return {"id": f"s{number}", "product": product, "sold_at": text(number), "pieces": count}


def test_a_record_that_breaks_expectations_is_quarantined_under_their_names(lakehouse: Lakehouse) -> None:
    lakehouse.catalogue = shop(pieces(10), named)
    lakehouse.publish("sales", sale(1, 3), sale(2, 11), sale(3, -1, "Tea!"), sale(4, None), b"no JSON")
    lakehouse.run()
    assert lakehouse.rows("silver.sales", "id") == [("s1",), ("s4",)]
    assert lakehouse.rows("silver._fates", "fate", "reason") == [
        ("quarantined", "a_basket_full"),
        ("quarantined", "a_basket_full,product_match_regex"),
        ("quarantined", "malformed_json"),
    ]
    assert all(each.balanced for each in lakehouse.audits())


def test_a_suite_that_changes_judges_all_records_again(lakehouse: Lakehouse) -> None:
    lakehouse.catalogue = shop(pieces(10))
    lakehouse.publish("sales", sale(1, 3), sale(2, 11), sale(3, 7, "Milk"))
    lakehouse.run()
    assert lakehouse.rows("gold.sold") == [("Milk", 7), ("tea", 3)]

    lakehouse.catalogue = shop(pieces(20), named)
    done = lakehouse.run()
    assert (done["silver.sales"].cause, done["silver.priced"].cause) == ("declaration changed", "changes")
    # One flows in, and one out.
    assert (done["silver.sales"].rows.inserted, done["silver.sales"].rows.deleted) == (1, 1)
    assert lakehouse.rows("gold.sold") == [("tea", 14)]
    assert lakehouse.rows("silver._fates", "fate", "reason") == [("quarantined", "product_match_regex")]
    found = {name: lakehouse.rows(name) for name in lakehouse.lake.tables()}
    lakehouse.run(rebuild=True)
    assert {name: lakehouse.rows(name) for name in lakehouse.lake.tables()} == found
    assert lakehouse.run() == {}


def test_what_an_expectation_holds_can_be_released(lakehouse: Lakehouse) -> None:
    lakehouse.catalogue = shop(pieces(10), named)
    lakehouse.publish("sales", sale(1, 11, "Tea"), sale(2, 99))
    lakehouse.run()
    (dataset,) = [each for each in lakehouse.catalogue.datasets if each.name == "silver.sales"]
    quarantined = quarantine.quarantined_records(lakehouse.lake, dataset, reason="a_basket_full,product_match_regex")
    assert quarantine.release(lakehouse.log, dataset, quarantined, "a large order") == 1
    lakehouse.run()
    assert lakehouse.rows("silver.sales", "id", "pieces") == [("s1", 11)]


def test_of_changes_only_those_that_set_values_are_judged(lakehouse: Lakehouse) -> None:
    cheap = expect("column_values_to_be_between", column="price", max_value=9, severity="quarantine")
    known = expect("column_values_to_not_be_null", column="price", severity="quarantine")
    found = suite("silver.prices_changes", cheap, known)
    lakehouse.catalogue = expecting(ordered([prices]), {found.dataset: found})
    for hours, price in ((1, 3), (2, 30), (3, None)):
        lakehouse.publish("prices", {"product": "tea", "changed_at": text(hours), "price": price})
    lakehouse.run()
    assert lakehouse.rows("silver.prices", "price", "valid_from") == [(3, 1.0)]
    assert lakehouse.rows("silver._fates", "reason") == [("price_be_between",), ("price_not_be_null",)]


row_rule = 'expect("column_values_to_not_be_null", column="{column}", severity="{severity}")'
misplaced = {
    "there is a suite of silver.order (expectations/silver/order.py), but no such dataset; did you mean": (
        "silver/order.py",
        "order_id",
    ),
    "no such dataset; there are silver.orders": ("marts/wholly_other.py", "order_id"),
    "gold.revenue_daily: orders_not_be_null would quarantine records": ("gold/revenue_daily.py", "orders"),
    "silver.orders: order_id_not_be_null: column names nothing": ("silver/orders.py", "nothing"),
}


def test_an_expectation_of_a_column_that_a_table_will_not_have_is_reported(tmp_path: Path) -> None:
    scaffold.write(tmp_path)
    file = tmp_path / "expectations" / "gold" / "revenue_daily.py"
    file.parent.mkdir(exist_ok=True)
    for column in ("window_start", "ordrs"):
        asked = row_rule.format(column=column, severity="critical")
        file.write_text(
            f"from sluice.expect import expect, suite\n\nexpectations = suite('gold.revenue_daily', {asked})\n"
        )
        if column != "ordrs":
            catalogue.load(tmp_path)
    with pytest.raises(DeclarationError, match=r"gold.revenue_daily: .*there is no column ordrs; did you mean orders"):
        catalogue.load(tmp_path)


@pytest.mark.parametrize("said", misplaced)
def test_a_suite_that_fits_nothing_is_reported(said: str, tmp_path: Path) -> None:
    scaffold.write(tmp_path)
    place, column = misplaced[said]
    write_suite(tmp_path, place, place.removesuffix(".py").replace("/", "."), column)
    with pytest.raises(DeclarationError) as caught:
        catalogue.load(tmp_path)
    assert said.replace("order_id_not_be_null", f"{column}_not_be_null") in str(caught.value)


def test_a_suite_in_the_file_of_another_is_reported(tmp_path: Path) -> None:
    scaffold.write(tmp_path)
    write_suite(tmp_path, "silver/products_changes.py", "silver.orders", "order_id")
    with pytest.raises(DeclarationError, match=r"belongs in expectations/silver/orders\.py"):
        catalogue.load(tmp_path)


def test_a_suite_of_a_project_is_found_by_its_place(tmp_path: Path) -> None:
    scaffold.write(tmp_path)
    shutil.rmtree(tmp_path / "expectations")
    before = {each.name: each.fingerprint for each in catalogue.load(tmp_path).datasets}
    write_suite(tmp_path, "silver/orders.py", "silver.orders", "product_id")
    found = catalogue.load(tmp_path)
    assert list(found.suites) == ["silver.orders"]
    changed = {each.name for each in found.datasets if each.fingerprint != before[each.name]}
    assert changed == {"silver.orders"}
    assert found.upstream_of(["gold.revenue_daily"]).suites == found.suites


def write_suite(project: Path, place: str, dataset: str, column: str) -> None:
    """A suite of one row rule, with the packages that it is in."""
    file = project / "expectations" / place
    file.parent.mkdir(parents=True, exist_ok=True)
    for folder in (file.parent, file.parent.parent):
        (folder / "__init__.py").touch()
    rule = row_rule.format(column=column, severity="quarantine")
    file.write_text(f"from sluice.expect import expect, suite\n\nexpectations = suite({dataset!r}, {rule})\n")


def test_sales_are_as_declared_without_a_suite() -> None:
    (dataset,) = [each for each in shop().datasets if each.name == "silver.sales"]
    assert dataset.fingerprint == sales.fingerprint


@pytest.mark.process
def test_the_suites_of_this_project_are_read_without_spark() -> None:
    look = (
        "import sys, pathlib; from sluice.engine.catalogue import load; "
        "print(len(load(pathlib.Path(sys.argv[1])).suites))"
    )
    project = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", look, str(project)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2
