"""Compare two states of a table: which rows differ, and in which columns."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pyspark.sql import functions as F

from sluice.quality.collected import are_equal, collected
from sluice.shapes.difference import differing_pairs, has_doubled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

examples_max = 5
numeric_types = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


class Measure(BaseModel):
    """How a column differs: in how many updated rows, and for numbers their mean in these before and after."""

    model_config = ConfigDict(frozen=True)

    column: str
    rows: int
    mean_before: float | None = None
    mean_after: float | None = None


class Example(BaseModel):
    """One row that differs, named by its key, with the values that differ; None where there is no row."""

    model_config = ConfigDict(frozen=True)

    key: dict[str, str | None]
    before: dict[str, str | None] | None
    after: dict[str, str | None] | None


class Compared(BaseModel):
    """How a table would change. Columns that begin with `_` are bookkeeping, and no difference."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    measures: tuple[Measure, ...] = ()
    columns_added: tuple[str, ...] = ()
    columns_dropped: tuple[str, ...] = ()
    columns_retyped: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()


def compare(table: str, grain: Sequence[str], before: "DataFrame", after: "DataFrame") -> Compared:
    """How `before` would become `after`, which has at most one row per `grain`.

    Where `before` has several, as its declaration had another key, whole rows are compared. A row of a key that is
    other columns, or has values of another type, is none of those before.
    """
    were, are = dict(before.dtypes), dict(after.dtypes)
    if any(not are_comparable(were.get(name), are[name]) for name in grain):
        return replaced(table, before, after)
    if has_doubled(before, grain):
        shared = [name for name in after.columns if not name.startswith("_")]
        grain = [name for name in shared if are_comparable(were.get(name), are[name])]
        if not grain:
            return replaced(table, before, after)
    compared = [name for name in after.columns if not name.startswith("_") and name not in grain]
    retyped = retyped_columns(were, are, [*grain, *compared])
    numbers = [name for name in retyped if is_number(were[name]) and is_number(are[name])]
    before, after = in_both_types(numbers, before, after)
    common = [name for name in compared if name in numbers or were.get(name) == are[name]]
    there = {"_is_there": F.lit(True)}
    pairs = differing_pairs(before.withColumns(there), after.withColumns(there), grain, [*there, *common])
    changed = pairs.localCheckpoint()
    figures = changed.agg(*figures_of(common, are, numbers)).collect()[0].asDict()
    return Compared(
        dataset=table,
        inserted=figures["inserted"],
        updated=figures["updated"],
        deleted=figures["deleted"],
        measures=tuple(
            Measure(
                column=name,
                rows=figures[f"rows {name}"],
                mean_before=figures.get(f"before {name}"),
                mean_after=figures.get(f"after {name}"),
            )
            for name in common
            if figures[f"rows {name}"]
        ),
        examples=tuple(example(row, numbers) for row in collected(changed.orderBy("key").limit(examples_max))),
    ).model_copy(update=columns_changed(were, are))


def are_comparable(kind: str | None, other: str) -> bool:
    """Whether values of two types can be one key."""
    return kind == other or (kind is not None and is_number(kind) and is_number(other))


def replaced(table: str, before: "DataFrame", after: "DataFrame") -> Compared:
    """Every row before is deleted, and every row after it is inserted."""
    columns = columns_changed(dict(before.dtypes), dict(after.dtypes))
    return Compared(dataset=table, inserted=after.count(), deleted=before.count()).model_copy(update=columns)


def columns_changed(were: Mapping[str, str], are: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Which columns are added, dropped and of another type, without bookkeeping."""
    names = [name for name in are if not name.startswith("_")]
    return {
        "columns_added": tuple(name for name in names if name not in were),
        "columns_dropped": tuple(name for name in were if not name.startswith("_") and name not in are),
        "columns_retyped": tuple(f"{name}: {were[name]} → {are[name]}" for name in retyped_columns(were, are, names)),
    }


def retyped_columns(were: Mapping[str, str], are: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Those of the columns that have another type."""
    return [name for name in names if were.get(name, are[name]) != are[name]]


def in_both_types(names: Sequence[str], before: "DataFrame", after: "DataFrame") -> "tuple[DataFrame, DataFrame]":
    """Both frames with each of the named numbers as it `was` typed before and as it `is` typed after.

    Two are equal if neither type makes another number of one: no one type holds all digits of both.
    """
    were, are = dict(before.dtypes), dict(after.dtypes)
    typed = {name: (F.col(name).try_cast(were[name]), F.col(name).try_cast(are[name])) for name in names}
    both = {name: F.struct(was.alias("was"), now.alias("is")) for name, (was, now) in typed.items()}
    return (before.withColumns(both), after.withColumns(both)) if names else (before, after)


def is_number(kind: str) -> bool:
    return kind.startswith(numeric_types)


def figures_of(columns: Sequence[str], types: Mapping[str, str], retyped: Sequence[str]) -> "list[Column]":
    """The counts of rows, of differing values by column, and the means of those before and after.

    The `retyped` numbers are as `in_both_types` has them.
    """
    is_inserted, is_deleted = F.col("before").isNull(), F.col("after").isNull()
    is_updated = ~is_inserted & ~is_deleted
    found = [
        F.count_if(is_inserted).alias("inserted"),
        F.count_if(is_updated).alias("updated"),
        F.count_if(is_deleted).alias("deleted"),
    ]
    for name in columns:
        before, after = F.col("before").getField(name), F.col("after").getField(name)
        differs = is_updated & ~before.eqNullSafe(after)
        found.append(F.count_if(differs).alias(f"rows {name}"))
        if is_number(types[name]):
            if name in retyped:
                before, after = before.getField("was"), after.getField("is")
            found += [
                F.avg(F.when(differs, value.cast("double"))).alias(f"{when} {name}")
                for when, value in (("before", before), ("after", after))
            ]
    return found


def example(row: Mapping[str, Any], retyped: Sequence[str]) -> Example:
    """A row that differs, with the values that do."""
    before, after = row["before"], row["after"]
    names = [name for name in (before or after) if name != "_is_there"]
    if before and after:
        names = [name for name in names if not are_equal(before[name], after[name])]
    keys = texts(row["key"], row["key"], retyped, "is" if after else "was")
    return Example(key=keys, before=texts(before, names, retyped, "was"), after=texts(after, names, retyped, "is"))


def texts(values: Mapping[str, Any] | None, names: Any, retyped: Sequence[str], when: str) -> Any:
    """The named values as text, of the `retyped` numbers as they were or are; None where there are none."""

    def text(name: str, value: Any) -> str | None:
        found = value[when] if name in retyped else value
        return None if found is None else str(found)

    return values and {name: text(name, values[name]) for name in names}
