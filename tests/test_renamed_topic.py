"""A topic that lands under another name than its own: each question about its records is answered."""

import pytest

from sluice import bronze, silver
from sluice.operate import checks, quarantine
from tests.kit import Lakehouse

readings = silver.events(
    "readings",
    source=bronze.topic("readings", topic="plant_readings"),
    schema="id string, value int",
    keys=["id"],
)


@pytest.fixture
def plant(lakehouse: Lakehouse) -> Lakehouse:
    lakehouse.declare(readings).publish("plant_readings", {"id": "a", "value": 1}, b"{", b"}", key="k").run()
    return lakehouse


def test_its_records_are_accounted_for(plant: Lakehouse) -> None:
    (fates,) = plant.audits()
    assert (fates.dataset, fates.topic, fates.landed, fates.accepted) == ("silver.readings", "plant_readings", 3, 1)
    assert (fates.quarantined, fates.balanced) == (2, True)
    found = checks.check(plant.spark, plant.lake, plant.catalogue, plant.catalogue.datasets)["silver.readings"]
    assert {row["expectation"]: row["verdict"] for row in found}["conservation"] == "passed"


def test_its_quarantined_records_are_shown_set_aside_and_released(plant: Lakehouse) -> None:
    records = quarantine.quarantined_records(plant.lake, readings)
    assert [(each.topic, each.value) for each in records] == [("plant_readings", b"{"), ("plant_readings", b"}")]
    position = next(
        f"plant_readings/{row['partition']}/{row['offset']}"
        for row in plant.table("bronze.readings").collect()
        if bytes(row["value"]).startswith(b'{"id"')
    )
    assert quarantine.add(plant.lake, plant.log, readings, [position], "a test") == 1
