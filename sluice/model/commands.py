"""Commands: what may be asked of a state, by which rules it is decided, and the event that is made of it.

Nothing here reads or writes. A decision follows from a command, the state that is folded from the events before, and
the time.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sluice.errors import DeclarationError, suggestion
from sluice.model.datasets import Dataset, Topic
from sluice.model.ddl import column_types
from sluice.model.evaluator import Evaluate, Row, cast, compiled
from sluice.model.values import NotOfType, OutOfRange, integer_bits, is_known, read_as, reader_of, shortened

# The columns of every decision. `version` is that of the aggregate after the command.
metadata = {
    "command_id": "string",
    "command": "string",
    "outcome": "string",
    "version": "bigint",
    "event": "string",
    "expected_version": "bigint",
    "reason": "string",
    "message": "string",
    "decided_at": "timestamp",
}
# The fields of a request that are not the command's own.
of_requests = ("command", "command_id", "expected_version")
accepted, rejected = "accepted", "rejected"
# Reasons that are not rules.
version_differs, out_of_range = "expected_version", "out_of_range"
name_pattern = re.compile(r"[a-z][a-z0-9_]{0,62}")
id_characters_max = 255


@dataclass(frozen=True)
class Command:
    """What may be asked, as it is declared: its fields, its rules, and the event that it becomes.

    `rules` are conditions in SQL over `state` and `command`, each by its name, alone or with a sentence for whoever
    asked. `payload` gives SQL for the columns of the event.
    """

    fields: str
    rules: Mapping[str, str | tuple[str, str]]
    event: str
    payload: Mapping[str, str] | None = None
    optional: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A condition that must be true, and what is said where it is not."""

    name: str
    message: str
    holds: Evaluate


@dataclass(frozen=True)
class Prepared:
    """A declared command, with its SQL as functions."""

    name: str
    readers: Mapping[str, Callable[[Any], Any]]
    needed: frozenset[str]
    # The fields that are columns of events, too.
    shown: frozenset[str]
    rules: tuple[Rule, ...]
    event: str
    payload: Mapping[str, Evaluate]

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a command that was sent; a NotOfType that names the field that is wrong."""
        unknown = [name for name in given if name not in self.readers]
        if unknown:
            said = suggestion(unknown[0], self.readers, f"there are {', '.join(self.readers)}")
            raise NotOfType(f"{shortened(unknown[0])} is no field of {self.name}; {said}")
        found = {}
        for name, read in self.readers.items():
            found[name] = read_as(name, read, given.get(name))
            if found[name] is None and name in self.needed:
                raise NotOfType(f"{name} is missing, and {self.name} needs it")
        return found


@dataclass(frozen=True)
class Fold:
    """What events make of a state: the SQL of a `gold.state`, as functions."""

    initial: Mapping[str, Evaluate]
    reduce: Mapping[str, Evaluate]

    def begun(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        row = {"": keys}
        return {name: value(row) for name, value in self.initial.items()}

    def after(self, keys: Mapping[str, Any], state: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        row = {"": keys, "state": state, "event": event}
        return {name: value(row) for name, value in self.reduce.items()}


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What commands are decided by: how many events there were of a key, and the state that they left."""

    version: int
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A command that was sent, whose fields have their types."""

    command: Prepared
    command_id: str
    expected_version: int | None
    values: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Commands:
    """The commands of a state, and the topic of the log that has what was decided.

    They decide no row of the lake: their decisions are records. So no fingerprint has them, and to change a rule
    rebuilds nothing.
    """

    name: str
    topic: Topic
    state: Dataset
    keys: Mapping[str, str]
    payload: Mapping[str, str]
    fold: Fold
    commands: Mapping[str, Prepared]
    readers: Mapping[str, Callable[[Any], Any]] = field(init=False)

    def __post_init__(self) -> None:
        kinds = {**metadata, **self.keys, **self.payload}
        object.__setattr__(self, "readers", {name: reader_of(kind) for name, kind in kinds.items()})

    def keys_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.keys}

    def begun(self, keys: Mapping[str, Any]) -> Aggregate:
        """An aggregate of which there is no event."""
        return Aggregate(0, self.fold.begun(keys))

    def read(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A decision as it is in the log; a NotOfType that names what is wrong in it."""
        found = {name: read_as(f"its {name}", read, record.get(name)) for name, read in self.readers.items()}
        missing = [name for name in (*self.keys, "command_id", "outcome", "version") if found[name] is None]
        if missing:
            raise NotOfType(f"it has no {missing[0]}")
        return found

    def after(self, known: Aggregate, decision: Mapping[str, Any]) -> Aggregate:
        """The aggregate after a decision; the next version of it, if that is an event."""
        if decision["outcome"] != accepted:
            return known
        return Aggregate(known.version + 1, self.fold.after(self.keys_of(decision), known.state, decision))

    def decided(self, asked: Asked, known: Aggregate, at: datetime) -> tuple[dict[str, Any], Aggregate]:
        """What becomes of a command, with the columns of its decision, and the aggregate after it."""
        said: dict[str, Any] = dict.fromkeys([*metadata, *self.payload])
        # A rejection, which has no payload, says what was asked: the fields that are columns of events.
        asked_for = {name: value for name, value in asked.values.items() if name in asked.command.shown}
        said |= self.keys_of(asked.values)
        said |= {"command_id": asked.command_id, "command": asked.command.name, "decided_at": at}
        said |= {"expected_version": asked.expected_version, "version": known.version}
        if asked.expected_version not in (None, known.version):
            message = f"The version is {known.version}, and {asked.expected_version} was expected."
            return said | asked_for | rejection(version_differs, message), known
        row: Row = {"state": known.state, "command": {**asked.values, "decided_at": at}}
        try:
            for rule in asked.command.rules:
                if rule.holds(row) is not True:
                    return said | asked_for | rejection(rule.name, rule.message), known
            made = {name: value(row) for name, value in asked.command.payload.items()}
            event = {"outcome": accepted, "event": asked.command.event, "version": known.version + 1, **made}
            # Before it is an event: one that the state cannot take would block the table of the state for ever.
            return said | event, self.after(known, said | event)
        except OutOfRange as error:
            return said | asked_for | rejection(out_of_range, f"A number is out of range: {error}."), known


def rejection(reason: str, message: str) -> dict[str, Any]:
    return {"outcome": rejected, "reason": reason, "message": message}


def prepared(
    name: str,
    *,
    topic: Topic,
    state: Dataset,
    columns: Mapping[str, str],
    types: Mapping[str, str],
    initial: Mapping[str, str],
    reduce: Mapping[str, str],
    commands: Mapping[str, Command],
) -> Commands:
    """The commands of a state, checked; `types` are those of its columns, and `columns` those of the decisions.

    A DeclarationError where something cannot be decided exactly without Spark.
    """
    said = f"commands {name}"
    keys = {key: columns[key] for key in state.keys if key not in metadata}
    for key in state.keys:
        if keys.get(key) != "string" and keys.get(key) not in integer_bits:
            raise DeclarationError(
                f"{said}: the key {key} of {state.name} is a {columns.get(key)}; the keys of commands are strings or "
                "whole numbers, and not what every decision has"
            )
    payload = {
        each: kind for each, kind in columns.items() if each not in metadata and each not in keys and is_known(kind)
    }
    for column, kind in types.items():
        if not is_known(kind):
            raise DeclarationError(
                f"{state.name}: {column} is a {kind}, whose values only Spark knows exactly; states of commands have "
                "booleans, whole numbers, decimals, strings, dates, timestamps and arrays of them"
            )
    reduced = {"": keys, "state": types, "event": columns}
    return Commands(
        name=name,
        topic=topic,
        state=state,
        keys=keys,
        payload=payload,
        fold=Fold(
            {each: cast(f"{state.name}: initial {each}", initial[each], {"": keys}, types[each]) for each in types},
            {each: cast(f"{state.name}: reduce {each}", reduce[each], reduced, types[each]) for each in types},
        ),
        commands={
            each: prepared_command(f"{said}: {each}", given, keys, payload, types) for each, given in commands.items()
        },
    )


def prepared_command(
    place: str,
    given: Command,
    keys: Mapping[str, str],
    columns: Mapping[str, str],
    state: Mapping[str, str],
) -> Prepared:
    name = place.rpartition(" ")[2]
    for word in (name, given.event, *given.rules):
        if not name_pattern.fullmatch(word):
            raise DeclarationError(f"{place}: '{word}' is no name; write lower-case letters, digits and _")
    fields = column_types(given.fields, f"{place}: fields")
    require_fields(place, fields, given, keys)
    scopes = {"state": state, "command": {**fields, "decided_at": "timestamp"}}
    rules = tuple(prepared_rule(place, rule, condition, scopes) for rule, condition in given.rules.items())
    payload = given.payload
    if payload is None:
        payload = {each: f"command.`{each}`" for each in fields if each not in keys}
    for column in payload:
        if column not in columns:
            there_are = suggestion(column, columns, f"there are {', '.join(columns)}")
            raise DeclarationError(
                f"{place}: events have no column {column}; {there_are}. Say with payload what the event has"
            )
    return Prepared(
        name=name,
        readers={each: reader_of(kind) for each, kind in fields.items()},
        needed=frozenset(fields) - set(given.optional),
        shown=frozenset(each for each, kind in fields.items() if columns.get(each) == kind),
        rules=rules,
        event=given.event,
        payload={
            column: cast(f"{place}: payload {column}", text, scopes, columns[column])
            for column, text in payload.items()
        },
    )


def require_fields(place: str, fields: Mapping[str, str], given: Command, keys: Mapping[str, str]) -> None:
    taken = [name for name in fields if name in metadata]
    if taken:
        raise DeclarationError(f"{place}: {taken[0]} is what every decision has; give the field another name")
    for name, kind in fields.items():
        if not is_known(kind):
            raise DeclarationError(
                f"{place}: {name} is a {kind}; fields are booleans, whole numbers, decimals, strings, dates, "
                "timestamps and arrays of them"
            )
    for key, kind in keys.items():
        if fields.get(key) != kind:
            raise DeclarationError(f"{place}: give the key of the state as a field: {key} {kind}")
    for name in given.optional:
        if name not in fields or name in keys:
            raise DeclarationError(f"{place}: optional has {name}, which is no field beside the key")


def prepared_rule(place: str, name: str, given: str | tuple[str, str], scopes: Mapping[str, Mapping[str, str]]) -> Rule:
    condition, message = (given, f"{name} is not fulfilled: {given}") if isinstance(given, str) else given
    if name in (version_differs, out_of_range):
        raise DeclarationError(f"{place}: {name} is a reason of its own; give the rule another name")
    found = compiled(f"{place}: rule {name}", condition, scopes)
    if found.kind != "boolean":
        raise DeclarationError(f"{place}: rule {name} is {condition}, a {found.kind}; write a condition")
    return Rule(name, message, found.of)
