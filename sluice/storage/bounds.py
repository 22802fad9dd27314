"""What the log of a table says of the values in each of its files."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyarrow import ChunkedArray

# Of these types a file's bounds are as exact in the log as the values are.
bounded = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_string)


def bounds_of(files: pa.Table, column: str) -> "tuple[ChunkedArray[Any], ChunkedArray[Any], ChunkedArray[Any]] | None":
    """For each file the least value of a column, the greatest, and its nulls; None where they are not known."""
    names = [f"{which}.{column}" for which in ("min", "max", "null_count")]
    if not set(names) <= set(files.column_names) or not any(of(files[names[1]].type) for of in bounded):
        return None
    least, greatest, nulls = (files[name] for name in names)
    if pa.types.is_timestamp(greatest.type):
        # Spark writes the milliseconds of the greatest, rounded down.
        greatest = pc.add(greatest, pa.scalar(999, pa.duration("us")))
    return least, greatest, nulls
