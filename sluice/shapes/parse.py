"""Parse raw records into typed rows, and say of each one that cannot be used which rule it breaks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark import SparkContext
from pyspark.sql import functions as F
from pyspark.sql import is_remote
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sluice.model.ddl import column_names, column_types
from sluice.model.erasure import erased_header
from sluice.model.expectations import Expectation
from sluice.model.formats import Encoding, Format, names_schemas
from sluice.model.prepared import Prepared, shared
from sluice.model.record_columns import columns_of, tombstones
from sluice.model.rules import holds
from sluice.model.times import is_time, micros_least, micros_most, paths
from sluice.shapes import avro, encoded, record_columns, strict
from sluice.shapes.canonical import digest, key_text
from sluice.shapes.conditions import Conditions
from sluice.shapes.conditions import faults as condition_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

Made = TypeVar("Made")

position = ("_topic", "_partition", "_offset")
bronze_position = tuple(name.removeprefix("_") for name in position)
# An earlier time is a clock at epoch zero, in some time zone.
event_time_min_default = "1970-01-03T00:00:00Z"
late = "late"
erased = "erased"


def enveloped(name: str) -> str:
    """A field of Debezium's envelope, whether or not a schema was sent with it."""
    return f"coalesce(_parsed.payload.{name}, _parsed.{name})"


ts_ms = enveloped("source.ts_ms")
millis_least, millis_most = micros_least // 1000, micros_most // 1000
# What Debezium says of a change, beside the row.
envelope_columns = {
    "op": enveloped("op"),
    "committed_at": f"if({ts_ms} BETWEEN {millis_least} AND {millis_most}, timestamp_millis({ts_ms}), NULL)",
    "lsn": enveloped("source.lsn"),
    "transaction_order": f"coalesce({enveloped('transaction.total_order')}, 0L)",
}
envelope_fields = (
    StructField("op", StringType()),
    StructField("source", StructType([StructField("ts_ms", LongType()), StructField("lsn", LongType())])),
    StructField("transaction", StructType([StructField("total_order", LongType())])),
)


@dataclass(frozen=True)
class Changes:
    """How records change what is known of a key: which of them set, delete, or truncate everything.

    `deletes` and `truncates` are SQL conditions on the parsed columns. `row_count` names the column in which a snapshot
    says how many rows it has.
    """

    keys: tuple[str, ...]
    deletes: str | None = None
    truncates: str | None = None
    row_count: str | None = None


@dataclass(frozen=True)
class Parsing:
    """What a record must be: strict JSON of `schema`, with a value in each of `required`, and a plausible event time.

    Times are RFC 3339, except in the columns of `time_formats`. An event before `event_time_min` is quarantined; None
    lets all through. `sent_time` and `received_time` correct a device's clock; a record is late when it
    was received more than `hold_later_than` after its event. It is quarantined under the names of all `expectations`
    that it breaks. `from_record` says which columns are not fields of the value, but of the record around it. The
    column `condition` of stored queries is judged by `conditions`.
    """

    schema: str
    required: tuple[str, ...]
    event_time: str | None
    sent_time: str | None = None
    received_time: str | None = None
    future_tolerance: str = "1 day"
    hold_later_than: str | None = None
    record_bytes_max: int = 10 * 1024 * 1024
    format: Format = "json"
    changes: Changes | None = None
    expectations: tuple[Expectation, ...] = ()
    time_formats: tuple[tuple[str, str], ...] = ()
    event_time_min: str | None = event_time_min_default
    from_record: tuple[tuple[str, str], ...] = ()
    conditions: Conditions | None = None

    @property
    def is_debezium(self) -> bool:
        return self.format == "debezium"

    @property
    def is_encoded(self) -> bool:
        """Whether values must be decoded before they are JSON."""
        return isinstance(self.format, Encoding)

    @property
    def names_schemas(self) -> bool:
        """Whether records name the schema that they were written by."""
        return names_schemas(self.format)

    @property
    def text_bytes_max(self) -> int:
        """How large the JSON of a value can be."""
        return self.record_bytes_max * (avro.text_bytes_per_byte if self.is_encoded else 1)

    @property
    def record_columns(self) -> dict[str, str]:
        """The columns that are not fields of the value, each with what it is."""
        return dict(self.from_record)

    @property
    def has_tombstones(self) -> bool:
        """Whether records without a value are rows."""
        return bool(tombstones(self.record_columns))

    @property
    def row_columns(self) -> tuple[str, ...]:
        return column_names(self.schema)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a parsed row, bookkeeping aside."""
        return (*self.row_columns, *(envelope_columns if self.is_debezium else ()))

    @property
    def typed(self) -> dict[str, strict.Typed]:
        """How each column that is a field of the value is made from JSON."""
        return {name: each for name, each in self.declared.items() if name not in self.record_columns}

    @cached_property
    def declared(self) -> dict[str, strict.Typed]:
        """The same of all columns of a row; it asks Spark what the schema says."""
        formats = {path.lower(): each for path, each in self.time_formats}
        return {
            each.name: strict.Typed(each.dataType, each.name, formats, numbers_as_text=self.format != "json")
            for each in cast("StructType", StructType.fromDDL(self.schema))
        }

    @cached_property
    def _made(self) -> dict[tuple[object, str], Any]:
        return {}

    def once(self, make: "Callable[[Parsing], Made]", name: str | None = None) -> "Made":
        """What `make` says of this, made once for each JVM: columns are hundreds of calls to it."""
        home = "connect" if is_remote() else SparkContext._gateway
        key = (home, name or make.__name__)
        if key not in self._made:
            self._made[key] = make(self)
        return cast("Made", self._made[key])

    @property
    def read_type(self) -> StructType:
        """What the JSON is read as; Debezium's envelope may be inside another with its schema."""
        row = strict.row_type(self.typed)
        if self.is_debezium:
            row = StructType([StructField("before", row), StructField("after", row), *envelope_fields])
            row = StructType([*row, StructField("payload", row)])
        return StructType([*row, StructField(strict.corrupt, StringType())])

    @property
    def digested(self) -> tuple[str, ...]:
        """The columns that make two records the same; the time of sending is not among them."""
        deliveries = {name for name, each in columns_of(self.record_columns).items() if each.is_delivery}
        return tuple(name for name in self.columns if name not in {self.sent_time, self.received_time, *deliveries})

    @property
    def rules(self) -> tuple[str, ...]:
        """All rules that a record may break; of several expectations, the names are joined by commas."""
        times = dict.fromkeys(path.partition(".")[0] for path, kind in paths(self.schema) if is_time(kind))
        of_format = ("unknown_op", "invalid_committed_at") if self.is_debezium else ("null_value",)
        return (
            *of_format,
            *(encoded.faults_of(self.format) if isinstance(self.format, Encoding) else ()),
            *("record_too_large", "invalid_utf8", "empty_value"),
            *strict.faults,
            *(
                [record_columns.invalid_key]
                if any(text.lower().startswith("key") for _, text in self.from_record)
                else []
            ),
            *[f"{fault}_{name}" for name in times for fault in strict.faults_of_time],
            *[f"null_{name}" for name in self.required],
            *(condition_faults if self.conditions else ()),
            *[each.name for each in self.expectations],
            *(time_rules(self.event_time, self.event_time_min) if self.event_time else ()),
            *([late] if self.hold_later_than else []),
        )

    @property
    def waivable(self) -> tuple[str, ...]:
        """The rules that `sluice quarantine release` can lift: their records are doubtful, but usable."""
        rules = () if self.event_time is None else time_rules(self.event_time, self.event_time_min)
        return (late, *rules, *[each.name for each in self.expectations])

    @property
    def types(self) -> dict[str, str]:
        """The columns of a row with their types."""
        return column_types(self.schema)


def time_rules(event_time: str, least: str | None) -> tuple[str, ...]:
    """The names of the rules that an event time may break: it is in the future, or before the least."""
    in_the_future = f"{event_time}_in_the_future"
    if least is None:
        return (in_the_future,)
    named = re.sub("[^0-9]+", "_", least.removesuffix("T00:00:00Z")).strip("_")
    return (in_the_future, f"{event_time}_before_{named}")


def parse(
    records: "DataFrame",
    parsing: Parsing,
    said: "DataFrame | None" = None,
    schemas: "DataFrame | None" = None,
    distinct: Sequence[str] | None = None,
) -> "DataFrame":
    """Bronze records as rows of the schema, with the record's position, and `_rule`: the rule it breaks, or null.

    Every record gives exactly one row. `_digest` identifies the parsed values, `_unknown_fields` the names of fields
    that the schema lacks (null when there are none), `_lateness_seconds` how long after its event it was received.
    For changes, `_change` is 'set', 'delete', 'truncate' or 'none' (nothing to do), and `_moved_from` the old key.
    For records that a command holds (`_is_held` in `said`), the declaration's conditions are not evaluated, because one
    of them may be what fails. `schemas` are those that records were written by, where they name one; `_schema_id` is
    then its id. With `distinct`, the columns of the key, there is its text in `_key`.
    """
    records = records if said is None else with_commands(records, said)
    if isinstance(parsing.format, Encoding):
        records = encoded.with_text(records, parsing.format, parsing.record_bytes_max, schemas)
    arguments = (parsing, None if distinct is None else tuple(distinct), said is not None)
    if not parsing.expectations:
        return shared(parsed, *arguments, made_first=1).of(records)
    # The values in an expectation can be equal and mean two things: 1 and 1.0.
    return parsing.once(lambda _: Prepared(lambda df: parsed(df, *arguments), made_first=1), str(arguments[1:])).of(
        records
    )


def parsed(records: "DataFrame", parsing: Parsing, distinct: Sequence[str] | None, has_commands: bool) -> "DataFrame":
    """The same of records with the commands about them, and their text where it is encoded."""
    is_held = F.coalesce(said_of("timestamp"), F.lit(False)) if has_commands else F.lit(False)
    read = records.select(is_held.alias("_held"), *parsing.once(texts_of))
    if parsing.is_debezium:
        read = read.withColumn("_read", parsing.once(read_of))
    # Spark analyses the whole plan at each step, so there are few.
    named = read.select("*", *parsing.once(row_of)).withColumns(parsing.once(judged))
    rows = named.select(*parsing.once(lambda each: result_of(each, named), "result"))
    return rows if distinct is None else with_key(rows, distinct)


def with_key(parsed: "DataFrame", distinct: Sequence[str]) -> "DataFrame":
    """Parsed records with the text of their key; those that break a rule have their position instead."""
    key = F.when(F.col("_rule").isNull(), key_text(parsed, distinct)).otherwise(position_text())
    return parsed.withColumn("_key", key)


def position_text() -> "Column":
    """A record's position as `topic/partition/offset`; no key looks like this, since each ends with U+0001."""
    return F.concat_ws("/", *position)


def texts_of(parsing: Parsing) -> "list[Column]":
    """Where a record is, its text, and what Spark reads in it."""
    size = F.octet_length("value")
    text = F.when(size <= parsing.record_bytes_max, F.col("value").cast("string"))
    if parsing.is_encoded:
        text = F.col("_decoded").getField("text")
    return [
        F.col("topic").alias("_topic"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_timestamp"),
        size.alias("_size"),
        (F.col("value").isNull() & F.col("headers").getItem(erased_header).isNotNull()).alias("_is_erased"),
        text.alias("_text"),
        F.from_json(text, parsing.read_type, strict.options(parsing.text_bytes_max)).alias("_parsed"),
        *([F.col("_decoded").getField("fault").alias("_undecoded")] if parsing.is_encoded else []),
        *([F.col(encoded.schema_id)] if parsing.names_schemas else []),
        *record_columns.read_columns(parsing),
    ]


def result_of(parsing: Parsing, named: "DataFrame") -> "list[Column]":
    """The columns of a parsed record, of those that parsing has `named`."""
    payload = digest(named, parsing.digested)
    if parsing.changes:
        # Records that change nothing are not duplicates of one another.
        payload = F.when(F.col("_change") == "none", digest(named, position)).otherwise(payload)
    names = [*parsing.columns, *position, "_timestamp"]
    return [
        *[F.col(f"`{name}`") for name in names],
        payload.alias("_digest"),
        unknown_fields(parsing).alias("_unknown_fields"),
        *([F.col("_lateness_seconds")] if parsing.event_time else []),
        *([F.col("_change")] if parsing.changes else []),
        *([F.col("_moved_from")] if parsing.is_debezium else []),
        *([F.col(encoded.schema_id)] if parsing.names_schemas else []),
        broken_rule(parsing).alias("_rule"),
    ]


def with_commands(records: "DataFrame", said: "DataFrame") -> "DataFrame":
    """Bronze records with the commands about them."""
    spoken_of = said.withColumnsRenamed(dict(zip(position, bronze_position, strict=True)))
    return records.join(F.broadcast(spoken_of), list(bronze_position), "left")


def said_of(timestamp: str) -> "Column":
    """What the last command at a record's position says of it; null where that was about another record."""
    is_about_it = F.col("_said_of_ms").isNull() | (F.col("_said_of_ms") == F.unix_millis(timestamp))
    return F.when(is_about_it, F.col("_is_held"))


def row_of(parsing: Parsing) -> "list[Column]":
    """The columns of the row in a record."""
    row = [each.value(read(parsing).getField(name)).alias(name) for name, each in parsing.typed.items()]
    around = columns_of(parsing.record_columns)
    row += [record_columns.value(parsing, name, each).alias(name) for name, each in around.items()]
    row.append(names_of(parsing).alias("_names"))
    if not parsing.is_debezium:
        return row
    before, keys = F.expr(enveloped("before")), parsing.changes.keys if parsing.changes else ()
    old = [each.value(before.getField(name)).alias(name) for name, each in parsing.typed.items() if name in keys]
    return [
        *row,
        *[F.expr(field).alias(name) for name, field in envelope_columns.items()],
        F.struct(*old).alias("_before"),
    ]


def read_of(_: Parsing) -> "Column":
    """The row in Debezium's envelope; a deleted row has only its before image."""
    return F.expr(f"if({enveloped('op')} = 'd', {enveloped('before')}, {enveloped('after')})")


def read(parsing: Parsing) -> "Column":
    """The row as it was read."""
    return F.col("_read" if parsing.is_debezium else "_parsed")


def judged(parsing: Parsing) -> "dict[str, Column]":
    """What is wrong with a row, what it changes, and when; each by the columns as they were read."""
    changes = change_of(parsing) if parsing.changes else {}
    return {"_fault": fault_of(parsing), **changes, **(times_of(parsing) if parsing.event_time else {})}


def fault_of(parsing: Parsing) -> "Column":
    """The rule that a record breaks as JSON of these types, or null."""
    options = strict.options(parsing.text_bytes_max)
    text, is_corrupt = F.col("_text"), F.col("_parsed").getField(strict.corrupt).isNotNull()
    faults = [
        strict.text_fault(text, is_corrupt, names_fault(parsing), options),
        F.when(is_corrupt, "wrong_type"),
        strict.value_fault(parsing.typed, read(parsing), text),
    ]
    if parsing.is_debezium:
        faults.append(F.when(F.expr(f"{ts_ms} IS NOT NULL") & F.col("committed_at").isNull(), "invalid_committed_at"))
    of_record = record_columns.fault(parsing)
    return F.coalesce(*faults, *([] if of_record is None else [of_record]))


def names_of(parsing: Parsing) -> "Column":
    """The names of an object's members; null where each is known to be the value of a column.

    It spares most records a second reading: an object has at most one member more than its text has commas, and one for
    each value, so that with as many values none is unknown or there twice.
    """
    names = F.json_object_keys("_text")
    if parsing.is_debezium:
        return names
    # No more than decide: a text of ten million commas would be as many texts.
    members_most = F.size(F.split("_text", ",", len(parsing.typed) + 1))
    return F.when(F.coalesce(members_most != value_count(parsing), F.lit(True)), names)


def names_fault(parsing: Parsing) -> "Column":
    """The rule that the names of an object's members break, or null."""
    found = strict.names_fault(F.col("_names"))
    return found if parsing.is_debezium else F.when(has_others(parsing), found)


def has_others(parsing: Parsing) -> "Column":
    """Whether a member is there that is not the value of a column: it is unknown, null, or there twice.

    Spark generates no code to compare names.
    """
    return F.size("_names") != value_count(parsing)


def value_count(parsing: Parsing) -> "Column":
    """How many columns have a value in the text."""
    values = [F.col("_parsed").getField(name).isNotNull().cast("int") for name in parsing.typed]
    return reduce(add, values, F.lit(0))


def change_of(parsing: Parsing) -> "dict[str, Column]":
    """What a record does to what is known of its key."""
    changes, kind = parsing.changes, F.lit("set")
    if changes is None:
        return {}
    found: dict[str, Column] = {}
    if changes.row_count is not None:
        kind = F.when(F.col(changes.row_count) == 0, "none").otherwise(kind)
    if changes.deletes is not None:
        kind = F.when(unless_held(F.expr(changes.deletes)), "delete").otherwise(kind)
    if parsing.is_debezium:
        kind = F.when(F.col("op") == "d", "delete").otherwise(kind)
        kind = F.when(F.col("op") == "t", "truncate").otherwise(kind)
        # A delete is followed by a tombstone for the log's compaction; messages are no changes either.
        kind = F.when(F.col("_size").isNull() | (F.col("op") == "m"), "none").otherwise(kind)
        old = F.struct(*[F.col("_before").getField(name).alias(name) for name in changes.keys])
        is_known = reduce(lambda left, right: left & right, [old[name].isNotNull() for name in changes.keys])
        is_moved = (F.col("op") == "u") & is_known & (old != F.struct(*changes.keys))
        found["_moved_from"] = F.when(is_moved, old)
    if changes.truncates is not None:
        kind = F.when(unless_held(F.expr(changes.truncates)), "truncate").otherwise(kind)
    return found | {"_change": kind}


def unless_held(condition: "Column") -> "Column":
    """A declared condition; null for a held record, for which it is not evaluated."""
    return F.when(~F.col("_held"), condition)


def times_of(parsing: Parsing) -> "dict[str, Column]":
    """The event time by the receiver's clock, and how long after it the record was received."""
    event_time = str(parsing.event_time)
    log_time = F.col("_timestamp")
    received = F.coalesce(F.col(parsing.received_time), log_time) if parsing.received_time else log_time
    event = F.col(event_time)
    if parsing.sent_time:
        # A device whose clock is an hour fast reports both the event and its sending an hour late.
        event = F.coalesce(F.try_add(event, F.try_subtract(received, F.col(parsing.sent_time))), event)
    return {
        event_time: event,
        "_received_at": received,
        "_lateness_seconds": F.try_subtract(F.unix_micros(received), F.unix_micros(event)) / 1_000_000,
    }


def unknown_fields(parsing: Parsing) -> "Column":
    """The fields of the record that the schema lacks; those of an envelope are ignored."""
    if parsing.is_debezium:
        return F.lit(None).cast("array<string>")
    known = F.array(*[F.lit(name) for name in parsing.typed])
    unknown = F.array_except("_names", known)
    return F.when(has_others(parsing) & (F.size(unknown) > 0), unknown)


def broken_rule(parsing: Parsing) -> "Column":
    """The first rule that a parsed record breaks; null for a good one."""
    text = F.col("_text")
    no_value = F.col("_size").isNull()
    if parsing.is_debezium or parsing.has_tombstones:
        no_value = F.lit(False)
    rule = (
        F.when(F.col("_is_erased"), erased)
        .when(no_value, "null_value")
        .when(F.col("_size") > parsing.record_bytes_max, "record_too_large")
    )
    if parsing.is_encoded:
        rule = rule.when(F.col("_undecoded").isNotNull(), F.col("_undecoded"))
    rule = (
        rule.when(~F.is_valid_utf8(text), "invalid_utf8")
        .when(strict.is_blank(text), "empty_value")
        .when(F.col("_fault").isNotNull(), F.col("_fault"))
    )
    if parsing.is_debezium:
        known = F.coalesce(F.col("op").isin("c", "u", "r", "d", "t", "m"), F.lit(False))
        rule = rule.when(F.col("_size").isNotNull() & ~known, "unknown_op")
    for name in parsing.required:
        rule = rule.when(F.col(name).isNull() & is_needed(parsing, name), f"null_{name}")
    if parsing.conditions:
        broken = F.when(F.col("_change") == "set", unless_held(parsing.conditions.fault("condition")))
        rule = rule.when(broken.isNotNull(), broken)
    if parsing.expectations:
        broken = broken_expectations(parsing)
        rule = rule.when(broken != "", broken)
    if parsing.event_time is None:
        return rule
    event = F.col(parsing.event_time)
    in_the_future, *too_old = time_rules(parsing.event_time, parsing.event_time_min)
    latest = F.col("_timestamp") + F.expr(f"INTERVAL {parsing.future_tolerance}")
    rule = rule.when(event > latest, in_the_future)
    for name in too_old:
        rule = rule.when(event < F.lit(parsing.event_time_min).cast("timestamp"), name)
    if parsing.hold_later_than:
        rule = rule.when(F.col("_received_at") > event + F.expr(f"INTERVAL {parsing.hold_later_than}"), late)
    return rule


def broken_expectations(parsing: Parsing) -> "Column":
    """The names of all expectations that a row breaks, with commas between; only records that set values have any."""
    sets = F.lit(True) if parsing.changes is None else F.col("_change") == "set"
    return F.concat_ws(
        ",", *[F.when(sets & ~unless_held(holds(each, parsing.types)), each.name) for each in parsing.expectations]
    )


def is_needed(parsing: Parsing, name: str) -> "Column":
    """Whether a record must have a value in this column: a truncate has no key, and no effect needs no value."""
    if parsing.changes is None:
        return F.lit(True)
    if name in parsing.changes.keys:
        return F.col("_change").isin("set", "delete")
    return (F.col("_change") != "none") | F.lit(parsing.changes.row_count is not None)
