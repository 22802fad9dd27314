"""Times as records write them: RFC 3339, or the format that a declaration names."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.errors import DeclarationError
from sluice.model.ddl import column_types

if TYPE_CHECKING:
    from pyspark.sql import Column

epoch = datetime(1970, 1, 1, tzinfo=UTC)
# Whole numbers since 1970-01-01T00:00:00Z, and what one of them is in the column's own unit.
of_timestamps = {"epoch_seconds": 1_000_000, "epoch_millis": 1_000, "epoch_micros": 1}
epochs: Mapping[str, Mapping[str, int]] = {
    "timestamp": of_timestamps,
    "timestamp_ltz": of_timestamps,
    "timestamp_ntz": of_timestamps,
    "date": {"epoch_days": 1},
}
# The years 1 to 9999: what Spark's types, and Python's, are made for.
micros_least, micros_most = -62_135_596_800_000_000, 253_402_300_799_999_999
days_least, days_most = -719_162, 2_932_896

day = r"(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}"
clock = "[0-9]{2}:[0-5][0-9]"
offset = r"Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]"
# Nearly all times are so, and Spark reads them by itself; its offsets end at 18 hours.
usual_day, usual_offset = "[1-8][0-9]{3}-[0-9]{2}-[0-9]{2}", "Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9]"
usual = rf"\A{usual_day}T{clock}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:{usual_offset})\z"
# Groups: the minute, the seconds to the microsecond (60 is a leap second), and the offset. Seconds may be left out.
rfc_3339 = rf"\A({day}T{clock})(?::((?:[0-5][0-9]|60)(?:\.[0-9]{{1,6}})?)(?:(?<=\.[0-9]{{6}})[0-9]+)?)?({offset})\z"
without_offset = rf"\A{day}T{clock}(?::[0-5][0-9](?:\.[0-9]+)?)?\z"
full_date = rf"\A{day}\z"

# What Spark reads of each letter of a pattern, and how often it may stand in a row.
pattern_letters = {
    letter: most
    for letters, most in {"Fa": 1, "dhHkKmsV": 2, "D": 3, "GMLQqEzO": 4, "XxZ": 5, "y": 6, "S": 9}.items()
    for letter in letters
}


def is_time(kind: str) -> bool:
    return kind in epochs


def is_epoch(format: str | None) -> bool:  # noqa: A002 - what everybody calls it
    return format is not None and format.startswith("epoch_")


def time_of(read: "Column", kind: str, format: str | None) -> "Column":  # noqa: A002
    """The time that a value says; null where it says none in this format."""
    if format is not None and is_epoch(format):
        return time_of_epoch(read, kind, epochs[kind][format])
    if format is not None:
        return F.try_to_timestamp(read, F.lit(format)).try_cast(kind)
    if kind == "date":
        return F.when(read.rlike(full_date), read.try_cast("date"))
    if kind == "timestamp_ntz":
        # Spark's own reader takes no more than nine digits of a second.
        local = F.regexp_replace(in_upper_case(read), r"(\.[0-9]{6})[0-9]+", "$1")
        return F.when(local.rlike(without_offset), local.try_cast("timestamp_ntz"))
    other = apart(in_upper_case(read), instant_of)
    return F.when(read.rlike(usual), read.try_cast("timestamp")).when(read.isNotNull(), other)


def in_upper_case(time: "Column") -> "Column":
    """RFC 3339's letters; all others are wrong, and Spark's `upper` takes a second to load its tables of them."""
    return F.translate(time, "tz", "TZ")


def apart(value: "Column", result: "Callable[[Column], Column]") -> "Column":
    """The result for a value that is computed once. Spark evaluates it without generated code, so that what only
    some records need does not make the code for all of them too long to compile.
    """
    return F.get(F.transform(F.array(value), result), F.lit(0))


def instant_of(text: "Column") -> "Column":
    """The instant of any RFC 3339 time in upper case; null for others.

    Digits beyond the microsecond are cut off. A leap second counts as the second after it, as in POSIX.
    """
    minute, second, zone = (F.regexp_extract(text, rfc_3339, group) for group in (1, 2, 3))
    seconds = F.when(second == "", "0").otherwise(second).try_cast("decimal(8,6)")
    micros = (
        F.unix_micros(F.concat(minute, F.lit(":00Z")).try_cast("timestamp"))
        + (seconds * 1_000_000).cast("bigint")
        - F.when(zone == "Z", F.lit(0)).otherwise(apart(zone, offset_micros))
    )
    return apart(micros, lambda each: plausible(F.timestamp_micros(each), second.startswith("60")))


def offset_micros(zone: "Column") -> "Column":
    """How far a zone such as -05:30 is ahead of UTC."""
    minutes = F.substring(zone, 2, 2).try_cast("bigint") * 60 + F.substring(zone, 5, 2).try_cast("bigint")
    return F.when(F.left(zone, F.lit(1)) == "-", -minutes).otherwise(minutes) * 60_000_000


def plausible(instant: "Column", is_leap_second: "Column") -> "Column":
    """The instant; null outside of the years 1 to 9999, and for a leap second that is not at the end of a month."""
    is_known = F.unix_micros(instant).between(micros_least, micros_most)
    is_end_of_month = (F.day(instant) == 1) & (F.hour(instant) == 0) & (F.minute(instant) == 0)
    return F.when(is_known & (~is_leap_second | is_end_of_month), instant)


def time_of_epoch(count: "Column", kind: str, unit: int) -> "Column":
    """The time at `count` units after 1970; null outside the years 1 to 9999."""
    if kind == "date":
        return F.when(
            count.between(days_least, days_most), F.date_add(F.lit("1970-01-01").cast("date"), count.cast("int"))
        )
    is_known = count.between(micros_least // unit, micros_most // unit)
    return F.when(is_known, F.timestamp_micros(count * unit)).cast(kind)


def instant(micros: int) -> datetime:
    """The moment at `micros` microseconds after 1970 in UTC; the nearest one in Python's range."""
    return epoch + timedelta(microseconds=min(max(micros, micros_least), micros_most))


def lacks_offset(read: "Column", kind: str, format: str | None) -> "Column":  # noqa: A002
    """Whether a value is a time except for a missing time zone."""
    needs_offset = format is None and kind in ("timestamp", "timestamp_ltz")
    return in_upper_case(read).rlike(without_offset) if needs_offset else F.lit(False)


def require_time_formats(dataset: str, formats: Mapping[str, str], schema: str) -> None:
    """A DeclarationError where a format is none, or its column no time."""
    types = {path.lower(): kind for path, kind in paths(schema)}
    times = [path for path, kind in types.items() if is_time(kind)]
    for path, format in formats.items():  # noqa: A001
        kind = types.get(path.lower())
        if kind is None or not is_time(kind):
            what = "which the schema lacks" if kind is None else f"which is {kind}, and no time"
            raise DeclarationError(
                f"{dataset}: time_formats names {path}, {what}; its times are {', '.join(times) or 'none'}"
            )
        if not is_epoch(format):
            require_pattern(f"{dataset}: time_formats: {path}", format)
        elif format not in epochs[kind]:
            raise DeclarationError(
                f"{dataset}: time_formats: {path} is {kind}, which cannot be read from {format}; "
                f"it can be {', '.join(epochs[kind])}, or a pattern such as dd.MM.yyyy"
            )


def paths(schema: str, before: str = "") -> Iterator[tuple[str, str]]:
    """The columns of a schema with their types, and what is inside them by its path: `stops.left_at`."""
    for name, kind in column_types(schema).items():
        path, inside = f"{before}{name}", kind.strip()
        while found := re.fullmatch(r"(?s)array\s*<(.*)>", inside):
            inside = found[1].strip()
        yield path, inside
        if found := re.fullmatch(r"(?s)struct\s*<(.*)>", inside):
            yield from paths(found[1], f"{path}.")


def require_pattern(what: str, pattern: str) -> None:
    """A DeclarationError where Spark could not read times by the pattern."""
    bare = re.sub(r"'(?:[^']|'')*'", "", pattern)
    runs = [(each[0][0], len(each[0])) for each in re.finditer(r"([A-Za-z])\1*", bare)]
    wrong = [letter * count for letter, count in runs if count > pattern_letters.get(letter, 0)]
    hint = "write one of Spark's datetime patterns, such as \"yyyy-MM-dd'T'HH:mm:ss\" or dd.MM.yyyy, or epoch_millis"
    if wrong or "'" in bare or bare.count("[") != bare.count("]") or {"#", "{", "}"} & set(bare):
        reason = f"; {', '.join(wrong)} cannot be read" if wrong else ""
        raise DeclarationError(f"{what}: '{pattern}' is no pattern of a time{reason}; {hint}")
    if "y" not in dict(runs):
        raise DeclarationError(f"{what}: '{pattern}' has no year (yyyy); {hint}")
