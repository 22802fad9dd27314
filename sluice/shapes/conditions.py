"""Conditions of stored queries, judged and prepared: arrays of typed values, and the keys by which they are found.

Conditions are data, and no SQL is made of them: the SQL here depends on the columns that they may read, and on nothing
else. Values of a type are compared as whole numbers, as doubles, or as texts.

Of each alternative the atom is chosen that the fewest rows can be expected to fit, and its keys lead to the alternative:
the values that it names, or the blocks of a range. A row has one key for each kind of key that is in use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.model.condition import (
    alternatives_max,
    atoms_max,
    comparable,
    of_order,
    of_text,
    operators,
    value_counts,
    values_max,
)
from sluice.model.ddl import integers
from sluice.model.scope import typed
from sluice.model.sql import backticked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

condition_type = "array<array<struct<column: string, operator: string, values: array<string>>>>"
# The rules that the record of a query can break, in the order in which they are looked for.
faults = (
    "condition_missing",
    "condition_too_large",
    "condition_of_unknown_column",
    "condition_of_unknown_operator",
    "condition_with_wrong_operator",
    "condition_with_wrong_number_of_values",
    "condition_with_wrong_value",
)
# Values of a column have ranks from 0 to this, which never fall where the values rise. Blocks of ranks have 4 ^ level.
rank_most = 2**20 - 1
levels = 10
# A key is of a slot: of a column, and of what kind. Every row has the key of the slot `everything`.
of_value, of_null, everything, slots_of_column = 15, 14, -1, 16
families = ("whole", "double", "text")
array_types = {"whole": "bigint", "double": "double", "text": "string"}


@dataclass(frozen=True)
class ReadColumn:
    """A column that queries can read: its number, and its place among those of its family."""

    name: str
    kind: str
    number: int
    family: str
    place: int

    @property
    def named(self) -> str:
        """Its name as a text in SQL."""
        return typed(self.name, "string")

    @property
    def is_boolean(self) -> bool:
        return self.kind == "boolean"

    @property
    def compared_as(self) -> str:
        """The type that its values are read as in a condition: numbers are compared as the largest of their family."""
        return "bigint" if self.kind in integers else "double" if self.kind == "float" else self.kind

    def of_text(self, text: str) -> str:
        """The value that a text in a condition is; null where it is none."""
        form = comparable(self.kind)
        pattern = typed(rf"\A(?:{form.pattern if form else ''})\z", "string")
        return (
            text
            if self.kind == "string"
            else f"if({text} RLIKE {pattern}, try_cast({text} AS {self.compared_as}), NULL)"
        )

    def comparable(self, value: str) -> str:
        """A value as one of its family, in which it is compared."""
        if self.family == "double":
            # Zero has no sign.
            return f"CAST({value} AS double) + 0.0D"
        if self.kind.startswith("decimal"):
            digits = f"lpad(replace(CAST(abs({value}) AS string), '.', ''), 39, '0')"
            below = f"concat('0', translate({digits}, '0123456789', '9876543210'))"
            return f"if({value} < 0, {below}, concat('1', {digits}))"
        if self.kind == "date":
            return f"CAST(unix_date({value}) AS bigint)"
        if self.kind.startswith("timestamp"):
            return f"unix_micros(CAST({value} AS timestamp))"
        return value if self.family == "text" else f"CAST({value} AS bigint)"

    def hashed(self, value: str) -> str:
        """A number by which equal values are found; others may have it too."""
        found = self.comparable(value)
        return found if self.family == "whole" else f"xxhash64({found})"

    def hashed_or_null(self, value: str) -> str:
        return f"if({value} IS NULL, NULL, {self.hashed(value)})"

    def rank(self, value: str, padding: str = "0") -> str:
        """A number from 0 to `rank_most` that does not fall where values rise."""
        if self.kind == "string":
            digits = f"rpad(substring(hex(left({value}, 3)), 1, 5), 5, '{padding}')"
            return f"CAST(conv({digits}, 16, 10) AS int)"
        middle = (rank_most + 1) // 2
        if self.kind == "date":
            found = f"{middle} + unix_date({value})"
        elif self.kind.startswith("timestamp"):
            found = f"{middle} + floor({self.comparable(value)} / 14400000000)"
        else:
            number = f"CAST({value} AS {'bigint' if self.is_boolean else 'double'})"
            size = f"ln(1 + 1000 * least(abs({number}), 1e300D))"
            found = f"if(isnan({number}), {rank_most}, {middle} + floor(700 * signum({number}) * {size}))"
        return f"CAST(greatest(0, least({rank_most}, {found})) AS int)"


@dataclass(frozen=True)
class Conditions:
    """What stored conditions are judged and prepared by: the columns that they may read, with their types."""

    reads: tuple[tuple[str, str], ...]

    @cached_property
    def columns(self) -> tuple[ReadColumn, ...]:
        places = dict.fromkeys(families, 0)
        found = []
        for number, (name, kind) in enumerate(self.reads):
            form = comparable(kind)
            family = form.family if form else "text"
            found.append(ReadColumn(name, kind, number, family, places[family]))
            places[family] += 1
        return tuple(found)

    def of_column(self, cases: Mapping[ReadColumn, str], column: str = "a.column") -> str:
        """What is said of the column that is named, in SQL; null where nothing is."""
        said = " ".join(f"WHEN {each.named} THEN {sql}" for each, sql in cases.items())
        return f"CASE {column} {said} END" if said else "NULL"

    def fault(self, condition: str) -> "Column":
        """The rule that a condition breaks; null for a good one."""
        is_text = self.of_column({each: str(each.kind == "string").lower() for each in self.columns})
        is_boolean = self.of_column({each: str(each.is_boolean).lower() for each in self.columns})
        value = self.of_column({each: f"{each.of_text('v')} IS NOT NULL" for each in self.columns})
        least = by_operator({name: str(least) for name, (least, _) in value_counts.items()})
        most = by_operator({name: str(most) for name, (_, most) in value_counts.items()})
        count = "coalesce(size(a.values), 0)"
        broken = [
            f"{condition} IS NULL OR exists({condition}, c -> c IS NULL OR exists(c, a -> a IS NULL))",
            f"size({condition}) > {alternatives_max} OR exists({condition}, c -> size(c) > {atoms_max}) "
            f"OR aggregate(flatten({condition}), 0, (n, a) -> n + {count}) > {values_max}",
            of_any_atom(condition, f"{is_text} IS NULL"),
            of_any_atom(condition, f"{least} IS NULL"),
            of_any_atom(
                condition,
                f"a.operator IN ({listed(of_text)}) AND NOT {is_text} OR a.operator IN ({listed(of_order)}) AND {is_boolean}",
            ),
            of_any_atom(condition, f"NOT {count} BETWEEN {least} AND {most}"),
            of_any_atom(condition, f"exists(a.values, v -> NOT coalesce({value}, false))"),
        ]
        cases = [f"WHEN {sql} THEN '{name}'" for name, sql in zip(faults, broken, strict=True)]
        return F.expr(f"CASE {' '.join(cases)} END")

    def prepared(self, versions: "DataFrame") -> "DataFrame":
        """Versions of queries with what they are matched by: `_atoms`, with typed values, and `_keys`."""
        ready = versions.withColumn("_typed", F.expr(f"transform(condition, c -> transform(c, a -> {self.atom()}))"))
        kept = "transform(_typed, c -> transform(c, a -> struct(a.family, a.place, a.operator, a.whole, a.double, a.text)))"
        keys = f"flatten(transform(_typed, (c, i) -> {keys_of('c', 'i')}))"
        return ready.withColumns({"_atoms": F.expr(kept), "_keys": F.expr(keys)}).drop("_typed")

    def atom(self) -> str:
        """An atom `a` with its values as those of a family, and by what it can be found."""
        arrays = [
            f"{self.values(family, {each: each.comparable(each.of_text('v')) for each in self.columns if each.family == family})} AS {family}"
            for family in families
        ]
        hashes = self.of_column(
            {each: f"transform(a.values, v -> {each.hashed(each.of_text('v'))})" for each in self.columns}
        )
        numbers = {
            "number": {each: str(each.number) for each in self.columns},
            "family": {each: str(families.index(each.family)) for each in self.columns},
            "place": {each: str(each.place) for each in self.columns},
            "is_boolean": {each: str(each.is_boolean).lower() for each in self.columns},
            "low": {each: self.bound(each, is_low=True) for each in self.columns if not each.is_boolean},
            "high": {each: self.bound(each, is_low=False) for each in self.columns if not each.is_boolean},
        }
        said = [f"{self.of_column(cases)} AS {name}" for name, cases in numbers.items()]
        operator = f"array_position(array({listed(operators)}), a.operator) AS operator"
        return f"struct({', '.join([*said, operator, 'size(a.values) AS count', *arrays, f'{hashes} AS hashes'])})"

    def values(self, family: str, cases: Mapping[ReadColumn, str]) -> str:
        found = self.of_column({each: f"transform(a.values, v -> {sql})" for each, sql in cases.items()})
        return f"CAST({found} AS array<{array_types[family]}>)"

    def bound(self, column: ReadColumn, *, is_low: bool) -> str:
        """The least or the greatest rank of values that fit an atom `a` of a range; null for other atoms."""
        first, last = (column.rank(column.of_text(f"get(a.values, {at})")) for at in (0, 1))
        cases = {"<": "0", "<=": "0", ">": first, ">=": first, "between": first}
        if not is_low:
            most = str(rank_most)
            cases = {"<": first, "<=": first, ">": most, ">=": most, "between": last}
        if column.kind == "string":
            cases["starts with"] = column.rank("get(a.values, 0)", "0" if is_low else "F")
        return by_operator(cases)

    def of_rows(self, rows: "DataFrame") -> "dict[str, Column]":
        """What a row is compared and found by."""
        named = {each: backticked(each.name) for each in self.columns}
        said = {
            f"_{family}": array_of(
                [each.comparable(name) for each, name in named.items() if each.family == family], array_types[family]
            )
            for family in families
        }
        said["_hashes"] = array_of([each.hashed_or_null(name) for each, name in named.items()], "bigint")
        said["_ranks"] = array_of(
            [f"if({name} IS NULL, NULL, {each.rank(name)})" for each, name in named.items()], "int"
        )
        return {name: F.expr(sql) for name, sql in said.items()}


codes = {name: place for place, name in enumerate(operators, 1)}
nothing = "CAST(array() AS array<bigint>)"


def by_operator(cases: Mapping[str, str]) -> str:
    """What is said of the operator of an atom `a`, in SQL; null where nothing is."""
    said = " ".join(f"WHEN '{name}' THEN {sql}" for name, sql in cases.items())
    return f"CASE a.operator {said} END"


def listed(texts: Sequence[str]) -> str:
    return ", ".join(f"'{each}'" for each in texts)


def is_one_of(*names: str) -> str:
    """The condition that the operator of a prepared atom `a` is one of these."""
    return f"a.operator IN ({', '.join(str(codes[name]) for name in names)})"


def of_any_atom(condition: str, sql: str) -> str:
    return f"exists({condition}, c -> exists(c, a -> {sql}))"


def array_of(values: Sequence[str], kind: str) -> str:
    return f"CAST(array({', '.join(values)}) AS array<{kind}>)"


def keys_of(atoms: str, alternative: str) -> str:
    """The keys by which an alternative is found: those of the atom that the fewest rows can be expected to fit."""
    of_same_column = f"filter({atoms}, b -> b.number = a.number AND b.low IS NOT NULL)"
    low = f"array_max(transform({of_same_column}, b -> b.low))"
    high = f"array_min(transform({of_same_column}, b -> b.high))"
    is_equal = is_one_of("=", "in")
    rows_expected = (
        f"CASE WHEN {is_equal} AND NOT a.is_boolean THEN a.count "
        f"WHEN a.low IS NOT NULL THEN 2 * {values_max} + greatest(0, {high} - {low}) "
        f"WHEN {is_one_of('is null')} OR {is_equal} THEN 2 * {rank_most} ELSE 3 * {rank_most} END"
    )
    at = f"array_min(transform({atoms}, (a, at) -> struct({rows_expected} AS rows, at))).at"
    keys = (
        f"CASE WHEN {is_equal} THEN transform(array_distinct(a.hashes), h -> {key(alternative, of_value, 'h')}) "
        f"WHEN a.low IS NOT NULL THEN flatten(transform(array(struct({low} AS low, {high} AS high)), "
        f"r -> {blocks('r.low', 'r.high', alternative)})) "
        f"WHEN {is_one_of('is null')} THEN array({key(alternative, of_null, '0L')}) "
        f"ELSE array(struct({alternative} AS alternative, {everything} AS slot, 0L AS key)) END"
    )
    return f"flatten(transform(array(get({atoms}, {at})), a -> {keys}))"


def key(alternative: str, kind: int | str, value: str) -> str:
    slot = f"CAST({slots_of_column} * a.number + {kind} AS int)"
    return f"struct({alternative} AS alternative, {slot} AS slot, CAST({value} AS bigint) AS key)"


def blocks(low: str, high: str, alternative: str) -> str:
    """The keys of the fewest blocks that hold all ranks from `low` to `high` and no others: of each level at most six.

    A block of a level is four of the level below, and one is taken where the block around it would be too much.
    """
    width = "shiftleft(1L, 2 * l)"
    inside = (
        f"named_struct('level', l, 'first', ({low} + {width} - 1) div {width}, 'last', ({high} + 1) div {width} - 1)"
    )
    before, behind = "(s.first + 3) div 4 * 4", "(s.last + 1) div 4 * 4"
    taken = (
        f"CASE WHEN s.first > s.last THEN {nothing} "
        f"WHEN s.level = {levels} OR {before} >= {behind} THEN sequence(s.first, s.last) "
        f"ELSE concat({counted('s.first', f'{before} - 1')}, {counted(behind, 's.last')}) END"
    )
    found = f"transform({taken}, n -> {key(alternative, 's.level', 'n')})"
    return f"flatten(transform(transform(sequence(0, {levels}), l -> {inside}), s -> {found}))"


def counted(first: str, last: str) -> str:
    return f"if({first} <= {last}, sequence({first}, {last}), {nothing})"
