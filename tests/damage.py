"""Rows that somebody changes behind our back, by another program than Spark."""

import re

from deltalake import DeltaTable

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
