"""Rows that somebody changes behind our back, by another program than Spark."""

import re

from deltalake import DeltaTable

from sluice.model.ledger import changed_here
from sluice.storage.delta import Lake

update = re.compile(r"UPDATE SET (?P<changes>.+?)(?: WHERE (?P<where>.+))?")
delete = re.compile(r"DELETE(?: WHERE (?P<where>.+))?")


def damage(lake: Lake, table: str, statement: str) -> None:
    """Does `UPDATE SET column = value, … WHERE …` or `DELETE WHERE …` to a table; some row must be meant."""
    found = DeltaTable(lake.path(table))
    if changed := update.fullmatch(statement):
        values = dict(each.split(" = ", 1) for each in changed["changes"].split(", "))
        done = found.update(updates=values, predicate=changed["where"])
        assert done["num_updated_rows"], statement
    elif gone := delete.fullmatch(statement):
        assert found.delete(predicate=gone["where"])["num_deleted_rows"], statement
    else:
        raise ValueError(statement)


def wrong_since_computed(lake: Lake, table: str, statement: str) -> None:
    """The same, as if Sluice had computed the rows so: the next run sees no other program's doing."""
    damage(lake, table, statement)
    known = lake.last_commit(table)
    assert known is not None
    lake.move_cursor(table, known.repeated(known.newest_version).model_copy(update=changed_here), known.fence)
