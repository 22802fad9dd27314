"""Patterns: rows of a key that follow each other as a pattern says, as SQL's MATCH_RECOGNIZE finds them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.errors import DeclarationError, hint
from sluice.model import integrity
from sluice.model.datasets import (
    Dataset,
    Input,
    Output,
    checked_name,
    documented,
    microseconds,
    require_columns_of,
    require_duration,
    require_lists,
    require_timestamp,
    same_names,
    timed,
    type_of,
)
from sluice.model.ddl import require_names
from sluice.model.declared import declares
from sluice.model.join import require_has
from sluice.model.lineage import Lineage, Made, from_sql, read_by, same, taken, unique
from sluice.model.row_expressions import condition_of, measure_of
from sluice.model.row_pattern import Automaton, automaton_of
from sluice.model.specification import Specification
from sluice.model.sql import fold
from sluice.shapes.pattern import RowPattern, Skip, find_matches, island_start

variable_pattern = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
skip_pattern = re.compile(
    r"(?i)\s*(?:skip\s+)?(past\s+last\s+row|to\s+next\s+row|to\s+(?:first|last)\s+(?!row\b)(\w+))\s*"
)


@dataclass(frozen=True)
class Pattern(Specification):
    """The matches of a pattern among a source's rows."""

    kind, version = "pattern", 1
    source: str
    rule: RowPattern


@declares
def pattern(
    name: str,
    *,
    source: Dataset,
    keys: Sequence[str],
    order_by: str | Sequence[str],
    pattern: str,
    define: Mapping[str, str],
    within: str,
    measures: Mapping[str, str],
    after_match: str = "skip past last row",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """One row for each match of a pattern among the rows of a key, with the semantics of SQL's MATCH_RECOGNIZE.

    `pattern` is variables with `*`, `+`, `?`, `{n,m}` (reluctant with a further `?`), alternatives (`|`) and brackets:
    `"A B+ (C | D)"`. `define` gives the SQL condition of a variable, `{"B": "price < PREV(price)"}`; any row fits one
    without. A match takes rows of a key that follow each other by `order_by`: a time, perhaps columns that decide
    between rows of one time, and then the source's grain. From its first row to its last it takes less than `within`.

    `NOT B` is absence: in `"A NOT B C"` no row between A and C fits B, and in `"A NOT B"` none does for `within` after
    A.

    The result has the keys, `match_start` and `match_end`, the source's grain of the first row as `first_…`, and
    `measures`: `{"low": "LAST(B.price)", "rows": "count(*)"}`. After a match the next one is looked for behind it, or
    with `after_match` `"skip to next row"`, `"skip to first B"` or `"skip to last B"`.

    A late row makes and unmakes matches, and so does one that changes or is gone. Rows without a time are in no match.
    """
    full_name = checked_name("silver", name)
    require_lists(full_name, keys=keys)
    automaton = automaton_of(full_name, pattern)
    rule = RowPattern(
        keys=tuple(keys),
        order_by=(order_by,) if isinstance(order_by, str) else tuple(order_by),
        pattern=" ".join(pattern.split()),
        define=dict(define),
        within=within,
        measures=dict(measures),
        after_match=skip_of(full_name, after_match, automaton),
        source_grain=source.outputs[-1].grain,
    )
    require_rows(full_name, rule, source)
    require_variables(full_name, rule, automaton, source)
    require_measures(full_name, rule, source)
    rows_timed = timed(full_name, "order_by", source, rule.time)
    made = Dataset(
        name=full_name,
        inputs={
            "rows": Input(
                source,
                scope=lambda changed, inputs: rule.touched(changed, inputs[full_name]),
                within=lambda df, scope: rule.within_scope(rows_timed(df), scope),
            )
        },
        outputs=(
            Output(
                full_name,
                grain=rule.grain,
                scope_columns=same_names((*rule.keys, island_start)),
                cluster_by=("match_start",),
            ),
        ),
        shape=lambda rows, own: find_matches(rows["rows"], rule),
        specification=Pattern(source.name, rule),
        meaning=meaning,
        keys=rule.keys,
        event_time="match_end",
        scope_of=rule.scope_of,
        widened=rule.widened,
        has_windows=automaton.ends_without is not None,
        laws=laws_of(full_name, rule, source),
        bounded=integrity.of_rows(source.name, [rule.time]),
        columns=columns_of(rule, source),
        lineage=lambda: lineage_of(rule, source),
    )
    return documented(made, owner, comments)


def skip_of(dataset: str, text: str, automaton: Automaton) -> Skip:
    """Where to look for the next match; a DeclarationError where that could be nowhere, or at the same row again."""
    found = skip_pattern.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise DeclarationError(
            f"{dataset}: after_match is {text!r}; write 'skip past last row', 'skip to next row', or 'skip to first A' "
            "or 'skip to last A' with a variable of the pattern"
        )
    if found[2] is None:
        return Skip("past last row" if "past" in found[1].lower() else "to next row")
    named = {fold(each): each for each in automaton.variables}
    variable = named.get(fold(found[2]))
    if variable is None:
        raise DeclarationError(
            f"{dataset}: after_match is {text!r}, and no row is found for {found[2]}; "
            f"{hint(found[2], automaton.variables)}there are {', '.join(automaton.variables)}"
        )
    is_last = "last" in found[1].lower().split()
    positions = automaton.of(variable)
    if automaton.ends_avoiding([each for each in automaton.first if each not in positions], positions):
        raise DeclarationError(
            f"{dataset}: after_match is {text!r}, and a match can have no row for {variable}, so there would be "
            "nowhere to go on; name a variable that every match has"
        )
    begins = [each for each in automaton.first if each in positions]
    if begins and (not is_last or automaton.ends_avoiding(begins, positions)):
        raise DeclarationError(
            f"{dataset}: after_match is {text!r}, and a match can begin with that row, so it would be found again and "
            "again; name a variable of a later row, or write 'skip to next row'"
        )
    return Skip("to last" if is_last else "to first", variable)


def require_rows(dataset: str, rule: RowPattern, source: Dataset) -> None:
    """A DeclarationError where keys, order or time cannot be those of the source's rows."""
    if not rule.keys:
        raise DeclarationError(f"{dataset}: keys is empty; give the columns whose rows are to be matched together")
    if not rule.order_by:
        raise DeclarationError(f"{dataset}: order_by is empty; give the column of the event time")
    require_columns_of(dataset, "keys", rule.keys, source)
    require_columns_of(dataset, "order_by", rule.order_by, source)
    require_timestamp(dataset, "order_by", source, rule.time)
    if not isinstance(rule.within, str):
        raise DeclarationError(
            f"{dataset}: within is {rule.within!r}; give how long a match may take, so that a late row touches what is "
            "near in time: within='1 hour'"
        )
    require_duration(dataset, "within", rule.within)


def require_variables(dataset: str, rule: RowPattern, automaton: Automaton, source: Dataset) -> None:
    """A DeclarationError where a variable is written in two ways, is a column, too, or has a wrong condition."""
    require_names(f"{dataset}: the variables", rule.variables)
    for variable, text in rule.define.items():
        if variable not in rule.variables:
            raise DeclarationError(
                f"{dataset}: define has {variable}, which the pattern does not name; {hint(variable, rule.variables)}"
                f"it names {', '.join(rule.variables)}"
            )
        condition = condition_of(dataset, variable, text, rule.variables)
        require_has(dataset, f"define {variable}", condition.plain, source)
    columns = {fold(each) for each in source.columns or ()}
    both = [each for each in rule.variables if fold(each) in columns]
    if both:
        raise DeclarationError(
            f"{dataset}: {both[0]} is a variable of the pattern and a column of {source.name}, so {both[0]}.x could be "
            "either; call the variable something else"
        )
    absent = automaton.ends_without
    if absent is not None and absent not in rule.define:
        raise DeclarationError(
            f"{dataset}: the pattern ends with NOT {absent}, and any row fits {absent}; give its condition in define"
        )


def require_measures(dataset: str, rule: RowPattern, source: Dataset) -> None:
    """A DeclarationError where measures cannot be columns, or have no one value for a match."""
    own = ("match_start", "match_end", *(("window_end",) if rule.automaton.ends_without else ()))
    require_names(
        f"{dataset}: keys, measures and own columns", (*rule.keys, *own, *rule.first_columns.values(), *rule.measures)
    )
    for name, text in rule.measures.items():
        if name.startswith("_"):
            raise DeclarationError(
                f"{dataset}: a measure is called {name}; names that begin with _ are for bookkeeping"
            )
        measure = measure_of(dataset, name, text, rule.automaton.variables, source.columns)
        require_has(dataset, f"the measure {name}", measure.plain, source)


def columns_of(rule: RowPattern, source: Dataset) -> dict[str, str | None]:
    """The columns of the matches, with the types of those that are columns of the source."""
    times = ("match_start", "match_end", *(("window_end",) if rule.automaton.ends_without else ()))
    first = {name: type_of(source, column) for column, name in rule.first_columns.items() if not name.startswith("_")}
    keys = {key: type_of(source, key) for key in rule.keys}
    return {**keys, **dict.fromkeys(times, "timestamp"), **first, **dict.fromkeys(rule.measures)}


def laws_of(dataset: str, rule: RowPattern, source: Dataset) -> dict[str, str]:
    """The integrity checks of matches: how long they take, that the first row is there, and that none overlap."""
    found = integrity.of_matches(
        dataset, rule.keys, microseconds(rule.within) or 0, is_apart=rule.after_match.to == "past last row"
    )
    first = {**{key: key for key in rule.keys}, rule.time: "match_start", **rule.first_columns}
    return found | integrity.of_no_others(dataset, source.name, {name: f'"{own}"' for name, own in first.items()})


def lineage_of(rule: RowPattern, source: Dataset) -> Lineage:
    """The lineage of matches: keys, order and conditions decide which rows a match has."""
    columns = source.columns
    time = taken(source.name, [rule.time], "aggregation")
    times = ("match_start", "match_end", *(("window_end",) if rule.automaton.ends_without else ()))
    first = {name: Made(taken(source.name, [column], "identity")) for column, name in rule.first_columns.items()}
    plain = {name: each.plain for name, each in rule.measures_of(tuple(columns or ())).items()}
    figures = {
        name: replace(from_sql(text, source.name, columns, "aggregation"), by=rule.measures[name])
        for name, text in plain.items()
    }
    conditions = read_by([each.plain for each in rule.conditions.values()], source.name, columns, "filter")
    order = tuple(replace(each, how="sort") for each in taken(source.name, rule.order))
    rows = (*(replace(each, how="group by") for each in taken(source.name, rule.keys)), *order, *conditions)
    by = f"pattern {rule.pattern} within {rule.within}"
    return Lineage(
        {**same(source.name, rule.keys), **dict.fromkeys(times, Made(time, by=by)), **first, **figures}, unique(rows)
    )
