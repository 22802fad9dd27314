"""One connection of a client: its messages, its statements, and the versions of the tables that it sees."""

import re
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import duckdb
import pyarrow as pa

from sluice.operate.postgres import dialect, wire
from sluice.operate.postgres.columns import data_rows, is_known
from sluice.operate.postgres.formats import FormatError
from sluice.operate.postgres.values import column_of, encoder, literal, null_of
from sluice.operate.postgres.wire import Column, ProtocolError
from sluice.operate.query import only_reads, size_of, value_bytes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

Part = TypeVar("Part")
Encoder = Callable[[Any], bytes | None]
rows_at_once = 5000
# Of a connection: how many statements, and portals, and the characters of all of them.
prepared_max, kept_max = 1000, 32 * 2**20
less = "Ask for fewer rows or shorter values, or give more: sluice serve sql --memory, --server-memory."
# Of one row, which is held several times while it is encoded; and of those that are encoded together, about.
row_bytes_max, piece_bytes = 64 * 2**20, 8 * 2**20
# Of the newest tables: how many statements are kept bound, none of them longer than this.
relations_max, kept_characters_max = 100, 10_000
begins, ends = {"BEGIN", "START"}, {"COMMIT", "END", "ROLLBACK", "ABORT"}
ignored = {"SET", "RESET", "DISCARD", "DEALLOCATE", "LISTEN", "UNLISTEN", "NOTIFY", "SAVEPOINT", "RELEASE", "CLOSE"}
reads = {"SELECT", "WITH", "VALUES", "TABLE", "FROM", "EXPLAIN", "DESCRIBE", "SUMMARIZE", "PIVOT", "UNPIVOT"}
explains = re.compile(r"[\s(]*EXPLAIN\s*(\([^)]*\)|ANALYZE\b)?", re.IGNORECASE)
# By the beginning of DuckDB's message, or its kind of error.
states: tuple[tuple[type[Exception], str, str], ...] = (
    (duckdb.InterruptException, "", "57014"),
    (duckdb.ParserException, "", "42601"),
    (duckdb.CatalogException, "Catalog Error: Table", "42P01"),
    (duckdb.CatalogException, "", "42883"),
    (duckdb.BinderException, "", "42703"),
    (duckdb.ConversionException, "", "22P02"),
    (duckdb.OutOfRangeException, "", "22003"),
    (duckdb.PermissionException, "", "42501"),
    (duckdb.Error, "", "22000"),
)
# Arrow has no more than DuckDB's message of what fails after the first rows.
kinds_in_arrow: dict[str, type[duckdb.Error]] = {
    "INTERRUPT Error": duckdb.InterruptException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
    "Conversion Error": duckdb.ConversionException,
    "Out of Range Error": duckdb.OutOfRangeException,
}


class StatementError(Exception):
    """A statement cannot be answered; `state` is the SQLSTATE."""

    def __init__(self, state: str, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.state, self.hint = state, hint


class Source(Protocol):
    """Where a session gets its tables."""

    def is_newest(self, versions: object) -> bool: ...

    def connect(self) -> "tuple[object, DuckDBPyConnection]":
        """The versions of the tables, and a connection in which they are."""

    def release(self, versions: object, connection: "DuckDBPyConnection") -> None:
        """Takes back the connection."""


@dataclass
class Rows:
    """Rows of an answer that wait for the client; those of Arrow are encoded column by column."""

    rows: "Sequence[Sequence[Any]] | pa.Table" = ()
    at: int = 0

    @property
    def left(self) -> int:
        return len(self.rows) - self.at

    def taken(self, count: int, oids: Sequence[int], formats: Sequence[int]) -> bytes:
        """The messages of the next rows."""
        start, self.at = self.at, self.at + count
        if isinstance(self.rows, pa.Table):
            batches = self.rows.slice(start, count).to_batches()
            return b"".join(data_rows(batch, oids, formats) for batch in batches)
        by_column = [encoder(*each) for each in zip(oids, formats, strict=True)]
        return b"".join(wire.data_row(encoded(row, by_column)) for row in self.rows[start : self.at])

    @property
    def bytes(self) -> int:
        """What they take, about."""
        if isinstance(self.rows, pa.Table):
            return self.rows.nbytes
        return len(self.rows) * len(self.rows[0]) * value_bytes if self.rows else 0


@dataclass
class Answer:
    """What a statement gives: columns and rows, or just a tag."""

    tag: str
    columns: Sequence[Column] = ()
    rows: Rows = field(default_factory=Rows)
    count: int = 0
    has_rows: bool = False


@dataclass(frozen=True)
class Statement:
    sql: str
    types: Sequence[int]


@dataclass
class Portal:
    sql: str
    formats: Sequence[int]
    answer: Answer | None = None


@dataclass
class Session:
    """Answers the messages of one client; `send` takes what goes to it. An answer may have `bytes_max`."""

    source: Source
    send: "Any"
    seconds_max: float
    bytes_max: int = 10**9
    status: str = "I"
    relations: "dict[str, DuckDBPyRelation]" = field(default_factory=dict)
    statements: dict[str, Statement] = field(default_factory=dict)
    portals: dict[str, Portal] = field(default_factory=dict)
    connection: "DuckDBPyConnection | None" = None
    versions: object = None
    is_fresh: bool = False
    is_skipping: bool = False
    ended: str = ""
    deadline: float | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def close(self) -> None:
        # Whoever gets it next is not to be cancelled in place of this session.
        with self.lock:
            connection, self.connection = self.connection, None
        if connection is not None:
            self.source.release(self.versions, connection)

    def cancel(self, why: str = "canceling statement due to user request") -> None:
        """Ends the statement that is under way, from another thread."""
        with self.lock:
            if self.connection is not None:
                self.ended = why
                with suppress(duckdb.Error):
                    self.connection.interrupt()

    def cancel_if_late(self) -> None:
        """Ends the statement that is under way if it takes too long, from another thread."""
        with self.lock:
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.deadline = None
                self.cancel(f"canceling statement due to statement timeout ({self.seconds_max:g} s)")

    def take(self, kind: str, body: bytes) -> None:
        """Answers one message; a ProtocolError when it is none, after which the client is not understood any more."""
        if self.is_skipping and kind != "S":
            return
        try:
            self.answered(kind, body)
        except StatementError as error:
            self.fail(error.state, str(error), error.hint)
            self.is_skipping = kind != "Q"
            if kind == "Q":
                self.ready()

    def answered(self, kind: str, body: bytes) -> None:
        match kind:
            case "Q":
                self.simple(wire.query_of(body))
            case "P":
                self.parse(wire.parse_of(body))
            case "B":
                self.bind(wire.bind_of(body))
            case "D":
                self.describe(wire.named_of(body))
            case "E":
                self.execute(wire.execute_of(body))
            case "C":
                self.forget(wire.named_of(body))
            case "S":
                self.is_skipping = False
                self.ready()
            # A flush, of which there is nothing to do, and what is left of a COPY that was refused.
            case "H" | "d" | "c" | "f":
                pass
            case _:
                raise ProtocolError(f"a message of type {kind!r} is not known here")

    def fail(self, state: str, text: str, hint: str = "") -> None:
        if self.status == "T":
            self.status = "E"
        self.send(wire.error("ERROR", state, text, hint))

    def ready(self) -> None:
        """The client may go on; outside a transaction the next statement sees the newest tables."""
        if self.status == "I":
            self.portals.clear()
            self.is_fresh = False
        self.send(wire.message("Z", self.status.encode()))

    def simple(self, text: str) -> None:
        found = statements(text)
        if not found:
            self.send(wire.message("I"))
        for sql in found:
            answer = self.answer(sql)
            with self.limited():
                if answer.has_rows:
                    formats = [0] * len(answer.columns)
                    self.send(wire.row_description(answer.columns, formats))
                    self.send_rows(answer, formats, 0)
                self.send(wire.message("C", wire.text(done(answer))))
        self.ready()

    def parse(self, asked: wire.Parse) -> None:
        found = statements(asked.sql)
        if len(found) > 1:
            raise StatementError("42601", "cannot insert multiple commands into a prepared statement")
        if asked.name and asked.name in self.statements:
            raise StatementError("42P05", f'prepared statement "{asked.name}" already exists')
        sql = found[0] if found else ""
        self.require_room(sql, asked.name, self.statements)
        count = dialect.parameters_in(sql)
        if count > 32767:
            raise StatementError("54023", "too many parameters")
        types = [*asked.types, *[0] * (count - len(asked.types))]
        self.statements[asked.name] = Statement(sql, types)
        self.send(wire.message("1"))

    def bind(self, asked: wire.Bind) -> None:
        statement = self.statement(asked.statement)
        if len(asked.values) != len(statement.types):
            given, wanted = len(asked.values), len(statement.types)
            raise StatementError("08P01", f"{given} parameters were given for a statement that has {wanted}")
        forms = [*asked.formats] if len(asked.formats) > 1 else [*asked.formats, 0][:1] * len(asked.values)
        try:
            literals = [literal(*each) for each in zip(asked.values, statement.types, forms, strict=True)]
        except ProtocolError as error:
            raise StatementError(error.state, str(error)) from error
        sql = dialect.filled(statement.sql, literals)
        self.require_room(sql, asked.portal, self.portals)
        self.portals[asked.portal] = Portal(sql, asked.result_formats)
        self.send(wire.message("2"))

    def require_room(self, sql: str, name: str, among: "Mapping[str, Statement] | Mapping[str, Portal]") -> None:
        """A StatementError where a client keeps more statements or bound ones than anybody needs."""
        if name not in among and len(among) >= prepared_max:
            raise StatementError("53400", f"there are {prepared_max} prepared statements already; close some")
        kept: list[Statement | Portal] = [*self.statements.values(), *self.portals.values()]
        if sum(len(each.sql) for each in kept) + len(sql) > kept_max:
            raise StatementError("53400", "the prepared statements are too long together; close some")

    def describe(self, asked: wire.Named) -> None:
        if asked.kind == "P":
            portal = self.portal(asked.name)
            answer = self.opened(portal)
            self.send_description(answer.columns, self.formats(portal, answer)) if answer.has_rows else self.no_data()
            return
        statement = self.statement(asked.name)
        types = [each or 25 for each in statement.types]
        self.send(wire.message("t", struct.pack(f"!h{len(types)}I", len(types), *types)))
        columns = self.columns(dialect.filled(statement.sql, [null_of(each) for each in statement.types]))
        self.send_description(columns, [0] * len(columns)) if columns is not None and columns else self.no_data()

    def send_description(self, columns: Sequence[Column], formats: Sequence[int]) -> None:
        self.send(wire.row_description(columns, formats))

    def no_data(self) -> None:
        self.send(wire.message("n"))

    def execute(self, asked: wire.Execute) -> None:
        portal = self.portal(asked.portal)
        if not portal.sql:
            self.send(wire.message("I"))
            return
        answer = self.opened(portal)
        with self.limited():
            if answer.has_rows and not self.send_rows(answer, self.formats(portal, answer), max(0, asked.rows_max)):
                self.send(wire.message("s"))
                return
            self.send(wire.message("C", wire.text(done(answer))))

    def forget(self, asked: wire.Named) -> None:
        of: dict[str, Any] = self.statements if asked.kind == "S" else self.portals
        of.pop(asked.name, None)
        self.send(wire.message("3"))

    def statement(self, name: str) -> Statement:
        if name not in self.statements:
            raise StatementError("26000", f'prepared statement "{name}" does not exist')
        return self.statements[name]

    def portal(self, name: str) -> Portal:
        if name not in self.portals:
            raise StatementError("34000", f'portal "{name}" does not exist')
        return self.portals[name]

    def opened(self, portal: Portal) -> Answer:
        """The portal's answer, made when it is first needed."""
        if portal.answer is None:
            portal.answer = self.answer(portal.sql) if portal.sql else Answer("")
        return portal.answer

    def formats(self, portal: Portal, answer: Answer) -> Sequence[int]:
        given = portal.formats
        if len(given) not in (0, 1, len(answer.columns)):
            raise StatementError("08P01", f"{len(given)} formats were given for {len(answer.columns)} columns")
        return given if len(given) > 1 else [*given, 0][:1] * len(answer.columns)

    def send_rows(self, answer: Answer, formats: Sequence[int], rows_max: int) -> bool:
        """Sends rows, at most so many (0: all); whether there are no more."""
        oids = [column.oid for column in answer.columns]
        left = min(rows_max or answer.rows.left, answer.rows.left)
        while left:
            count = min(left, rows_at_once, max(1, piece_bytes * len(answer.rows.rows) // (answer.rows.bytes + 1)))
            try:
                with said():
                    messages = answer.rows.taken(count, oids, formats)
            except ProtocolError as error:
                raise StatementError(error.state, str(error)) from error
            self.send(messages)
            answer.count += count
            left -= count
        return answer.rows.left == 0

    def answer(self, sql: str) -> Answer:
        """What a statement gives."""
        word = dialect.first_word(sql)
        if self.status == "E" and word not in ends:
            raise StatementError(
                "25P02", "current transaction is aborted, commands ignored until end of transaction block"
            )
        if word in begins:
            self.refresh()
            self.status = "T"
            return Answer("BEGIN")
        if word in ends:
            # ROLLBACK TO a savepoint goes on, with nothing to undo.
            if not re.match(r"ROLLBACK\s+(\w+\s+)?TO\b", sql, re.IGNORECASE):
                self.status = "I"
            else:
                self.status = "T"
            return Answer("ROLLBACK" if word in ("ROLLBACK", "ABORT") else "COMMIT")
        if word in ignored:
            return Answer("CLOSE CURSOR" if word == "CLOSE" else word)
        if word == "SHOW":
            return shown(sql)
        return self.read(sql)

    def read(self, sql: str) -> Answer:
        # All of it, because another statement may come before the client has read all of this one.
        with self.limited() as connection:
            if dialect.first_word(sql) != "EXPLAIN":
                relation = self.relation(connection, sql)
                kinds = relation.types
                columns = [column_of(name, str(kind)) for name, kind in zip(relation.columns, kinds, strict=True)]
                if all(map(is_known, kinds)):
                    # A result of `execute` would give Arrow all of its rows at once, however many they are.
                    with closing(relation.to_arrow_reader(rows_at_once)) as reader:
                        batches = self.within_bytes(map(with_short_rows, streamed(reader)), lambda batch: batch.nbytes)
                        table = pa.Table.from_batches(batches, reader.schema)
                    return Answer("SELECT", columns, Rows(table), has_rows=True)
            found = connection.execute(readable(sql))
            columns = [column_of(each[0], str(each[1])) for each in found.description or []]
            parts = iter(lambda: found.fetchmany(rows_at_once), [])
            try:
                rows = self.within_bytes(parts, lambda some: sum(size_of(row) for row in some))
            except StatementError:
                connection.abort()
                raise
            return Answer("SELECT", columns, Rows([*chain.from_iterable(rows)]), has_rows=True)

    def within_bytes(self, parts: Iterable[Part], size: Callable[[Part], int]) -> list[Part]:
        """All parts of an answer; a StatementError where they are more than a client may have here at a time."""
        kept, total = [], sum(portal.answer.rows.bytes for portal in self.portals.values() if portal.answer)
        for part in parts:
            total += size(part)
            if total > self.bytes_max:
                raise StatementError("53200", f"the answer has more than {self.bytes_max:,} bytes; ask for fewer rows")
            kept.append(part)
        return kept

    def columns(self, sql: str) -> Sequence[Column]:
        """The columns that a statement would give; none when it gives no rows."""
        word = dialect.first_word(sql)
        if word == "SHOW":
            return shown(sql).columns
        if not sql or word in begins | ends | ignored:
            return ()
        if word == "EXPLAIN":
            readable(sql)
            return [column_of(name, "VARCHAR") for name in ("explain_key", "explain_value")]
        with self.limited() as connection:
            found = self.relation(connection, sql)
            return [column_of(name, str(kind)) for name, kind in zip(found.columns, found.types, strict=True)]

    def relation(self, connection: "DuckDBPyConnection", sql: str) -> "DuckDBPyRelation":
        """A statement that DuckDB has bound; one that comes again, or was described before, is not bound again."""
        if sql in self.relations:
            return self.relations[sql]
        found = connection.sql(readable(sql))
        if len(sql) <= kept_characters_max:
            self.relations[sql] = found
            if len(self.relations) > relations_max:
                del self.relations[next(iter(self.relations))]
        return found

    def refresh(self) -> None:
        """The newest tables, once for each statement or transaction."""
        if self.is_fresh:
            return
        if self.connection is None or not self.source.is_newest(self.versions):
            self.close()
            self.versions, self.connection = self.source.connect()
            self.relations.clear()
        self.is_fresh = True

    @contextmanager
    def limited(self) -> "Iterator[DuckDBPyConnection]":
        """The connection, for as long as a statement may take."""
        self.refresh()
        if self.connection is None:
            raise StatementError("57P01", "the connection is closed")
        self.ended = ""
        self.deadline = time.monotonic() + self.seconds_max
        try:
            with said():
                yield self.connection
        except StatementError as error:
            if self.ended and error.state == "57014":
                raise StatementError(error.state, self.ended) from error
            raise
        finally:
            with self.lock:
                self.deadline = None


def statements(text: str) -> list[str]:
    try:
        return dialect.statements(text)
    except dialect.SyntaxFault as error:
        raise StatementError("42601", str(error)) from error


def readable(sql: str) -> str:
    """The statement for DuckDB; a StatementError when it would do more than read."""
    if dialect.first_word(sql) not in reads:
        raise StatementError(
            "25006", f"cannot execute {dialect.first_word(sql)}: only queries run here, such as SELECT"
        )
    if explains.match(sql) and dialect.first_word(explains.sub("", sql)) not in reads - {"EXPLAIN"}:
        raise StatementError("25006", "only what reads can be explained here")
    try:
        text = dialect.for_duckdb(sql)
    except FormatError as error:
        raise StatementError("22007", str(error)) from error
    with said():
        found = duckdb.extract_statements(text)
    if [each.type for each in found] not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.EXPLAIN]):
        raise StatementError("25006", "the tables are read-only here")
    explained = explains.match(text)
    with said():
        does_read = only_reads(text[explained.end() :] if explained else text)
    if not does_read:
        raise StatementError("25006", "the tables are read-only here, in each part of a statement")
    return text


@contextmanager
def said() -> Iterator[None]:
    """A StatementError with the SQLSTATE of an error of DuckDB."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        if isinstance(error, duckdb.OutOfMemoryException):
            # What DuckDB advises here is to set what nobody can set.
            raise StatementError("53200", text.splitlines()[0], less) from error
        state = next(state for kind, start, state in states if isinstance(error, kind) and text.startswith(start))
        raise StatementError(state, text) from error
    except MemoryError as error:
        raise StatementError("53200", "the memory of the server is used up", less) from error
    except (OverflowError, ValueError) as error:
        raise StatementError("22000", f"a value cannot be sent: {error}") from error


def streamed(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of an answer; what fails on the way is an error of DuckDB again, and not of the client's socket."""
    try:
        yield from reader
    except OSError as error:
        text = str(error)
        raise kinds_in_arrow.get(text.partition(":")[0], duckdb.Error)(text) from error


def with_short_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch; a StatementError where one of its rows is longer than a client can want."""
    if batch.nbytes > row_bytes_max and any(batch.slice(n, 1).nbytes > row_bytes_max for n in range(batch.num_rows)):
        raise StatementError("54000", f"a row has more than {row_bytes_max:,} bytes", "Ask for a part of its values.")
    return batch


def done(answer: Answer) -> str:
    return f"{answer.tag} {answer.count}" if answer.tag == "SELECT" else answer.tag


def encoded(row: Sequence[Any], by_column: Sequence[Encoder]) -> list[bytes | None]:
    return [None if value is None else encode(value) for value, encode in zip(row, by_column, strict=True)]


def shown(sql: str) -> Answer:
    """The value of a setting."""
    name = sql.split(None, 1)[1].strip().strip('"').lower() if len(sql.split(None, 1)) > 1 else ""
    name = {"transaction isolation level": "transaction_isolation", "time zone": "timezone"}.get(name, name)
    if name == "statement_timeout":
        return Answer("SHOW", [column_of(name, "VARCHAR")], Rows([("0",)]), has_rows=True)
    if name not in dialect.settings:
        raise StatementError("42704", f'unrecognized configuration parameter "{name}"')
    return Answer("SHOW", [column_of(name, "VARCHAR")], Rows([(dialect.settings[name],)]), has_rows=True)
