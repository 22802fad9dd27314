"""`sluice plan` says what the next run does; the run itself is the judge."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice import Project
from sluice.api import Record
from sluice.cli.look import planned
from sluice.operate import forecast
from sluice.runtime.settings import Settings
from tests.commands import sluice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

actions = {
    "first build": ("build",),
    "declaration changed": ("recompute",),
    # Whether the columns of an input get other types is known once it is computed.
    "input rebuilt": ("recompute", "follow"),
    "records": ("land", "build"),
    "changes": ("follow",),
    "watermark": ("follow",),
}
order = b'{"order_id": "x1", "placed_at": "2026-03-05T09:00:00Z", "product_id": "tea", "quantity": 1}'


def new_order(project: Project) -> None:
    project.append("orders", [Record(order)])


def other_measure(project: Project) -> None:
    edit(project, "gold", '"sum(quantity)"', '"sum(quantity * 12)"')


def other_type(project: Project) -> None:
    edit(project, "silver", "quantity int", "quantity bigint")


def nothing(project: Project) -> None:
    pass


def edit(project: Project, module: str, before: str, after: str) -> None:
    path = project.settings.project / "pipelines" / f"{module}.py"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def both(project: Project) -> None:
    new_order(project)
    other_measure(project)


@pytest.fixture(scope="module")
def ran(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project whose first run was as planned."""
    project = Project.create(tmp_path_factory.mktemp("plan") / "shop", spark=spark)
    for topic in ("products", "orders"):
        project.append(topic, (project.settings.project / f"{topic}.jsonl").read_bytes().splitlines())
    assert not differences(project)
    return project.settings.project


@pytest.fixture
def shop(ran: Path, spark: "SparkSession", tmp_path: Path) -> Iterator[Project]:
    shutil.copytree(ran, tmp_path / "shop")
    with Project(tmp_path / "shop", spark=spark) as project:
        yield project


def differences(project: Project) -> list[str]:
    """Where a run does something else than was planned."""
    steps = {step.name: step for step in project.plan()}
    done = project.run()
    causes = {event.name: event.cause for event in done.events if event.is_effective}
    wrong = [
        f"{name}: {cause}, planned {steps[name]}"
        for name, cause in causes.items()
        if steps[name].action not in actions[str(cause)]
    ]
    wrong += [
        f"{step.name}: {step} was not done"
        for step in steps.values()
        if step.is_change and step.name not in causes and step.action != "follow"
    ]
    return wrong + [f"{event.name}: held" for event in done.events if event.held and steps[event.name].action != "hold"]


@pytest.mark.parametrize("change", [nothing, new_order, other_measure, other_type, both])
def test_a_run_does_what_was_planned(change: Callable[[Project], None], shop: Project) -> None:
    change(shop)
    assert not differences(shop)
    assert {step.action for step in shop.plan()} == {"nothing"}


def test_a_plan_that_forgets_declarations_is_noticed(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    other_measure(shop)
    monkeypatch.setattr(forecast, "why", lambda *_, **__: None)
    assert any("declaration changed" in each for each in differences(shop))


def test_the_rows_at_stake_and_what_waits_are_said(shop: Project) -> None:
    both(shop)
    steps = {step.name: step for step in shop.plan()}
    rows = {state.dataset: state.rows for state in shop.status()}
    assert steps["bronze.orders"].action == "land"
    assert steps["bronze.orders"].records == 1
    assert steps["silver.orders"].because == "changes of bronze.orders"
    gold = steps["gold.revenue_daily"]
    assert (gold.action, gold.because, gold.rows) == ("recompute", "declaration changed", rows["gold.revenue_daily"])
    assert gold.fields == ("groups.measures",)
    assert steps["silver.products"].action == "nothing"
    said = sluice("plan", here=shop.settings.project).stdout
    assert "declaration changed: groups.measures" in said
    assert (
        f"Recomputes 1 of {sum(each.rows is not None for each in steps.values())} tables ({gold.rows} rows now)" in said
    )


def test_a_first_build_recomputes_no_rows(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "new")
    actions = [step.action for step in project.plan()]
    # A topic that need not exist does not.
    assert Counter(actions) == {"build": len(actions) - 1, "nothing": 1}
    said = sluice("plan", here=project.settings.project).stdout.splitlines()[-1]
    assert said == f"Builds {len(actions) - 1} of {len(actions) - 1} tables; 0 unchanged."


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (
            {"build": 2, "recompute": 1, "nothing": 4},
            "Builds 2 of 7 tables; recomputes 1 of 7 tables (1 row now); 4 un",
        ),
        ({"recompute": 2}, "Recomputes 2 of 2 tables (2 rows now); 0 un"),
        ({"follow": 1}, "Recomputes 0 of 1 table (0 rows now); 0 un"),
        ({"nothing": 1}, "Nothing to do: 1 table is up to date."),
    ],
)
def test_a_plan_is_said_in_a_line(actions: dict[forecast.Action, int], said: str) -> None:
    steps = [forecast.Step("a", action, rows=1) for action, count in actions.items() for _ in range(count)]
    assert planned(steps, actions.get("nothing", 0)).startswith(said)


def test_what_is_on_hold_stays(shop: Project, spark: "SparkSession") -> None:
    other_type(shop)
    held = Project(
        shop.settings.project, Settings(changed_declarations="hold", project=shop.settings.project), spark=spark
    )
    steps = {step.name: step for step in held.plan()}
    assert steps["silver.orders"].action == "hold"
    assert steps["silver.priced_orders"].action == "nothing"
    assert not differences(held)


def test_a_table_that_nothing_declares_is_left(shop: Project) -> None:
    for folder in ("pipelines/gold.py", "expectations/gold"):
        remove(shop.settings.project / folder)
    steps = {step.name: step for step in shop.plan()}
    assert steps["gold.revenue_daily"].action == "leave"
    assert not differences(shop)
