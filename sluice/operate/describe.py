"""The catalogue in words: what each table and each of its columns is, what it is tested for, and what it is made from.

Declarations say most of it. A table that exists adds the columns and types that its declaration does not say.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice.engine.catalogue import Catalogue, Node, sources_of
from sluice.model.completeness import state_columns
from sluice.model.datasets import Dataset, Topic, bronze_columns
from sluice.model.expectations import Expectation
from sluice.model.labels import label_of
from sluice.model.lineage import Made, Source, every_column
from sluice.model.sql import fold
from sluice.quality.built_in import expected
from sluice.storage.delta import Lake

comment_pattern = re.compile(r"(?s)(?P<meaning>.*?)\s*(\[(?P<unit>[^\[\]]*)\])?\s*")
bronze_meanings = {
    "topic": "The topic of the log.",
    "partition": "The partition of the topic.",
    "offset": "The record's place in its partition.",
    "key": "The record's key, as it was sent.",
    "value": "The record's value, as it was sent.",
    "timestamp": "When the record was appended to the log.",
    "headers": "The record's headers.",
    "landed_at": "When the record was written here.",
}
# The columns that Sluice adds to tables: type, meaning, and what they follow from.
engine_columns = {
    "_state": (
        "string",
        "open: the watermark has not passed the window's end; complete: it has; revised: it has, and the row changed "
        "after that.",
        "window_end and the watermark",
    ),
    "_revision": ("int", "How often the row changed after its window was complete.", "the rows that it replaced"),
    "_revised_at": (
        "timestamp",
        "When the refresh that last revised the row began; null: never. Readers see the row once that refresh is "
        "committed, which is later.",
        "the clock of the refresh",
    ),
    "_topic": ("string", "The topic of the record that the row is made from.", "the record's place in the log"),
    "_partition": ("int", "The partition of that record.", "the record's place in the log"),
    "_offset": ("bigint", "The place of that record in its partition.", "the record's place in the log"),
    "_timestamp": ("timestamp", "When that record was appended to the log.", "the record's time in the log"),
    "_digest": ("binary", "The same for records with the same values: the first 16 bytes of a SHA-256.", "the values"),
    "_unknown_fields": ("array<string>", "Fields of the record that the schema lacks; null: none.", "the record"),
    "_lateness_seconds": ("double", "How long after its event the record was received.", "the event's time"),
    "_change": ("string", "What the record does to its key: set, delete, truncate, or none.", "the record"),
}


@dataclass(frozen=True)
class Column:
    """A column, or a field of one (`weather.wind_speed_mph`); `type` is None where nothing says it yet.

    `meaning` is what was declared, empty where nothing was.
    """

    name: str
    type: str | None
    unit: str
    meaning: str
    made: Made

    @property
    def comment(self) -> str:
        """What was declared, as it is written for other programs: the meaning, and the unit in brackets."""
        return (f"{self.meaning} [{self.unit}]" if self.unit else self.meaning).strip()

    @property
    def is_field(self) -> bool:
        # No column's own name has a dot (`model.ddl`).
        return "." in self.name

    @property
    def is_engine(self) -> bool:
        """Whether Sluice adds it, for its bookkeeping."""
        return self.name in engine_columns


@dataclass(frozen=True)
class Expected:
    """One test of a table: `columns` are those that it names, and `is_built_in` says that nobody had to declare it.

    `verdict` is its newest result; None where it was not checked, or nobody looked.
    """

    name: str
    severity: str
    meaning: str
    columns: tuple[str, ...] = ()
    is_built_in: bool = False
    verdict: str | None = None


@dataclass(frozen=True)
class Described:
    """What people and other programs need to know of a topic or a dataset; `topic` is None for a dataset.

    `grain` are the columns that tell the rows of a dataset's table apart; none for a topic. `rows` are the columns of
    other tables that decide what rows it has. One that `has_days` can be recomputed by ranges of event time.
    """

    name: str
    layer: str
    sources: tuple[str, ...]
    meaning: str
    topic: str | None
    event_time: str | None
    keys: tuple[str, ...]
    has_suite: bool
    grain: tuple[str, ...] = ()
    kind: str = ""
    owner: str = ""
    columns: tuple[Column, ...] = ()
    tests: tuple[Expected, ...] = ()
    rows: tuple[Source, ...] = ()
    has_days: bool = False

    def column(self, name: str) -> Column | None:
        """A column, or a field of one, by its name in any case, as Spark finds it."""
        return next((each for each in self.columns if fold(each.name) == fold(name)), None)

    def has_fields(self, column: str) -> bool:
        """Whether the fields of a struct are listed, each with its own lineage."""
        return any(fold(each.name).startswith(f"{fold(column)}.") for each in self.columns)


def describe(catalogue: Catalogue, lake: Lake | None = None) -> list[Described]:
    """Every topic and dataset, upstream first; with a `lake`, also what only the tables themselves say."""
    known: dict[str, Described] = {}
    read = columns_read(catalogue)
    for node in catalogue.nodes:
        types = types_of(lake, node.name) if lake is not None else {}
        known[node.name] = described(node, catalogue, types, known, read.get(node.name, ()))
    return list(known.values())


def with_verdicts(tables: Sequence[Described], checks: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Described]:
    """The tables with the newest results of their tests: rows of `gold._checks` by the dataset."""
    found = []
    for table in tables:
        verdicts = {row["expectation"]: row["verdict"] for row in checks.get(table.name, ())}
        tests = tuple(replace(each, verdict=verdicts.get(each.name)) for each in table.tests)
        found.append(replace(table, tests=tests))
    return found


def columns_read(catalogue: Catalogue) -> dict[str, list[str]]:
    """The columns that others read of each table: a declaration may leave open which ones a function makes."""
    found: dict[str, list[str]] = {}
    for dataset in reversed(catalogue.datasets):
        lineage = dataset.lineage()
        made = [*lineage.columns.values(), *(lineage.of(name) for name in found.get(dataset.name, ()))]
        for source in [*lineage.rows, *(source for each in made for source in each.sources)]:
            if source.column != every_column:
                found.setdefault(source.table, []).append(source.column)
    return found


def types_of(lake: Lake, table: str) -> dict[str, str]:
    """The types of the columns of a table; none where there is no table that can be read."""
    try:
        return lake.types(table) if lake.last_commit(table) else {}
    except Exception:  # noqa: BLE001 - a table that cannot be read is still declared
        return {}


def described(
    node: Node, catalogue: Catalogue, types: Mapping[str, str], known: Mapping[str, Described], read: Sequence[str]
) -> Described:
    """A node in words; `known` are those that it is made from, and `read` the columns that others read."""
    found = Described(
        name=node.name,
        layer=node.name.split(".")[0],
        sources=tuple(dict.fromkeys(source.name for source in sources_of(node))),
        meaning=node.meaning,
        topic=None,
        event_time=None,
        keys=(),
        has_suite=node.name in catalogue.suites,
        owner=node.owner,
    )
    if isinstance(node, Topic):
        return replace(found, topic=node.topic, kind="topic", columns=columns_of_topic(node))
    return replace(
        found,
        event_time=node.event_time,
        keys=tuple(node.keys),
        grain=node.outputs[-1].grain,
        kind=node.specification.kind,
        columns=columns_of(node, types, known, read),
        tests=tests_of(node, catalogue),
        rows=node.lineage().rows,
        has_days=node.has_days,
    )


def columns_of_topic(topic: Topic) -> tuple[Column, ...]:
    """The columns of a bronze table, which all have the same."""
    made = Made(by="the record in the log")
    comments = {**bronze_meanings, **topic.comments}
    return tuple(column_of(name, kind, comments.get(name), made, None) for name, kind in bronze_columns.items())


def columns_of(
    dataset: Dataset, types: Mapping[str, str], known: Mapping[str, Described], read: Sequence[str]
) -> tuple[Column, ...]:
    """The columns of a dataset and the fields of its structs; those that Sluice adds come last."""
    lineage = dataset.lineage()
    passes = known.get(lineage.passes or "")
    passed = [each.name for each in passes.columns] if passes else []
    others = [] if types else [*passed, *lineage.columns, *dataset.outputs[-1].grain, *read, *dataset.comments]
    # The order of the table, and before there is one that of the declaration.
    names = [*types, *(dataset.columns or {}), *others]
    roots = dict.fromkeys(name.split(".", 1)[0] for name in names if not name.startswith("_"))
    found = []
    for name in (each for root in roots for each in dict.fromkeys([root, *fields_of(root, names)])):
        made = lineage.of(name)
        source = origin_of(made, known)
        kind = types.get(name) or (dataset.columns or {}).get(name) or (source.type if source else None)
        found.append(column_of(name, kind, dataset.comments.get(name), made, source))
    has_windows = not types and dataset.completeness is not None and "window_end" in roots
    added = [name for name in (types or (state_columns if has_windows else ())) if name in engine_columns]
    return (*found, *map(engine_column, added))


def engine_column(name: str) -> Column:
    kind, meaning, by = engine_columns[name]
    return Column(name, kind, "", meaning, Made(by=by))


def fields_of(root: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{root}.")]


def origin_of(made: Made, known: Mapping[str, Described]) -> Column | None:
    """The column that this one is, unchanged: then it has its type, unit and meaning."""
    sources = [each for each in made.sources if each.is_direct]
    if len(sources) != 1 or sources[0].how != "identity" or sources[0].table not in known:
        return None
    return known[sources[0].table].column(sources[0].column)


def column_of(name: str, kind: str | None, comment: str | None, made: Made, origin: Column | None) -> Column:
    """A column with its comment, or else with that of the column that it is. Its name is asked last for the unit."""
    said = comment_pattern.fullmatch(comment or "")
    meaning, unit = (said["meaning"], said["unit"] or "") if said else ("", "")
    if comment is None and origin is not None:
        meaning, unit = origin.meaning, origin.unit
    return Column(name, kind, unit or label_of(name.rsplit(".", 1)[-1]).unit, meaning.strip(), made)


def tests_of(dataset: Dataset, catalogue: Catalogue) -> tuple[Expected, ...]:
    """What is expected of a table: by its suite, and by itself."""
    suite = catalogue.suites.get(dataset.name)
    declared = [each for each in suite.expectations if not each.is_built_in] if suite else []
    return (
        *(Expected(each.name, each.severity, sentence(each), columns_named(each)) for each in declared),
        *(
            Expected(bound.name, bound.severity, each.meaning, (), True)
            for bound, each in expected(dataset, suite.bounds if suite else {})
        ),
    )


def sentence(expectation: Expectation) -> str:
    """What is expected, in the words of its type: `quantity: values to be between, min_value 1`."""
    named = columns_named(expectation)
    words = expectation.type.removeprefix("column_").removeprefix("pair_").replace("_", " ")
    shown = {name: value for name, value in expectation.arguments.items() if value not in named and value != [*named]}
    said = ", ".join([words, *(f"{name} {value}" for name, value in shown.items())])
    return f"{', '.join(named)}: {said}" if named else said


def columns_named(expectation: Expectation) -> tuple[str, ...]:
    """The columns that an expectation is about."""
    arguments = expectation.arguments
    single = [str(arguments[name]) for name in ("column", "column_A", "column_B") if name in arguments]
    several = [str(each) for name in ("column_list", "column_set") for each in arguments.get(name, ())]
    return tuple(dict.fromkeys([*single, *several]))


def every(table: Described) -> Made:
    """What all columns of a table together are made from."""
    sources = (source for column in table.columns for source in column.made.sources if source.is_direct)
    return Made(tuple(dict.fromkeys(sources)), by=f"all columns of {table.name}")


def made_from(known: Mapping[str, Described], table: str, column: str) -> Made:
    """The lineage of a column of the catalogue; nothing for a table that it does not have."""
    if table not in known:
        return Made()
    if column == every_column:
        return every(known[table])
    for name in (column, column.split(".", 1)[0]):
        found = known[table].column(name)
        if found is not None:
            return found.made
    return Made()
