"""Match rows with stored queries: each row meets the queries that it can fit, and no others.

A row is looked up by its own values, one key for each kind of key that is in use, and what it finds is tested whole. So
what a row costs depends on the queries that it nearly fits.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from sluice.errors import DeclarationError
from sluice.model.scope import Scope, collect
from sluice.model.specification import Specification
from sluice.model.sql import backticked
from sluice.shapes.as_of import changed_intervals
from sluice.shapes.conditions import Conditions, codes, everything, families, of_null, of_value, slots_of_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What a query of which the past is asked matches from: before any time that a record can have.
since_ever = "timestamp_micros(-3000000000000000000)"


@dataclass(frozen=True)
class StandingQueries:
    """How rows are matched: the columns that queries read, and those that a match has.

    `grain` and `time` are those of the rows; `columns` are taken from the row and `attributes` from the query.
    """

    reads: tuple[tuple[str, str], ...]
    grain: tuple[str, ...]
    time: str
    columns: tuple[str, ...]
    attributes: tuple[str, ...]

    @property
    def located(self) -> tuple[str, ...]:
        """The columns that say which match it is, and when."""
        return tuple(dict.fromkeys(["query_id", *self.grain, self.time]))

    @property
    def of_row(self) -> tuple[str, ...]:
        """The columns of a match that are those of the row."""
        return tuple(dict.fromkeys([*self.grain, self.time, *self.columns]))

    @property
    def result(self) -> tuple[str, ...]:
        return ("query_id", *self.of_row, *self.attributes, "query_valid_from")


@dataclass(frozen=True)
class Standing(Specification):
    """The matches of stored queries among a source's rows."""

    kind, version = "standing queries", 1
    source: str
    queries: str
    rule: StandingQueries


def find_matches(rows: "DataFrame", versions: "DataFrame", rule: StandingQueries) -> "DataFrame":
    """One row for each query that is true of a row, by the version that is in effect at the row's time.

    Rows with `_query_id` are asked for that query alone.
    """
    require_types(rows, rule)
    is_asked = "_query_id" in rows.columns
    ready = rows.withColumns(Conditions(rule.reads).of_rows).select(
        *[F.col(backticked(name)) for name in rule.of_row],
        F.col(backticked(rule.time)).alias("_at"),
        *[f"_{family}" for family in families],
        *(["_query_id"] if is_asked else ["_hashes", "_ranks"]),
    )
    asked = versions.select(
        F.col("query_id").alias("_query_id"),
        F.col("valid_from").alias("query_valid_from"),
        F.col("valid_to").alias("_valid_to"),
        F.col("matches_from").alias("_matches_from"),
        *[backticked(name) for name in rule.attributes],
        "_atoms",
    )
    candidates = ready if is_asked else nearly_fitting(ready, versions)
    by = ["_query_id"] if is_asked else ["_query_id", "query_valid_from"]
    met = candidates.join(F.broadcast(asked), by).where(is_in_effect)
    found = met.where(f"exists(_atoms, c -> {all_true('c')})" if is_asked else is_first_to_fit)
    return found.withColumnRenamed("_query_id", "query_id").select(*[backticked(name) for name in rule.result])


def require_types(rows: "DataFrame", rule: StandingQueries) -> None:
    """A DeclarationError where a column is of another type than queries read it as: it would be compared wrongly."""
    found = dict(rows.dtypes)
    for name, kind in rule.reads:
        if found[name] != kind:
            raise DeclarationError(f"Stored queries read {name} as a {kind}, and it is a {found[name]}: change schema.")


def nearly_fitting(ready: "DataFrame", versions: "DataFrame") -> "DataFrame":
    """Each row with the alternatives of queries whose key it has."""
    index = versions.select(
        F.col("query_id").alias("_query_id"), F.col("valid_from").alias("query_valid_from"), F.inline("_keys")
    ).withColumnsRenamed({"alternative": "_alternative", "slot": "_slot", "key": "_key"})
    slots = index.agg(F.collect_set("_slot").alias("_slots"))
    probes = ready.crossJoin(F.broadcast(slots)).select("*", F.inline(F.expr(looked_up())))
    return probes.drop("_slots", "_hashes", "_ranks").join(F.broadcast(index), ["_slot", "_key"])


def with_reach(laid: "DataFrame") -> "DataFrame":
    """The versions of queries with `matches_from`: null for the first of a query that asks for the past, too."""
    is_first = F.min("valid_from").over(Window.partitionBy("query_id")) == F.col("valid_from")
    is_of_past = is_first & F.coalesce("match_past", F.lit(False))
    return laid.withColumn("matches_from", F.when(~is_of_past, F.col("valid_from")))


def named_by(rows: "DataFrame", scope: Scope, rule: StandingQueries) -> "DataFrame":
    """The rows of a scope, each once for every query that it is to be asked for (`_query_id`)."""
    if scope.is_everything:
        return rows
    pairs = [(name, name) for name in rule.grain]
    near = scope.filter(rows, pairs, [(rule.time, rule.time)])
    wanted = scope.frame.select(
        *[F.col(backticked(name)).alias(f"_wanted_{at}") for at, name in enumerate(rule.grain)],
        F.col("query_id").alias("_query_id"),
    ).distinct()
    same = [F.col(backticked(name)).eqNullSafe(F.col(f"_wanted_{at}")) for at, name in enumerate(rule.grain)]
    return near.join(wanted, same).drop(*[f"_wanted_{at}" for at in range(len(rule.grain))])


def touched_by_rows(
    changed: "DataFrame", versions: "DataFrame", own: "DataFrame", rule: StandingQueries
) -> "DataFrame":
    """The matches that changed rows had, and those that they have now."""
    located = [backticked(name) for name in rule.located]
    has_images = "_change_type" in changed.columns
    now = changed.where("_change_type IN ('insert', 'update_postimage')") if has_images else changed
    before = changed.where("_change_type IN ('delete', 'update_preimage')") if has_images else changed
    touched = find_matches(now, versions, rule).select(*located)
    gone = collect(before.select(*located[1:]))
    if gone.count == 0:
        return touched
    found = gone.filter(own, [(name, name) for name in rule.grain], [(rule.time, rule.time)])
    return touched.unionByName(found.select(*located))


def touched_by_queries(
    changed: "DataFrame", rows: "DataFrame", versions: "DataFrame", own: "DataFrame", rule: StandingQueries
) -> "DataFrame":
    """The matches that changed versions of queries had, and those that they have now, in the times that changed."""
    located = [backticked(name) for name in rule.located]
    # What a version matches from counts as its begin, and its begin as one of the columns that a match takes from it:
    # under the name that it has there, which no attribute can have.
    reaching = (
        changed.withColumn("query_valid_from", F.col("valid_from"))
        .withColumn("valid_from", F.expr(f"coalesce(matches_from, {since_ever})"))
        .drop("matches_from")
    )
    intervals = collect(changed_intervals(reaching, ["query_id"]))
    if intervals.count == 0:
        return own.select(*located).limit(0)
    during, of_query = (rule.time, "_from", "_to"), [("query_id", "query_id")]
    before = intervals.filter(own, of_query, during=during).select(*located)
    near = intervals.filter(rows, [], during=during)
    found = find_matches(near, intervals.filter(versions, of_query), rule).select(*located)
    return before.unionByName(within(found, intervals, rule))


def within(matches: "DataFrame", intervals: Scope, rule: StandingQueries) -> "DataFrame":
    """The matches of a query in one of its intervals."""
    times = intervals.frame.withColumnRenamed("query_id", "_query_id")
    at = F.col(backticked(rule.time))
    is_within = (F.col("_from") <= at) & (F.col("_to").isNull() | (at < F.col("_to")))
    return matches.join(F.broadcast(times), (F.col("query_id") == F.col("_query_id")) & is_within, "left_semi")


def looked_up() -> str:
    """The keys of a row: one for each slot of `_slots`, but for those that its nulls have not."""
    column, kind = f"s div {slots_of_column}", f"s % {slots_of_column}"
    value = f"get(_hashes, CAST({column} AS int))"
    found = (
        f"CASE WHEN s = {everything} THEN 0L WHEN {kind} = {of_value} THEN {value} "
        f"WHEN {kind} = {of_null} THEN if({value} IS NULL, 0L, NULL) "
        f"ELSE CAST(shiftright(get(_ranks, CAST({column} AS int)), 2 * ({kind})) AS bigint) END"
    )
    return f"filter(transform(_slots, s -> struct(s AS _slot, {found} AS _key)), k -> k._key IS NOT NULL)"


def all_true(atoms: str) -> str:
    """The condition that all atoms of an alternative are true of a row."""
    cases = " ".join(
        f"WHEN {place} THEN {test(f'get(_{family}, a.place)', f'a.{family}', is_text=family == 'text')}"
        for place, family in enumerate(families)
    )
    return f"forall({atoms}, a -> coalesce((CASE a.family {cases} END) <> a.is_negated, false))"


def test(value: str, values: str, *, is_text: bool) -> str:
    """What an atom `a` that is not negated says of a value: true, false, or null for a null."""
    first, last = f"get({values}, 0)", f"get({values}, 1)"
    found = {
        "in": f"array_contains({values}, {value})",
        "<": f"{value} < {first}",
        ">": f"{value} > {first}",
        "between": f"{value} BETWEEN {first} AND {last}",
        "is null": f"{value} IS NULL",
    }
    if is_text:
        found["starts with"] = f"startswith({value}, {first})"
        found["ends with"] = f"endswith({value}, {first})"
        found["contains"] = f"contains({value}, {first})"
    said = " ".join(f"WHEN {codes[name]} THEN {sql}" for name, sql in found.items())
    return f"CASE a.code {said} END"


is_in_effect = (
    "_at IS NOT NULL AND (_matches_from IS NULL OR _matches_from <= _at) AND (_valid_to IS NULL OR _at < _valid_to)"
)
# A row that fits several alternatives of a query has found it by each of them, and is a match by the first.
is_first_to_fit = (
    f"array_position(transform(slice(_atoms, 1, _alternative + 1), c -> {all_true('c')}), true) = _alternative + 1"
)
