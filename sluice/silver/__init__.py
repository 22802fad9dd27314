"""Silver: declares deduplicated events, histories, joins by key, within an interval and as of a time, and patterns."""

from sluice.silver.as_of import Dimension, as_of, dimension
from sluice.silver.events import events
from sluice.silver.history import history, history_from_snapshots
from sluice.silver.joins import interval_join, join
from sluice.silver.pattern import pattern

__all__ = [
    "Dimension",
    "as_of",
    "dimension",
    "events",
    "history",
    "history_from_snapshots",
    "interval_join",
    "join",
    "pattern",
]
