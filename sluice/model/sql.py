"""What a declared SQL expression reads, found by a parser and without Spark.

What cannot be parsed counts as reading every column: an extra column costs time, a missing one leaves a table stale.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError, hint
from sluice.model.ddl import struct_fields

if TYPE_CHECKING:
    from sqlglot import Token, exp

dialect = "spark"
# A column's type as Spark writes it, or the fields that it has with theirs; None where that is not known.
Kind = str | Mapping[str, str | None] | None
# What sqlglot also raises, of texts that are no SQL.
parser_faults = (RecursionError, ValueError, TypeError, AttributeError, LookupError)
word = re.compile(r"\w+")
# Spark resolves these without parentheses, but only where no column has the name.
literal_functions = frozenset(
    [
        "current_catalog",
        "current_database",
        "current_date",
        "current_schema",
        "current_time",
        "current_timestamp",
        "current_timezone",
        "current_user",
        "grouping__id",
        "localtimestamp",
        "now",
        "session_user",
        "user",
    ]
)
time_units = frozenset(
    f"{unit}{plural}"
    for unit in [
        "microsecond",
        "millisecond",
        "second",
        "minute",
        "hour",
        "day",
        "dayofyear",
        "week",
        "month",
        "quarter",
        "year",
    ]
    for plural in ("", "s")
)


@dataclass(frozen=True)
class Reading:
    """What a parser found in an expression: `columns`, other names such as fields (`explained`), and all its words.

    A column is the parts of its name as they are written: `state.balance` is ("state", "balance"). `is_everything` is
    true where a star or a subquery may stand for columns that are not named.
    """

    columns: tuple[tuple[str, ...], ...]
    explained: frozenset[str]
    words: frozenset[str]
    is_everything: bool = False

    def reads(self, name: str, roots: Collection[str]) -> bool:
        """Whether the expression may read the column; `roots` are the names of all columns, folded."""
        folded = fold(name)
        named = {fold(part) for column in self.columns for part in possible(column, roots)}
        # The words are a second look: one that is a column's name and that the parser did not place counts as read.
        return folded in named or (folded in self.words and folded not in self.explained)


def fold(name: str) -> str:
    """Folds a name: Spark ignores case in names."""
    return name.casefold()


def possible(parts: tuple[str, ...], roots: Collection[str]) -> tuple[str, ...]:
    """The parts that can be the column itself: the first, unless that is a qualifier."""
    return parts[:1] if fold(parts[0]) in roots else parts


def columns_read(texts: Iterable[str], columns: Sequence[str]) -> list[str]:
    """Those of the columns that the SQL expressions may read."""
    roots = {fold(name) for name in columns}
    found = [reading(text) for text in texts]
    if any(each is None or each.is_everything for each in found):
        return list(columns)
    return [name for name in columns if any(each is not None and each.reads(name, roots) for each in found)]


def require_known(dataset: str, option: str, text: str, known: Mapping[str, Kind]) -> None:
    """A DeclarationError where the SQL names a column that is not known, or a field of one whose fields are.

    `known` has the type of each column. Bookkeeping columns, which begin with `_`, are not checked, and neither is what
    only Spark can read.
    """
    require_closed(dataset, option, text)
    found = reading(text)
    if found is None:
        return
    kinds = {fold(name): kind for name, kind in known.items()}
    unchecked = literal_functions | time_units | found.explained
    for parts in found.columns:
        root = fold(parts[0])
        if root in literal_functions and root not in kinds.keys() | found.explained and len(parts) == 1:
            raise DeclarationError(f"{dataset}: {option}: {other_each_time(parts[0])}")
        if root not in kinds and root not in unchecked and not root.startswith("_"):
            raise DeclarationError(
                f"{dataset}: {option} reads {parts[0]}, which is no column here; {hint(parts[0], known)}"
                f"there are {', '.join(known)}"
            )
        reason = field_lacking(parts, kinds.get(root))
        if reason is not None:
            raise DeclarationError(f"{dataset}: {option} reads {reason}")


def other_each_time(name: str) -> str:
    """Why a row must not have the value of a function such as `now` or `user`."""
    return (
        f"{name} gives another value each time, so a row would depend on when it is computed; use a column of the row, "
        "such as its event time"
    )


def field_lacking(parts: Sequence[str], kind: Kind) -> str | None:
    """Which field a name such as `device.battery.level` wants and cannot have; None where it can, or nobody knows."""
    for number, name in enumerate(parts[1:], start=1):
        fields = struct_fields(kind) if isinstance(kind, str) else kind
        if fields is None or name.startswith("_"):
            return None
        known = {fold(each): inner for each, inner in fields.items()}
        if fold(name) not in known:
            whole = ".".join(parts[:number])
            return f"{whole}.{name}, but {whole} has {', '.join(fields)}"
        kind = known[fold(name)]
    return None


def require_closed(dataset: str, option: str, text: str) -> None:
    """A DeclarationError where the SQL is empty, or a quotation mark or a bracket has no partner."""
    found = tokens(text)
    if not found:
        reason = "it is empty" if found is not None else "a quotation mark is not closed"
        raise DeclarationError(f"{dataset}: {option} is {text!r}, which is no SQL expression: {reason}")
    depth = 0
    for each in found:
        depth += (each.text in "([" and not quoted(each)) - (each.text in ")]" and not quoted(each))
        if depth < 0:
            break
    if depth:
        raise DeclarationError(f"{dataset}: {option} is {text!r}, where the brackets do not match")


def named_expression(text: str) -> tuple[str | None, str]:
    """The name that `… AS name` gives or that a column has, or None, and the expression without the name."""
    from sqlglot import exp

    parsed, found = parse(text), tokens(text)
    if not parsed or not found:
        return None, text
    if isinstance(parsed, exp.Alias) and isinstance(parsed.args.get("alias"), exp.Identifier) and len(found) > 1:
        has_as = not quoted(found[-2]) and found[-2].text.lower() == "as"
        return parsed.alias, text[: found[-2 if has_as else -1].start].strip()
    return (parsed.name, text) if isinstance(parsed, exp.Column) else (None, text)


def backticked(name: str) -> str:
    """A column's name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def double_quoted(name: str) -> str:
    """The same in the SQL of DuckDB and DataFusion."""
    return '"' + name.replace('"', '""') + '"'


def column_parts(node: "exp.Expr") -> tuple[str, ...] | None:
    """The parts of a column's name as they are written; None for another expression."""
    from sqlglot import exp

    return tuple(part.name for part in node.parts) if isinstance(node, exp.Column) else None


def reading(text: str) -> Reading | None:
    """What the expression reads; None where the parser does not understand it."""
    from sqlglot import exp

    parsed, found = parse(text), tokens(text)
    if parsed is None or found is None:
        return None
    columns, explained = [], set()
    for node in parsed.walk(prune=lambda node: isinstance(node, exp.Column)):
        if hides_columns(node):
            return Reading((), frozenset(), frozenset(), is_everything=True)
        if isinstance(node, exp.Column):
            columns.append(tuple(part.name for part in node.parts))
            explained |= {fold(part.name) for part in node.parts[1:]}
        # Spark takes a variable `.` of a lambda for the column `.`, so only plain names can be variables.
        elif isinstance(node, exp.Identifier | exp.Var) and (node.arg_key == "expression" or word.fullmatch(node.name)):
            explained.add(fold(node.name))
    return Reading(tuple(columns), frozenset(explained), words_of(found))


def hides_columns(node: "exp.Expr") -> bool:
    """Whether a part of an expression may read columns that it does not name."""
    from sqlglot import exp

    if isinstance(node, exp.Column):
        return isinstance(node.this, exp.Star)
    if isinstance(node, exp.Star):
        return not isinstance(node.parent, exp.Count)
    if isinstance(node, exp.Anonymous):
        return fold(node.name) == "identifier"
    return isinstance(node, exp.Query | exp.Command)


def words_of(found: "Sequence[Token]") -> frozenset[str]:
    """Every word that could be a column's name: no text, and no function's name."""
    words = set()
    for each, following in zip(found, [*found[1:], None], strict=True):
        is_call = following is not None and following.text == "(" and not quoted(following)
        if is_text(each) or is_call or each.token_type.name == "NUMBER":
            continue
        words |= {fold(each.text)} if quoted(each) else {fold(part) for part in word.findall(each.text)}
    return frozenset(words)


@lru_cache(maxsize=1_000)
def parse(text: str) -> "exp.Expr | None":
    """The tree of an expression, which nobody may change: all who ask have the same. None where it cannot be parsed."""
    import sqlglot

    try:
        return sqlglot.parse_one(text, dialect=dialect)
    except (sqlglot.errors.SqlglotError, *parser_faults):
        return None


def tokens(text: str) -> "list[Token] | None":
    """The tokens of an expression; None where a quotation mark is not closed."""
    import sqlglot

    try:
        return list(sqlglot.tokenize(text, read=dialect))
    except sqlglot.errors.SqlglotError:
        return None


def statement_word(text: str) -> str | None:
    """The word that an expression begins with, where it begins a statement of SQL to the parser; None elsewhere."""
    from sqlglot import Dialect

    found, spark = tokens(text) or [], Dialect.get_or_raise(dialect)
    statements = {*spark.parser_class.STATEMENT_PARSERS, *spark.tokenizer_class.COMMANDS}
    if not found or found[0].token_type not in statements:
        return None
    is_call = text[found[0].end + 1 :].lstrip().startswith("(")
    return None if is_call or quoted(found[0]) else found[0].text


def is_text(token: "Token") -> bool:
    return token.token_type.name.endswith("STRING") and token.end - token.start >= 1 + len(token.text)


def quoted(token: "Token") -> bool:
    """Whether a token is a name in backticks or a text, so that its signs are no syntax."""
    return token.token_type.name == "IDENTIFIER" or is_text(token)
