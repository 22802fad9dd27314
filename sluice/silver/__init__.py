"""Silver: declares events, histories, elements of arrays, joins by key, by interval and as of a time, patterns, and
standing queries.
"""

from sluice.model.condition import from_sql as condition
from sluice.silver.as_of import Dimension, as_of, dimension
from sluice.silver.events import events
from sluice.silver.explode import explode
from sluice.silver.formats import avro, protobuf
from sluice.silver.history import history, history_from_snapshots
from sluice.silver.joins import interval_join, join
from sluice.silver.pattern import pattern
from sluice.silver.standing import standing_queries

__all__ = [
    "Dimension",
    "as_of",
    "avro",
    "condition",
    "dimension",
    "events",
    "explode",
    "history",
    "history_from_snapshots",
    "interval_join",
    "join",
    "pattern",
    "protobuf",
    "standing_queries",
]
