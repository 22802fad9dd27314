"""Rows in Arrow that are made while they are written, so that never more than a part of them is in memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ArrowStream:
    """Rows of a schema, which `made` makes part by part, from the beginning each time that they are read."""

    schema: "pa.Schema"
    made: "Callable[[], Iterable[pa.Table]]"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        import pyarrow as pa

        batches = (batch for part in self.made() for batch in part.to_batches())
        reader: Any = pa.RecordBatchReader.from_batches(self.schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def with_constant(self, name: str, value: datetime, kind: "pa.DataType") -> "ArrowStream":
        """The rows with one more column, which has this value in each."""
        import pyarrow as pa

        def made() -> "Iterator[pa.Table]":
            for part in self.made():
                yield part.append_column(name, pa.array([value] * part.num_rows, kind))

        return ArrowStream(self.schema.append(pa.field(name, kind)), made)
