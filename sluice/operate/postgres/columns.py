"""Rows as messages, encoded column by column: value by value in Python they would take most of the time of a query."""

import re
import struct
import sys
from array import array
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.operate.postgres import nested
from sluice.operate.postgres.values import as_binary, json_oid, numeric_oid
from sluice.operate.postgres.wire import data_row

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

# A column of Arrow, typed loosely: the functions of Arrow have an overload for each kind of value.
Values = Any
# The types of DuckDB whose columns are encoded here; all others are encoded by `values`.
known = re.compile(
    r"BOOLEAN|U?(TINY|SMALL|BIG)INT|HUGEINT|U?INTEGER|INTERVAL|FLOAT|DOUBLE|DECIMAL\(.*\)|VARCHAR|JSON|DATE"
    r'|TIMESTAMP(_\w+| WITH TIME ZONE)?|"NULL"'
)
binary = pa.binary()
few_rows = 100
nested_ids = {"list", "array", "struct", "map"}
null_length = b"\xff\xff\xff\xff"
# What the epoch of Postgres is after that of everyone else.
epoch_days = 10_957
epoch_microseconds = epoch_days * 86_400_000_000
whole_numbers = {21: pa.int16(), 23: pa.int32(), 20: pa.int64()}
floats = {700: pa.float32(), 701: pa.float64()}
codes = {2: "h", 4: "i", 8: "q"}


def is_known(kind: "DuckDBPyType") -> bool:
    """Whether columns of this type of DuckDB can be encoded here."""
    return known.fullmatch(str(kind)) is not None or (kind.id in nested_ids and is_known_within(kind))


def is_known_within(kind: Any) -> bool:
    if kind.id in nested_ids:
        # Of an array there is its size, too.
        return all(isinstance(inner, int) or is_known_within(inner) for _, inner in kind.children)
    return kind.id in ("uuid", "blob", "enum", "time") or known.fullmatch(str(kind)) is not None


def data_rows(batch: pa.RecordBatch, oids: Sequence[int], formats: Sequence[int]) -> bytes:
    """The messages of the rows of a batch; a ValueError or ArrowInvalid for a value that Postgres does not have."""
    values = [
        binary_of(column, oid) if form else text_of(column, oid)
        for column, oid, form in zip(batch.columns, oids, formats, strict=True)
    ]
    if values and batch.num_rows <= few_rows:
        # Each call of Arrow costs more than a few rows do in Python.
        return b"".join(map(data_row, zip(*(value.to_pylist() for value in values), strict=True)))
    parts: list[Values] = []
    for value in values:
        sizes: Values = pc.binary_length(value)
        length = big_endian(sizes.fill_null(0))
        parts += [pc.if_else(value.is_valid(), length, pa.scalar(null_length)), value.fill_null(b"")]
    body = pc.binary_join_element_wise(*parts, b"") if parts else pa.array([b""] * batch.num_rows, binary)
    # The length of a message counts itself, and here the number of columns, too.
    length = big_endian(pc.add(pc.binary_length(body), pa.scalar(6, pa.int32())))
    count = struct.pack("!h", len(batch.columns))
    return joined(pc.binary_join_element_wise(pa.scalar(b"D"), length, pa.scalar(count), body, b""))


def joined(values: Values) -> bytes:
    """All values of a binary column, one after the other."""
    _, offsets, data = values.buffers()
    bounds = memoryview(offsets).cast("i")
    first, last = bounds[values.offset], bounds[values.offset + len(values)]
    return bytes(memoryview(data)[first:last])


def text_of(column: Values, oid: int = 0) -> Values:
    """A column as Postgres prints it."""
    kind = column.type
    if nested.is_nested(kind):
        texts = nested.json_texts if oid == json_oid else nested.array_texts
        found = pa.array(texts(column, text_of), pa.string())
    elif pa.types.is_boolean(kind):
        found = pc.if_else(column, "t", "f")
    elif pa.types.is_floating(kind):
        found = with_names(column.cast(pa.string()), column)
    elif pa.types.is_decimal(kind):
        found = plain(column, column.cast(pa.string()))
    elif pa.types.is_timestamp(kind):
        found = time_text(column)
    elif pa.types.is_interval(kind):
        found = pa.array([each and interval_text(each) for each in column.to_pylist()], pa.string())
    else:
        found = column.cast(pa.string())
    is_time = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if is_time and pc.any(pc.match_substring_regex(found, "^(-|0000|<)")).as_py():
        found = unusual(found)
    return found.cast(binary)


def interval_text(value: Any) -> str:
    """An interval as Postgres prints it: `1 year 2 mons 3 days -04:05:06.7`."""
    years, months = divmod(abs(value.months), 12)
    sign = -1 if value.months < 0 else 1
    counted = ((sign * years, "year"), (sign * months, "mon"), (value.days, "day"))
    parts = [f"{number} {unit}{'' if number == 1 else 's'}" for number, unit in counted if number]
    seconds, microseconds = divmod(abs(value.nanoseconds) // 1000, 1_000_000)
    if value.nanoseconds or not parts:
        fraction = f".{microseconds:06}".rstrip("0") if microseconds else ""
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
        parts.append(f"{'-' if value.nanoseconds < 0 else ''}{clock}")
    return " ".join(parts)


def unusual(text: Values) -> Values:
    """Times as text, of which some are before or after all others, or before Christ: there is no year 0."""

    def of_postgres(found: str) -> str:
        if found.startswith("<"):
            return "-infinity" if ": -" in found else "infinity"
        year = re.match(r"(-?\d+)(.*)", found)
        return found if year is None or int(year[1]) > 0 else f"{1 - int(year[1]):04}{year[2]} BC"

    return pa.array([None if each is None else of_postgres(each) for each in text.to_pylist()], pa.string())


def with_names(text: Values, column: Values) -> Values:
    """Numbers as text; what is infinite or no number has the names that Postgres has for it."""
    if pc.all(pc.is_finite(column)).as_py() in (True, None):
        return text
    named = pc.replace_substring_regex(pc.replace_substring(text, "inf", "Infinity"), "-?nan", "NaN")
    return pc.if_else(pc.is_finite(column), text, named)


def plain(column: Values, text: Values) -> Values:
    """Decimals as text, never with an exponent."""
    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    return pa.array([None if each is None else f"{each:f}" for each in column.to_pylist()], pa.string())


def time_text(column: Values) -> Values:
    """Times; with fractions of seconds where a value of the column has one."""
    zone = "" if column.type.tz is None else "+00"
    instant = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).cast(pa.timestamp("us"))
    try:
        text = instant.cast(pa.timestamp("s")).cast(pa.string())
    except pa.ArrowInvalid:
        text = pc.replace_substring_regex(instant.cast(pa.string()), r"\.?0+$", "")
    return pc.binary_join_element_wise(text, zone, "") if zone else text


def binary_of(column: Values, oid: int) -> Values:
    """A column in Postgres' binary form."""
    kind = column.type
    if oid in whole_numbers:
        found = big_endian(column.cast(whole_numbers[oid]).fill_null(0))
    elif oid in floats:
        found = big_endian(column.cast(floats[oid]).fill_null(0))
    elif pa.types.is_boolean(kind):
        found = pc.if_else(column, pa.scalar(b"\1"), pa.scalar(b"\0"))
    elif pa.types.is_date(kind):
        found = big_endian(since_epoch(column.cast(pa.int32()), epoch_days))
    elif pa.types.is_timestamp(kind):
        instant = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        found = big_endian(since_epoch(instant, epoch_microseconds))
    elif pa.types.is_interval(kind):
        parts = [
            each and struct.pack("!qii", each.nanoseconds // 1000, each.days, each.months)
            for each in column.to_pylist()
        ]
        found = pa.array(parts, binary)
    elif oid == numeric_oid:
        values = column.to_pylist()
        found = pa.array([None if each is None else as_binary(Decimal(each), oid) for each in values], binary)
    else:
        return text_of(column, oid)
    return pc.if_else(column.is_valid(), found, pa.scalar(None, binary))


def since_epoch(column: Values, epoch: int) -> Values:
    """Days or microseconds since the epoch of Postgres; its infinities are the least number and the greatest."""
    greatest = 2 ** (column.type.bit_width - 1) - 1
    is_first, is_last = pc.equal(column, -greatest), pc.equal(column, greatest)
    finite = pc.if_else(pc.or_(is_first, is_last), pa.scalar(epoch, column.type), column)
    found = pc.subtract_checked(finite, pa.scalar(epoch, column.type))
    first, last = pa.scalar(-greatest - 1, column.type), pa.scalar(greatest, column.type)
    return pc.if_else(is_first, first, pc.if_else(is_last, last, found)).fill_null(0)


def big_endian(column: Values) -> Values:
    """Numbers without nulls as their bytes, the first one first."""
    size = column.type.bit_width // 8
    values = array(codes[size])
    data = column.buffers()[1]
    if len(column):
        values.frombytes(memoryview(data)[column.offset * size : (column.offset + len(column)) * size])
    if sys.byteorder == "little":
        values.byteswap()
    found = pa.Array.from_buffers(pa.binary(size), len(column), [None, pa.py_buffer(values.tobytes())])
    return found.cast(binary)
