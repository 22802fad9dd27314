"""What breaks a law: a world lives its lives, and what differs is minimised and reported."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from sluice.engine.catalogue import ordered
from sluice.errors import SluiceError
from tests.kit import Lakehouse
from tests.laws.drawn import Row, Said
from tests.laws.lakehouses import World
from tests.laws.lives import Counts, Life, lived, lives, public, rows_of, tables_of
from tests.laws.values import comparable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

shown_max = 4


@dataclass(frozen=True)
class Finding:
    """A law that is broken, in a table and a life; rows that should be there, and rows that should not."""

    law: str
    life: Life
    table: str = ""
    missing: tuple[Any, ...] = ()
    unexpected: tuple[Any, ...] = ()
    said: str = ""

    @property
    def cases(self) -> list[int]:
        """The cases of the rows, as far as rows say."""
        found = [dict(row[1:]).get("c", ("", None))[1] for row in (*self.missing, *self.unexpected)]
        return list(dict.fromkeys(case for case in found if isinstance(case, int)))

    def __str__(self) -> str:
        lines = [f"{self.law}: {self.table} ({self.life.name}) {self.said}"]
        for word, rows in (("missing", self.missing), ("unexpected", self.unexpected)):
            lines += [f"  {word} ({len(rows)}): {readable(row)}" for row in rows[:shown_max]]
        return "\n".join(lines)


def readable(row: Any) -> Any:
    """A row in its comparable form as one reads it."""
    if isinstance(row, tuple) and row and row[0] == "struct":
        return {name: readable(value) for name, value in row[1:]}
    if isinstance(row, tuple) and row and row[0] == "list":
        return [readable(value) for value in row[1:]]
    return row[1] if isinstance(row, tuple) else row


@dataclass
class Trial:
    """A world of some cases, some of its records left out, and perhaps some tables only."""

    spark: "SparkSession"
    world: World
    cases: Sequence[int]
    singles: int = 4
    counts: Counts = field(default_factory=Counts)
    states: "dict[str, dict[str, Counter[Any]]]" = field(default_factory=dict)

    def findings(self) -> list[Finding]:
        """What is broken first: in each life that differs, by the first table downstream of which all differs."""
        records = self.world.records(self.cases)
        self.counts.worlds += 1
        self.counts.cases += len(self.cases)
        found: list[Finding] = []
        first, second, other = lives(self.world, records, self.singles)
        for life in (first, second, other):
            found += self.of_life(life, records)
        if first.name in self.states and second.name in self.states:
            # Of as many partitions, so that time has come as far.
            expected = self.states[first.name]
            found += compared("states are those of one run", second, expected, self.states[second.name])
        return found

    def records(self, tables: Sequence[str]) -> list[Said]:
        """The records that some tables are made of, in the log's order."""
        made = ordered([each.dataset for each in self.world.drawn if each.name in tables])
        topics = {topic.topic for topic in made.topics}
        return [each for each in self.world.records(self.cases) if each.topic in topics]

    def of_life(
        self,
        life: Life,
        records: Sequence[Said],
        tables: Sequence[str] | None = None,
        until: Callable[[Finding], bool] = lambda finding: False,
    ) -> list[Finding]:
        """What a life breaks, up to the first finding that is looked for."""
        found: list[Finding] = []
        with tempfile.TemporaryDirectory() as folder:
            try:
                lakehouse = self.lived(Path(folder), life, records, tables)
                for finding in self.broken(lakehouse, life, records):
                    found.append(finding)
                    if until(finding):
                        break
            except AssertionError as error:
                said = str(error).partition("\n")[0]
                found.append(Finding("what happens on the way changes nothing", life, said=said))
            except (PySparkException, SluiceError) as error:
                found.append(Finding("it runs", life, said=str(error)[:600]))
        return found

    def lived(self, folder: Path, life: Life, records: Sequence[Said], tables: Sequence[str] | None) -> Lakehouse:
        return lived(self.spark, folder, self.world, life, records=records, counts=self.counts, tables=tables)

    def broken(self, lakehouse: Lakehouse, life: Life, records: Sequence[Said]) -> Iterator[Finding]:
        """The laws that a lakehouse breaks at the end of its life."""
        before, states = rows_of(lakehouse), states_of(lakehouse)
        self.states[life.name] = states
        yield from compared("what the records imply", life, self.expected(records), before)
        yield from grains(lakehouse, life)
        for fates in lakehouse.audits():
            if not fates.balanced:
                yield Finding("the audit balances", life, fates.dataset, said=str(fates))
        for law in lakehouse.laws():
            if not law.balanced:
                yield Finding("the audit balances", life, law.dataset, said=str(law))
        versions = lakehouse.versions()
        if lakehouse.run() or lakehouse.versions() != versions:
            yield Finding("a run with nothing new commits nothing", life)
        if life.steps == 1:
            # It was computed as a whole just now.
            return
        lakehouse.run(rebuild=True)
        yield from compared("a rebuild changes nothing", life, rows_of(lakehouse), before)
        yield from compared("a rebuild changes no state", life, states_of(lakehouse), states)

    def expected(self, records: Sequence[Said]) -> "dict[str, Counter[Any]]":
        return {
            name: Counter(comparable(public(row)) for row in rows)
            for name, rows in self.world.expected(records).items()
        }


def compared(
    law: str, life: Life, expected: "dict[str, Counter[Any]]", found: "dict[str, Counter[Any]]"
) -> list[Finding]:
    return [
        Finding(law, life, name, tuple((expected[name] - rows).elements()), tuple((rows - expected[name]).elements()))
        for name, rows in found.items()
        if name in expected and rows != expected[name]
    ]


def states_of(lakehouse: Lakehouse) -> "dict[str, Counter[Any]]":
    """The grain of the rows of windowed tables, and whether their window is open."""
    grain_of = {dataset.name: dataset.outputs[-1].grain for dataset in lakehouse.catalogue.datasets}
    return {
        name: Counter(comparable(state_of(row, grain_of[name])) for row in rows)
        for name, rows in tables_of(lakehouse).items()
        if rows and "_state" in rows[0]
    }


def state_of(row: Row, grain: Sequence[str]) -> Row:
    return {name: row[name] for name in grain} | {"is_open": row["_state"] == "open"}


def grains(lakehouse: Lakehouse, life: Life) -> list[Finding]:
    """Rows of which there are two of one grain."""
    found = []
    grain_of = {dataset.name: dataset.outputs[-1].grain for dataset in lakehouse.catalogue.datasets}
    for name, rows in tables_of(lakehouse).items():
        grain = grain_of[name]
        seen = Counter(comparable({column: row[column] for column in grain}) for row in rows)
        twice = tuple(key for key, times in seen.items() if times > 1)
        if twice:
            found.append(Finding("the grain is unique", life, name, unexpected=twice))
    return found


def smallest(trial: Trial, finding: Finding, tries: int) -> tuple[list[Said], Finding]:
    """The fewest records found, in so many tries, that break the same law in the same table and life."""
    cases = finding.cases[:1]
    records = trial.world.records(cases) if cases else trial.world.records(trial.cases)
    tables = None if finding.table == "" else [finding.table]

    def breaks(kept: list[Said]) -> Finding | None:
        broken = trial.of_life(finding.life, kept, tables)
        return next((each for each in broken if (each.law, each.table) == (finding.law, finding.table)), None)

    known = breaks(records)
    if known is None:
        records, known = trial.world.records(trial.cases), finding
    return fewer(records, known, breaks, tries)


def fewer(
    records: list[Said], known: Finding, breaks: Callable[[list[Said]], Finding | None], tries: int
) -> tuple[list[Said], Finding]:
    """Leaves out a half, then quarters, and so on, while it still breaks."""
    size = max(len(records) // 2, 1)
    while tries > 0:
        for start in range(0, len(records), size):
            kept = records[:start] + records[start + size :]
            tries -= 1
            broken = breaks(kept) if kept else None
            if broken is not None:
                records, known = kept, broken
                break
            if tries <= 0:
                break
        else:
            if size == 1:
                break
            size = max(size // 2, 1)
    return records, known


def report(trial: Trial, findings: Sequence[Finding], tries: int) -> str:
    """What a person needs to see it again: the seed, the declarations, few records, and the rows that differ."""
    world = trial.world
    lines = [f"SLUICE_LAW_SEED={world.seed} ({', '.join(sorted(world.features))})", *map(str, findings)]
    if tries:
        records, finding = smallest(trial, findings[0], tries)
        lines += [
            "",
            "The declarations:",
            world.text,
            "",
            f"{len(records)} records are enough, in their order of arrival:",
        ]
        life = finding.life
        arriving = sorted(records, key=lambda each: (life.step_of.get(each.moment, 0), each.moment))
        lines += [f"  run {life.step_of.get(each.moment, 0)}: {each}" for each in arriving[:30]]
        lines += ["", str(finding)]
    return "\n".join(lines)
