"""Events: the parsed records of a topic, one row per key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.errors import DeclarationError
from sluice.model import avro, protobuf
from sluice.model import integrity as laws
from sluice.model.datasets import (
    Dataset,
    Output,
    Topic,
    checked_name,
    documented,
    require_columns,
    require_columns_of,
    require_duration,
    require_lists,
    same_names,
)
from sluice.model.ddl import column_names, column_types, ddl, require_unreserved
from sluice.model.declared import declares
from sluice.model.formats import Encoding, Format, Protobuf
from sluice.model.join import by_key
from sluice.model.lineage import Lineage, taken, unique
from sluice.model.record_columns import require_record_columns
from sluice.model.specification import Specification
from sluice.model.times import is_epoch, require_time_formats
from sluice.shapes.fates import event_dataset
from sluice.shapes.parse import Parsing, event_time_min_default
from sluice.shapes.rows import first_rows

record_bytes = 10 * 1024 * 1024
# The defaults of the record options; all others are None.
record_defaults = {
    "format": "json",
    "idle_after": "1 hour",
    "future_tolerance": "1 day",
    "record_bytes_max": record_bytes,
    "event_time_min": event_time_min_default,
}


@dataclass(frozen=True)
class EventsOfRows(Specification):
    """The first row of each key of a table."""

    kind, version = "events of rows", 2
    source: str
    keys: tuple[str, ...]
    required: tuple[str, ...]
    sequence_by: tuple[str, ...]
    grain: tuple[str, ...]


@declares
def events(
    name: str,
    *,
    source: Topic | Sequence[Topic] | Dataset,
    schema: str | None = None,
    keys: Sequence[str],
    format: Format = "json",  # noqa: A002 - what everybody calls it
    event_time: str | None = None,
    sequence_by: str | Sequence[str] | None = None,
    sent_time: str | None = None,
    received_time: str | None = None,
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
    """The parsed records of a topic, one row per key: the first record in the log's order wins, whenever it arrives.

    `schema` is Spark DDL for the value: JSON, or what `format` says, such as `silver.avro()`. A record is quarantined,
    under a separate rule each, if it has a null in `keys` or `event_time` or a value of another type, is larger than
    `record_bytes_max` (bytes), is more than `future_tolerance` (an interval such as "1 day") ahead of its log
    timestamp, or is before `event_time_min` (None: no bound).

    Times are RFC 3339. `time_formats` gives the format of other columns: an epoch (`epoch_seconds`, `epoch_millis`,
    `epoch_micros`; for dates `epoch_days`) or one of Spark's datetime patterns.

    `from_record` says which columns of the schema are not fields of the value, as SQL of the bronze table:
    `{"customer": "key", "trace_id": "headers['trace-id']", "logged_at": "timestamp"}`, or `key['id']` where the key is
    a JSON object. With a column `value IS NULL` records without a value (tombstones) are rows too.

    With `sent_time`, the event time is corrected by the error of the device's clock: event + (received - sent), where
    received is `received_time`, or else the log's timestamp. A record received more than `hold_later_than` after its
    event gets the fate `late` and waits to be released; without that bound every late record counts. A partition whose
    newest record is older than the newest of all by `idle_after` does not hold the watermark back.

    With a dataset as `source`, the first row of each key is the event, unchanged: by `sequence_by`, then in the log's
    order, or by the grain if its rows carry no position in the log. There is then no `schema` and no record option.

    `owner` is who answers for the table, and `comments` say what its columns mean, with their unit:
    `{"speed": "over ground [knots]"}`. They are for people: a change of them rebuilds no table.
    """
    full_name = checked_name("silver", name)
    require_lists(full_name, keys=keys)
    if not keys:
        raise DeclarationError(f"{full_name}: give the keys that identify its events")
    if isinstance(source, Dataset):
        refuse_record_options(
            full_name,
            source,
            schema=schema,
            format=format,
            sent_time=sent_time,
            received_time=received_time,
            hold_later_than=hold_later_than,
            idle_after=idle_after,
            future_tolerance=future_tolerance,
            event_time_min=event_time_min,
            time_formats=time_formats,
            from_record=from_record,
            record_bytes_max=record_bytes_max,
        )
        made = events_of_rows(
            full_name, source, tuple(keys), event_time=event_time, sequence=names_of(sequence_by), meaning=meaning
        )
        return documented(made, owner, comments)
    if sequence_by is not None:
        raise DeclarationError(f"{full_name}: the log orders the records of a topic; leave sequence_by out")
    schema = required_schema(full_name, schema)
    require_columns(full_name, "keys", tuple(keys), column_names(schema, full_name))
    made = event_dataset(
        full_name,
        sources=topics_of(full_name, source),
        parsing=checked_parsing(
            full_name,
            schema=schema,
            format=format,
            required=tuple(dict.fromkeys([*keys, *([event_time] if event_time else [])])),
            event_time=event_time,
            sent_time=sent_time,
            received_time=received_time,
            hold_later_than=hold_later_than,
            future_tolerance=future_tolerance,
            event_time_min=event_time_min,
            time_formats=time_formats,
            from_record=from_record,
            record_bytes_max=record_bytes_max,
        ),
        distinct=tuple(keys),
        idle_after=idle_after,
        meaning=meaning,
    )
    return documented(made, owner, comments)


def events_of_rows(
    name: str,
    source: Dataset,
    keys: tuple[str, ...],
    *,
    event_time: str | None,
    sequence: tuple[str, ...],
    meaning: str,
) -> Dataset:
    """The first row of each key of a table, chosen again for the keys of changed rows."""
    grain = source.outputs[-1].grain
    timed = (event_time,) if event_time else ()
    required = tuple(dict.fromkeys([*keys, *timed, *sequence]))
    for option, columns in {"keys": keys, "event_time": timed, "sequence_by": sequence}.items():
        require_columns_of(name, option, columns, source)
    return Dataset(
        name=name,
        inputs={"rows": by_key(source, keys)},
        outputs=(Output(name, grain=keys, scope_columns=same_names(keys), cluster_by=timed or keys),),
        shape=lambda rows, own: first_rows(rows["rows"], keys, required, sequence, grain),
        specification=EventsOfRows(source.name, keys, required, sequence, grain),
        meaning=meaning,
        keys=keys,
        event_time=event_time,
        columns=source.columns,
        scope_of=lambda own: own.select(*keys),
        laws=laws.of_keys(name, source.name, keys, required),
        bounded=laws.of_rows(source.name, required),
        lineage=lambda: Lineage(
            rows=unique(
                [
                    *taken(source.name, keys, "group by"),
                    *taken(source.name, sequence, "sort"),
                    *taken(source.name, required, "filter"),
                ]
            ),
            passes=source.name,
        ),
    )


def names_of(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return () if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)


def refuse_record_options(dataset: str, source: Dataset, **given: object) -> None:
    """Raises DeclarationError if record options are given for the rows of a dataset."""
    wrong = [option for option, value in given.items() if value != record_defaults.get(option)]
    if wrong:
        raise DeclarationError(
            f"{dataset}: its source {source.name} is a table, so leave out {', '.join(wrong)}: "
            "these are for the records of a topic"
        )


def required_schema(dataset: str, schema: str | None) -> str:
    """The schema of a topic's records, which is required."""
    if schema is None:
        raise DeclarationError(f"{dataset}: give schema, the columns of its records, such as 'id string, at timestamp'")
    return schema


def topics_of(dataset: str, source: Topic | Sequence[Topic]) -> tuple[Topic, ...]:
    """The topics of a source: one or several."""
    topics = (source,) if isinstance(source, Topic) else source
    if isinstance(topics, Dataset) or not all(isinstance(each, Topic) for each in topics):
        raise DeclarationError(f"{dataset}: source is a topic or several; declare them with bronze.topic")
    return tuple(topics)


def checked_parsing(
    dataset: str,
    *,
    schema: str,
    event_time: str | None,
    time_formats: Mapping[str, str] | None,
    from_record: Mapping[str, str] | None = None,
    **options: object,
) -> Parsing:
    """How records are parsed; raises DeclarationError with the option that does not fit the schema."""
    declared = column_types(schema, dataset)
    formats = tuple(sorted((time_formats or {}).items()))
    around = tuple((from_record or {}).items())
    parsing = Parsing(
        schema=ddl(declared),
        event_time=event_time,
        time_formats=formats,
        from_record=around,
        **options,  # type: ignore[arg-type]
    )
    if len({name.casefold() for name in parsing.columns}) < len(parsing.columns):
        raise DeclarationError(
            f"{dataset}: two columns have one name; Debezium's are op, committed_at, lsn and transaction_order"
        )
    require_unreserved(dataset, declared)
    require_format(dataset, parsing)
    require_record_columns(dataset, parsing.record_columns, declared, parsing.required)
    taken = [name for name in parsing.changes.keys if name in parsing.record_columns] if parsing.changes else []
    if parsing.is_debezium and taken:
        raise DeclarationError(
            f"{dataset}: the row in Debezium's envelope has {', '.join(taken)}; do not take it from_record"
        )
    times = {"event_time": event_time, "sent_time": parsing.sent_time, "received_time": parsing.received_time}
    for option, column in times.items():
        require_columns(dataset, option, (column,) if column else (), parsing.columns)
        if column in declared and declared[column] != "timestamp":
            raise DeclarationError(f"{dataset}: {option} is {column}, a {declared[column]}; declare it as timestamp")
    if event_time is None and (parsing.sent_time or parsing.hold_later_than):
        raise DeclarationError(f"{dataset}: sent_time and hold_later_than need an event_time")
    require_duration(dataset, "hold_later_than", parsing.hold_later_than)
    require_duration(dataset, "future_tolerance", parsing.future_tolerance)
    require_time_formats(dataset, time_formats or {}, schema)
    require_instant(dataset, "event_time_min", parsing.event_time_min)
    return parsing


def require_format(dataset: str, parsing: Parsing) -> None:
    """A DeclarationError where the format is none, or the columns do not fit its schema."""
    encoding = parsing.format
    if not isinstance(encoding, Encoding):
        known = ("json",) if parsing.changes is None else ("json", "debezium")
        if encoding not in known:
            there_are = ", ".join([*map(repr, known), "silver.avro(…)"])
            raise DeclarationError(f"{dataset}: format is {encoding!r}; there are {there_are} and silver.protobuf(…)")
        return
    library = protobuf.imported if isinstance(encoding, Protobuf) else avro.imported
    library()
    if encoding.reader is None:
        return
    fields = {name: kind for name, kind in parsing.types.items() if name not in parsing.record_columns}
    epochs = [path for path, each in parsing.time_formats if is_epoch(each)]
    if isinstance(encoding, Protobuf):
        protobuf.require_fit(dataset, encoding.reader, encoding.message, fields, epochs)
    else:
        avro.require_columns_fit(dataset, avro.require_readable(dataset, encoding.reader), fields, epochs)


def require_instant(dataset: str, option: str, text: str | None) -> None:
    """Raises DeclarationError if `text` is not a time with an offset from UTC."""
    try:
        is_instant = text is None or datetime.fromisoformat(text).tzinfo is not None
    except (TypeError, ValueError):
        is_instant = False
    if not is_instant:
        raise DeclarationError(
            f"{dataset}: {option} is {text!r}, which is no time; write for example '1900-01-01T00:00:00Z', "
            "or None for no bound"
        )
