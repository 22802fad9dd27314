"""A Dataset is declared once, and the engine keeps its table equal to what its shape computes.

Every dataset follows one rule:

    what changed upstream  →  which of my rows that touches (the scope)  →  recompute them  →  write the difference

A declaration has the four answers as data and pure functions; it never reads, writes or uses the clock.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model.completeness import Completeness
from sluice.model.ddl import integers
from sluice.model.fingerprint import fingerprint, of_fields
from sluice.model.lineage import Lineage
from sluice.model.specification import Specification

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from sluice.model.expectations import Expectation
    from sluice.model.scope import Scope

valid_name = re.compile(r"[a-z][a-z0-9_]{0,62}")
duration_pattern = re.compile(r"(-?\d+) (second|minute|hour|day|week)s?")
unit_microseconds = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
# Spark's timestamps end eleven times as far from today.
duration_max = 10_000_000 * unit_microseconds["day"]

Frames = Mapping[str, "DataFrame"]
Columns = Mapping[str, str | None]
# Documentation of a declaration, which nothing is computed from: no fingerprint covers it.
documentation = {"is_documentation": True}


# The columns of every bronze table.
bronze_columns: dict[str, str] = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "key": "binary",
    "value": "binary",
    "timestamp": "timestamp",
    "headers": "map<string,string>",
    "landed_at": "timestamp",
}


@dataclass(frozen=True, eq=False)
class Topic:
    """A topic of the log, and the bronze table of its records as they arrived.

    An `optional` topic has no table until the log has the topic. `comments` say what its columns mean.
    """

    name: str
    topic: str
    meaning: str = ""
    optional: bool = False
    owner: str = field(default="", metadata=documentation)
    comments: Mapping[str, str] = field(default_factory=dict, metadata=documentation)


@dataclass(frozen=True, eq=False)
class Retraction:
    """How a fold takes back input rows that were replaced or deleted, given their old images.

    `scope` gives what they touch: all that must be judged again now that they are gone. `own` gives the dataset's own
    rows without what was folded from them.
    """

    scope: "Callable[[DataFrame, Frames], DataFrame]"
    own: "Callable[[Frames, DataFrame], Frames]"


@dataclass(frozen=True, eq=False)
class Input:
    """How one upstream table feeds a dataset.

    `scope` maps the rows that changed upstream (old and new images) to the rows of the dataset that they touch: one
    column for each of `Dataset.scope_columns`. It may read the inputs, and the dataset's own table, as they are now.
    `within` narrows the input to what recomputing a scope needs. An input with `arrivals` passes to the shape only its
    new rows, and those that `within` selects again; the shape folds them into the rows it already has. Where rows of
    such an input were erased, its `retraction` says what that undoes.

    `read(rows, inputs)` is what the scope and the shape both do first with each row, so that it can be done once for
    the new ones; both take rows as they are, too.

    With `is_row_by_row` the scope of a row is its own: no other row of this input is in it, and the dataset has rows in
    it only while this input has that row.
    """

    source: "Dataset | Topic"
    scope: "Callable[[DataFrame, Frames], DataFrame]"
    within: "Callable[[DataFrame, Scope], DataFrame]"
    arrivals: bool = False
    retraction: Retraction | None = None
    read: "Callable[[DataFrame, Frames], DataFrame] | None" = None
    is_row_by_row: bool = False


@dataclass(frozen=True, eq=False)
class Output:
    """One table that a dataset writes: `grain` identifies its rows, and `scope_columns` find them again.

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

    @property
    def find_by(self) -> tuple[str, ...]:
        """The columns by whose values rows are found again, and that the order of the rows says nothing of."""
        return tuple(column for column, _ in self.scope_columns if column not in self.cluster_by[:1])

    def slice_condition(self, prefix: str = "") -> str:
        """The SQL condition that names the output's rows in a shared table."""
        return " AND ".join(f"{prefix}`{column}` = '{value}'" for column, value in self.slice) or "true"

    def condition(self, scope: "Scope", prefix: str = "") -> str:
        """The condition of a MERGE, of literals only, that rows of the table can be in the scope."""
        pairs = [*self.scope_columns, *self.prune_columns]
        return f"{self.slice_condition(prefix)} AND {scope.condition(pairs, prefix)}"


@dataclass(frozen=True, eq=False)
class Dataset:
    """One table of silver or gold, and the rule that makes it.

    `shape(rows, own)` takes the input rows of a scope and the dataset's own rows of that scope, each by name, and
    returns the scope's new rows. The last of `outputs` is the dataset's own table; its commit moves the cursor, so a
    crash before it repeats the work and changes nothing twice.

    `adjust(changes, own)` is for a shape that can do with less than its inputs' rows: it takes their change feeds and
    the dataset's own rows of a scope, and returns the scope's new rows with `_is_known`, which is false for those that
    must be shaped from their inputs; None where all must be.

    `in_range` gives the condition, in SQL, that rows of the table can hold event times from one time until before
    another, where no `event_time` of their own says so.

    `scope_of` gives the scope that rows of the table itself are in, to explain them. Rows that it had may be parts of
    others by now, as sessions that have merged: `widened` gives a scope with all of these.

    `reached` gives from computed rows how far each partition of its `topics` has come; one that is `idle_after` behind
    the others does not hold the watermark back. The watermark of what is made from a dataset waits for it if it
    `tells_time`. A history does not: an entity unchanged for a year does not show how far time has come. With
    `has_windows` its rows are those of windows; with `windows_merge` these are sessions, and with `windows_include_end`
    a row at the end of one is in it.

    With `is_sparse` its rows are few beside those that it is made from, so a scope of many of them is still little to
    recompute, and is not widened to the whole table.

    `laws` are what `sluice audit` counts beside the fates: for each law, a query for the number of rows that break it.
    `bounded` is what should be rare: a description, and a query for the number of such rows, the
    number of all rows, and a remark. `with_expectations` gives the same dataset with the row rules of a suite; None
    where no records are parsed. `columns` are those that are known when it is declared, each
    with its type where that is known, bookkeeping aside; None where they are not.

    `owner` and `comments`, the meaning of columns by name, are for people. `lineage` says what columns are made from.
    """

    name: str
    inputs: Mapping[str, Input]
    outputs: tuple[Output, ...]
    shape: "Callable[[Frames, Frames], DataFrame]"
    specification: Specification
    adjust: "Callable[[Frames, DataFrame], DataFrame | None] | None" = None
    meaning: str = ""
    keys: tuple[str, ...] = ()
    event_time: str | None = None
    in_range: "Callable[[datetime | None, datetime | None], str] | None" = None
    topics: tuple[str, ...] = field(default=())
    idle_after: str | None = None
    tells_time: bool = True
    scope_of: "Callable[[DataFrame], DataFrame]" = lambda own: own
    widened: "Callable[[DataFrame, DataFrame], DataFrame]" = lambda scope, own: scope
    reached: "Callable[[DataFrame], DataFrame] | None" = None
    has_windows: bool = False
    windows_merge: bool = False
    windows_include_end: bool = False
    is_sparse: bool = False
    laws: "Mapping[str, str]" = field(default_factory=dict)
    bounded: "Mapping[str, tuple[str, str]]" = field(default_factory=dict)
    with_expectations: "Callable[[tuple[Expectation, ...]], Dataset] | None" = None
    columns: Columns | None = None
    owner: str = field(default="", metadata=documentation)
    comments: Mapping[str, str] = field(default_factory=dict, metadata=documentation)
    lineage: "Callable[[], Lineage]" = Lineage

    def __post_init__(self) -> None:
        if not self.outputs or self.outputs[-1].table != self.name:
            raise DeclarationError(f"{self.name}: its last output must be its own table")

    @property
    def has_days(self) -> bool:
        """True when a range of event time tells which of its rows are meant."""
        return self.event_time is not None or self.in_range is not None

    @property
    def landed_in(self) -> dict[str, str]:
        """The bronze table of each of its `topics`, by the topic's name in the log."""
        sources = [each.source for each in self.inputs.values()]
        return {each.topic: each.name for each in sources if isinstance(each, Topic) and each.topic in self.topics}

    @property
    def is_fold(self) -> bool:
        """True when new rows are folded into the dataset's own, so that the scope never grows beyond them."""
        return any(each.arrivals for each in self.inputs.values())

    @property
    def keeps_time(self) -> bool:
        """True when its watermark says how far event time has come."""
        if self.reached is not None:
            return self.tells_time and self.event_time is not None
        return self.tells_time and any(source.keeps_time for source in self.upstream)

    @property
    def is_windowed(self) -> bool:
        """True when its rows may be those of windows: its own, or those of what it is made from."""
        return self.has_windows or any(source.is_windowed for source in self.upstream)

    @property
    def completeness(self) -> Completeness | None:
        """What judges whether windows are complete: rows with a `window_end` then depend on the watermark too."""
        if not self.is_windowed or self.reached is not None:
            return None
        return Completeness(self.outputs[-1].grain, self.scope_of, self.windows_merge, self.has_ends_in_windows)

    @property
    def has_ends_in_windows(self) -> bool:
        """True when a row at the very end of a window, its own or of what it is made from, may be in it."""
        return self.windows_include_end or any(source.has_ends_in_windows for source in self.upstream)

    @property
    def upstream(self) -> "list[Dataset]":
        """The datasets that it is made from."""
        return [each.source for each in self.inputs.values() if isinstance(each.source, Dataset)]

    @property
    def required(self) -> set[str]:
        """The tables that must be there before it is computed: all inputs but topics that may not exist."""
        sources = [each.source for each in self.inputs.values()]
        return {each.name for each in sources if isinstance(each, Dataset) or not each.optional}

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the declaration does, or code or a constant that it reaches; then the table is rebuilt."""
        return fingerprint(self.name, self.specification.content)

    @cached_property
    def declared(self) -> dict[str, str]:
        """The same of each field of the declaration."""
        return of_fields(self.name, self.specification.content)


def documented(dataset: Dataset, owner: str, comments: Mapping[str, str] | None) -> Dataset:
    """The dataset with its owner and what its columns mean; a DeclarationError where a column is not one of it."""
    require_comments(dataset.name, comments or {}, dataset.columns)
    for option, text in {"owner": owner, "meaning": dataset.meaning}.items():
        if not isinstance(text, str):
            raise DeclarationError(f"{dataset.name}: {option} is {text!r}; write a text")
    return replace(dataset, owner=owner, comments=dict(comments or {}))


def require_comments(name: str, comments: Mapping[str, str], columns: Collection[str] | None) -> None:
    """A DeclarationError for a comment on a column that is known not to be there, or that is no text."""
    wrong = [] if columns is None else [each for each in comments if each.split(".", 1)[0] not in columns]
    if wrong:
        raise DeclarationError(
            f"{name}: comments names {', '.join(wrong)}, which it lacks; it has {', '.join(columns or ())}"
        )
    for column, text in comments.items():
        if not isinstance(text, str):
            raise DeclarationError(f"{name}: the comment on {column} is {text!r}; write what the column means")


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


def require_lists(dataset: str, **options: object) -> None:
    """A DeclarationError where one text is given for several, as Python would take its letters for them."""
    for option, given in options.items():
        if isinstance(given, str):
            raise DeclarationError(f"{dataset}: {option} is the text '{given}'; give a list: {option}=['{given}']")


def microseconds(text: str) -> int | None:
    """The length of a duration such as '2 days', or of an offset such as '-2 hours'; None where it is neither."""
    found = duration_pattern.fullmatch(text)
    return int(found[1]) * unit_microseconds[found[2]] if found else None


def require_duration(dataset: str, option: str, text: str | None) -> None:
    """A DeclarationError where `text` is no duration such as '2 days', or one that no time can be moved by."""
    length = 0 if text is None else microseconds(text) or 0
    if text is not None and length <= 0:
        reason = f"no duration; write for example '2 days'{of_calendar(text)}"
        raise DeclarationError(f"{dataset}: {option} is '{text}', which is {reason}")
    if length > duration_max:
        raise DeclarationError(f"{dataset}: {option} is '{text}'; write at most '10000000 days'")


def of_calendar(text: str) -> str:
    """What to write instead of a unit that is not always as long."""
    unit = text.split()[-1:] if isinstance(text, str) else []
    is_unit = bool(unit) and unit[0].rstrip("s") in ("month", "quarter", "year")
    return ". A month has no fixed length: windows of months are those of calendar_window" if is_unit else ""


def require_columns(
    dataset: str, option: str, wanted: tuple[str, ...], known: tuple[str, ...], because: str = "the schema lacks"
) -> None:
    """A DeclarationError that names the columns of `option` which are none of those known, and says why."""
    missing = [name for name in wanted if name not in known]
    if missing:
        raise DeclarationError(
            f"{dataset}: {option} names {', '.join(missing)}, which {because}; it has {', '.join(known)}"
        )


def type_of(source: Dataset, column: str) -> str | None:
    """The type of a source's column, where it is known."""
    return (source.columns or {}).get(column)


def require_columns_of(dataset: str, option: str, wanted: Sequence[str], source: Dataset) -> None:
    """A DeclarationError that names the columns of `option` which a source lacks, where its columns are known."""
    if source.columns is not None:
        known = [name for name in wanted if not name.startswith("_")]
        missing = [name for name in known if name not in source.columns]
        if missing:
            raise DeclarationError(
                f"{dataset}: {option} names {', '.join(missing)}, which {source.name} lacks; "
                f"it has {', '.join(source.columns)}"
            )


def require_timestamp(dataset: str, option: str, source: Dataset, column: str) -> None:
    """A DeclarationError if a column is known to be of another type than timestamp."""
    require_columns_of(dataset, option, (column,), source)
    kind = type_of(source, column)
    if kind not in (None, "timestamp"):
        raise DeclarationError(
            f"{dataset}: {option} is {column}, and in {source.name} that is a {kind}; declare it there as timestamp"
        )


def timed(dataset: str, option: str, source: Dataset, column: str) -> "Callable[[DataFrame], DataFrame]":
    """A function that returns rows of the source as they are, or raises DeclarationError where a time is no timestamp.

    It asks where the declaration does not say the type.
    """
    is_known = type_of(source, column) is not None

    def checked(rows: "DataFrame") -> "DataFrame":
        if is_known:
            return rows
        kind = {name.casefold(): kind for name, kind in rows.dtypes}.get(column.strip("`").casefold())
        if kind is None:
            raise DeclarationError(f"{dataset}: {option} is {column}, which is no column of {source.name} by itself")
        if kind != "timestamp":
            raise DeclarationError(
                f"{dataset}: {option} is {column}, and in {source.name} that is a {kind}; CAST it there to timestamp"
            )
        return rows

    return checked


def require_same_type(dataset: str, left: tuple[Dataset, str], right: tuple[Dataset, str]) -> None:
    """A DeclarationError where two columns that are to be compared are known to be of different types."""
    kinds = [type_of(*left), type_of(*right)]
    if None in kinds or kinds[0] == kinds[1] or all(kind in integers for kind in kinds):
        return
    said = " and ".join(
        f"{source.name}.{column} is a {kind}" for (source, column), kind in zip((left, right), kinds, strict=True)
    )
    raise DeclarationError(
        f"{dataset}: {said}; values of two types may be equal and yet not the same: declare both with one type"
    )
