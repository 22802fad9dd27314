"""What became of records that the driver has: the same as `fates` says, in Arrow."""

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.few_rows import are_keys, in_types_of, keys_of, nullable, replaced
from sluice.shapes.deduplicate import deduplicate_few
from sluice.shapes.parse import erased, late

compute = cast(Any, pc)


def judged_few(records: pa.Table, before: Sequence[pa.Table | None], distinct: Sequence[str]) -> pa.Table | None:
    """Parsed records with their fates, where the driver has what was judged `before`, too: rows and duplicates.

    None where it has not, and where what it has cannot be compared with the records.
    """
    aligned = []
    for each in before:
        known = None if each is None else with_key_of_records(each, records, distinct)
        columns = None if known is None else in_columns_of(records.schema, known)
        if columns is None:
            return None
        aligned.append(columns)
    candidates = pa.concat_tables([in_types_of(records, records.schema), *aligned[:1]])
    found = deduplicate_few(candidates, *aligned[1:])
    return None if found is None else with_rules(found)


def with_key_of_records(rows: pa.Table, records: pa.Table, distinct: Sequence[str]) -> pa.Table | None:
    """Rows of the table with the text of their key, which good records tell; None where none of them does."""
    if "_key" in rows.schema.names:
        return rows
    if not are_keys(records.schema, distinct) or not are_keys(rows.schema, distinct):
        return None
    good = records.filter(pc.is_null(records["_rule"]))
    texts = dict(zip(keys_of(good, distinct), good["_key"].to_pylist(), strict=True))
    keys = [texts.get(key) for key in keys_of(rows, distinct)]
    return None if None in keys else rows.append_column("_key", pa.array(keys, pa.string()))


def in_columns_of(schema: pa.Schema, rows: pa.Table) -> pa.Table | None:
    """The rows in the columns and types of a schema, with nulls for what they lack; None where they have others."""
    if not set(rows.schema.names) <= set(schema.names):
        return None
    kinds = {each.name: nullable(each.type) for each in schema}
    if any(nullable(each.type) != kinds[each.name] for each in rows.schema):
        return None
    for name in kinds.keys() - set(rows.schema.names):
        rows = rows.append_column(name, pa.array([None] * rows.num_rows, kinds[name]))
    return in_types_of(rows, schema)


def with_rules(judged: pa.Table) -> pa.Table:
    """The rows; the fate of a record that breaks a rule follows from the rule."""
    rules = judged["_rule"]
    rejected = compute.if_else(pc.is_in(rules, pa.array([late, erased], pa.string())), rules, "quarantined")
    said = {"_fate": rejected, "_reason": rules}
    return replaced(judged, {name: compute.if_else(pc.is_null(rules), judged[name], said[name]) for name in said})


def reached_by_few(judged: pa.Table, event_time: str | None) -> pa.Table:
    """For each partition the latest event time of a usable record, and the latest log time."""
    log_times = judged["_timestamp"]
    events: Any = pa.array([None] * judged.num_rows, log_times.type)
    if event_time:
        is_usable = compute.or_kleene(pc.is_null(judged["_fate"]), pc.equal(judged["_fate"], pa.scalar("duplicate")))
        is_timed = compute.and_kleene(is_usable, pc.is_valid(judged[event_time]))
        is_later = compute.and_kleene(is_timed, pc.greater(judged[event_time], log_times))
        events = compute.case_when(compute.make_struct(is_later, is_timed), log_times, judged[event_time])
    partitions: Any = compute.binary_join_element_wise(judged["_topic"], judged["_partition"].cast(pa.string()), "/")
    rows = pa.Table.from_arrays([partitions, events, log_times], ["partition", "event_time", "log_time"])
    found = rows.group_by("partition").aggregate([("event_time", "max"), ("log_time", "max")])
    return found.select(["partition", "event_time_max", "log_time_max"]).rename_columns(rows.column_names)
