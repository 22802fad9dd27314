"""All rows of a table as a file, written while they are read."""

import io
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from sluice.console.chart import is_time, readable
from sluice.errors import UsageError
from sluice.model.sql import double_quoted

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.console.snapshots import Snapshot

rows_at_once = 50_000
media_types = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


def file_of(snapshot: "Snapshot", source: str, types: Mapping[str, str], form: str) -> Iterator[bytes]:
    """The pieces of a file. A UsageError comes at once where the first cannot be made, else instead of a piece.

    Who sends them breaks the connection then, so that what was sent does not look like the whole file.
    """
    pieces = forms[form](snapshot, source, types)
    return chain([next(pieces)], pieces)


def csv(snapshot: "Snapshot", source: str, types: Mapping[str, str]) -> Iterator[bytes]:
    """CSV with a header; nested values are JSON, times in UTC, `infinity` and `-infinity` where they have no end."""
    from pyarrow import csv as arrow_csv

    names = [text_form(name, kind) for name, kind in types.items()]
    yield from written(snapshot, f"SELECT {', '.join(names)} FROM {source}", arrow_csv.CSVWriter)


def parquet(snapshot: "Snapshot", source: str, _types: Mapping[str, str]) -> Iterator[bytes]:
    """Parquet with the table's own types."""
    from pyarrow import parquet as arrow_parquet

    yield from written(snapshot, f"SELECT * FROM {source}", arrow_parquet.ParquetWriter)


def written(snapshot: "Snapshot", sql: str, writer: Callable[..., object]) -> Iterator[bytes]:
    """What a writer makes of the rows, piece by piece; the snapshot is closed at the end."""
    from sluice.operate.query import answering

    try:
        with snapshot.lock, answering():
            batches: pa.RecordBatchReader = snapshot.connection.sql(sql).to_arrow_reader(rows_at_once)
            target = Growing()
            with writer(target, batches.schema) as out:  # type: ignore[attr-defined]
                for batch in batches:
                    out.write_batch(batch)
                    yield target.taken()
            yield target.taken()
    except OSError as error:
        # Arrow's, for what DuckDB cannot read on the way.
        raise UsageError(f"The rows cannot be read: {error}") from error
    finally:
        snapshot.connection.close()


class Growing(io.RawIOBase):
    """A file that is taken away while it grows."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(data)  # type: ignore[call-overload]
        self.parts.append(part)
        self.written += len(part)
        return len(part)

    def tell(self) -> int:
        return self.written

    def taken(self) -> bytes:
        found, self.parts = b"".join(self.parts), []
        return found


def text_form(name: str, kind: str) -> str:
    """A column as CSV can have it."""
    column = double_quoted(name)
    if kind == "BLOB":
        return f"{readable(name, kind)} AS {column}"
    if kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION")):
        return f"to_json({column})::VARCHAR AS {column}"
    # Arrow would write another time for one without an end.
    return f"{column}::VARCHAR AS {column}" if is_time(kind) else column


forms = {"csv": csv, "parquet": parquet}
