"""Laws 1 to 4: whatever the order, duplication and batches, the tables are those that the set of records implies."""

import dataclasses
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sluice.engine.evaluation import Evaluation
from sluice.errors import SluiceError
from sluice.model import few_rows
from sluice.model.datasets import Dataset, Frames
from sluice.model.few_rows import is_same
from sluice.model.scope import Scope
from sluice.shapes import deduplicate, history
from sluice.shapes.difference import operation
from sluice.shapes.interval_join import IntervalJoin, Side, bucket, floor
from sluice.silver import joins as silver_joins
from tests.kit import Lakehouse
from tests.laws import orders as law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

seeds = st.integers(0, 2**32 - 1)
cases = 210
# The example is a world of 210 independent cases; to shrink a world would take hours, and its seed is printed.
few = settings(
    max_examples=1,
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
        if number == world.release_after and law.orders in lakehouse.catalogue.datasets:
            law.release_late_orders(lakehouse)
    lakehouse.run()
    return lakehouse


@few
@given(seed=seeds)
def test_any_arrival_gives_what_the_records_imply(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    world = law.world(seed, cases, last_share=0.03, release_after=1)
    lakehouse = lived_through(spark, tmp_path_factory.mktemp("world"), world)

    expected = {name: rows for name, rows in world.expected().items() if name in lakehouse.lake.tables()}
    assert len(expected) >= 7
    assert law.found(lakehouse, list(expected)) == expected
    assert [each for each in lakehouse.audits() if not each.balanced] == []
    assert [each for each in lakehouse.laws() if not each.balanced] == []

    versions = lakehouse.versions()
    assert lakehouse.run() == {}
    assert lakehouse.versions() == versions

    rebuilt = lakehouse.run(rebuild=True)
    assert {name: event.rows.total for name, event in rebuilt.items() if event.rows.total} == {}


def keys_alone(own: "DataFrame", new: "DataFrame", grain: Sequence[str]) -> "DataFrame":
    """A difference that compares values with `<>`: null is never different."""
    before = own.select(F.struct(*grain).alias("grain"), F.struct(*new.columns).alias("before"))
    after = new.select(F.struct(*grain).alias("grain"), F.struct(*new.columns).alias("after"))
    both = before.join(after, before["grain"].eqNullSafe(after["grain"]), "full_outer")
    differs = [F.coalesce(F.col(f"before.`{name}`") != F.col(f"after.`{name}`"), F.lit(False)) for name in new.columns]
    one_side = F.col("before").isNull() | F.col("after").isNull()
    kind = F.when(F.col("before").isNull(), "inserted").when(F.col("after").isNull(), "deleted").otherwise("updated")
    changed = both.where(reduce(lambda left, right: left | right, differs, one_side))
    return changed.select(F.coalesce("after", "before").alias("row"), kind.alias(operation)).select("row.*", operation)


def by_spark_with_keys_alone(
    work: Evaluation, own: "DataFrame", new: "DataFrame", grain: Sequence[str], scope: Scope
) -> Any:
    return work.computed(keys_alone(own, new, grain), scope)


def null_is_like_all(left: Any, right: Any) -> Any:
    """The driver's comparison of values, in which null is never different."""
    compute: Any = pc
    return compute.or_(is_same(left, right), compute.or_(left.is_null(), right.is_null()))


def folded_into_versions(dataset: Dataset) -> Dataset:
    """A history that remembers only its versions, and splices new changes into those."""

    def shape(rows: Frames, own: Frames) -> "DataFrame":
        changes = rows["changes"]
        if own:
            versions = own[dataset.name].withColumn("_timestamp", F.lit(None).cast("timestamp"))
            begun = versions.withColumns({"changed_at": F.col("valid_from"), "_change": F.lit("set")})
            ended = versions.withColumns({"changed_at": F.col("valid_to"), "_change": F.lit("delete")})
            kept = begun.unionByName(ended.where("valid_to IS NOT NULL"))
            changes = changes.unionByName(kept.drop("valid_from", "valid_to", "is_current"), allowMissingColumns=True)
        return dataset.shape({"changes": changes}, {})

    changes = dataclasses.replace(
        dataset.inputs["changes"],
        arrivals=True,
        within=lambda df, scope: df if scope.is_everything else df.limit(0),
    )
    return dataclasses.replace(dataset, inputs={"changes": changes}, shape=shape)


def without_truncates(dataset: Dataset) -> Dataset:
    """A history in which a truncate touches only the keys that come with it."""
    changes = dataclasses.replace(
        dataset.inputs["changes"],
        scope=lambda changed, inputs: changed.where("_change IN ('set', 'delete')").select(*dataset.keys),
    )
    return dataclasses.replace(dataset, inputs={"changes": changes})


def own_bucket(changed: "DataFrame", rule: IntervalJoin, side: Side) -> "DataFrame":
    """The scope of a changed row without what it reaches on the other side."""
    return changed.select(*rule.keys, floor(F.unix_micros(side.time), rule).alias(bucket))


mutants: dict[str, tuple[Dataset, Any, str, Any]] = {
    "the log does not break ties between changes": (law.prices, history, "order", ("_digest",)),
    "the log does not break ties between duplicates": (law.paid, deduplicate, "order", ("_digest",)),
    "changes are collapsed before late ones are spliced in": (folded_into_versions(law.prices), None, "", None),
    "a truncate touches only the keys that come with it": (without_truncates(law.prices), None, "", None),
    "values are compared with <>": (law.shelved, Evaluation, "difference", by_spark_with_keys_alone),
    "values are compared with = by the driver": (law.shelved, few_rows, "is_same", null_is_like_all),
    "late dimension changes are ignored": (
        law.shelved,
        sys.modules["sluice.silver.as_of"],
        "changed_intervals",
        lambda changes, keys: changes.selectExpr(*keys, "valid_from AS _from", "valid_to AS _to").limit(0),
    ),
    "a match that comes late does not end loneliness": (law.paid, silver_joins, "touched_buckets", own_bucket),
}


# A world whose last batch, small as it is, has something for each mutant to get wrong.
telling = law.world(26, cases=60, last_share=0.08)


@pytest.fixture(scope="module")
def all_but_the_last(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse before the last batch, which no mutant has computed."""
    lakehouse = Lakehouse(spark, tmp_path_factory.mktemp("telling"), telling.partitions)
    lakehouse.declare(law.prices, law.paid, law.shelved)
    law.publish(lakehouse, telling.batches[0], 0)
    lakehouse.run()
    return lakehouse


def after_the_last(before: Lakehouse, folder: Path, *datasets: Dataset) -> Lakehouse:
    """The same with the last batch; only these datasets, and what they are made of, go on."""
    lakehouse = before.copied_to(folder).declare(*datasets)
    # What is declared otherwise is computed as a whole before it goes on.
    lakehouse.run()
    law.publish(lakehouse, telling.batches[1], len(telling.batches[0]))
    lakehouse.run()
    return lakehouse


@pytest.mark.parametrize("mutant", mutants)
def test_the_law_notices_when(
    mutant: str, all_but_the_last: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, module, name, replacement = mutants[mutant]
    if module is not None:
        monkeypatch.setattr(module, name, replacement)
    with pytest.raises((AssertionError, PySparkException, SluiceError)) as noticed:
        require_implied(after_the_last(all_but_the_last, tmp_path, dataset), dataset.name)
    assert noticed.type is AssertionError or "has lost the row of which" in str(noticed.value)


def require_implied(lakehouse: Lakehouse, *names: str) -> None:
    """What the records of the telling world imply is in these tables, each row once."""
    expected = telling.expected()
    assert law.found(lakehouse, names) == {name: expected[name] for name in names}


def test_the_world_of_the_mutants_is_right_without_them(all_but_the_last: Lakehouse, tmp_path: Path) -> None:
    lakehouse = after_the_last(all_but_the_last, tmp_path, law.prices, law.paid, law.shelved)
    require_implied(lakehouse, "silver.prices", "silver.paid", "silver.shelved")
