"""Histories: every version of an entity with its validity, from changes or from snapshots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F

from sluice.errors import DeclarationError
from sluice.model import integrity as laws
from sluice.model.datasets import (
    Columns,
    Dataset,
    Frames,
    Input,
    Output,
    Topic,
    checked_name,
    documented,
    require_columns,
    require_comments,
    require_lists,
    same_names,
)
from sluice.model.ddl import column_types
from sluice.model.declared import declares
from sluice.model.formats import Format
from sluice.model.join import by_key
from sluice.model.lineage import Lineage, Made, same, taken, unique
from sluice.model.plain import require_certain
from sluice.model.prepared import shared
from sluice.model.record_columns import tombstones
from sluice.model.scope import Scope
from sluice.model.specification import Specification
from sluice.model.sql import require_known
from sluice.shapes.as_of import interval_columns
from sluice.shapes.fates import event_dataset
from sluice.shapes.history import (
    History,
    bearing_snapshots,
    latest,
    left,
    placeholders,
    whole_snapshots,
    with_missing_deleted,
)
from sluice.shapes.history import history as lay_end_to_end
from sluice.shapes.parse import Changes, Parsing, event_time_min_default
from sluice.shapes.rows import changes_of, tie, without_order
from sluice.silver.events import checked_parsing, record_bytes, refuse_record_options, required_schema, topics_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

debezium_sequence = ("lsn", "transaction_order")
debezium_time = "committed_at"


@dataclass(frozen=True)
class HistoryOfChanges(Specification):
    """The versions of the keys of some sources, by a rule."""

    kind, version = "history", 2
    sources: Mapping[str, str]
    rule: History
    stored_as_scd_type: Literal[1, 2]


@dataclass(frozen=True)
class HistoryOfRows(HistoryOfChanges):
    """The same for the rows of a table: the required columns, its grain, and what deletes a key."""

    version = 3
    of_rows: Mapping[str, Any]


@declares
def history(
    name: str,
    *,
    source: Topic | Sequence[Topic] | Dataset,
    schema: str | None = None,
    keys: Sequence[str],
    sequence_by: str | Sequence[str] | None = None,
    valid_from: str | None = None,
    stored_as_scd_type: Literal[1, 2] = 2,
    format: Format = "json",  # noqa: A002 - what everybody calls it
    apply_as_deletes: str | None = None,
    apply_as_truncates: str | None = None,
    ignore_null_updates: bool | Sequence[str] = False,
    columns_to_update: str | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    hold_later_than: str | None = None,
    idle_after: str = "1 hour",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
    future_tolerance: str = "1 day",
    event_time_min: str | None = event_time_min_default,
    time_formats: Mapping[str, str] | None = None,
    from_record: Mapping[str, str] | None = None,
    record_bytes_max: int = record_bytes,
) -> Dataset:
    """Every version of each key with its validity (SCD type 2), or the latest (type 1), from changes in any order.

    The options are those of AUTO CDC, see docs/how-to/declare-a-history.md. `sequence_by` orders the changes of a key,
    and the log breaks ties. A version begins at `valid_from`, by default the first column of `sequence_by`. Conditions
    are SQL over the columns of `schema`. With `format="debezium"`, `schema` describes the row, and the columns `op`,
    `committed_at`, `lsn` and `transaction_order` come from the envelope. `time_formats`, `event_time_min`,
    `from_record`, `owner` and `comments` are those of `silver.events`; no version may begin before `event_time_min`.
    A compacted topic deletes a key by a record without a value:
    `from_record={"id": "key", "at": "timestamp", "is_gone": "value IS NULL"}` and `apply_as_deletes="is_gone"`.

    The deduplicated changes are kept in `silver.<name>_changes`: a version that was merged into its neighbour is needed
    again when a change arrives between them.

    With a dataset as `source`, each of its rows is a change, and conditions are SQL over its columns. There is then no
    `schema` and no record option. The log breaks ties within a key, or else the grain.
    """
    full_name = checked_name("silver", name)
    require_lists(full_name, keys=keys, column_list=column_list, ignore_null_updates=ignore_null_updates)
    sequence, begins = sequence_of(full_name, format, sequence_by, valid_from)
    if columns_to_update and ignore_null_updates:
        raise DeclarationError(f"{full_name}: give columns_to_update or ignore_null_updates, not both")
    lists = Lists(column_list, except_column_list, track_history_column_list, track_history_except_column_list)
    if isinstance(source, Dataset):
        refuse_record_options(
            full_name,
            source,
            schema=schema,
            format=format,
            apply_as_truncates=apply_as_truncates,
            hold_later_than=hold_later_than,
            idle_after=idle_after,
            future_tolerance=future_tolerance,
            event_time_min=event_time_min,
            time_formats=time_formats,
            from_record=from_record,
            record_bytes_max=record_bytes_max,
        )
        made = history_of_rows(
            full_name,
            source,
            keys=tuple(keys),
            sequence=sequence,
            begins=begins,
            lists=lists,
            scd_type=stored_as_scd_type,
            deletes=apply_as_deletes,
            fill_nulls=ignore_null_updates,
            updated=columns_to_update,
            meaning=meaning,
        )
        return documented(made, owner, comments)
    schema = required_schema(full_name, schema)
    parsing = change_parsing(
        full_name,
        schema=schema,
        sequence=sequence,
        begins=begins,
        format=format,
        changes=Changes(tuple(keys), deletes=apply_as_deletes, truncates=apply_as_truncates),
        hold_later_than=hold_later_than,
        future_tolerance=future_tolerance,
        event_time_min=event_time_min,
        time_formats=time_formats,
        from_record=from_record,
        record_bytes_max=record_bytes_max,
    )
    require_columns(full_name, "columns_to_update", (columns_to_update,) if columns_to_update else (), parsing.columns)
    types = column_types(schema)
    control = {*keys, *sequence, begins, columns_to_update, *tombstones(parsing.record_columns)}
    known = tuple(column for column in parsing.row_columns if column not in control)
    attributes = lists.attributes(full_name, known, keys)
    tracked = lists.tracked(full_name, stored_as_scd_type, attributes)
    rule = History(
        keys=tuple(keys),
        sequence_by=sequence,
        valid_from=begins,
        attributes=attributes,
        tracked=tracked,
        fill_nulls=filled_columns(full_name, attributes, ignore_null_updates),
        updated=columns_to_update,
        unavailable=tuple(name for name in attributes if format == "debezium" and types.get(name) in placeholders),
        has_truncates=apply_as_truncates is not None or format == "debezium",
        has_moves=format == "debezium",
    )
    changes = event_dataset(
        checked_name("silver", f"{name}_changes"),
        sources=topics_of(full_name, source),
        parsing=parsing,
        distinct=(*keys, *sequence, "_digest"),
        idle_after=idle_after,
        meaning=f"The distinct changes that {full_name} is made of.",
    )
    changes = documented(changes, owner, on_columns(changes, comments))
    made = history_dataset(
        full_name,
        inputs={"changes": Input(changes, scope=partial(keys_of_changes, rule), within=partial(changes_within, rule))},
        rule=rule,
        scd_type=stored_as_scd_type,
        meaning=meaning,
    )
    return documented_with(changes, made, owner, comments)


@declares
def history_from_snapshots(
    name: str,
    *,
    source: Topic | Sequence[Topic],
    schema: str,
    keys: Sequence[str],
    taken_at: str,
    row_count: str | None = None,
    stored_as_scd_type: Literal[1, 2] = 2,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
    future_tolerance: str = "1 day",
    event_time_min: str | None = event_time_min_default,
    time_formats: Mapping[str, str] | None = None,
    from_record: Mapping[str, str] | None = None,
    record_bytes_max: int = record_bytes,
) -> Dataset:
    """A history from full snapshots: each record is a row of the snapshot `taken_at`; a missing key is deleted.

    Snapshots may arrive in any order. While only part of one has arrived, its other keys look deleted. If the producer
    writes the number of rows into `row_count`, a snapshot counts only once it is complete, and a record with 0 is an
    empty snapshot.
    """
    full_name = checked_name("silver", name)
    require_lists(full_name, keys=keys, column_list=column_list)
    parsing = change_parsing(
        full_name,
        schema=schema,
        sequence=(taken_at,),
        begins=taken_at,
        format="json",
        changes=Changes(tuple(keys), row_count=row_count),
        hold_later_than=None,
        future_tolerance=future_tolerance,
        event_time_min=event_time_min,
        time_formats=time_formats,
        from_record=from_record,
        record_bytes_max=record_bytes_max,
    )
    require_columns(full_name, "row_count", (row_count,) if row_count else (), parsing.columns)
    known = tuple(column for column in parsing.row_columns if column not in {*keys, taken_at, row_count})
    lists = Lists(column_list, except_column_list, track_history_column_list, track_history_except_column_list)
    attributes = lists.attributes(full_name, known, keys)
    tracked = lists.tracked(full_name, stored_as_scd_type, attributes)
    rule = History(
        keys=tuple(keys),
        sequence_by=(taken_at,),
        valid_from=taken_at,
        attributes=attributes,
        tracked=tracked,
    )
    rows = event_dataset(
        checked_name("silver", f"{name}_changes"),
        sources=topics_of(full_name, source),
        parsing=parsing,
        distinct=(*keys, taken_at, "_digest"),
        meaning=f"The rows of the snapshots that {full_name} is made of.",
    )
    rows = documented(rows, owner, on_columns(rows, comments))
    made = history_dataset(
        full_name,
        inputs={
            "changes": Input(
                rows, scope=partial(keys_of_snapshots, rule, row_count), within=partial(changes_within, rule)
            ),
            "snapshots": Input(
                rows,
                scope=lambda changed, inputs: changed.select(*keys).limit(0),
                within=lambda df, scope: whole_snapshots(df, tuple(keys), taken_at, row_count),
            ),
        },
        rule=rule,
        scd_type=stored_as_scd_type,
        meaning=meaning,
    )
    return documented_with(rows, made, owner, comments)


@dataclass(frozen=True)
class Lists:
    """The column lists of a history: its columns, and those whose change opens a version."""

    wanted: Sequence[str] | None
    unwanted: Sequence[str] | None
    track: Sequence[str] | None
    track_not: Sequence[str] | None

    def attributes(self, dataset: str, known: tuple[str, ...], keys: Sequence[str]) -> tuple[str, ...]:
        """The columns of a version besides its keys, which may be named too: AUTO CDC's lists have them."""
        wanted = None if self.wanted is None else [name for name in self.wanted if name not in keys]
        return chosen(dataset, "column_list", known, wanted, self.unwanted)

    def tracked(self, dataset: str, scd_type: Literal[1, 2], attributes: tuple[str, ...]) -> tuple[str, ...]:
        return tracked_columns(dataset, scd_type, attributes, self.track, self.track_not)


def history_of_rows(
    name: str,
    source: Dataset,
    *,
    keys: tuple[str, ...],
    sequence: tuple[str, ...],
    begins: str,
    lists: Lists,
    scd_type: Literal[1, 2],
    deletes: str | None,
    fill_nulls: bool | Sequence[str],
    updated: str | None,
    meaning: str,
) -> Dataset:
    """The history implied by the rows of a table, recomputed for the keys of changed rows."""
    if not keys:
        raise DeclarationError(f"{name}: give the keys that its versions belong to")
    control = {*keys, *sequence, begins, *([updated] if updated else [])}
    if source.columns is None and lists.wanted is None:
        raise DeclarationError(
            f"{name}: only the shape of {source.name} knows its columns; give column_list, the attributes of a version"
        )
    columns = tuple(source.columns or ()) or (*control, *(lists.wanted or ()))
    options = {"keys": keys, "sequence_by": sequence, "valid_from": (begins,), "columns_to_update": (updated,)}
    for option, wanted in options.items():
        require_columns(name, option, tuple(column for column in wanted if column), columns)
    attributes = lists.attributes(name, tuple(column for column in columns if column not in control), keys)
    rule = History(
        keys=keys,
        sequence_by=(*sequence, tie),
        valid_from=begins,
        attributes=attributes,
        tracked=lists.tracked(name, scd_type, attributes),
        fill_nulls=filled_columns(name, attributes, fill_nulls),
        updated=updated,
    )
    required = tuple(dict.fromkeys([*keys, *sequence, begins]))
    grain = source.outputs[-1].grain
    made = history_dataset(
        name, inputs={"changes": by_key(source, keys)}, rule=rule, scd_type=scd_type, meaning=meaning
    )
    lay = made.shape
    return replace(
        made,
        shape=lambda rows, own: without_order(
            lay({"changes": changes_of(rows["changes"], required, grain, deletes)}, own), rows["changes"]
        ),
        specification=HistoryOfRows(
            **vars(made.specification), of_rows={"required": required, "grain": grain, "deletes": deletes}
        ),
        bounded=laws.of_rows(source.name, required),
    )


def history_dataset(
    name: str, *, inputs: dict[str, Input], rule: History, scd_type: Literal[1, 2], meaning: str
) -> Dataset:
    """The dataset of a history, whatever the source of its changes."""
    clashing = {*interval_columns} & {*rule.keys, *rule.attributes}
    if scd_type == 2 and clashing:
        raise DeclarationError(f"{name}: {', '.join(sorted(clashing))} would be there twice; use except_column_list")
    changes = inputs["changes"].source.name
    lay = lay_end_to_end if scd_type == 2 else latest
    grain = (*rule.keys, "valid_from") if scd_type == 2 else rule.keys
    known = inputs["changes"].source.columns if isinstance(inputs["changes"].source, Dataset) else None
    # Where something else than time orders the changes, one may end a version at the time of another.
    ends = None
    if rule.sequence_by[0] == rule.valid_from:
        # A key that a snapshot lacks has no change record.
        ends = "true" if "snapshots" in inputs else laws.ended_by_changes(rule.keys)
        if tie in rule.sequence_by:
            ends = laws.ended_by_rows(rule.keys)

    def shape(rows: Frames, _own: Frames) -> "DataFrame":
        found = rows["changes"]
        if "snapshots" in rows:
            found = with_missing_deleted(found, rows["snapshots"], rule)
        return shared(lay, rule).of(found)

    return Dataset(
        name=name,
        inputs=inputs,
        outputs=(Output(name, grain=grain, scope_columns=same_names(rule.keys), cluster_by=grain),),
        shape=shape,
        specification=HistoryOfChanges({alias: each.source.name for alias, each in inputs.items()}, rule, scd_type),
        meaning=meaning,
        keys=rule.keys,
        event_time="valid_from" if scd_type == 2 else None,
        scope_of=lambda own: own.select(*rule.keys),
        tells_time=False,
        laws=laws.of_history(name, changes, rule.keys, rule.valid_from, ends) if scd_type == 2 else {},
        columns=None if known is None else columns_of(rule, known, scd_type),
        lineage=lambda: lineage_of(rule, changes, scd_type),
    )


def documented_with(changes: Dataset, made: Dataset, owner: str, comments: Mapping[str, str] | None) -> Dataset:
    """The history with its words; a comment may be on a column that only its changes have."""
    require_comments(made.name, comments or {}, {**(changes.columns or {}), **(made.columns or {})})
    return documented(made, owner, on_columns(made, comments))


def on_columns(dataset: Dataset, comments: Mapping[str, str] | None) -> dict[str, str]:
    """The comments on columns that the dataset has."""
    return {name: text for name, text in (comments or {}).items() if name in (dataset.columns or {})}


def lineage_of(rule: History, changes: str, scd_type: Literal[1, 2]) -> Lineage:
    """The lineage of a history, or of the latest rows, of the table `changes`."""
    columns = same(changes, (*rule.keys, *rule.attributes))
    for name in rule.fill_nulls:
        columns[name] = Made(taken(changes, [name], "transformation"), by="the last value that is not null")
    rows = [*taken(changes, rule.keys, "group by"), *taken(changes, rule.sequence_by, "sort")]
    if scd_type == 1:
        return Lineage({**columns, **same(changes, rule.sequence_by)}, unique(rows))
    begins = taken(changes, [rule.valid_from], "transformation")
    columns |= {
        "valid_from": Made(begins, by="when its change takes effect"),
        "valid_to": Made(begins, by="when the next version begins, or the key is deleted"),
        "is_current": Made(begins, by="whether there is no next version"),
    }
    return Lineage(columns, unique([*rows, *taken(changes, rule.tracked, "filter")]))


def columns_of(rule: History, known: Columns, scd_type: Literal[1, 2]) -> Columns:
    """The columns of a history, if those of its changes are known."""
    said = {name: known.get(name) for name in (*rule.keys, *rule.attributes)}
    if scd_type == 1:
        return {**said, **{name: known.get(name) for name in rule.sequence_by if name != tie}}
    begins = known.get(rule.valid_from)
    return {**said, "valid_from": begins, "valid_to": begins, "is_current": "boolean"}


def sequence_of(
    dataset: str,
    envelope: Format,
    sequence_by: str | Sequence[str] | None,
    valid_from: str | None,
) -> tuple[tuple[str, ...], str]:
    """The columns that order the changes, and the column of the time at which they take effect."""
    if sequence_by is None:
        if envelope != "debezium":
            raise DeclarationError(f"{dataset}: give sequence_by, the column that orders the changes of a key")
        return debezium_sequence, valid_from or debezium_time
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    return sequence, valid_from or sequence[0]


def change_parsing(
    dataset: str, *, schema: str, sequence: tuple[str, ...], begins: str, changes: Changes, **options: Any
) -> Parsing:
    """How records of changes are parsed: keys and sequence are required, and a time must be plausible."""
    if not changes.keys:
        raise DeclarationError(f"{dataset}: give the keys that its versions belong to")
    types = {"committed_at": "timestamp", **column_types(schema, dataset)}
    parsing = checked_parsing(
        dataset,
        schema=schema,
        required=tuple(dict.fromkeys([*changes.keys, *sequence, begins])),
        event_time=begins if types.get(begins) == "timestamp" else None,
        changes=changes,
        **options,
    )
    for option, columns in {"keys": changes.keys, "sequence_by": sequence, "valid_from": (begins,)}.items():
        require_columns(dataset, option, columns, parsing.columns)
    for option, condition in {"apply_as_deletes": changes.deletes, "apply_as_truncates": changes.truncates}.items():
        if condition is not None:
            require_known(dataset, option, condition, {**dict.fromkeys(parsing.columns), **parsing.types})
            require_certain(dataset, option, condition)
            kind = parsing.types.get(condition.strip(), "boolean")
            if kind.lower() != "boolean":
                raise DeclarationError(
                    f"{dataset}: {option} is {condition}, which is {kind}; give a condition, as {condition} IS NOT NULL"
                )
    return parsing


def chosen(
    dataset: str,
    option: str,
    known: tuple[str, ...],
    wanted: Sequence[str] | None,
    unwanted: Sequence[str] | None,
) -> tuple[str, ...]:
    """The known columns in `wanted`, or not in `unwanted`; all if neither is given."""
    if wanted is not None and unwanted is not None:
        raise DeclarationError(f"{dataset}: give {option} or its except_ form, not both")
    excluded = option.replace("column_list", "except_column_list")
    for each, names in ((option, wanted), (excluded, unwanted)):
        require_columns(dataset, each, tuple(names or ()), known, "its versions do not have as an attribute")
    if wanted is not None:
        return tuple(name for name in known if name in wanted)
    return tuple(name for name in known if name not in (unwanted or ()))


def tracked_columns(
    dataset: str,
    scd_type: Literal[1, 2],
    attributes: tuple[str, ...],
    wanted: Sequence[str] | None,
    unwanted: Sequence[str] | None,
) -> tuple[str, ...]:
    """The attributes whose change opens a version."""
    if scd_type == 1 and (wanted or unwanted):
        raise DeclarationError(f"{dataset}: SCD type 1 keeps no history, so there is nothing to track")
    return chosen(dataset, "track_history_column_list", attributes, wanted, unwanted)


def filled_columns(dataset: str, attributes: tuple[str, ...], wanted: bool | Sequence[str]) -> tuple[str, ...]:
    """The attributes in which null means unchanged."""
    if isinstance(wanted, bool):
        return attributes if wanted else ()
    return chosen(dataset, "ignore_null_updates", attributes, wanted, None)


def keys_of_changes(rule: History, changed: "DataFrame", inputs: Frames) -> "DataFrame":
    """The keys that changes affect: their own, the old key of a key change, and for a truncate all."""
    keys = changed.where("_change IN ('set', 'delete')").select(*rule.keys)
    if rule.has_moves:
        keys = keys.unionByName(changed.where("_moved_from IS NOT NULL").select("_moved_from.*"))
    if rule.has_truncates:
        truncated = changed.where("_change = 'truncate'").select().limit(1)
        keys = keys.unionByName(inputs["changes"].where("_change = 'set'").select(*rule.keys).crossJoin(truncated))
    return keys


def changes_within(rule: History, df: "DataFrame", scope: Scope) -> "DataFrame":
    """The changes that affect the scope's keys."""
    if scope.is_everything:
        return df
    found = scope.filter(df, same_names(rule.keys))
    if rule.has_moves:
        # Of a record that moved, each key has its own row: the other one may lie outside of the scope.
        found = found.withColumn("_moved_from", F.lit(None).cast(df.schema["_moved_from"].dataType))
        found = found.unionByName(moved_away(rule, df, scope))
    if rule.has_truncates:
        found = found.unionByName(df.where("_change = 'truncate'"))
    return found


def moved_away(rule: History, df: "DataFrame", scope: Scope) -> "DataFrame":
    """The changes that moved a row away from one of the scope's keys."""
    old = {f"_old_{key}": F.col(f"_moved_from.{key}") for key in rule.keys}
    moved = df.where("_moved_from IS NOT NULL AND _change IN ('set', 'delete')").withColumns(old)
    found = scope.filter(moved, [(f"_old_{key}", key) for key in rule.keys])
    return found.drop(*old).withColumn("_change", F.lit(left))


def keys_of_snapshots(rule: History, row_count: str | None, changed: "DataFrame", inputs: Frames) -> "DataFrame":
    """The keys of the changed rows, and all keys in snapshots that the changes make complete or incomplete."""
    taken_at = rule.sequence_by[0]
    bearing = bearing_snapshots(inputs["changes"], changed, rule.keys, taken_at, row_count)
    found = inputs["changes"].join(F.broadcast(bearing), [taken_at], "left_semi")
    keys = changed.select(*rule.keys).unionByName(found.select(*rule.keys))
    return keys.where(" AND ".join(f"`{key}` IS NOT NULL" for key in rule.keys))
