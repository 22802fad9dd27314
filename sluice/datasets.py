"""The noun: a Dataset is declared once, and the engine keeps its table equal to what its shape says.

Every dataset follows one rule:

    what changed upstream  →  which of my rows that touches (the scope)  →  recompute them  →  write the difference

A declaration holds the four answers as data and pure functions; it never reads, writes or looks at the clock.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.completeness import Completeness
from sluice.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sluice.expect import Expectation
    from sluice.scope import Scope

valid_name = re.compile(r"[a-z][a-z0-9_]{0,62}")
duration_pattern = re.compile(r"(-?\d+) (second|minute|hour|day|week)s?")
unit_microseconds = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}

Frames = Mapping[str, "DataFrame"]


@dataclass(frozen=True, eq=False)
class Topic:
    """A topic of the log, and the bronze table that holds its records as they came.

    An `optional` topic has no table until the log has the topic.
    """

    name: str
    topic: str
    meaning: str = ""
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Input:
    """How one upstream table feeds a dataset.

    `scope` maps the rows that changed upstream (old and new images) to the rows of the dataset that they touch: one
    column for each of `Dataset.scope_columns`. It may look at the inputs, and at the dataset's own table, as they are
    now. `within` narrows the input to
    what recomputing a scope needs. An input with `arrivals` hands to the shape only its new rows, and those that
    `within` asks for again; the shape folds them into the rows it already has.
    """

    source: "Dataset | Topic"
    scope: "Callable[[DataFrame, Frames], DataFrame]"
    within: "Callable[[DataFrame, Scope], DataFrame]"
    arrivals: bool = False


@dataclass(frozen=True, eq=False)
class Output:
    """One table that a dataset writes: its rows are told apart by `grain`, and found again by `scope_columns`.

    `scope_columns` pairs a column of the table with the column of the scope that it must match. `prune_columns` pairs
    in the same way columns whose bounds let whole files be skipped. `slice` names the rows of a shared table that
    belong to the dataset. A table written as a whole is sorted by `cluster_by`, so that files can be skipped.
    """

    table: str
    grain: tuple[str, ...]
    scope_columns: tuple[tuple[str, str], ...]
    select: "Callable[[DataFrame], DataFrame]" = lambda df: df
    prune_columns: tuple[tuple[str, str], ...] = ()
    slice: tuple[tuple[str, str], ...] = ()
    cluster_by: tuple[str, ...] = ()

    def slice_condition(self, prefix: str = "") -> str:
        """The SQL condition that names the output's rows in a shared table."""
        return " AND ".join(f"{prefix}`{column}` = '{value}'" for column, value in self.slice) or "true"

    def condition(self, scope: "Scope", prefix: str = "") -> str:
        """The SQL condition, of literals only, that rows of the table can be in the scope."""
        pairs = [*self.scope_columns, *self.prune_columns]
        return f"{self.slice_condition(prefix)} AND {scope.condition(pairs, prefix)}"


@dataclass(frozen=True, eq=False)
class Dataset:
    """One table of silver or gold, and the rule that makes it.

    `shape(rows, own)` takes the input rows of a scope and the dataset's own rows of that scope, each by name, and
    returns the scope's new rows. The last of `outputs` is the dataset's own table; its commit moves the cursor, so a
    crash before it repeats the work and changes nothing twice.

    `scope_of` gives the scope that rows of the table itself are in, to explain them. `reached` gives from computed
    rows how far each partition of its `topics` has come; one that is `idle_after` behind the others does not hold the
    watermark back. A dataset that `tells_time` is waited for by the watermark of what is made from it; a history is
    not: that a thing has not changed for a year says nothing of how far time has come. With `completeness` its rows
    also depend on the watermark. `laws` are what `sluice audit` counts beside the fates: for each law, a query for the
    number of rows that break it. `bounded` is what should be rare: what that means, and a query for how many rows are
    so, of how many, and what is worth saying of them. `with_expectations` gives the same dataset with the row rules of
    a suite at its door; None where no records are parsed.
    """

    name: str
    inputs: Mapping[str, Input]
    outputs: tuple[Output, ...]
    shape: "Callable[[Frames, Frames], DataFrame]"
    declaration: Mapping[str, Any]
    meaning: str = ""
    keys: tuple[str, ...] = ()
    event_time: str | None = None
    topics: tuple[str, ...] = field(default=())
    idle_after: str | None = None
    tells_time: bool = True
    scope_of: "Callable[[DataFrame], DataFrame]" = lambda own: own
    reached: "Callable[[DataFrame], DataFrame] | None" = None
    completeness: Completeness | None = None
    laws: "Mapping[str, str]" = field(default_factory=dict)
    bounded: "Mapping[str, tuple[str, str]]" = field(default_factory=dict)
    with_expectations: "Callable[[tuple[Expectation, ...]], Dataset] | None" = None

    def __post_init__(self) -> None:
        if not self.outputs or self.outputs[-1].table != self.name:
            raise DeclarationError(f"{self.name}: its last output must be its own table")

    @property
    def is_fold(self) -> bool:
        """True when new rows are folded into the dataset's own, so that the scope never grows beyond them."""
        return any(each.arrivals for each in self.inputs.values())

    @property
    def fingerprint(self) -> str:
        """Changes when the declaration or the source of its shape does; then the table is rebuilt."""
        text = json.dumps(self.declaration, sort_keys=True, default=source_of)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def same_names(columns: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pairs for scope columns that are called the same in the table."""
    return tuple((column, column) for column in columns)


def checked_name(layer: str, name: str) -> str:
    """`layer.name`, or a DeclarationError where the name could not be a folder, a table and an asset at once."""
    if not valid_name.fullmatch(name):
        raise DeclarationError(
            f"{layer}: '{name}' cannot name a dataset; use lower-case letters, digits and _, "
            "beginning with a letter, at most 63 characters"
        )
    return f"{layer}.{name}"


def column_names(schema: str) -> tuple[str, ...]:
    """The top-level column names of a DDL schema such as `a string, b struct<c: int>`."""
    return tuple(column_types(schema))


def column_types(schema: str) -> dict[str, str]:
    """The top-level columns of a DDL schema, each with its type in lower case."""
    types: dict[str, str] = {}
    depth, start = 0, 0
    for position, character in enumerate(schema + ","):
        depth += character in "<("
        depth -= character in ">)"
        if character == "," and depth == 0:
            field_text = schema[start:position].strip()
            found = re.fullmatch(r"(?s)(?:`([^`]+)`|(\w+))\s*:?\s*(.+)", field_text)
            if found is None:
                raise DeclarationError(f"schema: cannot read the column '{field_text}'; write 'name type, …'")
            types[found[1] or found[2]] = found[3].lower()
            start = position + 1
    return types


def microseconds(text: str) -> int | None:
    """The length of a duration such as '2 days', or of an offset such as '-2 hours'; None where it is neither."""
    found = duration_pattern.fullmatch(text)
    return int(found[1]) * unit_microseconds[found[2]] if found else None


def require_duration(dataset: str, option: str, text: str | None) -> None:
    """A DeclarationError where `text` is no duration such as '2 days'."""
    if text is not None and (microseconds(text) or 0) <= 0:
        raise DeclarationError(f"{dataset}: {option} is '{text}', which is no duration; write for example '2 days'")


def require_columns(dataset: str, option: str, wanted: tuple[str, ...], known: tuple[str, ...]) -> None:
    """A DeclarationError that names the columns of `option` which the dataset's schema lacks."""
    missing = [name for name in wanted if name not in known]
    if missing:
        raise DeclarationError(
            f"{dataset}: {option} names {', '.join(missing)}, which the schema lacks; it has {', '.join(known)}"
        )


def source_of(value: object) -> str:
    """The text that stands for a value in a fingerprint: a function's source, else its `repr`."""
    if callable(value):
        try:
            return inspect.getsource(value)
        except OSError as error:
            raise DeclarationError(
                f"{value}: a shape must be defined in a file, so that changes are noticed"
            ) from error
    return repr(value)
