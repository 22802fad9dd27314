"""A SELECT of rows, joined by key or not: which keys a change affects, and which columns tell rows apart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from sluice.errors import DeclarationError, hint
from sluice.model.datasets import Dataset, type_of
from sluice.model.ddl import is_storable
from sluice.model.join import Join, checked_on, column_of, join_dataset, keyed_dataset
from sluice.model.lineage import Lineage, Made, Source, from_sql, unique
from sluice.model.select import JoinClause, Part, Select, Table, read, without_qualifier
from sluice.model.sql import (
    backticked,
    column_parts,
    field_lacking,
    fold,
    literal_functions,
    other_each_time,
    parse,
    reading,
)
from sluice.model.words import folded, spaced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlglot import exp

# A column of an input, or an expression over one, with the name of the input.
Member = tuple[str, str]
Inputs = Mapping[str, Dataset]
# Functions whose values in a window do not depend on which of several equal rows comes first.
without_order = frozenset(["cume_dist", "dense_rank", "percent_rank", "rank"])
# Measures that the parser does not know as such.
other_measures = frozenset(
    f"{kind}{name}"
    for kind in ("", "try_")
    for name in ("any", "avg", "bool_and", "bool_or", "count_if", "every", "some", "sum")
) | {"histogram_numeric", "kurtosis", "percentile", "regr_count", "skewness"}


@dataclass(frozen=True)
class Joining:
    """An input that is joined to those before it, by a SQL condition or by columns that both have."""

    input: str
    how: str
    on: str = ""
    using: tuple[str, ...] = ()


@dataclass(frozen=True)
class Query:
    """Columns in SQL over the rows of inputs, each under its name, as far as `where` is true of them."""

    columns: Mapping[str, str]
    source: str
    joins: tuple[Joining, ...] = ()
    where: str = ""

    def rows(self, inputs: "Mapping[str, DataFrame]") -> "DataFrame":
        """The rows that the SELECT gives."""

        def joined(found: "DataFrame", each: Joining) -> "DataFrame":
            on = list(each.using) if each.using else F.expr(each.on)
            return found.join(inputs[each.input].alias(each.input), on, each.how)

        found = reduce(joined, self.joins, inputs[self.source].alias(self.source))
        kept = found.where(F.expr(self.where)) if self.where else found
        return kept.select(*[F.expr(text).alias(name) for name, text in self.columns.items()])


@dataclass(frozen=True)
class Planned:
    """A query, with what its declaration says beside it."""

    query: Query
    keys: tuple[str, ...]
    on: Mapping[str, Mapping[str, str]]
    grain: tuple[str, ...]
    columns: Mapping[str, str | None]
    lineage: Lineage
    event_time: str | None


def keyed_rows(
    name: str,
    *,
    inputs: Inputs,
    keys: Sequence[str],
    shape: "Callable[..., DataFrame] | str | Select",
    on: Mapping[str, Mapping[str, str]] | None,
    grain: Sequence[str] | None,
    meaning: str,
    event_time: str | None,
    version: int | str | None,
) -> Dataset:
    """The dataset whose rows of a key are what a function of the project, or a SELECT, makes of the inputs' rows."""
    if isinstance(shape, str | Select):
        given = {"keys": keys, "on": on, "grain": grain, "version": version}
        return query_dataset(name, inputs=inputs, select=shape, given=given, meaning=meaning, event_time=event_time)
    return join_dataset(
        name,
        inputs=inputs,
        keys=keys,
        shape=shape,
        on=on,
        grain=grain,
        meaning=meaning,
        event_time=event_time,
        version=version,
    )


def query_dataset(
    name: str,
    *,
    inputs: Inputs,
    select: str | Select,
    given: Mapping[str, object],
    meaning: str,
    event_time: str | None,
) -> Dataset:
    """The dataset of the rows that a SELECT gives; keys and grain follow from it, so none may be `given`."""
    wrong = [option for option, value in given.items() if value]
    if wrong:
        raise DeclarationError(f"{name}: its shape is SQL, from which {', '.join(wrong)} follow; leave them out")
    found = select if isinstance(select, Select) else read(select, f"{name}: shape")
    named = inputs_of(found, inputs)
    plan = planned(name, found, named)
    return keyed_dataset(
        name,
        inputs=named,
        declared=Join(
            inputs={alias: source.name for alias, source in named.items()},
            keys=plan.keys,
            grain=plan.grain,
            shape=plan.query,
            on=checked_on(name, named, plan.keys, plan.on),
        ),
        rows_of=plan.query.rows,
        meaning=meaning,
        event_time=event_time or plan.event_time,
        columns=plan.columns,
        lineage=lambda: plan.lineage,
    )


def inputs_of(select: Select, inputs: Inputs) -> dict[str, Dataset]:
    """The tables that are read, by the names under which they are read; each input is one of them."""
    if select.groups != () or select.qualify or select.inner or any(each.as_of for each in select.tables):
        raise select.at.error("a view is rows of tables, joined by key; declare the rest as gold.aggregate or gold.top")
    found: dict[str, Dataset] = {}
    for each in select.tables:
        source = inputs.get(each.name) or inputs.get(each.alias)
        if source is None or each.name not in (*inputs, source.name):
            raise each.at.error(f"{each.name} is no input; there are {', '.join(inputs)}")
        if fold(each.alias) in map(fold, found):
            raise each.at.error(f"{each.alias} is read twice; give each a name of its own: {each.name} AS other")
        found[each.alias] = source
    unread = [name for name, source in inputs.items() if source not in found.values()]
    if unread:
        raise select.at.error(f"{', '.join(unread)} is an input and is not read")
    return found


def planned(name: str, select: Select, inputs: Inputs) -> Planned:
    """What a SELECT over the inputs declares; a DeclarationError where changes of an input would not be bounded."""
    return Planning(name, select, inputs).planned()


@dataclass
class Planning:
    """Finds keys and grain of a SELECT."""

    name: str
    select: Select
    inputs: Inputs

    def planned(self) -> Planned:
        select, source = self.select, self.select.source.alias
        self.require_rows()
        for part in self.parts():
            self.require_known(part)
        items = [self.bare(each) for each in select.items]
        self.names = {each.name or "": each.text for each in items}
        # The column of the result that is the key, by what it is of each input.
        self.key_of: dict[Member, str] = {}
        keys, on = self.keys_of_joins() if select.joins else self.keys_of_rows()
        where = self.bare(select.where).text if select.where else ""
        query = Query(dict(self.names), source, tuple(self.joinings()), where)
        return Planned(
            query=query,
            keys=tuple(keys),
            on=on,
            grain=tuple(dict.fromkeys([*keys, *self.grain()])),
            columns={name: self.type_of(text) for name, text in self.names.items()},
            lineage=self.lineage(where),
            event_time=self.event_time(),
        )

    def parts(self) -> Iterator[Part]:
        yield from self.select.items
        yield from (each.on for each in self.select.joins if not each.using)
        if self.select.where is not None:
            yield self.select.where

    def bare(self, part: Part) -> Part:
        return part if self.select.joins else self.select.bare(part)

    def require_rows(self) -> None:
        """Rows are neither grouped nor ranked, each column has a name of its own, and each input an alias."""
        for part in self.select.items:
            if part.text == "*" or part.text.endswith(".*"):
                raise part.error("* would change with the table that is read; name the columns")
            if part.name is None:
                raise part.error(f"give this column a name: {part.text[:60]} AS …")
            self.require_no_aggregate(part)
        seen: dict[str, Part] = {}
        for part in self.select.items:
            if not is_storable(part.name or "") or (part.name or "").startswith("_"):
                raise part.error(
                    f"{part.name!r} cannot name a column; write letters, digits and _, beginning with a letter"
                )
            if seen.setdefault(fold(part.name or ""), part) is not part:
                raise part.error(f"two columns are called {part.name}; give this one another name with AS")
        if self.select.where is not None:
            self.require_no_aggregate(self.select.where)
            if has_over(self.select.where):
                raise self.select.where.error("OVER cannot stand in WHERE; write the condition in QUALIFY")

    def require_no_aggregate(self, part: Part) -> None:
        if has_aggregate(part):
            raise part.error("a measure of rows needs GROUP BY: say by which columns")

    def require_known(self, part: Part) -> None:
        """Every column is one of exactly one input, as far as their columns are known."""
        found = reading(part.text)
        if found is None or found.is_everything:
            raise part.error(f"the columns that '{part.text[:60]}' reads cannot be told")
        for parts in found.columns:
            if self.input_of(parts, part) is None and fold(parts[0]) in literal_functions:
                raise part.error(other_each_time(parts[0]))

    def input_of(self, parts: tuple[str, ...], part: Part) -> str | None:
        """The input that has a column; None where that is not known. A DeclarationError for no input, or several."""
        aliases = {fold(name): name for name in self.visible(part)}
        first = fold(parts[0])
        whole = fold(".".join(parts[:2]))
        for table in self.select.tables:
            if fold(table.name) == whole and len(parts) > 2 and fold(table.alias) in aliases:
                raise part.error(f"write {table.alias}.{parts[2]}")
        if first in aliases and len(parts) > 1:
            name = aliases[first]
            known = self.inputs[name].columns
            if (
                known is not None
                and not parts[1].startswith("_")
                and fold(parts[1]) not in {fold(each) for each in known}
            ):
                raise part.error(
                    f"{self.inputs[name].name} has no column {parts[1]}; {hint(parts[1], known)}"
                    f"it has {', '.join(known)}"
                )
            self.require_field(name, parts[1:], part)
            return name
        if first in {fold(each) for each in self.inputs} and len(parts) > 1:
            raise part.error(f"{parts[0]} is only compared with, or joined later; its columns are not there")
        having = [
            name for name in aliases.values() if first in {fold(each) for each in self.inputs[name].columns or ()}
        ]
        unknown = [name for name in aliases.values() if self.inputs[name].columns is None]
        shared = {fold(name) for each in self.select.joins for name in each.using}
        if len(having) + len(unknown) > 1 and first not in shared:
            raise part.error(
                f"say whose {parts[0]} this is: {' or '.join(f'{name}.{parts[0]}' for name in [*having, *unknown])}"
            )
        if not having and not unknown:
            if first in literal_functions:
                return None
            said = "; ".join(
                f"{self.inputs[name].name} has {', '.join(self.inputs[name].columns or ())}"
                for name in aliases.values()
            )
            names = [each for name in aliases.values() for each in self.inputs[name].columns or ()]
            self.select.require_not_made(parts[0], part)
            raise part.error(f"there is no column {parts[0]}; {hint(parts[0], names)}{said}")
        self.require_field((having or unknown)[0], parts, part)
        return (having or unknown)[0]

    def require_field(self, name: str, parts: tuple[str, ...], part: Part) -> None:
        """A DeclarationError where an input's column has no such field."""
        kinds = {fold(each): kind for each, kind in (self.inputs[name].columns or {}).items()}
        reason = field_lacking(parts, kinds.get(fold(parts[0])))
        if reason is not None:
            raise part.error(f"this reads {reason}")

    def visible(self, part: Part) -> list[str]:
        """The inputs whose columns an expression can read."""
        names = [self.select.source.alias]
        for each in self.select.joins:
            if each.on is part:
                return [*names, each.table.alias]
            names += [] if each.how in ("left_semi", "left_anti") else [each.table.alias]
        return names

    def nullable(self) -> set[str]:
        """The inputs whose columns are null in some rows, where nothing matched."""
        found: set[str] = set()
        seen = [self.select.source.alias]
        for each in self.select.joins:
            found |= {each.table.alias} if each.how in ("left", "full") else set()
            found |= set(seen) if each.how in ("right", "full") else set()
            seen.append(each.table.alias)
        return found

    def keys_of_rows(self) -> tuple[list[str], dict[str, dict[str, str]]]:
        """The keys of a SELECT from one table: what every OVER partitions by, or else the grain of the table."""
        alias = self.select.source.alias
        overs = [(part, node) for part in self.select.items for node in overs_of(self.bare(part).text)]
        grain = self.inputs[alias].outputs[-1].grain
        wanted = [backticked(name) for name in grain]
        if overs:
            partitions = [self.partition_of(part, node) for part, node in overs]
            wanted = [each for each in partitions[0] if all(each in others for others in partitions)]
            for part, node in overs:
                if not wanted:
                    raise part.error(
                        "OVER needs a PARTITION BY, and one column that all have: otherwise each row depends on "
                        "every other, and a change would concern the whole table"
                    )
                self.require_total(part, node, grain)
        keys = [self.output_of([(alias, each)], "rows are found again by it") for each in wanted]
        return keys, on_of(keys, [{alias: each} for each in wanted])

    def plain(self, alias: str, text: str) -> str:
        """An expression of an input; a column always with backticks and spelled as the input does."""
        column = column_of(text)
        own = {fold(name): name for name in self.inputs[alias].columns or ()}
        return backticked(own.get(fold(column), column)) if column else text

    def partition_of(self, part: Part, node: "exp.Window") -> list[str]:
        from sqlglot import exp

        for each in node.args.get("partition_by") or ():
            if not isinstance(each, exp.Column) or len(each.parts) > 1:
                raise part.error("PARTITION BY takes columns; compute others in a table of their own")
        alias = self.select.source.alias
        return [self.plain(alias, backticked(each.name)) for each in node.args.get("partition_by") or ()]

    def require_total(self, part: Part, node: "exp.Window", grain: Sequence[str]) -> None:
        """The order of an OVER says which of two rows comes first, where the function depends on that."""
        from sqlglot import exp

        order = node.args.get("order")
        spec = node.args.get("spec")
        by_rows = spec is not None and spec.args.get("kind") == "ROWS"
        inner = next((each for each in node.this.walk() if isinstance(each, exp.Func)), node.this)
        name = fold(inner.name if isinstance(inner, exp.Anonymous) else inner.sql_name())
        is_free = is_aggregate(inner) and not isinstance(
            inner,
            exp.First | exp.Last | exp.FirstValue | exp.LastValue | exp.NthValue | exp.Lag | exp.Lead | exp.AnyValue,
        )
        if name in without_order or (is_free and not by_rows):
            return
        named = {fold(each.this.name) for each in order.expressions if is_name(each.this)} if order else set()
        partition = {fold(each.name) for each in node.args.get("partition_by") or ()}
        missing = [each for each in grain if fold(each) not in named | partition]
        if missing:
            raise part.error(
                f"rows may be equal in this order, and which comes first is not stated; add {', '.join(missing)} "
                "to its ORDER BY"
            )

    def keys_of_joins(self) -> tuple[list[str], dict[str, dict[str, str]]]:
        """The keys that all inputs have, by the equalities of the joins."""
        classes: list[dict[str, str]] = []
        for at, each in enumerate(self.select.joins):
            if any(has_over(part) for part in self.select.items):
                raise each.on.error(
                    "OVER over a join is not supported; put the join into a table of its own, and read that"
                )
            alias = each.table.alias
            pairs = self.pairs_of(each)
            if not pairs:
                raise each.on.error(
                    f"no column of {alias} has to equal one of the tables before, so each row depends on every row of "
                    f"{alias}, and a change could not be bounded; join by an equality: ON a.id = {alias}.a_id"
                )
            if at == 0:
                classes = [dict([mine, other]) for mine, other in pairs]
            else:
                classes = [
                    found | dict([mine])
                    for found in classes
                    for mine, other in pairs
                    if found.get(other[0]) == other[1]
                ]
            if not classes:
                raise each.on.error(
                    f"{alias} is joined by other columns than the tables before, so there is no common key; put the "
                    "first join into a table of its own, and read that"
                )
        found: dict[str, dict[str, str]] = {}
        error: DeclarationError | None = None
        for members in classes:
            try:
                found.setdefault(self.output_of(list(members.items()), "rows are joined by it"), members)
            except DeclarationError as missing:
                error = error or missing
        if not found and error is not None:
            raise error
        self.key_of = {member: key for key, members in found.items() for member in members.items()}
        return list(found), on_of(list(found), list(found.values()))

    def pairs_of(self, each: JoinClause) -> list[tuple[Member, Member]]:
        """What a joined table has that equals what a table before has."""
        alias = each.table.alias
        if each.using:
            before = self.visible(each.on)
            owners = [name for name in before if name != alias]
            owned = [(name, self.owner(name, owners, each.on)) for name in each.using]
            return [((alias, self.plain(alias, name)), (owner, self.plain(owner, name))) for name, owner in owned]
        pairs = []
        for one, other in each.equal:
            members = [self.member(one, each.on), self.member(other, each.on)]
            if members[0] is None or members[1] is None or members[0][0] == members[1][0]:
                continue
            mine, theirs = (members[0], members[1]) if members[0][0] == alias else (members[1], members[0])
            if mine[0] == alias:
                pairs.append((mine, theirs))
        return pairs

    def owner(self, name: str, before: Sequence[str], part: Part) -> str:
        """The first table before that has a column of USING."""
        for alias in before:
            known = self.inputs[alias].columns
            if known is None or fold(name) in {fold(each) for each in known}:
                return alias
        raise part.error(f"USING names {name}, which no table before has")

    def member(self, part: Part, on: Part) -> Member | None:
        """The input that an expression is of, and the expression without that name; None: it is of several, or none."""
        found = reading(part.text)
        owners = {self.input_of(parts, on) for parts in found.columns} if found else set()
        if len(owners) != 1 or None in owners:
            return None
        alias = owners.pop()
        assert alias is not None  # noqa: S101
        return alias, self.plain(alias, without_qualifier(part.text, self.table_of(alias)))

    def table_of(self, alias: str) -> Table:
        return next(each for each in self.select.tables if each.alias == alias)

    def output_of(self, members: Sequence[Member], why: str) -> str:
        """The column of the result that has the value of equal members."""
        nullable, visible = self.nullable(), self.visible(self.select.at)
        members = [member for member in members if member[0] in visible]
        sure = [member for member in members if member[0] not in nullable]
        shared = {fold(name) for each in self.select.joins for name in each.using}
        for name, text in self.names.items():
            if any(self.is_member(text, member) for member in sure):
                return name
            if {column_of(member[1]) for member in members} & {name} and fold(text.strip("`")) in shared:
                return name
            if not sure and self.is_coalesced(text, members):
                return name
        alias, text = (sure or list(members))[0]
        said = shown(text)
        if self.select.joins:
            said = f"{alias}.{said}" if column_of(text) else f"{said} of {alias} AS …"
        if not sure:
            said = f"coalesce({', '.join(f'{alias}.{shown(text)}' for alias, text in members)}) AS …"
        raise self.select.at.error(f"select {said}, too: {why}")

    def is_member(self, text: str, member: Member) -> bool:
        alias = member[0]
        bare = self.plain(alias, without_qualifier(text, self.table_of(alias)))
        if folded(bare) != folded(member[1]):
            return False
        found = reading(text)
        return found is not None and all(self.input_of(parts, self.select.at) == alias for parts in found.columns)

    def is_coalesced(self, text: str, members: Sequence[Member]) -> bool:
        """Whether an expression is the first of all members that is not null."""
        wanted = {f"{alias}.{shown(each)}" for alias, each in members}
        found = spaced(text)
        inner = found[len("coalesce(") : -1] if fold(found).startswith("coalesce(") and found.endswith(")") else ""
        return {each.strip() for each in inner.split(",")} == wanted

    def grain(self) -> Iterator[str]:
        """The columns that tell rows of the result apart."""
        first = self.select.source.alias
        yield from self.grain_of(first)
        for each in self.select.joins:
            if each.how in ("left_semi", "left_anti"):
                continue
            fixed = {column_of(mine[1]): mine for mine, _ in self.pairs_of(each)}
            own = self.inputs[each.table.alias].outputs[-1].grain
            if each.how in ("inner", "left") and {fold(name) for name in own} <= {fold(name) for name in fixed if name}:
                continue
            yield from self.grain_of(each.table.alias)

    def grain_of(self, alias: str) -> Iterator[str]:
        for name in self.inputs[alias].outputs[-1].grain:
            if name.startswith("_"):
                raise self.select.at.error(
                    f"rows of {self.inputs[alias].name} have no columns that tell them apart; read the tables it is "
                    "made from, or group its rows"
                )
            member = (alias, self.plain(alias, backticked(name)))
            # The key of a row has the value that each of its inputs has.
            yield self.key_of.get(member) or self.column_of(member)

    def column_of(self, member: Member) -> str:
        """The column of the result that is one of an input."""
        for name, text in self.names.items():
            if self.is_member(text, member):
                return name
        alias, text = member
        said = f"{alias}.{shown(text)}" if self.select.joins else shown(text)
        raise self.select.at.error(f"also select {said}: it identifies the rows of {self.inputs[alias].name}")

    def joinings(self) -> Iterator[Joining]:
        for each in self.select.joins:
            yield Joining(each.table.alias, each.how, "" if each.using else each.on.text, each.using)

    def type_of(self, text: str) -> str | None:
        """The type of a column that is one of an input, where it is known."""
        found = parse(text)
        parts = None if found is None else column_parts_of(text)
        if not parts:
            return None
        alias = self.input_of(parts, self.select.at)
        rest = parts[1:] if alias and fold(parts[0]) == fold(alias) and len(parts) > 1 else parts
        if alias is None or len(rest) != 1:
            return None
        known = {fold(name): kind for name, kind in (self.inputs[alias].columns or {}).items()}
        return known.get(fold(rest[0]), type_of(self.inputs[alias], rest[0]))

    def event_time(self) -> str | None:
        """The column that is the event time of the first table, where rows keep it."""
        alias = self.select.source.alias
        time = self.inputs[alias].event_time
        if time is None or alias in self.nullable():
            return None
        return next(
            (
                name
                for name, text in self.names.items()
                if self.is_member(text, (alias, self.plain(alias, backticked(time))))
            ),
            None,
        )

    def lineage(self, where: str) -> Lineage:
        """What each column is made from, and which columns decide what rows there are."""
        columns = {name: Made(self.sources(text), text) for name, text in self.names.items()}
        columns = {name: replace(made, by="") if column_parts_of(made.by) else made for name, made in columns.items()}
        rows: list[Source] = []
        for each in self.select.joins:
            texts = [f"{backticked(each.table.alias)}.{backticked(name)}" for name in each.using] or [each.on.text]
            rows += [replace(found, how="join") for text in texts for found in self.sources(text, each.on)]
        rows += [replace(found, how="filter") for found in (self.sources(where) if where else ())]
        return Lineage(columns, unique(rows))

    def sources(self, text: str, part: Part | None = None) -> tuple[Source, ...]:
        """What an expression reads, of each input by the name of its table."""
        names = {each for one in self.inputs.values() for each in one.columns or ()}
        is_open = any(one.columns is None for one in self.inputs.values())
        read = from_sql(text, "", None if is_open else (*self.inputs, *names))
        found = []
        for each in read.sources:
            parts = tuple(each.column.split("."))
            alias = self.input_of(parts, part or self.select.at)
            if alias is not None:
                rest = parts[1:] if fold(parts[0]) == fold(alias) and len(parts) > 1 else parts
                own = {fold(name): name for name in self.inputs[alias].columns or ()}
                column = ".".join([own.get(fold(rest[0]), rest[0]), *rest[1:]])
                if not column.startswith("_"):
                    found.append(Source(self.inputs[alias].name, column, each.how))
        return unique(found)


def on_of(keys: Sequence[str], members: Sequence[Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """How inputs name the keys, where they do not call them the same."""
    found: dict[str, dict[str, str]] = {}
    for key, each in zip(keys, members, strict=True):
        for alias, text in each.items():
            if column_of(text) != key:
                found.setdefault(alias, {})[key] = shown(text)
    return found


def shown(text: str) -> str:
    """A column as people write it."""
    column = column_of(text)
    return column if column and column.replace("_", "a").isalnum() else text


def column_parts_of(text: str) -> tuple[str, ...] | None:
    """The parts of a column's name; None for another expression."""
    parsed = parse(text)
    return None if parsed is None else column_parts(parsed)


def is_aggregate(node: "exp.Expr") -> bool:
    from sqlglot import exp

    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and fold(node.name) in other_measures)


def is_windowed(node: "exp.Expr") -> bool:
    """Whether a function is one of an OVER."""
    from sqlglot import exp

    found = node
    while isinstance(found.parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
        found = found.parent
    return isinstance(found.parent, exp.Window) and found.arg_key == "this"


def nodes_of(text: str) -> "Iterator[exp.Expr]":
    """The nodes of an expression, as far as it can be parsed."""
    parsed = parse(text)
    return iter(()) if parsed is None else parsed.walk()


def has_aggregate(part: Part) -> bool:
    """Whether an expression needs groups: an aggregate of an OVER does not."""
    return any(is_aggregate(node) and not is_windowed(node) for node in nodes_of(part.text))


def is_name(node: "exp.Expr") -> bool:
    """Whether an expression is a column, and no field of one."""
    return len(column_parts(node) or ()) == 1


def overs_of(text: str) -> "list[exp.Window]":
    from sqlglot import exp

    return [node for node in nodes_of(text) if isinstance(node, exp.Window)]


def has_over(part: Part) -> bool:
    return bool(overs_of(part.text))
