"""Built-in checks: what must be true of every dataset, without being declared.

Each checks one version of the table, together with the versions of its inputs that it was computed from. A suite can
give each its own bound and severity with `built_in(…)`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.errors import DeclarationError
from sluice.model.datasets import Dataset, microseconds, require_duration
from sluice.model.expectations import Expectation, Severity, built_in_type
from sluice.model.integrity import of_dataset
from sluice.model.ledger import Commit
from sluice.quality.conservation import fates_of
from sluice.shapes.fates import fates_table

if TYPE_CHECKING:
    import duckdb

# How far a volume may be from the usual one, how far back that looks, and how often it must have been seen.
volume_ratio_max = 3
usual_days = 28
usual_days_seen_min = 7


class Found(NamedTuple):
    """How many rows are wrong, of how many, and a remark."""

    unexpected: int
    rows: int
    observed: Any = None


@dataclass(frozen=True)
class Scene:
    """What a check looks at: the tables as SQL, the commit that is checked, and the time."""

    tables: "duckdb.DuckDBPyConnection"
    dataset: Dataset
    commit: Commit
    now: datetime
    within: str | None = None

    def row(self, sql: str) -> tuple[Any, ...]:
        return self.tables.execute(sql).fetchone() or ()


@dataclass(frozen=True)
class BuiltIn:
    """A check that a dataset has by itself; one that needs a bound says which, and has none until a suite gives it."""

    meaning: str
    severity: Severity
    look: Callable[[Scene], Found]
    needs: str | None = None


def built_ins(dataset: Dataset) -> dict[str, BuiltIn]:
    """The checks of a dataset by name."""
    found = {
        slug(law): BuiltIn(f"There are no {law}.", "critical", partial(count_of_law, sql))
        for law, sql in of_dataset(dataset).items()
    }
    for name, (meaning, sql) in dataset.bounded.items():
        found[name] = BuiltIn(meaning, "warn", partial(share_of_query, sql))
    for topic in dataset.topics:
        name = "conservation" if len(dataset.topics) == 1 else f"conservation_of_{slug(topic)}"
        found[name] = BuiltIn(f"Each record of {topic} has exactly one fate.", "critical", partial(conservation, topic))
    if dataset.topics:
        found["usable_records"] = BuiltIn("Records are not set aside.", "warn", usable)
    if dataset.reached and dataset.event_time:
        found["usual_volume"] = BuiltIn(
            f"The last complete hour has from a third to three times the rows usual at that hour of the day "
            f"(the median of {usual_days} days, once {usual_days_seen_min} are known).",
            "warn",
            volume,
        )
    found["freshness"] = BuiltIn("The rows reach up to now, within the time given.", "warn", freshness, needs="within")
    return found


def slug(text: str) -> str:
    return re.sub(r"\W+", "_", text.lower()).strip("_")[:60]


def require_built_ins(dataset: Dataset, bounds: Mapping[str, Expectation]) -> None:
    """A DeclarationError where a suite bounds a check that the dataset has not, or bounds it by nothing."""
    known = built_ins(dataset)
    for name, bound in bounds.items():
        if name not in known:
            raise DeclarationError(f"{dataset.name} has no built-in check {name}; it has {', '.join(known)}")
        needs = known[name].needs
        if needs and needs not in bound.arguments:
            raise DeclarationError(f"{dataset.name}: the built-in check {name} needs {needs}, such as '2 hours'")
        if not needs and "within" in bound.arguments:
            raise DeclarationError(f"{dataset.name}: the built-in check {name} has no within")
        if needs:
            require_duration(dataset.name, name, bound.arguments[needs])


def expected(dataset: Dataset, bounds: Mapping[str, Expectation]) -> list[tuple[Expectation, BuiltIn]]:
    """The built-in checks that a dataset has, each with its bound."""
    return [
        (bounds.get(name, Expectation(built_in_type, each.severity, {}, name)), each)
        for name, each in built_ins(dataset).items()
        if each.needs is None or name in bounds
    ]


def count_of_law(sql: str, scene: Scene) -> Found:
    (rows,) = scene.row(f"SELECT count(*) FROM {scene.dataset.name}")
    return Found(scene.row(sql)[0], rows)


def share_of_query(sql: str, scene: Scene) -> Found:
    return Found(*scene.row(sql))


def conservation(topic: str, scene: Scene) -> Found:
    fates = fates_of(scene.tables, scene.dataset, topic)
    counts = {name: getattr(fates, name) for name in ("accepted", "duplicate", "quarantined", "late", "erased")}
    said = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    return Found(fates.missing + fates.doubled + fates.unknown, fates.landed, said or None)


def usable(scene: Scene) -> Found:
    (accepted,) = scene.row(f"SELECT count(*) FROM {scene.dataset.name}")
    reasons = scene.tables.execute(
        f"SELECT reason, count(*) FROM {fates_table} WHERE dataset = '{scene.dataset.name}' "
        "AND fate IN ('quarantined', 'late') GROUP BY ALL ORDER BY 2 DESC, 1"
    ).fetchall()
    (duplicates,) = scene.row(
        f"SELECT count(*) FROM {fates_table} WHERE dataset = '{scene.dataset.name}' AND fate = 'duplicate'"
    )
    rejected = sum(count for _, count in reasons)
    said = ", ".join(f"{reason} {count:,}" for reason, count in reasons)
    return Found(rejected, accepted + duplicates + rejected, said or None)


def volume(scene: Scene) -> Found:
    """The last complete hour against the same hour of the days before it."""
    watermark = scene.commit.entry.watermark
    if watermark is None:
        return Found(0, 0, "no event time is known yet")
    hour = watermark.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    time, last = f'"{scene.dataset.event_time}"', f"TIMESTAMPTZ '{hour.isoformat()}'"
    count, usual, most, days = scene.row(
        f"WITH counted AS (SELECT date_trunc('hour', {time}) AS hour, count(*) AS rows FROM {scene.dataset.name} "
        f"WHERE {time} >= {last} - INTERVAL {usual_days} DAY AND {time} < {last} + INTERVAL 1 HOUR GROUP BY 1), "
        f"hours AS (SELECT {last} - INTERVAL 1 DAY * day AS hour FROM range(0, {usual_days} + 1) AS days(day)), "
        "known AS (SELECT hour, coalesce(rows, 0) AS rows FROM hours LEFT JOIN counted USING (hour) "
        f"WHERE hour >= (SELECT min(date_trunc('hour', {time})) FROM {scene.dataset.name})) "
        f"SELECT coalesce(sum(rows) FILTER (hour = {last}), 0), median(rows) FILTER (hour < {last}), "
        f"max(rows) FILTER (hour < {last}), count(*) FILTER (hour < {last}) FROM known"
    )
    said = f"{int(count):,} rows in the hour from {hour:%Y-%m-%d %H:%M} UTC"
    if days < usual_days_seen_min:
        return Found(0, int(count), f"{said}; too few days are known to say what is usual")
    # Where most days have none, those that have some say how many are to be expected.
    is_unusual = count > (usual or max(most, 1)) * volume_ratio_max or count * volume_ratio_max < usual
    return Found(
        int(count) or 1 if is_unusual else 0, max(int(count), int(is_unusual)), f"{said}, usual are {usual:,.0f}"
    )


def freshness(scene: Scene) -> Found:
    reached = scene.commit.entry.watermark or datetime.fromtimestamp(scene.commit.timestamp_ms / 1000, UTC)
    age = scene.now - reached
    is_stale = age > timedelta(microseconds=microseconds(scene.within or "") or 0)
    return Found(
        int(is_stale), 1, f"up to {reached:%Y-%m-%d %H:%M:%S} UTC, {age.total_seconds() / 3600:,.1f} hours ago"
    )
