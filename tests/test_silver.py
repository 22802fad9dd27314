"""Declarations of silver: wrong ones are refused with a sentence that says what to write."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice import bronze, silver
from sluice.errors import DeclarationError

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
    ],
)
def test_a_wrong_declaration_says_what_is_wrong(
    declare: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(DeclarationError, match=says):
        declare(**options)


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
