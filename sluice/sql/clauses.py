"""Parts of a SELECT as declarations take them: ranks, windows, groups and measures."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sluice import windows
from sluice.errors import DeclarationError
from sluice.model.join import column_of
from sluice.model.query import is_aggregate, nodes_of
from sluice.model.select import Part
from sluice.model.sql import backticked, fold, parse, quoted, reading
from sluice.model.words import closing, folded, listed, plain_name, printed, spaced, tokens_of

if TYPE_CHECKING:
    from sqlglot import exp

window_words = ("window", "session_window", "sliding_window", "calendar_window")
ranks = ("row_number", "rank", "dense_rank")
window_columns = ("window_start", "window_end")


@contextmanager
def at(place: Part) -> Iterator[None]:
    """Begins errors with a place, unless they have one."""
    try:
        yield
    except DeclarationError as error:
        if re.match(r".*?:\d+:\d+: ", str(error)):
            raise
        raise DeclarationError(f"{place.place}: {error}") from error


@dataclass(frozen=True)
class Over:
    """What an OVER says: the function, its groups and its order."""

    text: str
    ties: Literal["row_number", "rank", "dense_rank"]
    partition: tuple[str, ...]
    order: tuple[str, ...]


def over_of(rank: Part) -> Over:
    """The parts of `row_number() OVER (PARTITION BY a ORDER BY b DESC)`."""
    tokens = tokens_of(rank.text)
    function = fold(tokens[0].text)
    words = [each.token_type.name for each in tokens]
    if function not in ranks or words[1:4] != ["L_PAREN", "R_PAREN", "OVER"] or words[4] != "L_PAREN":
        raise rank.error(f"a rank is one of {', '.join(f'{each}() OVER (…)' for each in ranks)}")
    if closing(tokens[4:]) != len(tokens) - 5:
        raise rank.error("a rank stands alone; compute from it in a table of its own that reads this one")
    inside = tokens[5:-1]
    kinds = words[5:-1]
    if "ORDER_BY" not in kinds:
        raise rank.error("say which rows come first: OVER (… ORDER BY …)")
    if "ROWS" in kinds or "RANGE" in kinds:
        raise rank.error("a rank has no frame; leave ROWS and RANGE out")
    start = kinds.index("ORDER_BY")
    begins = start > 0 and kinds[0] == "PARTITION_BY"
    partition = tuple(printed(rank.text, each) for each in listed(inside[1:start])) if begins else ()
    order = tuple(printed(rank.text, each) for each in listed(inside[start + 1 :]))
    return Over(rank.text, function, partition, order)  # type: ignore[arg-type]


def side_of(part: Part) -> tuple[str, str] | None:
    """The table and the column of `o.product_id`."""
    found = reading(part.text)
    if found is None or len(found.columns) != 1 or len(found.columns[0]) != 2:
        return None
    names = found.columns[0]
    return names if spaced(part.text).replace("`", "") == ".".join(names) else None


def window_call(text: str) -> "exp.Expr | None":
    """The call of one of the functions that make windows."""
    from sqlglot import exp

    parsed = parse(text)
    name = fold(parsed.name) if isinstance(parsed, exp.Anonymous) else ""
    return parsed if name in window_words else None


def window_of(group: Part, call: "exp.Expr") -> windows.Window:
    """The window that `window(placed_at, '1 hour')` says."""
    from sqlglot import exp

    column = column_of(spaced(call.expressions[0].sql(dialect="spark"))) if call.expressions else None
    if column is None:
        raise group.error("a window is over a column: window(placed_at, '1 hour')")
    texts: list[str] = []
    options: dict[str, str] = {}
    for each in call.expressions[1:]:
        value = each.expression if isinstance(each, exp.Kwarg) else each
        if not isinstance(value, exp.Literal) or not value.is_string:
            raise group.error("the lengths of a window are texts: window(placed_at, '1 hour')")
        if isinstance(each, exp.Kwarg):
            options[fold(each.this.name)] = value.name
        else:
            texts.append(value.name)
    name = fold(call.name)
    names = {
        "window": ["duration", "every"],
        "session_window": ["gap"],
        "sliding_window": ["duration"],
        "calendar_window": ["unit", "time_zone"],
    }[name]
    given = dict(zip(names, texts, strict=False)) | options
    required = names if name == "calendar_window" else names[:1]
    if len(texts) > len(names) or set(given) - set(names) or any(each not in given for each in required):
        shown = ", ".join(f"'{each}'" for each in names)
        raise group.error(f"{name} takes a column and the texts {shown}; see the windows of sluice.windows")
    make: dict[str, Callable[..., windows.Window]] = {
        "window": lambda: windows.window(column, given["duration"], every=given.get("every")),
        "session_window": lambda: windows.session_window(column, gap=given["gap"]),
        "sliding_window": lambda: windows.sliding_window(column, given["duration"]),
        "calendar_window": lambda: windows.calendar_window(column, given["unit"], time_zone=given["time_zone"]),
    }
    with at(group):
        return make[name]()


def is_window_column(item: Part) -> bool:
    """Whether a column is the start or the end of the window, under the name that it has in the table."""
    return (item.text, item.name) in [
        *((name, name) for name in window_columns),
        ("window.start", "window_start"),
        ("window.end", "window_end"),
        ("session_window.start", "window_start"),
        ("session_window.end", "window_end"),
    ]


def has_unknown_function(part: Part) -> bool:
    """Whether there is a function that may be an aggregate."""
    from sqlglot import exp

    return any(isinstance(node, exp.Anonymous) for node in nodes_of(part.text))


def columns_outside(text: str) -> list[str]:
    """The columns that an expression reads outside of its aggregates."""
    from sqlglot import exp

    parsed = parse(text)
    if parsed is None:
        return []
    found = parsed.walk(
        prune=lambda node: (
            is_aggregate(node) or isinstance(node, exp.Anonymous | exp.Filter | exp.WithinGroup | exp.Column)
        )
    )
    return [node.sql() for node in found if isinstance(node, exp.Column)]


def same_text(one: str, other: str) -> bool:
    """Whether two expressions are the same, in any case of names and keywords."""
    columns = [column_of(each) for each in (one, other)]
    return folded(one) == folded(other) or (None not in columns and fold(columns[0] or "") == fold(columns[1] or ""))


def quoted_name(name: str) -> str:
    """A name as SQL, with backticks only where it needs them."""
    return name if plain_name.fullmatch(name) else backticked(name)


def with_name(text: str, expression: str, name: str) -> str:
    """A text with a name where the call that an expression is stands, unless FILTER or OVER make another one of it."""
    found, words, wanted = tokens_of(text), folded(text), folded(expression)
    named, end = "", 0
    for at_, each in enumerate(found):
        after = at_ + len(wanted)
        is_whole = after >= len(found) or words[after] not in ("filter", "over")
        if words[at_:after] == wanted and is_whole and each.start >= end:
            named += text[end : each.start] + name
            end = found[after - 1].end + 1
    return spaced(named + text[end:])


def is_call(text: str) -> bool:
    """Whether an expression is one call, so that what stands around it takes no part of it."""
    found = tokens_of(text)
    end = closing(found[1:])
    rest = found[end + 2 :] if end is not None else found
    is_filter = len(rest) > 1 and fold(rest[0].text) == "filter" and closing(rest[1:]) == len(rest) - 2
    return end is not None and not quoted(found[0]) and found[0].text != "(" and (not rest or is_filter)
