"""Rows that somebody changes behind our back, by another program than Spark."""

import re

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from sluice.model.ledger import changed_here
from sluice.storage.delta import Lake
from sluice.storage.delta.opened import rows_in

update = re.compile(r"UPDATE SET (?P<changes>.+?)(?: WHERE (?P<where>.+))?")
delete = re.compile(r"DELETE(?: WHERE (?P<where>.+))?")


def damage(lake: Lake, table: str, statement: str, entry: str | None = None) -> int:
    """Does `UPDATE SET column = value, … WHERE …` or `DELETE WHERE …` to a table; how many rows, at least one."""
    found, said = DeltaTable(lake.path(table)), {} if entry is None else {"userMetadata": entry}
    properties = CommitProperties(custom_metadata=said)
    if changed := update.fullmatch(statement):
        values = dict(each.split(" = ", 1) for each in changed["changes"].split(", "))
        done = found.update(updates=values, predicate=changed["where"], commit_properties=properties)
        count = done["num_updated_rows"]
    elif gone := delete.fullmatch(statement):
        count = found.delete(predicate=gone["where"], commit_properties=properties)["num_deleted_rows"]
    else:
        raise ValueError(statement)
    assert count, statement
    return int(count)


def computed_wrong(lake: Lake, table: str, statement: str) -> int:
    """The same in a commit of Sluice's, as if its rows had been computed so: no run undoes it."""
    known = lake.last_commit(table)
    assert known is not None
    entry = known.repeated(known.newest_version).model_copy(update=changed_here)
    return damage(lake, table, statement, entry.to_json())


def double(lake: Lake, table: str, count: int | None = None, **of: str) -> None:
    """Adds rows of a table once more: the first so many, or all, of those that have these values."""
    rows = rows_in(lake.open(table))
    assert rows is not None
    wanted = [all(row[name] == value for name, value in of.items()) for row in rows.to_pylist()]
    # Arrow filters no views of text.
    again = pa.concat_tables([rows.slice(0, 0), *[rows.slice(at, 1) for at, is_one in enumerate(wanted) if is_one]])
    again = again.slice(0, count)
    assert again.num_rows, f"{table} has no such rows"
    write_deltalake(lake.path(table), again, mode="append")
