"""Find rows that follow each other as a pattern says, by key and in the order of time.

A condition is of one row and those before it, so which rows fit which variable is computed by Spark. The matcher then
goes over the rows of a key twice, and never back, whatever the pattern: from the last row to the first, to find the
earliest end of a match from each position of the pattern; then from the first row to the last, taking at each row the
position that is preferred among those from which a match ends in time.

Rows between which no match could go on, whichever it were, are apart: what is found among some of them says nothing of
the others. Such a stretch of rows is an island. The table keeps for each match the island that it is in, so that a
change touches the islands that it reaches, and no other rows of the key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.model.row_expressions import Condition, Measure, condition_of, measure_of
from sluice.model.row_pattern import Automaton, automaton_of, end
from sluice.model.scope import Scope, collect
from sluice.model.sql import backticked, columns_read
from sluice.shapes.aggregate import consolidated
from sluice.shapes.as_of import Joined, facts_within, merged, with_last_begun

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

To = Literal["past last row", "to next row", "to first", "to last"]
island_start, island_end = "_island_start", "_island_end"
wanted = "_pattern_wanted"
# Of times in microseconds: one after all others, and one before.
never, long_ago = "9223372036854775807L", "-9223372036854775807L"
# An array that grows by one is copied each time, so many rows are gathered in blocks.
block_rows = 256
thread_fields = ("start", "position", "until", "may_end", "has_it")


@dataclass(frozen=True)
class Skip:
    """Where to look for the next match after one: past its rows, or at its first or last row of a variable."""

    to: To = "past last row"
    variable: str | None = None

    @property
    def is_free(self) -> bool:
        """Whether a match begins at a row whatever matches there are before it."""
        return self.to == "to next row"


@dataclass(frozen=True)
class RowPattern:
    """A pattern of a source's rows, by `keys` and in the order of `order_by`, whose first column is a time.

    `define` gives the condition of each variable that has one, and `measures` are taken of each match.
    """

    keys: tuple[str, ...]
    order_by: tuple[str, ...]
    pattern: str
    define: Mapping[str, str]
    within: str
    measures: Mapping[str, str]
    after_match: Skip
    source_grain: tuple[str, ...]

    @property
    def time(self) -> str:
        return self.order_by[0]

    @property
    def length(self) -> "Column":
        return F.expr(f"INTERVAL {self.within}")

    @property
    def micros(self) -> str:
        """How long a match may take, in SQL."""
        return f"unix_micros(TIMESTAMP '1970-01-01 00:00:00Z' + INTERVAL {self.within})"

    @cached_property
    def automaton(self) -> Automaton:
        return automaton_of("pattern", self.pattern)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Every variable that the pattern names."""
        last = (self.automaton.ends_without,) if self.automaton.ends_without else ()
        return tuple(dict.fromkeys([*[each.variable for each in self.automaton.positions], *last]))

    @cached_property
    def conditions(self) -> dict[str, Condition]:
        """The condition of each variable; any row fits one that has none."""
        return {
            name: condition_of("pattern", name, self.define.get(name, "true"), self.variables)
            for name in self.variables
        }

    def measures_of(self, columns: Sequence[str]) -> dict[str, Measure]:
        """The measures as SQL; `columns` are those of the source."""
        found = self.automaton.variables
        return {name: measure_of("pattern", name, text, found, columns) for name, text in self.measures.items()}

    @cached_property
    def has_previous(self) -> bool:
        """Whether some condition reads rows before its own."""
        return any(each.previous for each in self.conditions.values())

    @property
    def first_columns(self) -> dict[str, str]:
        """The columns that identify the first row of a match among those of its key and time, by their names there."""
        named = (name for name in self.source_grain if name not in (*self.keys, self.time))
        return {name: f"_first{name}" if name.startswith("_") else f"first_{name}" for name in named}

    @property
    def grain(self) -> tuple[str, ...]:
        """At most one match begins at a row."""
        return (*self.keys, "match_start", *self.first_columns.values())

    @property
    def order(self) -> tuple[str, ...]:
        """A total order: of rows that are equal in the declared one, the source's grain decides."""
        return tuple(dict.fromkeys([*self.order_by, *self.source_grain]))

    def used(self, columns: Sequence[str]) -> list[str]:
        """The columns that bear on the matches."""
        texts = [each.plain for each in self.conditions.values()]
        texts += [each.plain for each in self.measures_of(columns).values()]
        return columns_read([*texts, *map(backticked, (*self.keys, *self.order))], columns)

    def touched(self, changed: "DataFrame", own: "DataFrame") -> "DataFrame":
        """The scope of changed rows: spans of time in which matches may begin otherwise, with the islands in them."""
        at = F.col(self.time)
        # The condition of a row reads rows up to `within` before it, and an absence rows up to `within` after it.
        begins = at - self.length - self.length if self.automaton.ends_without else at - self.length
        ends = at + self.length if self.has_previous else at
        if not self.after_match.is_free:
            ends = ends + self.length
        rows = consolidated(changed, self.used(changed.columns)).where(at.isNotNull())
        return self.widened(rows.select(*self.keys, begins.alias("_from"), ends.alias("_to")), own)

    def widened(self, scope: "DataFrame", own: "DataFrame") -> "DataFrame":
        """A scope of spans with the islands that lie in it by now."""
        news = collect(merged(scope.select(*self.keys, "_from", "_to"), self.keys))
        near = self.islands_near(news, own)
        if self.after_match.is_free:
            return self.with_islands(news.frame, near)
        both = news.frame.withColumn("_is_new", F.lit(True)).unionByName(near.withColumn("_is_new", F.lit(False)))
        spans = merged(both, self.keys, keep=(F.bool_or("_is_new").alias("_is_new"),))
        return self.with_islands(spans.where("_is_new").drop("_is_new"), near)

    def islands_near(self, scope: Scope, own: "DataFrame") -> "DataFrame":
        """The islands of the scope's keys that reach into its times, and perhaps some more."""
        found = scope.filter(own, [(key, key) for key in self.keys])
        if scope.count == 0:
            found = found.limit(0)
        elif {"_from", "_to"} <= set(scope.bounds):
            reaches = F.col(island_end) >= scope.bounds["_from"].least
            found = found.where(reaches & (F.col(island_start) <= scope.bounds["_to"].greatest))
        spans = [F.col(island_start).alias("_from"), F.col(island_end).alias("_to")]
        return found.select(*self.keys, *spans).distinct()

    def with_islands(self, spans: "DataFrame", islands: "DataFrame") -> "DataFrame":
        """A scope row for each span, and one for each of the islands that begin in it."""
        begin = F.col("_from").alias(island_start)
        here = islands.select(*[F.col(key).alias(f"_own_{key}") for key in self.keys], begin).distinct()
        same = [F.col(key).eqNullSafe(F.col(f"_own_{key}")) for key in self.keys]
        inside = F.col(island_start).between(F.col("_from"), F.col("_to"))
        return spans.join(here, [*same, inside], "left").select(*self.keys, island_start, "_from", "_to")

    def scope_of(self, own: "DataFrame") -> "DataFrame":
        """The scope of rows of the table itself."""
        last = island_start if self.after_match.is_free else island_end
        spans = [F.col(island_start).alias("_from"), F.col(last).alias("_to")]
        return own.select(*self.keys, island_start, *spans)

    def within_scope(self, df: "DataFrame", scope: Scope) -> "DataFrame":
        """The rows that matches of the scope can depend on, with whether one of these may begin there."""
        if scope.is_everything:
            return df.withColumn(wanted, F.lit(True))
        until = F.col("_to") + F.expr("INTERVAL 1 microsecond")
        spans = merged(scope.frame.select(*self.keys, "_from", until.alias("_to")), self.keys)
        before = self.length if self.has_previous else F.expr("INTERVAL 0 seconds")
        after = self.length + self.length if self.automaton.ends_without else self.length
        wider = spans.select(*self.keys, (F.col("_from") - before).alias("_from"), (F.col("_to") + after).alias("_to"))
        by_key = Joined(self.keys, self.keys)
        near = facts_within(df, merged(wider, self.keys), by_key, self.time)
        begun = with_last_begun(near, spans, by_key, self.time, begin="_from", said=F.struct("_to"))
        is_within = F.coalesce(F.col(self.time) < F.col("_last._to"), F.lit(False))
        return begun.select(*df.columns, is_within.alias(wanted))


def find_matches(rows: "DataFrame", rule: RowPattern) -> "DataFrame":
    """One row per match: keys, when it starts and ends, what identifies its first row, measures, and its island."""
    classified = with_matches(in_runs(rows, rule), rule)
    time = backticked(rule.time)
    first = {name: f"min_by({backticked(column)}, `_pattern_number`)" for column, name in rule.first_columns.items()}
    measures = {name: each.sql for name, each in rule.measures_of(rows.columns).items()}
    times = {"match_start": f"min({time})", "match_end": f"max({time})"}
    if rule.automaton.ends_without:
        times["window_end"] = f"max({time}) + INTERVAL {rule.within}"
    islands = {island_start: "min(`_pattern_island`)", island_end: "max(`_pattern_island_end`)"}
    if rule.after_match.is_free:
        islands = {island_start: f"min({time})", island_end: f"max({time})"}
    figures = {**times, **first, **measures, **islands}
    found = classified.groupBy(*rule.keys, "_pattern_start").agg(
        *[F.expr(sql).alias(name) for name, sql in figures.items()],
        F.expr("bool_or(`_pattern_is_void`)").alias("_is_void"),
    )
    return found.where("NOT _is_void").select(*rule.keys, *figures)


def in_runs(rows: "DataFrame", rule: RowPattern) -> "DataFrame":
    """The rows of each key in order, in runs: arrays of rows that follow each other within the time of a match."""
    names = [name for name in rule.used(rows.columns) if name not in rule.keys]
    partition = ", ".join(map(backticked, rule.keys))
    line = f"OVER (PARTITION BY {partition} ORDER BY {', '.join(map(backticked, rule.order))})"
    micros = f"unix_micros({backticked(rule.time)})"
    previous = {each.name: each for condition in rule.conditions.values() for each in condition.previous}
    numbered = rows.where(F.col(rule.time).isNotNull()).withColumns(
        {
            "_pattern_number": F.expr(f"CAST(row_number() {line} AS bigint)"),
            "_pattern_at": F.expr(micros),
            "_pattern_begins": F.expr(f"coalesce({micros} - lag({micros}) {line} >= {rule.micros}, true)"),
            # A row further back is none, so that what a row fits depends on rows that are near.
            **{
                name: F.expr(
                    f"IF({micros} - lag({micros}, {each.rows}) {line} < {rule.micros}, "
                    f"lag({each.sql}, {each.rows}) {line}, NULL)"
                )
                for name, each in previous.items()
            },
        }
    )
    fits = ", ".join(f"coalesce({each.sql}, false)" for each in rule.conditions.values())
    row = ", ".join(map(backticked, names))
    runs = numbered.withColumn("_pattern_run", F.expr(f"count_if(_pattern_begins) {line}")).select(
        *rule.keys,
        "_pattern_run",
        F.expr(
            f"named_struct('number', _pattern_number, 'at', _pattern_at, 'is_wanted', {wanted}, "
            f"'fits', array({fits}), 'own', struct({row}))"
        ).alias("_pattern_row"),
    )
    ordered = "array_sort(collect_list(_pattern_row), (one, other) -> CAST(sign(one.number - other.number) AS int))"
    return runs.groupBy(*rule.keys, "_pattern_run").agg(F.expr(ordered).alias("_pattern_rows"))


def with_matches(runs: "DataFrame", rule: RowPattern) -> "DataFrame":
    """The rows of matches, once for each match: with its start, the variable that they fit, and the island."""
    states = F.explode(F.expr(Matcher(rule).states("_pattern_rows"))).alias("_pattern_state")
    by_island = Window.partitionBy(*rule.keys, "_pattern_island")
    later = Window.partitionBy(*rule.keys).orderBy(F.desc("_pattern_number")).rowsBetween(Window.unboundedPreceding, -1)
    placed = runs.select(*rule.keys, states).select(
        *rule.keys,
        F.col("_pattern_state.row.number").alias("_pattern_number"),
        F.expr("timestamp_micros(_pattern_state.row.at)").alias("_pattern_at"),
        F.expr("timestamp_micros(_pattern_state.island)").alias("_pattern_island"),
        F.col("_pattern_state.taken").alias("_pattern_taken"),
        F.col("_pattern_state.void_after").alias("_pattern_void_after"),
        "_pattern_state.row.own.*",
    )
    if not rule.after_match.is_free:
        placed = placed.withColumn("_pattern_island_end", F.max("_pattern_at").over(by_island))
    is_void = F.lit(False)
    if rule.after_match.to == "to last":
        placed = placed.withColumn("_pattern_void_after", F.min("_pattern_void_after").over(later))
        is_first = F.col("_pattern_start") == F.col("_pattern_number")
        is_void = is_first & F.coalesce(F.col("_pattern_void_after") < F.col("_pattern_start"), F.lit(False))
    names = ", ".join("NULL" if each.is_absence else f"'{each.variable}'" for each in rule.automaton.positions)
    return (
        placed.withColumn("_pattern_taken", F.explode("_pattern_taken"))
        .withColumn("_pattern_start", F.col("_pattern_taken.start"))
        .withColumn("_pattern_variable", F.expr(f"element_at(array({names}), _pattern_taken.position)"))
        .withColumn("_pattern_is_void", is_void)
    )


@dataclass(frozen=True)
class Matcher:
    """The matcher as SQL over an array of rows: two passes, each with a state for each row."""

    rule: RowPattern

    @property
    def automaton(self) -> Automaton:
        return self.rule.automaton

    def states(self, rows: str) -> str:
        """The SQL of an array: for each row the matches that take it, and its island."""
        no_row = f"IF(true, NULL, {rows}[0])"
        no_ends = f"'ends', array_repeat({never}, {self.positions}), 'may_end', false, 'absent', {never}"
        ends = scan(f"reverse({rows})", f"named_struct('row', {no_row}, {no_ends})", self.end_of_row("state", "item"))
        begin = (
            f"named_struct('row', {no_row}, 'taken', {nothing_of(self.thread('0L', '0', '0L', 'false', 'false'))}, "
            f"'is_free', true, 'until', array_repeat({long_ago}, {self.positions}), 'island', CAST(NULL AS bigint), "
            "'void_after', CAST(NULL AS bigint))"
        )
        return scan(f"reverse({ends})", begin, self.step_of_row("state", "item"))

    @property
    def positions(self) -> int:
        return len(self.automaton.positions)

    def fits(self, row: str, number: int) -> str:
        """Whether a row can be taken at a position."""
        position = self.automaton.positions[number - 1]
        fits = f"{row}.fits[{self.rule.variables.index(position.variable)}]"
        return f"NOT {fits}" if position.is_absence else fits

    def end_of_row(self, state: str, row: str) -> str:
        """For each position the earliest end of a match that takes the row there, from those of the row after it."""
        until = f"{row}.at + {self.rule.micros}"
        may_end = f"{state}.absent >= {until}" if self.automaton.ends_without else "true"
        here = f"IF({may_end}, {row}.at, {never})" if self.automaton.ends_without else f"{row}.at"
        ends = []
        for number, follow in enumerate(self.automaton.follow, start=1):
            found = [here if each == end else f"{state}.ends[{each - 1}]" for each in follow]
            ends.append(f"IF({self.fits(row, number)}, {least('least', found, never)}, {never})")
        absent = f"{state}.absent"
        if self.automaton.ends_without:
            fits = f"{row}.fits[{self.rule.variables.index(self.automaton.ends_without)}]"
            absent = f"IF({fits}, {row}.at, {absent})"
        return f"named_struct('row', {row}, 'ends', array({', '.join(ends)}), 'may_end', {may_end}, 'absent', {absent})"

    def step_of_row(self, state: str, item: str) -> str:
        """The state after a row: matches that go on with it, one that begins with it, and the island that it is in."""
        skip = self.rule.after_match
        going = f"filter(transform({state}.taken, each -> {self.going_on('each', item)}), each -> each.position > 0)"
        takes = f"exists(going, each -> {self.takes_it('each')} AND NOT each.has_it)"
        is_free = {
            "past last row": "size(going) = 0",
            "to next row": "true",
            "to first": f"({state}.is_free OR {takes})",
            "to last": f"({state}.is_free OR exists(going, each -> {self.takes_it('each')}))",
        }[skip.to]
        kept, void_after = "going", "CAST(NULL AS bigint)"
        if skip.to == "to last":
            # Where a match takes the row that the next one is looked for at, those that began after it are void.
            taking = f"filter(going, each -> {self.takes_it('each')})"
            void_after = f"IF(size({taking}) > 0, element_at({taking}, 1).start, NULL)"
            kept = f"IF(size({taking}) > 0, filter(going, each -> each.start <= element_at({taking}, 1).start), going)"
        if skip.to == "to first":
            has_it = f"each.has_it OR {self.takes_it('each')}"
            same = self.thread("each.start", "each.position", "each.until", "each.may_end", has_it)
            kept = f"transform(going, each -> {same})"
        until = f"{item}.row.at + {self.rule.micros}"
        first = self.chosen([*self.automaton.first, end], item, until)
        begins = f"{item}.row.is_wanted AND {is_free} AND {first} > 0"
        begun = self.thread(f"{item}.row.number", first, until, f"{item}.may_end", "false")
        made = (
            f"named_struct('row', {item}.row, 'taken', IF({begins}, concat({kept}, array({begun})), {kept}), "
            f"'is_free', {is_free} AND NOT ({begins}), {self.island(state, item)}, 'void_after', {void_after})"
        )
        return bound("going", going, made)

    def thread(self, start: str, position: str, until: str, may_end: str, has_it: str) -> str:
        """A match that is going on: its first row, the position of this one, and until when it must end."""
        values = (start, position, until, may_end, has_it)
        named = [f"'{name}', {sql}" for name, sql in zip(thread_fields, values, strict=True)]
        return f"named_struct({', '.join(named)})"

    def going_on(self, thread: str, item: str) -> str:
        """A match with the next row; at no position where it ended with the row before."""
        cases = []
        for number, follow in enumerate(self.automaton.follow, start=1):
            cases.append(f"WHEN {number} THEN {self.chosen(follow, item, f'{thread}.until', f'{thread}.may_end')}")
        position = f"CASE {thread}.position {' '.join(cases)} END"
        return self.thread(f"{thread}.start", position, f"{thread}.until", f"{item}.may_end", f"{thread}.has_it")

    def chosen(self, follow: Sequence[int], item: str, until: str, may_end: str = "true") -> str:
        """The position that is preferred among those from which a match ends in time; 0 for its end."""
        conditions = [may_end if each == end else f"{item}.ends[{each - 1}] < {until}" for each in follow]
        whens = [f"WHEN {condition} THEN {each}" for condition, each in zip(conditions, follow, strict=True)]
        return f"CASE {' '.join(whens)} ELSE 0 END"

    def takes_it(self, thread: str) -> str:
        """Whether the row of a match is one of the variable to skip to."""
        positions = sorted(self.automaton.of(self.rule.after_match.variable or ""))
        return f"{thread}.position IN ({', '.join(map(str, positions))})" if positions else "false"

    def island(self, state: str, item: str) -> str:
        """Until when some match must end that is at each position, and the time at which the island begins.

        Any match counts that could be found, also one that is not preferred or begins within another.
        """
        if self.rule.after_match.is_free:
            return f"'until', {state}.until, 'island', {item}.row.at"
        before: list[list[int]] = [[] for _ in range(self.positions)]
        for number, follow in enumerate(self.automaton.follow, start=1):
            for each in follow:
                if each != end:
                    before[each - 1].append(number)
        until, crossings = [], []
        for number, those in enumerate(before, start=1):
            latest = least("greatest", [f"{state}.until[{each - 1}]" for each in those], long_ago)
            crossings += [f"{item}.ends[{number - 1}] < {latest}"] if those else []
            if number in self.automaton.first:
                begun = f"IF({item}.row.is_wanted, {item}.row.at + {self.rule.micros}, {long_ago})"
                latest = f"greatest({begun}, {latest})"
            until.append(f"IF({item}.ends[{number - 1}] < {latest}, {latest}, {long_ago})")
        # Rows of one time are never apart, so that a span of time says which rows are meant.
        is_going_on = " OR ".join([f"{item}.row.at = {state}.row.at", *crossings])
        island = f"IF({is_going_on}, {state}.island, {item}.row.at)"
        return f"'until', array({', '.join(until)}), 'island', {island}"


def least(function: str, values: Sequence[str], default: str) -> str:
    """The least or the greatest of some values, by the name of the function in SQL, which takes two or more."""
    return f"{function}({', '.join([default, *dict.fromkeys(values)])})" if values else default


def scan(items: str, begin: str, step: str) -> str:
    """The SQL of an array of states, one for each item of an array: `step` is SQL over `state` and `item`."""
    blocks = (
        f"transform(sequence(0, (size(items) - 1) DIV {block_rows}), "
        f"number -> slice(items, CAST(number * {block_rows} + 1 AS int), {block_rows}))"
    )
    moved = bound("next", step, "named_struct('state', next, 'made', concat(gathered.made, array(next)))")
    of_block = (
        f"aggregate(block, named_struct('state', blocks.state, 'made', {nothing_of(begin)}), "
        f"(gathered, item) -> {bound('state', 'gathered.state', moved)}, "
        "done -> named_struct('state', done.state, 'made', concat(blocks.made, array(done.made))))"
    )
    gathered = (
        f"flatten(aggregate({blocks}, named_struct('state', {begin}, 'made', {nothing_of(nothing_of(begin))}), "
        f"(blocks, block) -> {of_block}, blocks -> blocks.made))"
    )
    return bound("items", items, gathered)


def bound(name: str, sql: str, within: str) -> str:
    """SQL in which a name stands for an expression, so that it is computed once."""
    return f"element_at(transform(array({sql}), {name} -> {within}), 1)"


def nothing_of(sql: str) -> str:
    """The SQL of an array without items, of the type of an expression."""
    return f"slice(array({sql}), 1, 0)"
