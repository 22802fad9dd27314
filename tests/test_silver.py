"""Declarations of silver: wrong ones are refused with a sentence that says what to write."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice import bronze, silver
from sluice.errors import DeclarationError
from sluice.shapes.fates import Events

topic = bronze.topic("things")
schema = "id string, at timestamp, name string, gone boolean, fields array<string>"


def history(**options: Any) -> Any:
    declared: dict[str, Any] = {"source": topic, "schema": schema, "keys": ["id"], "sequence_by": "at"}
    return silver.history("x", **(declared | options))


def events(**options: Any) -> Any:
    declared: dict[str, Any] = {"source": topic, "schema": schema, "keys": ["id"]}
    return silver.events("x", **(declared | options))


facts = events(event_time="at")
latest = history(stored_as_scd_type=1)


@pytest.mark.parametrize(
    ("declare", "options", "says"),
    [
        (history, {"sequence_by": None}, "give sequence_by"),
        (history, {"sequence_by": "nothing"}, "sequence_by names nothing"),
        (history, {"keys": []}, "give the keys"),
        (history, {"column_list": ["name"], "except_column_list": ["gone"]}, "column_list or its except_ form"),
        (history, {"track_history_column_list": ["nothing"]}, "track_history_column_list names nothing"),
        (history, {"ignore_null_updates": ["nothing"]}, "ignore_null_updates names nothing"),
        (history, {"ignore_null_updates": True, "columns_to_update": "fields"}, "not both"),
        (history, {"stored_as_scd_type": 1, "track_history_column_list": ["name"]}, "keeps no history"),
        (history, {"schema": f"{schema}, valid_to timestamp"}, "valid_to would be there twice"),
        (history, {"schema": f"{schema}, _id string"}, "for bookkeeping"),
        (history, {"schema": "id string, op string", "format": "debezium", "sequence_by": None}, "two columns"),
        (events, {"sent_time": "at"}, "need an event_time"),
        (events, {"event_time": "at", "hold_later_than": "a while"}, "hold_later_than is 'a while'"),
        (events, {"event_time": "at", "sent_time": "nothing"}, "sent_time names nothing"),
        (events, {"event_time": "at", "idle_after": "soon"}, "idle_after is 'soon'"),
        (events, {"event_time": "at", "event_time_min": "1900"}, "event_time_min is '1900', which is no time"),
        (events, {"event_time": "at", "event_time_min": "1900-01-01T00:00:00"}, "write for example"),
        (events, {"time_formats": {"nothing": "epoch_millis"}}, "nothing, which the schema lacks; its times are at"),
        (events, {"time_formats": {"name": "epoch_millis"}}, "name, which is string, and no time"),
        (events, {"time_formats": {"at": "epoch_days"}}, "at is timestamp, which cannot be read from epoch_days"),
        (events, {"time_formats": {"at": "epoch_hours"}}, "it can be epoch_seconds, epoch_millis, epoch_micros, or"),
        (history, {"time_formats": {"at": "YYYY-MM-dd"}}, "YYYY cannot be read"),
        (history, {"time_formats": {"at": "yyyy-MM-ddTHH:mm"}}, "T cannot be read"),
        (history, {"time_formats": {"at": "yyyy-MM-dd'T"}}, "is no pattern of a time"),
        (history, {"time_formats": {"at": "HH:mm"}}, "has no year"),
        (events, {"from_record": {"trace": "headers['x']"}}, "from_record names trace, which the schema lacks"),
        (events, {"from_record": {"name": "header('x')"}}, r"name is .*; write key, key\['id'\], headers"),
        (events, {"from_record": {"at": "offset"}}, "at is offset, which is of type bigint, not timestamp"),
        (events, {"from_record": {"fields": "headers['x']"}}, "which is text, and cannot be array<string>"),
        (history, {"from_record": {"gone": "value IS NULL"}}, "a record without a value has no id, at"),
        (events, {"schema": "id string", "from_record": {"id": "key"}}, "declare at least one field of the value"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(
    declare: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare(**options)


def test_times_inside_of_others_have_formats_by_their_path() -> None:
    nested = "id string, trip struct<began: timestamp, stops: array<struct<left_at: date>>>"
    formats = {"trip.began": "epoch_millis", "trip.stops.left_at": "dd.MM.yyyy"}
    found = events(schema=nested, time_formats=formats)
    assert isinstance(found.specification, Events)
    assert dict(found.specification.parsing.time_formats) == formats
    with pytest.raises(DeclarationError, match=r"its times are trip\.began, trip\.stops\.left_at"):
        events(schema=nested, time_formats={"trip.ended": "epoch_millis"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source": topic}, "source is a table"),
        ({"column": "nothing"}, "column names nothing"),
        ({"column": "name"}, "name of silver.x is string, and no array"),
        ({"ordinal": "name"}, "name would be there twice"),
        ({"ordinal": "_n"}, "for bookkeeping"),
    ],
)
def test_what_cannot_be_exploded_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        silver.explode("y", **({"source": facts, "column": "fields"} | options))


@pytest.mark.parametrize(
    ("dimension", "says"),
    [
        (latest, "has no versions"),
        (facts, "has no versions"),
        (silver.dimension(history(), on={"nothing": "id"}), "on names nothing"),
        (silver.dimension(history(), inferred={"nothing": "1"}), "inferred names nothing"),
    ],
)
def test_a_wrong_dimension_says_what_is_wrong(dimension: Any, says: str) -> None:
    with pytest.raises(DeclarationError, match=says):
        silver.as_of("y", facts=facts, event_time="at", dimensions={"thing": dimension})


unknown = silver.join("unknown", inputs={"facts": facts}, keys=["id"], shape=lambda facts: facts)


def of_rows(**options: Any) -> Any:
    return silver.history("z", **({"source": facts, "keys": ["id"], "sequence_by": "at"} | options))


def events_of_rows(**options: Any) -> Any:
    return silver.events("z", **({"source": facts, "keys": ["name"]} | options))


@pytest.mark.parametrize(
    ("declare", "options", "says"),
    [
        (of_rows, {"schema": schema}, "is a table, so leave out schema"),
        (of_rows, {"format": "debezium"}, "leave out format"),
        (of_rows, {"apply_as_truncates": "gone"}, "leave out apply_as_truncates"),
        (of_rows, {"hold_later_than": "1 day"}, "leave out hold_later_than"),
        (of_rows, {"future_tolerance": "2 days"}, "leave out future_tolerance"),
        (of_rows, {"record_bytes_max": 1}, "leave out record_bytes_max"),
        (of_rows, {"idle_after": "2 hours"}, "leave out idle_after"),
        (of_rows, {"keys": ["nothing"]}, "keys names nothing"),
        (of_rows, {"keys": []}, "give the keys"),
        (of_rows, {"sequence_by": "nothing"}, "sequence_by names nothing"),
        (of_rows, {"column_list": ["nothing"]}, "column_list names nothing"),
        (of_rows, {"source": history(), "sequence_by": "is_current"}, "valid_from, valid_to would be there twice"),
        (of_rows, {"source": unknown}, "give column_list"),
        (events_of_rows, {"schema": schema}, "leave out schema"),
        (events_of_rows, {"sent_time": "at"}, "leave out sent_time"),
        (events_of_rows, {"keys": ["nothing"]}, "keys names nothing"),
        (events_of_rows, {"event_time": "nothing"}, "event_time names nothing"),
        (events_of_rows, {"sequence_by": "nothing"}, "sequence_by names nothing"),
        (events, {"sequence_by": "at"}, "leave sequence_by out"),
        (events, {"schema": None}, "give schema"),
        (history, {"schema": None}, "give schema"),
    ],
)
def test_a_source_of_rows_takes_no_options_of_records(
    declare: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare(**options)


def test_snapshots_come_from_a_topic() -> None:
    with pytest.raises(DeclarationError, match="source is a topic"):
        silver.history_from_snapshots("z", source=facts, schema=schema, keys=["id"], taken_at="at")


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ({"nobody": {"id": "name"}}, "on names nobody; its inputs are facts, things"),
        ({"things": {"nothing": "name"}}, "names nothing; the keys are id"),
        ({"things": {"id": "nothing"}}, "silver.x has no column nothing"),
        ({"other": {}}, "on names other"),
    ],
)
def test_a_join_names_its_keys_by_input(on: dict[str, dict[str, str]], says: str) -> None:
    inputs = {"facts": facts, "things": latest}
    with pytest.raises(DeclarationError, match=says):
        silver.join("w", inputs=inputs, keys=["id"], on=on, shape=lambda facts, things: facts)


def test_an_input_that_lacks_a_key_must_say_what_it_is() -> None:
    other = silver.events("other", source=topic, schema="code string", keys=["code"])
    inputs = {"facts": facts, "others": other}
    with pytest.raises(DeclarationError, match=r"silver\.other has no column id; say what its id is"):
        silver.join("w", inputs=inputs, keys=["id"], shape=lambda facts, others: facts)
    on = {"others": {"id": "lower(code)"}}
    joined = silver.join("w", inputs=inputs, keys=["id"], on=on, shape=lambda facts, others: facts)
    again = silver.join(
        "w", inputs=inputs, keys=["id"], on={"others": {"id": "code"}}, shape=lambda facts, others: facts
    )
    assert joined.fingerprint != again.fingerprint


def test_every_option_that_changes_a_history_changes_its_fingerprint() -> None:
    declared = [
        history(),
        history(stored_as_scd_type=1),
        history(apply_as_deletes="gone"),
        history(apply_as_truncates="gone"),
        history(ignore_null_updates=True),
        history(columns_to_update="fields"),
        history(column_list=["name"]),
        history(track_history_column_list=["name"]),
        history(sequence_by=["at", "name"]),
    ]
    prints = {(each.fingerprint, each.inputs["changes"].source.fingerprint) for each in declared}
    assert len(prints) == len(declared)


@pytest.mark.parametrize(
    "declare",
    [
        history,
        of_rows,
        lambda **options: silver.history_from_snapshots(
            "z", source=topic, schema=schema, keys=["id"], taken_at="at", **options
        ),
    ],
)
def test_the_columns_of_a_history_may_name_its_keys_too(declare: Callable[..., Any]) -> None:
    one, other = declare(column_list=["id", "name"]), declare(column_list=["name"])
    assert (one.columns, one.fingerprint) == (other.columns, other.fingerprint)
    lacking = "column_list names at, which its versions do not have as an attribute; it has name"
    with pytest.raises(DeclarationError, match=lacking):
        declare(column_list=["id", "at"])
