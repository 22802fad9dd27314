"""Standing queries: conditions that are stored as records, and the rows of a table that each of them is true of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model import integrity
from sluice.model.condition import comparable, require_readable
from sluice.model.datasets import (
    Dataset,
    Frames,
    Input,
    Output,
    Topic,
    checked_name,
    documented,
    require_columns_of,
    require_lists,
    require_timestamp,
    same_names,
    timed,
    type_of,
)
from sluice.model.ddl import column_types, ddl, require_names
from sluice.model.declared import declares
from sluice.model.lineage import Lineage, Made, same, taken, unique
from sluice.shapes.conditions import Conditions, condition_type
from sluice.shapes.fates import Events, event_dataset
from sluice.shapes.standing import (
    Standing,
    StandingQueries,
    find_matches,
    named_by,
    touched_by_queries,
    touched_by_rows,
    with_reach,
)
from sluice.silver.history import HistoryOfChanges, history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What the record of a query says; a query may have further attributes.
query_schema = (
    f"query_id string, changed_at timestamp, condition {condition_type}, match_past boolean, is_deleted boolean"
)
query_bytes_max = 1024 * 1024
# What a version has beside what its record says.
columns_of_versions = ("valid_from", "valid_to", "matches_from", "is_current")


@dataclass(frozen=True)
class StoredQueries(HistoryOfChanges):
    """The versions of stored queries, prepared for the columns that they read."""

    kind, version = "stored queries", 1
    reads: tuple[tuple[str, str], ...]


@declares
def standing_queries(
    name: str,
    *,
    source: Dataset,
    queries: Topic | Sequence[Topic],
    columns: Sequence[str] = (),
    attributes: str | None = None,
    schema: str | None = None,
    event_time: str | None = None,
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """One row for each row of the source that a stored query is true of (percolation, search on a stream).

    `queries` is the topic in which queries are stored: `sluice standing add silver.<name> ID "price > 100"` writes
    there, and so can any producer. A record has `query_id`, `changed_at`, the `condition` as data (`silver.condition`),
    and perhaps `match_past`, `is_deleted` and the `attributes`, which are declared as a schema: `"customer string"`.
    All versions of the queries are the table `silver.<name>_queries`. A record whose condition does not fit the columns
    is quarantined.

    A row is matched with the version of each query that was valid at its `event_time`, by default that of the source.
    The first version of a query with `match_past` also matches all rows before it. Late rows and late queries, changes
    and deletes of either make and unmake matches.

    A match has the `query_id`, the source's grain and event time, the source's `columns`, the query's `attributes`, and
    `query_valid_from`, the begin of the version. Queries can read the columns of the source whose types are known and
    are neither arrays nor structs; or those that `schema` names, with their types.
    """
    full_name = checked_name("silver", name)
    require_lists(full_name, columns=columns)
    if not isinstance(source, Dataset):
        raise DeclarationError(f"{full_name}: source is a table; declare it first, for example with silver.events")
    reads = columns_read(full_name, source, schema)
    time = event_time or source.event_time
    if time is None:
        raise DeclarationError(f"{full_name}: {source.name} has no event time; say which column it is: event_time='…'")
    require_timestamp(full_name, "event_time", source, time)
    require_columns_of(full_name, "columns", columns, source)
    topics = (queries,) if isinstance(queries, Topic) else tuple(queries) if isinstance(queries, list | tuple) else ()
    if not topics or not all(isinstance(each, Topic) for each in topics):
        raise DeclarationError(f"{full_name}: queries is a topic or several; declare them with bronze.topic")
    extra = column_types(attributes, f"{full_name}: attributes") if attributes else {}
    rule = StandingQueries(
        reads=tuple(reads.items()),
        grain=source.outputs[-1].grain,
        time=time,
        columns=tuple(columns),
        attributes=tuple(extra),
    )
    require_names(f"{full_name}: columns of a match", rule.result)
    require_names(f"{full_name}: attributes of a query", (*extra, *columns_of_versions))
    rows_timed = timed(full_name, "event_time", source, time)
    stored = stored_queries(f"{name}_queries", topics, extra, Conditions(rule.reads), f"The queries of {full_name}.")
    made = Dataset(
        name=full_name,
        inputs={
            "rows": Input(
                source,
                scope=lambda changed, inputs: touched_by_rows(changed, inputs["queries"], inputs[full_name], rule),
                within=lambda df, scope: named_by(rows_timed(df), scope, rule),
            ),
            "queries": Input(
                stored,
                scope=lambda changed, inputs: touched_by_queries(
                    changed, inputs["rows"], inputs["queries"], inputs[full_name], rule
                ),
                within=lambda df, scope: scope.filter(df, same_names(["query_id"])),
            ),
        },
        outputs=(
            Output(
                full_name,
                grain=tuple(dict.fromkeys(["query_id", *rule.grain])),
                scope_columns=same_names(["query_id", *rule.grain]),
                prune_columns=same_names([time]),
                cluster_by=(time,),
            ),
        ),
        shape=lambda rows, own: find_matches(rows["rows"], rows["queries"], rule),
        specification=Standing(source.name, stored.name, rule),
        meaning=meaning,
        keys=("query_id",),
        event_time=time,
        scope_of=lambda own: own.select(*rule.located),
        is_sparse=True,
        laws=laws_of(full_name, rule, source, stored),
        bounded=integrity.of_rows(source.name, [time]),
        columns=columns_of(rule, source, extra),
        lineage=lambda: lineage_of(rule, source, stored),
    )
    return documented(made, owner, comments)


def columns_read(dataset: str, source: Dataset, schema: str | None) -> dict[str, str]:
    """The columns that queries can read, with their types."""
    if schema is None:
        return require_readable(dataset, source.columns)
    declared = column_types(schema, dataset)
    require_columns_of(dataset, "schema", tuple(declared), source)
    for column, kind in declared.items():
        known = type_of(source, column)
        if known not in (None, kind):
            raise DeclarationError(
                f"{dataset}: schema says that {column} is a {kind}, and in {source.name} it is a {known}"
            )
        if comparable(kind) is None:
            raise DeclarationError(
                f"{dataset}: schema names {column}, a {kind}, which no query can compare with values"
            )
    return declared


def stored_queries(
    name: str, topics: Sequence[Topic], attributes: Mapping[str, str], conditions: Conditions, meaning: str
) -> Dataset:
    """The history of the queries: each version with what it is matched by."""
    made = history(
        name,
        source=topics,
        schema=query_schema + "".join(f", {each}" for each in [ddl(dict(attributes))] if each),
        keys=["query_id"],
        sequence_by="changed_at",
        apply_as_deletes="is_deleted",
        except_column_list=["is_deleted"],
        record_bytes_max=query_bytes_max,
        meaning=meaning,
    )
    changes, lay = made.inputs["changes"].source, made.shape
    if not isinstance(changes, Dataset) or not isinstance(changes.specification, Events):
        raise TypeError(f"silver.{name} is not made of records")
    judged = event_dataset(
        changes.name,
        sources=tuple(topics),
        parsing=replace(changes.specification.parsing, conditions=conditions),
        distinct=changes.specification.distinct,
        idle_after=changes.idle_after,
        meaning=changes.meaning,
    )
    known = {**column_types(query_schema), **attributes}

    def shape(rows: Frames, own: Frames) -> "DataFrame":
        return conditions.prepared(with_reach(lay(rows, own)))

    return replace(
        made,
        inputs={"changes": replace(made.inputs["changes"], source=judged)},
        shape=shape,
        specification=StoredQueries(**vars(made.specification), reads=conditions.reads),
        columns={
            **{column: known.get(column) for column in made.columns or ()},
            **dict.fromkeys(columns_of_versions, "timestamp"),
            "is_current": "boolean",
        },
    )


def columns_of(rule: StandingQueries, source: Dataset, attributes: Mapping[str, str]) -> dict[str, str | None]:
    """The columns of the matches."""
    of_row = {column: type_of(source, column) for column in rule.of_row if not column.startswith("_")}
    return {"query_id": "string", **of_row, **attributes, "query_valid_from": "timestamp"}


def laws_of(dataset: str, rule: StandingQueries, source: Dataset, queries: Dataset) -> dict[str, str]:
    """The integrity checks of matches: each is of a row that is there, and of a version in effect at its time."""
    columns = {name: f'"{name}"' for name in dict.fromkeys([*rule.grain, rule.time])}
    return integrity.of_no_others(dataset, source.name, columns) | integrity.of_versions(
        dataset, queries.name, rule.time
    )


def lineage_of(rule: StandingQueries, source: Dataset, queries: Dataset) -> Lineage:
    """The lineage of matches: the columns that queries read, and their conditions, decide which there are."""
    read = taken(source.name, [name for name, _ in rule.reads], "filter")
    conditions = taken(queries.name, ["condition", "matches_from", "valid_to"], "filter")
    time = taken(source.name, [rule.time], "join")
    return Lineage(
        {
            **same(queries.name, ["query_id", *rule.attributes]),
            **same(source.name, rule.of_row),
            "query_valid_from": Made(taken(queries.name, ["valid_from"], "identity")),
        },
        unique([*read, *time, *conditions]),
    )
