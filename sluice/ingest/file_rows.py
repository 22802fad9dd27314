"""The rows of files (CSV, Parquet, JSON lines) as JSON values, exactly as the files have them, in bounded memory."""

import base64
import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa
import zstandard
from pyarrow import parquet
from pyarrow.lib import ArrowException

from sluice.errors import UsageError
from sluice.log.segments import Chunks, decompressed

formats = {".csv": "csv", ".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
compressions = (".gz", ".zst")
kinds_of_text = ("text", "number", "boolean", "json")
rows_at_once = 5_000
field_characters_max = 64 << 20
json_number = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
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
    """The bytes of a file, decompressed."""
    with open(path, "rb") as file:
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
        value = line.strip(b" \t\r\n")
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
        lines = csv.reader(text, delimiter=reading.delimiter, strict=True)
        names = names_of(path, lines, reading)
        number = 0
        while True:
            number += 1
            try:
                values = next(lines, None)
                if values is None:
                    return
                if values:
                    yield csv_row(number, names, values, reading)
            except csv.Error as error:
                yield Row(number, b"", wrong=f"{error}, at line {lines.line_num}")


def names_of(path: Path, lines: Iterator[list[str]], reading: Reading) -> list[str]:
    """The columns that the first line names; a UsageError when it names none."""
    try:
        names = next(lines, [])
    except csv.Error as error:
        raise UsageError(f"{path}: its first line has no names of columns: {error}.") from error
    if not names or "" in names or len({*names}) < len(names):
        raise UsageError(f"{path}: its first line must name each column once; it has {', '.join(names) or 'none'}.")
    if unknown := sorted({*reading.types} - {*names}):
        raise UsageError(f"{path} has no column {', '.join(unknown)}; it has {', '.join(names)}.")
    return names


def csv_row(number: int, names: Sequence[str], values: Sequence[str], reading: Reading) -> Row:
    raw = reading.delimiter.join(values).encode(errors="surrogateescape")
    try:
        if len(values) != len(names):
            raise BadRow(f"it has {len(values)} fields, and {len(names)} columns are named")
        pairs = zip(names, values, strict=True)
        fields = {name: of_text(name, each, reading) for name, each in pairs}
        return Row(number, encoded(fields), fields)
    except ValueError as error:
        return Row(number, raw, wrong=str(error))


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


def numeric(kind: pa.DataType) -> pa.DataType:
    """A type with numbers for times."""
    match kind:
        case pa.TimestampType():
            return pa.int64()
        case pa.StructType():
            return pa.struct([each.with_type(numeric(each.type)) for each in kind])
        case pa.ListType():
            return pa.list_(kind.value_field.with_type(numeric(kind.value_type)))
        case pa.LargeListType():
            return pa.large_list(kind.value_field.with_type(numeric(kind.value_type)))
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
    if isinstance(kind, pa.ListType | pa.LargeListType):
        convert_one = converter(path, name, kind.value_type)
        return lambda value: [None if each is None else convert_one(each) for each in value]
    if isinstance(kind, pa.MapType) and pa.types.is_string(kind.key_type) and not has_times(kind.item_type):
        convert_item = converter(path, name, kind.item_type)
        return lambda value: {key: None if each is None else convert_item(each) for key, each in value}
    if isinstance(kind, pa.TimestampType):
        unit = kind.unit
        return lambda value: time_text(value, unit)
    if pa.types.is_date32(kind):
        return lambda value: f"{(epoch + timedelta(days=value)).date()}"
    if pa.types.is_floating(kind):
        return lambda value: value if math.isfinite(value) else non_finite(value)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_time(kind):
        return time.isoformat
    plain = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_boolean)
    if pa.types.is_decimal(kind) or pa.types.is_null(kind) or any(test(kind) for test in plain):
        return lambda value: value
    raise UsageError(f"{path}: {name} is {kind}, which has no form in JSON.")


def has_times(kind: pa.DataType) -> bool:
    return numeric(kind) != kind


def non_finite(value: float) -> str:
    """As change capture writes them: JSON has no such numbers."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


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


def encoded(fields: Mapping[str, Any]) -> bytes:
    """A row as a JSON object; a BadRow where JSON cannot have it."""
    try:
        return orjson.dumps(fields, default=exact)
    except TypeError as error:
        # Text that is no UTF-8, and whole numbers of more than 64 bits, which exact() is not asked for.
        raise BadRow(f"it cannot be JSON: {error}") from error


def exact(value: Any) -> orjson.Fragment:
    """A decimal as a number with every digit."""
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    raise TypeError
