"""Windows of event time, as a group to aggregate by.

A window determines which windows a row is in (`place`), which windows a changed row affects (`touched`), and which rows
a scope of windows needs (`within`). Frames already have their group columns as `_group_<name>`; a window adds
`_group_window_start` and `_group_window_end`. A row without an event time is in no window.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar
from zoneinfo import available_timezones

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from sluice.errors import DeclarationError
from sluice.model.arguments import typed
from sluice.model.datasets import microseconds, require_duration
from sluice.model.scope import Scope, any_of
from sluice.model.sql import backticked
from sluice.shapes.as_of import Joined, facts_within, merged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

start, end = "_group_window_start", "_group_window_end"
microsecond = "INTERVAL '0.000001' SECOND"
# The longest that each unit of a calendar can be, with a day for clocks that are put back.
calendar_units = {"day": "2 days", "week": "9 days", "month": "33 days", "quarter": "94 days", "year": "368 days"}


def group_names(groups: Sequence[str]) -> "list[Column]":
    """The group columns of placed rows, under their names in the table."""
    return [F.col(f"_group_{name}").alias(name) for name in groups]


@dataclass(frozen=True)
class Window(ABC):
    """Windows over the timestamp `column`."""

    column: str
    # Whether the windows of a row depend on that row alone.
    is_by_row: ClassVar[bool] = False
    # Whether a row at the very time at which a window ends is in it.
    includes_end: ClassVar[bool] = False

    def __str__(self) -> str:
        said = [f"{each.name} {getattr(self, each.name)}" for each in fields(self) if each.name != "column"]
        return f"{type(self).__name__.lower()} window of {self.column}: {', '.join(said)}"

    @abstractmethod
    def place(self, df: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        """The rows, repeated for each window they are in, with the window's start and end."""

    def touched(self, changed: "DataFrame", own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        """The scope of changed rows: `groups` and `window_start`, from old and new images and the current table."""
        named = group_names(groups)
        return self.place(changed, groups).select(*named, F.col(start).alias("window_start"))

    def widened(self, scope: "DataFrame", own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        """A scope with all of the windows that lie in it by now; those of one row alone stay as they are."""
        return scope

    def scope_of(self, own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        """The scope of rows of the table itself."""
        return own.select(*groups, "window_start")

    @abstractmethod
    def reach(self, scope: Scope) -> "Column":
        """The condition, of literals, that a row can be in the scope's windows."""

    def within(self, df: "DataFrame", scope: Scope, groups: Sequence[str]) -> "DataFrame":
        """The rows of the scope's windows, placed in those windows only."""
        placed = self.place(df.where(self.reach(scope)), groups)
        return scope.filter(placed, [*[(f"_group_{name}", name) for name in groups], (start, "window_start")])


@dataclass(frozen=True)
class Fixed(Window):
    """Windows of one length, aligned to the epoch in UTC: end to end (tumbling), or one every `every` (hopping)."""

    duration: str = ""
    every: str = ""
    is_by_row: ClassVar[bool] = True

    def place(self, df: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        return df.where(F.col(self.column).isNotNull()).withColumn(start, self.starts).withColumn(end, self.ends)

    @property
    def starts(self) -> "Column":
        """When each window of a row starts, in the column's type. Spark's own `window` takes its planner far longer."""
        at, length, every = backticked(self.column), microseconds(self.duration) or 0, microseconds(self.every) or 0
        elapsed = f"pmod(unix_micros(CAST({at} AS timestamp)), {every}L)"
        if length == every:
            return F.expr(f"{at} - {elapsed} * {microsecond}")
        earlier = f"sequence(0L, ({length - 1}L - {elapsed}) div {every}L)"
        return F.expr(f"explode(transform({earlier}, each -> {at} - ({elapsed} + each * {every}L) * {microsecond}))")

    @property
    def ends(self) -> "Column":
        return F.expr(f"{start} + INTERVAL {self.duration}")

    def reach(self, scope: Scope) -> "Column":
        return starts_reach(self.column, scope, self.duration)


@dataclass(frozen=True)
class Calendar(Window):
    """Days, weeks, months, quarters or years in a time zone; a day may have 23 or 25 hours."""

    unit: str = ""
    time_zone: str = ""
    is_by_row: ClassVar[bool] = True

    def place(self, df: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        local = f"date_trunc('{self.unit}', from_utc_timestamp(`{self.column}`, '{self.time_zone}'))"
        months = {"quarter": "3 months"}.get(self.unit, f"1 {self.unit}")
        return df.where(F.col(self.column).isNotNull()).withColumns(
            {
                start: F.expr(f"to_utc_timestamp({local}, '{self.time_zone}')"),
                end: F.expr(f"to_utc_timestamp({local} + INTERVAL {months}, '{self.time_zone}')"),
            }
        )

    def reach(self, scope: Scope) -> "Column":
        return starts_reach(self.column, scope, calendar_units[self.unit])


@dataclass(frozen=True)
class Session(Window):
    """Rows of a group that follow each other by no more than `gap`; a session ends `gap` after its last row.

    A late row may merge two sessions, and a removed row may split one: the scope is the span of all affected sessions.
    """

    gap: str = ""
    includes_end: ClassVar[bool] = True

    def place(self, df: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        group_columns = [f"_group_{name}" for name in groups]
        line = Over.partitionBy(*group_columns).orderBy(self.column)
        before = F.lag(self.column).over(line)
        begins = before.isNull() | (F.col(self.column) > before + self.length)
        session = Over.partitionBy(*group_columns, "_session")
        return (
            df.where(F.col(self.column).isNotNull())
            .withColumn("_begins", begins)
            .withColumn("_session", F.count_if("_begins").over(line))
            .withColumns(
                {
                    start: F.min(self.column).over(session),
                    end: F.max(self.column).over(session) + self.length,
                }
            )
            .drop("_begins", "_session")
        )

    @property
    def length(self) -> "Column":
        return F.expr(f"INTERVAL {self.gap}")

    def touched(self, changed: "DataFrame", own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        named = group_names(groups)
        at = F.col(self.column)
        spans = (at - self.length).alias("_from"), (at + self.length).alias("_to")
        return self.widened(changed.where(at.isNotNull()).select(*named, *spans), own, groups)

    def widened(self, scope: "DataFrame", own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        news = scope.select(*groups, "_from", "_to", F.lit(True).alias("_is_new"))
        sessions = own.select(
            *groups,
            F.col("window_start").alias("_from"),
            (F.col("window_end") - self.length).alias("_to"),
            F.lit(False).alias("_is_new"),
        )
        here = news.select(*[F.col(name).alias(f"_here_{name}") for name in groups]).distinct()
        same_group = [F.col(name).eqNullSafe(F.col(f"_here_{name}")) for name in groups]
        near = sessions.join(F.broadcast(here), same_group, "left_semi") if groups else sessions
        spans = merged(news.unionByName(near), groups, keep=(F.bool_or("_is_new").alias("_is_new"),))
        return spans.where("_is_new").drop("_is_new").transform(lambda df: self.with_sessions(df, own, groups))

    def scope_of(self, own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        last = (F.col("window_end") - self.length).alias("_to")
        return own.select(*groups, "window_start", F.col("window_start").alias("_from"), last)

    def with_sessions(self, spans: "DataFrame", own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        """A scope row for each span, and one for each of the table's sessions in it."""
        named = own.select(*[F.col(name).alias(f"_own_{name}") for name in groups], "window_start")
        same = [F.col(name).eqNullSafe(F.col(f"_own_{name}")) for name in groups]
        inside = F.col("window_start").between(F.col("_from"), F.col("_to"))
        return spans.join(named, [*same, inside], "left").select(*groups, "window_start", "_from", "_to")

    def reach(self, scope: Scope) -> "Column":
        return F.col(self.column).between(scope.bounds["_from"].least, scope.bounds["_to"].greatest)

    def within(self, df: "DataFrame", scope: Scope, groups: Sequence[str]) -> "DataFrame":
        near = df.where(self.reach(scope))
        until = F.col("_to") + F.expr("INTERVAL 1 microsecond")
        # A changed row, a range and the watermark may each touch the same sessions.
        spans = merged(scope.frame.select(*groups, "_from", until.alias("_to")), groups)
        by_group = Joined(tuple(groups), tuple(f"_group_{name}" for name in groups))
        return self.place(facts_within(near, spans, by_group, self.column), groups)


@dataclass(frozen=True)
class Sliding(Window):
    """For each event time, the window of one length that ends with it, the event time included."""

    duration: str = ""
    includes_end: ClassVar[bool] = True

    def place(self, df: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        return self.spread(df.withColumn("_ends", F.lit(True)), groups)

    def spread(self, df: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        """Each row in every window that it is in; a window ends at each row of its group with `_ends`."""
        named = [f"_group_{name}" for name in groups]
        bucket = F.call_function("div", F.unix_micros(self.column), self.micros)
        rows = df.where(F.col(self.column).isNotNull()).withColumn("_near", F.explode(F.array(bucket, bucket + 1)))
        ends = df.where(F.col("_ends") & F.col(self.column).isNotNull()).select(
            *[F.col(name).alias(f"_end_of_{name}") for name in named],
            F.col(self.column).alias(end),
            bucket.alias("_end_near"),
        )
        same = [F.col(name).eqNullSafe(F.col(f"_end_of_{name}")) for name in named]
        reached = (F.col(end) >= F.col(self.column)) & (F.col(end) < F.col(self.column) + self.length)
        return (
            rows.join(ends.distinct(), [*same, F.col("_near") == F.col("_end_near"), reached])
            .withColumn(start, F.col(end) - self.length)
            .select(*[name for name in df.columns if name != "_ends"], start, end)
        )

    @property
    def length(self) -> "Column":
        return F.expr(f"INTERVAL {self.duration}")

    @property
    def micros(self) -> "Column":
        return F.expr(f"unix_micros(TIMESTAMP '1970-01-01 00:00:00Z' + INTERVAL {self.duration})")

    def touched(self, changed: "DataFrame", own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        named = group_names(groups)
        at = F.col(self.column)
        intervals = changed.where(at.isNotNull()).select(*named, at.alias("_from"), (at + self.length).alias("_to"))
        spans = merged(intervals, groups)
        by_group = Joined(tuple(groups), tuple(groups))
        known = facts_within(own.select(*groups, F.col("window_end").alias("_end")), spans, by_group, "_end")
        news = changed.where(at.isNotNull()).select(*named, at.alias("_end"))
        found = known.unionByName(news).distinct()
        return found.withColumn("window_start", F.col("_end") - self.length)

    def scope_of(self, own: "DataFrame", groups: Sequence[str]) -> "DataFrame":
        return own.select(*groups, "window_start", F.col("window_end").alias("_end"))

    def reach(self, scope: Scope) -> "Column":
        bounds, at = scope.bounds["_end"], F.col(self.column)
        return (at > bounds.least - self.length) & (at <= bounds.greatest)

    def within(self, df: "DataFrame", scope: Scope, groups: Sequence[str]) -> "DataFrame":
        near = df.where(self.reach(scope))
        ends = [*[(f"_group_{name}", name) for name in groups], (self.column, "_end")]
        return self.spread(scope.mark(near, ends, "_ends"), groups)


def starts_reach(column: str, scope: Scope, longest: str) -> "Column":
    """The condition that a row can be in the scope's windows, none longer than `longest`."""
    name, length = backticked(column), f"INTERVAL {longest}"
    ranges = scope.bounds["window_start"].ranges
    return F.expr(any_of([f"{name} >= {least} AND {name} < {greatest} + {length}" for least, greatest in ranges]))


@typed
def window(column: str, duration: str, *, every: str | None = None) -> Fixed:
    """Windows of one length over the timestamp `column`: `window("scheduled_at", "1 hour")`.

    Without `every` they are end to end (tumbling); with it one begins every `every` (hopping), and a row is in several.
    """
    require_duration("window", f"the length of the window over {column}", duration)
    require_duration("window", "every", every)
    if every is not None and (microseconds(every) or 0) > (microseconds(duration) or 0):
        raise DeclarationError(
            f"the window over {column}: every is '{every}', longer than its '{duration}', so rows between two windows "
            "would be in none"
        )
    return Fixed(column, duration=duration, every=every or duration)


@typed
def sliding_window(column: str, duration: str) -> Sliding:
    """For each event time of a group, the window of that length that ends with it: `(end - duration, end]`."""
    require_duration("sliding_window", "its length", duration)
    return Sliding(column, duration=duration)


@typed
def session_window(column: str, *, gap: str) -> Session:
    """Rows of a group that follow each other by no more than `gap`; a session ends `gap` after its last row."""
    require_duration("session_window", "gap", gap)
    return Session(column, gap=gap)


@typed
def calendar_window(column: str, unit: str, *, time_zone: str) -> Calendar:
    """Days, weeks (from Monday), months, quarters or years in a time zone: `time_zone="Europe/Oslo"`."""
    if unit not in calendar_units:
        raise DeclarationError(f"calendar_window: '{unit}' is none of {', '.join(calendar_units)}")
    if time_zone not in available_timezones():
        raise DeclarationError(f"calendar_window: '{time_zone}' is no time zone; write for example 'America/New_York'")
    return Calendar(column, unit=unit, time_zone=time_zone)
