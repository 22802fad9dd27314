"""What a gate has refused is written by nothing: no later run, no recomputed range, no restart."""

import os
import random
from typing import TYPE_CHECKING

import pytest

from sluice import bronze, silver
from sluice.engine.backfill import BackfillRange
from sluice.engine.catalogue import expecting, ordered
from sluice.errors import SluiceError
from sluice.expect import expect, suite
from tests.kit import Lakehouse, at, text

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

sales = silver.events(
    "sales",
    source=bronze.topic("sales"),
    schema="id string, sold_at timestamp, pieces int",
    keys=["id"],
    event_time="sold_at",
    future_tolerance="1000 days",
)
most = expect("column_values_to_be_between", column="pieces", max_value=9, severity="critical")
given = os.environ.get("SLUICE_LAW_SEED")


# Fixed seeds: every process that collects the tests must find the same ones.
@pytest.mark.parametrize("seed", [int(given)] if given else [1, 2])
def test_what_was_refused_is_written_by_nothing(spark: "SparkSession", tmp_path: "Path", seed: int) -> None:
    chance = random.Random(seed)
    lakehouse = Lakehouse(spark, tmp_path)
    lakehouse.catalogue = expecting(ordered([sales]), {"silver.sales": suite("silver.sales", most)})
    sound = [sale(chance, number, pieces=chance.randint(1, 9)) for number in range(12)]
    lakehouse.publish("sales", *sound[:8])
    lakehouse.run()
    assert len(lakehouse.rows("silver.sales")) == 8
    # Sound ones arrive with what is refused, and wait with it.
    lakehouse.publish("sales", sale(chance, 12, pieces=10), *sound[8:])
    before = lakehouse.rows("silver.sales"), lakehouse.rows("silver._fates")
    for what in chance.sample(["run", "part", "restart", "part", "rebuild"], 5):
        again = Lakehouse(spark, tmp_path)
        again.catalogue = lakehouse.catalogue
        if what == "part":
            recompute_range(again, chance)
        else:
            again.run(rebuild=what == "rebuild")
        assert (again.rows("silver.sales"), again.rows("silver._fates")) == before, f"{what} (seed {seed})"


def sale(chance: random.Random, number: int, pieces: int) -> dict[str, object]:
    return {"id": f"s{number}", "sold_at": text(chance.randint(0, 48)), "pieces": pieces}


def recompute_range(lakehouse: Lakehouse, chance: random.Random) -> None:
    """What `sluice run --since --until` does, and Airflow every night."""
    since = chance.randint(0, 40)
    part = BackfillRange(since=at(since), until=at(since + 24))
    try:
        lakehouse.runner().recompute_range(lakehouse.catalogue.datasets, part)
    except SluiceError as error:
        assert "refused" in str(error)  # noqa: PT017 - that it says nothing is as good
