"""A table of Postgres that is kept equal to a table of gold: each commit is a transaction, its position included."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any

from sluice.errors import PublishError, UsageError
from sluice.operate.json_text import json_line
from sluice.operate.publish import Commit, Position
from sluice.operate.subscribe import Change
from sluice.runtime import lost_server

if TYPE_CHECKING:
    from psycopg2.extensions import connection as Connection
    from psycopg2.extensions import cursor as Database
    from psycopg2.sql import Composable

positions_table = "_sluice_positions"
index_prefix = "_sluice_key_"
# The first one with unique indexes for which nulls are equal.
version_least = 150_000
# A transaction that takes longer is watched.
watch_seconds = 10.0
# The server ends the transaction of a publisher that it has lost, or that stopped: its locks keep the next one waiting.
lost_publisher = {
    "idle_in_transaction_session_timeout": "10min",
    "tcp_user_timeout": "30s",
    "tcp_keepalives_idle": "15s",
    "tcp_keepalives_interval": "5s",
    "tcp_keepalives_count": "3",
}
check_server = " Check that the server runs and can be reached."
rows_at_once = 1_000
# Postgres refuses a statement of 1 GB.
statement_characters = 16_000_000
name_bytes_max = 63
nested = ("array<", "map<", "struct<", "variant")
types = {
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}


@dataclass
class PostgresTable:
    """The table `schema.table` of a database; how far it is stands in `_sluice_positions` of the same schema."""

    # It may contain a password.
    address: str = field(repr=False)
    full_name: str
    connection: "Connection | None" = field(default=None, repr=False)
    known: Position | None = None

    @property
    def name(self) -> str:
        return f"postgres {self.full_name}"

    def position(self) -> Position | None:
        self.drop_dead_connection()
        with self.transaction() as database:
            self.known = self.read_position(database)
        return self.known

    def apply(self, commit: Commit) -> int:
        with self.transaction() as database:
            self.require_unmoved(database)
            if commit.replaces:
                self.empty(database, commit)
            count = self.write_rows(database, commit)
            self.write_position(database, commit)
        self.known = commit.then
        return count

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    @contextmanager
    def transaction(self) -> "Iterator[Database]":
        """A transaction: committed at the end of the block, and rolled back after any error."""
        driver = psycopg2()
        try:
            self.connection = self.connection or self.connect()
            with lost_server.watched(self.connection, self.address, watch_seconds):
                with self.connection.cursor() as database:
                    database.execute(
                        "SELECT set_config(name, value, true) FROM unnest(%s, %s) AS _ (name, value)",
                        [list(lost_publisher), list(lost_publisher.values())],
                    )
                    yield database
                # Not by the connection's own block: where the server is gone, it says so instead of why.
                self.connection.commit()
        except driver.Error as error:
            is_lost = self.connection is not None and self.connection.closed
            self.close()
            raise PublishError(f"{self.name}: {said(error)}.{check_server if is_lost else ''}") from error
        except lost_server.ServerLost as error:
            self.close()
            raise PublishError(f"{self.name}: {error}{check_server}") from error
        except BaseException:
            self.close()
            raise

    def drop_dead_connection(self) -> None:
        """Lets a connection go that the server has ended since the last pass: the next transaction makes another."""
        if self.connection is None:
            return
        try:
            with (
                lost_server.watched(self.connection, self.address, watch_seconds),
                self.connection.cursor() as database,
            ):
                database.execute("SELECT 1")
                self.connection.rollback()
        except (psycopg2().Error, lost_server.ServerLost):
            self.close()

    def connect(self) -> "Connection":
        driver = psycopg2()
        try:
            found: Connection = driver.connect(
                self.address,
                fallback_application_name="sluice publish",
                connect_timeout=lost_server.connect_seconds_max,
                client_encoding="UTF8",
                **lost_server.lost_network,
            )
        except driver.ProgrammingError as error:
            # What the driver says quotes the address, and with it the password.
            raise UsageError(
                "SLUICE_PUBLISH_POSTGRES is no address of a database; write postgresql://user@host:5432/database"
            ) from error
        except driver.OperationalError as error:
            # What a server itself says has a severity.
            hint = "" if "FATAL" in str(error) else check_server
            hint = " Give the password as PGPASSWORD or in ~/.pgpass." if "password" in str(error) else hint
            raise PublishError(f"{self.name}: {said(error)}.{hint}") from error
        if found.server_version < version_least:
            found.close()
            raise PublishError(f"{self.name}: its server is older than Postgres {version_least // 10_000}.")
        return found

    def require_unmoved(self, database: "Database") -> None:
        """Waits for who else publishes to this table; a PublishError if they moved it."""
        database.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"sluice publish {self.full_name}"])
        if self.read_position(database) != self.known:
            raise PublishError(f"{self.name}: another process publishes to it at the same time. Let only one do so.")

    def read_position(self, database: "Database") -> Position | None:
        """The position; None where there is none, or the table of this name is another one than it was."""
        if not self.exists(database, positions_table):
            return None
        statement = "SELECT source, cursor, key, columns FROM {positions} WHERE (target, made) = (%s, to_regclass(%s))"
        database.execute(self.sql(statement), [self.table, self.full_name])
        found = database.fetchone()
        return None if found is None else Position(found[0], found[1], tuple(found[2]), found[3])

    def exists(self, database: "Database", name: str) -> bool:
        # Not by to_regclass, which may not know yet what another publisher has just made.
        database.execute(
            "SELECT EXISTS (SELECT FROM pg_class JOIN pg_namespace ON relnamespace = pg_namespace.oid "
            "WHERE (nspname, relname) = (%s, %s))",
            [self.schema, name],
        )
        return bool(one(database))

    def empty(self, database: "Database", commit: Commit) -> None:
        """Makes the table as it should be, without rows.

        Until the end of the transaction others see it as it was: so its rows are deleted, and not truncated.
        """
        if not self.exists(database, self.table):
            self.make(database)
        elif self.known is None:
            self.require_own(database, commit)
        then = commit.then
        database.execute(self.sql("DELETE FROM {table}"))
        wanted = {name: self.type_of(name, kind) for name, kind in then.columns.items()}
        self.change_columns(database, wanted)
        self.make_index(database, then.key)

    def require_own(self, database: "Database", commit: Commit) -> None:
        """A PublishError for a table without a position, unless it has the name of one that had and may be replaced."""
        found = None
        if self.exists(database, positions_table):
            database.execute(self.sql("SELECT 1 FROM {positions} WHERE target = %s"), [self.table])
            found = one(database)
        if found is None:
            raise PublishError(
                f"{self.name} is there, and was not made by sluice publish. Drop it, or publish to another name."
            )
        if not commit.again:
            raise PublishError(
                f"{self.name} is not the table that was published: it was restored from a backup, or somebody made it. "
                f"To replace all its rows, in one transaction: sluice publish {commit.then.source} --again"
            )

    def make(self, database: "Database") -> None:
        database.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"sluice publish {self.schema}"])
        database.execute("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = %s)", [self.schema])
        if not one(database):
            database.execute(self.sql("CREATE SCHEMA {schema}"))
        database.execute(
            self.sql(
                "CREATE TABLE IF NOT EXISTS {positions} (target text PRIMARY KEY, made oid NOT NULL, "
                "source text NOT NULL, version bigint NOT NULL, cursor text NOT NULL, key text[] NOT NULL, "
                "columns json NOT NULL, committed_at timestamptz NOT NULL, published_at timestamptz NOT NULL)"
            )
        )
        database.execute(self.sql("CREATE TABLE {table} ()"))

    def change_columns(self, database: "Database", wanted: Mapping[str, str]) -> None:
        """Drops the columns that are not wanted, or not of this type, and adds those that are missing."""
        database.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [self.full_name],
        )
        found = dict(database.fetchall())
        for name, kind in found.items():
            if kind != wanted.get(name):
                database.execute(self.sql("ALTER TABLE {table} DROP COLUMN {column}", column=name))
        for name, kind in wanted.items():
            if found.get(name) != kind:
                database.execute(self.sql(f"ALTER TABLE {{table}} ADD COLUMN {{column}} {kind}", column=name))

    def make_index(self, database: "Database", key: Sequence[str]) -> None:
        """The unique index by which rows are found, and no other one of ours."""
        digest = sha256("\0".join([self.full_name, *key]).encode()).hexdigest()[:16]
        wanted = f"{index_prefix}{digest}"
        database.execute(
            "SELECT indexname FROM pg_indexes WHERE (schemaname, tablename) = (%s, %s) AND starts_with(indexname, %s)",
            [self.schema, self.table, index_prefix],
        )
        for (name,) in database.fetchall():
            if name != wanted:
                database.execute(self.sql("DROP INDEX {schema}.{index}", index=name))
        statement = "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {table} ({key}) NULLS NOT DISTINCT"
        database.execute(self.sql(statement, index=wanted, key=list(key)))

    def write_rows(self, database: "Database", commit: Commit) -> int:
        """Deletes and upserts, some rows at once. A key occurs once in a commit, so their order does not matter."""
        from psycopg2.extras import execute_batch, execute_values

        driver = psycopg2()
        columns, key = list(commit.then.columns), commit.then.key
        others = [name for name in columns if name not in key]
        statement = "INSERT INTO {table} ({columns}) VALUES %s"
        if not commit.replaces:
            update = ", ".join(f"{{{at}}} = EXCLUDED.{{{at}}}" for at in range(len(others)))
            statement += f" ON CONFLICT ({{key}}) DO {f'UPDATE SET {update}' if others else 'NOTHING'}"
        upsert = self.sql(statement, *others, is_formatted=True, columns=columns, key=list(key))
        is_json = {name for name, kind in commit.then.columns.items() if kind.startswith(nested)}
        count = 0
        while some := list(islice(commit.changes, rows_at_once)):
            count += len(some)
            try:
                for nulls, rows in self.gone(some, key, is_json).items():
                    execute_batch(database, self.delete(key, nulls), rows, page_size=rows_at_once)
                new = [values(each.new, columns, is_json) for each in some if each.new is not None]
                for page in pages(new):
                    execute_values(database, upsert, page, page_size=rows_at_once)
            except (ValueError, driver.DataError, driver.errors.ProgramLimitExceeded) as error:
                raise PublishError(
                    f"{self.name}: version {commit.then.version} cannot be written: {said(error)}. Once the rows are "
                    "corrected, sluice publish --again writes them as they are then, and leaves out the versions "
                    "before."
                ) from error
        return count

    def gone(
        self, changes: Sequence[Change], key: Sequence[str], is_json: set[str]
    ) -> dict[tuple[bool, ...], list[list[Any]]]:
        """The keys of the deleted rows without their nulls, by where these are."""
        found: dict[tuple[bool, ...], list[list[Any]]] = {}
        for each in changes:
            if each.new is None and each.old is not None:
                row = values(each.old, key, is_json)
                nulls = tuple(value is None for value in row)
                found.setdefault(nulls, []).append([value for value in row if value is not None])
        return found

    def delete(self, key: Sequence[str], nulls: Sequence[bool]) -> "Composable":
        """Deletes the row of a key. `IS NOT DISTINCT FROM` would be shorter, and reads the whole table."""
        where = " AND ".join(f"{{{at}}} IS NULL" if is_null else f"{{{at}}} = %s" for at, is_null in enumerate(nulls))
        return self.sql(f"DELETE FROM {{table}} WHERE {where}", *key, is_formatted=True)

    def write_position(self, database: "Database", commit: Commit) -> None:
        then = commit.then
        statement = """
            INSERT INTO {positions} VALUES (%s, to_regclass(%s), %s, %s, %s, %s, %s, %s, now())
            ON CONFLICT (target) DO UPDATE SET
            (made, source, version, cursor, key, columns, committed_at, published_at) =
            (EXCLUDED.made, EXCLUDED.source, EXCLUDED.version, EXCLUDED.cursor, EXCLUDED.key, EXCLUDED.columns,
            EXCLUDED.committed_at, EXCLUDED.published_at)"""
        columns = json_line(then.columns)
        row = [
            self.table,
            self.full_name,
            then.source,
            then.version,
            then.cursor,
            list(then.key),
            columns,
            commit.committed_at,
        ]
        database.execute(self.sql(statement), row)

    def type_of(self, column: str, kind: str) -> str:
        """The type of a column in Postgres, as Postgres spells it; a PublishError where there is none."""
        if len(column.encode()) > name_bytes_max:
            raise PublishError(f"{self.name}: Postgres has no columns with names as long as {column}.")
        if kind.startswith("decimal("):
            return f"numeric{kind.removeprefix('decimal')}"
        if kind.startswith(("varchar(", "char(")):
            return "text"
        found = "jsonb" if kind.startswith(nested) else types.get(kind)
        if found is None:
            raise PublishError(f"{self.name}: the column {column} is a {kind}, for which Postgres has no type.")
        return found

    def sql(self, text: str, *columns: str, is_formatted: bool = False, **names: str | list[str]) -> "Composable":
        """A statement with quoted names in place of `{table}`, `{positions}`, `{schema}` and the given ones.

        With `is_formatted`, values come too, and a percent sign in a name has to be two.
        """
        from psycopg2.sql import SQL, Identifier

        def quoted(name: str) -> "Composable":
            return Identifier(name.replace("%", "%%") if is_formatted else name)

        known = {
            "schema": Identifier(self.schema),
            "table": Identifier(self.schema, self.table),
            "positions": Identifier(self.schema, positions_table),
        }
        given = {
            name: SQL(", ").join(map(quoted, each)) if isinstance(each, list) else quoted(each)
            for name, each in names.items()
        }
        return SQL(text).format(*map(quoted, columns), **known, **given)

    @property
    def schema(self) -> str:
        return self.full_name.split(".")[0]

    @property
    def table(self) -> str:
        return self.full_name.split(".")[1]


def values(row: Mapping[str, Any], columns: Sequence[str], is_json: set[str]) -> list[Any]:
    """The values of a row, as the driver takes them."""
    return [json_line(row[name]) if name in is_json and row[name] is not None else row[name] for name in columns]


def pages(rows: Sequence[list[Any]]) -> Iterator[list[list[Any]]]:
    """The rows, as many at once as fit into a statement; one that is longer comes alone."""
    page: list[list[Any]] = []
    size = 0
    for row in rows:
        length = sum(len(value) for value in row if isinstance(value, str | bytes))
        if page and size + length > statement_characters:
            yield page
            page, size = [], 0
        page.append(row)
        size += length
    if page:
        yield page


def one(database: "Database") -> Any:
    """The value that a statement gives."""
    found = database.fetchone()
    return found and found[0]


def said(error: Exception) -> str:
    """What Postgres said, in a line."""
    return " ".join(str(error).split()).rstrip(".")[:500]


def psycopg2() -> Any:
    """The driver; a UsageError where it is not installed."""
    try:
        import psycopg2 as driver
    except ImportError as error:
        raise UsageError("To publish to Postgres, install its driver: sluice-lakehouse[publish].") from error
    return driver
