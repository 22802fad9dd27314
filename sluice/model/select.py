"""Reads one SELECT: text in, its clauses out, each as the text that Spark gets, with its place in the file.

sqlglot says what the statement is, and its tokens say where each clause begins. No SQL is generated: expressions stay
as they are written, without comments and with ordinary spaces, so that formatting changes no fingerprint.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from sluice.errors import DeclarationError
from sluice.model.plain import fault, fault_of_variables
from sluice.model.sql import dialect, fold, named_expression, parse, parser_faults, quoted, reading
from sluice.model.words import (
    at_depth_zero,
    clauses_of,
    closing,
    conjuncts,
    folded,
    follows_a_dot,
    is_sign,
    is_text_of,
    joined,
    listed,
    printed,
    tokens_of,
)

if TYPE_CHECKING:
    from sqlglot import Token, exp

characters_max = 100_000
# sqlglot and Spark's parser both go as deep as the text.
depth_max = 60
# Matches all of a text up to a quotation mark or a comment that is not closed.
closed = re.compile(
    r"(?s)(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|/(?!\*)|-(?!-)|[^'\"`/-])*"
)

# What a SELECT of a table cannot have, by its name in the parser: why, and what to write instead.
refused = {
    "with_": "a WITH stands before the whole SELECT",
    "order": "rows of a table have no order; leave ORDER BY out, or write QUALIFY row_number() OVER (ORDER BY …) <= 10",
    "limit": "which rows a LIMIT keeps is not stated; write QUALIFY row_number() OVER (ORDER BY …) <= 10",
    "offset": "which rows an OFFSET leaves out is not stated; write QUALIFY row_number() OVER (ORDER BY …) > 10",
    "laterals": "LATERAL VIEW makes several rows of one, which no column tells apart",
    "windows": "a WINDOW clause is not supported; write each OVER (…) in full",
    "into": "a file is a SELECT; the table is named by the file",
    "hint": "hints are not supported; leave it out",
    "sort": "rows of a table have no order; leave SORT BY out",
    "cluster": "rows of a table have no order; leave CLUSTER BY out",
    "distribute": "rows of a table have no order; leave DISTRIBUTE BY out",
    "prewhere": "write WHERE",
    "connect": "a recursive query is not bounded by what changed",
    "match": "MATCH_RECOGNIZE is not supported; declare a gold.state in Python",
    "pivots": "PIVOT is not supported; write a measure with FILTER (WHERE …) for each value",
    "kind": "SELECT AS is not supported; name the columns",
    "operation_modifiers": "leave the word after SELECT out",
    "locks": "leave FOR UPDATE out",
    "sample": "a sample is another one each time; write a condition in WHERE",
    "settings": "leave SETTINGS out",
    "format": "leave FORMAT out",
    "options": "leave OPTION out",
}
predicates = ("BETWEEN", "GT", "GTE", "ILIKE", "IN", "IS", "LIKE", "LT", "LTE", "NEQ", "NOT", "RLIKE")
supported = ("expressions", "distinct", "from_", "joins", "where", "group", "having", "qualify")


@dataclass(frozen=True)
class Part:
    """An expression as Spark gets it, and where it begins."""

    text: str
    place: str = ""
    name: str | None = None

    def error(self, message: str) -> DeclarationError:
        return DeclarationError(f"{self.place}: {message}")


@dataclass(frozen=True)
class Table:
    """A table that is read: its name as written, its alias, and `as_of` the time of the version that is wanted."""

    name: str
    alias: str
    at: Part
    as_of: Part | None = None


@dataclass(frozen=True)
class JoinClause:
    """A table that is joined, how (`inner`, `left`, …), and by what: a condition, or the columns of USING.

    `equal` are the sides of the equalities that must all hold; with `is_equal_only` the condition says nothing else.
    """

    table: Table
    how: str
    on: Part
    equal: tuple[tuple[Part, Part], ...] = ()
    using: tuple[str, ...] = ()
    is_equal_only: bool = True


@dataclass(frozen=True)
class Select:
    """The clauses of a SELECT. `groups` is empty without GROUP BY, and None for GROUP BY ALL.

    `inner` is the SELECT in brackets that is read instead of a table.
    """

    at: Part
    items: tuple[Part, ...]
    source: Table
    joins: tuple[JoinClause, ...] = ()
    where: Part | None = None
    groups: tuple[Part, ...] | None = ()
    having: Part | None = None
    qualify: Part | None = None
    inner: "Select | None" = None

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that are read, in the order in which they are named."""
        return self.inner.tables if self.inner else (self.source, *(each.table for each in self.joins))

    def require_not_made(self, name: str, part: Part) -> None:
        """A DeclarationError where an expression reads what another one of this SELECT makes."""
        made = [each for each in self.items if fold(each.text).rpartition(".")[2].strip("`") != fold(each.name or "")]
        if fold(name) in {fold(each.name or "") for each in made}:
            raise part.error(f"{name} is made by this SELECT and no column of a table; write its expression once more")

    @property
    def is_import(self) -> bool:
        """Whether it is SELECT * FROM a table."""
        is_all = [each.text for each in self.items] == ["*"]
        others = self.joins or self.where or self.groups != () or self.having or self.qualify or self.source.as_of
        return is_all and not others

    @property
    def is_plain(self) -> bool:
        """Whether it is columns of one table as they are, of the rows that WHERE keeps."""
        others = self.joins or self.groups != () or self.having or self.qualify or self.inner or self.source.as_of
        return not others and all(each.text == "*" or self.is_column(each) for each in self.items)

    def is_column(self, item: Part) -> bool:
        return folded(self.bare(item).text) == [fold(item.name or "")]

    def bare(self, part: Part) -> Part:
        """The expression without the name of the only table before its columns: `o.amount` is `amount`."""
        return replace(part, text=without_qualifier(part.text, self.source))


def merged(select: Select) -> Select:
    """One SELECT for one that reads another one, where that can be said in one."""
    inner = select.inner
    if inner is None:
        return select
    if select.is_import:
        return inner
    if not inner.is_plain:
        return select
    table = replace(inner.source, alias=select.source.alias or inner.source.alias)
    found = [inner.bare(inner.where)] if inner.where else []
    found += [replace(select.where, text=without_qualifier(select.where.text, table))] if select.where else []
    both = " AND ".join(f"({each.text})" for each in found)
    where = replace(found[-1], text=both if len(found) > 1 else found[0].text) if found else None
    has_all = any(each.text == "*" for each in inner.items)
    items = [one for each in select.items for one in (inner.items if each.text == "*" and not has_all else [each])]
    result = replace(select, items=tuple(items), source=table, where=where, inner=None)
    if not has_all:
        require_selected(result, select, {fold(each.name or "") for each in inner.items})
    return result


def require_selected(result: Select, outer: Select, names: set[str]) -> None:
    """A DeclarationError where the outer of two SELECTs reads what the inner one does not select."""
    others = (outer.where, outer.having, outer.qualify)
    made = {fold(each.name or "") for each in outer.items}
    for part in (*outer.items, *(outer.groups or ()), *(each for each in others if each)):
        found = reading(result.bare(part).text)
        for parts in found.columns if found else ():
            # Other clauses may read what the outer SELECT makes.
            if fold(parts[0]) not in (names if part in (*outer.items, outer.where) else names | made):
                raise part.error(f"the SELECT that is read here has no column {parts[0]}")


def read(text: str, place: str) -> Select:
    """The SELECT of a text; a DeclarationError says where in it what cannot be read, or has no place in a table."""
    try:
        return Reader(text, place).statement()
    except RecursionError:
        raise DeclarationError(
            f"{place}:1:1: this is nested too deep to be read; split it into several tables"
        ) from None


@dataclass
class Reader:
    """Reads the text of a file, whose name errors begin with."""

    text: str
    place: str
    # What WITH names, and those of them that were read.
    named: dict[str, Select] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def statement(self) -> Select:
        import sqlglot
        from sqlglot import exp

        self.require_readable()
        self.tokens = tokens_of(self.text)
        if not self.tokens:
            self.fail(0, "there is no SELECT here")
        self.require_one_select()
        try:
            found = sqlglot.parse(self.with_calls(), dialect=dialect)
        except RecursionError:
            raise
        except (sqlglot.errors.SqlglotError, *parser_faults) as error:
            self.fail_of(error)
        parsed = [each for each in found if each is not None and not isinstance(each, exp.Semicolon)]
        if len(parsed) != 1:
            self.fail(0, "a file is one SELECT; put others into files of their own")
        tokens = [each for each in self.tokens if each.token_type.name != "SEMICOLON"]
        read_one = self.select_after_with if tokens[0].token_type.name == "WITH" else self.select
        return read_one(parsed[0], tokens)

    def select_after_with(self, parsed: "exp.Expr", tokens: "Sequence[Token]") -> Select:
        """The SELECT that follows a WITH; it reads all that this names."""
        found = parsed.args.pop("with_", None)
        if found is None or found.args.get("recursive"):
            self.fail(tokens[0].start, "a WITH that reads itself is not bounded by what changed")
        starts: dict[str, Token] = {}
        rest = tokens[1:]
        for at, each in enumerate(found.expressions):
            end = closing(rest[2:]) if len(rest) > 2 and is_sign(rest[2], "(") else None
            if end is None or fold(each.alias) in self.named:
                self.fail(rest[0].start, "write WITH name AS (SELECT …), and no name twice")
            name = fold(each.alias)
            starts[name] = rest[0]
            self.named[name] = self.select(each.this, rest[3 : 2 + end])
            is_last = at == len(found.expressions) - 1
            rest = rest[3 + end + (not is_last) :]
        made = self.select(parsed, rest)
        for name, start in starts.items():
            if name not in self.seen:
                self.fail(start.start, f"{name} is named and not read; leave it out")
        return made

    def with_calls(self) -> str:
        """The text, in which the parser takes no call of window() for a WINDOW clause."""
        text = self.text
        for at, each in enumerate(self.tokens[:-1]):
            if each.token_type.name == "WINDOW" and is_sign(self.tokens[at + 1], "("):
                text = f"{text[: each.start]}_indow{text[each.end + 1 :]}"
        return text

    def require_readable(self) -> None:
        if len(self.text) > characters_max:
            self.fail(0, f"this is longer than {characters_max:,} characters, which no table needs; split it")
        wrong = re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", self.text)
        if wrong:
            self.fail(wrong.start(), f"U+{ord(wrong[0]):04X} is no character of SQL")
        end = match.end() if (match := closed.match(self.text)) else 0
        if end < len(self.text):
            self.fail(end, "what is quoted or commented here is not closed")

    def require_one_select(self) -> None:
        first, depth = self.tokens[0], 0
        for at, each in enumerate(self.tokens):
            depth += is_sign(each, "([") - is_sign(each, ")]")
            if depth > depth_max:
                self.fail(each.start, "this is nested too deep to be read; split it into several tables")
            if depth < 0:
                self.fail(each.start, "this bracket closes none")
            if self.text[each.start] == '"':
                self.fail(
                    each.start,
                    f"Spark takes {each.text[:40]!r} in double quotes for a text and no column; write "
                    f"`{each.text[:40]}` for a column, and '{each.text[:40]}' for a text",
                )
            if each.token_type.name in ("UNION", "EXCEPT", "INTERSECT") and not follows_a_dot(self.tokens, at):
                self.fail(
                    each.start,
                    f"{each.text.upper()} has no keys by which a change is found; put each SELECT into a file of its "
                    "own, and unite them by keys in Python, in a gold.view whose shape is a function",
                )
            if each.token_type.name in ("PARAMETER", "PLACEHOLDER", "L_BRACE"):
                self.fail(
                    each.start,
                    f"'{each.text}' is no SQL; nothing is put into the text of a table. Name others so: silver.orders",
                )
            if each.token_type.name == "SEMICOLON" and at < len(self.tokens) - 1:
                self.fail(
                    self.tokens[at + 1].start, "a file is one SELECT; put what follows the ; into a file of its own"
                )
        if first.token_type.name not in ("SELECT", "WITH"):
            self.fail(first.start, f"a table is a SELECT, and this begins with {first.text[:20]}")

    def select(self, parsed: "exp.Expr", tokens: "Sequence[Token]") -> Select:
        """The clauses of a SELECT, whose tokens these are."""
        from sqlglot import exp

        if not isinstance(parsed, exp.Select) or not tokens or tokens[0].token_type.name != "SELECT":
            self.fail(tokens[0].start if tokens else 0, "a table is one SELECT")
        clauses = dict(clauses_of(tokens))
        for name, found in parsed.args.items():
            if found and name not in supported:
                what = refused.get(name, f"{name.strip('_').upper()} is not supported")
                self.fail(self.where_of(name, clauses, tokens), what)
        for each in clauses.values():
            if len(each) == 1:
                self.fail(each[0].start, f"nothing follows {each[0].text.upper()}")
        if "FROM" not in clauses or len(clauses["FROM"]) < 2:
            self.fail(tokens[0].start, "there is no FROM: say which table is read")
        named = clauses["SELECT"][1:]
        is_distinct = parsed.args.get("distinct") is not None
        if is_distinct:
            self.require_distinct_alone(parsed, named[0])
            named = named[1:]
        if named and is_sign(named[-1], ","):
            self.fail(named[-1].start, "no column follows this comma")
        items = tuple(self.item(each) for each in listed(named))
        if len(items) != len(parsed.expressions) or any(not each.text for each in items):
            self.fail(tokens[0].start, "the columns of this SELECT cannot be told apart")
        source, joins, inner = self.tables_of(parsed, clauses["FROM"][1:])
        group = parsed.args.get("group")
        several = exp.Cube | exp.Rollup | exp.GroupingSets
        if group is not None and (group.args.get("totals") or group.find(several)):
            self.fail(
                clauses["GROUP_BY"][0].start, "several groupings at once are not supported; write a table for each"
            )
        # The rows of DISTINCT are groups without measures.
        groups: tuple[Part, ...] | None = None if is_distinct else ()
        if group is not None:
            is_all = bool(group.args.get("all"))
            groups = None if is_all else tuple(self.part(each) for each in listed(clauses["GROUP_BY"][1:]))
        found = Select(
            at=self.part(tokens[:1]),
            items=items,
            source=source,
            joins=joins,
            where=self.clause(clauses, "WHERE"),
            groups=groups,
            having=self.clause(clauses, "HAVING"),
            qualify=self.clause(clauses, "QUALIFY"),
            inner=inner,
        )
        found = merged(found)
        self.require_plain(found)
        return found

    def require_distinct_alone(self, parsed: "exp.Select", distinct: "Token") -> None:
        """DISTINCT is of all columns, and of rows that are neither grouped nor ranked."""
        from sqlglot import exp

        if parsed.args["distinct"].args.get("on"):
            self.fail(
                distinct.start,
                "DISTINCT ON is not supported; write QUALIFY row_number() OVER (…) = 1",
            )
        if parsed.args.get("group") or parsed.find(exp.Window, exp.AggFunc):
            self.fail(
                distinct.start,
                "DISTINCT cannot stand beside GROUP BY, OVER or a measure; put it into a file of its own",
            )

    def clause(self, clauses: "Mapping[str, Sequence[Token]]", name: str) -> Part | None:
        return self.part(clauses[name][1:]) if name in clauses else None

    def item(self, tokens: "Sequence[Token]") -> Part:
        """A column of the result, with its name."""
        found = self.part(tokens)
        name, text = named_expression(found.text)
        if fold(text) == "null":
            raise found.error(f"NULL alone has no type; write CAST(NULL AS string) AS {name or '…'}")
        return replace(found, text=text, name=name)

    def part(self, tokens: "Sequence[Token]") -> Part:
        return Part(printed(self.text, tokens), self.at(tokens[0].start) if tokens else self.at(0))

    def tables_of(
        self, parsed: "exp.Select", tokens: "Sequence[Token]"
    ) -> tuple[Table, tuple[JoinClause, ...], Select | None]:
        """What FROM reads: a table with what is joined to it, or a SELECT in brackets."""
        from sqlglot import exp

        pieces = list(joined(tokens))
        first = parsed.args["from_"].this if parsed.args.get("from_") else None
        clauses = parsed.args.get("joins") or []
        if len(pieces) != len(clauses) + 1:
            self.fail(tokens[0].start, "the tables of this FROM cannot be told apart; join them with JOIN … ON …")
        if isinstance(first, exp.Subquery):
            end = closing(tokens)
            if clauses or end is None:
                self.fail(
                    tokens[0].start, "a SELECT in brackets is no table; put it into a file of its own, and read that"
                )
            self.require_no_more(first, tokens[0])
            inner = self.select(first.this, tokens[1:end])
            return Table("", first.alias, self.part(tokens[:1])), (), inner
        if first is None:
            self.fail(tokens[0].start, "what this FROM reads cannot be told")
        named = self.named_by(first)
        if named is not None and not named.is_import and not clauses:
            return Table("", first.alias_or_name, self.part(tokens[:1])), (), named
        source = self.table(first, pieces[0])
        return source, tuple(map(self.join, clauses, pieces[1:])), None

    def named_by(self, node: "exp.Expr") -> Select | None:
        """The SELECT that WITH gives a name, where that is what is read."""
        from sqlglot import exp

        name = fold(node.name) if isinstance(node, exp.Table) and len(node.parts) == 1 else ""
        if name in self.named:
            self.seen.add(name)
        return self.named.get(name)

    def require_no_more(self, node: "exp.Expr", token: "Token") -> None:
        for name, found in node.args.items():
            if found and name not in ("this", "alias", "catalog", "db", "version"):
                self.fail(token.start, refused.get(name, f"{name.strip('_').upper()} is not supported here"))

    def table(self, node: "exp.Expr", tokens: "Sequence[Token]") -> Table:
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            self.fail(tokens[0].start, "a SELECT in brackets is no table; put it into a file of its own, and read that")
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            self.fail(
                tokens[0].start, f"{printed(self.text, tokens)[:60]} is no table; write for example silver.orders"
            )
        self.require_no_more(node, tokens[0])
        names = [part.name for part in node.parts]
        inner = self.named_by(node)
        if inner is not None and not inner.is_import:
            self.fail(tokens[0].start, f"{names[0]} is joined, so put its SELECT into a file of its own, and join that")
        name = inner.source.name if inner else ".".join(names)
        if any("." in each for each in names):
            self.fail(tokens[0].start, f"{name} names no table; write its layer and its name, such as silver.orders")
        as_of = None
        version = node.args.get("version")
        if version is not None:
            words = [each.text.upper() for each in tokens]
            if version.this != "TIMESTAMP" or version.args.get("kind") != "AS OF" or "OF" not in words:
                self.fail(tokens[0].start, "a version is that of a time: write FOR SYSTEM_TIME AS OF o.placed_at")
            # The time is a column, so it goes on as long as names and dots do.
            start = words.index("OF") + 1
            end = start + 1
            while end + 1 < len(tokens) and tokens[end].text == ".":
                end += 2
            as_of = self.part(tokens[start:end])
        has_as = any(fold(each.text) == "as" and not quoted(each) for each in tokens)
        if version is None and len(tokens) != 2 * len(names) - 1 + (1 + has_as if node.alias else 0):
            self.fail(tokens[0].start, f"'{printed(self.text, tokens)[:60]}' is more than a table and its name")
        return Table(name, node.alias or node.name, self.part(tokens[:1]), as_of)

    def join(self, node: "exp.Join", tokens: "Sequence[Token]") -> JoinClause:
        """A joined table, with the equalities that must all hold."""
        kinds = [each.token_type.name for each in tokens]
        if kinds[0] == "COMMA" or "CROSS" in kinds[:2] or "NATURAL" in kinds[:2] or node.method:
            self.fail(tokens[0].start, "say by which columns the tables are joined: JOIN … ON a.id = b.a_id")
        after = kinds.index("JOIN") + 1
        end = next((at for at in range(after, len(tokens)) if kinds[at] in ("ON", "USING")), len(tokens))
        table = self.table(node.this, tokens[after:end])
        side, kind = node.side.lower(), node.kind.lower()
        how = f"left_{kind}" if kind in ("semi", "anti") else side or "inner"
        if kind not in ("", "inner", "outer", "semi", "anti") or side not in ("", "left", "right", "full"):
            self.fail(tokens[0].start, f"{printed(self.text, tokens[:after])} is not supported")
        if kind in ("semi", "anti") and side not in ("", "left"):
            self.fail(tokens[0].start, f"write LEFT {kind.upper()} JOIN")
        if using := node.args.get("using"):
            return JoinClause(table, how, self.part(tokens[end:]), using=tuple(each.name for each in using))
        if node.args.get("on") is None or end == len(tokens):
            self.fail(tokens[0].start, "say by which columns the tables are joined: JOIN … ON a.id = b.a_id")
        if len(tokens) == end + 1:
            self.fail(tokens[end].start, "nothing follows ON")
        on = self.part(tokens[end + 1 :])
        found = list(self.equalities(tokens[end + 1 :]))
        equal = tuple(each for each in found if each is not None)
        return JoinClause(table, how, on, equal, is_equal_only=len(equal) == len(found))

    def equalities(self, tokens: "Sequence[Token]") -> Iterator[tuple[Part, Part] | None]:
        """The sides of each equality that must hold, and None for each other condition."""
        from sqlglot import exp

        for each in conjuncts(tokens):
            if closing(each) == len(each) - 1:
                yield from self.equalities(each[1:-1])
                continue
            signs = [at for at, sign in at_depth_zero(each) if sign.token_type.name in ("EQ", "NULLSAFE_EQ")]
            is_equality = isinstance(parse(printed(self.text, each)), exp.EQ | exp.NullSafeEQ)
            # Spark takes `a = b IN (c)` for `(a = b) IN (c)`.
            others = [sign for _, sign in at_depth_zero(each) if sign.token_type.name in predicates]
            if is_equality and len(signs) == 1 and not others:
                yield self.part(each[: signs[0]]), self.part(each[signs[0] + 1 :])
            else:
                yield None

    def require_plain(self, found: Select) -> None:
        """No expression is a SELECT, or goes by what the row does not say."""
        on = [each.on for each in found.joins if not each.using]
        others = [each for each in (found.where, found.having, found.qualify) if each is not None]
        names = {fold(each.alias) for each in found.tables}
        for part in (*found.items, *(found.groups or ()), *on, *others):
            said = fault(part.text) or fault_of_variables(part.text, names)
            if said:
                raise part.error(said)

    def where_of(self, name: str, clauses: "Mapping[str, Sequence[Token]]", tokens: "Sequence[Token]") -> int:
        """Where a clause begins, as far as that is known."""
        known = {"order": "ORDER_BY", "limit": "LIMIT", "offset": "OFFSET", "joins": "FROM"}
        named = clauses.get(known.get(name, ""))
        if named:
            return named[0].start
        words = {
            "distinct": "DISTINCT",
            "laterals": "LATERAL",
            "windows": "WINDOW",
            "sort": "SORT_BY",
            "pivots": "PIVOT",
        }
        return next((each.start for each in tokens if each.token_type.name == words.get(name)), tokens[0].start)

    def at(self, position: int) -> str:
        """`file:line:column` of a position."""
        line = self.text.count("\n", 0, position) + 1
        return f"{self.place}:{line}:{position - self.text.rfind(chr(10), 0, position)}"

    def fail(self, position: int, message: str) -> NoReturn:
        raise DeclarationError(f"{self.at(position)}: {message}")

    def fail_of(self, error: "Exception") -> NoReturn:
        """Raises what the parser says, at its place."""
        matches = re.search(r"(?i)\bMATCH_RECOGNIZE\b", self.text)
        if matches is not None:
            self.fail(matches.start(), "MATCH_RECOGNIZE is declared in Python, with silver.pattern")
        first: dict[str, Any] = next(iter(getattr(error, "errors", [])), {})
        said = f"near {first['highlight'][:40]!r}" if first.get("highlight") else "at the end"
        line, column = first.get("line") or 1, first.get("col") or 1
        start = sum(len(each) + 1 for each in self.text.split("\n")[: line - 1])
        position = max(start, start + column - len(first.get("highlight") or " "))
        raise DeclarationError(f"{self.at(position)}: this is no SQL that can be read, {said}") from None


def without_qualifier(text: str, table: Table) -> str:
    """An expression of one table without that table's name before its columns."""
    found = tokens_of(text)
    names = [[table.alias], *([table.name.split(".")] if table.name.endswith(f".{table.alias}") else [])]
    kept: list[Token] = []
    at = 0
    while at < len(found):
        begins = at == 0 or found[at - 1].text != "."
        for name in sorted(names, key=len, reverse=True):
            length = 2 * len(name)
            wanted = [sign for part in name for sign in (fold(part), ".")]
            is_name = [fold(each.text) for each in found[at : at + length]] == wanted
            if begins and is_name and not any(is_text_of(each, text) for each in found[at : at + length]):
                at += length
                break
        if at < len(found):
            kept.append(found[at])
        at += 1
    return printed(text, kept)
