"""The rows of files (CSV, Parquet, JSON lines) as JSON values, exactly as the files have them, in bounded memory."""

import base64
import codecs
import csv
import gzip
import io
import itertools
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa
import zstandard
from pyarrow import parquet
from pyarrow.lib import ArrowException

from sluice.errors import UsageError
from sluice.ingest.receivers.records import exact, non_finite
from sluice.log.segments import Chunks, decompressed

formats = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
compressions = (".gz", ".zst")
kinds_of_text = ("text", "number", "boolean", "json")
rows_at_once = 5_000
field_characters_max = 64 << 20
# JSON sets no end to an exponent; what has more digits is in no program's range.
json_number = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,9})?")
other_delimiters = ";\t|"
units_per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
epoch = datetime(1970, 1, 1, tzinfo=UTC)
Convert = Callable[[Any], Any]


class BadRow(ValueError):
    """Why a row is no record."""


@dataclass(frozen=True)
class Row:
    """A row by its number in the file, from 1: what a record is made of, or what is wrong with it."""

    number: int
    value: bytes
    fields: Mapping[str, Any] = field(default_factory=dict)
    wrong: str | None = None


@dataclass(frozen=True)
class Reading:
    """How CSV is read: its delimiter, the text that stands for null, and the columns that are not text."""

    delimiter: str = ","
    null: str = ""
    types: Mapping[str, str] = field(default_factory=dict)


def rows_of(path: Path, reading: Reading) -> Iterator[Row]:
    """The rows of a file, by what its name says that it is; a UsageError when it cannot be read."""
    form = form_of(path)
    try:
        if form == "parquet":
            yield from parquet_rows(path)
            return
        with opened(path) as file:
            yield from csv_rows(path, file, reading) if form == "csv" else json_rows(file)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, ArrowException) as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}.") from error


def form_of(path: Path) -> str:
    """`csv`, `parquet` or `jsonl`, by a file's name."""
    is_compressed = path.suffix.lower() in compressions
    form = formats.get(Path(path.stem if is_compressed else path.name).suffix.lower())
    if form is None or (form == "parquet" and is_compressed):
        raise UsageError(
            f"{path} does not say what it is: its name must end in .csv, .jsonl or .ndjson, also with .gz or .zst, or "
            "in .parquet."
        )
    return form


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed; an EOFError where there is nothing to decompress."""
    with open(path, "rb") as file:
        if path.suffix.lower() in compressions and not file.peek(1):
            raise EOFError("it is empty, which no compressed file is: it broke off before its first byte")
        if path.suffix.lower() == ".zst":
            yield io.BufferedReader(Chunks(decompressed(file)))
        elif path.suffix.lower() == ".gz":
            with gzip.open(file) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield file


def json_rows(file: IO[bytes]) -> Iterator[Row]:
    """A row is a line, whose bytes stay as they are; empty lines are none."""
    for number, line in enumerate(file, 1):
        value = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip(b" \t\r\n")
        if not value:
            continue
        try:
            found = orjson.loads(value)
            if not isinstance(found, dict):
                raise BadRow("it is no JSON object")
            yield Row(number, value, found)
        except ValueError as error:
            yield Row(number, value, wrong=str(error))


def csv_rows(path: Path, file: IO[bytes], reading: Reading) -> Iterator[Row]:
    """A row by the names of the first one; values are text, unless types say otherwise."""
    csv.field_size_limit(field_characters_max)
    # What is no UTF-8 is found in its row, and not somewhere in a block.
    with io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        row_lines: list[str] = []
        lines = csv.reader(kept_in(row_lines, text), delimiter=reading.delimiter, strict=True)
        names = names_of(path, lines, reading)
        for number in itertools.count(1):
            row_lines.clear()
            try:
                values = next(lines, None)
                if values is None:
                    return
                if values:
                    fields = csv_fields(names, values, reading)
                    yield Row(number, encoded(fields), fields)
            except (ValueError, csv.Error) as error:
                at = f", at line {lines.line_num}" if isinstance(error, csv.Error) else ""
                raw = "".join(row_lines).rstrip("\r\n").encode(errors="surrogateescape")
                yield Row(number, raw, wrong=f"{error}{at}")


def kept_in(kept: list[str], lines: Iterable[str]) -> Iterator[str]:
    """The lines, which are also added to a list: a row that cannot be read is kept as it was."""
    for line in lines:
        kept.append(line)
        yield line


def names_of(path: Path, lines: Iterator[list[str]], reading: Reading) -> list[str]:
    """The columns that the first line names; a UsageError when it names none."""
    try:
        names = next(lines, [])
    except csv.Error as error:
        raise UsageError(f"{path}: its first line has no names of columns: {error}.") from error
    if not all(map(is_utf8, names)):
        raise UsageError(f"{path} is not UTF-8. Convert it, for example with: iconv -f LATIN1 -t UTF-8")
    if not names or "" in names or len({*names}) < len(names):
        raise UsageError(f"{path}: its first line must name each column once; it has {', '.join(names) or 'none'}.")
    if len(names) == 1 and (other := next((each for each in other_delimiters if each in names[0]), None)):
        raise UsageError(
            f"{path}: its first line names one column, {names[0]!r}. If {other!r} is between the fields, give it as "
            "--delimiter."
        )
    if unknown := sorted({*reading.types} - {*names}):
        raise UsageError(f"{path} has no column {', '.join(unknown)}; it has {', '.join(names)}.")
    return names


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def csv_fields(names: Sequence[str], values: Sequence[str], reading: Reading) -> dict[str, Any]:
    if len(values) != len(names):
        raise BadRow(f"it has {len(values)} fields, and {len(names)} columns are named")
    return {name: of_text(name, each, reading) for name, each in zip(names, values, strict=True)}


def of_text(name: str, text: str, reading: Reading) -> Any:
    """A field of CSV as JSON; numbers keep all their digits."""
    if text == reading.null:
        return None
    match reading.types.get(name, "text"):
        case "number":
            if not json_number.fullmatch(text):
                raise BadRow(f"{name} is {text[:100]!r}, which is no number")
            return Decimal(text)
        case "boolean":
            if text.lower() not in ("true", "false"):
                raise BadRow(f"{name} is {text[:100]!r}, and neither true nor false")
            return text.lower() == "true"
        case "json":
            orjson.loads(text)
            return orjson.Fragment(text)
    return text


def parquet_rows(path: Path) -> Iterator[Row]:
    """A row by the names of the columns, with its types as JSON has them."""
    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if len({*names}) < len(names):
            raise UsageError(f"{path} must name each column once; it has {', '.join(names)}.")
        converts = {each.name: converter(path, each.name, each.type) for each in file.schema_arrow}
        number = 0
        for batch in file.iter_batches(rows_at_once):
            columns = [as_numbers(each).to_pylist() for each in batch.columns]
            for values in zip(*columns, strict=True):
                number += 1
                try:
                    pairs = zip(converts.items(), values, strict=True)
                    fields = {name: None if each is None else convert(each) for (name, convert), each in pairs}
                    yield Row(number, encoded(fields), fields)
                except (ValueError, OverflowError) as error:
                    yield Row(number, repr(values).encode(errors="replace"), wrong=str(error))


def as_numbers(values: "pa.Array[Any]") -> "pa.Array[Any]":
    """The values with numbers for times: Python knows fewer times than Arrow."""
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    return values.view(numeric(values.type)) if numeric(values.type) != values.type else values


def numeric(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one for each kind
    """A type with numbers for times."""
    match kind:
        case pa.TimestampType() | pa.Time64Type():
            return pa.int64()
        case pa.Time32Type():
            return pa.int32()
        case pa.StructType():
            return pa.struct([each.with_type(numeric(each.type)) for each in kind])
        case pa.ListType():
            return pa.list_(kind.value_field.with_type(numeric(kind.value_type)))
        case pa.LargeListType():
            return pa.large_list(kind.value_field.with_type(numeric(kind.value_type)))
        case pa.FixedSizeListType():
            return pa.list_(kind.value_field.with_type(numeric(kind.value_type)), kind.list_size)
        case pa.MapType():
            return pa.map_(kind.key_type, numeric(kind.item_type))
    return pa.int32() if pa.types.is_date32(kind) else kind


def converter(path: Path, name: str, kind: pa.DataType) -> Convert:  # noqa: PLR0911 - one for each kind
    """What makes JSON of a value of a type; a UsageError for a type that has none."""
    if pa.types.is_dictionary(kind):
        return converter(path, name, kind.value_type)
    if isinstance(kind, pa.StructType):
        inner = {each.name: converter(path, f"{name}.{each.name}", each.type) for each in kind}
        return lambda value: {
            key: None if value[key] is None else convert(value[key]) for key, convert in inner.items()
        }
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        convert_one = converter(path, name, kind.value_type)
        return lambda value: [None if each is None else convert_one(each) for each in value]
    if isinstance(kind, pa.MapType) and is_text(kind.key_type):
        convert_item = converter(path, name, kind.item_type)
        return lambda value: {key: None if each is None else convert_item(each) for key, each in each_once(name, value)}
    if isinstance(kind, pa.TimestampType):
        unit = kind.unit
        return lambda value: time_text(value, unit)
    if isinstance(kind, pa.Time32Type | pa.Time64Type):
        unit = kind.unit
        return lambda value: time_text(value, unit)[len("1970-01-01T") : -len("Z")]
    if pa.types.is_date32(kind):
        return day_text
    if pa.types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else non_finite(value)
    if is_any(kind, "binary", "large_binary", "binary_view", "fixed_size_binary"):
        return lambda value: base64.b64encode(value).decode()
    if isinstance(kind, pa.UuidType):
        return str
    if is_text(kind) or isinstance(kind, pa.JsonType) or is_any(kind, "integer", "boolean", "decimal", "null"):
        return lambda value: value
    raise UsageError(f"{path}: {name} is {kind}, which has no form in JSON.")


def is_any(kind: pa.DataType, *names: str) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def is_text(kind: pa.DataType) -> bool:
    return is_any(kind, "string", "large_string", "string_view")


def each_once(name: str, pairs: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """The pairs of a map; a BadRow where one key has two values, of which JSON would keep one."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise BadRow(f"{name} is a map that has a key twice")
    return pairs


def time_text(value: int, unit: str) -> str:
    """RFC 3339 in UTC, with as many digits as the unit has; the ends of all time as Postgres writes them."""
    if abs(value) >= 2**63 - 1:
        return "infinity" if value > 0 else "-infinity"
    per_second = units_per_second[unit]
    seconds, rest = divmod(value, per_second)
    try:
        text = (epoch + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError as error:
        raise BadRow(f"the time {value} {unit} has no year of four digits") from error
    digits = len(str(per_second)) - 1
    return f"{text.zfill(19)}{f'.{rest:0{digits}}' if rest else ''}Z"


def day_text(value: int) -> str:
    """A date by its days since 1970, with the same ends of all time."""
    if abs(value) >= 2**31 - 1:
        return "infinity" if value > 0 else "-infinity"
    return time_text(value * 86_400, "s").removesuffix("T00:00:00Z")


def encoded(fields: Mapping[str, Any]) -> bytes:
    """A row as a JSON object; a BadRow where JSON cannot have it."""
    try:
        return orjson.dumps(fields, default=exact)
    except TypeError as error:
        why = "it has text that is not UTF-8" if "UTF-8" in str(error) else f"it cannot be JSON: {error}"
        raise BadRow(why) from error
