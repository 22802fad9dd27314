"""What windows hold, computed row by row in plain Python."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

Span = tuple[float, float]


@dataclass(frozen=True)
class Visit:
    """A row: of a user, at some hour, with an amount."""

    visit_id: str
    user: str
    hour: float
    amount: int


Figures = tuple[str, float, float, int, int, int]
Grouping = Callable[[Sequence[float]], dict[Span, list[float]]]


def first_visits(visits: Sequence[Visit]) -> list[Visit]:
    """Each visit as it first arrived."""
    found: dict[str, Visit] = {}
    for visit in visits:
        found.setdefault(visit.visit_id, visit)
    return list(found.values())


def figures(visits: Iterable[Visit], spans: Callable[[float, Sequence[float]], list[Span]]) -> set[Figures]:
    """(user, window start, window end, visits, sum of amounts, greatest amount) for every window with a visit.

    `spans` gives the windows that an hour is in, among all the hours of its user.
    """
    by_user: dict[str, list[Visit]] = defaultdict(list)
    for visit in visits:
        by_user[visit.user].append(visit)
    groups: dict[tuple[str, Span], list[int]] = defaultdict(list)
    for user, rows in by_user.items():
        hours = sorted({row.hour for row in rows})
        for row in rows:
            for span in spans(row.hour, hours):
                groups[(user, span)].append(row.amount)
    return {
        (user, start, end, len(amounts), sum(amounts), max(amounts)) for (user, (start, end)), amounts in groups.items()
    }


def tumbling(length: float) -> Callable[[float, Sequence[float]], list[Span]]:
    return lambda hour, hours: [(hour // length * length, hour // length * length + length)]


def hopping(length: float, every: float) -> Callable[[float, Sequence[float]], list[Span]]:
    def spans(hour: float, hours: Sequence[float]) -> list[Span]:
        newest = hour // every * every
        starts = [newest - number * every for number in range(int(length // every) + 1)]
        return [(start, start + length) for start in starts if start <= hour < start + length]

    return spans


def sliding(length: float) -> Callable[[float, Sequence[float]], list[Span]]:
    return lambda hour, hours: [(end - length, end) for end in hours if end - length < hour <= end]


def sessions(gap: float) -> Callable[[float, Sequence[float]], list[Span]]:
    def spans(hour: float, hours: Sequence[float]) -> list[Span]:
        start = end = hour
        while earlier := [each for each in hours if start - gap <= each < start]:
            start = min(earlier)
        while later := [each for each in hours if end < each <= end + gap]:
            end = max(later)
        return [(start, end + gap)]

    return spans


def calendar(unit: str, zone: str, day_one: datetime) -> Callable[[float, Sequence[float]], list[Span]]:
    """Local midnights; hours count from `day_one`."""

    def spans(hour: float, hours: Sequence[float]) -> list[Span]:
        local = (day_one + timedelta(hours=hour)).astimezone(ZoneInfo(zone))
        first = local.date().replace(day=1) if unit == "month" else local.date()
        following = (first + timedelta(days=32)).replace(day=1) if unit == "month" else first + timedelta(days=1)
        midnights = [datetime(each.year, each.month, each.day, tzinfo=ZoneInfo(zone)) for each in (first, following)]
        start, end = [(each.astimezone(UTC) - day_one) / timedelta(hours=1) for each in midnights]
        return [(start, end)]

    return spans
