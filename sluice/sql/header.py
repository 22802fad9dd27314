"""The comments at the top of a `.sql` file: what it says of the table to people."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

header_line = re.compile(
    r"--\s*(?:(?P<key>meaning|owner|event_time)|column\s+(?P<column>\S+?))\s*:(?P<text>.*)", re.IGNORECASE
)


@dataclass(frozen=True)
class Header:
    """What the comments at the top of a file say for people."""

    said: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)


def header_of(text: str) -> Header:
    """The lines `-- meaning: …`, `-- owner: …` and `-- column NAME: …` before the SELECT; more of one is indented."""
    said: dict[str, str] = {}
    columns: dict[str, str] = {}
    last: tuple[dict[str, str], str] | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("--"):
            break
        if found := header_line.fullmatch(stripped):
            last = (said, found["key"].lower()) if found["key"] else (columns, found["column"].strip("`"))
            last[0][last[1]] = found["text"].strip()
        elif last and re.match(r"--\s{2,}\S", stripped):
            last[0][last[1]] += " " + stripped[2:].strip()
        else:
            last = None
    return Header(said, columns)
