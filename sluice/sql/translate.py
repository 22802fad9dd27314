"""Translates one SELECT into the declaration that Python would make of it: text in, a dataset out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluice import gold, silver, windows
from sluice.model.datasets import Dataset
from sluice.model.join import column_of, require_reads
from sluice.model.query import has_aggregate, has_over, is_aggregate, nodes_of
from sluice.model.select import JoinClause, Part, Select, read
from sluice.model.sql import fold, literal_functions, other_each_time, parse, reading
from sluice.model.words import printed, tokens_of
from sluice.sql.clauses import (
    Over,
    at,
    columns_outside,
    has_unknown_function,
    is_call,
    is_window_column,
    over_of,
    quoted_name,
    same_text,
    side_of,
    window_call,
    window_columns,
    window_of,
    with_name,
)
from sluice.sql.header import Header, header_of

Sources = Callable[[str], Dataset]


def translated(name: str, text: str, place: str, sources: Sources) -> Dataset:
    """The declaration of `layer.name` that a SELECT stands for; `sources` finds the tables that it reads."""
    select = read(text, place)
    layer, _, own = name.partition(".")
    inputs = {each.name: found_source(name, each.name, each.at, sources) for each in select.tables}
    header = header_of(text)
    translator = Translator(layer, own, select, inputs, header)
    with at(select.at):
        return translator.dataset()


def found_source(name: str, source: str, place: Part, sources: Sources) -> Dataset:
    """A table that is read, which is further upstream."""
    layer, _, own = source.partition(".")
    if not own or "." in own:
        raise place.error(f"{source} names no table; write its layer and its name, such as silver.orders")
    if layer == "bronze":
        raise place.error(f"{source} has raw bytes; declare silver.events of it in Python, and read that")
    if name.startswith("silver.") and layer == "gold":
        raise place.error(f"a table of silver cannot read {source}: nothing upstream reads downstream")
    with at(place):
        return sources(source)


@dataclass
class Translator:
    """Finds which declaration a SELECT is."""

    layer: str
    name: str
    select: Select
    inputs: Mapping[str, Dataset]
    header: Header

    def dataset(self) -> Dataset:
        select = self.select
        if any(each.as_of for each in select.tables):
            if select.inner is not None:
                raise select.inner.at.error("put the join as of a time into a file of its own, and read that")
            return self.as_of()
        if select.inner is not None or select.qualify is not None:
            return self.top()
        if select.having is not None and select.groups == ():
            raise select.having.error("HAVING needs GROUP BY; write the condition in WHERE")
        if select.groups != ():
            return self.aggregate()
        declare = silver.join if self.layer == "silver" else gold.view
        time = self.header.said.get("event_time")
        return declare(self.name, inputs=self.inputs, shape=select, event_time=time, **self.documented())

    def documented(self) -> dict[str, Any]:
        said = {key: text for key, text in self.header.said.items() if key != "event_time"}
        return {**said, "comments": self.header.columns}

    @property
    def source(self) -> Dataset:
        return next(iter(self.inputs.values()))

    def require_gold(self, what: str) -> None:
        if self.layer != "gold":
            raise self.select.at.error(f"{what} is a table of gold; move the file to pipelines/gold")

    def require_no_event_time(self) -> None:
        if "event_time" in self.header.said:
            raise self.select.at.error("event_time is for joins and views; here it follows from the table that is read")

    # Aggregates

    def aggregate(self) -> Dataset:
        """GROUP BY: the groups and measures of one table."""
        self.require_gold("an aggregate")
        self.require_no_event_time()
        select = self.select
        if select.joins:
            raise select.joins[0].table.at.error("put the join into a table of its own, and GROUP BY that one")
        items = [self.plain_item(each) for each in select.items]
        groups = self.groups_of(items)
        taken = [each for each in items if each not in groups]
        group_by: list[Any] = [self.group_by(each) for each in groups]
        has_window = any(isinstance(each, windows.Window) for each in group_by)
        measures: dict[str, str] = {}
        for each in taken:
            if has_window and is_window_column(each):
                continue
            measures[self.measure(each, measures)] = each.text
        if has_window:
            self.require_window_columns(items)
        where = self.condition(select.where)
        having = self.having(items)
        return gold.aggregate(
            self.name,
            source=self.source,
            group_by=group_by,
            measures=measures,
            where=where,
            having=having,
            **self.documented(),
        )

    def plain_item(self, item: Part) -> Part:
        """A column of the result without the table's name in it, and with a name of its own."""
        found = self.select.bare(item)
        if found.text == "*" or found.text.endswith(".*"):
            raise item.error("* would change with the table that is read; name the columns")
        if found.name is None:
            raise item.error(f"give this column a name: {found.text[:60]} AS …")
        if not (found.text.startswith("window.") and is_window_column(found)):
            self.require_columns(found)
        return found

    def require_columns(self, part: Part) -> None:
        """A DeclarationError where an expression reads what the table lacks."""
        if window_call(part.text) is not None or part.text in window_columns:
            return
        source = self.source
        found = reading(part.text)
        known = None if source.columns is None else {fold(name) for name in source.columns}
        for parts in found.columns if found else ():
            if known is not None and fold(parts[0]) not in known:
                if fold(parts[0]) in literal_functions:
                    raise part.error(other_each_time(parts[0]))
                self.select.require_not_made(parts[0], part)
        with at(part):
            require_reads(f"{self.layer}.{self.name}", "this SELECT", part.text, source)

    def groups_of(self, items: Sequence[Part]) -> list[Part]:
        """What rows are grouped by, each as the column that SELECT makes of it."""
        select = self.select
        if select.groups is None:
            unclear = [each for each in items if has_unknown_function(each) and not has_aggregate(each)]
            if unclear:
                raise unclear[0].error(
                    f"whether {unclear[0].name} is a group cannot be told; name the groups in GROUP BY"
                )
            return [each for each in items if not has_aggregate(each)]
        found: list[Part] = []
        for group in select.groups:
            bare = select.bare(group)
            if bare.text.isdigit():
                place = int(bare.text)
                if not 1 <= place <= len(items):
                    raise group.error(f"GROUP BY {place}, and there are {len(items)} columns")
                found.append(items[place - 1])
            elif window_call(bare.text) is not None:
                found.append(bare)
            else:
                found.append(self.group_of(bare, items))
        if len(set(found)) < len(found):
            raise select.groups[0].error("a group is named twice")
        return found

    def group_of(self, group: Part, items: Sequence[Part]) -> Part:
        """The column of SELECT that a group is: by its expression, or by its name where no column has that."""
        known = {fold(name) for name in self.source.columns or ()}
        by_text = [each for each in items if same_text(each.text, group.text)]
        name = column_of(group.text)
        by_name = [each for each in items if name and fold(each.name or "") == fold(name)]
        found = by_text or (by_name if name and fold(name) not in known else [])
        # The same expression may be there under two names.
        found = [each for each in found if each in by_name] or found
        if not found:
            self.require_columns(group)
            raise group.error(f"select {group.text[:60]}, too: groups are found again by it")
        if len(found) > 1:
            raise group.error(f"{group.text[:60]} is selected twice")
        if has_aggregate(found[0]):
            raise group.error(f"{found[0].name} is a measure; rows cannot be grouped by it")
        return found[0]

    def group_by(self, group: Part) -> Any:
        """A group as `gold.aggregate` takes it."""
        call = window_call(group.text)
        if call is not None:
            return window_of(group, call)
        if self.source.columns is not None and group.text in self.source.columns and group.name == group.text:
            return group.text
        is_column = column_of(group.text) is not None and fold(column_of(group.text) or "") == fold(group.name or "")
        return group.text if is_column else f"{group.text} AS {quoted_name(group.name or '')}"

    def measure(self, item: Part, measures: Mapping[str, str]) -> str:
        """The name of a measure, which is not that of another one."""
        name = item.name or ""
        if name in measures:
            raise item.error(f"two columns are called {name}; give this one another name with AS")
        if has_over(item):
            raise item.error(
                "OVER cannot stand beside GROUP BY; put the OVER into a table of its own that reads this one"
            )
        if not has_aggregate(item) and not has_unknown_function(item):
            raise item.error(
                f"{name} is neither a group nor a measure: group by it, or write for example max({item.text[:40]})"
            )
        outside = columns_outside(item.text)
        if outside:
            raise item.error(
                f"{name} reads {outside[0]} outside of a measure, and each row has one; write max({outside[0]})"
            )
        return name

    def require_window_columns(self, items: Sequence[Part]) -> None:
        """The start and the end of a window are selected by the names that the table has for them."""
        names = {each.name for each in items if is_window_column(each)}
        missing = [name for name in window_columns if name not in names]
        if missing:
            raise self.select.at.error(f"also select {' and '.join(missing)}: they identify the window of a row")

    def condition(self, where: Part | None) -> str:
        if where is None:
            return ""
        found = self.select.bare(where)
        if has_aggregate(found) or has_over(found):
            raise where.error("a measure cannot stand in WHERE; write the condition in HAVING")
        self.require_columns(found)
        return found.text

    def having(self, items: Sequence[Part]) -> str:
        """The condition of groups, with each measure by the name that SELECT gives it."""
        if self.select.having is None:
            return ""
        found = self.select.bare(self.select.having)
        text = found.text
        for each in sorted(items, key=lambda each: -len(each.text)):
            if is_call(each.text):
                text = with_name(text, each.text, quoted_name(each.name or ""))
        if any(is_aggregate(node) for node in nodes_of(text)):
            raise found.error("select each measure that HAVING reads, with a name")
        return text

    # The first rows of groups

    def top(self) -> Dataset:
        """ROW_NUMBER() <= n: the first rows of each group of one table."""
        self.require_gold("a list of the first rows")
        self.require_no_event_time()
        select = self.select
        inner = select.inner or select
        if select.inner is not None and not any(has_over(each) for each in inner.items):
            raise inner.at.error(
                "what another SELECT reads is columns of one table as they are, with WHERE, or has a rank; put this "
                "one into a file of its own, and read that"
            )
        if inner.joins or inner.inner is not None:
            raise inner.at.error("put this into a table of its own, and read that")
        if inner.groups != () or inner.having is not None or (select.inner and (select.joins or select.groups != ())):
            raise inner.at.error("put the GROUP BY into a table of its own, and read the first of its rows")
        if select.inner is not None and inner.qualify is not None:
            raise inner.at.error("write QUALIFY, or a WHERE around the SELECT in brackets")
        self.select = replace(inner, qualify=select.qualify)
        limit = select.bare(select.qualify) if select.qualify else select.where and select.bare(select.where)
        if limit is None:
            raise select.at.error("a SELECT in brackets is no table; put it into a file of its own, and read that")
        ranked = [self.select.bare(each) for each in inner.items if has_over(each)]
        rank, rows, over = self.limit_of(self.select.bare(limit), ranked)
        outer = [select.bare(each) for each in select.items] if select.inner else None
        items = self.items_of(outer, inner.items, rank)
        group_by, columns = self.groups_and_columns(items, over)
        return gold.top(
            self.name,
            source=self.source,
            group_by=group_by,
            order_by=over.order,
            rows=rows,
            ties=over.ties,
            rank=rank.name or "rank",
            columns=columns,
            where=self.condition(inner.where),
            **self.documented(),
        )

    def limit_of(self, limit: Part, ranked: Sequence[Part]) -> tuple[Part, int, Over]:
        """The column that ranks rows, and how many of each group are kept."""
        from sqlglot import exp

        parsed = parse(limit.text)
        tokens = tokens_of(limit.text)
        says = "write a rank and a number: QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) <= 3"
        if not isinstance(parsed, exp.LTE | exp.LT | exp.EQ) or not isinstance(parsed.expression, exp.Literal):
            raise limit.error(says)
        number = parsed.expression.name
        if not number.isdigit() or parsed.expression.is_string:
            raise limit.error(says)
        rows = int(number) - isinstance(parsed, exp.LT)
        if isinstance(parsed, exp.EQ) and rows != 1:
            raise limit.error("the first rows of each group are kept, so write <=, or = 1")
        text = printed(limit.text, tokens[:-2])
        if has_over(Part(text)):
            same = [each for each in ranked if same_text(each.text, text)]
            if not same:
                raise limit.error("select the rank, too, with a name: the table has it as a column")
            rank = same[0]
        else:
            name = column_of(text)
            named = [each for each in ranked if fold(each.name or "") == fold(name or "")]
            if not named:
                raise limit.error(says)
            if self.select.qualify and fold(name or "") in {fold(each) for each in self.source.columns or ()}:
                raise limit.error(f"{name} is both a column and a rank here; give the rank another name")
            rank = named[0]
        if len(ranked) != 1:
            raise limit.error("one rank is supported; put others into tables of their own")
        if rank.name is None:
            raise rank.error("give the rank a name: row_number() OVER (…) AS rank")
        return rank, rows, over_of(rank)

    def items_of(self, outer: Sequence[Part] | None, inner: Sequence[Part], rank: Part) -> list[Part]:
        """The columns of the result, all in terms of the table that is read."""
        bare = [self.select.bare(each) for each in inner]
        if outer is None:
            return bare
        by_name = {fold(each.name or ""): each for each in bare if each.name}
        found: list[Part] = []
        for each in outer:
            if each.text == "*":
                found += bare
                continue
            name = column_of(each.text)
            if name is None or fold(each.name or "") != fold(name):
                raise each.error("the outer SELECT takes columns as they are; compute in a table of its own")
            is_all = any(one.text == "*" for one in bare)
            if fold(name) not in by_name and not is_all:
                raise each.error(f"the SELECT in brackets has no column {name}")
            found.append(by_name.get(fold(name), replace(each, text=each.text)))
        if not any(each.text == rank.text for each in found):
            raise self.select.at.error(f"also select {rank.name}: it is a column of the table, and part of its key")
        return found

    def groups_and_columns(self, items: Sequence[Part], over: Over) -> tuple[list[str], list[str] | None]:
        """Groups and kept columns as `gold.top` takes them."""
        has_star = any(each.text == "*" for each in items)
        groups: list[str] = []
        grouped: set[str] = set()
        for text in over.partition:
            found = [each for each in items if same_text(each.text, text)]
            column = column_of(text)
            if not found and not (has_star and column):
                raise self.select.at.error(f"select {text[:60]}, too, by which OVER partitions: groups are found by it")
            name = found[0].name if found else column
            groups.append(text if column and column == name else f"{text} AS {quoted_name(name or '')}")
            grouped |= {each.text for each in found}
        columns: list[str] = []
        for each in items:
            if each.text in ("*", over.text) or each.text in grouped:
                continue
            name = column_of(each.text)
            if name is None or fold(name) != fold(each.name or ""):
                raise each.error("the first rows keep columns as they are; compute this one in a table of its own")
            self.require_columns(each)
            columns.append(name)
        return groups, None if has_star else columns

    # As-of joins

    def as_of(self) -> Dataset:
        """FOR SYSTEM_TIME AS OF: each fact with the versions of dimensions at its event time."""
        select = self.select
        if self.layer != "silver":
            raise select.at.error("a join as of a time is a table of silver; move the file to pipelines/silver")
        self.require_no_event_time()
        if select.source.as_of is not None:
            raise select.source.as_of.error("the first table is the facts, and has no version; join the history to it")
        for clause in (select.where, select.qualify, select.having, *(select.groups or ())):
            if clause is not None:
                raise clause.error("a join as of a time keeps every fact; put this into a table that reads this one")
        facts = select.source.alias
        times = {self.time_of(each) for each in select.joins}
        if len(times) != 1:
            raise select.joins[1].table.at.error(
                "all joins AS OF in a SELECT use the same time; write the join with another time as a table of its own"
            )
        dimensions: dict[str, Any] = {}
        for each in select.joins:
            history = self.inputs[each.table.name]
            on = self.fact_columns(each, facts)
            same = set(on) == set(history.keys) and all(key == column for key, column in on.items())
            dimensions[each.table.alias] = history if same else silver.dimension(history, on=on)
        self.require_facts_and_versions(facts, dimensions)
        return silver.as_of(
            self.name,
            facts=self.inputs[select.source.name],
            event_time=times.pop(),
            dimensions=dimensions,
            **self.documented(),
        )

    def time_of(self, join: JoinClause) -> str:
        """The column of the facts at whose time a version is wanted."""
        if join.table.as_of is None:
            raise join.table.at.error(
                "a table without AS OF cannot be joined here, too; put one join into a table of its own"
            )
        if join.how != "left":
            raise join.table.at.error(
                "a fact without a version stays, so write LEFT JOIN; filter in a table that reads this one"
            )
        time = column_of(self.select.bare(join.table.as_of).text)
        if time is None:
            raise join.table.as_of.error("the time of a version is a column of the facts, such as o.placed_at")
        return time

    def fact_columns(self, join: JoinClause, facts: str) -> dict[str, str]:
        """The column of the facts for each key of a history."""
        history = self.inputs[join.table.name]
        if join.using:
            return {name: name for name in join.using}
        alias, found = join.table.alias, {}
        for pair in join.equal:
            sides = dict(filter(None, (side_of(part) for part in pair)))
            if set(map(fold, sides)) == {fold(alias), fold(facts)}:
                named = {fold(name): column for name, column in sides.items()}
                found[named[fold(alias)]] = named[fold(facts)]
        if not join.is_equal_only or len(found) != len(join.equal):
            raise join.on.error(
                f"a version is found by the keys of {history.name} alone: write "
                + " AND ".join(f"{facts}.{key} = {alias}.{key}" for key in history.keys)
            )
        missing = [key for key in history.keys if key not in found]
        if missing:
            raise join.on.error(
                f"the keys of {history.name} are {', '.join(history.keys)}; say what {missing[0]} equals"
            )
        return found

    def require_facts_and_versions(self, facts: str, dimensions: Mapping[str, Any]) -> None:
        """SELECT names all columns of the facts, and each version as one struct."""
        wanted = f"SELECT {facts}.*, {', '.join(dimensions)}"
        named = [fold(each.text) for each in self.select.items]
        known = self.inputs[self.select.source.name].columns
        expected = [f"{facts}.*", *dimensions]
        listed_out = [*(f"{facts}.{name}" for name in known or ()), *dimensions]
        bare = [*(known or ()), *dimensions]
        is_all = sorted(named) == sorted(map(fold, expected))
        if not is_all and (
            known is None or sorted(named) not in (sorted(map(fold, listed_out)), sorted(map(fold, bare)))
        ):
            raise self.select.items[0].error(
                f"a join as of a time has the columns of its facts, and each version as a struct: write {wanted}; "
                "compute from these in a table that reads this one"
            )
