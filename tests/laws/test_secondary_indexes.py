"""Convergence with indexes: tables whose rows are found by them are those that a rebuild gives."""

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.model import small_frames
from sluice.model.found import Among
from sluice.storage import secondary_index as index
from tests.kit import Lakehouse, text
from tests.shop import priced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from sluice.model.found import Condition

products, facts_of_base = 4, 120
found = Counter[str]()


@pytest.fixture(autouse=True)
def used_on_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    found.clear()
    monkeypatch.setattr(small_frames, "read_bytes_max", 0)
    monkeypatch.setattr(index, "indexed", by_product)
    find_among = index.find_among

    def counted(*given: Any, **named: Any) -> Any:
        rows = find_among(*given, **named)
        found[Path(given[2]).name] += rows is not None and rows.num_rows > 0
        return rows

    monkeypatch.setattr(index, "find_among", counted)


def by_product(_table: Any, _schema: Any, _folder: str, conditions: "Sequence[Condition]", _files: Any) -> list[Among]:
    return [each for each in conditions if isinstance(each, Among) and each.column == "product"]


def version(chance: random.Random) -> dict[str, object]:
    product, hour = f"p{chance.randrange(products)}", chance.randrange(20_000) / 1_000
    return {"product": product, "changed_at": text(hour), "price": chance.randrange(1_000)}


def sale(chance: random.Random, number: int, hour: float) -> dict[str, object]:
    product = chance.choice([None, *(f"p{each}" for each in range(products))])
    return {"id": f"{number:09}", "product": product, "sold_at": text(hour)}


def base(spark: "SparkSession", folder: Path, chance: random.Random) -> Lakehouse:
    """Facts in several files, whose rows may be marked, and versions of the prices of their products."""
    lakehouse = Lakehouse(spark, folder, partitions=1).declare(priced)
    object.__setattr__(lakehouse.lake, "rows_per_file", 30)
    object.__setattr__(lakehouse.lake, "deletion_vectors_from_rows", 1)
    lakehouse.publish("sales", *[sale(chance, number, number / 6) for number in range(facts_of_base)], hours=100)
    lakehouse.publish("prices", *[version(chance) for _ in range(4 * products)])
    lakehouse.run()
    return lakehouse


def late_version(lakehouse: Lakehouse, chance: random.Random) -> None:
    lakehouse.publish("prices", version(chance))


def moved_fact(lakehouse: Lakehouse, chance: random.Random) -> None:
    """An earlier record of the same sale is the one that counts, and names another product."""
    number = chance.randrange(facts_of_base)
    lakehouse.publish("sales", sale(chance, number, number / 6), hours=1)


def new_facts(lakehouse: Lakehouse, chance: random.Random) -> None:
    lakehouse.publish("sales", *[sale(chance, 10_000 + chance.randrange(10_000), 7.0) for _ in range(3)], hours=101)


def maintenance(lakehouse: Lakehouse, _chance: random.Random) -> None:
    lakehouse.lake.compact(lakehouse.spark, "silver.priced")


def damage(lakehouse: Lakehouse, _chance: random.Random) -> None:
    for run in runs_of(lakehouse):
        run.write_bytes(run.read_bytes()[:-20])


def runs_of(lakehouse: Lakehouse) -> list[Path]:
    return sorted(Path(lakehouse.lake.root).glob(f"silver/*/{index.indexes_folder}/*/*.parquet"))


def test_what_is_found_by_indexes_gives_what_a_rebuild_gives(spark: "SparkSession", tmp_path: Path) -> None:
    chance = random.Random(11)
    lakehouse = base(spark, tmp_path, chance)
    for happenings in ([late_version, moved_fact], [maintenance, damage, late_version, new_facts]):
        for happen in happenings:
            happen(lakehouse, chance)
        lakehouse.run()
    assert found["sales"] >= 2
    assert found["priced"] >= 2
    assert runs_of(lakehouse)
    assert lakehouse.changed_by_rebuild() == {}


def test_a_rebuild_shows_that_a_row_is_missing_in_an_index(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_first(run: index.Run, among: Any) -> "Iterator[Any]":
        yield from (batch.slice(1) for batch in groups_with(run, among))

    groups_with, chance = index.groups_with, random.Random(11)
    lakehouse = base(spark, tmp_path, chance)
    monkeypatch.setattr(index, "groups_with", without_first)
    # The first rows of the index are those of the first product.
    lakehouse.publish("prices", version(chance) | {"product": "p0", "changed_at": text(0.0)})
    lakehouse.run()
    assert "silver.priced" in lakehouse.changed_by_rebuild()
