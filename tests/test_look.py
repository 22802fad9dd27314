"""The audit of rows: what contradicts between tables is counted."""

from datetime import UTC, datetime

from sluice import bronze, silver
from sluice.look import query
from tests.kit import Lakehouse, text
from tests.shop import priced


def test_the_audit_notices_facts_that_are_missing_doubled_or_invented_and_versions_that_overlap(
    lakehouse: Lakehouse,
) -> None:
    lakehouse.declare(priced)
    lakehouse.publish("sales", *[{"id": str(n), "product": "p", "sold_at": text(n)} for n in range(4)])
    lakehouse.publish("prices", *[{"product": "p", "changed_at": text(n), "price": n} for n in range(3)]).run()
    assert {each.broken for each in lakehouse.laws()} == {0}

    facts, versions = (f"delta.`{lakehouse.lake.path(name)}`" for name in ("silver.priced", "silver.prices"))
    lakehouse.spark.sql(f"DELETE FROM {facts} WHERE id = '0'").collect()
    lakehouse.spark.sql(f"INSERT INTO {facts} SELECT * FROM {facts} WHERE id = '1'").collect()
    lakehouse.spark.sql(f"UPDATE {facts} SET id = 'x' WHERE id = '2'").collect()
    lakehouse.spark.sql(f"UPDATE {versions} SET valid_to = NULL WHERE price = 0").collect()
    assert {each.law: each.broken for each in lakehouse.laws() if each.broken} == {
        "rows of silver.sales that are missing": 2,
        "rows not of silver.sales": 1,
        "rows that are there twice": 1,
        "versions that overlap": 1,
        "versions with a wrong is_current": 1,
    }


def test_the_end_of_all_time_can_be_queried(lakehouse: Lakehouse) -> None:
    contracts = silver.history(
        "contracts",
        source=bronze.topic("contracts"),
        schema="id string, signed_at timestamp, ends_at timestamp",
        keys=["id"],
        sequence_by="signed_at",
        future_tolerance="1000 days",
    )
    lakehouse.declare(contracts)
    lakehouse.publish("contracts", {"id": "a", "signed_at": text(1), "ends_at": "9999-12-31T00:00:00Z"}).run()
    found = query(lakehouse.lake, "SELECT ends_at FROM silver.contracts")
    assert found.rows == [(datetime(9999, 12, 31, tzinfo=UTC),)]
