"""Tables from tables, by key: what a function makes of all rows of a key."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sluice.errors import DeclarationError
from sluice.model.datasets import (
    Columns,
    Dataset,
    Frames,
    Input,
    Output,
    require_columns_of,
    require_lists,
    require_same_type,
    same_names,
    type_of,
)
from sluice.model.lineage import Lineage, Made, from_sql, unique
from sluice.model.plain import require_certain
from sluice.model.prepared import columns_of
from sluice.model.specification import Specification
from sluice.model.sql import backticked, require_closed, require_known
from sluice.model.values import are_one_to_one

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sluice.model.scope import Scope

column_pattern = re.compile(r"`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_]\w*)")
On = Mapping[str, str]


@dataclass(frozen=True)
class Keyed:
    """How the rows of an input name their key: the SQL for each key column, by default the column of that name."""

    keys: tuple[str, ...]
    on: On = field(default_factory=dict)

    def with_keys(self, df: "DataFrame", prefix: str = "") -> "DataFrame":
        """The rows with the columns of their key, under names with a prefix."""
        if not self.on:
            return df
        return df.withColumns({f"{prefix}{key}": F.expr(text) for key, text in self.on.items()})

    @property
    def columns(self) -> set[str | None]:
        """The columns that are the key; None for what is computed."""
        return {column_of(self.on.get(key, backticked(key))) for key in self.keys}

    def is_typed(self, source: Dataset) -> bool:
        """Whether the types of the key are known before there are rows."""
        return all(column is not None and type_of(source, column) is not None for column in self.columns)

    def touched(self, changed: "DataFrame") -> "DataFrame":
        """The keys of changed rows."""
        named = self.with_keys(changed, "_key_")
        return named.select(*[F.col(f"_key_{key}" if key in self.on else key).alias(key) for key in self.keys])

    def within(self, df: "DataFrame", scope: "Scope") -> "DataFrame":
        """The rows of a scope of keys, as they are; files are skipped by keys that are columns."""
        if scope.is_everything:
            return df
        columns = {key: column_of(self.on[key]) if key in self.on else key for key in self.keys}
        pairs = [(columns[key] or f"_key_{key}", key) for key in self.keys]
        computed = Keyed(self.keys, {key: text for key, text in self.on.items() if columns[key] is None})
        if not computed.on:
            return scope.filter(df, pairs)
        return scope.filter(computed.with_keys(df, "_key_"), pairs).select(*[F.col(f"`{name}`") for name in df.columns])


def column_of(sql: str) -> str | None:
    """The column that an expression is; None where it computes something."""
    found = column_pattern.fullmatch(sql.strip())
    return (found["quoted"] or found["plain"]) if found else None


def by_key(source: Dataset, keys: Sequence[str], on: On | None = None, *, is_only_input: bool = False) -> Input:
    """An input whose rows bear on the dataset's rows of the same keys."""
    keyed = Keyed(tuple(keys), dict(on or {}))
    return Input(
        source,
        scope=lambda changed, inputs: keyed.touched(changed),
        within=keyed.within,
        is_row_by_row=is_only_input and keyed.columns == set(source.outputs[-1].grain),
    )


@dataclass(frozen=True)
class Join(Specification):
    """What a function of the project, or a SELECT, makes of the rows of a key."""

    kind, version = "join", 2
    inputs: Mapping[str, str]
    keys: tuple[str, ...]
    grain: tuple[str, ...]
    shape: Any
    on: Mapping[str, On] = field(default_factory=dict)
    code_version: int | str | None = None

    @property
    def content(self) -> Mapping[str, Any]:
        """With the `version` that the project gives its code."""
        return {"version" if name == "code_version" else name: value for name, value in super().content.items()}


def join_dataset(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    keys: Sequence[str],
    shape: "Callable[..., DataFrame]",
    on: Mapping[str, On] | None,
    grain: Sequence[str] | None,
    meaning: str,
    event_time: str | None,
    version: int | str | None,
) -> Dataset:
    """The dataset whose rows of a key are what `shape` makes of all input rows of that key."""
    require_lists(name, keys=keys, grain=grain)
    wanted = set(inspect.signature(shape).parameters)
    if wanted != set(inputs):
        raise DeclarationError(
            f"{name}: its shape takes {', '.join(sorted(wanted))}, but its inputs are {', '.join(sorted(inputs))}"
        )
    named = checked_on(name, inputs, tuple(keys), on or {})
    return keyed_dataset(
        name,
        inputs=inputs,
        declared=Join(
            inputs={alias: source.name for alias, source in inputs.items()},
            keys=tuple(keys),
            grain=tuple(grain or keys),
            shape=shape,
            on=named,
            code_version=version,
        ),
        rows_of=lambda rows: shape(
            **{alias: Keyed(tuple(keys), named.get(alias, {})).with_keys(df) for alias, df in rows.items()}
        ),
        meaning=meaning,
        event_time=event_time,
        lineage=lambda: lineage_of(inputs, tuple(keys), named, shape),
    )


def keyed_dataset(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    declared: Join,
    rows_of: "Callable[[Frames], DataFrame]",
    meaning: str,
    event_time: str | None,
    lineage: Callable[[], Lineage],
    columns: Columns | None = None,
) -> Dataset:
    """The dataset whose rows of a key are what `rows_of` makes of all input rows of that key."""
    compared = compared_by(name, inputs, declared.keys, declared.on)
    return Dataset(
        name=name,
        inputs={
            alias: by_key(source, declared.keys, declared.on.get(alias), is_only_input=len(inputs) == 1)
            for alias, source in inputs.items()
        },
        outputs=(
            Output(
                name,
                grain=declared.grain,
                scope_columns=same_names(declared.keys),
                cluster_by=(event_time,) if event_time else declared.keys,
            ),
        ),
        shape=lambda rows, own: rows_of(compared(rows)),
        specification=declared,
        meaning=meaning,
        keys=declared.grain,
        event_time=event_time,
        columns=columns,
        scope_of=lambda own: own.select(*declared.keys),
        lineage=lineage,
    )


def lineage_of(
    inputs: Mapping[str, Dataset], keys: tuple[str, ...], on: Mapping[str, On], shape: Callable[..., Any]
) -> Lineage:
    """The lineage of the keys; what the function makes of the other columns cannot be followed."""
    columns = {
        key: [
            from_sql(on.get(alias, {}).get(key, backticked(key)), source.name, source.columns)
            for alias, source in inputs.items()
        ]
        for key in keys
    }
    made = {key: Made(unique(each for one in found for each in one.sources)) for key, found in columns.items()}
    rows = [replace(each, how="join") for one in made.values() for each in one.sources] if len(inputs) > 1 else []
    tables = tuple(dict.fromkeys(source.name for source in inputs.values()))
    name = getattr(shape, "__qualname__", type(shape).__qualname__).replace("<lambda>", "a lambda")
    return Lineage(made, unique(rows), by=name, inputs=tables)


def checked_on(
    name: str, inputs: Mapping[str, Dataset], keys: tuple[str, ...], on: Mapping[str, On]
) -> dict[str, dict[str, str]]:
    """How inputs name the keys, by input; a DeclarationError names what cannot be found, or cannot be compared."""
    unknown = [alias for alias in on if alias not in inputs]
    if unknown:
        raise DeclarationError(f"{name}: on names {', '.join(unknown)}; its inputs are {', '.join(inputs)}")
    for alias, texts in on.items():
        wrong = [key for key in texts if key not in keys]
        if wrong:
            raise DeclarationError(f"{name}: on['{alias}'] names {', '.join(wrong)}; the keys are {', '.join(keys)}")
    for key in keys:
        columns = [key_column(name, alias, source, key, on.get(alias, {})) for alias, source in inputs.items()]
        require_one_type(name, [each for each in columns if each is not None])
    return {alias: dict(texts) for alias, texts in on.items() if texts}


def key_column(name: str, alias: str, source: Dataset, key: str, on: On) -> tuple[Dataset, str] | None:
    """The column that is an input's key, None where it is computed; a DeclarationError where the source lacks it."""
    option = f"on['{alias}']['{key}']" if key in on else "keys"
    column = column_of(on[key]) if key in on else key
    if column is None:
        require_reads(name, option, on[key], source)
        return None
    if source.columns is not None and column not in source.columns and not column.startswith("_"):
        raise DeclarationError(
            f"{name}: {source.name} has no column {column}; say what its {key} is: "
            f"on={{'{alias}': {{'{key}': '…'}}}}. Its columns are {', '.join(source.columns)}"
        )
    return source, column


def require_common_keys(dataset: str, keys: Sequence[str], sources: Sequence[Dataset]) -> None:
    """A DeclarationError where a source is known to lack a key, or to have it as another type than the others."""
    for source in sources:
        require_columns_of(dataset, "keys", keys, source)
    for key in keys:
        require_one_type(dataset, [(source, key) for source in sources])


def require_one_type(dataset: str, columns: Sequence[tuple[Dataset, str]]) -> None:
    """A DeclarationError where columns that are compared are known to be of different types."""
    for left, right in combinations(columns, 2):
        require_same_type(dataset, left, right)


def compared_by(
    dataset: str, inputs: Mapping[str, Dataset], keys: tuple[str, ...], on: Mapping[str, On] | None = None
) -> Callable[[Frames], Frames]:
    """A function that returns the rows of the inputs as they are, or raises DeclarationError for keys of two types.

    It asks where the declarations do not say the types.
    """
    keyed = {alias: Keyed(keys, (on or {}).get(alias, {})) for alias in inputs}
    is_known = len(inputs) == 1 or all(each.is_typed(inputs[alias]) for alias, each in keyed.items())
    fitting: set[tuple[str, ...]] = set()

    def compared(rows: Frames) -> Frames:
        if not is_known:
            kinds = tuple(columns_of(rows[alias]) for alias in keyed)
            if kinds not in fitting:
                require_one_to_one(dataset, {alias: each.touched(rows[alias]) for alias, each in keyed.items()}, keys)
                fitting.add(kinds)
        return rows

    return compared


def require_one_to_one(dataset: str, inputs: Frames, keys: Sequence[str]) -> None:
    """A DeclarationError where inputs have a key as types of which one value can equal several of the other.

    Of rows that are equal to a changed one and named otherwise, such as '01' and '1', none would be found.
    """
    kinds = {alias: dict(df.dtypes) for alias, df in inputs.items()}
    for key in keys:
        for (left, one), (right, other) in combinations(kinds.items(), 2):
            if not are_one_to_one(one[key], other[key]):
                raise DeclarationError(
                    f"{dataset}: the key {key} has the type {one[key]} in {left} and {other[key]} in {right}; several "
                    "values of one type can equal one of the other: CAST both to one type"
                )


def require_reads(dataset: str, option: str, text: str, source: Dataset) -> None:
    """A DeclarationError where SQL over the source's rows cannot be read, or may have several values for them."""
    require_has(dataset, option, text, source)
    require_certain(dataset, option, text)


def require_has(dataset: str, option: str, text: str, source: Dataset) -> None:
    """A DeclarationError where SQL over the source's rows cannot be read, or reads a column that it lacks."""
    if source.columns is None:
        require_closed(dataset, option, text)
    else:
        require_known(dataset, option, text, source.columns)
