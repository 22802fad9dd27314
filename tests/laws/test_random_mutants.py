"""The random lakehouses notice faults: code that is broken on purpose, with the seed and the law that tell.

Some of them take a minute of CPU: `make mutants` tries those too.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from sluice.engine import evaluation
from sluice.model import completeness, scope
from sluice.model.datasets import Frames
from sluice.model.scope import Bounds, bounds_of, bounds_of_values
from sluice.shapes import fates, parse, strict
from sluice.shapes.aggregate import Groups
from sluice.shapes.history import History
from tests.laws.findings import Finding, Trial
from tests.laws.lakehouses import world
from tests.laws.lives import lives

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

cases, singles = 30, 4
# `silver.history` is the word of a declaration, too.
histories, as_of = sys.modules["sluice.silver.history"], sys.modules["sluice.silver.as_of"]


def hash_of(df: "DataFrame", columns: Sequence[str]) -> "Column":
    """Spark's hash of some columns, which skips nulls and flattens what is nested."""
    return F.xxhash64(*columns)


def plain_text(df: "DataFrame", columns: Sequence[str]) -> "Column":
    """Keys as Spark writes them, with commas between."""
    return F.concat_ws(",", *[F.col(name).cast("string") for name in columns])


def no_fault(*_: Any) -> "Column":
    """What follows a value, or stands in it twice, is no fault."""
    return F.lit(None).cast("string")


def keys_that_came(rule: History, _row_count: str | None, changed: "DataFrame", _inputs: Frames) -> "DataFrame":
    """The keys of the rows that came, and not those that are gone without them."""
    return changed.select(*rule.keys)


def the_latter(_one: Any, other: Any) -> Any:
    """What was found out last, though time was further before."""
    return other


def words_of(groups: Groups, columns: Sequence[str]) -> list[str]:
    """The columns of measures by a regular expression: a name that ends with a sign has no border of a word there."""
    said = "\n".join([*groups.expressions.values(), *groups.measures.values()])
    said += f"\n{groups.window.column}" if groups.window else ""
    return [name for name in columns if re.search(rf"(?i)\b{re.escape(name)}\b", said)]


def those_that_reach(df: "DataFrame", _keys: Sequence[str], reaches: "Column") -> "DataFrame":
    """The versions that reach the times of the scope, without the last one before: a key that ended looks unknown."""
    return df.where(reaches)


def bounds_without_nulls(column: "pa.ChunkedArray[Any]", kind: str) -> Bounds:
    """The values of a scope's column, as if there were no null."""
    return replace(bounds_of_values(column, kind), has_nulls=False)


def ranges_without_nulls(*of: Any, has_nulls: bool) -> Bounds:
    """The same of a scope that stays in Spark."""
    return bounds_of(*of, has_nulls=False)


@dataclass(frozen=True)
class Mutant:
    """What is broken, and where it shows: the seed and feature of a world, a table of it, a life, and the law."""

    seed: int
    feature: str
    table: str
    life: int
    broken: tuple[tuple[Any, str, Any], ...]
    law: str = "what the records imply"
    is_slow: bool = False

    def is_shown_by(self, finding: Finding) -> bool:
        # What is seen on the way is of no one table.
        return finding.law == self.law and finding.table in (self.table, "")

    def findings(self, spark: "SparkSession") -> list[Finding]:
        drawn = world(self.seed, frozenset({self.feature} - {""}))
        trial = Trial(spark, drawn, range(cases), singles)
        records = trial.records([self.table])
        return trial.of_life(lives(drawn, records, singles)[self.life], records, [self.table], self.is_shown_by)


at_once, one_by_one, another_order = range(3)
mutants = {
    "a correction that moves a value is lost": Mutant(
        3, "swaps", "silver.things", at_once, ((parse, "digest", hash_of),)
    ),
    "a snapshot touches no keys but its own": Mutant(
        2,
        "partials",
        "silver.stock",
        one_by_one,
        ((sys.modules["sluice.silver.history"], "keys_of_snapshots", keys_that_came),),
        is_slow=True,
    ),
    "the columns of a measure are found by a regular expression": Mutant(
        4, "signs", "gold.cells", one_by_one, ((Groups, "used", words_of),), "it runs"
    ),
    "what follows the JSON is dropped": Mutant(
        3, "loose", "silver.facts", at_once, ((strict, "text_fault", no_fault),)
    ),
    "keys that are written alike are one": Mutant(
        1, "imitations", "silver.facts", at_once, ((fates, "key_text", plain_text), (parse, "key_text", plain_text))
    ),
    "ended versions are pruned away": Mutant(
        17, "inferred", "silver.joined", one_by_one, ((as_of, "last_begun", those_that_reach),), is_slow=True
    ),
    "time goes back when a partition wakes up": Mutant(
        10,
        "",
        "gold.figures",
        another_order,
        ((completeness, "later_of", the_latter), (evaluation, "later_of", the_latter)),
        "what happens on the way changes nothing",
    ),
    "null is in no scope": Mutant(
        2,
        "",
        "gold.state",
        one_by_one,
        ((scope, "bounds_of_values", bounds_without_nulls), (scope, "bounds_of", ranges_without_nulls)),
        "a rebuild changes nothing",
        is_slow=True,
    ),
}
tries_all = "SLUICE_TEST_MUTANTS" in os.environ


@pytest.mark.parametrize("name", mutants)
def test_the_laws_notice_that(name: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutants[name]
    if mutant.is_slow and not tries_all:
        pytest.skip("takes a minute of CPU; make mutants tries it")
    for each in mutant.broken:
        monkeypatch.setattr(*each)
    found = mutant.findings(spark)
    assert any(map(mutant.is_shown_by, found)), found
