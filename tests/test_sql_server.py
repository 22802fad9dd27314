"""The tables by the Postgres protocol: what clients ask for, what they may not, and bytes that no client sends."""

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import psycopg2
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.cli.serve import users_of
from sluice.errors import UsageError
from sluice.model.ledger import Entry, InputVersion
from sluice.operate import consistent, query
from sluice.operate.postgres import Options, Server, columns, dialect, session, wire
from sluice.operate.postgres.scram import Refused, Scram
from sluice.operate.postgres.server import Connection, Tables
from sluice.operate.postgres.session import Session
from sluice.operate.postgres.values import as_binary, as_text, column_of, literal
from sluice.operate.postgres.wire import ProtocolError
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.waiting import patience_seconds

hostile = "'; DROP TABLE x; --\\ $1 é\x1b"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    found = Lake(str(tmp_path_factory.mktemp("lake")))
    rows = pa.table(
        {
            "name": ["a", "b", hostile],
            "amount": [1, 2, None],
            "sold_at": [datetime(2026, 3, 1, 12, tzinfo=UTC), None, None],
        }
    )
    write_deltalake(found.path("gold.sold"), rows)
    return found


@pytest.fixture(scope="module")
def server(lake: Lake) -> Iterator[Server]:
    yield from running(lake, Options(port=0))


def running(lake: Lake, options: Options) -> Iterator[Server]:
    found = Server(lake, options)
    # A test that fails leaves it running, and must end all the same.
    thread = threading.Thread(target=found.serve, daemon=True)
    thread.start()
    yield found
    found.close()
    thread.join()


def connected(server: Server, **more: Any) -> Any:
    where: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": server.port,
        "user": "me",
        "dbname": "lake",
        "connect_timeout": 60,
    } | more
    return psycopg2.connect(**where)


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    found = connected(server)
    yield found.cursor()
    found.close()


def test_a_query_gives_typed_values(client: Any) -> None:
    client.execute("SELECT name, amount, sold_at FROM gold.sold WHERE amount = %s -- ; $1", [1])
    assert client.fetchall() == [("a", 1, datetime(2026, 3, 1, 12, tzinfo=UTC))]
    client.execute("SELECT count(*) FROM sold WHERE name = %s", [hostile])
    assert client.fetchall() == [(1,)]
    client.execute("SELECT ['a', NULL, '{\",\\'], 1.50::DECIMAL(9,2), 'x'::BLOB, DATE '2026-03-01', NULL, true")
    (row,) = client.fetchall()
    assert (row[0], row[1], bytes(row[2]), *row[3:]) == (
        ["a", None, '{",\\'],
        Decimal("1.50"),
        b"x",
        date(2026, 3, 1),
        None,
        True,
    )


moment, midnight = datetime(2013, 3, 4, 13, 5, 6, 500_000, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=UTC)
# The first two are what Superset sends, the others what its users, Metabase and Grafana write.
of_times = [
    ("TO_TIMESTAMP(%s, %s)", ["2013-01-01 00:00:00.000000", "YYYY-MM-DD HH24:MI:SS.US"], midnight),
    ("TO_DATE(%s, %s)", ["2013-01-01", "YYYY-MM-DD"], date(2013, 1, 1)),
    ("to_timestamp(%s, %s)", ["2013-03-04 13:05:06.5", "yyyy-mm-dd hh24:mi:ss.ms"], moment),
    ("to_timestamp(%s)", [1362402306.5], moment),
    (
        "to_timestamp((floor(extract(epoch FROM %s)/3600)*3600))",
        [moment],
        moment.replace(minute=0, second=0, microsecond=0),
    ),
    ("date_trunc('quarter', %s)", [moment], midnight),
    ("to_char(%s, %s)", [moment, "YYYY-MM-DD HH24:MI:SS.US"], "2013-03-04 13:05:06.500000"),
    (
        "to_char(date_trunc('month', %s), %s)",
        [moment, 'FMMonth "of the year" YYYY, 100%%'],
        "March of the year 2013, 100%%",
    ),
    (
        "pg_catalog.to_char(%s, %s)",
        [date(2013, 3, 4), "Dy DD Mon YY, IYYY-IW-ID 'DDD'"],
        "Mon 04 Mar 13, 2013-10-1 '063'",
    ),
]


@pytest.mark.parametrize(("sql", "values", "expected"), of_times)
def test_times_are_read_and_written_by_the_formats_of_postgres(
    client: Any, raw: "Raw", sql: str, values: list[Any], expected: Any
) -> None:
    client.execute(f"SELECT {sql}", values)
    assert client.fetchall() == [(expected,)]
    # psycopg2 writes its parameters into the statement; others send them beside it.
    raw.begin()
    of_values = {str: 25, float: 701, datetime: 1184, date: 1082}
    numbered = f"SELECT {sql.replace('%s', '${}').format(*range(1, len(values) + 1))}"
    sent = [as_text(value, 25) or b"" for value in values]
    asked = prepared(numbered, *[of_values[type(value)] for value in values]) + bound(*sent)
    raw.socket.sendall(asked + wire.message("E", b"\0", struct.pack("!i", 0)) + wire.message("S"))
    (row,) = [body for kind, body in raw.until("Z") if kind == "D"]
    assert row[6:] == as_text(expected, 25)


def test_a_format_that_is_not_known_is_an_error_that_names_it(client: Any) -> None:
    for sql in ("to_char(sold_at, 'YYYY-Q')", "to_date(name, 'MONTH')", "to_char(amount, '999D99')"):
        with pytest.raises(psycopg2.Error, match="not known here") as found:
            client.execute(f"SELECT {sql} FROM gold.sold")
        assert found.value.pgcode == "22007"
        client.connection.rollback()


def test_a_mistyped_word_is_not_taken_for_a_write(client: Any) -> None:
    with pytest.raises(psycopg2.Error, match="cannot execute SELEC: only queries run here, such as SELECT"):
        client.execute("SELEC 1")
    client.connection.rollback()


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELEC 1", "25006"),
        ("SELECT FROM WHERE", "42601"),
        ("SELECT nope FROM gold.sold", "42703"),
        ("SELECT * FROM gold.nope", "42P01"),
        ("SELECT 'x'::INTEGER", "22P02"),
        ("INSERT INTO gold.sold SELECT * FROM gold.sold", "25006"),
        ("DROP VIEW gold.sold", "25006"),
        ("CREATE TABLE x AS SELECT 1", "25006"),
        ("WITH x AS (SELECT 1) INSERT INTO gold.sold SELECT * FROM x", "25006"),
        ("WITH x AS (UPDATE _catalog._types SET typname = 'x' RETURNING *) SELECT count(*) FROM x", "25006"),
        ("WITH x AS (DELETE FROM _catalog._types RETURNING *) SELECT count(*) FROM x", "25006"),
        ("WITH x AS MATERIALIZED (COPY (SELECT 1) TO '/tmp/x') SELECT * FROM x", "25006"),
        ("SELECT * FROM (WITH x AS (DELETE FROM _catalog._types RETURNING *) SELECT * FROM x)", "25006"),
        ("SELECT 1 WHERE 1 IN (WITH x AS (DELETE FROM _catalog._types RETURNING 1) FROM x)", "25006"),
        ("EXPLAIN ANALYZE WITH x AS (DELETE FROM _catalog._types RETURNING *) SELECT * FROM x", "25006"),
        ("EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1", "25006"),
        ("EXPLAIN (ANALYZE) INSERT INTO main.y SELECT 1", "25006"),
        ("COPY gold.sold TO '/tmp/x'", "25006"),
        ("PRAGMA database_list", "25006"),
        ("ATTACH '/tmp/x.db'", "25006"),
        ("SELECT * FROM read_csv('/etc/passwd')", "42501"),
        ("SELECT * FROM '/etc/passwd'", "42P01"),
        ("SHOW nothing", "42704"),
        ("/* /* */ SELECT 1", "42601"),
        ("SELECT 1 /* -- */ */", "42601"),
        ("SELECT 1 /* /* */ */; DROP VIEW gold.sold", "25006"),
        ("/* SELECT /* */ 1; */ DROP VIEW gold.sold", "25006"),
        ("DECLARE c CURSOR FOR SELECT 1", "25006"),
    ],
)
def test_what_is_no_read_is_refused_with_its_state(client: Any, sql: str, state: str) -> None:
    with pytest.raises(psycopg2.Error) as found:
        client.execute(sql)
    assert found.value.pgcode in (state, "42501"), found.value
    client.connection.rollback()
    client.execute("SELECT count(*) FROM gold.sold")
    assert client.fetchall() == [(3,)]


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_client_cannot_write_the_files_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("gold.sold"), pa.table({"n": [1]}))
    (file,) = tmp_path.rglob("*.parquet")
    before = file.read_bytes()
    if not is_checked:
        monkeypatch.setattr(session, "only_reads", lambda sql: True)
    copy = f"COPY (SELECT 666 AS n) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)"
    for server in running(lake, Options(port=0)):
        raw = Raw(server)
        raw.begin()
        sql = f"WITH x AS ({copy}) SELECT * FROM x"
        raw.socket.sendall(prepared(sql) + bound() + wire.message("E", b"\0\0\0\0\0") + wire.message("S"))
        assert ("E" in {kind for kind, _ in raw.until("Z")}) is is_checked
        raw.socket.close()
    assert (file.read_bytes() == before) is is_checked


writing = ("INSERT INTO t VALUES (1)", "UPDATE t SET a = 1 RETURNING *", "DELETE FROM t", "COPY t TO 'x'")
places = ["SELECT * FROM ({})", "SELECT ({})", "SELECT 1 IN ({})", "FROM ({})", "({})", "SELECT 1 UNION ALL ({})"]
places += ["SELECT * FROM (DESCRIBE {})", "SUMMARIZE {}", "VALUES (({}))", "PIVOT ({}) ON a", "SELECT 1 LIMIT ({})"]


def test_what_writes_may_stand_in_a_with_and_is_found_there_alone() -> None:
    for each in writing:
        for place in places:
            with pytest.raises(duckdb.ParserException):
                query.only_reads(place.format(each))
        for place in ("WITH x AS ({}) SELECT 1", "FROM (with x AS MATERIALIZED ({}) FROM x)"):
            with suppress(duckdb.ParserException):
                assert not query.only_reads(place.format(each))
    assert query.only_reads("WITH x AS (SELECT 1) FROM x")


def test_a_text_is_checked_in_little_time() -> None:
    before = query.reads_again.cache_info().misses
    assert query.only_reads("SELECT 'not seen before'")
    assert query.reads_again.cache_info().misses == before
    start = time.process_time()
    for long in (" " * 20_000, "a" * 20_000, "a " * 10_000, "(a " * 10_000):
        assert dialect.for_duckdb(f"SELECT {long}") == f"SELECT {long}"
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "sql",
    [
        "FROM gold.sold",
        "DESCRIBE gold.sold",
        "SUMMARIZE gold.sold",
        "VALUES (1), (2)",
        "TABLE gold.sold",
        "EXPLAIN SELECT 1",
        "EXPLAIN (FORMAT json) SELECT 1",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
        "WITH x AS MATERIALIZED (SELECT 1 AS n) SELECT n FROM x UNION SELECT 2 EXCEPT SELECT 3",
        "SELECT name, amount FROM gold.sold QUALIFY row_number() OVER (ORDER BY name) = 1",
        "SELECT 'INSERT_QUERY_NODE' AS type, {'type': 'COPY_QUERY_NODE'} AS other",
        "SELECT name FROM (SELECT 'a' AS name) t",
        "SELECT * FROM (SELECT 1 AS name)",
        "/* /* */ DROP VIEW gold.sold; */ SELECT /* /*/*;*/*/ ' /* */ */ 1 -- /*",
        "SELECT '/*' AS a, '*/' AS b, \"/*\".* FROM (SELECT 1) \"/*\"",
        'SELECT x.session_user FROM (SELECT 5 AS "session_user") x',
        "SELECT CAST(CAST('a' AS name) AS VARCHAR), ('b' || (CAST(1 AS TEXT)))::name",
    ],
)
def test_whatever_reads_is_answered(client: Any, sql: str) -> None:
    client.execute(sql)
    assert client.fetchall()
    if "AS name)" in sql and "CAST" not in sql:
        assert client.description[0].name == "name"


@pytest.mark.parametrize("sql", ["SET lock_configuration = false", "SET enable_external_access = true"])
def test_settings_are_taken_and_change_nothing(client: Any, sql: str) -> None:
    client.execute(sql)
    with pytest.raises(psycopg2.Error):
        client.execute("SELECT * FROM read_csv('/etc/passwd')")


@pytest.fixture
def raw(server: Server) -> Iterator["Raw"]:
    found = Raw(server)
    yield found
    found.socket.close()


endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b, range(1000) c"


def test_a_statement_ends_when_it_is_cancelled(server: Server, raw: "Raw") -> None:
    key = next(body for kind, body in raw.begin() if kind == "K")
    # By hand: psycopg2 keeps Python from answering while it waits for the server to end the cancelling connection.
    with Raw(server).socket as other:
        cancel = struct.pack("!ii", 16, wire.cancel_code) + key
        timer = threading.Timer(0.3, other.sendall, [cancel])
        timer.start()
        require_ended(raw, b"user request")
        timer.join()


def test_a_statement_ends_when_it_takes_too_long(lake: Lake) -> None:
    for server in running(lake, Options(port=0, statement_seconds_max=1)):
        raw = Raw(server)
        with raw.socket:
            raw.begin()
            require_ended(raw, b"statement timeout")


def require_ended(raw: "Raw", said: bytes) -> None:
    """An endless statement ends for a reason, and the connection goes on."""
    raw.socket.sendall(wire.message("Q", wire.text(endless)))
    error = raw.until("Z")[0][1]
    assert b"57014" in error
    assert said in error
    raw.socket.sendall(wire.message("Q", b"SELECT 1\0"))
    assert "".join(kind for kind, _ in raw.until("Z")) == "TDCZ"


def test_a_client_gets_the_tables_that_another_left_unless_they_are_old(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("gold.sold"), pa.table({"n": [1]}))
    for server in running(lake, Options(port=0)):
        for waiting in (0, 1, 1):
            assert len(server.tables.waiting) == waiting
            assert counted(server) == 1
        write_deltalake(lake.path("gold.sold"), pa.table({"n": [2]}), mode="append")
        time.sleep(0.3)
        assert [counted(server), counted(server)] == [2, 2]
        tables = server.tables
    assert tables.waiting == []


def test_a_statement_is_bound_once_until_the_tables_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("gold.sold"), pa.table({"n": [1]}))
    asked: list[str] = []
    readable = session.readable

    def counted(sql: str) -> str:
        asked.append(sql)
        return readable(sql)

    monkeypatch.setattr(session, "readable", counted)
    monkeypatch.setattr(session, "relations_max", 2)
    sql = "SELECT sum(n)::BIGINT FROM gold.sold"
    for server in running(lake, Options(port=0)):
        raw = Raw(server)
        raw.begin()
        # As drivers of Java ask, twice.
        describes = wire.message("D", b"S\0") + bound() + wire.message("D", b"P\0")
        for _ in range(2):
            raw.socket.sendall(prepared(sql) + describes + wire.message("E", b"\0\0\0\0\0") + wire.message("S"))
            assert value_in(raw.until("Z")) == b"1"
        assert asked == [sql]
        write_deltalake(lake.path("gold.sold"), pa.table({"n": [2]}), mode="append")
        time.sleep(0.3)
        # The oldest of three is forgotten.
        for text, value in ((sql, b"3"), ("SELECT 1", b"1"), ("SELECT 2", b"2"), (sql, b"3")):
            raw.socket.sendall(wire.message("Q", wire.text(text)))
            assert value_in(raw.until("Z")) == value
        assert asked == [sql, sql, "SELECT 1", "SELECT 2", sql]
        raw.socket.close()


def value_in(answer: list[tuple[str, bytes]]) -> bytes | None:
    """The only value of an answer."""
    (row,) = [wire.Fields(body) for kind, body in answer if kind == "D"]
    row.int16()
    return row.value()


def test_an_answer_is_one_packet(raw: "Raw", monkeypatch: pytest.MonkeyPatch) -> None:
    raw.begin()
    sent: list[bytes] = []
    flush = Connection.flush

    def counted(self: Connection) -> None:
        sent.append(bytes(self.outgoing))
        flush(self)

    monkeypatch.setattr(Connection, "flush", counted)
    raw.socket.sendall(wire.message("Q", b"SELECT 1; SELECT 2\0"))
    answer = raw.until("Z")
    assert [each for each in sent if each] == [b"".join(wire.message(*each) for each in answer)]


@pytest.mark.process
def test_bytes_before_tls_are_no_bytes_of_tls(lake: Lake, tmp_path: Path) -> None:
    options = Options(port=0, users={"me": "x"}, certificate=certified(tmp_path), key=tmp_path / "key.pem")
    for server in running(lake, options):
        cursor = connected(server, password="x", sslmode="require").cursor()
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
        cursor.connection.close()
        raw = Raw(server)
        with raw.socket:
            raw.socket.sendall(struct.pack("!ii", 8, wire.tls_code) + first)
            assert b"bytes before TLS" in raw.rest()


def certified(folder: Path) -> Path:
    """A certificate, whose key is beside it."""
    names = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        *names,
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem"


def counted(server: Server) -> int:
    """The rows, as a client counts them that comes for it alone and is gone."""
    client = connected(server)
    cursor = client.cursor()
    cursor.execute("SELECT count(*) FROM gold.sold")
    (row,) = cursor.fetchall()
    client.close()
    while server.sessions:
        time.sleep(0.01)
    return int(row[0])


def test_files_that_duckdb_reads_itself_are_the_table_and_nothing_else(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("gold.grown"), pa.table({"n": [1]}))
    write_deltalake(lake.path("gold.grown"), pa.table({"n": [2], "m": ["x"]}), mode="append", schema_mode="merge")
    write_deltalake(lake.path("gold.parts"), pa.table({"n": [1, 2], "p": ["a", "b"]}), partition_by=["p"])
    deleted = pa.table({"n": [1, 2, 3], "at": [datetime(2026, 3, 1, tzinfo=UTC)] * 3})
    write_deltalake(lake.path("gold.less"), deleted)
    DeltaTable(lake.path("gold.less")).delete("n = 2")
    with query.connected(lake, reads_only=True) as found:
        by_files = "SELECT view_name FROM duckdb_views() WHERE sql LIKE '%read_parquet%' AND schema_name = 'gold'"
        assert sorted(found.execute(by_files).fetchall()) == [("grown",), ("less",)]
        assert found.execute("SELECT n, m FROM gold.grown ORDER BY n").fetchall() == [(1, None), (2, "x")]
        assert found.execute("SELECT n, p FROM gold.parts ORDER BY n").fetchall() == [(1, "a"), (2, "b")]
        assert found.execute("SELECT n FROM gold.less ORDER BY n").fetchall() == [(1,), (3,)]
        files = [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.parquet")]
        current = {f for name in ("gold.grown", "gold.less") for f in DeltaTable(lake.path(name)).file_uris()}
        others = [file for file in files if str(file) not in current]
        assert len(others) >= 5
        for file in others:
            with pytest.raises(duckdb.PermissionException):
                found.execute(f"SELECT count(*) FROM read_blob('{file}')")
    with query.connected(lake) as found, pytest.raises(duckdb.PermissionException):
        found.execute(f"COPY (SELECT 1) TO '{next(iter(current))}'")


def test_a_transaction_sees_one_state_and_the_next_one_the_newest(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    write_deltalake(lake.path("gold.sold"), pa.table({"n": [1]}))
    for server in running(lake, Options(port=0)):
        cursor = connected(server).cursor()
        cursor.execute("SELECT count(*) FROM gold.sold")
        write_deltalake(lake.path("gold.sold"), pa.table({"n": [2]}), mode="append")
        time.sleep(0.3)
        cursor.execute("SELECT count(*) FROM gold.sold")
        assert cursor.fetchall() == [(1,)]
        cursor.connection.commit()
        cursor.execute("SELECT count(*) FROM gold.sold")
        assert cursor.fetchall() == [(2,)]
        cursor.connection.close()


def commit(lake: Lake, table: str, **inputs: int) -> None:
    """A commit of a table that was computed from these versions of others."""
    seen = {
        name.replace("_", ".", 1): InputVersion(epoch=epoch_of(lake, name.replace("_", ".", 1)), version=version)
        for name, version in inputs.items()
    }
    said = CommitProperties(custom_metadata={"userMetadata": Entry(dataset=table, inputs=seen).to_json()})
    write_deltalake(lake.path(table), pa.table({"n": [1]}), mode="append", commit_properties=said)


def epoch_of(lake: Lake, table: str) -> str:
    return f"{DeltaTable(lake.path(table)).metadata().id}:0"


def test_no_state_has_half_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(str(tmp_path))
    commit(lake, "bronze.a")
    commit(lake, "silver.b", bronze_a=0)
    commit(lake, "gold.c", silver_b=0)
    commit(lake, "gold.d", silver_b=0)
    whole = {"bronze.a": 0, "silver.b": 0, "gold.c": 0, "gold.d": 0}
    assert consistent.versions(lake) == whole
    commit(lake, "bronze.a")
    assert consistent.versions(lake) == whole
    commit(lake, "silver.b", bronze_a=1)
    assert consistent.versions(lake) == whole
    commit(lake, "gold.c", silver_b=1)
    # Its own new rows wait for those of the other table.
    assert consistent.versions(lake) == whole
    commit(lake, "gold.d", silver_b=1)
    assert consistent.versions(lake) == dict.fromkeys(whole, 1)
    commit(lake, "bronze.a")
    commit(lake, "silver.b", bronze_a=2)
    commit(lake, "gold.c", silver_b=2)
    # A blocked table is not waited for any longer.
    monkeypatch.setattr(consistent, "behind_ms_max", -1)
    assert consistent.versions(lake) == {"bronze.a": 2, "silver.b": 2, "gold.c": 2, "gold.d": 1}


def test_no_state_has_half_a_pass_though_the_clock_of_the_writer_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path))
    commit(lake, "silver.b")
    commit(lake, "gold.c", silver_b=0)
    now = time.time()
    monkeypatch.setattr("sluice.operate.consistent.time.time", lambda: now + 3_600)
    newest = consistent.Newest(lake, -1)
    assert newest.versions() == {"silver.b": 0, "gold.c": 0}
    commit(lake, "silver.b")
    assert [newest.versions() for _ in range(2)] == [{"silver.b": 0, "gold.c": 0}] * 2
    # Who starts now can only go by the clock.
    assert consistent.Newest(lake, -1).versions() == {"silver.b": 1, "gold.c": 0}
    monkeypatch.setattr(consistent, "behind_ms_max", 1)
    assert newest.versions() == {"silver.b": 1, "gold.c": 0}
    commit(lake, "gold.c", silver_b=1)
    assert newest.versions() == {"silver.b": 1, "gold.c": 1}


def test_users_prove_their_password(lake: Lake) -> None:
    for server in running(lake, Options(port=0, users={"me": "s3crét", "other": "x"})):
        cursor = connected(server, password="s3crét").cursor()
        cursor.execute("SELECT 1")
        cursor.connection.close()
        for user, password in (("me", "x"), ("nobody", "s3crét")):
            with pytest.raises(psycopg2.OperationalError, match="authentication failed"):
                connected(server, user=user, password=password)
        with pytest.raises(psycopg2.OperationalError):
            connected(server)


def test_strangers_are_not_let_in(lake: Lake) -> None:
    for options in (Options(host="0.0.0.0", port=0), Options(host="0.0.0.0", port=0, users={"me": "x"})):
        with pytest.raises(UsageError, match="Other machines could read"):
            Server(lake, options)
    with pytest.raises(UsageError) as refused:
        users_of("me:secret,you")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--port", "{taken}"], "another program listens there. End it, or give another --port"),
        (["--certificate", "missing.pem", "--key", "missing.pem"], "There is no file missing.pem"),
        (["--key", "junk.pem"], "needs both --certificate and --key"),
        (["--certificate", "junk.pem", "--key", "junk.pem"], "are no certificate and its private key"),
        (["--certificate", ".", "--key", "junk.pem"], "cannot be read: Is a directory"),
        (["--memory", "lots"], "write for example 1GB"),
        (["--server-memory", "lots"], "write for example 1GB"),
    ],
)
@pytest.mark.parametrize("server", [["serve", "sql"], ["ui"]])
def test_a_server_that_cannot_start_says_what_to_do(
    tmp_path: Path, server: list[str], more: list[str], said: str
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "junk.pem").write_text("junk")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = [] if "--port" in more else ["--port", "0"]
        given = [each.format(taken=taken.getsockname()[1]) for each in more]
        found = sluice(*server, *port, *given, here=tmp_path)
    assert found.returncode == 2
    assert said in " ".join(found.stderr.split())


@pytest.mark.parametrize(("users", "said"), [("me:secret,you", "number 2 is not"), ("me:secret,me:other", "me twice")])
def test_users_that_cannot_be_are_named_without_their_passwords(users: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        users_of(users)
    assert "secret" not in str(refused.value)


def test_the_example_of_the_standard_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7677, section 3."""
    monkeypatch.setattr("secrets.token_bytes", lambda count: salt)
    monkeypatch.setattr("secrets.token_urlsafe", lambda count: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    scram = Scram("pencil")
    first = scram.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = scram.final(b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0," + proof)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


salt = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
catalogue = [
    "SELECT n.nspname, c.relname, CASE c.relkind WHEN 'r' THEN 'table' END, pg_catalog.pg_get_userbyid(c.relowner) "
    "FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r','p','v','m','S','f','') AND n.nspname !~ '^pg_toast' "
    "AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1,2",
    "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = 'gold.sold'::pg_catalog.regclass::oid AND a.attnum > 0 "
    "AND NOT a.attisdropped ORDER BY a.attnum",
    "SELECT c.relname FROM pg_catalog.pg_class c WHERE c.relname OPERATOR(pg_catalog.~) '^(sold)$' "
    "COLLATE pg_catalog.default",
    "SELECT table_schema, table_name, table_type FROM information_schema.tables",
    "SELECT t.typname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid ORDER BY a.attnum",
]


def test_the_catalogue_has_the_tables_as_clients_ask_for_it(client: Any) -> None:
    answers = []
    for sql in catalogue:
        client.execute(sql)
        answers.append(client.fetchall())
    assert answers == [
        [("gold", "sold", "table", "sluice")],
        [("name", "text"), ("amount", "bigint"), ("sold_at", "timestamp with time zone")],
        [("sold",)],
        [("gold", "sold", "BASE TABLE")],
        [("text",), ("int8",), ("timestamptz",)],
    ]


class Raw:
    """A client that speaks the protocol by hand."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=patience_seconds)

    def begin(self) -> list[tuple[str, bytes]]:
        body = struct.pack("!i", 3 << 16) + b"user\0me\0\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        return self.until("Z")

    def until(self, kind: str) -> list[tuple[str, bytes]]:
        """The messages up to one of this kind."""
        found: list[tuple[str, bytes]] = []
        while not found or found[-1][0] != kind:
            head = self.exactly(5)
            found.append((chr(head[0]), self.exactly(struct.unpack("!i", head[1:])[0] - 4)))
        return found

    def exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            part = self.socket.recv(count - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def rest(self) -> bytes:
        """All that comes until the server closes the connection."""
        found = b""
        while part := self.socket.recv(65536):
            found += part
        return found


def prepared(sql: str, *types: int) -> bytes:
    return wire.message("P", b"\0", wire.text(sql), struct.pack(f"!h{len(types)}i", len(types), *types))


def bound(*values: bytes, form: int = 0, result: int = 0) -> bytes:
    sent = b"".join(struct.pack("!i", len(each)) + each for each in values)
    return wire.message("B", b"\0\0", struct.pack("!hhh", 1, form, len(values)), sent, struct.pack("!hh", 1, result))


comments = [
    dialect.Comment("gold.sold", None, 'What was "sold"; it\'s all'),
    dialect.Comment("gold.sold", "amount", "How much [EUR]"),
    dialect.Comment("gold.sold", "gone", "A column that is not there"),
    dialect.Comment("gold.missing", None, "A table that is not there"),
]
# As psql, SQLAlchemy, and Metabase and DBeaver ask for them.
asked_for_comments = [
    "SELECT c.relname, pg_catalog.obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_class c",
    "SELECT 'sold', pg_catalog.obj_description('gold.sold'::regclass)",
    "SELECT c.relname, d.description FROM pg_catalog.pg_class c LEFT OUTER JOIN pg_catalog.pg_description d "
    "ON c.oid = d.objoid AND d.objsubid = 0 AND d.classoid = CAST('pg_catalog.pg_class' AS REGCLASS)",
    "SELECT c.relname, d.description FROM pg_catalog.pg_class AS c LEFT JOIN pg_catalog.pg_description AS d "
    "ON (c.oid = d.objoid) AND (d.objsubid = 0) AND (d.classoid = ('pg_class'::regclass)) "
    "LEFT JOIN pg_stat_user_tables stat ON c.relname = stat.relname",
]


def test_clients_read_what_the_declarations_say(lake: Lake) -> None:
    found = Server(lake, Options(port=0), comments)
    threading.Thread(target=found.serve, daemon=True).start()
    cursor = connected(found).cursor()
    for sql in asked_for_comments:
        cursor.execute(sql)
        assert cursor.fetchall() == [("sold", comments[0].text)], sql
    cursor.execute(
        "SELECT a.attname, pg_catalog.col_description(a.attrelid, a.attnum), d.description "
        "FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_description d "
        "ON d.objoid = a.attrelid AND d.objsubid = a.attnum ORDER BY 1"
    )
    assert cursor.fetchall() == [
        ("amount", comments[1].text, comments[1].text),
        ("name", None, None),
        ("sold_at", None, None),
    ]
    cursor.execute("SELECT count(*) FROM pg_description")
    assert cursor.fetchall() == [(2,)]
    cursor.connection.close()
    found.close()


def test_a_prepared_statement_is_described_bound_and_read_in_parts(raw: Raw) -> None:
    raw.begin()
    sql = "SELECT name, amount FROM gold.sold WHERE amount >= $1 ORDER BY amount"
    describe, execute = wire.message("D", b"S\0"), wire.message("E", b"\0", struct.pack("!i", 1))
    one = struct.pack("!q", 1)
    raw.socket.sendall(prepared(sql, 20) + describe + bound(one, form=1, result=1) + execute * 3 + wire.message("S"))
    found = raw.until("Z")
    assert "".join(kind for kind, _ in found) == "1tT2DsDCCZ"
    rows = [body for kind, body in found if kind == "D"]
    assert rows[0] == b"\0\2\0\0\0\1a\0\0\0\10" + one
    # After an error nothing is done until the client says that it knows.
    raw.socket.sendall(prepared("SELECT nope") + bound() + wire.message("D", b"P\0") + execute + wire.message("S"))
    assert "".join(kind for kind, _ in raw.until("Z")) == "12EZ"
    raw.socket.sendall(wire.message("Q", b"SELECT 1; SELECT 2\0"))
    assert "".join(kind for kind, _ in raw.until("Z")) == "TDCTDCZ"


@pytest.mark.parametrize(
    ("sql", "oid", "expected"),
    [
        ("SELECT $1 + 1", 20, 20),
        ("SELECT $1", 20, 20),
        ("SELECT coalesce($1, 1)", 701, 701),
        ("SELECT abs($1)", 23, 23),
        ("SELECT date_trunc('day', $1)", 1114, 1114),
    ],
)
def test_a_statement_is_described_by_the_types_of_its_parameters(raw: Raw, sql: str, oid: int, expected: int) -> None:
    raw.begin()
    raw.socket.sendall(prepared(sql, oid) + wire.message("D", b"S\0") + wire.message("S"))
    (described,) = [body for kind, body in raw.until("Z") if kind == "T"]
    assert struct.unpack("!I", described[-12:-8]) == (expected,)


first = struct.pack("!ii", 16, 3 << 16) + b"user\0a\0\0"
session_bytes = [
    first + wire.message("Q", b"SELECT 1\0"),
    first + prepared("SELECT $1") + bound(b"1") + wire.message("D", b"P\0") + wire.message("S"),
    struct.pack("!ii", 8, wire.tls_code) + first,
    struct.pack("!iiii", 16, wire.cancel_code, 1, 2),
]
many = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def damaged(sound: bytes) -> st.SearchStrategy[bytes]:
    cuts = st.tuples(st.integers(0, len(sound)), st.integers(0, 4), st.binary(max_size=4))

    def cut(all_cuts: list[tuple[int, int, bytes]]) -> bytes:
        found = sound
        for at, count, new in all_cuts:
            found = found[:at] + new + found[at + count :]
        return found

    return st.lists(cuts, max_size=3).map(cut)


@many
@given(sent=st.binary(max_size=60) | st.sampled_from(session_bytes).flatmap(damaged))
@example(b"\x7f\xff\xff\xff")
@example(first + b"Q\x7f\xff\xff\xff")
@example(first + b"Q\0\0\0\0")
@example(b"GET / HTTP/1.1\r\n\r\n")
def test_the_server_ends_any_conversation(server: Server, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    raw = Raw(server)
    # The server may have gone already: then it need not be told.
    # A server that has gone already need not be told; one that says nothing for ten seconds hangs.
    with raw.socket, suppress(ConnectionError):
        raw.socket.sendall(sent)
        with suppress(OSError):
            raw.socket.shutdown(socket.SHUT_WR)
        raw.rest()
    assert not caplog.records, caplog.text


readers: list[Callable[[bytes], object]] = [
    wire.startup,
    wire.query_of,
    wire.parse_of,
    wire.bind_of,
    wire.named_of,
    wire.execute_of,
]


@settings(many, max_examples=300)
@given(body=st.binary(max_size=40) | damaged(bound(b"1", b"22")[5:]) | damaged(prepared("SELECT $1", 20)[5:]))
def test_a_message_is_understood_or_a_protocol_error(body: bytes) -> None:
    for reader in readers:
        try:
            reader(body)
        except ProtocolError:
            continue


@settings(many, max_examples=200)
@given(value=st.none() | st.binary(max_size=12), oid=st.sampled_from([0, 16, 20, 21, 23, 25, 700, 1082, 1184, 2950, 9]))
def test_a_parameter_is_one_literal_or_refused(value: bytes | None, oid: int) -> None:
    for form in (0, 1):
        try:
            found = literal(value, oid, form)
        except ProtocolError:
            continue
        inner = dialect.filled("SELECT $1, 2", [found])
        assert dialect.statements(inner) == [inner]
        assert dialect.for_duckdb(inner).endswith(", 2")


@settings(many, max_examples=200)
@given(text=st.text(max_size=40) | st.text("'\"$1;-/*ab \n", max_size=30))
def test_any_text_is_cut_into_the_same_text(text: str) -> None:
    assert "".join(piece.text for piece in dialect.pieces_of(text)) == text
    assert isinstance(dialect.for_duckdb(text), str)


@settings(many, max_examples=100)
@given(message=st.binary(max_size=40) | damaged(b"n,,n=user,r=abc") | damaged(b"c=biws,r=abc,p=AAAA"))
def test_a_message_of_scram_is_answered_or_refused(message: bytes) -> None:
    for step in ("first", "final"):
        try:
            getattr(Scram("x"), step)(message)
        except Refused:
            continue


@settings(many, max_examples=60)
@given(messages=st.lists(st.tuples(st.sampled_from("QPBDECSHX1"), st.binary(max_size=20)), max_size=5))
def test_a_session_answers_or_ends(lake: Lake, messages: list[tuple[str, bytes]]) -> None:
    sent: list[bytes] = []
    session = Session(Tables(lake, "500MB"), sent.append, 5)
    try:
        for kind, body in messages:
            session.take(kind, body)
    except ProtocolError:
        pass
    session.close()
    assert all(isinstance(each, bytes) for each in sent)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("0"), "0"),
        (Decimal("-12345.678"), "-12345.678"),
        (Decimal("0.00012"), "0.00012"),
        (Decimal("1E+5"), "100000"),
        (10**30, str(10**30)),
    ],
)
def test_numbers_in_binary_are_the_numbers(value: Any, text: str) -> None:
    sent = as_binary(value, 1700)
    assert sent is not None
    count, weight, sign, scale = struct.unpack("!hhHh", sent[:8])
    groups = struct.unpack(f"!{count}h", sent[8:])
    total = sum(Decimal(group) * Decimal(10000) ** (weight - at) for at, group in enumerate(groups))
    assert (-total if sign else total) == Decimal(text)
    assert scale == max(0, -int(Decimal(text).as_tuple().exponent))


def ended_after(raw: Raw, seconds: float) -> bool:
    """Whether the server ends a connection within this time."""
    raw.socket.settimeout(seconds)
    with suppress(ConnectionError):
        try:
            while raw.socket.recv(65536):
                pass
        except TimeoutError:
            return False
    return True


drips = [b"\0", first[:9], struct.pack("!ii", 8, wire.tls_code), first + b"Q\0\0\0\x20SELECT", first + b"P"]


@pytest.mark.parametrize("begun", drips)
def test_a_client_that_stalls_within_a_message_is_let_go(
    server: Server, raw: Raw, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("greeting_seconds_max", "message_seconds_max"):
        monkeypatch.setattr(f"sluice.operate.postgres.server.{name}", 0.5)
    # One that is silent between two messages may be.
    raw.begin()
    # The time limit of one that drips does not start again with each byte.
    with Raw(server).socket as other:
        dripping = Raw.__new__(Raw)
        dripping.socket = other
        other.sendall(begun)
        time.sleep(0.3)
        with suppress(ConnectionError):
            other.sendall(b"\0")
        assert ended_after(dripping, 5)
    assert not ended_after(raw, 1)


def test_nobody_sends_much_before_a_password(lake: Lake) -> None:
    for server in running(lake, Options(port=0, users={"me": "secret"})):
        raw = Raw(server)
        with raw.socket:
            raw.socket.sendall(first)
            raw.until("R")
            raw.socket.sendall(b"p" + struct.pack("!i", wire.startup_bytes_max + 1))
            assert b"wrong length" in raw.rest()


@pytest.mark.parametrize("sent", [b"z\0\0\0\4", b"p\0\0\0\5x", b"F\0\0\0\4", b"\0\0\0\0\4", b"Q\x7f\xff\xff\xff"])
def test_what_is_no_message_ends_one_connection_alone(raw: Raw, client: Any, sent: bytes) -> None:
    raw.begin()
    raw.socket.sendall(sent)
    assert b"08P01" in raw.rest()
    client.execute("SELECT count(*) FROM gold.sold")
    assert client.fetchall() == [(3,)]


def test_a_wrong_key_cancels_nothing(server: Server, raw: Raw) -> None:
    raw.begin()
    raw.socket.sendall(wire.message("Q", wire.text("SELECT count(*) FROM range(60000) a, range(20000) b")))
    for number in range(50):
        with Raw(server).socket as other:
            other.sendall(struct.pack("!iiq", 16, wire.cancel_code, number))
            assert other.recv(1) == b""
    assert "".join(kind for kind, _ in raw.until("Z")) == "TDCZ"


def test_statements_are_kept_up_to_a_limit_and_others_go_on(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw.begin()
    end = wire.message("S")

    def kept(name: str, sql: str) -> str:
        raw.socket.sendall(wire.message("P", wire.text(name), wire.text(sql), b"\0\0") + end)
        return raw.until("Z")[0][0]

    counted = [kept(f"s{number}", "SELECT 1") for number in range(session.prepared_max + 1000)]
    assert counted == ["1"] * session.prepared_max + ["E"] * 1000
    raw.socket.sendall(b"".join(wire.message("C", b"S", wire.text(f"s{n}")) for n in range(session.prepared_max)) + end)
    raw.until("Z")
    # Nor does one keep few that are long, or bind one without end.
    monkeypatch.setattr(session, "kept_max", 100_000)
    assert [kept(f"l{number}", f"SELECT '{'x' * 45_000}'") for number in range(3)] == ["1", "1", "E"]
    raw.socket.sendall(wire.message("B", wire.text("p"), wire.text("l0"), b"\0" * 6) + end)
    assert b"53400" in raw.until("Z")[0][1]
    raw.socket.sendall(wire.message("Q", b"SELECT 1\0"))
    assert "".join(kind for kind, _ in raw.until("Z")) == "TDCZ"


nested_values = [
    ("[DATE '0044-03-15 (BC)', 'infinity', NULL, '-infinity']", '{"0044-03-15 BC",infinity,NULL,-infinity}'),
    ("[TIMESTAMPTZ '0044-03-15 (BC) 10:00:00.5', 'infinity']", '{"0044-03-15 10:00:00.5+00 BC",infinity}'),
    ("['', 'null', 'a b', '{\"\\\\', 'é']", '{"","null","a b","{\\"\\\\\\\\",é}'),
    ("[1.50, 2]::DECIMAL(9,2)[]", "{1.50,2.00}"),
    ("[true, NULL]", "{t,NULL}"),
    (
        "{'d': DATE '0044-03-15 (BC)', 'at': TIMESTAMPTZ '2026-03-01 12:00:00Z', 'i': INTERVAL '1 month'}",
        '{"d": "0044-03-15 BC", "at": "2026-03-01T12:00:00+00:00", "i": "1 mon"}',
    ),
    ("{'a': [{'t': TIMESTAMP '-infinity'}], 'f': 'nan'::FLOAT}", '{"a": [{"t": "-infinity"}], "f": "NaN"}'),
    (
        "{'b': 'x'::BLOB, 'e': 'a'::ENUM('a'), 'n': NULL, 's': 0.1::FLOAT, 'y': true}",
        '{"b": "\\\\x78", "e": "a", "n": null, "s": 0.1, "y": true}',
    ),
    ("MAP {'a': TIMESTAMP '0044-03-15 (BC) 10:00:00', 'b': NULL}", '{"a": "0044-03-15T10:00:00 BC", "b": null}'),
    ("[[1, NULL], NULL, []]", "[[1, null], null, []]"),
    ("DATE '0044-03-15 (BC)'", "0044-03-15 BC"),
    ("DATE '0001-01-01' - 1", "0001-12-31 BC"),
    ("TIMESTAMP '2026-03-01 12:00:00.5'", "2026-03-01 12:00:00.5"),
]


@pytest.mark.parametrize(("sql", "text"), nested_values)
def test_what_is_nested_is_printed_as_postgres_prints_it(raw: Raw, sql: str, text: str) -> None:
    raw.begin()
    # In columns, beside nulls, and in parts that begin in the middle of a column.
    for formats in (b"\0\0", b"\0\1\0\1"):
        asked = prepared(f"SELECT CASE WHEN n % 3 > 0 THEN {sql} END FROM range(250) t(n)")
        bind = wire.message("B", b"\0\0", b"\0\0\0\0", formats)
        execute = wire.message("E", b"\0", struct.pack("!i", 125))
        raw.socket.sendall(asked + bind + execute * 2 + wire.message("S"))
        rows = [wire.Fields(body) for kind, body in raw.until("Z") if kind == "D"]
        if formats == b"\0\0":
            assert {(row.int16(), row.value()) for row in rows[::3]} == {(1, None)}
            assert {(row.int16(), row.value()) for n, row in enumerate(rows) if n % 3} == {(1, text.encode())}


@pytest.mark.parametrize(
    ("sql", "lower"),
    [("repeat('x', 100000000)", None), ("range(200000)", 1_000_000), ("[repeat('x', 2000000)]", 1_000_000)],
)
def test_a_row_is_no_longer_than_a_client_can_want(
    client: Any, monkeypatch: pytest.MonkeyPatch, sql: str, lower: int | None
) -> None:
    if lower is not None:
        # It takes seconds to make a list that is as long as a client can want.
        monkeypatch.setattr(session, "row_bytes_max", lower)
    with pytest.raises(psycopg2.Error, match=f"a row has more than {lower or 67_108_864:,} bytes") as refused:
        client.execute(f"SELECT {sql} AS a UNION ALL SELECT NULL")
    assert refused.value.pgcode == "54000"
    client.connection.rollback()
    client.execute("SELECT length(repeat('x', 100000000))")
    assert client.fetchall() == [(100_000_000,)]


def test_long_rows_are_sent_in_parts(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    data_rows = columns.data_rows

    def counted(batch: pa.RecordBatch, *more: Any) -> bytes:
        taken.append(batch.num_rows)
        return data_rows(batch, *more)

    monkeypatch.setattr(session, "data_rows", counted)
    client.execute("SELECT repeat('x', 1000000) || n FROM range(40) t(n)")
    assert len(client.fetchall()) == sum(taken) == 40
    assert max(taken) <= session.piece_bytes // 1_000_000


memory_worker = """
import resource, sys, threading
from sluice.operate.postgres import Options, Server
from sluice.storage.delta import Lake
server = Server(Lake(sys.argv[1]), Options(port=0, process_memory="1GB"))
print(server.port, flush=True)
server.serve()
"""


@pytest.mark.process
def test_a_giant_value_is_an_error_of_one_statement(lake: Lake) -> None:
    worker = subprocess.Popen([sys.executable, "-c", memory_worker, lake.root], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        port = int(worker.stdout.readline())
        one, other = (psycopg2.connect(host="127.0.0.1", port=port, user="me", dbname="x") for _ in range(2))
        for each in (one, other):
            each.autocommit = True
        for sql in ("repeat('x', 4000000000)", "range(1000000000)", "a || a || a || a || a || a || a || a"):
            with pytest.raises(psycopg2.Error, match="emory") as refused, one.cursor() as cursor:
                cursor.execute(f"SELECT {sql} FROM (SELECT repeat('x', 200000000) AS a)")
            assert refused.value.pgcode == "53200"
            assert "--server-memory" in str(refused.value)
            for client in (one, other):
                with client.cursor() as cursor:
                    cursor.execute("SELECT count(*) FROM gold.sold")
                    assert cursor.fetchall() == [(3,)]
        taken = Path(f"/proc/{worker.pid}/status")
        if taken.exists():
            (most,) = (int(line.split()[1]) for line in taken.read_text().splitlines() if line.startswith("VmHWM"))
            assert most < 2_000_000
    finally:
        worker.terminate()
        worker.communicate()


@pytest.mark.parametrize("columns", ["range", "[range] AS a"])
def test_an_answer_is_no_larger_than_the_memory_of_a_connection(lake: Lake, columns: str) -> None:
    # Its megabytes are no matter of time, however little of it the machine has to give.
    for server in running(lake, Options(port=0, memory_limit="50MB", statement_seconds_max=600)):
        cursor = connected(server).cursor()
        with pytest.raises(psycopg2.Error, match="ask for fewer rows") as refused:
            cursor.execute(f"SELECT {columns} FROM range(100000000000)")
        assert refused.value.pgcode == "53200"
        cursor.connection.rollback()
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
        cursor.connection.close()


endless = "SELECT count(*) FROM range(100000000) a, range(100000) b WHERE a.range + b.range = 7"


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("SELECT CASE WHEN range = 200000 THEN error('no') END FROM range(1000000)", "22000"),
        ("SELECT (range * 100000)::INT FROM range(1000000)", "22P02"),
        ("SELECT 9223372036854575807 + range FROM range(1000000)", "22003"),
        (f"FROM range(100000) UNION ALL {endless}", "57014"),
        ("FROM range(100000) UNION ALL (SELECT r FROM range(100000000) t(r) ORDER BY hash(r))", "53200"),
    ],
)
def test_what_fails_after_the_first_rows_ends_the_statement_and_not_the_connection(
    lake: Lake, sql: str, state: str
) -> None:
    # Only what has no end is ended by time, however little of it the machine has to give.
    seconds = 2 if endless in sql else 600
    for server in running(lake, Options(port=0, memory_limit="50MB", statement_seconds_max=seconds)):
        cursor = connected(server).cursor()
        with pytest.raises(psycopg2.Error) as refused:
            cursor.execute(sql)
        assert refused.value.pgcode == state
        cursor.connection.rollback()
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
        cursor.connection.close()


every_type = """SELECT i = 7 AS a, i::TINYINT b, i::UBIGINT c, -i::HUGEINT d, i / 3 e, (i / 3)::FLOAT f,
    i::DECIMAL(18, 8) / 1000 g, 'é' || i h, DATE '1999-12-31' + i::INTEGER i,
    TIMESTAMP '1999-12-31 23:59:58.5' + i * INTERVAL 1 SECOND j,
    TIMESTAMPTZ '1999-12-31 23:59:59Z' + i * INTERVAL 1 SECOND k, NULL l, 'NaN'::DOUBLE m, '-inf'::FLOAT n,
    CASE WHEN i % 2 = 0 THEN i::SMALLINT END o, 1e-30 * i p, [i] q FROM range(100) t(i)"""


def test_rows_in_columns_are_the_same_as_rows_by_themselves(
    client: Any, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.begin()
    encoded: list[int] = []

    def counted(batch: pa.RecordBatch, *more: Any) -> bytes:
        encoded.append(batch.num_rows)
        return columns.data_rows(batch, *more)

    monkeypatch.setattr(session, "data_rows", counted)
    answers = []
    names = ", ".join("abcdefghijklmnop")
    # With a UUID none is encoded in columns.
    for asked in (names, f"{names}, uuid()"):
        sql = f"SELECT {asked} FROM ({every_type})"
        client.execute(sql)
        rows = [row[:16] for row in client.fetchall()]
        execute = wire.message("E", b"\0", struct.pack("!i", 0))
        form = [*[1] * 16, *[0] * (asked != names)]
        bind = wire.message("B", b"\0\0", struct.pack(f"!hhh{len(form)}h", 0, 0, len(form), *form))
        raw.socket.sendall(prepared(sql) + bind + execute + wire.message("S"))
        in_binary = [binary_values(body) for kind, body in raw.until("Z") if kind == "D"]
        assert len(rows) == len(in_binary) == 100
        answers.append(repr((rows, in_binary)))
    assert encoded == [100, 100]
    assert answers[0] == answers[1]


def binary_values(body: bytes) -> list[bytes | None]:
    """The first sixteen values of a row."""
    fields = wire.Fields(body)
    fields.int16()
    return [fields.value() for _ in range(16)]


@pytest.mark.parametrize("value", ["'infinity'::TIMESTAMP", "TIMESTAMPTZ '-infinity'", "'infinity'::DATE"])
def test_a_time_without_end_is_the_same_in_columns(client: Any, value: str) -> None:
    client.execute(f"SELECT {value} FROM range(1000)")
    assert len({row[0].replace(tzinfo=None) if "STAMP" in value else row[0] for row in client.fetchall()}) == 1


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("INTERVAL '1 month'", "1 mon"),
        ("INTERVAL '1 year 2 months 3 days 04:05:06.7'", "1 year 2 mons 3 days 04:05:06.7"),
        ("-INTERVAL '14 months' - INTERVAL '1 day 1 second'", "-1 years -2 mons -1 days -00:00:01"),
        ("INTERVAL '0 days'", "00:00:00"),
        ("340282366920938463463374607431768211455::UHUGEINT", "340282366920938463463374607431768211455"),
        ("DATE 'infinity'", "infinity"),
        ("TIMESTAMP '-infinity'", "-infinity"),
    ],
)
def test_a_value_is_printed_as_postgres_prints_it(raw: Raw, sql: str, text: str) -> None:
    raw.begin()
    # Beside a column that is encoded by itself.
    raw.socket.sendall(wire.message("Q", f"SELECT {sql}, INTERVAL '1 day'\0".encode()))
    (row,) = [wire.Fields(body) for kind, body in raw.until("Z") if kind == "D"]
    row.int16()
    assert row.value() == text.encode()


def test_times_without_end_are_those_of_postgres_in_binary(raw: Raw) -> None:
    raw.begin()
    sql = "SELECT DATE 'infinity', DATE '-infinity', TIMESTAMP 'infinity', TIMESTAMPTZ '-infinity', INTERVAL '1 month'"
    bind = wire.message("B", b"\0\0", struct.pack("!hhhh", 0, 0, 1, 1))
    raw.socket.sendall(prepared(sql) + bind + wire.message("E", b"\0\0\0\0\0") + wire.message("S"))
    (row,) = [wire.Fields(body) for kind, body in raw.until("Z") if kind == "D"]
    row.int16()
    assert [row.value() for _ in range(5)] == [
        b"\x7f" + b"\xff" * 3,
        b"\x80" + b"\0" * 3,
        b"\x7f" + b"\xff" * 7,
        b"\x80" + b"\0" * 7,
        struct.pack("!qii", 0, 0, 1),
    ]


def test_values_have_the_text_of_postgres() -> None:
    texts = {as_text(value, 25) for value in (True, float("inf"), float("nan"), b"\xff", UUID(int=1))}
    assert texts == {b"t", b"Infinity", b"NaN", b"\\xff", b"00000000-0000-0000-0000-000000000001"}
    assert column_of("x", "STRUCT(a INTEGER)[]").oid == 114
    assert column_of("x", "DECIMAL(9,2)[]").oid == 1231
