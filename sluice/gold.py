"""Gold: declares the aggregates, top lists, views and states that people read, and what changes a state."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, get_args

from sluice.errors import DeclarationError
from sluice.model import integrity
from sluice.model.commands import Command, Commands, metadata, name_pattern, prepared
from sluice.model.datasets import (
    Dataset,
    Input,
    Output,
    Topic,
    checked_name,
    documented,
    require_columns,
    require_columns_of,
    require_lists,
    require_timestamp,
    same_names,
    timed,
    type_of,
)
from sluice.model.ddl import column_types, ddl, is_storable, require_names, require_unreserved
from sluice.model.declared import declares
from sluice.model.join import by_key, column_of, require_reads
from sluice.model.lineage import How, Lineage, Made, Source, every_column, from_sql, read_by, same, taken, unique
from sluice.model.plain import require_certain
from sluice.model.publication import Publication, checked_publication
from sluice.model.query import keyed_rows
from sluice.model.select import Select
from sluice.model.specification import Specification
from sluice.model.sql import backticked, columns_read, named_expression, parse, quoted, require_known, tokens
from sluice.shapes.aggregate import Groups
from sluice.shapes.aggregate import aggregate as aggregate_rows
from sluice.shapes.fates import Events
from sluice.shapes.parse import Parsing
from sluice.shapes.state import Reducer, fold
from sluice.shapes.top import Order, Ties, Top
from sluice.shapes.top import top as top_rows
from sluice.shapes.windows import Session, Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["aggregate", "command", "commands", "publish", "state", "top", "view"]


@dataclass(frozen=True)
class Aggregate(Specification):
    """Groups and measures of the rows of a source."""

    kind, version = "aggregate", 3
    source: str
    groups: Groups


@dataclass(frozen=True)
class TopRows(Specification):
    """The first rows of each group of a source's rows."""

    kind, version = "top", 1
    source: str
    top: Top


@dataclass(frozen=True)
class State(Specification):
    """The events of a source, folded in an order."""

    kind, version = "state", 2
    source: str
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    reducer: Reducer
    where: str = ""


@declares
def aggregate(
    name: str,
    *,
    source: Dataset,
    group_by: Sequence[str | Window],
    measures: Mapping[str, str],
    where: str = "",
    having: str = "",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """One row per group of the source's rows. Each measure is a SQL aggregate such as `"avg(delay_minutes)"`; with none
    there are the groups alone, as SELECT DISTINCT gives them.

    Groups are columns, named SQL expressions (`"to_date(scheduled_at) AS day"`), and at most one window. A group is
    recomputed when one of its rows is added, removed or changed, and disappears with its last row.

    `where` is a SQL condition of the rows that count, and `having` one of the groups to show, by their columns and
    measures: `"orders > 10"`. `owner` and `comments` are those of `silver.events`.
    """
    full_name = checked_name("gold", name)
    require_lists(full_name, group_by=group_by)
    groups = Groups.of(group_by, measures, source.columns or (), where, having)
    if not groups.columns:
        raise DeclarationError(f"{full_name}: give at least one group")
    if sum(isinstance(each, Window) for each in group_by) > 1:
        raise DeclarationError(f"{full_name}: group by one window at most")
    require_groups(full_name, groups, source)
    require_having(full_name, groups)
    window = groups.window
    rows_timed = timed(full_name, "the column of the window", source, window.column) if window else None
    made = Dataset(
        name=full_name,
        inputs={
            "rows": Input(
                source,
                scope=lambda changed, inputs: groups.touched(changed, inputs[full_name]),
                within=lambda df, scope: groups.within(rows_timed(df) if rows_timed else df, scope),
            )
        },
        outputs=(
            Output(
                full_name,
                grain=groups.scope_columns,
                scope_columns=same_names(groups.scope_columns),
                cluster_by=groups.clustered,
            ),
        ),
        shape=lambda rows, own: aggregate_rows(rows["rows"], groups),
        adjust=(lambda changes, own: groups.adjusted(changes.get("rows"), own)) if groups.is_adjustable else None,
        specification=Aggregate(source.name, groups),
        meaning=meaning,
        keys=groups.columns,
        event_time="window_start" if groups.window else None,
        in_range=groups.in_range(source.event_time),
        scope_of=groups.scope_of,
        widened=groups.widened,
        has_windows=groups.window is not None,
        windows_merge=isinstance(groups.window, Session),
        windows_include_end=groups.window is not None and groups.window.includes_end,
        columns=columns_of(groups, source),
        lineage=lambda: lineage_of_groups(groups, source),
    )
    return documented(made, owner, comments)


def require_groups(dataset: str, groups: Groups, source: Dataset) -> None:
    """Raises DeclarationError if groups or measures cannot be columns, or read columns that the source lacks."""
    for name, text in groups.expressions.items():
        if name == text and not is_storable(name):
            raise DeclarationError(f"{dataset}: give the group a name: '{text} AS …'")
    names = (*groups.columns, *groups.measures)
    require_names(f"{dataset}: group_by and measures", names)
    require_unreserved(dataset, names)
    for option, texts in {"group_by": groups.expressions, "the measure": groups.measures}.items():
        for name, text in texts.items():
            require_reads(dataset, option if option == "group_by" else f"{option} {name}", text, source)
    require_aggregates(dataset, groups, source)
    if groups.where:
        require_reads(dataset, "where", groups.where, source)
    if groups.window is not None:
        require_timestamp(dataset, "the column of the window", source, groups.window.column)


def require_aggregates(dataset: str, groups: Groups, source: Dataset) -> None:
    """A DeclarationError where a measure is a column of the source that is no group, and so has many values."""
    grouped = {(column_of(text) or "").casefold() for text in groups.expressions.values()}
    several = {name.casefold() for name in source.columns or ()} - grouped
    for name, text in groups.measures.items():
        if (column_of(text) or "").casefold() in several:
            raise DeclarationError(
                f"{dataset}: the measure {name} is the column {text}, of which a group has many values: aggregate it, "
                f"as max({text}), or group by it"
            )


def require_having(dataset: str, groups: Groups) -> None:
    """A DeclarationError where the condition of groups reads no column of theirs, or windows need those left out."""
    if not groups.having:
        return
    require_known(dataset, "having", groups.having, dict.fromkeys((*groups.columns, *groups.measures)))
    require_certain(dataset, "having", groups.having)
    if groups.window is not None and not groups.window.is_by_row:
        raise DeclarationError(
            f"{dataset}: having would leave out windows that a late row may merge, split or fill, so they could not be "
            "found again; declare the aggregate without it, and a gold.view of the rows to show"
        )


def columns_of(groups: Groups, source: Dataset) -> dict[str, str | None]:
    """The columns of the aggregate, with the types of those taken from the source."""
    own = {backticked(name): kind for name, kind in (source.columns or {}).items()}
    found = {name: own.get(text) for name, text in groups.expressions.items()}
    window = dict.fromkeys(("window_start", "window_end"), "timestamp") if groups.window else {}
    return {**found, **window, **dict.fromkeys(groups.measures)}


def lineage_of_groups(groups: Groups, source: Dataset) -> Lineage:
    """The lineage of groups and measures: which rows are in a group decides every measure."""
    of_groups = {name: from_sql(text, source.name, source.columns) for name, text in groups.expressions.items()}
    if groups.window:
        begins = taken(source.name, [groups.window.column], "transformation")
        of_groups |= dict.fromkeys(("window_start", "window_end"), Made(begins, by=str(groups.window)))
    of_measures = {
        name: from_sql(text, source.name, source.columns, "aggregation") for name, text in groups.measures.items()
    }
    rows = [replace(each, how="group by") for made in of_groups.values() for each in made.sources]
    if groups.where:
        rows += read_by([groups.where], source.name, source.columns, "filter")
    if groups.having:
        figures = {**of_groups, **of_measures}
        seen = columns_read([groups.having], list(figures))
        rows += [replace(each, how="filter") for name in seen for each in figures[name].sources]
    return Lineage({**of_groups, **of_measures}, unique(rows))


@declares
def top(
    name: str,
    *,
    source: Dataset,
    group_by: Sequence[str],
    order_by: str | Sequence[str],
    rows: int,
    ties: Ties = "row_number",
    rank: str = "rank",
    columns: Sequence[str] | None = None,
    where: str = "",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """The first `rows` rows of each group of the source's rows, by an order: `order_by=["departures DESC", "hour"]`.

    Groups are columns, or SQL expressions with a name; with none the whole source is one group. The order is columns or
    SQL expressions, each with ASC or DESC and NULLS FIRST or NULLS LAST as in Spark, which puts nulls first in ASC and
    last in DESC, and NaN above all other numbers.

    `ties` says what happens to rows that are equal in the order. With `row_number` the source's grain decides between
    them, so no group has more than `rows`. With `rank` every row that ties with the last one is kept, too, and with
    `dense_rank` every row that has one of the first `rows` values.

    The result has the groups, the rank in a column of that name, and the `columns` of the source, by default all of
    them. `where` is a SQL condition of the rows that count. A group is recomputed when a row enters, leaves or changes
    in it.
    """
    full_name = checked_name("gold", name)
    require_lists(full_name, group_by=group_by, columns=columns)
    known = source.columns or ()
    rule = Top(
        groups=Groups.of(group_by, {}, known, where),
        order=tuple(Order.of(each, known) for each in ([order_by] if isinstance(order_by, str) else order_by)),
        rows=rows,
        ties=ties,
        rank=rank,
        columns=None if columns is None else tuple(columns),
        source_grain=source.outputs[-1].grain,
    )
    require_top(full_name, rule, source)
    groups = rule.groups.columns
    found = columns_of_top(rule, source)
    made = Dataset(
        name=full_name,
        inputs={"rows": Input(source, scope=lambda changed, inputs: rule.touched(changed), within=rule.groups.within)},
        outputs=(Output(full_name, grain=rule.grain, scope_columns=same_names(groups), cluster_by=groups),),
        shape=lambda rows, own: top_rows(rows["rows"], rule),
        specification=TopRows(source.name, rule),
        meaning=meaning,
        keys=rule.grain,
        event_time=source.event_time if found is None or source.event_time in found else None,
        scope_of=rule.scope_of,
        laws=laws_of_top(full_name, rule, source),
        columns=found,
        lineage=lambda: lineage_of_top(rule, source),
    )
    return documented(made, owner, comments)


def require_top(dataset: str, rule: Top, source: Dataset) -> None:
    """A DeclarationError where the rows to keep, their order or their columns cannot be."""
    if isinstance(rule.rows, bool) or not isinstance(rule.rows, int) or rule.rows < 1:
        raise DeclarationError(f"{dataset}: rows is {rule.rows!r}; give how many rows of each group to keep, 1 or more")
    if rule.ties not in get_args(Ties):
        raise DeclarationError(f"{dataset}: ties is {rule.ties!r}; write one of {', '.join(get_args(Ties))}")
    if rule.groups.window is not None:
        raise DeclarationError(
            f"{dataset}: group_by has a window; declare a gold.aggregate by that window, and a gold.top of it "
            "with group_by=['window_start']"
        )
    if not rule.order:
        raise DeclarationError(f"{dataset}: order_by is empty; say which rows come first: ['amount DESC']")
    for each in rule.order:
        require_order(dataset, each, source)
    if rule.columns is not None:
        require_columns_of(dataset, "columns", rule.columns, source)
        has = {*rule.columns, *rule.groups.columns}
        missing = [each for each in rule.source_grain if each not in has and not each.startswith("_")]
        if rule.has_ties and missing:
            raise DeclarationError(
                f"{dataset}: columns lacks {', '.join(missing)}, which distinguish rows that tie; add them, or write "
                "ties='row_number'"
            )
    if rule.rank.startswith("_"):
        raise DeclarationError(f"{dataset}: rank is {rule.rank}; names that begin with _ are for bookkeeping")
    require_groups(dataset, rule.groups, source)
    kept = rule.kept(tuple(source.columns or ()))
    require_names(f"{dataset}: group_by, rank and columns", (*rule.groups.columns, rule.rank, *kept))


def require_order(dataset: str, order: Order, source: Dataset) -> None:
    """A DeclarationError where an order cannot be read, is several in one text, or reads what the source lacks."""
    require_reads(dataset, "order_by", order.sql, source)
    depth = 0
    for each in tokens(order.sql) or ():
        sign = "" if quoted(each) else each.text
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
        if sign == "," and depth == 0:
            raise DeclarationError(f"{dataset}: order_by has '{order.sql}'; give each order as a separate text")
    if named_expression(order.sql)[1] != order.sql:
        raise DeclarationError(
            f"{dataset}: order_by has '{order.sql}', which ends with a name; write the expression, and ASC or DESC"
        )


def columns_of_top(rule: Top, source: Dataset) -> dict[str, str | None] | None:
    """The columns of a top list, with the types of those that are columns of the source; None where not known."""
    if source.columns is None and rule.columns is None:
        return None
    kept = {name: type_of(source, name) for name in rule.kept(tuple(source.columns or ())) if not name.startswith("_")}
    return {**columns_of(rule.groups, source), rule.rank: "int", **kept}


def laws_of_top(dataset: str, rule: Top, source: Dataset) -> dict[str, str]:
    """The integrity checks of a top list, those against its source as far as both have the columns."""
    groups = rule.groups.columns
    found = integrity.of_ranks(dataset, groups, rule.ties, rule.rank, rule.rows)
    if rule.groups.where:
        # The source has rows that do not count, and the checks are counted by another engine than the condition.
        return found
    if rule.plain_groups == set(groups):
        found |= integrity.of_first_rows(dataset, source.name, groups, rule.rows)
    if {*rule.source_grain} <= {*rule.plain_groups, *rule.kept(rule.source_grain)}:
        found |= integrity.of_no_others(dataset, source.name, {name: f'"{name}"' for name in rule.source_grain})
    return found


def lineage_of_top(rule: Top, source: Dataset) -> Lineage:
    """The lineage of a top list: its rows are the source's, chosen by the order."""
    of_groups = lineage_of_groups(rule.groups, source)
    order = read_by([each.sql for each in rule.order], source.name, source.columns, "sort")
    said = ", ".join(map(str, rule.order))
    rank = Made(tuple(replace(each, how="transformation") for each in order), by=f"{rule.ties}() by {said}")
    kept = same(source.name, rule.kept(tuple(source.columns or ())))
    passes = source.name if rule.columns is None and source.columns is None else None
    return Lineage({**of_groups.columns, rule.rank: rank, **kept}, (*of_groups.rows, *order), passes)


@declares
def view(
    name: str,
    *,
    inputs: Mapping[str, Dataset],
    keys: Sequence[str] = (),
    shape: "Callable[..., DataFrame] | str | Select",
    on: Mapping[str, Mapping[str, str]] | None = None,
    grain: Sequence[str] | None = None,
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
    event_time: str | None = None,
    version: int | str | None = None,
) -> Dataset:
    """A table made from gold and silver tables: `shape` receives all their rows of a key and returns the result.

    This is `silver.join` for the gold layer. Every input has the columns `keys`, or `on` gives SQL for them. The result
    has at most one row per `grain` (by default the keys), and a change in any input recomputes its keys.

    The table is rebuilt when `shape` changes, or any project code or constant that it uses. If it uses a value whose
    changes cannot be detected, give a `version` and change it with the value.

    `shape` can also be SQL: one SELECT that reads the inputs by their names. Then keys and grain follow from it.
    """
    made = keyed_rows(
        checked_name("gold", name),
        inputs=inputs,
        keys=keys,
        shape=shape,
        on=on,
        grain=grain,
        meaning=meaning,
        event_time=event_time,
        version=version,
    )
    return documented(made, owner, comments)


@declares
def state(
    name: str,
    *,
    source: Dataset,
    keys: Sequence[str],
    sequence_by: str | Sequence[str],
    schema: str,
    initial: Mapping[str, str],
    reduce: Mapping[str, str],
    where: str = "",
    meaning: str = "",
    owner: str = "",
    comments: Mapping[str, str] | None = None,
) -> Dataset:
    """The latest state of each key: a declared reducer folds its events in order.

    `schema` is DDL for the state. `initial` and `reduce` give SQL for each of its columns, `reduce` over `state` (what
    was before) and `event` (a row of the source): `{"balance": "state.balance + event.amount"}`. `sequence_by`
    orders the events, and the log breaks ties, or the rows' values where they have no place in it. After a late event,
    the state is what replaying all events would give. `where` is a SQL condition of the events that count.
    """
    full_name = checked_name("gold", name)
    require_lists(full_name, keys=keys)
    types = column_types(schema, full_name)
    columns = tuple(types)
    for option, values in {"initial": initial, "reduce": reduce}.items():
        require_columns(full_name, option, tuple(values), columns)
        require_columns(full_name, "schema", columns, tuple(values))
    reducer = Reducer(ddl(types), dict(initial), dict(reduce))
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    require_columns_of(full_name, "keys", keys, source)
    require_columns_of(full_name, "sequence_by", sequence, source)
    require_names(f"{full_name}: keys and schema", (*keys, *columns))
    of_keys = dict.fromkeys(keys)
    for column in columns:
        require_known(full_name, f"initial {column}", initial[column], of_keys)
        require_known(
            full_name, f"reduce {column}", reduce[column], {"state": types, "event": source.columns, **of_keys}
        )
        require_certain(full_name, f"initial {column}", initial[column])
        require_certain(full_name, f"reduce {column}", reduce[column])
    if where:
        require_reads(full_name, "where", where, source)
    made = Dataset(
        name=full_name,
        inputs={"events": by_key(source, keys)},
        outputs=(Output(full_name, grain=tuple(keys), scope_columns=same_names(keys), cluster_by=tuple(keys)),),
        shape=lambda rows, own: fold(rows["events"], tuple(keys), sequence, reducer, where),
        specification=State(source.name, tuple(keys), sequence, reducer, where),
        meaning=meaning,
        keys=tuple(keys),
        scope_of=lambda own: own.select(*keys),
        columns={**{name: type_of(source, name) for name in keys}, **types},
        lineage=lambda: lineage_of_state(tuple(keys), sequence, reducer, source, where),
    )
    return documented(made, owner, comments)


def lineage_of_state(
    keys: tuple[str, ...], sequence: tuple[str, ...], reducer: Reducer, source: Dataset, where: str
) -> Lineage:
    """The lineage of a folded state: of a column also what the columns that it is computed from are made from."""
    read = {name: from_sql(text, "", ("event", "state", *keys)) for name, text in reducer.reduce.items()}

    def sources(name: str, seen: frozenset[str], *, decides: bool = False) -> Iterator[Source]:
        for each in read[name].sources:
            scope, _, column = each.column.partition(".")
            # What another column is made from decides, too, where that column only decides.
            only_decides = decides or each.how == "conditional"
            how: How = "conditional" if only_decides else "aggregation"
            if scope in keys:
                yield Source(source.name, scope, how)
            elif scope == "event":
                yield Source(source.name, column or every_column, how)
            elif column in read and column not in seen:
                yield from sources(column, seen | {column}, decides=only_decides)

    columns = {name: replace(made, sources=unique(sources(name, frozenset([name])))) for name, made in read.items()}
    rows = [*taken(source.name, keys, "group by"), *taken(source.name, sequence, "sort")]
    if where:
        rows += read_by([where], source.name, source.columns, "filter")
    return Lineage({**same(source.name, keys), **columns}, unique(rows))


@declares
def publish(source: Dataset, *, postgres: str | None = None, kafka: str | None = None) -> Publication:
    """Keeps a table of gold equal in Postgres, in Kafka, or in both, for those who serve from there.

    `postgres` is `SCHEMA.TABLE`, or a table in the schema `public`; `kafka` is a topic. `sluice publish` makes what is
    missing and writes every change: in Postgres each commit of the table is one transaction, and in Kafka one
    transaction of records by key, with an empty value for a deleted row. Which servers these are, the settings
    `SLUICE_PUBLISH_POSTGRES` and `SLUICE_PUBLISH_KAFKA` say.
    """
    return checked_publication(source, postgres, kafka)


def command(
    fields: str,
    *,
    rules: Mapping[str, str | tuple[str, str]],
    event: str,
    payload: Mapping[str, str] | None = None,
    optional: Sequence[str] = (),
) -> Command:
    """A command: what may be asked of a state, when it is accepted, and the event that it becomes.

    `fields` is DDL, and has the keys of the state. All fields must be given, except those that are `optional`. `rules`
    are SQL conditions over `state` and `command`, by name; each must be true, and the first that is not is the reason
    of the rejection: `{"seat_is_free": "NOT array_contains(state.sold, command.seat)"}`, or a condition with a sentence
    for whoever asked. `command.decided_at` is the time of the decision. `payload` gives SQL for the columns of the
    event, by default the fields beside the key.
    """
    return Command(fields, dict(rules), event, None if payload is None else dict(payload), tuple(optional))


@declares
def commands(name: str, *, topic: Topic, state: Dataset, commands: Mapping[str, Command]) -> Commands:
    """The commands that change a state: `sluice listen http --commands NAME` decides them one after the other.

    A decision is a record of the `topic`: an event, or a rejection with its reason. `state` is a `gold.state` of the
    topic's `silver.events`, with `where="outcome = 'accepted'"` and `sequence_by="version"`. It has one definition:
    what decides commands folds events by the SQL that is declared there, without Spark. So only SQL whose values are
    certain without Spark can be in it, and in rules: exact numbers, text, times and arrays of them; anything else is a
    DeclarationError.
    """
    if not name_pattern.fullmatch(name):
        raise DeclarationError(f"commands: '{name}' is no name; write lower-case letters, digits and _")
    place = f"commands {name}"
    if not isinstance(topic, Topic):
        raise DeclarationError(f"{place}: topic is {topic!r}; declare it with bronze.topic")
    folded = state.specification if isinstance(state, Dataset) else None
    if not isinstance(folded, State):
        raise DeclarationError(f"{place}: state is {getattr(state, 'name', state)!r}; declare it with gold.state")
    if not commands:
        raise DeclarationError(f"{place}: there are no commands; write one with gold.command")
    if folded.sequence_by != ("version",) or parse(folded.where) != parse("outcome = 'accepted'"):
        raise DeclarationError(
            f"{place}: {state.name} must be folded from the commands that were accepted, in their order; write "
            "where=\"outcome = 'accepted'\" and sequence_by='version'"
        )
    return prepared(
        name,
        topic=topic,
        state=state,
        columns=columns_of_decisions(place, topic, state),
        types=column_types(folded.reducer.schema),
        initial=folded.reducer.initial,
        reduce=folded.reducer.reduce,
        commands=commands,
    )


def columns_of_decisions(place: str, topic: Topic, state: Dataset) -> dict[str, str]:
    """The columns of the decisions that a state is folded from; a DeclarationError where they are not as decided."""
    decisions = state.inputs["events"].source
    assert isinstance(decisions, Dataset)  # noqa: S101 - gold.state takes no other
    said = decisions.specification
    if not isinstance(said, Events) or decisions.topics != (topic.topic,):
        raise DeclarationError(f"{place}: the source of {state.name} must be the silver.events of {topic.name}")
    plain = Parsing(said.parsing.schema, said.parsing.required, said.parsing.event_time)
    wrong = [each.name for each in fields(plain) if getattr(said.parsing, each.name) != getattr(plain, each.name)]
    if wrong:
        raise DeclarationError(
            f"{place}: {decisions.name} has {', '.join(wrong)}, by which its rows are not those that were decided; "
            "leave it out"
        )
    if said.parsing.event_time not in (None, "decided_at"):
        raise DeclarationError(
            f"{place}: the event time of {decisions.name} must be decided_at; a decision without a "
            f"{said.parsing.event_time}, or with one in the future, would be quarantined, and not be in the state"
        )
    if decisions.outputs[-1].grain != ("command_id",):
        raise DeclarationError(f"{place}: the keys of {decisions.name} must be command_id")
    types = {name: str(kind) for name, kind in (decisions.columns or {}).items()}
    for column, kind in metadata.items():
        if types.get(column) != kind:
            raise DeclarationError(
                f"{place}: the schema of {decisions.name} lacks {column} {kind}. What every decision has: "
                f"{', '.join(f'{each} {its}' for each, its in metadata.items())}"
            )
    return types
