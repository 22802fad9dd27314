"""Formats of times: those that Postgres writes in `to_timestamp`, `to_date` and `to_char`, as DuckDB has them."""

import re

# Names are known as they are written here, because in Postgres their case decides about that of the result.
names = {"FMMonth": "%B", "FMDay": "%A", "Mon": "%b", "Dy": "%a"}
numbers = {"YYYY": "%Y", "YY": "%y", "IYYY": "%G", "MM": "%m", "DD": "%d", "DDD": "%j", "IW": "%V", "ID": "%u"}
numbers |= {
    "HH24": "%H",
    "HH12": "%I",
    "HH": "%I",
    "MI": "%M",
    "SS": "%S",
    "US": "%f",
    "MS": "%g",
    "AM": "%p",
    "PM": "%p",
}
longest_first = sorted([*names, *numbers], key=len, reverse=True)
parts = re.compile(rf"(?P<known>{'|'.join(longest_first)})|\"(?P<text>[^\"]*)\"|(?P<word>[a-z]+)|.", re.I | re.DOTALL)


class FormatError(ValueError):
    """A format has a part that is not known here."""


def for_duckdb(format_of_postgres: str) -> str:
    """The same format, by the signs of strptime."""
    return "".join(part_for_duckdb(each) for each in parts.finditer(format_of_postgres))


def part_for_duckdb(found: re.Match[str]) -> str:
    part = found.group()
    if found["known"] and (known := names.get(part) or numbers.get(part.upper())):
        return known
    if found["known"] or found["word"]:
        raise FormatError(f"the part {part} of a format of times is not known here")
    return (part if found["text"] is None else found["text"]).replace("%", "%%")
