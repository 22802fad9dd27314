"""What is published equals the table of gold, whatever is killed."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg2.extensions import cursor as PlainCursor

from infra.servers import Kafka, Running, running
from sluice import Project, gold
from sluice.api import Message
from sluice.engine.catalogue import unique
from sluice.errors import DeclarationError, PublishError, UsageError
from sluice.log import KafkaLog, KafkaSecurity, Record
from sluice.log.records import StoredRecord
from sluice.operate.json_text import json_line
from sluice.operate.publish import Commit, Position, Publisher
from sluice.operate.publish import postgres as to_postgres
from sluice.operate.publish.kafka import KafkaTopic, Place
from sluice.operate.publish.postgres import PostgresTable
from sluice.runtime import lost_server
from sluice.storage.delta import Lake
from tests.commands import sluice
from tests.servers.postgres import Postgres
from tests.servers.relay import relayed
from tests.test_subscribe import Rows, actual, apply_commit, bag, commits, made, table, unique_lists
from tests.waiting import eventually, patience_seconds

numbers = itertools.count()
random_histories = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres().start()
    try:
        yield server
    finally:
        server.remove()


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@dataclass
class Mortal(PostgresTable):
    """A publisher that is killed after so many statements, or after its last commit."""

    lives: int = 1_000_000

    def connect(self) -> Any:
        mortal = self

        class Counting(PlainCursor):
            def execute(self, *arguments: Any) -> None:
                mortal.lives -= 1
                if mortal.lives < 0:
                    raise Killed
                super().execute(*arguments)

        connection = super().connect()
        connection.cursor_factory = Counting
        return connection

    def apply(self, commit: Commit) -> int:
        found = super().apply(commit)
        if self.lives == 0:
            raise Killed
        return found


def target_of(postgres: Postgres, kind: type[PostgresTable] = PostgresTable, **more: Any) -> PostgresTable:
    """A new name in a new schema."""
    return kind(postgres.address(), f"s{next(numbers)}.sold", **more)


def advance(lake: Lake, target: Any, key: tuple[str, ...] = ("id",), *, again: bool = False) -> list[tuple[Any, int]]:
    """The versions that were published, and the number of their changes."""
    try:
        _, *found = Publisher(lake, table, key, target).advance(again=again)
    finally:
        target.close()
    return [(each.version, each.changes) for each in found]


def published(postgres: Postgres, name: str) -> Rows:
    """The rows in Postgres."""
    with postgres.connect() as connection, connection.cursor() as database:
        database.execute(f"SELECT * FROM {name}")
        columns = [each.name for each in database.description]
        return bag(dict(zip(columns, row, strict=True)) for row in database.fetchall())


def state(lake: Lake, version: int) -> Rows:
    return bag(lake.state(table, version).to_pylist())


def equal_where_it_says_so(lake: Lake, postgres: Postgres, target: PostgresTable) -> None:
    """That the target has the rows of the version at which it says that it is."""
    with_position = PostgresTable(target.address, target.full_name)
    position = with_position.position()
    with_position.close()
    if position is not None:
        assert published(postgres, target.full_name) == state(lake, position.version)


def unique_commits(data: st.DataObject) -> st.SearchStrategy[tuple[str, Any]]:
    """Commits after which each id is still there once."""
    return commits.filter(lambda each: each[0] != "append").map(
        lambda each: (each[0], data.draw(unique_lists)) if each[0] == "replace" else each
    )


def lived_through(
    folder: Path, postgres: Postgres, data: st.DataObject, make: Callable[..., PostgresTable] = Mortal
) -> None:
    """A random history, published by processes that are killed anywhere."""
    lake, target = Lake(str(folder)), target_of(postgres)
    key = data.draw(st.sampled_from([("id",), ("name", "id")]))
    path = made(lake, data.draw(unique_lists))
    for kind, given_ in data.draw(st.lists(unique_commits(data), max_size=5)):
        apply_commit(path, kind, given_)
        for lives in data.draw(st.lists(st.integers(0, 14), max_size=2)):
            mortal = make(target.address, target.full_name, lives=lives)
            try:
                advance(lake, mortal, key)
            except Killed:
                equal_where_it_says_so(lake, postgres, target)
    advance(lake, make(target.address, target.full_name), key)
    equal_where_it_says_so(lake, postgres, target)
    assert published(postgres, target.full_name) == actual(lake)
    assert advance(lake, target, key) == []


@random_histories
@given(data=st.data())
def test_the_table_in_postgres_is_that_of_gold_whatever_is_killed(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, data: st.DataObject
) -> None:
    lived_through(tmp_path_factory.mktemp("lake"), postgres, data)


class Forgetful(PostgresTable):
    """Moves the position only once."""

    def write_position(self, database: Any, commit: Commit) -> None:
        if commit.replaces:
            super().write_position(database, commit)


class Early(PostgresTable):
    """Moves the position before the rows are written, in a transaction of its own."""

    def write_rows(self, database: Any, commit: Commit) -> int:
        super().write_position(database, commit)
        database.connection.commit()
        raise Killed


class Hoarder(PostgresTable):
    """Ignores deletes."""

    def gone(self, *_: Any) -> dict[tuple[bool, ...], list[list[Any]]]:
        return {}


@pytest.mark.parametrize("kind", [Forgetful, Early, Hoarder])
def test_a_publisher_that_forgets_the_position_or_deletes_is_noticed(
    lake: Lake, postgres: Postgres, kind: type[PostgresTable]
) -> None:
    target = target_of(postgres)
    advance(lake, target)
    apply_commit(lake.path(table), "delete", 1)
    with suppress(Killed):
        advance(lake, kind(target.address, target.full_name))
    with pytest.raises(AssertionError):
        equal_where_it_says_so(lake, postgres, target)


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a lake with a table of two versions, the second with one of its two rows changed."""
    found = Lake(str(tmp_path_factory.mktemp("two") / "lake"))
    path = made(found, [(1, 1.0, "a"), (2, 2.0, None)])
    apply_commit(path, "merge", [(1, float("nan"), "z")])
    return Path(found.root)


@pytest.fixture
def lake(two_versions: Path, tmp_path: Path) -> Lake:
    """A test's own copy of it."""
    return Lake(str(shutil.copytree(two_versions, tmp_path / "lake")))


def test_it_begins_with_all_rows_and_goes_on_with_changes(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    assert advance(lake, target) == [(1, 2)]
    assert advance(lake, target) == []
    apply_commit(lake.path(table), "merge", [(2, 5.0, "b"), (3, None, None)])
    apply_commit(lake.path(table), "delete", 1)
    assert advance(lake, target) == [(2, 2), (3, 1)]
    assert published(postgres, target.full_name) == actual(lake)
    assert advance(lake, target, again=True) == [(3, 2)]
    assert published(postgres, target.full_name) == actual(lake)


def test_a_table_that_was_made_again_replaces_all_rows_in_one_transaction(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    before = published(postgres, target.full_name)
    shutil.rmtree(lake.path(table))
    made(lake, [(number, None, "new") for number in range(3000)])

    def others_see_it_as_it_was(position: Position) -> None:
        assert published(postgres, target.full_name) == before

    class Watched(PostgresTable):
        def write_position(self, database: Any, commit: Commit) -> None:
            others_see_it_as_it_was(commit.then)
            super().write_position(database, commit)

    assert advance(lake, Watched(target.address, target.full_name)) == [(0, 3000)]
    assert published(postgres, target.full_name) == actual(lake)


def test_another_key_or_other_columns_replace_all_rows(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    assert advance(lake, target, ("id", "name")) == [(1, 2)]
    apply_commit(lake.path(table), "columns", "more")
    apply_commit(lake.path(table), "merge", [])
    assert advance(lake, target, ("id", "name")) == [(2, 2)]
    assert published(postgres, target.full_name) == actual(lake)
    with pytest.raises(PublishError, match="no column shop"):
        advance(lake, target, ("shop",))


def test_every_type_and_odd_names_arrive(tmp_path: Path, postgres: Postgres) -> None:
    parts = pa.struct([pa.field("a", pa.string()), pa.field("t", pa.date32())])
    moment = datetime(2026, 3, 1, 9, 30, 0, 5, UTC)
    values: dict[str, tuple[pa.DataType, Any, Any]] = {
        'od%d"': (pa.string(), "'; DROP TABLE x; -- %s\\", None),
        "truth": (pa.bool_(), True, None),
        "byte": (pa.int8(), -128, None),
        "short": (pa.int16(), 32767, None),
        "whole": (pa.int32(), -5, None),
        "long": (pa.int64(), 2**63 - 1, None),
        "real": (pa.float32(), 0.5, None),
        "float": (pa.float64(), float("-inf"), None),
        "price": (pa.decimal128(20, 4), Decimal("1234567890123456.7891"), None),
        "bytes": (pa.binary(), b"\x00\xff", None),
        "day": (pa.date32(), date(1, 1, 1), None),
        "moment": (pa.timestamp("us", "UTC"), moment, None),
        "clock": (pa.timestamp("us"), moment.replace(year=9999, tzinfo=None), None),
        "many": (pa.list_(pa.float64()), [1.5, float("nan")], [1.5, "NaN"]),
        "parts": (parts, {"a": 'x"', "t": date(2026, 1, 2)}, {"a": 'x"', "t": "2026-01-02"}),
    }  # fmt: skip
    lake, target = Lake(str(tmp_path / "lake")), target_of(postgres)
    schema = pa.schema([pa.field(name, kind) for name, (kind, _, _) in values.items()])
    row: dict[str, Any] = {name: value for name, (_, value, _) in values.items()}
    nothing: dict[str, Any] = dict.fromkeys(values)
    write_deltalake(lake.path(table), pa.Table.from_pylist([row, nothing], schema=schema))
    key = tuple(values)
    advance(lake, target, key)
    expected = bag([{name: value if other is None else other for name, (_, value, other) in values.items()}, nothing])
    assert plain(postgres, target.full_name) == expected
    lake.open_own(table).delete("whole = -5")
    assert advance(lake, target, key) == [(1, 1)]
    lake.open_own(table).delete()
    assert advance(lake, target, key) == [(2, 1)]
    assert plain(postgres, target.full_name) == bag([])


def test_times_without_end_and_years_that_python_does_not_know_arrive(
    tmp_path: Path, postgres: Postgres, log: KafkaLog
) -> None:
    lake, target = Lake(str(tmp_path / "lake")), target_of(postgres)
    last = 253_402_300_799_999_999
    counts = pa.array([2**63 - 1, 1 - 2**63, last, last + 1, -70_000_000_000_000_000], pa.int64())
    clock = counts.cast(pa.timestamp("us"))
    columns: dict[str, Any] = {
        "id": range(5),
        "at": counts.cast(pa.timestamp("us", "UTC")),
        "clock": clock,
        "many": [[each] for each in clock],
    }
    write_deltalake(lake.path(table), pa.table(columns))
    advance(lake, target, ("at", "id"))
    texts = ["infinity", "-infinity", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00", "0250-10-15 19:33:20 BC"]
    asked = f"SELECT id, (at AT TIME ZONE 'UTC')::text, clock::text, many->>0 FROM {target.full_name} ORDER BY id"
    found = postgres.execute(asked)
    assert [row[:3] for row in found] == [(number, text, text) for number, text in enumerate(texts)]
    assert [row[3] for row in found[:4]] == texts[:4]
    lake.open_own(table).delete("id < 2")
    advance(lake, target, ("at", "id"))
    assert postgres.execute(asked) == found[2:]
    topic = f"sold-{next(numbers)}"
    advance(lake, KafkaTopic(log, topic))
    write_deltalake(lake.path(table), pa.table(columns), mode="overwrite")
    advance(lake, KafkaTopic(log, topic))
    newest = {each.key: json.loads(each.value or b"{}") for each in records(log, topic)}
    assert [newest[f'{{"id": {number}}}']["at"] for number in range(2)] == texts[:2]


def plain(postgres: Postgres, name: str) -> Rows:
    """The rows in Postgres, with bytes and times as the lake has them."""
    with postgres.connect() as connection, connection.cursor() as database:
        database.execute(f"SET TimeZone = 'UTC'; SELECT * FROM {name}")
        columns = [each.name for each in database.description]
        return bag({column: found(value) for column, value in zip(columns, row, strict=True)} for row in database)


def found(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, memoryview) else value


def test_text_that_postgres_cannot_have_is_an_error_and_nothing_is_written(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    apply_commit(lake.path(table), "merge", [(1, 1.0, "a\0"), (2, 1.0, "fine")])
    with pytest.raises(PublishError, match=r"version 2 cannot be written: .*NUL.* sluice publish --again"):
        advance(lake, target)
    assert published(postgres, target.full_name) == state(lake, 1)
    apply_commit(lake.path(table), "merge", [(1, 1.0, "a")])
    with pytest.raises(PublishError, match="version 2 cannot be written"):
        advance(lake, target)
    advance(lake, target, again=True)
    assert published(postgres, target.full_name) == state(lake, 3)


def test_a_struct_that_postgres_cannot_have_is_an_error_that_names_the_version(
    tmp_path: Path, postgres: Postgres
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    write_deltalake(lake.path(table), pa.table({"id": [1], "said": [{"text": "a\0"}]}))
    with pytest.raises(PublishError, match="version 0 cannot be written: unsupported Unicode escape sequence"):
        advance(lake, target_of(postgres))


@dataclass
class Measured(PostgresTable):
    """Knows how long its longest statement was."""

    longest: int = 0

    def connect(self) -> Any:
        measured = self

        class Measuring(PlainCursor):
            def execute(self, statement: Any, *arguments: Any) -> None:
                measured.longest = max(measured.longest, len(statement) if isinstance(statement, bytes) else 0)
                super().execute(statement, *arguments)

        connection = super().connect()
        connection.cursor_factory = Measuring
        return connection


def test_large_rows_come_in_several_statements(tmp_path: Path, postgres: Postgres) -> None:
    lake = Lake(str(tmp_path / "lake"))
    made(lake, [(number, 1.0, "x" * 5_000_000) for number in range(7)])
    target = Measured(postgres.address(), f"s{next(numbers)}.sold")
    assert advance(lake, target) == [(0, 7)]
    assert 5_000_000 < target.longest < 16_500_000
    assert published(postgres, target.full_name) == state(lake, 0)


def test_a_table_that_somebody_else_made_is_left_alone(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    postgres.execute(f"CREATE SCHEMA {target.full_name.split('.')[0]}")
    postgres.execute(f"CREATE TABLE {target.full_name} AS SELECT 7 AS precious")
    with pytest.raises(PublishError, match="not made by sluice publish"):
        advance(lake, target)
    assert postgres.execute(f"SELECT * FROM {target.full_name}") == [(7,)]


def test_a_table_that_was_dropped_is_made_again(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    postgres.execute(f"DROP TABLE {target.full_name}")
    assert advance(lake, target) == [(1, 2)]
    postgres.execute(f"DROP TABLE {target.full_name}")
    postgres.execute(f"CREATE TABLE {target.full_name} AS SELECT 7 AS precious")
    with pytest.raises(PublishError, match="somebody made it"):
        advance(lake, target)
    assert postgres.execute(f"SELECT * FROM {target.full_name}") == [(7,)]


@pytest.mark.process
def test_a_table_that_was_restored_from_a_backup_is_published_again_when_asked_for(
    lake: Lake, postgres: Postgres, tmp_path: Path
) -> None:
    target = target_of(postgres)
    advance(lake, target)
    schema = target.full_name.partition(".")[0]
    to = ["--dbname", postgres.address()]
    dump = [str(postgres.binaries / "pg_dump"), "-Fc", "-n", schema, *to]
    (tmp_path / "backup").write_bytes(subprocess.run(dump, check=True, capture_output=True).stdout)
    apply_commit(lake.path(table), "delete", 1)
    advance(lake, target)
    subprocess.run([str(postgres.binaries / "pg_restore"), "--clean", *to, str(tmp_path / "backup")], check=True)
    assert published(postgres, target.full_name) == state(lake, 1)
    with pytest.raises(PublishError, match=r"restored from a backup.*sluice publish gold.sold --again"):
        advance(lake, target)
    assert published(postgres, target.full_name) == state(lake, 1)
    assert advance(lake, target, again=True) == [(2, 1)]
    assert published(postgres, target.full_name) == actual(lake)
    apply_commit(lake.path(table), "delete", 2)
    assert advance(lake, target) == [(3, 1)]


def test_a_table_of_others_is_left_alone_also_with_again(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, PostgresTable(target.address, f"{target.full_name}_beside"))
    postgres.execute(f"CREATE TABLE {target.full_name} AS SELECT 7 AS precious")
    with pytest.raises(PublishError, match="not made by sluice publish"):
        advance(lake, target, again=True)
    assert postgres.execute(f"SELECT * FROM {target.full_name}") == [(7,)]


def test_a_second_publisher_changes_nothing(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    slow = Publisher(lake, table, ("id",), PostgresTable(target.address, target.full_name)).advance()
    next(slow)
    apply_commit(lake.path(table), "delete", 1)
    advance(lake, target)
    with pytest.raises(PublishError, match="another process"):
        list(slow)
    assert published(postgres, target.full_name) == actual(lake)


def contended(lake: Lake, targets: list[Any], commit_count: int) -> list[tuple[int, int]]:
    """What publishers of one target write that all follow at the same time: versions, with how many changes."""
    written: list[tuple[int, int]] = []
    refused: list[str] = []
    stop = threading.Event()

    def follow(target: Any) -> None:
        publisher = Publisher(lake, table, ("id",), target)
        while not stop.wait(0.005):
            try:
                written.extend((each.version or 0, each.changes) for each in publisher.advance() if each.changes)
            except PublishError as error:
                refused.append(str(error))
        target.close()

    threads = [threading.Thread(target=follow, args=[each]) for each in targets]
    for each in threads:
        each.start()
    try:
        for number in range(commit_count):
            apply_commit(lake.path(table), "merge", [(number % 3, float(number), "a"), (3, float(number), "b")])
        eventually(lambda: lake.newest_version(table) in dict(written), "the newest version")
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert all("another process" in each for each in refused), refused
    return written


def each_once(written: list[tuple[int, int]]) -> None:
    assert max(Counter(version for version, _ in written).values()) == 1


def test_of_two_publishers_at_the_same_time_each_commit_is_written_by_one(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    targets = [PostgresTable(target.address, target.full_name) for _ in range(2)]
    each_once(contended(lake, targets, 30))
    assert published(postgres, target.full_name) == actual(lake)


class Careless(PostgresTable):
    """Asks nobody before it writes."""

    def require_unmoved(self, database: Any) -> None:
        """Nothing is required."""


def test_two_publishers_that_ask_nobody_are_noticed(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    with pytest.raises(AssertionError):
        each_once(contended(lake, [Careless(target.address, target.full_name) for _ in range(2)], 30))


def test_two_tables_may_make_their_schema_at_the_same_time(lake: Lake, postgres: Postgres) -> None:
    for _ in range(5):
        schema, both = f"s{next(numbers)}", threading.Barrier(2)
        failed: list[Exception] = []

        class Together(PostgresTable):
            def make(self, database: Any, both: threading.Barrier = both) -> None:
                both.wait(patience_seconds)
                super().make(database)

        def publish(name: str, failed: list[Exception] = failed, schema: str = schema, kind: Any = Together) -> None:
            try:
                advance(lake, kind(postgres.address(), f"{schema}.{name}"))
            except PublishError as error:
                failed.append(error)

        threads = [threading.Thread(target=publish, args=[name]) for name in ("one", "two")]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert failed == []


def test_views_and_grants_of_others_survive_a_replacement(lake: Lake, postgres: Postgres) -> None:
    target = target_of(postgres)
    advance(lake, target)
    postgres.execute(f"CREATE VIEW {target.full_name}_ids AS SELECT id FROM {target.full_name}")
    apply_commit(lake.path(table), "columns", "more")
    advance(lake, target, again=True)
    assert sorted(postgres.execute(f"SELECT id FROM {target.full_name}_ids")) == [(1,), (2,)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Kafka]]:
    with running(Kafka(tmp_path_factory.mktemp("kafka") / "kafka")) as started:
        yield started


@pytest.fixture
def log(kafka: Running[Kafka]) -> KafkaLog:
    return KafkaLog(kafka.server.address, KafkaSecurity(), partitions=2)


@dataclass
class MortalTopic(KafkaTopic):
    """A publisher that is killed before so many messages, before a commit or after it; nobody aborts anything."""

    lives: int = 1_000_000

    def send(self, *arguments: Any) -> None:
        self.live()
        super().send(*arguments)

    def apply(self, commit: Commit) -> int:
        found = super().apply(commit)
        self.live()
        return found

    def live(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Killed

    def close(self) -> None:
        if self.lives >= 0:
            super().close()
        self.__dict__.pop("producer", None)


def records(log: KafkaLog, topic: str) -> list[StoredRecord]:
    """What a reader of committed records gets, partition by partition, once the last transaction has ended."""
    KafkaTopic(log, topic).position()
    return [each for partition in log.partitions(topic) for each in log.read(topic, partition)]


def read_by_key(log: KafkaLog, topic: str) -> Rows:
    """The rows that a reader has in the end."""
    newest = {each.key: each.value for each in records(log, topic)}
    return bag(json.loads(value) for value in newest.values() if value is not None)


def as_json(rows: Iterable[Mapping[str, Any]]) -> Rows:
    return bag(json.loads(json_line(row)) for row in rows)


def rows_in(lake: Lake, version: int | None = None) -> Rows:
    return as_json(lake.state(table, lake.newest_version(table) if version is None else version).to_pylist())


@settings(random_histories, max_examples=8)
@given(data=st.data())
def test_the_topic_has_the_rows_of_gold_and_each_change_once_whatever_is_killed(
    tmp_path_factory: pytest.TempPathFactory, log: KafkaLog, data: st.DataObject
) -> None:
    lake, topic = Lake(str(tmp_path_factory.mktemp("lake"))), f"sold-{next(numbers)}"
    key = data.draw(st.sampled_from([("id",), ("name", "id")]))
    path = made(lake, data.draw(unique_lists))
    for kind, given_ in data.draw(st.lists(unique_commits(data), max_size=4)):
        apply_commit(path, kind, given_)
        for lives in data.draw(st.lists(st.integers(0, 9), max_size=1)):
            with suppress(Killed):
                advance(lake, MortalTopic(log, topic, lives=lives), key)
            position = KafkaTopic(log, topic).position()
            if position is not None:
                assert read_by_key(log, topic) == rows_in(lake, position.version)
    target = KafkaTopic(log, topic)
    advance(lake, target, key)
    assert read_by_key(log, topic) == rows_in(lake)
    assert advance(lake, target, key) == []
    sent = Counter((each.key, each.headers["sluice-version"]) for each in records(log, topic) if each.headers)
    assert max(sent.values(), default=1) == 1


class ForgetfulTopic(KafkaTopic):
    """Moves the position only once."""

    def send(self, topic: str, *rest: Any) -> None:
        if topic != self.position_topic or self.place is None:
            super().send(topic, *rest)


class HoarderTopic(KafkaTopic):
    """Ignores deletes."""

    def send(self, topic: str, key: str, value: str | None, *rest: Any) -> None:
        if value is not None:
            super().send(topic, key, value, *rest)


@pytest.mark.parametrize("kind", [ForgetfulTopic, HoarderTopic])
def test_a_topic_that_forgets_the_position_or_deletes_is_noticed(
    lake: Lake, log: KafkaLog, kind: type[KafkaTopic]
) -> None:
    topic = f"sold-{next(numbers)}"
    advance(lake, KafkaTopic(log, topic))
    apply_commit(lake.path(table), "delete", 1)
    advance(lake, kind(log, topic))
    position = KafkaTopic(log, topic).position()
    assert position is not None
    assert read_by_key(log, topic) != rows_in(lake, position.version)


def test_a_table_that_was_made_again_leaves_no_key_of_before(lake: Lake, log: KafkaLog) -> None:
    topic = f"sold-{next(numbers)}"
    publisher = Publisher(lake, table, ("id",), KafkaTopic(log, topic))
    assert [each.changes for each in publisher.advance()] == [0, 2]
    shutil.rmtree(lake.path(table))
    path = made(lake, [(2, 7.0, "new"), (3, None, None)])
    assert [each.changes for each in publisher.advance()] == [0, 2]
    apply_commit(path, "columns", "more")
    assert [each.changes for each in publisher.advance()] == [0, 2]
    assert read_by_key(log, topic) == rows_in(lake)


def test_a_second_publisher_to_a_topic_ends_the_first(lake: Lake, log: KafkaLog) -> None:
    topic = f"sold-{next(numbers)}"
    advance(lake, KafkaTopic(log, topic))
    slow = Publisher(lake, table, ("id",), KafkaTopic(log, topic)).advance()
    next(slow)
    apply_commit(lake.path(table), "delete", 1)
    advance(lake, KafkaTopic(log, topic))
    with pytest.raises(PublishError, match="another process"):
        list(slow)
    assert read_by_key(log, topic) == rows_in(lake)


class Fenced(KafkaTopic):
    """Another publisher begins after its first record; it sends on when the brokers have refused it."""

    def send(self, topic: str, key: str, value: str | None, headers: Mapping[str, str] | None = None) -> None:
        super().send(topic, key, value, headers)
        Producer(self.log.settings() | {"transactional.id": f"sluice-publish-{self.topic}"}).init_transactions(10)
        with suppress(KafkaException):
            self.producer.flush(10)
        super().send(topic, key, value, headers)


def test_a_publisher_that_is_refused_while_it_sends_says_why(lake: Lake, log: KafkaLog) -> None:
    topic = f"sold-{next(numbers)}"
    advance(lake, KafkaTopic(log, topic))
    apply_commit(lake.path(table), "delete", 1)
    with pytest.raises(PublishError, match="another process"):
        advance(lake, Fenced(log, topic))
    advance(lake, KafkaTopic(log, topic))
    assert read_by_key(log, topic) == rows_in(lake)


def test_of_two_publishers_to_a_topic_at_the_same_time_each_commit_is_written_by_one(lake: Lake, log: KafkaLog) -> None:
    topic = f"sold-{next(numbers)}"
    contended(lake, [KafkaTopic(log, topic), KafkaTopic(log, topic)], 6)
    assert read_by_key(log, topic) == rows_in(lake)
    sent = Counter((each.key, each.headers["sluice-version"]) for each in records(log, topic) if each.headers)
    assert max(sent.values()) == 1


def test_topics_that_cannot_be_kept_equal_are_left_alone(lake: Lake, log: KafkaLog) -> None:
    log.append("of-others", [Record(b"precious", key="k")])
    with pytest.raises(PublishError, match="not published by"):
        advance(lake, KafkaTopic(log, "of-others"))
    log.create("forgetting")
    with pytest.raises(PublishError, match=r"cleanup.policy=delete"):
        advance(lake, KafkaTopic(log, "forgetting"))
    topic = f"sold-{next(numbers)}"
    advance(lake, KafkaTopic(log, topic))
    log.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    while len(log.partitions(topic)) < 3:
        time.sleep(0.05)
    with pytest.raises(PublishError, match="partitions"):
        advance(lake, KafkaTopic(log, topic))


def published_on_kafka(lake: Lake, log: KafkaLog, kind: type[KafkaTopic] = KafkaTopic) -> tuple[str, Publisher]:
    """A new topic with all rows, and its publisher, which goes on."""
    topic = f"sold-{next(numbers)}"
    publisher = Publisher(lake, table, ("id",), kind(log, topic))
    list(publisher.advance())
    return topic, publisher


def delete_topics(log: KafkaLog, *topics: str) -> None:
    for each in log.admin.delete_topics(list(topics)).values():
        each.result(log.answer_seconds)
    eventually(lambda: not set(topics) & set(log.topics()), "the end of the topics")


def make_compacted(log: KafkaLog, topic: str, partitions: int) -> None:
    new = NewTopic(topic, partitions, 1, config={"cleanup.policy": "compact"})
    log.admin.create_topics([new])[topic].result(log.answer_seconds)
    log.wait_until_known(topic)


def set_policy(log: KafkaLog, topic: str, policy: str) -> None:
    change = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    log.admin.incremental_alter_configs([wanted])[wanted].result(log.answer_seconds)
    eventually(lambda: log.configuration(topic)["cleanup.policy"] == policy, "the policy")


@pytest.mark.parametrize("partitions", [None, 2, 3])
def test_a_topic_that_was_deleted_while_it_is_published_gets_all_rows_again(
    lake: Lake, log: KafkaLog, partitions: int | None
) -> None:
    topic, publisher = published_on_kafka(lake, log)
    delete_topics(log, topic)
    if partitions is not None:
        make_compacted(log, topic, partitions)
    apply_commit(lake.path(table), "merge", [(1, 1.0, "new")])
    assert [each.changes for each in publisher.advance()] == [0, 2]
    apply_commit(lake.path(table), "merge", [(2, 1.0, "new")])
    assert [each.changes for each in publisher.advance()] == [0, 1]
    publisher.target.close()
    assert read_by_key(log, topic) == rows_in(lake)
    assert advance(lake, KafkaTopic(log, topic)) == []


@pytest.mark.parametrize("made_again", [False, True])
def test_positions_that_were_deleted_are_written_again_with_all_rows(
    lake: Lake, log: KafkaLog, made_again: bool
) -> None:
    topic, publisher = published_on_kafka(lake, log)
    delete_topics(log, f"{topic}.sluice-position")
    if made_again:
        make_compacted(log, f"{topic}.sluice-position", 1)
    apply_commit(lake.path(table), "delete", 1)
    assert [each.changes for each in publisher.advance()] == [0, 1]
    publisher.target.close()
    assert read_by_key(log, topic) == rows_in(lake)
    assert advance(lake, KafkaTopic(log, topic)) == []


class Unlucky(KafkaTopic):
    """Somebody makes the topic again while a commit is sent."""

    def send_all(self, commit: Commit) -> int:
        delete_topics(self.log, self.topic)
        make_compacted(self.log, self.topic, 2)
        return super().send_all(commit)


def test_a_topic_that_is_made_again_during_a_commit_has_nothing_of_it(lake: Lake, log: KafkaLog) -> None:
    topic = f"sold-{next(numbers)}"
    advance(lake, KafkaTopic(log, topic))
    apply_commit(lake.path(table), "delete", 1)
    with pytest.raises(PublishError, match="Nothing was committed"):
        advance(lake, Unlucky(log, topic))
    assert log.tail(topic) == []
    assert advance(lake, KafkaTopic(log, topic)) == [(2, 1)]
    assert read_by_key(log, topic) == rows_in(lake)


class Heedless(KafkaTopic):
    """Does not notice that a topic is another one, as releases before did not."""

    def is_unchanged(self) -> bool:
        return True

    def require_same(self, place: Place) -> None:
        """Nothing is required."""


def test_a_topic_that_was_made_again_and_has_rows_of_ours_is_published_again(lake: Lake, log: KafkaLog) -> None:
    topic, heedless = published_on_kafka(lake, log, Heedless)
    delete_topics(log, topic)
    make_compacted(log, topic, 2)
    apply_commit(lake.path(table), "merge", [(1, 1.0, "new"), (3, 1.0, "gone soon")])
    list(heedless.advance())
    heedless.target.close()
    assert read_by_key(log, topic) != rows_in(lake)
    apply_commit(lake.path(table), "delete", 3)
    assert advance(lake, KafkaTopic(log, topic)) == [(3, 2)]
    assert read_by_key(log, topic) == rows_in(lake)


def test_a_topic_that_was_made_again_and_has_records_of_others_is_left_alone(lake: Lake, log: KafkaLog) -> None:
    topic, publisher = published_on_kafka(lake, log)
    delete_topics(log, topic)
    make_compacted(log, topic, 2)
    log.append(topic, [Record(b"precious", key="k")])
    for _ in range(2):
        with pytest.raises(PublishError, match="not published by"):
            list(publisher.advance())
    publisher.target.close()
    assert [each.value for each in log.tail(topic)] == [b"precious"]


@pytest.mark.parametrize("suffix", ["", ".sluice-position"])
def test_a_topic_that_would_forget_rows_is_noticed_while_it_is_published(
    lake: Lake, log: KafkaLog, suffix: str
) -> None:
    topic, publisher = published_on_kafka(lake, log)
    set_policy(log, f"{topic}{suffix}", "delete")
    # While it is published, and when it starts.
    for _ in range(2):
        with pytest.raises(PublishError, match=r"cleanup\.policy=delete"):
            list(publisher.advance())
    set_policy(log, f"{topic}{suffix}", "compact")
    assert [each.changes for each in publisher.advance()] == [0]
    publisher.target.close()


def test_partitions_that_are_added_are_noticed_while_it_is_published(lake: Lake, log: KafkaLog) -> None:
    topic, publisher = published_on_kafka(lake, log)
    log.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    eventually(lambda: len(log.partitions(topic)) == 3, "the partitions")
    with pytest.raises(PublishError, match="had 2 partitions and has 3"):
        list(publisher.advance())
    publisher.target.close()


declared = """
from sluice import bronze, gold, silver

sales = silver.events(
    "sales", source=bronze.topic("sales"), schema="id bigint, at timestamp", keys=["id"], event_time="at"
)
sold = gold.aggregate("sold", source=sales, group_by=["id"], measures={"amount": "count(*)"})
served = gold.publish(sold, postgres="sold_here")
"""


@pytest.mark.parametrize("suffix", ["", ".sluice-position"])
def test_a_topic_with_hidden_records_is_not_taken_for_an_empty_one(lake: Lake, log: KafkaLog, suffix: str) -> None:
    target = KafkaTopic(log, f"hidden-{next(numbers)}")
    target.position()
    target.make(target.topic, {"cleanup.policy": "compact"}, partitions=1)
    target.close()
    other = Producer(log.settings() | {"transactional.id": target.topic})
    other.init_transactions(10)
    other.begin_transaction()
    other.produce(f"{target.topic}{suffix}", key="1", value="1")
    other.flush(10)
    with pytest.raises(PublishError, match="has not ended"):
        advance(lake, target)
    other.abort_transaction(10)
    assert advance(lake, target) == [(1, 2)]


def test_a_topic_says_how_large_a_row_may_be(tmp_path: Path, log: KafkaLog) -> None:
    lake = Lake(str(tmp_path / "lake"))
    made(lake, [(1, 1.0, "x" * 2_000_000)])
    topic = f"large-{next(numbers)}"
    new = NewTopic(topic, 1, 1, config={"cleanup.policy": "compact", "max.message.bytes": "4000000"})
    log.admin.create_topics([new])[topic].result(log.answer_seconds)
    log.wait_until_known(topic)
    assert advance(lake, KafkaTopic(log, topic)) == [(0, 1)]
    assert read_by_key(log, topic) == rows_in(lake)
    with pytest.raises(PublishError, match="too large"):
        advance(lake, KafkaTopic(log, f"small-{next(numbers)}"))


@pytest.fixture
def project(tmp_path: Path, lake: Lake) -> Path:
    """The folder of a project that publishes the lake's table."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").write_text(declared)
    return tmp_path


def test_the_command_publishes_and_says_what(project: Path, postgres: Postgres, lake: Lake) -> None:
    environment = {"SLUICE_LAKE": str(project / "lake"), "SLUICE_PUBLISH_POSTGRES": postgres.address()}
    done = sluice("publish", "--json", here=project, environment=environment)
    assert done.returncode == 0, done.stderr
    assert '"target": "postgres public.sold_here"' in done.stdout
    assert published(postgres, "public.sold_here") == actual(lake)
    for arguments, says in {("gold.sols",): "not published", ("gold.sold", "--again"): "public.sold_here"}.items():
        done = sluice("publish", *arguments, here=project, environment=environment)
        assert says in done.stdout + done.stderr


def test_what_is_published_is_reported_as_events_and_nothing_else(
    project: Path, postgres: Postgres, lake: Lake
) -> None:
    events = project / "events.jsonl"
    options = {
        "lake": str(project / "lake"),
        "publish_postgres": postgres.address(),
        "openlineage": f"file://{events}",
    }
    postgres.execute("DROP TABLE IF EXISTS public.sold_here")
    postgres.execute("DROP TABLE IF EXISTS public._sluice_positions")
    with Project(project, options) as opened:
        (done,) = opened.publish()
        opened.publish()
    found = [json.loads(line) for line in events.read_text().splitlines()]
    assert [each["eventType"] for each in found] == ["START", "COMPLETE"]
    (output,) = found[1]["outputs"]
    assert output["name"].endswith(".public.sold_here")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == done.changes > 0
    with Project(project, options | {"publish_postgres": "postgresql://me:s3cret@127.0.0.1:1/x"}) as opened:
        assert opened.publish()[0].error
    assert len(events.read_text().splitlines()) == 2


def test_it_follows_until_it_is_stopped_and_says_what_is_wrong_once(
    project: Path, postgres: Postgres, lake: Lake
) -> None:
    said: list[Message] = []
    stop, address = threading.Event(), postgres.address()
    options: dict[str, Any] = {"lake": str(project / "lake"), "publish_postgres": address, "poll_seconds": 0.02}
    postgres.execute("DROP TABLE IF EXISTS public.sold_here")
    postgres.execute("CREATE TABLE public.sold_here AS SELECT 7 AS precious")

    def hear(message: Message) -> None:
        said.append(message)
        if message.kind == "error":
            postgres.execute("DROP TABLE public.sold_here")
        elif len(said) == 2:
            apply_commit(lake.path(table), "delete", 1)
        else:
            stop.set()

    with Project(project, options, on_message=hear) as opened:
        opened.publish_continuously("gold.sold", stop=stop)
    assert [each.kind for each in said] == ["error", "notice", "notice"]
    assert published(postgres, "public.sold_here") == actual(lake)


def test_a_broker_that_does_not_answer_holds_no_other_target_up(project: Path, postgres: Postgres, lake: Lake) -> None:
    declarations = project / "pipelines" / "__init__.py"
    declarations.write_text(declared.replace('"sold_here"', '"sold_on", kafka="sold"'))
    said: list[Message] = []
    stop, began = threading.Event(), time.monotonic()

    def hear(message: Message) -> None:
        said.append(message)
        if len(said) == 1:
            apply_commit(lake.path(table), "delete", 1)
        if message.kind == "error":
            stop.set()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "lake": str(project / "lake"),
            "publish_postgres": postgres.address(),
            "publish_kafka": f"kafka://127.0.0.1:{silent.getsockname()[1]}",
            "poll_seconds": 0.05,
        }
        with Project(project, options, on_message=hear) as opened:
            opened.publish_continuously(stop=stop)
    assert [each.kind for each in said] == ["notice", "notice", "error"]
    assert "no broker" in said[2].text
    assert time.monotonic() - began < 40
    assert published(postgres, "public.sold_on") == actual(lake)


def test_a_broker_that_dies_is_reported_soon_and_what_it_missed_comes_later(
    lake: Lake, kafka: Running[Kafka], log: KafkaLog
) -> None:
    topic, publisher = published_on_kafka(lake, log)
    apply_commit(lake.path(table), "delete", 1)
    kafka.kill()
    began = time.monotonic()
    try:
        with pytest.raises(PublishError, match="no broker"):
            list(publisher.advance())
        assert time.monotonic() - began < 40
    finally:
        kafka.start()
    assert [each.changes for each in publisher.advance()] == [0, 1]
    publisher.target.close()
    assert read_by_key(log, topic) == rows_in(lake)


def test_a_postgres_that_was_started_again_needs_no_second_pass(lake: Lake, postgres: Postgres) -> None:
    publisher = Publisher(lake, table, ("id",), target_of(postgres))
    list(publisher.advance())
    apply_commit(lake.path(table), "delete", 1)
    postgres.stop()
    postgres.start()
    assert [each.changes for each in publisher.advance()] == [0, 1]
    publisher.target.close()
    assert published(postgres, publisher.target.name.split()[1]) == actual(lake)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that Postgres's own client can wait is two seconds."""
    monkeypatch.setattr(to_postgres, "watch_seconds", 0.1)
    monkeypatch.setattr(lost_server, "silent_seconds_max", 2)
    monkeypatch.setattr(lost_server, "connect_seconds_max", 2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("when", ["between passes", "during a commit"])
def test_a_postgres_that_does_not_answer_any_more_is_reported_and_what_it_missed_comes_later(
    lake: Lake, postgres: Postgres, when: str
) -> None:
    class Lost(PostgresTable):
        def write_position(self, database: Any, commit: Commit) -> None:
            if commit.then.version == 2 and when == "during a commit":
                goes_on.clear()
            super().write_position(database, commit)

    with relayed(postgres.address()) as (address, goes_on):
        target = Lost(address, target_of(postgres).full_name)
        publisher = Publisher(lake, table, ("id",), target)
        list(publisher.advance())
        apply_commit(lake.path(table), "delete", 1)
        if when == "between passes":
            goes_on.clear()
        begun = time.monotonic()
        with pytest.raises(PublishError, match=r"127\.0\.0\.1.*Check that the server runs"):
            list(publisher.advance())
        assert time.monotonic() - begun < 40
        goes_on.set()
        when = "afterwards"
        assert [each.changes for each in publisher.advance()] == [0, 1]
        target.close()
    assert published(postgres, target.full_name) == actual(lake)


def test_a_publisher_that_stopped_in_a_transaction_keeps_no_other_out(
    lake: Lake, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Locked(PostgresTable):
        def write_position(self, database: Any, commit: Commit) -> None:
            # The next one gives up where the test fails, instead of waiting for ever.
            super().write_position(database, commit)
            assert advance(lake, PostgresTable(f"{self.address}{waits}", self.full_name)) == [(1, 2)]

    monkeypatch.setitem(to_postgres.lost_publisher, "idle_in_transaction_session_timeout", "1s")
    target = target_of(postgres)
    waits = f"{'&' if '?' in target.address else '?'}options=-clock_timeout%3D20s"
    with pytest.raises(PublishError, match=f"postgres {target.full_name}: server closed the connection"):
        advance(lake, Locked(target.address, target.full_name))
    assert published(postgres, target.full_name) == actual(lake)


@pytest.mark.usefixtures("impatient")
def test_a_statement_may_take_longer_than_a_server_may_be_silent(lake: Lake, postgres: Postgres) -> None:
    class Slow(PostgresTable):
        def write_position(self, database: Any, commit: Commit) -> None:
            database.execute("SELECT pg_sleep(4)")
            super().write_position(database, commit)

    target = target_of(postgres)
    assert advance(lake, Slow(target.address, target.full_name)) == [(1, 2)]


def test_a_lost_network_ends_a_connection(postgres: Postgres) -> None:
    connection = target_of(postgres).connect()
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 0 < own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000
    connection.close()


def test_a_postgres_that_ends_during_a_commit_says_why(lake: Lake, postgres: Postgres) -> None:
    class Ended(PostgresTable):
        def write_position(self, database: Any, commit: Commit) -> None:
            postgres.execute(f"SELECT pg_terminate_backend({database.connection.get_backend_pid()}, 5000)")
            super().write_position(database, commit)

    target = target_of(postgres)
    with pytest.raises(PublishError, match="terminat"):
        advance(lake, Ended(target.address, target.full_name))
    assert advance(lake, target) == [(1, 2)]


def test_what_follows_goes_by_the_declarations_as_they_are(project: Path, postgres: Postgres, lake: Lake) -> None:
    declarations, said = project / "pipelines" / "__init__.py", []
    declarations.write_text(declared.replace("sold_here", "sold_first"))

    def hear(message: Message) -> None:
        said.append((message.kind, message.text.split(": ")[-1]))
        match len(said):
            case 1:
                declarations.write_text(declared.replace("sold_here", "sold_then"))
                apply_commit(lake.path(table), "delete", 1)
            case 3:
                declarations.write_text(declared.replace("sold_here", "sold_never") + ")")
                apply_commit(lake.path(table), "delete", 2)
            case 5:
                declarations.write_text(declared.split("served", maxsplit=1)[0])

    options = {"lake": str(project / "lake"), "publish_postgres": postgres.address(), "poll_seconds": 0.02}
    with Project(project, options, on_message=hear) as opened, pytest.raises(UsageError, match="No table is published"):
        opened.publish_continuously()
    kinds = [kind for kind, _ in said]
    assert kinds == ["notice", "notice", "notice", "notice", "error"]
    assert "were changed" in said[1][1]
    assert said[2][1] == "version 2"
    assert "Nothing is published" in said[4][1]
    assert published(postgres, "public.sold_first") == state(lake, 1)
    assert published(postgres, "public.sold_then") == state(lake, 2)


def test_a_server_that_is_not_there_is_an_error_without_the_password(project: Path) -> None:
    address = "postgresql://me:s3cret@127.0.0.1:1/x"
    environment = {"SLUICE_LAKE": str(project / "lake"), "SLUICE_PUBLISH_POSTGRES": address}
    done = sluice("publish", here=project, environment=environment)
    assert done.returncode == 1
    assert "onnection" in done.stdout
    wrong = sluice("publish", here=project, environment=environment | {"SLUICE_PUBLISH_POSTGRES": "s3cret nonsense"})
    nowhere = sluice("publish", here=project, environment={"SLUICE_LAKE": str(project / "lake")})
    assert "SLUICE_PUBLISH_POSTGRES" in nowhere.stderr
    assert "s3cret" not in "".join(each.stdout + each.stderr for each in (done, wrong, nowhere))


def test_a_server_that_wants_a_password_is_an_error_that_says_where_it_goes(
    lake: Lake, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = postgres.data / "pg_hba.conf"
    trusting = rules.read_text()
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    postgres.execute("CREATE ROLE guarded LOGIN PASSWORD 's3cret'")
    postgres.execute("GRANT CREATE ON DATABASE postgres TO guarded")
    target = PostgresTable(postgres.address().replace("//sluice@", "//guarded@"), f"s{next(numbers)}.sold")
    try:
        rules.write_text(f"host all guarded 127.0.0.1/32 scram-sha-256\n{trusting}")
        postgres.execute("SELECT pg_reload_conf()")
        for password in ("", "wr0ng"):
            monkeypatch.setenv("PGPASSWORD", password)
            with pytest.raises(PublishError, match=r"PGPASSWORD or in ~/\.pgpass"):
                advance(lake, target)
        monkeypatch.setenv("PGPASSWORD", "s3cret")
        assert advance(lake, target) == [(1, 2)]
    finally:
        rules.write_text(trusting)
        postgres.execute("SELECT pg_reload_conf()")


def test_a_publication_that_cannot_be_is_refused() -> None:
    names: dict[str, Any] = {}
    exec(declared, names)
    sold, sales = names["sold"], names["sales"]
    cases: list[tuple[Any, Mapping[str, str], str]] = [
        (sales, {"postgres": "x"}, "no table of gold"),
        (sold, {}, "where"),
        (sold, {"postgres": 'x"; DROP'}, "lower-case"),
        (sold, {"postgres": "a.b.c"}, "lower-case"),
        (sold, {"kafka": "a b"}, "letters"),
    ]
    for source, to, says in cases:
        with pytest.raises(DeclarationError, match=says):
            gold.publish(source, **to)
    with pytest.raises(DeclarationError, match="twice"):
        unique([gold.publish(sold, postgres="x"), gold.publish(sold, postgres="public.x")])
    assert gold.publish(sold, postgres="x").source.fingerprint == sold.fingerprint
