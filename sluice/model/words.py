"""The words of a SELECT: where its clauses begin, and how an expression is printed from them."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sluice.errors import DeclarationError
from sluice.model.sql import dialect, fold, quoted

if TYPE_CHECKING:
    from sqlglot import Token


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


plain_name = re.compile(r"[A-Za-z_]\w*", re.ASCII)
before_a_bracket = names(
    """
    all and any as asc between by case cross desc distinct div else end except exists filter from full group
    having in inner interval is join left like limit not on or order outer over partition qualify right rlike
    select then using when where with within
    """
)
# Functions of these names are also words before a bracket that is no call.
calls = frozenset(["left", "right", "any", "filter", "exists", "interval"])
joining = ("LEFT", "RIGHT", "FULL", "INNER", "CROSS", "SEMI", "ANTI", "NATURAL", "JOIN", "OUTER", "COMMA")
clause_names = ("SELECT", "FROM", "WHERE", "GROUP_BY", "HAVING", "QUALIFY", "ORDER_BY", "LIMIT", "OFFSET")


def spaced(text: str) -> str:
    """An expression without comments and with ordinary spaces."""
    return printed(text, tokens_of(text))


def folded(text: str) -> list[str]:
    """The words and signs of an expression as they count: names and keywords in one case, and no needless backticks."""
    return [folded_word(text, each) for each in tokens_of(text)]


def folded_word(text: str, token: "Token") -> str:
    own = text[token.start : token.end + 1]
    if token.token_type.name == "IDENTIFIER":
        return fold(token.text if plain_name.fullmatch(token.text) else own)
    return own if quoted(token) else fold(own)


def tokens_of(text: str) -> "list[Token]":
    """The tokens of a text, those aside that sqlglot adds behind a number such as 1L."""
    import sqlglot

    found: list[Token] = []
    try:
        for each in sqlglot.tokenize(text, read=dialect):
            if not found or each.start > found[-1].end:
                found.append(each)
    except sqlglot.errors.SqlglotError as error:
        raise DeclarationError(f"'{text[:60]}' cannot be read: {error}") from None
    return found


def printed(text: str, tokens: "Sequence[Token]") -> str:
    """Tokens with ordinary spaces between them, each as it is written."""
    found = ""
    angles = 0
    for at, each in enumerate(tokens):
        own = text[each.start : each.end + 1]
        before = tokens[at - 1] if at else None
        opens = own == "<" and before is not None and before.text.lower() in ("array", "struct", "map")
        closes = own == ">" and angles > 0
        gap = before is not None and is_apart(text, tokens, at)
        if opens or closes or (angles and before is not None and before.text == "<"):
            gap = False
        angles += opens - closes
        found += (" " if gap else "") + own
    return found


def is_apart(text: str, tokens: "Sequence[Token]", at: int) -> bool:
    """Whether there is a space between a token and the one before."""
    before, each = tokens[at - 1], tokens[at]
    if is_text_of(before, text) and is_text_of(each, text):
        # Two texts that touch are one to some parsers, and two that do not are another.
        return each.start > before.end + 1
    if is_sign(before, "([.~!") or is_sign(each, ")],.:") or "::" in (before.text, each.text):
        return False
    if before.text in ("-", "+") and not quoted(before):
        return before.text == each.text or (at > 1 and is_end_of_value(tokens[at - 2]))
    if is_sign(each, "["):
        return before.token_type.name == "COMMA" or fold(before.text) in before_a_bracket
    return not is_sign(each, "(") or is_before_a_bracket(before, tokens[at - 2] if at > 1 else None)


def is_before_a_bracket(token: "Token", before: "Token | None") -> bool:
    """Whether a bracket after the token is apart from it, as in `IN (1, 2)`: it is no call."""
    name = fold(token.text)
    if quoted(token) or is_sign(token, ")"):
        return False
    if name in calls:
        return name not in ("left", "right") and before is not None and is_end_of_value(before)
    return name in before_a_bracket or not name.replace("_", "a").isalnum()


def is_end_of_value(token: "Token") -> bool:
    """Whether a value can end here, so that a sign which follows is between two values."""
    if quoted(token) or token.token_type.name in ("NUMBER", "IDENTIFIER", "R_PAREN", "R_BRACKET", "STAR"):
        return True
    word = fold(token.text)
    return word.replace("_", "a").isalnum() and (word == "end" or word not in before_a_bracket)


def is_text_of(token: "Token", text: str) -> bool:
    return text[token.start] in "'\""


def is_sign(token: "Token", signs: str) -> bool:
    return len(token.text) == 1 and token.text in signs and not quoted(token)


def follows_a_dot(tokens: "Sequence[Token]", at: int) -> bool:
    return at > 0 and tokens[at - 1].text == "."


def at_depth_zero(tokens: "Sequence[Token]") -> "Iterator[tuple[int, Token]]":
    """The tokens that are in no brackets and no CASE, with their places."""
    depth = 0
    for at, each in enumerate(tokens):
        name = each.token_type.name
        is_case = name == "CASE" and not follows_a_dot(tokens, at)
        is_end = name == "END" and not follows_a_dot(tokens, at)
        depth -= is_sign(each, ")]") or (is_end and depth > 0)
        if depth == 0:
            yield at, each
        depth += is_sign(each, "([") or is_case


def clauses_of(tokens: "Sequence[Token]") -> "Iterator[tuple[str, Sequence[Token]]]":
    """The clauses by name, each with its tokens; the FROM of IS DISTINCT FROM begins none."""
    starts = [
        at
        for at, each in at_depth_zero(tokens)
        if each.token_type.name in clause_names
        and not follows_a_dot(tokens, at)
        and not (at > 0 and each.token_type.name == "FROM" and tokens[at - 1].token_type.name == "DISTINCT")
    ]
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        yield tokens[start].token_type.name, tokens[start:end]


def listed(tokens: "Sequence[Token]") -> "Iterator[Sequence[Token]]":
    """What commas separate."""
    commas = [at for at, each in at_depth_zero(tokens) if is_sign(each, ",")]
    for start, end in zip([0, *[at + 1 for at in commas]], [*commas, len(tokens)], strict=True):
        yield tokens[start:end]


def joined(tokens: "Sequence[Token]") -> "Iterator[Sequence[Token]]":
    """The first table, and each join with its condition."""
    starts = [0]
    for at, each in at_depth_zero(tokens):
        name = each.token_type.name
        is_call = at + 1 < len(tokens) and tokens[at + 1].text == "(" and name != "COMMA"
        begins = name in joining and not is_call and not follows_a_dot(tokens, at)
        if begins and at > 0 and tokens[at - 1].token_type.name not in joining:
            starts.append(at)
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        yield tokens[start:end]


def conjuncts(tokens: "Sequence[Token]") -> "Iterator[Sequence[Token]]":
    """The conditions that must all hold; one where any of several is enough."""
    signs = [(at, each.token_type.name) for at, each in at_depth_zero(tokens)]
    if any(name == "OR" for _, name in signs):
        yield tokens
        return
    start, between = 0, 0
    for at, name in signs:
        between += name == "BETWEEN"
        if name == "AND" and between:
            between -= 1
        elif name == "AND":
            yield tokens[start:at]
            start = at + 1
    yield tokens[start:]


def closing(tokens: "Sequence[Token]") -> int | None:
    """The place of the bracket that closes the one with which the tokens begin."""
    depth = 0
    for at, each in enumerate(tokens):
        depth += is_sign(each, "([") - is_sign(each, ")]")
        if depth == 0:
            return at if at else None
    return None
