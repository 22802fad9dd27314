"""Silver: declares events, histories, elements of arrays, joins by key, by interval and as of a time, and patterns."""

from sluice.silver.as_of import Dimension, as_of, dimension
from sluice.silver.events import events
from sluice.silver.explode import explode
from sluice.silver.formats import avro, protobuf
from sluice.silver.history import history, history_from_snapshots
from sluice.silver.joins import interval_join, join
from sluice.silver.pattern import pattern

__all__ = [
    "Dimension",
    "as_of",
    "avro",
    "dimension",
    "events",
    "explode",
    "history",
    "history_from_snapshots",
    "interval_join",
    "join",
    "pattern",
    "protobuf",
]
