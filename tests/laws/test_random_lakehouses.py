"""Random lakehouses: whatever is declared and however records arrive, the tables are those that the records imply."""

import os
from typing import TYPE_CHECKING

import pytest

from tests.laws.findings import Trial, report
from tests.laws.lakehouses import world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

cases, singles = 30, 2
# How often a failure is retried with fewer records, to report a small case.
tries = 12
# `make soak` draws others; `SLUICE_LAW_SEED=… pytest` asks one of them again.
seeds = [int(os.environ.get("SLUICE_LAW_SEED", "31"))]


@pytest.mark.parametrize("seed", seeds)
def test_every_life_of_a_random_lakehouse_gives_what_the_records_imply(spark: "SparkSession", seed: int) -> None:
    trial = Trial(spark, world(seed), range(cases), singles)
    found = trial.findings()
    assert not found, report(trial, found, tries)
    assert trial.counts.narrow >= 4
