"""What clients of Postgres say that DuckDB does not: rewritten, or answered by functions and views of the same name."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.operate.postgres import formats
from sluice.operate.postgres.values import arrays, names, types
from sluice.operate.query import serve_within

if TYPE_CHECKING:
    import duckdb

server_version = "15.0"
settings = {
    "server_version": server_version,
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "timezone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "intervalstyle": "postgres",
    "default_transaction_read_only": "on",
    "transaction_read_only": "on",
    "transaction_isolation": "repeatable read",
    "default_transaction_isolation": "repeatable read",
    "max_identifier_length": "63",
    "search_path": "gold, public",
    "lc_collate": "C",
    "is_superuser": "off",
}
# Text, quoted names, comments and text in dollars are one piece each; what is left between them is code.
pieces = re.compile(
    r"""(?P<text>\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*")|(?P<comment>--[^\n]*|/\*)"""
    r"""|(?P<dollars>\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$)|(?P<end>;)|(?P<parameter>\$\d{1,5})""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Comment:
    """What a table means or, with a `column`, that column of it."""

    table: str
    column: str | None
    text: str


class SyntaxFault(ValueError):
    """A text is not SQL."""


@dataclass(frozen=True)
class Piece:
    kind: str
    text: str


def pieces_of(sql: str) -> Iterator[Piece]:
    at = 0
    while (found := pieces.search(sql, at)) is not None:
        if found.start() > at:
            yield Piece("code", sql[at : found.start()])
        kind, at = str(found.lastgroup if found.lastgroup != "tag" else "dollars"), found.end()
        if found.group() == "/*" and (at := end_of_comment(sql, found.start())) == 0:
            kind, at = "endless", len(sql)
        yield Piece(kind, sql[found.start() : at])
    if at < len(sql):
        yield Piece("code", sql[at:])


def end_of_comment(sql: str, start: int) -> int:
    """Where a comment ends, in which there may be others; 0: nowhere."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(sql, start):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return 0


def statements(sql: str) -> list[str]:
    """The statements of a text, without comments and empty ones; a SyntaxFault for a comment without an end."""
    found = [""]
    for piece in pieces_of(sql):
        if piece.kind == "endless":
            raise SyntaxFault("unterminated /* comment")
        if piece.kind == "end":
            found.append("")
        else:
            found[-1] += " " if piece.kind == "comment" else piece.text
    return [each.strip() for each in found if each.strip()]


def parameters_in(sql: str) -> int:
    """How many parameters a statement has."""
    return max((int(each.text[1:]) for each in pieces_of(sql) if each.kind == "parameter"), default=0)


def filled(sql: str, literals: Sequence[str]) -> str:
    """The statement with literals in place of its parameters."""
    return "".join(
        f" {literals[int(each.text[1:]) - 1]} " if each.kind == "parameter" else each.text for each in pieces_of(sql)
    )


def first_word(sql: str) -> str:
    found = re.match(r"[\s(]*(\w+)", sql)
    return found.group(1).upper() if found else ""


rules: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"OPERATOR\s*\(\s*pg_catalog\.([^\s)]+)\s*\)", r"\1"),
    (r"COLLATE\s+pg_catalog\.\w+", ""),
    (r"\bpg_catalog\.", ""),
    (r"\binformation_schema\.(_pg_expandarray)\b", r"\1"),
    (r"\binformation_schema\.(tables|columns|schemata|views)\b", r'_catalog."\1"'),
    (r"::\s*(regclass|regproc|regprocedure|regnamespace|regrole)\b(\[\])?", r"::VARCHAR\2"),
    (r"::\s*regtype\b(\[\])?", r"::VARCHAR\1"),
    (r"::\s*(name|\"char\"|cstring|pg_node_tree|int2vector|oidvector|aclitem)\b", "::VARCHAR"),
    (r"\bjson_build_object\s*\(", "json_object("),
    (r"::\s*xid\b", "::BIGINT"),
    (r"(?<![.])\b(session_user|current_catalog)\b(?!\s*\()", r"\1()"),
    (r"\bcurrent_database\s*\(\s*\)", "'lake'"),
)
compiled = [(re.compile(pattern, re.IGNORECASE), by) for pattern, by in rules]
of_class = re.compile(
    r"\s*::\s*(?:pg_catalog\.)?regclass\b(?:\s*::\s*(?:pg_catalog\.)?(?:oid|int8?|bigint)\b)?", re.IGNORECASE
)


def for_duckdb(sql: str) -> str:
    """The statement as DuckDB understands it."""
    found, text = list(with_casts(with_classes(with_formats(pieces_of(sql))))), ""
    for number, piece in enumerate(found):
        code = piece.text
        if piece.kind == "code":
            if number and found[number - 1].kind == "text":
                code = of_class.sub("", code, count=1) if of_class.match(code) else code
            for pattern, by in compiled:
                code = pattern.sub(by, code)
        elif piece.kind == "text" and number + 1 < len(found) and of_class.match(found[number + 1].text):
            code = f"_oid_of({code})"
        elif piece.kind == "name" and code == '"default"' and re.search(r"COLLATE\s*$", text, re.IGNORECASE):
            code = "NOCASE"
        text += code
    return text


formatted = {"to_timestamp", "to_date", "to_char"}
marks = re.compile(r"(?:\b(?P<function>\w++)\s*+)?(?P<open>[(\[{])|(?P<close>[)\]}])|,")


def with_formats(found: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, where the format of a time is that of DuckDB; a FormatError for one that is not known."""
    # The functions whose arguments are being read, each with how many of these are read already.
    reading: list[tuple[str, int]] = []
    for piece in found:
        if piece.kind == "text" and reading and reading[-1] in {(name, 1) for name in formatted}:
            text = formats.for_duckdb(piece.text[piece.text.index("'") + 1 : -1].replace("''", "'"))
            yield Piece("text", "'" + text.replace("'", "''") + "'")
            continue
        for mark in marks.finditer(piece.text) if piece.kind == "code" else ():
            if mark["open"]:
                reading.append(((mark["function"] or "").lower(), 0))
            elif mark["close"]:
                reading = reading[:-1]
            elif reading:
                function, count = reading.pop()
                reading.append((function, count + 1))
        yield piece


cast_begins = re.compile(r"\bCAST\s*\(\s*$", re.IGNORECASE)
cast_to_class = re.compile(r"\s*(::\s*\w+\s*)?\bAS\s+(pg_catalog\.)?regclass\s*\)", re.IGNORECASE)


def with_classes(found: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, in which `CAST('name' AS regclass)` is `'name'::regclass`."""
    waiting: list[Piece] = []
    for piece in found:
        waiting.append(piece)
        if len(waiting) == 3:
            before, text, after = waiting
            begins, ends = cast_begins.search(before.text), cast_to_class.match(after.text)
            if begins and ends and [each.kind for each in waiting] == ["code", "text", "code"]:
                code = Piece("code", "::regclass" + after.text[ends.end() :])
                waiting = [Piece("code", before.text[: begins.start()]), text, code]
            yield waiting.pop(0)
    yield from waiting


cast_marks = re.compile(
    r"(?:\b(?P<function>\w++)\s*+)?(?P<open>[(\[{])|(?P<close>[)\]}])"
    r"|\bAS\s+(?P<type>regclass|regproc|regnamespace|regrole|regtype|name)\b(?=\s*\))",
    re.IGNORECASE,
)


def with_casts(found: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces, in which a cast to a type that only Postgres has is one to text; elsewhere `AS name` is an alias."""
    reading: list[str] = []
    for piece in found:
        if piece.kind != "code":
            yield piece
            continue
        text, at = "", 0
        for mark in cast_marks.finditer(piece.text):
            if mark["open"]:
                reading.append((mark["function"] or "").lower())
            elif mark["close"]:
                reading = reading[:-1]
            elif reading and reading[-1] in ("cast", "try_cast"):
                text, at = f"{text}{piece.text[at : mark.start()]}AS VARCHAR", mark.end()
        yield Piece("code", text + piece.text[at:])


catalog = Path(__file__).with_name("catalog.sql")


# How Postgres prints the names of its types.
printed = {"bool": "boolean", "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real"}
printed |= {"float8": "double precision", "timestamp": "timestamp without time zone", "time": "time without time zone"}
printed |= {"timestamptz": "timestamp with time zone"}


def types_known() -> Iterator[tuple[str, int, str, str, int, int, int]]:
    """The types in which values are sent, and their arrays."""
    for name, (oid, size) in types.items():
        own = names[oid]
        array = arrays.get(oid, 0)
        yield name, oid, own, printed.get(own, own), size, array, 0
        if array:
            yield f"{name}[]", array, f"_{own}", f"{printed.get(own, own)}[]", -1, 0, oid


def prepare(found: "duckdb.DuckDBPyConnection", memory_limit: str, comments: Sequence[Comment] = ()) -> None:
    """Makes the functions and views, and gives the connection its memory; before its settings are locked."""
    found.execute("CREATE SCHEMA _catalog")
    columns = (
        "duckdb VARCHAR, oid BIGINT, typname VARCHAR, printed VARCHAR, typlen BIGINT, typarray BIGINT, typelem BIGINT"
    )
    found.execute(f"CREATE TABLE _catalog._types ({columns})")
    found.executemany("INSERT INTO _catalog._types VALUES (?, ?, ?, ?, ?, ?, ?)", list(types_known()))
    found.execute('CREATE TABLE _catalog._comments (layer VARCHAR, name VARCHAR, "column" VARCHAR, text VARCHAR)')
    if comments:
        rows = [(*each.table.split(".", 1), each.column, each.text) for each in comments]
        found.executemany("INSERT INTO _catalog._comments VALUES (?, ?, ?, ?)", rows)
    found.execute(catalog.read_text())
    values = " ".join(f"WHEN '{name}' THEN '{value}'" for name, value in settings.items())
    cases = f"CASE lower(name) {values} END"
    found.execute(f"CREATE MACRO main.current_setting(name) AS {cases}, (name, missing_ok) AS {cases}")
    serve_within(found, memory_limit)
    found.execute("SET search_path = 'gold,main'")
