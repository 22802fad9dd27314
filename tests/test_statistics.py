"""Statistics of files: what delta-rs would write wrong is not there, and what an older release wrote is mended."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from sluice import bronze, gold, silver
from sluice.engine.backfill import BackfillRange
from sluice.engine.refresh import refresh
from sluice.errors import SluiceError
from sluice.model.datasets import Dataset
from sluice.operate.forecast import forecast
from sluice.storage.delta import history, writer
from sluice.storage.delta.statistics import first, has_wrong_bounds, listed, properties_of
from tests.kit import Lakehouse, at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Keys that delta-rs takes for other numbers: beyond 64 bits, and beyond a double.
keys = {
    "decimal(20,0)": "12345678901234567891",
    "decimal(38,18)": "0.936619517785620257",
    "decimal(16,2)": "97531087412535.32",
}


def declared(kind: str) -> list[Dataset]:
    """A history by key, facts, each with its version, and figures by key; the key is a field of a struct, too."""
    schema = f"id {kind}, place struct<id {kind}>, v int, at timestamp"
    options: dict[str, Any] = {"schema": schema, "future_tolerance": "1000 days"}
    things = silver.history(
        "things", source=bronze.topic("things"), keys=["id"], sequence_by="at", except_column_list=["place"], **options
    )
    facts = silver.events("facts", source=bronze.topic("facts"), keys=["v"], event_time="at", **options)
    known = silver.as_of("known", facts=facts, event_time="at", dimensions={"thing": things})
    figures = gold.aggregate(
        "figures",
        source=known,
        group_by=["id", "place.id AS within"],
        measures={"n": "count(*)", "sum": "sum(v)", "known": "count(thing.v)"},
    )
    return [things, facts, known, figures]


def publish(lakehouse: Lakehouse, key: str, number: int) -> None:
    """One more version of the key and one more fact about it; both are among those of another key."""
    value = {"id": Decimal(key), "place": {"id": Decimal(key)}, "v": number, "at": at(number).isoformat()}
    text = str(value).replace("'", '"').replace(f'Decimal("{key}")', key).encode()
    others = [text.replace(key.encode(), b"0").replace(f'"v": {number}'.encode(), b'"v": 10')] if number == 1 else []
    lakehouse.publish("things", text, *others, hours=number)
    lakehouse.publish("facts", text, *others, hours=number)


def figures_of(lakehouse: Lakehouse, key: str) -> list[tuple[Any, ...]]:
    return [row[2:] for row in lakehouse.rows("gold.figures") if row[0] == Decimal(key)]


def versions_of(lakehouse: Lakehouse, key: str) -> list[tuple[Any, ...]]:
    return [row[1:] for row in lakehouse.rows("silver.things", "id", "v", "is_current") if row[0] == Decimal(key)]


@contextmanager
def older_release() -> Iterator[None]:
    """Statistics are written of all columns, and taken to be right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "properties_of", lambda schema: {})
        patch.setattr(history, "has_wrong_bounds", lambda table: False)
        yield


def test_rows_of_a_long_decimal_are_found(lakehouse: Lakehouse) -> None:
    kind = "decimal(38,18)"
    lakehouse.declare(*declared(kind))
    for number in (1, 2, 3):
        publish(lakehouse, keys[kind], number)
        lakehouse.run()
    assert figures_of(lakehouse, keys[kind]) == [(3, 6, 3)]
    assert versions_of(lakehouse, keys[kind]) == [(1, False), (2, False), (3, True)]
    assert all(each.balanced for each in lakehouse.laws())
    of_key = lakehouse.table("gold.figures").where(f"id = CAST('{keys[kind]}' AS {kind})")
    assert of_key.count() == 1
    assert lakehouse.changed_by_rebuild() == {}
    before = lakehouse.versions()
    lakehouse.run()
    assert lakehouse.versions() == before


def test_what_an_older_release_wrote_is_mended_once(lakehouse: Lakehouse) -> None:
    kind = "decimal(20,0)"
    lakehouse.declare(*declared(kind))
    with older_release():
        for number in (1, 2, 3):
            publish(lakehouse, keys[kind], number)
            lakehouse.run()
        # This is the mutant, too: rows are not found, and stay beside those that are to replace them.
        assert len(figures_of(lakehouse, keys[kind])) > 1
        assert len(versions_of(lakehouse, keys[kind])) > 3
    steps = {each.name: each for each in forecast(lakehouse.lake, lakehouse.log, lakehouse.catalogue)}
    assert steps["silver.things"].action == steps["gold.figures"].action == "recompute"
    assert "wrong bounds of long decimals" in steps["silver.things"].because
    lakehouse.run()
    assert figures_of(lakehouse, keys[kind]) == [(3, 6, 3)]
    assert versions_of(lakehouse, keys[kind]) == [(1, False), (2, False), (3, True)]
    commit = lakehouse.lake.last_commit("silver.things")
    assert commit
    assert commit.entry.cause == "rebuild"
    assert "wrong bounds" in (commit.entry.because or "")
    before = lakehouse.versions()
    lakehouse.run()
    assert lakehouse.versions() == before
    publish(lakehouse, keys[kind], 4)
    lakehouse.run()
    assert figures_of(lakehouse, keys[kind]) == [(4, 10, 4)]
    assert lakehouse.changed_by_rebuild() == {}


def test_a_column_becomes_a_long_decimal_and_something_else_again(lakehouse: Lakehouse) -> None:
    """The list of columns follows them; what is left of it is of no harm."""
    for number, (kind, key) in enumerate([("int", "7"), ("decimal(16,2)", keys["decimal(16,2)"]), ("string", "7")], 1):
        lakehouse.declare(*declared(kind))
        publish(lakehouse, key, number)
        lakehouse.run()
        for table in ("silver.things", "silver.known", "gold.figures"):
            found = DeltaTable(lakehouse.lake.path(table))
            assert not has_wrong_bounds(found)
            names = found.metadata().configuration.get(listed, "").replace("`", "").split(",")
            assert ("id" in names) is False
        assert lakehouse.changed_by_rebuild() == {}


def test_a_table_without_long_decimals_has_no_list(lakehouse: Lakehouse) -> None:
    lakehouse.declare(*declared("decimal(15,2)"))
    publish(lakehouse, "1.50", 1)
    lakehouse.run()
    assert listed not in DeltaTable(lakehouse.lake.path("gold.figures")).metadata().configuration


def test_the_list_has_the_columns_whose_bounds_are_exact(spark: "SparkSession") -> None:
    def of(schema: str) -> dict[str, str]:
        return properties_of(cast("StructType", StructType.fromDDL(schema)))

    assert of("a int, b decimal(15,2), c decimal(18,0), d struct<e: decimal(15,15)>") == {}
    assert of("a int, b decimal(16,2), ok boolean, t array<int>, raw binary, at timestamp") == {listed: "`a`,`at`"}
    assert of("`a``b` string, d struct<e: decimal(19,0), `ü %`: date>") == {listed: "`a``b`,`d`.`ü %`"}
    assert of("a decimal(38,0), b boolean") == {first: "0"}
    many = ", ".join(f"c{number} int" for number in range(40))
    assert of(f"{many}, d decimal(38,0)")[listed].count(",") == 31


def test_a_part_of_a_table_waits_until_all_of_it_is_mended(lakehouse: Lakehouse) -> None:
    lakehouse.declare(*declared("decimal(20,0)"))
    with older_release():
        publish(lakehouse, keys["decimal(20,0)"], 1)
        lakehouse.run()
    (known,) = (each for each in lakehouse.catalogue.datasets if each.name == "silver.known")
    with pytest.raises(SluiceError, match=r"silver\.known: its log may have wrong bounds .* sluice run silver\.known"):
        refresh(lakehouse.spark, lakehouse.lake, known, backfill=BackfillRange(since=at(0), until=at(2)))
