"""Schemas as text: the grammar of Spark's DDL, read without a JVM.

columns:  name [:] type [NOT NULL] [COMMENT 'text'], …
type:     a word, decimal(10, 2), array<type>, or struct<columns>
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluice.errors import DeclarationError

token_pattern = re.compile(
    r"""(?x) \s+ | --[^\n]* | /\*.*?\*/
    | (?P<quoted> `(?:[^`]|``)*` )
    | (?P<text> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
    | (?P<word> \w+ )
    | (?P<sign> [<>(),:] )""",
    re.DOTALL,
)
# Each type by all of its names in Spark.
types = {
    name: kind
    for kind, names in {
        "boolean": "boolean",
        "tinyint": "tinyint byte",
        "smallint": "smallint short",
        "int": "int integer",
        "bigint": "bigint long",
        "float": "float real",
        "double": "double",
        "string": "string",
        "binary": "binary",
        "date": "date",
        "timestamp": "timestamp timestamp_ltz",
        "timestamp_ntz": "timestamp_ntz",
    }.items()
    for name in names.split()
}
decimals = ("decimal", "dec", "numeric")
integers = ("tinyint", "smallint", "int", "bigint")
refused = {
    "map": "maps cannot be compared; use array<struct<key: …, value: …>>",
    "char": "records of JSON have no lengths; use string, and expect a length with a suite",
    "varchar": "records of JSON have no lengths; use string, and expect a length with a suite",
    "interval": "tables cannot hold it; use bigint, with the unit in the name",
    "variant": "its values cannot be compared; use string, or a struct of what is needed",
    "void": "nothing is ever in it; leave it out",
    "time": "tables cannot hold it; use string, or bigint with the unit in the name",
}
# Delta refuses the first in a column's name; the others mean something in SQL, and names stand in SQL.
signs_of_delta = " ,;{}()\n\t="
signs_of_sql = ".`'\"\\"


def column_names(schema: str, dataset: str = "") -> tuple[str, ...]:
    """The top-level column names of a DDL schema such as `a string, b struct<c: int>`."""
    return tuple(column_types(schema, dataset))


def column_types(schema: str, dataset: str = "") -> dict[str, str]:
    """The top-level columns of a DDL schema, each with its type as Spark writes it; errors name the dataset."""
    prefix = f"{dataset}: schema" if dataset else "schema"
    reader = Reader(prefix, schema, tokens(prefix, schema))
    found = reader.columns()
    if reader.next is not None:
        raise reader.unexpected("a comma or the end")
    require_names(prefix, found)
    return found


def struct_fields(kind: str) -> dict[str, str] | None:
    """The fields of a struct with their types; None where the type is not a struct that can be declared."""
    try:
        reader = Reader("type", kind, tokens("type", kind))
        if not reader.take("struct", "<"):
            return None
        return reader.columns()
    except DeclarationError:
        return None


def ddl(columns: dict[str, str]) -> str:
    """Columns as a schema that Spark reads."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else "`" + name.replace("`", "``") + "`"


def struct(columns: dict[str, str]) -> str:
    return f"struct<{', '.join(f'{quoted(name)}: {kind}' for name, kind in columns.items())}>"


def require_unreserved(dataset: str, names: Iterable[str]) -> None:
    """A DeclarationError for names that Sluice may give to columns of its own."""
    reserved = [name for name in names if name.startswith("_")]
    if reserved:
        raise DeclarationError(f"{dataset}: {', '.join(reserved)}: names that begin with _ are for bookkeeping")


def require_names(prefix: str, names: Iterable[str], forbidden: str = signs_of_delta + signs_of_sql) -> None:
    """A DeclarationError where a name cannot be that of a column, or two differ by case only."""
    seen: dict[str, str] = {}
    for name in names:
        wrong = sorted({sign for sign in name if sign in forbidden})
        if wrong or not name:
            said = " ".join("a space" if sign == " " else repr(sign) for sign in wrong)
            raise DeclarationError(
                f"{prefix}: {name!r} cannot name a column: " + (f"it has {said}" if wrong else "it is empty")
            )
        folded = name.casefold()
        if folded in seen:
            raise DeclarationError(
                f"{prefix}: {seen[folded]} and {name} would be one column: names are case-insensitive"
            )
        seen[folded] = name


def is_storable(name: str) -> bool:
    """Whether a name can be that of a column."""
    return bool(name) and not any(sign in signs_of_delta + signs_of_sql for sign in name)


def tokens(prefix: str, schema: str) -> list[str]:
    """The words and signs of a schema."""
    found, position = [], 0
    while position < len(schema):
        match = token_pattern.match(schema, position)
        if match is None:
            raise DeclarationError(f"{prefix}: cannot read '{schema[position : position + 20]}' in '{schema}'")
        if match.lastgroup:
            found.append(match[0])
        position = match.end()
    return found


@dataclass
class Reader:
    """Reads a schema from its first token to its last."""

    prefix: str
    schema: str
    tokens: list[str]
    position: int = 0

    @property
    def next(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self, *wanted: str) -> bool:
        """Takes the wanted words if they come next, in any case."""
        coming = self.tokens[self.position : self.position + len(wanted)]
        is_next = [each.lower() for each in coming] == list(wanted)
        self.position += len(wanted) * is_next
        return is_next

    def require(self, wanted: str) -> None:
        if not self.take(wanted):
            raise self.unexpected(f"'{wanted}'")

    def one(self, pattern: str, meaning: str) -> str:
        """The next token, of this form."""
        found = self.next
        if found is None or not re.fullmatch(pattern, found, re.DOTALL):
            raise self.unexpected(meaning)
        self.position += 1
        return found

    def unexpected(self, wanted: str) -> DeclarationError:
        seen = "it ends" if self.next is None else f"there is {self.next}"
        before = " ".join(self.tokens[max(0, self.position - 3) : self.position])
        return DeclarationError(
            f"{self.prefix}: after '{before}' {wanted} should come, but {seen}; write 'name type, name type, …'"
        )

    def columns(self) -> dict[str, str]:
        found: list[tuple[str, str]] = []
        while not found or self.take(","):
            name = self.one(r"`.*`|\w+", "the name of a column")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            self.take(":")
            found.append((name, self.kind(name)))
            self.take("not", "null")
            if self.take("comment"):
                self.one(r"'.*'|\".*\"", "a text in quotation marks")
        require_names(self.prefix, [name for name, _ in found], signs_of_delta)
        return dict(found)

    def kind(self, column: str) -> str:
        """A type, as Spark writes it."""
        name = self.one(r"\w+", f"the type of {column}").lower()
        if name == "array":
            self.require("<")
            inner = self.kind(column)
            self.require(">")
            return f"array<{inner}>"
        if name == "struct":
            self.require("<")
            fields = self.columns()
            self.require(">")
            return struct(fields)
        if name in decimals:
            return self.decimal(column)
        if name in refused:
            raise DeclarationError(f"{self.prefix}: {column} is a {name}: {refused[name]}")
        if name not in types:
            known = ", ".join(sorted({*types.values(), "decimal(p, s)", "array<…>", "struct<…>"}))
            raise DeclarationError(f"{self.prefix}: {column} is of an unknown type '{name}'; there are {known}")
        return types[name]

    def decimal(self, column: str) -> str:
        precision, scale = 10, 0
        if self.take("("):
            precision = int(self.one(r"\d+", "the number of digits"))
            scale = int(self.one(r"\d+", "the digits after the point")) if self.take(",") else 0
            self.require(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise DeclarationError(
                f"{self.prefix}: {column} is a decimal({precision}, {scale}); there can be 38 digits, and no more of "
                "them after the point than there are"
            )
        return f"decimal({precision},{scale})"
