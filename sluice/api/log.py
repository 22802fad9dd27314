"""The log of a project."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from sluice.api.driver import asked
from sluice.api.opened import Message, Opened
from sluice.api.results import TopicOffsets
from sluice.engine.catalogue import is_project
from sluice.errors import SluiceError, UsageError, suggestion
from sluice.ingest.file_rows import Reading
from sluice.ingest.files import Imported, Options, import_file
from sluice.ingest.receivers.records import exact, key_in, non_finite
from sluice.log import Record, Retention, StoredRecord, Verified, is_reserved, require_open
from sluice.operate import requests
from sluice.operate.schemas import add_schema

# What can be appended: an object that becomes JSON, text, bytes, no value (a tombstone), or a whole record.
Value = Mapping[str, Any] | str | bytes | None | Record


@dataclass(frozen=True)
class ProjectLog:
    """Writes, reads and verifies the log."""

    _here: Opened

    def append(
        self, topic: str, records: Iterable[Value], *, key: str | None = None, key_field: str | None = None
    ) -> dict[int, int]:
        """Appends records to a topic, which is made when it is not there; they are durable when it returns.

        A mapping becomes JSON, with a Decimal as the number that it is, and NaN and the infinities as text; text and
        bytes are appended as they are; a Record has its own key, timestamp and headers. `key` is the key of every other
        record, or else each takes its own from the field `key_field` of its JSON; if none has it, that is a warning,
        and so is a new topic that no dataset reads. Records of one key keep their order. Returns the next offset of
        each partition that got some. A UsageError for a value that is no JSON, for one record instead of several, or a
        topic reserved for Sluice; a LogError when the log cannot be written.
        """
        require_open(topic)
        is_new = not self._here.log.exists(topic)
        if isinstance(records, Mapping | str | bytes | Record):
            raise UsageError(f"records is one {type(records).__name__}; give a list, even of one record.")
        if key is not None and key_field is not None:
            raise UsageError("Give key or key_field, not both.")
        keys = Counter[bool]()
        offsets = self._here.log.append(topic, keyed(records, key, key_field, keys))
        if key_field is not None and keys and not keys[True]:
            without = (
                f"None of the records of {topic} has a field {key_field}: they have no key, and no order among them."
            )
            self._here.notify(Message("warning", without))
        if is_new:
            self.warn_unread(topic)
        return offsets

    def warn_unread(self, topic: str) -> None:
        """Says that nothing reads a topic, which may be a misspelt one."""
        try:
            read = self.read_topics()
        except SluiceError:
            # The records are appended, whatever is wrong with the declarations; the next run says what.
            return
        if topic not in read:
            what_else = suggestion(topic, read, f"they read {', '.join(read) or 'none yet'}.")
            said = f"The topic {topic} is new, and no dataset reads it: {what_else}"
            self._here.notify(Message("warning", said))

    def unread_topics(self) -> list[str]:
        """The topics of the log that do not land; none of a log on Kafka, which is not the project's alone."""
        if self._here.log.folder_of_files is None:
            return []
        landed = {each.topic for each in self._here.catalogue().topics}
        return [name for name in self.names() if name not in landed and not is_reserved(name)]

    def read_topics(self) -> list[str]:
        """The topics that the declared datasets are made from; none where nothing is declared."""
        here = self._here
        if not is_project(here.settings.project):
            return []
        return list(dict.fromkeys(topic for each in here.catalogue().datasets for topic in each.topics))

    def import_files(
        self,
        topic: str,
        *files: str | Path,
        key: str | None = None,
        timestamp: str | None = None,
        headers: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
        delimiter: str = ",",
        null: str = "",
        skip_bad: bool = False,
    ) -> list[Imported]:
        """Appends the rows of files (CSV, Parquet, JSON lines, also compressed) as records, each row once.

        `key`, `timestamp` and `headers` name columns. Those of CSV are text, unless `types` says that one is `number`,
        `boolean` or `json`; a field that is the text `null` is null. What was imported before, or in part, is not
        imported again. A UsageError names the file and the row that is no record, and nothing of this file is imported;
        with `skip_bad` such rows are kept in a file instead. A new topic that no dataset reads is a warning.
        """
        is_new = not self._here.log.exists(topic)
        reading = Reading(delimiter, null, types or {})
        options = Options(key, timestamp, tuple(headers), reading, skip_bad)
        folder = Path(self._here.settings.project, ".sluice", "imports")
        found = [import_file(self._here.log, topic, Path(each), options, folder) for each in files]
        if is_new and found:
            self.warn_unread(topic)
        return found

    def add_schema(
        self, number: int, schema: str | Path, *, references: Mapping[str, str | Path] | None = None
    ) -> None:
        """States the writer's schema of an id, where no registry does: a file of Avro (`.avsc`) or Protobuf (`.proto`).

        `references` are the files that it refers to by their names, each after those that it needs itself. Records that
        name the id are judged again by the next run. An id has one schema for ever: the first counts. A UsageError for
        a file that cannot be read, or that is no schema.
        """
        referred = {name: Path(each) for name, each in (references or {}).items()}
        add_schema(self._here.log, number, Path(schema), referred)

    def tail(self, topic: str, records: int = 10) -> list[StoredRecord]:
        """The newest records of a topic; a LogError when there is none of that name."""
        return self._here.log.tail(topic, records)

    def names(self) -> list[str]:
        """The names of the topics that there are."""
        return list(self._here.log.topics())

    def topics(self) -> list[TopicOffsets]:
        """The offsets in each partition of each topic."""
        log = self._here.log
        return [
            TopicOffsets(topic, partition, available.start, available.stop)
            for topic in log.topics()
            for partition, available in log.offsets(topic).items()
        ]

    def verify(self, *topics: str) -> list[Verified]:
        """Reads the whole log, or some topics, and names in `faults` every segment that is not as it was written.

        A UsageError for a log on Kafka, which verifies its own records.
        """
        log = self._here.log
        log.require()
        return [partition for topic in topics or log.topics() for partition in log.verify(topic)]

    def retention(self, topic: str) -> Retention:
        """How long records of a topic stay in the log after they have landed."""
        return self._here.log.retention(topic) or Retention()

    def retain(
        self,
        topic: str,
        *,
        days: float | None = None,
        partition_bytes: int | None = None,
        compact: bool = False,
        tombstone_days: float = 1.0,
    ) -> Retention:
        """Says how long records of a topic stay in the log after they have landed; without more, for ever.

        `project.maintain` removes whole segments when all their records are older than `days`, or while a partition has
        more than `partition_bytes`; and with `compact` what records say whose key has a newer one, and tombstones after
        `tombstone_days`. A UsageError for a topic of Sluice's own, or a log on Kafka.
        """
        require_open(topic)
        try:
            said = Retention(days=days, partition_bytes=partition_bytes, compact=compact, tombstone_days=tombstone_days)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{first['loc'][0]}={first['input']} cannot be used: {first['msg']}.") from None
        self._here.log.retain(topic, said)
        return said

    def skip(self, topic: str, because: str) -> dict[str, int]:
        """Goes on without records that the log lost before they landed, or after the end that a log has lost.

        Returns how many offsets each partition skips. `because` stays in the ledger.
        """
        self._here.catalogue().topic(topic)
        return asked(self._here, requests.Request(do="skip", topic=topic, because=because))


def keyed(records: Iterable[Value], key: str | None, key_field: str | None, keys: Counter[bool]) -> Iterator[Record]:
    """The records with their keys; `keys` counts those that have one, and those that have none."""
    for each in with_keys(records, key, key_field):
        keys[each.key is not None] += 1
        yield each


def with_keys(records: Iterable[Value], key: str | None, key_field: str | None) -> Iterator[Record]:
    for each in records:
        if isinstance(each, Record):
            yield each if isinstance(each.value, bytes) else replace(each, value=encoded(each.value))
            continue
        value = encoded(each)
        yield Record(value, key=key_in(value, key_field) if key_field and value is not None else key)


def encoded(value: Mapping[str, Any] | str | bytes | None) -> bytes | None:
    """A value as bytes; a UsageError when it cannot be JSON."""
    if value is None or isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else in_json(value)
    except (TypeError, UnicodeEncodeError) as error:
        raise UsageError(f"A record cannot be written: {error}.") from error


def in_json(value: Mapping[str, Any]) -> bytes:
    """An object with every digit, and what JSON has no number for as text, as `sluice log import` writes it."""
    if not isinstance(value, Mapping):
        raise TypeError(f"it is {value!r:.100}, and neither a mapping nor text, bytes or None")
    found = orjson.dumps(value, default=exact)
    # orjson makes a null of it.
    return orjson.dumps(with_numbers_as_text(value), default=exact) if b"null" in found else found


def with_numbers_as_text(value: Any) -> Any:
    """A value in which NaN and the infinities are `"NaN"`, `"Infinity"` and `"-Infinity"`."""
    if isinstance(value, Mapping):
        return {key: with_numbers_as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [with_numbers_as_text(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return non_finite(value)
    return value
