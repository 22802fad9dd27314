"""The audit of rows: what contradicts between tables is counted."""

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
