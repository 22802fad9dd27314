"""Files into the log, each row once: an import that was killed goes on where it was."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from sluice.errors import UsageError
from sluice.ingest.file_rows import Reading, Row, kinds_of_text, rows_of
from sluice.ingest.receivers.records import append, as_written, key_text
from sluice.log import AnyLog, Record, erasures, require_open
from sluice.log.durable import naming, replace_file
from sluice.log.rewriting import is_emptied

# The header by which a record is known again: the import, and the row of its file.
header = "import_row"
batch_rows, batch_bytes = 20_000, 32 << 20


@dataclass(frozen=True)
class Options:
    """What is made of rows: the columns with the key, the timestamp and the headers of a record; and how CSV is read.

    With `skip_bad` rows that are no records are kept in a file beside the position; otherwise one stops the import.
    """

    key: str | None = None
    timestamp: str | None = None
    headers: Sequence[str] = ()
    reading: Reading = field(default_factory=Reading)
    skip_bad: bool = False


@dataclass(frozen=True)
class Imported:
    """What became of a file: its rows, of which `bad` were skipped, into `bad_file`; none are new if it was there."""

    file: str
    rows: int
    records: int
    new: int
    bad: int
    bad_file: str | None


@dataclass(frozen=True)
class Position:
    """How far an import is: up to this row of the file, in a log that then ended at these offsets.

    It is mixed where the file was changed meanwhile: for good, as the file says nothing of it once it is put back.
    Without a `topic_id`, an older release began it, or made the topic.
    """

    file: str
    sha256: str
    topic: str
    log: str
    options: dict[str, Any]
    row: int = 0
    records: int = 0
    bad: int = 0
    bad_bytes: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    is_complete: bool = False
    is_mixed: bool = False
    topic_id: str | None = None

    @property
    def name(self) -> str:
        """What stands in the headers of the records."""
        return digest(f"{self.log}\n{self.topic}\n{self.file}\n{self.sha256}")


def import_file(log: AnyLog, topic: str, path: Path, options: Options, folder: Path) -> Imported:
    """Appends the rows of a file that are not in the log yet; `folder` keeps how far each file is.

    A UsageError for a file that cannot be read, that has a bad row, or that was changed since a part of it came in,
    also if it was put back.
    """
    require_open(topic)
    require_options(options)
    path = path.resolve()
    wanted = Position(str(path), sha256_of(path), topic, str(log), json.loads(json.dumps(asdict(options))))
    place = folder / f"{digest(f'{log} {topic} {path}')}.json"
    with held(place):
        known = read_position(place)
        if known is None:
            require_good(path, options)
            log.create(topic)
            known = replace(wanted, offsets=ends_of(log, topic), topic_id=log.topic_id(topic))
            write_position(place, known)
        require_unmixed(known)
        require_same(known, wanted)
        require_there(log, topic, known, place)
        before = known.records
        if not known.is_complete:
            try:
                known = go_on(log, path, options, known, place)
            except Exception:
                # What came in before the error may be of other content, too.
                require_unchanged(path, place)
                raise
        bad = str(bad_file(place)) if known.bad else None
        return Imported(str(path), known.row, known.records, known.records - before, known.bad, bad)


def go_on(log: AnyLog, path: Path, options: Options, at: Position, place: Path) -> Position:
    """Appends the rows after a position, a batch at a time, and keeps the position after each."""
    topic = at.topic
    there = rows_after(log, topic, at)
    found = (row for row in rows_of(path, options.reading) if row.number > at.row)
    with naming(bad_file(place)), open(bad_file(place), "ab") as side:
        # What was written after the position is written again.
        side.truncate(at.bad_bytes)
        for some in batches(found):
            records = []
            for row in some:
                made = record_of(row, options, at.name)
                if isinstance(made, Record):
                    records.append((row.number, made))
                elif options.skip_bad:
                    side.write(bad_line(path, row, made))
                    at = replace(at, bad=at.bad + 1)
                else:
                    raise UsageError(f"{path}, row {row.number}: {made}.")
            append(log, topic, [made for number, made in records if number not in there])
            there = set()
            side.flush()
            os.fsync(side.fileno())
            count, size = at.records + len(records), side.tell()
            at = replace(at, row=some[-1].number, records=count, bad_bytes=size, offsets=ends_of(log, topic))
            write_position(place, at)
    require_unchanged(path, place)
    if not at.bad:
        bad_file(place).unlink()
    at = replace(at, is_complete=True)
    write_position(place, at)
    return at


def rows_after(log: AnyLog, topic: str, at: Position) -> set[int]:
    """The rows that came into the log after a position, by the batch that a kill ended: at most that batch.

    A UsageError where the log has forgotten records that may have been some of them.
    """
    found = set()
    for partition, end in ends_of(log, topic).items():
        start = at.offsets.get(partition, 0)
        if end > start:
            require_remembered(log.start_offset(topic, int(partition)) <= start, at, partition)
            # Kafka leaves no trace of what it has removed.
            require_remembered(not erasures.name_any(log, topic, int(partition), range(start, end)), at, partition)
            for record in log.read(topic, int(partition), start):
                require_remembered(not is_emptied(record), at, partition)
                name, _, row = record.headers.get(header, "").partition("/")
                if name == at.name:
                    found.add(int(row))
    return found


def require_remembered(is_there: bool, at: Position, partition: str) -> None:
    if not is_there:
        raise UsageError(
            f"{at.file} came in up to row {at.row}, and perhaps some rows after it: partition {partition} of "
            f"{at.topic} has forgotten records of that time. Rows that are in bronze have the header "
            f"{header}='{at.name}/ROW'; give the others in a file of their own."
        )


def ends_of(log: AnyLog, topic: str) -> dict[str, int]:
    return {str(partition): offsets.stop for partition, offsets in log.offsets(topic).items()}


def batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += len(row.value)
        if len(some) >= batch_rows or size >= batch_bytes:
            yield some
            some, size = [], 0
    if some:
        yield some


def record_of(row: Row, options: Options, name: str) -> Record | str:
    """The record of a row; or why there is none."""
    if row.wrong is not None:
        return row.wrong
    try:
        key = None if options.key is None else key_text(in_column(row, options.key))
        timestamp = None if options.timestamp is None else instant(in_column(row, options.timestamp))
        headers = {each: key_text(in_column(row, each)) for each in options.headers}
        for text in (key, *headers.values()):
            (text or "").encode()
    except ValueError as error:
        return str(error)
    kept = {each: text for each, text in headers.items() if text is not None}
    return Record(row.value, key, timestamp, {**kept, header: f"{name}/{row.number}"})


def in_column(row: Row, name: str) -> Any:
    """A value of a row; a ValueError where it has no such column."""
    if name not in row.fields:
        raise ValueError(f"it has no {name}")
    value = row.fields[name]
    found = orjson.loads(orjson.dumps(value)) if isinstance(value, orjson.Fragment) else value
    if not isinstance(found, float | Decimal):
        return found
    written = as_written(row.value)
    if written is None:
        raise ValueError("it is nested too deeply")
    return written[name]


def instant(value: Any) -> datetime:
    try:
        found = datetime.fromisoformat(value)
        # A log keeps UTC, in which the first and the last day of all may be outside the calendar.
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        pass
    raise ValueError(f"its timestamp {value!r} is no time by RFC 3339, with a time zone")


def require_options(options: Options) -> None:
    wrong = sorted({*options.reading.types.values()} - {*kinds_of_text})
    if wrong:
        raise UsageError(f"{', '.join(wrong)} is no type of a column; there are {', '.join(kinds_of_text)}.")
    if len(options.reading.delimiter) != 1 or options.reading.delimiter in '"\r\n':
        raise UsageError(f"The delimiter {options.reading.delimiter!r} is not one character that can be one.")
    if header in options.headers:
        raise UsageError(f"The header {header} is Sluice's own.")


def require_good(path: Path, options: Options) -> None:
    """A UsageError for a file that cannot be read to its end, or has a row that may not be left out.

    Then nothing of the file comes in, and it can be corrected.
    """
    for row in rows_of(path, options.reading):
        found = None if options.skip_bad else record_of(row, options, "")
        if isinstance(found, str):
            raise UsageError(
                f"{path}, row {row.number}: {found}. Nothing was imported. Correct it, or leave such rows out with "
                "--skip-bad"
            )


def require_same(known: Position, wanted: Position) -> None:
    if known.sha256 != wanted.sha256:
        raise UsageError(
            f"{known.file} was changed since it was imported into {known.topic}. Give new rows in a file of their own."
        )
    if known.options != wanted.options:
        raise UsageError(
            f"{known.file} was imported into {known.topic} with other options: {json.dumps(known.options)}. Give "
            "those; or, to let its rows in once more, give the file another name."
        )


def require_unchanged(path: Path, place: Path) -> None:
    """A UsageError where a file is not what it was when its import began, now and whatever becomes of the file."""
    at = read_position(place)
    if at is not None and sha256_of(path) != at.sha256:
        at = replace(at, is_mixed=True)
        write_position(place, at)
        require_unmixed(at)


def require_unmixed(known: Position) -> None:
    if known.is_mixed:
        raise UsageError(
            f"{known.file} was changed while it was imported: {known.topic} may have rows of before and after. They "
            f"have the header {header}='{known.name}/ROW'; remove wrong ones with sluice erase. Once nothing changes "
            "the file, import it by another name: silver then finds the rows that came in twice, by their keys."
        )


def require_there(log: AnyLog, topic: str, known: Position, place: Path) -> None:
    """A UsageError where the log ends before the rows that it had, or the topic is another one of this name."""
    ends = ends_of(log, topic) if log.exists(topic) else {}
    is_another = bool(ends) and known.topic_id not in (None, log.topic_id(topic))
    if is_another or any(ends.get(partition, 0) < end for partition, end in known.offsets.items()):
        raise UsageError(
            f"{known.file} was imported into {topic}, whose records are no longer all there. Restore the log; or, if "
            f"it was made again on purpose, remove {place} to import the file again."
        )


def bad_line(path: Path, row: Row, why: str) -> bytes:
    """A row that was left out, as a line of JSON."""
    found = {"file": str(path), "row": row.number, "error": why, "text": row.value.decode(errors="replace")}
    return json.dumps(found).encode() + b"\n"


def bad_file(place: Path) -> Path:
    return place.with_suffix(".bad.jsonl")


def sha256_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Keeps two imports of a file apart."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place.with_suffix(".lock"), timeout=0):
            yield
    except Timeout as error:
        raise UsageError("Another process imports this file.") from error


def read_position(place: Path) -> Position | None:
    try:
        return Position(**json.loads(place.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{place}, which keeps how far an import is, is damaged: {error}.") from error


def write_position(place: Path, at: Position) -> None:
    """Replaces the position at once, also if the power is lost."""
    replace_file(place, json.dumps(asdict(at)))
