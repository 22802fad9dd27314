"""Rows of a table that were found once are not looked for again where fewer of them are asked for.

A late version of a dimension is followed by finding the facts of its interval, and then the rows of these very facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sluice.model.few_rows import are_met, meeting
from sluice.model.found import Among, Condition, Finder


@dataclass
class Narrowing:
    """Finds rows as `finder` does, and among those of the last search where all that meet the conditions are there."""

    finder: Finder
    asked: Sequence[Condition] = ()
    rows: pa.Table | None = field(default=None, repr=False)

    def __call__(self, conditions: Sequence[Condition]) -> pa.Table | None:
        """The rows that meet all conditions, as a `Finder` finds them."""
        if self.rows is not None and are_narrower(conditions, self.asked):
            return meeting(self.rows, conditions)
        rows = self.finder(conditions)
        # By several lists of values a finder may leave out rows that a narrower search wants.
        if rows is not None and sum(isinstance(each, Among) for each in conditions) == 1:
            self.asked, self.rows = conditions, rows
        return rows


def are_narrower(conditions: Sequence[Condition], known: Sequence[Condition]) -> bool:
    """Whether each row that meets `conditions` is known to meet the others too."""
    return all(any(is_narrower(each, other) for each in conditions) for other in known)


def is_narrower(condition: Condition, known: Condition) -> bool:
    """Whether each value of a column that meets the condition is known to meet the other, of the same column."""
    if condition.column != known.column or not isinstance(condition, Among):
        return False
    kind = known.values.type if isinstance(known, Among) else known.start.type
    if condition.values.type != kind:
        return False
    return pc.all(pc.fill_null(are_met(condition.values, known), False)).as_py() is not False
