"""Histories: every version of a thing and when it was valid, from changes or from snapshots."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F

from sluice import laws
from sluice.as_of import interval_columns
from sluice.datasets import (
    Dataset,
    Frames,
    Input,
    Output,
    Topic,
    checked_name,
    column_types,
    require_columns,
    same_names,
)
from sluice.errors import DeclarationError
from sluice.fates import event_dataset
from sluice.history import History, latest, placeholders, whole_snapshots, with_missing_deleted
from sluice.history import history as lay_end_to_end
from sluice.parse import Changes, Format, Parsing, position
from sluice.scope import Scope
from sluice.silver.events import checked_parsing, topics_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

debezium_sequence = ("lsn", "transaction_order")
debezium_time = "committed_at"


def history(
    name: str,
    *,
    source: Topic | Sequence[Topic],
    schema: str,
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
    future_tolerance: str = "1 day",
    record_bytes_max: int = 10 * 1024 * 1024,
) -> Dataset:
    """Every version of each key and when it was valid (SCD type 2), or the latest (type 1), from changes in any order.

    The options are those of AUTO CDC, see docs/how-to/declare-a-history.md. `sequence_by` orders the changes of a key;
    changes of one sequence are ordered by the log. A version begins at `valid_from`, by default the first column of
    `sequence_by`. Conditions are SQL over the columns of `schema`. With `format="debezium"` the schema is that of the
    row, and the columns `op`, `committed_at`, `lsn` and `transaction_order` come from the envelope.

    The deduplicated changes are kept beside it as `silver.<name>_changes`: a version that was collapsed into its
    neighbour is needed again when a change arrives between them.
    """
    full_name = checked_name("silver", name)
    sequence, begins = sequence_of(full_name, format, sequence_by, valid_from)
    parsing = change_parsing(
        full_name,
        schema=schema,
        sequence=sequence,
        begins=begins,
        format=format,
        changes=Changes(tuple(keys), deletes=apply_as_deletes, truncates=apply_as_truncates),
        hold_later_than=hold_later_than,
        future_tolerance=future_tolerance,
        record_bytes_max=record_bytes_max,
    )
    require_columns(full_name, "columns_to_update", (columns_to_update,) if columns_to_update else (), parsing.columns)
    if columns_to_update and ignore_null_updates:
        raise DeclarationError(f"{full_name}: give columns_to_update or ignore_null_updates, not both")
    types = column_types(schema)
    control = {*keys, *sequence, begins, columns_to_update}
    known = tuple(column for column in parsing.row_columns if column not in control)
    attributes = chosen(full_name, "column_list", known, column_list, except_column_list)
    tracked = tracked_columns(
        full_name, stored_as_scd_type, attributes, track_history_column_list, track_history_except_column_list
    )
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
        sources=topics_of(source),
        parsing=parsing,
        distinct=(*keys, *sequence, "_digest"),
        idle_after=idle_after,
        meaning=f"The distinct changes that {full_name} is made of.",
    )
    return history_dataset(
        full_name,
        inputs={"changes": Input(changes, scope=partial(keys_of_changes, rule), within=partial(changes_within, rule))},
        rule=rule,
        scd_type=stored_as_scd_type,
        meaning=meaning,
    )


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
    future_tolerance: str = "1 day",
    record_bytes_max: int = 10 * 1024 * 1024,
) -> Dataset:
    """The same from full snapshots: each record is a row of the snapshot `taken_at`; a key that one lacks is deleted.

    Snapshots may arrive in any order. While only a part of one has arrived, the rest looks deleted; where the producer
    writes the number of its rows into `row_count`, a snapshot counts only when it is whole (and a record with 0 says
    that all keys are gone).
    """
    full_name = checked_name("silver", name)
    parsing = change_parsing(
        full_name,
        schema=schema,
        sequence=(taken_at,),
        begins=taken_at,
        format="json",
        changes=Changes(tuple(keys), row_count=row_count),
        hold_later_than=None,
        future_tolerance=future_tolerance,
        record_bytes_max=record_bytes_max,
    )
    require_columns(full_name, "row_count", (row_count,) if row_count else (), parsing.columns)
    known = tuple(column for column in parsing.row_columns if column not in {*keys, taken_at, row_count})
    attributes = chosen(full_name, "column_list", known, column_list, except_column_list)
    tracked = tracked_columns(
        full_name, stored_as_scd_type, attributes, track_history_column_list, track_history_except_column_list
    )
    rule = History(
        keys=tuple(keys),
        sequence_by=(taken_at,),
        valid_from=taken_at,
        attributes=attributes,
        tracked=tracked,
    )
    rows = event_dataset(
        checked_name("silver", f"{name}_changes"),
        sources=topics_of(source),
        parsing=parsing,
        distinct=(*keys, taken_at, "_digest"),
        meaning=f"The rows of the snapshots that {full_name} is made of.",
    )
    return history_dataset(
        full_name,
        inputs={
            "changes": Input(rows, scope=partial(keys_of_snapshots, rule), within=partial(changes_within, rule)),
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


def history_dataset(
    name: str, *, inputs: dict[str, Input], rule: History, scd_type: Literal[1, 2], meaning: str
) -> Dataset:
    """The dataset of a history, whatever its changes are made from."""
    clashing = {*interval_columns} & {*rule.keys, *rule.attributes}
    if scd_type == 2 and clashing:
        raise DeclarationError(f"{name}: {', '.join(sorted(clashing))} would be there twice; use except_column_list")
    lay = lay_end_to_end if scd_type == 2 else latest
    grain = (*rule.keys, "valid_from") if scd_type == 2 else rule.keys
    # Where something else than time orders the changes, one may end a version at the time of another.
    ends = None
    if rule.sequence_by[0] == rule.valid_from:
        # A key that a snapshot lacks leaves no change of its own.
        ends = "true" if "snapshots" in inputs else laws.ended_by_changes(rule.keys)

    def shape(rows: Frames, _own: Frames) -> "DataFrame":
        changes = rows["changes"]
        if "snapshots" in rows:
            changes = with_missing_deleted(changes, rows["snapshots"], rule)
        return lay(changes, rule)

    return Dataset(
        name=name,
        inputs=inputs,
        outputs=(Output(name, grain=grain, scope_columns=same_names(rule.keys), cluster_by=grain),),
        shape=shape,
        declaration={
            "kind": "history 2",
            "sources": {alias: each.source.name for alias, each in inputs.items()},
            "rule": rule,
            "stored_as_scd_type": scd_type,
        },
        meaning=meaning,
        keys=rule.keys,
        event_time="valid_from" if scd_type == 2 else None,
        scope_of=lambda own: own.select(*rule.keys),
        tells_time=False,
        laws=laws.of_history(name, rule.keys, rule.valid_from, ends) if scd_type == 2 else {},
    )


def sequence_of(
    dataset: str,
    envelope: Format,
    sequence_by: str | Sequence[str] | None,
    valid_from: str | None,
) -> tuple[tuple[str, ...], str]:
    """The columns that order the changes, and the one that says when they take effect."""
    if sequence_by is None:
        if envelope != "debezium":
            raise DeclarationError(f"{dataset}: give sequence_by, the column that orders the changes of a key")
        return debezium_sequence, valid_from or debezium_time
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    return sequence, valid_from or sequence[0]


def change_parsing(
    dataset: str, *, schema: str, sequence: tuple[str, ...], begins: str, changes: Changes, **options: object
) -> Parsing:
    """How records of changes are parsed: keys and sequence are required, and a time must be plausible."""
    if not changes.keys:
        raise DeclarationError(f"{dataset}: give the keys that its versions belong to")
    types = {"committed_at": "timestamp", **column_types(schema)}
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
    return parsing


def chosen(
    dataset: str,
    option: str,
    known: tuple[str, ...],
    wanted: Sequence[str] | None,
    unwanted: Sequence[str] | None,
) -> tuple[str, ...]:
    """The known columns that are in `wanted`, or not in `unwanted`; all without either."""
    if wanted is not None and unwanted is not None:
        raise DeclarationError(f"{dataset}: give {option} or its except_ form, not both")
    require_columns(dataset, option, (*(wanted or ()), *(unwanted or ())), known)
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
    """The attributes in which null means: as before."""
    if isinstance(wanted, bool):
        return attributes if wanted else ()
    return chosen(dataset, "ignore_null_updates", attributes, wanted, None)


def keys_of_changes(rule: History, changed: "DataFrame", inputs: Frames) -> "DataFrame":
    """The keys that changes touch: their own, those that they moved from, and for a truncate all."""
    keys = changed.where("_change IN ('set', 'delete')").select(*rule.keys)
    if rule.has_moves:
        keys = keys.unionByName(changed.where("_moved_from IS NOT NULL").select("_moved_from.*"))
    if rule.has_truncates:
        truncated = changed.where("_change = 'truncate'").select().limit(1)
        keys = keys.unionByName(inputs["changes"].where("_change = 'set'").select(*rule.keys).crossJoin(truncated))
    return keys


def changes_within(rule: History, df: "DataFrame", scope: Scope) -> "DataFrame":
    """The changes that bear on the scope's keys."""
    if scope.is_everything:
        return df
    found = scope.filter(df, same_names(rule.keys))
    if rule.has_moves:
        old = {f"_old_{key}": F.col(f"_moved_from.{key}") for key in rule.keys}
        moved = df.where("_moved_from IS NOT NULL").withColumns(old)
        by_old_key = scope.filter(moved, [(f"_old_{key}", key) for key in rule.keys]).drop(*old)
        # One that moved between two keys of the scope is found by both.
        found = found.unionByName(by_old_key).dropDuplicates(list(position))
    if rule.has_truncates:
        found = found.unionByName(df.where("_change = 'truncate'"))
    return found


def keys_of_snapshots(rule: History, changed: "DataFrame", inputs: Frames) -> "DataFrame":
    """The keys in the snapshots that changed and in those before them, which they may delete."""
    taken_at = rule.sequence_by[0]
    rows = inputs["changes"]
    times = changed.select(taken_at).distinct()
    earlier = rows.select(taken_at).distinct().join(times.withColumnRenamed(taken_at, "_at"), how="cross")
    before = earlier.where(f"`{taken_at}` < _at").groupBy("_at").agg({taken_at: "max"}).toDF("_at", taken_at)
    bearing = times.unionByName(before.select(taken_at)).distinct()
    touched = rows.join(bearing, [taken_at], "left_semi")
    return (
        touched.select(*rule.keys)
        .unionByName(changed.select(*rule.keys))
        .where(" AND ".join(f"`{key}` IS NOT NULL" for key in rule.keys))
    )
