"""Decide commands: each once, in order, by the state that is folded from the decisions in the log before it.

A decision is one record of the log, durable before anyone is answered. What is in memory follows from the log alone: a
start reads all of it, and so does a process that was killed at any moment. An answer is made from the record, so a
command that is sent again gets the same one.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from hashlib import blake2b
from typing import Any, Literal, Self

import orjson

from sluice.errors import LogError, suggestion
from sluice.log import AnyLog, Record, StoredRecord
from sluice.model.commands import (
    Aggregate,
    Asked,
    Commands,
    accepted,
    id_characters_max,
    of_requests,
    version_differs,
)
from sluice.model.ledger import are_of_another_topic
from sluice.model.values import NotOfType, OutOfRange, as_json, json_object, read_as, reader_of, shortened
from sluice.shapes.parse import Parsing
from sluice.storage.delta import Lake

# What became of a request: `wrong` is no command, and `reused` has the id of another one; neither is decided.
Kind = Literal["accepted", "rejected", "version_differs", "wrong", "reused"]
Key = tuple[Any, ...]
# By the digest of what a command said a repetition is known, also when fields were erased.
digest_header = "command_digest"
# A larger record would be quarantined, and so be in the state here and in no table.
record_bytes_max = Parsing.record_bytes_max
# For numbers that a client made up: no exponent overflows, and no digit is lost.
unlimited = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
read_text, read_version = reader_of("string"), reader_of("bigint")


@dataclass(frozen=True)
class Answer:
    """What became of a command, and what is said of it, as JSON."""

    kind: Kind
    body: bytes

    def as_dict(self) -> dict[str, Any]:
        """What is said, with numbers as int and Decimal."""
        return json_object(self.body)


@dataclass
class Memory:
    """What was decided: the aggregates by key, and the offset of each decision by the digest of its command's id."""

    aggregates: dict[Key, Aggregate] = field(default_factory=dict)
    offsets: dict[bytes, int] = field(default_factory=dict)

    def add(self, other: "Memory") -> None:
        self.aggregates.update(other.aggregates)
        self.offsets.update(other.offsets)


@dataclass
class Group:
    """Decisions that become durable together."""

    first_offset: int
    records: list[Record] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)


def require_all_there(log: AnyLog, lake: Lake, commands: Commands) -> None:
    """A LogError where the log ends before decisions that have landed, as a copy of an earlier time, or lacks them."""
    commit = lake.last_commit(commands.topic.name) if lake.exists(commands.topic.name) else None
    landed = commit.entry.landed if commit is not None else {}
    topic = commands.topic.topic
    gone = landed and (not log.exists(topic) or log.truncated(topic, landed))
    if gone or (landed and are_of_another_topic(landed, log.topic_id(topic))):
        raise LogError(
            f"Topic {topic} {'ends before' if gone else 'was made again, without'} decisions that have landed in "
            f"{commands.topic.name}, so commands could be decided a second time. Restore the newest copy of the topic."
        )


class Decider:
    """Decides the commands of one declaration. One process at a time has it, until it is closed."""

    def __init__(self, log: AnyLog, commands: Commands) -> None:
        """Reads what was decided; a LogError where the log is not whole, or another process decides already."""
        self.commands = commands
        self.memory = Memory()
        self.is_behind = True
        self.deciding = threading.Lock()
        self.owned = log.own(commands.topic.topic, commands.name)
        try:
            self.catch_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another process decide."""
        self.owned.close()

    @property
    def name(self) -> str:
        return self.commands.name

    @property
    def topic(self) -> str:
        return self.commands.topic.topic

    @property
    def decisions(self) -> int:
        """How many commands were decided."""
        return len(self.memory.offsets)

    def decide(self, commands: Sequence[bytes]) -> list[Answer]:
        """Decides commands one after the other, each an object of JSON; all is durable when it returns.

        A LogError when the log cannot be written. Then it is not certain whether they were decided: send them again.
        """
        with self.deciding:
            if self.is_behind:
                self.catch_up()
            group = Group(self.owned.end)
            answers = [self.answer(each, group) for each in commands]
            if group.records:
                # If the append fails, its records may be there all the same: only reading tells.
                self.is_behind = True
                self.owned.append(group.records)
                self.is_behind = False
            self.memory.add(group.memory)
            return answers

    def catch_up(self) -> None:
        """Folds the records of the log that are not in memory yet."""
        for stored in self.owned.unread():
            try:
                self.fold(stored)
            except (NotOfType, OutOfRange) as error:
                raise LogError(
                    f"Topic {self.topic}, offset {stored.offset}: the state cannot be folded from this decision: "
                    f"{error}. Restore the segment from a copy, or undo the change of {self.commands.state.name} or of "
                    "the columns of its events."
                ) from error
        self.is_behind = False

    def fold(self, stored: StoredRecord) -> None:
        if stored.value is None:
            raise NotOfType("the record was emptied")
        decision = self.commands.read(json_object(stored.value))
        key = tuple(decision[name] for name in self.commands.keys)
        known = self.aggregate(key, self.memory)
        after = self.commands.after(known, decision)
        if decision["version"] != after.version:
            raise NotOfType(f"its version is {decision['version']}, and {after.version} should come")
        digest = digest_of(decision["command_id"].encode())
        if digest in self.memory.offsets:
            raise NotOfType("a command of its id was decided before")
        if after.version:
            self.memory.aggregates[key] = after
        self.memory.offsets[digest] = stored.offset

    def aggregate(self, key: Key, *memories: Memory) -> Aggregate:
        """An aggregate as the first of the memories has it that knows it."""
        for each in memories:
            if key in each.aggregates:
                return each.aggregates[key]
        return self.commands.begun(dict(zip(self.commands.keys, key, strict=True)))

    def answer(self, value: bytes, group: Group) -> Answer:
        """The answer to a command, which is decided where it was not before."""
        try:
            given = json_object(value)
            command_id = id_in(given)
            digest = digest_of(command_id.encode())
            offset = group.memory.offsets.get(digest, self.memory.offsets.get(digest))
            if offset is not None:
                return self.repeated(command_id, content_of(given), *self.record_at(offset, group))
            return self.decided(self.asked(command_id, given), given, digest, group)
        except (NotOfType, RecursionError) as error:
            # A name in it may have half of a character, which no JSON can have.
            said = f"The command is wrong: {error}.".encode(errors="replace").decode()
            return Answer("wrong", orjson.dumps({"error": said}))

    def asked(self, command_id: str, given: Mapping[str, Any]) -> Asked:
        """The command that was sent, checked; a NotOfType that names the field that is wrong."""
        name = given.get("command")
        command = self.commands.commands.get(name) if isinstance(name, str) else None
        if command is None:
            there_are = f"there are {', '.join(self.commands.commands)}"
            if not isinstance(name, str):
                raise NotOfType(f"command is no text; {there_are}")
            hint = suggestion(name, self.commands.commands, there_are)
            raise NotOfType(f"there is no command {shortened(name)}; {hint}")
        expected = read_as("expected_version", read_version, given.get("expected_version"))
        values = command.values({name: each for name, each in given.items() if name not in of_requests})
        return Asked(command, command_id, expected, values)

    def decided(self, asked: Asked, given: Mapping[str, Any], digest: bytes, group: Group) -> Answer:
        key = tuple(asked.values[name] for name in self.commands.keys)
        known = self.aggregate(key, group.memory, self.memory)
        said, after = self.commands.decided(asked, known, datetime.now(UTC))
        value = orjson.dumps({name: as_json(each) for name, each in said.items() if each is not None})
        if len(value) > record_bytes_max:
            raise NotOfType(f"its decision would have {len(value)} bytes, and a record can have {record_bytes_max}")
        if after is not known:
            group.memory.aggregates[key] = after
        group.memory.offsets[digest] = group.first_offset + len(group.records)
        group.records.append(Record(value, key=key_text(key), headers={digest_header: content_of(given)}))
        return answer_in(value)

    def record_at(self, offset: int, group: Group) -> tuple[bytes, str | None]:
        """The decision at an offset, and the digest of its command; it may become durable with the group only."""
        is_new = offset >= group.first_offset
        found = group.records[offset - group.first_offset] if is_new else self.owned.record(offset)
        return found.value or b"", found.headers.get(digest_header)

    def repeated(self, command_id: str, content: str, value: bytes, digest: str | None) -> Answer:
        """The answer that a command got before; an error where it was another command."""
        if digest == content:
            return answer_in(value)
        said = {
            "error": f"The command_id {command_id} is that of another command. Give each command an id of its own.",
            "command_id": command_id,
        }
        return Answer("reused", orjson.dumps(said))


def id_in(given: Mapping[str, Any]) -> str:
    found = read_as("command_id", read_text, given.get("command_id"))
    if found is None or not 0 < len(found) <= id_characters_max:
        raise NotOfType(
            f"command_id must be given: a text of 1 to {id_characters_max} characters, new for each command"
        )
    return str(found)


def digest_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()


def content_of(given: Mapping[str, Any]) -> str:
    """The digest of what a command says, whatever the order of its fields and its spaces."""
    text = json.dumps(given, sort_keys=True, default=plain, separators=(",", ":"))
    return digest_of(text.encode()).hex()


def plain(number: Any) -> dict[str, str]:
    """A number with a point or an exponent, all of its digits, and none that says nothing; no text is the same."""
    assert isinstance(number, Decimal)  # noqa: S101 - JSON has nothing else that is not JSON
    return {"decimal": str(number.normalize(unlimited))}


def key_text(key: Key) -> str:
    """The key of the record: the aggregate's, as JSON where it is not one text."""
    return key[0] if len(key) == 1 and isinstance(key[0], str) else orjson.dumps(key).decode()


def answer_in(value: bytes) -> Answer:
    """The answer that a decision in the log is."""
    decision = json_object(value)
    kind: Kind = "rejected"
    if decision["outcome"] == accepted:
        kind = "accepted"
    elif decision.get("reason") == version_differs:
        kind = "version_differs"
    return Answer(kind, value)
