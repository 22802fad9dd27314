"""Events: the records of a topic, parsed, each key once."""

from collections.abc import Sequence

from sluice.datasets import Dataset, Topic, checked_name, column_names, require_columns, require_duration
from sluice.errors import DeclarationError
from sluice.fates import event_dataset
from sluice.parse import Parsing


def events(
    name: str,
    *,
    source: Topic | Sequence[Topic],
    schema: str,
    keys: Sequence[str],
    event_time: str | None = None,
    sent_time: str | None = None,
    received_time: str | None = None,
    hold_later_than: str | None = None,
    idle_after: str = "1 hour",
    meaning: str = "",
    future_tolerance: str = "1 day",
    record_bytes_max: int = 10 * 1024 * 1024,
) -> Dataset:
    """The records of a topic, parsed, each key once: the first record in the log's order wins, whenever it arrives.

    `schema` is Spark DDL for the JSON value. A record with a null in `keys` or `event_time`, of another type, larger
    than `record_bytes_max`, or more than `future_tolerance` ahead of its log timestamp is quarantined under its rule.

    With `sent_time`, the event time is corrected by how far the device's clock is off: event + (received - sent), where
    received is `received_time`, or else the log's timestamp. A record received more than `hold_later_than` after its
    event is held back with the fate `late`; without that bound every late record counts. A partition whose newest
    record is `idle_after` older than the newest of all does not hold the watermark back.
    """
    full_name = checked_name("silver", name)
    require_columns(full_name, "keys", tuple(keys), column_names(schema))
    if not keys:
        raise DeclarationError(f"{full_name}: give the keys that tell its events apart")
    return event_dataset(
        full_name,
        sources=topics_of(source),
        parsing=checked_parsing(
            full_name,
            schema=schema,
            required=tuple(dict.fromkeys([*keys, *([event_time] if event_time else [])])),
            event_time=event_time,
            sent_time=sent_time,
            received_time=received_time,
            hold_later_than=hold_later_than,
            future_tolerance=future_tolerance,
            record_bytes_max=record_bytes_max,
        ),
        distinct=tuple(keys),
        idle_after=idle_after,
        meaning=meaning,
    )


def topics_of(source: Topic | Sequence[Topic]) -> tuple[Topic, ...]:
    return (source,) if isinstance(source, Topic) else tuple(source)


def checked_parsing(dataset: str, *, schema: str, event_time: str | None, **options: object) -> Parsing:
    """How records are parsed; a DeclarationError names the option that the schema cannot bear."""
    if "map<" in schema.replace(" ", "").lower():
        raise DeclarationError(
            f"{dataset}: the schema has a map, and maps cannot be compared; use array<struct<key: …, value: …>>"
        )
    parsing = Parsing(schema=schema, event_time=event_time, **options)  # type: ignore[arg-type]
    if len(set(parsing.columns)) < len(parsing.columns):
        raise DeclarationError(
            f"{dataset}: two columns have one name; Debezium's are op, committed_at, lsn and transaction_order"
        )
    reserved = [name for name in column_names(schema) if name.startswith("_")]
    if reserved:
        raise DeclarationError(f"{dataset}: {', '.join(reserved)}: names that begin with _ are for bookkeeping")
    times = {"event_time": event_time, "sent_time": parsing.sent_time, "received_time": parsing.received_time}
    for option, column in times.items():
        require_columns(dataset, option, (column,) if column else (), parsing.columns)
    if event_time is None and (parsing.sent_time or parsing.hold_later_than):
        raise DeclarationError(f"{dataset}: sent_time and hold_later_than need an event_time")
    require_duration(dataset, "hold_later_than", parsing.hold_later_than)
    require_duration(dataset, "future_tolerance", parsing.future_tolerance)
    return parsing
