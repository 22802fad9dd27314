"""Laws 1 to 4: whatever the order, duplication and batches, the tables are those that the set of records implies."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from sluice import deduplicate, engine, history
from sluice.datasets import Dataset, Frames
from sluice.difference import operation
from sluice.silver import as_of, history_from_snapshots
from sluice.silver import history as silver_history
from tests.kit import Lakehouse
from tests.laws import orders as law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

seeds = st.integers(0, 2**32 - 1)
cases = 110
# Each example is a world of 110 independent cases; to shrink a world would take hours, and its seed is printed.
few = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.generate],
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def lived_through(
    spark: "SparkSession", folder: Path, world: law.World, datasets: Sequence[Dataset] = law.lakehouse_of_every_shape
) -> Lakehouse:
    """A lakehouse that ran after each batch, and released what was late after one of them."""
    lakehouse = Lakehouse(spark, folder, partitions=world.partitions).declare(*datasets)
    arrived = 0
    for number, batch in enumerate(world.batches, start=1):
        arrived = law.publish(lakehouse, batch, arrived)
        lakehouse.run()
        if number == world.release_after:
            law.release_late_orders(lakehouse)
    lakehouse.run()
    return lakehouse


@few
@given(seed=seeds)
def test_any_arrival_gives_what_the_records_imply(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    world = law.world(seed, cases)
    lakehouse = lived_through(spark, tmp_path_factory.mktemp("world"), world)

    expected = world.expected()
    assert law.found(lakehouse, list(expected)) == expected
    assert all(each.balanced for each in lakehouse.audit().values())
    assert [each for each in lakehouse.laws() if not each.balanced] == []

    versions = lakehouse.versions()
    assert lakehouse.run() == {}
    assert lakehouse.versions() == versions

    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}
