"""Completeness: whether a window is open, complete, or was revised after it was complete.

The watermark says how far event time has come. It is one more thing upstream that changes: when it passes the end of a
window, that window's rows are touched, and no others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

state_columns = ("_state", "_revision", "_revised_at")


@dataclass(frozen=True)
class Moment:
    """How far event time had come at the last refresh and has now, and the time at which this is found out."""

    watermark_before: datetime | None
    watermark: datetime | None
    now: datetime


@dataclass(frozen=True)
class Completeness:
    """What of a windowed table tells rows apart, what is measured, and the scope that finds rows again."""

    grain: tuple[str, ...]
    measures: tuple[str, ...]
    scope_of: "Callable[[DataFrame], DataFrame]"

    def touched(self, own: "DataFrame", moment: Moment) -> "DataFrame":
        """The scope of the windows that the watermark has passed since the last refresh."""
        passed = F.col("window_end") <= F.lit(moment.watermark)
        if moment.watermark_before is not None:
            passed &= F.col("window_end") > F.lit(moment.watermark_before)
        return self.scope_of(own.where(passed))

    def judged(self, new: "DataFrame", own: "DataFrame | None", moment: Moment) -> "DataFrame":
        """The rows with `_state` ('open', 'complete' or 'revised'), `_revision` and `_revised_at` (null: never).

        A row is revised when its measures change, or it appears, after its window was complete.
        """
        if own is None or "_state" not in own.columns:
            own = self.no_rows_before(new)
        # A measure that is new, or of another type, says nothing of a revision.
        known = [name for name in self.measures if (name, dict(new.dtypes)[name]) in own.dtypes]
        before = own.select(
            *[F.col(name).alias(f"_own_{name}") for name in self.grain],
            F.struct(F.lit(1).alias("_there"), *known).alias("_before"),
            *[F.col(name).alias(f"_own{name}") for name in state_columns],
        )
        same = [F.col(name).eqNullSafe(F.col(f"_own_{name}")) for name in self.grain]
        differs = ~F.col("_before").eqNullSafe(F.struct(F.lit(1).alias("_there"), *known))
        is_revision = self.is_complete(moment.watermark_before) & differs
        revision = F.coalesce("_own_revision", F.lit(0)) + F.when(is_revision, 1).otherwise(0)
        state = F.when(~self.is_complete(moment.watermark), "open").when(revision > 0, "revised").otherwise("complete")
        return new.join(before, reduce(lambda left, right: left & right, same), "left").select(
            *new.columns,
            state.alias("_state"),
            revision.alias("_revision"),
            F.when(is_revision, F.lit(moment.now)).otherwise(F.col("_own_revised_at")).alias("_revised_at"),
        )

    def no_rows_before(self, new: "DataFrame") -> "DataFrame":
        """A table as it is before its first row."""
        return new.limit(0).select(
            "*",
            F.lit(None).cast("string").alias("_state"),
            F.lit(0).alias("_revision"),
            F.lit(None).cast("timestamp").alias("_revised_at"),
        )

    def is_complete(self, watermark: datetime | None) -> "Column":
        return F.lit(False) if watermark is None else F.col("window_end") <= F.lit(watermark)
