"""Laws 1 to 4: whatever the order, duplication and batches, the tables are those that the set of records implies."""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice import as_of, deduplicate
from tests.kit import Lakehouse
from tests.laws import orders as law

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

seeds = st.integers(0, 2**32 - 1)
# Each example is a world of 60 independent cases; to shrink a world would take hours, and its seed is printed.
few = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def lived_through(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, world: law.World) -> Lakehouse:
    """A lakehouse that ran after each batch."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("world")).declare(law.colour_hours)
    arrived = 0
    for batch in world.batches:
        arrived = law.publish(lakehouse, batch, arrived)
        lakehouse.run()
    return lakehouse


@few
@given(seed=seeds)
def test_any_arrival_gives_what_the_records_imply(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    world = law.world(seed)
    lakehouse = lived_through(spark, tmp_path_factory, world)

    assert law.found(lakehouse) == world.expected()
    assert all(each.balanced for each in lakehouse.audit().values())

    versions = lakehouse.versions()
    assert lakehouse.run() == {}
    assert lakehouse.versions() == versions

    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}


mutants: dict[str, tuple[Any, str, Any]] = {
    "late dimension changes are ignored": (
        as_of,
        "changed_intervals",
        lambda changes, keys: changes.selectExpr(*keys, "valid_from AS _from", "valid_to AS _to").limit(0),
    ),
    "the log's order has no partition and offset, and time runs backwards": (
        deduplicate,
        "order",
        ("_digest",),
    ),
}


@pytest.mark.parametrize("mutant", mutants)
def test_the_law_notices_when(
    mutant: str,
    spark: "SparkSession",
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, name, replacement = mutants[mutant]
    monkeypatch.setattr(module, name, replacement)
    world = law.world(seed=1)
    assert law.found(lived_through(spark, tmp_path_factory, world)) != world.expected()
