"""As-of joins: each fact with the dimension versions valid at its event time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model import integrity as laws
from sluice.model.datasets import (
    Dataset,
    Frames,
    Input,
    Output,
    checked_name,
    documented,
    require_columns,
    require_same_type,
    require_timestamp,
    same_names,
    timed,
)
from sluice.model.ddl import require_names, struct
from sluice.model.declared import declares
from sluice.model.join import compared_by, require_reads
from sluice.model.lineage import Lineage, Made, as_struct, from_sql, taken
from sluice.model.prepared import shared
from sluice.model.scope import Scope
from sluice.model.specification import Specification
from sluice.model.sql import backticked
from sluice.shapes.as_of import (
    Joined,
    changed_intervals,
    facts_within,
    interval_columns,
    join_as_of,
    last_begun,
    merged,
    newly_known,
)
from sluice.silver.history import HistoryOfChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, eq=False)
class Dimension:
    """A history used as a dimension: how facts refer to its key, and the placeholder for unknown members."""

    history: Dataset
    on: Mapping[str, str] = field(default_factory=dict)
    inferred: Mapping[str, str] | None = None


def dimension(
    history: Dataset,
    *,
    on: Mapping[str, str] | None = None,
    inferred: Mapping[str, str] | None = None,
) -> Dimension:
    """A history that facts refer to by other column names, or whose members may arrive after the facts.

    `on` maps the history's keys to columns of the facts: `{"airport": "origin"}`. With `inferred`, a fact whose key has
    no version yet gets an inferred member: the given SQL values (`{"manufacturer": "'unknown'"}`), null for the other
    attributes, and `is_inferred` true. The real version replaces it in the interval where it is valid.
    """
    return Dimension(history, dict(on or {}), inferred)


@dataclass(frozen=True)
class AsOf(Specification):
    """Facts, and by name the history of each dimension with how they meet."""

    kind, version = "as_of", 3
    facts: str
    event_time: str
    dimensions: Mapping[str, tuple[str, Joined]]


@declares
def as_of(
    name: str,
    *,
    facts: Dataset,
    event_time: str,
    dimensions: Mapping[str, Dataset | Dimension],
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """Each fact with the version of every dimension that was valid at its event time.

    A dimension is a history (SCD type 2). It is looked up by its own key names among the fact's columns, or as declared
    with `silver.dimension`. Its version is one struct column with the dimension's name, null if none was valid. A
    version that arrives late or changes re-joins the facts in its interval.
    """
    full_name = checked_name("silver", name)
    declared = {alias: each if isinstance(each, Dimension) else Dimension(each) for alias, each in dimensions.items()}
    require_timestamp(full_name, "event_time", facts, event_time)
    require_names(f"{full_name}: columns and dimensions", (*(facts.columns or ()), *declared))
    joined = {alias: checked_dimension(full_name, alias, each) for alias, each in declared.items()}
    for alias, each in joined.items():
        require_fitting(full_name, (facts, event_time), alias, declared[alias].history, each)
    facts_timed = timed(full_name, "event_time", facts, event_time)
    versions_timed = {
        alias: timed(full_name, f"the time of the dimension {alias}", each.history, "valid_from")
        for alias, each in declared.items()
    }
    compared = {
        alias: compared_by(
            full_name,
            {"facts": facts, alias: declared[alias].history},
            each.keys,
            {"facts": {key: backticked(column) for key, column in zip(each.keys, each.fact_keys, strict=True)}},
        )
        for alias, each in joined.items()
    }
    grain = facts.outputs[-1].grain
    key_columns = [column for each in joined.values() for column in each.fact_keys]
    located = tuple(dict.fromkeys([*grain, event_time, *key_columns]))
    # The keys of a dimension are few where its versions changed, however many facts these touch.
    pruned = same_names([name for name in located if name not in grain])

    def facts_of_versions(alias: str, each: Joined, changed: "DataFrame", inputs: Frames) -> "DataFrame":
        intervals = shared(changed_intervals, each.keys).of(changed)
        if each.inferred is not None:
            known = newly_known(changed, inputs[alias], each.keys)
            intervals = merged(intervals.unionByName(known), each.keys)
        return facts_within(inputs["facts"], intervals, each, event_time).select(*located)

    def versions_within(alias: str, each: Joined, df: "DataFrame", scope: Scope) -> "DataFrame":
        df = versions_timed[alias](df)
        if event_time not in scope.bounds:
            return df
        times = scope.bounds[event_time]
        reaches = times.reaches("valid_from", "valid_to")
        found = scope.filter(df, list(zip(each.keys, each.fact_keys, strict=True)))
        found = found.where(reaches if each.inferred is None else times.begun("valid_from"))
        return found if each.inferred is None else last_begun(found, each.keys, reaches)

    def shape(rows: Frames, _own: Frames) -> "DataFrame":
        found = rows["facts"]
        for alias, each in joined.items():
            found = shared(join_as_of, alias, event_time, each).of(found, compared[alias](rows)[alias])
        return found

    made = Dataset(
        name=full_name,
        inputs={
            "facts": Input(
                facts,
                scope=lambda changed, inputs: changed.select(*located),
                within=lambda df, scope: scope.filter(facts_timed(df), same_names(grain), pruned),
                is_row_by_row=True,
            ),
            **{
                alias: Input(
                    declared[alias].history,
                    scope=partial(facts_of_versions, alias, each),
                    within=partial(versions_within, alias, each),
                )
                for alias, each in joined.items()
            },
        },
        outputs=(
            Output(
                full_name,
                grain=grain,
                scope_columns=same_names(grain),
                prune_columns=pruned,
                cluster_by=(event_time,),
            ),
        ),
        shape=shape,
        specification=AsOf(
            facts.name, event_time, {alias: (declared[alias].history.name, each) for alias, each in joined.items()}
        ),
        meaning=meaning,
        keys=facts.keys,
        event_time=event_time,
        scope_of=lambda own: own.select(*located),
        laws=laws.of_same_rows(full_name, facts.name, {column: f'"{column}"' for column in grain}),
        bounded={
            name: check
            for alias, each in joined.items()
            for name, check in laws.of_dimension(
                full_name,
                alias,
                declared[alias].history.name,
                dict(zip(each.keys, each.fact_keys, strict=True)),
                is_inferred=each.inferred is not None,
            ).items()
        },
        columns=None
        if facts.columns is None
        else {**facts.columns, **{alias: type_of(declared[alias].history, each) for alias, each in joined.items()}},
        lineage=lambda: Lineage(
            {
                name: made
                for alias, each in joined.items()
                for name, made in lineage_of(alias, declared[alias].history, each, facts, event_time).items()
            },
            passes=facts.name,
        ),
    )
    return documented(made, owner, comments)


def type_of(history: Dataset, joined: Joined) -> str | None:
    """The type of a dimension's column, a struct of what a version says; None where types are not known."""
    known = history.columns or {}
    fields = {name: kind for name, kind in known.items() if name not in (*joined.keys, *interval_columns)}
    fields["valid_from"] = known.get("valid_from")
    fields |= {} if joined.inferred is None else {"is_inferred": "boolean"}
    found = {name: kind for name, kind in fields.items() if kind is not None}
    return struct(found) if len(found) == len(fields) else None


def lineage_of(alias: str, history: Dataset, joined: Joined, facts: Dataset, event_time: str) -> dict[str, Made]:
    """The lineage of a dimension's column: the fields of a version, which key and time choose."""
    specification = history.specification
    attributes = specification.rule.attributes if isinstance(specification, HistoryOfChanges) else ()
    chosen_by = (
        *taken(facts.name, (*joined.fact_keys, event_time), "join"),
        *taken(history.name, (*joined.keys, "valid_from", "valid_to"), "join"),
    )
    found = as_struct(alias, history.name, (*attributes, "valid_from"))
    for attribute, text in (joined.inferred or {}).items():
        inferred = from_sql(text, facts.name, facts.columns)
        found[f"{alias}.{attribute}"] = found[f"{alias}.{attribute}"].also(inferred.sources)
    if joined.inferred is not None:
        found[f"{alias}.is_inferred"] = Made(by="whether no version was known yet")
    return {name: made.also(chosen_by) for name, made in found.items()}


def require_fitting(dataset: str, fact: tuple[Dataset, str], alias: str, history: Dataset, joined: Joined) -> None:
    """Raises DeclarationError if columns, types or inferred values do not let facts join a dimension."""
    facts, _ = fact
    for key, column in zip(joined.keys, joined.fact_keys, strict=True):
        if facts.columns is not None and column not in facts.columns and not column.startswith("_"):
            raise DeclarationError(
                f"{dataset}: the dimension {alias} is found by {key}, and {facts.name} has no column {column}; say "
                f"which of its columns it is: silver.dimension(…, on={{'{key}': …}}); it has {', '.join(facts.columns)}"
            )
        require_same_type(dataset, (facts, column), (history, key))
    require_same_type(dataset, fact, (history, "valid_from"))
    for attribute, text in (joined.inferred or {}).items():
        require_reads(dataset, f"the dimension {alias}: inferred {attribute}", text, facts)


def checked_dimension(dataset: str, alias: str, dimension: Dimension) -> Joined:
    """How facts join the dimension; raises DeclarationError if it is not a history, or lacks a key that is named."""
    declared = dimension.history.specification
    if not isinstance(declared, HistoryOfChanges) or declared.stored_as_scd_type != 2:
        raise DeclarationError(
            f"{dataset}: the dimension {alias} has no versions; declare it with silver.history, as SCD type 2"
        )
    if alias == "facts":
        raise DeclarationError(f"{dataset}: a dimension cannot be called facts")
    attributes = declared.rule.attributes
    for option, wanted, known in (
        ("on", dimension.on, dimension.history.keys),
        ("inferred", dimension.inferred or {}, attributes),
    ):
        require_columns(f"{dataset}: the dimension {alias}", option, tuple(wanted), tuple(known))
    keys = dimension.history.keys
    return Joined(
        keys=keys,
        fact_keys=tuple(dimension.on.get(key, key) for key in keys),
        inferred=None if dimension.inferred is None else dict(dimension.inferred),
    )
