"""Windows of event time, as a group to aggregate by."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.datasets import require_duration
from sluice.scope import Scope

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Tumbling:
    """Windows of one length, end to end from the epoch in UTC: columns `window_start` and `window_end`."""

    column: str
    duration: str

    def columns(self) -> "dict[str, Column]":
        """The start and the end of a row's window."""
        each = F.window(self.column, self.duration)
        return {"window_start": each.start, "window_end": each.end}

    def condition(self, scope: Scope) -> str:
        """The condition, of literals, that a row can be in the scope's windows."""
        bounds = scope.bounds["window_start"]
        within = f"`{self.column}` >= {bounds.least} AND `{self.column}` < {bounds.greatest} + INTERVAL {self.duration}"
        return f"({within})"


def window(column: str, duration: str) -> Tumbling:
    """Windows over the timestamp `column`, for example `window("scheduled_at", "1 hour")`."""
    require_duration("window", f"the length of the window over {column}", duration)
    return Tumbling(column, duration)
