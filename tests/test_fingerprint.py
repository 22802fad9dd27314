"""Fingerprints: every change of code or constants that a declaration reaches is noticed, and nothing else is."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import make_dataclass
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from sluice import bronze, gold, silver
from sluice.engine.catalogue import load
from sluice.errors import DeclarationError
from sluice.model.fingerprint import fingerprint
from tests.kit import Lakehouse

numbers = count()

helpers = """
    RATE = 3
    LIMITS = {"low": 1, "high": 9}

    class Tax:
        share = 0.2

        @staticmethod
        def of(value):
            return value * Tax.share + LIMITS["low"]

    def scaled(value):
        return value * RATE

    def unrelated(value):
        return value * 7
"""

# A function that reaches what it needs in every way there is.
shapes = """
    import functools
    from dataclasses import dataclass
    from enum import Enum

    import helpers
    from helpers import Tax
    from pyspark.sql import functions as F

    KINDS = {"b", "a", "c", "d"}
    STEPS = [1, 2]
    OFFSET = 5
    PATTERNS = ("x", b"y", 1.5, None)

    class Mode(Enum):
        FAST = 1
        SLOW = 2

    @dataclass(frozen=True)
    class Options:
        mode: Mode = Mode.FAST
        depth: int = 1

        def doubled(self):
            return self.depth * FACTOR

    FACTOR = 2
    OPTIONS = Options(depth=4)

    def noted(text):
        def decorate(function):
            @functools.wraps(function)
            def wrapper(*args):
                return (text, function(*args))
            return wrapper
        return decorate

    @noted("first")
    def decorated(value):
        return value

    @functools.lru_cache
    def cached(value):
        return value + OFFSET

    def make(times):
        return lambda value: value * times

    tripled = make(3)
    add_one, add_two = (lambda value: value + 1), (lambda value: value + 2)
    half = functools.partial(lambda value, by: value / by, by=2)

    def recursive(value):
        return shape(value) if value else value

    def shape(df, start=STEPS[0]):
        "What it makes."
        # A remark.
        from helpers import scaled
        found = [cached(each) for each in STEPS if each in KINDS]
        inner = lambda value: [add_two(tripled(each)) for each in value]
        return F.lit(start), found, inner(found), helpers.LIMITS["high"], Tax.of(scaled(1)), OPTIONS.doubled(), \\
            decorated(PATTERNS), half(2), recursive

    def elsewhere(df):
        return df
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The fingerprint of `shape` in a project of two modules, in some of which a text is replaced by another."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def printed(old: str = "", new: str = "", wanted: str = "shape") -> str:
        folder = tmp_path / f"project_{next(numbers)}"
        folder.mkdir()
        sources = {"helpers": dedent(helpers), "shapes": dedent(shapes)}
        assert old in "".join(sources.values())
        loaded: dict[str, Any] = {}
        for name, text in sources.items():
            (folder / f"{name}.py").write_text(text.replace(old, new) if old else text)
            spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
            assert spec
            assert spec.loader
            monkeypatch.setitem(sys.modules, name, loaded.setdefault(name, importlib.util.module_from_spec(spec)))
            spec.loader.exec_module(loaded[name])
        return fingerprint("gold.x", {"kind": "join 2", "shape": getattr(loaded["shapes"], wanted)})

    return printed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 3", "RATE = 4"),
        ('"high": 9', '"high": 8'),
        ('"low": 1', '"low": 1.0'),
        ("share = 0.2", "share = 0.25"),
        ("value * Tax.share", "value + Tax.share"),
        ("value * RATE", "value / RATE"),
        ('"b", "a", "c"', '"b", "a"'),
        ("STEPS = [1, 2]", "STEPS = [1, 3]"),
        ("STEPS = [1, 2]", "STEPS = (1, 2)"),
        ("OFFSET = 5", "OFFSET = 6"),
        ("OFFSET = 5", 'OFFSET = "5"'),
        ('b"y"', '"y"'),
        ("1.5, None", "1.5, False"),
        ("start=STEPS[0]", "start=STEPS[1]"),
        ("Mode.FAST", "Mode.SLOW"),
        ("SLOW = 2", "SLOW = 3"),
        ("depth: int = 1", "depth: int = 2"),
        ("depth=4", "depth=5"),
        ("FACTOR = 2", "FACTOR = 3"),
        ('@noted("first")', '@noted("second")'),
        ("return (text, function(*args))", "return (function(*args), text)"),
        ("make(3)", "make(4)"),
        ("value + 2)", "value + 3)"),
        ("by=2)", "by=3)"),
        ("value / by", "value // by"),
        ("add_two(tripled", "add_one(tripled"),
        ("if value else value", "if value else None"),
        ("from pyspark.sql import functions as F", "import math as F"),
        ("from helpers import scaled", "from helpers import unrelated as scaled"),
    ],
)
def test_a_change_of_what_a_shape_reaches_is_noticed(project: Callable[..., str], old: str, new: str) -> None:
    assert project(old, new) != project()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# A remark.", "# Another\n\n    # in two lines."),
        ('"What it makes."', '"""It makes\n    something."""'),
        ("STEPS = [1, 2]", "STEPS = [\n    1,\n    2,\n]"),
        ("value * 7", "value * 8"),
        ("value + 1)", "value + 9)"),
        ('"b", "a", "c"', '"c", "b", "a"'),
        ("def elsewhere", "def anywhere"),
        ("import functools\nfrom dataclasses import dataclass", "from dataclasses import dataclass\nimport functools"),
        (
            "found = [cached(each) for each in STEPS if each in KINDS]",
            "found = [\n  cached(each) for each in STEPS\n  if (each in KINDS)\n]",
        ),
        ("OFFSET = 5", "OFFSET = 2 + 3"),
    ],
)
def test_a_change_of_anything_else_is_not(project: Callable[..., str], old: str, new: str) -> None:
    assert project(old, new) == project()


def test_the_lambdas_of_one_line_are_told_apart(project: Callable[..., str]) -> None:
    assert project("value + 1)", "value + 9)", wanted="add_one") != project(wanted="add_one")
    assert project("value + 2)", "value + 9)", wanted="add_one") == project(wanted="add_one")
    assert project(wanted="add_one") != project(wanted="add_two")


@pytest.mark.process
def test_it_is_the_same_in_every_process_folder_and_with_every_seed_of_hashes(tmp_path: Path) -> None:
    said = "import shapes, sluice.model.fingerprint as f; print(f.fingerprint('gold.x', {'shape': shapes.shape}))"
    found = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "helpers.py").write_text(dedent(helpers))
        (folder / "shapes.py").write_text(dedent(shapes))
        done = subprocess.run(
            [sys.executable, "-c", said],
            env={
                **os.environ,
                "PYTHONHASHSEED": seed,
                "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)]),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_a_project_that_is_installed_is_followed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for rate in (2, 33):
        file = tmp_path / str(rate) / "site-packages" / "pipelines" / "gold.py"
        file.parent.mkdir(parents=True)
        file.write_text(f"RATE = {rate}\ndef shape(df):\n    import json, nothing_there\n    return df, RATE\n")
        spec = importlib.util.spec_from_file_location("pipelines.gold", file)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "pipelines.gold", module)
        spec.loader.exec_module(module)
        found.add(fingerprint("gold.x", {"shape": module.shape}))
    assert len(found) == 2


handle = open(os.devnull)  # noqa: SIM115 - what no fingerprint can tell


def with_a_handle(things: Any) -> Any:
    return things.where(handle.name)


things = silver.events("things", source=bronze.topic("things"), schema="id string", keys=["id"])


def view(**options: Any) -> Any:
    return gold.view("x", inputs={"things": things}, keys=["id"], **options)


def test_what_cannot_be_followed_is_refused_or_has_a_version() -> None:
    with pytest.raises(DeclarationError, match=r"gold\.x: .*handle, of type _io\.TextIOWrapper.*version=1"):
        _ = view(shape=with_a_handle).fingerprint
    first, second = view(shape=with_a_handle, version=1), view(shape=with_a_handle, version=2)
    assert first.fingerprint == view(shape=with_a_handle, version=1).fingerprint != second.fingerprint


def test_a_function_without_source_is_refused() -> None:
    made: dict[str, Any] = {"__name__": __name__}
    exec("def shape(things):\n    return things", made)
    with pytest.raises(DeclarationError, match="has no source that can be read"):
        _ = view(shape=made["shape"]).fingerprint


def test_a_field_that_is_new_in_the_engine_changes_nothing_until_it_is_used() -> None:
    before = make_dataclass("Rule", [("keys", tuple[str, ...])], namespace={"__module__": "sluice.rule"})
    after = make_dataclass(
        "Rule", [("keys", tuple[str, ...]), ("fill", bool, False)], namespace={"__module__": "sluice.rule"}
    )

    def of(rule: object) -> str:
        return fingerprint("silver.x", {"kind": "history 2", "rule": rule})

    assert of(before(("a",))) == of(after(("a",))) != of(after(("a",), True))


def test_no_two_declarations_have_one_fingerprint() -> None:
    values: list[Any] = [None, True, 1, 1.0, "1", b"1", "None", (1,), [1], {1}, {1: 1}, {"1": 1}, ("1",), ["tuple", 1]]
    assert len({fingerprint("x", {"value": value}) for value in values}) == len(values)


declared = """
    from pipelines.rates import taxed
    from sluice import bronze, gold, silver

    sales = silver.events("sales", source=bronze.topic("sales"), schema="id string, price bigint", keys=["id"])

    def with_tax(sales):
        return sales.select("id", taxed("price").alias("price"))

    prices = gold.view("prices", inputs={"sales": sales}, keys=["id"], shape=with_tax)
"""
rates = """
    from pyspark.sql import functions as F

    RATE = 2

    def taxed(column):
        return F.col(column) * RATE
"""


def test_gold_follows_a_constant_that_is_edited_between_two_runs(
    lakehouse: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "__init__.py").write_text(dedent(declared))
    (folder / "rates.py").write_text(dedent(rates))
    lakehouse.publish("sales", {"id": "a", "price": 10}, {"id": "b", "price": 0})
    lakehouse.catalogue = load(tmp_path)
    lakehouse.run()
    assert lakehouse.rows("gold.prices") == [("a", 20), ("b", 0)]
    (folder / "rates.py").write_text(dedent(rates).replace("RATE = 2", "# More.\nRATE = 3"))
    lakehouse.catalogue = load(tmp_path)
    done = lakehouse.run()
    assert lakehouse.rows("gold.prices") == [("a", 30), ("b", 0)]
    assert (list(done), done["gold.prices"].rows.total) == (["gold.prices"], 1), "the difference alone is written"


# What tables were made by. A change here rebuilds everybody's: it must be meant, by the version of a kind.
of_the_flights = {
    "silver.flight_events": "81bdb6daf4625ee6",
    "silver.flights": "ac2c8003d3e17836",
    "silver.conditions_changes": "05766776e36ed710",
    "silver.conditions": "fcec9cee17ebee64",
    "silver.aircraft_changes": "0812bb706b8806d2",
    "silver.aircraft": "ef33fd5222910adb",
    "silver.departures": "db5fc45504dd2cf7",
    "gold.delays_hourly": "daf43760174742ae",
    "gold.delays_by_weather": "7fb3f9eebb6a63ce",
    "gold.carrier_days": "9f96dd59dcfb345f",
}


def test_a_release_of_the_engine_rebuilds_no_tables() -> None:
    found = {dataset.name: dataset.fingerprint for dataset in load(Path(__file__).parents[1]).datasets}
    assert found == of_the_flights
