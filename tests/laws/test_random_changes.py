"""Changed code is noticed: whatever a shape reaches, its tables are those that the code of today makes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from sluice import gold
from tests.kit import Lakehouse
from tests.shop import sales

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How a shape may come by a number; the number changes from 1 to 2.
projects = {
    "the shape itself": """
def shape(sales):
    return by_product(sales, {number})
""",
    "a constant": """
factor = {number}
def shape(sales):
    return by_product(sales, factor)
""",
    "a constant of a constant": """
base = {number}
rule = {{"factor": [base]}}
def shape(sales):
    return by_product(sales, rule["factor"][0])
""",
    "a helper": """
def factor():
    return {number}
def shape(sales):
    return by_product(sales, factor())
""",
    "a helper of a helper": """
def number():
    return {number}
def factor():
    return number()
def shape(sales):
    return by_product(sales, factor())
""",
    "a closure": """
def made(factor):
    def shape(sales):
        return by_product(sales, factor)
    return shape
shape = made({number})
""",
    "a default": """
number = {number}
def scaled(sales, factor=number):
    return by_product(sales, factor)
def shape(sales):
    return scaled(sales)
""",
    "a method": """
class Rule:
    factor = {number}
    def of(self, sales):
        return by_product(sales, self.factor)
def shape(sales):
    return Rule().of(sales)
""",
    "another module": """
from {helper} import factor
def shape(sales):
    return by_product(sales, factor)
""",
}
common = """
from pyspark.sql import functions as F
def by_product(sales, factor):
    return sales.groupBy("product").agg((F.sum("pieces") * factor).alias("pieces"))
"""


@pytest.fixture(scope="module")
def shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("shop")).declare(sales)
    lakehouse.publish("sales", {"id": "s1", "product": "tea", "sold_at": "2026-01-01T01:00:00Z", "pieces": 1})
    lakehouse.run()
    return lakehouse


@pytest.mark.parametrize("project", projects)
def test_a_change_is_noticed_of(project: str, shop: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lakehouse = shop.copied_to(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for number in (1, 2):
        module = written(tmp_path, projects[project], number, monkeypatch)
        lakehouse.declare(gold.view("doubled", inputs={"sales": sales}, keys=["product"], shape=module.shape))
        lakehouse.run()
        found += lakehouse.rows("gold.doubled", "pieces")
    assert found == [(1,), (2,)]


def written(folder: Path, text: str, number: int, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The project as it is when the number is this one: the same files and modules, imported again."""
    (folder / "helping.py").write_text(f"factor = {number}\n")
    path = folder / "project_of_shapes.py"
    path.write_text(common + text.format(number=number, helper="helping"))
    importlib.invalidate_caches()
    for name in ("helping", "project_of_shapes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    # A file of the same second and size would be taken for the same code.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("project_of_shapes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "project_of_shapes", module)
    spec.loader.exec_module(module)
    return module
