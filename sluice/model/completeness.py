"""Completeness: whether a window is open, complete, or was revised after it was complete.

The watermark says how far event time has come. It is another upstream change: when it passes the end of a
window, only that window's rows are touched. It never goes back, so a complete window stays complete.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window as Over
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

state_columns = ("_state", "_revision", "_revised_at")


def later_of(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two watermarks; None is before any time."""
    return max((each for each in (one, other) if each is not None), default=None)


@dataclass(frozen=True)
class EvaluationContext:
    """The watermarks of the last refresh and of this one, and the current time."""

    watermark_before: datetime | None
    watermark: datetime | None
    now: datetime

    @classmethod
    def of(cls, before: datetime | None, watermark: datetime | None, now: datetime) -> "EvaluationContext":
        """The context of a refresh; time never goes back behind what the ledger says."""
        return cls(before, later_of(before, watermark), now)

    @property
    def began_ms(self) -> int:
        """When the refresh began, as the ledger says it."""
        return int(self.now.timestamp() * 1000)

    @property
    def has_moved(self) -> bool:
        return self.watermark != self.watermark_before


@dataclass(frozen=True)
class Completeness:
    """The grain of a windowed table, and the scope columns that find its rows again.

    Where windows `merge` (sessions), a row takes the place of all rows of its group whose windows it overlaps; else of
    the one row with its grain. Where windows `include_end`, one is still open when the watermark is at its end.
    """

    grain: tuple[str, ...]
    scope_of: "Callable[[DataFrame], DataFrame]"
    merge: bool = False
    include_end: bool = False

    def bears_on(self, df: "DataFrame") -> bool:
        """True when rows are those of windows: they say when theirs ends."""
        return ("window_end", "timestamp") in df.dtypes

    def touched(self, own: "DataFrame", context: EvaluationContext) -> "DataFrame":
        """The scope of the windows that the watermark has passed since the last refresh."""
        passed = self.is_complete(context.watermark) & ~self.is_complete(context.watermark_before)
        return self.scope_of(own.where(passed))

    def is_complete(self, watermark: datetime | None) -> "Column":
        """Whether the watermark has passed a row's window; a row without an end is in a window that stays open."""
        if watermark is None:
            return F.lit(False)
        end, until = F.col("window_end"), F.lit(watermark)
        return F.coalesce(end < until if self.include_end else end <= until, F.lit(False))

    def judged(self, new: "DataFrame", own: "DataFrame | None", context: EvaluationContext) -> "DataFrame":
        """The rows with `_state` ('open', 'complete' or 'revised'), `_revision` and `_revised_at` (null: never).

        A row is revised when it appears in a window that was complete, or differs from the complete rows of the table,
        `own`, that it replaces, whatever the cause. Its revision is then above theirs.
        """
        new = new.drop(*state_columns)
        if own is None or not {*self.grain, *window_bounds(new)} <= set(own.columns):
            own = new.limit(0)
        is_other = ~F.col("_same._figures").eqNullSafe(F.col("_figures"))
        is_revision = is_other & (F.col("_was_complete") | self.is_complete(context.watermark_before))
        revision = (
            F.when(is_revision, F.coalesce("_revision_before", F.lit(0)) + 1)
            .when(is_other, F.coalesce("_revision_before", F.lit(0)))
            .otherwise(F.coalesce("_same._revision", F.lit(0)))
        )
        revised_at = (
            F.when(is_revision, F.lit(context.now))
            .when(is_other, F.col("_revised_before"))
            .otherwise(F.col("_same._revised_at"))
        )
        state = F.when(~self.is_complete(context.watermark), "open").when(revision > 0, "revised").otherwise("complete")
        return self.beside(lined_up(new, own, self.grain)).select(
            *[F.col(f"_new.`{name}`").alias(name) for name in new.columns],
            state.alias("_state"),
            revision.alias("_revision"),
            revised_at.alias("_revised_at"),
        )

    def beside(self, both: "DataFrame") -> "DataFrame":
        """The new rows, each with the table's row of the same grain and the states of the rows that it replaces."""
        same = Over.partitionBy(*self.grain)
        place = same
        if self.merge:
            groups = [name for name in self.grain if name != "window_start"]
            line = Over.partitionBy(*groups).orderBy("window_start", "window_end")
            reached = F.max("window_end").over(line.rowsBetween(Over.unboundedPreceding, -1))
            begins = reached.isNull() | (F.col("window_start") >= reached)
            both = both.withColumn("_begins", begins).withColumn("_span", F.count_if("_begins").over(line))
            place = Over.partitionBy(*groups, "_span")
        was_complete = F.bool_or(F.col("_own._state") != "open").over(place)
        return both.withColumns(
            {
                "_same": F.first("_own", ignorenulls=True).over(same),
                "_was_complete": F.coalesce(was_complete, F.lit(False)),
                "_revision_before": F.max("_own._revision").over(place),
                "_revised_before": F.max("_own._revised_at").over(place),
            }
        ).where("_new IS NOT NULL")


def lined_up(new: "DataFrame", own: "DataFrame", grain: Sequence[str]) -> "DataFrame":
    """Rows as they should be (`_new`) and as they are (`_own`), each with its grain, its window and its figures.

    A figure of another type is compared as text. One that only one side has does not count as a revision.
    """
    before, now = dict(own.dtypes), dict(new.dtypes)
    keys = list(dict.fromkeys([*grain, *window_bounds(new)]))
    common = [name for name in new.columns if not name.startswith("_") and name not in grain and name in before]

    def figures(df: "DataFrame") -> "Column":
        found = [df[f"`{name}`"] if before[name] == now[name] else df[f"`{name}`"].cast("string") for name in common]
        return F.struct(F.lit(1).alias("_there"), *[each.alias(name) for each, name in zip(found, common, strict=True)])

    kinds = zip(state_columns, ("string", "int", "timestamp"), strict=True)
    states = [(F.col(name) if name in before else F.lit(None)).cast(kind).alias(name) for name, kind in kinds]
    wanted = new.select(
        *keys, figures(new).alias("_figures"), F.struct(*[new[f"`{each}`"] for each in now]).alias("_new")
    )
    there = own.select(*keys, F.struct(figures(own).alias("_figures"), *states).alias("_own"))
    return wanted.unionByName(there, allowMissingColumns=True)


def window_bounds(df: "DataFrame") -> list[str]:
    return [name for name in ("window_start", "window_end") if name in df.columns]
