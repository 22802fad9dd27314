"""Conditions of stored queries, judged and prepared: arrays of typed values, and the keys by which they are found.

Conditions are data, and no SQL is made of them: the SQL here depends on the columns that they may read, and on nothing
else. Values of a type are compared as whole numbers, as doubles, or as texts.

Of each alternative the atom is chosen that the fewest rows can be expected to fit, and the alternative is found by its
keys: the values that it names, or the blocks of a range. A row has one key for each kind of key that is in use.
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
    value_counts,
    values_max,
)
from sluice.model.condition import of_text as of_texts
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


# What an operator is: one of these, or its negation.
plain = ("in", "<", ">", "between", "is null", "starts with", "ends with", "contains")
as_plain = {
    "=": ("in", False),
    "<>": ("in", True),
    ">=": ("<", True),
    "<=": (">", True),
    "is not null": ("is null", True),
    **{name: (name, False) for name in plain},
    **{f"not {name}": (name, True) for name in ("in", "between", "starts with", "ends with", "contains")},
}
codes = {name: place for place, name in enumerate(plain)}
# Ranks of times are of units: four hours of microseconds, or days. Those of numbers have none: they grow as their
# logarithms do, and near zero thousandths are told apart.
units = {"date": "1.0D", "timestamp": "14400000000.0D", "timestamp_ntz": "14400000000.0D"}
nothing = "CAST(array() AS array<bigint>)"


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
    def described(self) -> str:
        """What is needed to read an atom of it, as a struct in SQL."""
        family, unit = families.index(self.family), units.get(self.kind, "CAST(NULL AS double)")
        return (
            f"struct({self.number} AS number, {family} AS family, {self.place} AS place, "
            f"'{self.kind}' AS kind, {unit} AS unit)"
        )

    @property
    def value(self) -> str:
        """Its value in a row, as it is compared."""
        return compared(self.kind, backticked(self.name))

    @property
    def hashed(self) -> str:
        """The number by which its value is found; null for null."""
        is_null = f"{backticked(self.name)} IS NULL"
        return self.value if self.family == "whole" else f"if({is_null}, NULL, xxhash64({self.value}))"

    @property
    def rank(self) -> str:
        """The rank of its value; null for null, and where there is no order."""
        if self.kind == "boolean":
            return "CAST(NULL AS int)"
        name = backticked(self.name)
        number = f"CAST({self.value if self.family == 'whole' else name} AS double)"
        found = rank_of_text(name) if self.kind == "string" else rank_of(number, units.get(self.kind))
        return f"if({name} IS NULL, NULL, {found})"


def compared(kind: str, value: str) -> str:
    """A value as one of its family, in which it is compared."""
    if kind in ("float", "double"):
        # Zero has no sign.
        return f"CAST({value} AS double) + 0.0D"
    if kind.startswith("decimal"):
        # Not by abs, which keeps 34 digits, and fails where those are rounded up to more than the type has.
        digits = f"lpad(translate(CAST({value} AS string), '-.', ''), 39, '0')"
        below = f"concat('0', translate({digits}, '0123456789', '9876543210'))"
        return f"if({value} < 0, {below}, concat('1', {digits}))"
    if kind == "date":
        return f"CAST(unix_date({value}) AS bigint)"
    if kind.startswith("timestamp"):
        return f"unix_micros(CAST({value} AS timestamp))"
    return value if kind == "string" else f"CAST({value} AS bigint)"


def of_text(kind: str, text: str) -> str:
    """The value that a text in a condition is, numbers as the largest of their family; null where it is none."""
    if kind == "string":
        return text
    return f"try_cast({text} AS {'bigint' if kind in integers else 'double' if kind == 'float' else kind})"


def rank_of(number: str, unit: str | None) -> str:
    """A number from 0 to `rank_most` that does not fall where numbers rise."""
    middle = (rank_most + 1) // 2
    size = f"ln(1 + 1000 * least(abs({number}), 1e300D))"
    found = f"if(isnan({number}), {rank_most}, {middle} + floor(700 * signum({number}) * {size}))"
    if unit is not None:
        found = f"{middle} + floor({number} / {unit})"
    return f"CAST(greatest(0, least({rank_most}, {found})) AS int)"


def rank_of_text(text: str, padding: str = "0") -> str:
    """The same of a text: its first 20 bits, by which texts are sorted. Those that it lacks are all 0, or (F) all 1."""
    return f"CAST(conv(rpad(substring(hex(left({text}, 3)), 1, 5), 5, '{padding}'), 16, 10) AS int)"


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

    def kinds(self, *of_families: str) -> list[str]:
        """The types of the columns of some families."""
        return list(dict.fromkeys(each.kind for each in self.columns if each.family in of_families))

    @property
    def column(self) -> str:
        """The column of an atom `a`, described; null where there is none of the name."""
        names = ", ".join(each.named for each in self.columns)
        described = ", ".join(each.described for each in self.columns)
        return f"get(array({described}), CAST(array_position(array({names}), a.column) - 1 AS int))"

    def fault(self, condition: str) -> "Column":
        """The rule that a condition breaks; null for a good one."""
        is_incomplete = f"{condition} IS NULL OR exists({condition}, c -> c IS NULL OR exists(c, a -> a IS NULL))"
        is_too_large = (
            f"size({condition}) > {alternatives_max} OR exists({condition}, c -> size(c) > {atoms_max}) "
            f"OR aggregate(flatten({condition}), 0, (n, a) -> n + coalesce(size(a.values), 0)) > {values_max}"
        )
        atom = f"struct(a.operator, a.values, coalesce(size(a.values), 0) AS count, {self.column}.kind AS kind)"
        least = by_operator({name: str(least) for name, (least, _) in value_counts.items()})
        most = by_operator({name: str(most) for name, (_, most) in value_counts.items()})
        broken = [
            "a.kind IS NULL",
            f"{least} IS NULL",
            f"a.operator IN ({listed(of_texts)}) AND a.kind <> 'string' "
            f"OR a.operator IN ({listed(of_order)}) AND a.kind = 'boolean'",
            f"NOT a.count BETWEEN {least} AND {most}",
            f"exists(a.values, v -> NOT coalesce({self.is_value}, false))",
        ]
        cases = [f"WHEN exists(t, a -> {sql}) THEN '{name}'" for name, sql in zip(faults[2:], broken, strict=True)]
        of_atoms = f"transform(array(transform(flatten({condition}), a -> {atom})), t -> CASE {' '.join(cases)} END)"
        return F.expr(
            f"CASE WHEN {is_incomplete} THEN '{faults[0]}' WHEN {is_too_large} THEN '{faults[1]}' "
            f"ELSE get({of_atoms}, 0) END"
        )

    @property
    def is_value(self) -> str:
        """The condition that a text `v` is a value of the type of an atom `a`, in the form that conditions have."""
        patterns = {kind: rf"\A(?:{form.pattern})\z" for kind in self.kinds(*families) if (form := comparable(kind))}
        cases = {
            kind: f"v RLIKE {typed(pattern, 'string')} AND {of_text(kind, 'v')} IS NOT NULL"
            for kind, pattern in patterns.items()
        }
        return by_kind(cases | ({"string": "v IS NOT NULL"} if "string" in cases else {}))

    def prepared(self, versions: "DataFrame") -> "DataFrame":
        """Versions of queries with what they are matched by: `_atoms`, with typed values, and `_keys`."""
        kept = of_atoms("struct(a.family, a.place, a.code, a.is_negated, a.whole, a.double, a.text)", "_typed")
        keys = f"flatten(transform(_ranked, (c, i) -> {keys_of('c', 'i')}))"
        return (
            versions.withColumn("_read", F.expr(of_atoms(self.read_atom, "condition")))
            .withColumn("_typed", F.expr(of_atoms(self.typed_atom, "_read")))
            .withColumn("_ranked", F.expr(of_atoms(ranked_atom, "_typed")))
            .withColumns({"_atoms": F.expr(kept), "_keys": F.expr(keys)})
            .drop("_read", "_typed", "_ranked")
        )

    @property
    def read_atom(self) -> str:
        """An atom with its column, described, and its operator as one of `plain`."""
        meant = ", ".join(
            f"struct({codes[name]} AS code, {negated} AS is_negated)" for name, negated in as_plain.values()
        )
        operator = f"get(array({meant}), CAST(array_position(array({listed(list(as_plain))}), a.operator) - 1 AS int))"
        return f"struct({self.column} AS of, {operator} AS asks, a.values)"

    @property
    def typed_atom(self) -> str:
        """The same with its values as those of a family, and as numbers that have ranks."""
        said = [f"a.of.{name}" for name in ("number", "family", "place", "kind", "unit")]
        said += ["a.asks.code", "a.asks.is_negated", "size(a.values) AS count"]
        for family in families:
            cases = {kind: compared(kind, of_text(kind, "v")) for kind in self.kinds(family)}
            said.append(f"{self.values(cases, array_types[family], 'a.of.kind')} AS {family}")
        whole = {kind: compared(kind, of_text(kind, "v")) for kind in self.kinds("whole") if kind != "boolean"}
        others = {kind: of_text(kind, "v") for kind in self.kinds("double", "text") if kind != "string"}
        cases = {kind: f"CAST({sql} AS double)" for kind, sql in (whole | others).items()}
        said.append(f"{self.values(cases, 'double', 'a.of.kind')} AS numbers")
        return f"struct({', '.join(said)})"

    def values(self, cases: Mapping[str, str], array_type: str, kind: str) -> str:
        """The values of an atom as an array; null where its column is of another type."""
        if not cases:
            return f"CAST(NULL AS array<{array_type}>)"
        return f"if({kind} IN ({listed(list(cases))}), transform(a.values, v -> {by_kind(cases, kind)}), NULL)"

    @property
    def of_rows(self) -> "dict[str, Column]":
        """What a row is compared and found by."""
        said = {
            f"_{family}": array_of([each.value for each in self.columns if each.family == family], array_types[family])
            for family in families
        }
        said["_hashes"] = array_of([each.hashed for each in self.columns], "bigint")
        said["_ranks"] = array_of([each.rank for each in self.columns], "int")
        return {name: F.expr(sql) for name, sql in said.items()}


def by_operator(cases: Mapping[str, str]) -> str:
    """What is said of the operator of an atom `a`, in SQL; null where nothing is."""
    said = " ".join(f"WHEN '{name}' THEN {sql}" for name, sql in cases.items())
    return f"CASE a.operator {said} END"


def by_kind(cases: Mapping[str, str], kind: str = "a.kind") -> str:
    """What is said of a type, in SQL; null where nothing is."""
    said = " ".join(f"WHEN '{name}' THEN {sql}" for name, sql in cases.items())
    return f"CASE {kind} {said} END"


def listed(texts: Sequence[str]) -> str:
    return ", ".join(f"'{each}'" for each in texts)


def of_atoms(atom: str, condition: str) -> str:
    """A condition with each atom `a` as something else."""
    return f"transform({condition}, c -> transform(c, a -> {atom}))"


def array_of(values: Sequence[str], kind: str) -> str:
    return f"CAST(array({', '.join(values)}) AS array<{kind}>)"


def asks(name: str) -> str:
    """The condition that an atom `a` asks one of `plain`, negated or not."""
    return f"a.code = {codes[name]}"


def rank_of_value(at: int, padding: str = "0") -> str:
    """The rank of a value of an atom `a`."""
    text, number = f"get(a.text, {at})", f"get(a.numbers, {at})"
    ranked = f"if(a.unit IS NULL, {rank_of(number, None)}, {rank_of(number, 'a.unit')})"
    return f"if(a.kind = 'string', {rank_of_text(text, padding)}, {ranked})"


first, last = rank_of_value(0), rank_of_value(1)
rises = f"(({asks('>')}) <> a.is_negated)"
is_one_sided = f"a.code IN ({codes['<']}, {codes['>']})"
is_two_sided, is_begin = f"{asks('between')} AND NOT a.is_negated", f"{asks('starts with')} AND NOT a.is_negated"
low = f"CASE WHEN {is_one_sided} THEN if({rises}, {first}, 0) WHEN {is_two_sided} OR {is_begin} THEN {first} END"
high = (
    f"CASE WHEN {is_one_sided} THEN if({rises}, {rank_most}, {first}) WHEN {is_two_sided} THEN {last} "
    f"WHEN {is_begin} THEN {rank_of_text('get(a.text, 0)', 'F')} END"
)
# An atom with the ranks between which all values lie that fit it; null where it is not of a range.
ranked_atom = f"struct(a AS atom, {low} AS low, {high} AS high)"


def keys_of(atoms: str, alternative: str) -> str:
    """The keys by which an alternative is found: those of the atom that the fewest rows can be expected to fit."""
    of_same_column = f"filter({atoms}, b -> b.atom.number = r.atom.number AND b.low IS NOT NULL)"
    lowest = f"array_max(transform({of_same_column}, b -> b.low))"
    highest = f"array_min(transform({of_same_column}, b -> b.high))"
    is_equal = f"r.atom.code = {codes['in']} AND NOT r.atom.is_negated"
    is_null = f"r.atom.code = {codes['is null']} AND NOT r.atom.is_negated"
    rows_expected = (
        f"CASE WHEN {is_equal} AND r.atom.kind <> 'boolean' THEN r.atom.count "
        f"WHEN r.low IS NOT NULL THEN 2 * {values_max} + greatest(0, {highest} - {lowest}) "
        f"WHEN {is_null} OR {is_equal} THEN 2 * {rank_most} ELSE 3 * {rank_most} END"
    )
    at = f"array_min(transform({atoms}, (r, at) -> struct({rows_expected} AS rows, at))).at"
    hashes = (
        "if(r.atom.family = 0, r.atom.whole, if(r.atom.family = 1, transform(r.atom.double, v -> xxhash64(v)), "
        "transform(r.atom.text, v -> xxhash64(v))))"
    )
    keys = (
        f"CASE WHEN {is_equal} THEN transform(array_distinct({hashes}), h -> {key(alternative, of_value, 'h')}) "
        f"WHEN r.low IS NOT NULL THEN flatten(transform(array(struct({lowest} AS low, {highest} AS high, "
        f"r.atom.number AS number)), r -> {blocks('r.low', 'r.high', alternative)})) "
        f"WHEN {is_null} THEN array({key(alternative, of_null, '0L')}) "
        f"ELSE array(struct({alternative} AS alternative, {everything} AS slot, 0L AS key)) END"
    )
    return f"flatten(transform(array(get({atoms}, {at})), r -> {keys}))"


def key(alternative: str, kind: int | str, value: str, number: str = "r.atom.number") -> str:
    slot = f"CAST({slots_of_column} * {number} + {kind} AS int)"
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
    found = f"transform({taken}, n -> {key(alternative, 's.level', 'n', 'r.number')})"
    return f"flatten(transform(transform(sequence(0, {levels}), l -> {inside}), s -> {found}))"


def counted(first: str, last: str) -> str:
    return f"if({first} <= {last}, sequence({first}, {last}), {nothing})"
