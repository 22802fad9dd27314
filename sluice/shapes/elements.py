"""Elements of an array as rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Elements:
    """The columns that stay, the array, and what its elements become.

    `fields` are those of a struct, each with the name of its column; other elements are in the column `name`.
    """

    grain: tuple[str, ...]
    kept: tuple[str, ...]
    column: str
    ordinal: str
    fields: tuple[tuple[str, str], ...] = ()
    name: str | None = None


def elements(rows: "DataFrame", rule: Elements) -> "DataFrame":
    """One row for each element, with its place, which counts from 1.

    The position in the log stays behind: several rows would have one, and none of them would be the first.
    """
    kept = [F.col(f"`{name}`") for name in rule.kept]
    placed = rows.select(*kept, F.posexplode(f"`{rule.column}`").alias("_place", "_element"))
    made = [F.col("_element").getField(field).alias(name) for field, name in rule.fields]
    if rule.name is not None:
        made = [F.col("_element").alias(rule.name)]
    return placed.select(*kept, (F.col("_place") + 1).alias(rule.ordinal), *made)
