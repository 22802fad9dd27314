"""Rows of a table that the driver finds by the few values that a scope has, where Spark would plan and run a job.

A frame that is a whole table, as it was read, is known here with what finds rows in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Among:
    """That a column has one of these values, of which one may be null."""

    column: str
    values: "pa.ChunkedArray[Any]"


@dataclass(frozen=True)
class During:
    """That a column is at `start` or after it, and before `end`; None: there is no end."""

    column: str
    start: "pa.Scalar[Any]"
    end: "pa.Scalar[Any] | None"


Condition = Among | During


class Finder(Protocol):
    """Finds rows in one version of a table.

    The n-th values of all `Among`s belong to one wanted row. A row that meets each condition by the value of another
    wanted row may be found or left out, so whoever asks compares whole rows.
    """

    def __call__(self, conditions: Sequence[Condition]) -> pa.Table | None:
        """The rows that meet all conditions; None where they are many, or where Spark had better look for them."""


finders: "WeakKeyDictionary[DataFrame, Finder]" = WeakKeyDictionary()


def with_finder(df: "DataFrame", finder: Finder) -> "DataFrame":
    """The same frame, in whose rows `finder` finds those of a small scope."""
    finders[df] = finder
    return df
