"""Capture: every row once, every change after it in order, and nothing lost whatever is killed."""

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from sluice import bronze, silver
from sluice.errors import LogError, SluiceError, UsageError
from sluice.ingest.capture import database as database_module
from sluice.ingest.capture import values
from sluice.ingest.capture.database import Database, SlotLost
from sluice.ingest.capture.envelope import Envelopes, Origin
from sluice.ingest.capture.marks import captures_topic, is_followed
from sluice.ingest.capture.pgoutput import (
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Type,
    Update,
    decode,
    epoch,
    unchanged,
)
from sluice.ingest.capture.reader import Capture, Progress, Stream, topics_of
from sluice.log import Log, Record
from sluice.runtime import lost_server
from tests.commands import sluice
from tests.kit import Lakehouse
from tests.servers.postgres import Postgres
from tests.servers.relay import relayed
from tests.waiting import eventually, patience_seconds

if TYPE_CHECKING:
    from psycopg2.extras import ReplicationCursor, ReplicationMessage

Envelope = dict[str, Any]


# The messages, byte by byte.


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(*found: str | None) -> bytes:
    """A tuple; `…` stands for a value that was not sent."""
    encoded = [
        b"n"
        if value is None
        else b"u"
        if value == "…"
        else b"t" + struct.pack(">I", len(value.encode())) + value.encode()
        for value in found
    ]
    return struct.pack(">H", len(found)) + b"".join(encoded)


def number(value: int) -> bytes:
    return struct.pack(">I", value)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"B" + struct.pack(">QqI", 7, 0, 9), Begin(7, epoch, 9)),
        (b"C\0" + struct.pack(">QQq", 7, 8, 0), Commit(7, 8, epoch)),
        (
            b"R" + number(5) + text("public") + text("t") + b"f" + struct.pack(">H", 2)
            + b"\1" + text("id") + struct.pack(">Ii", 23, -1) + b"\0" + text("größe") + struct.pack(">Ii", 25, -1),
            Relation(5, "public", "t", "full", (Column("id", 23, True), Column("größe", 25, False))),
        ),
        (b"Y" + number(77) + text("") + text("int4"), Type(77, "pg_catalog", "int4")),
        (b"I" + number(5) + b"N" + row("1", "ä", None), Insert(5, ("1", "ä", None))),
        (b"U" + number(5) + b"N" + row("1", "…"), Update(5, None, False, ("1", unchanged))),
        (b"U" + number(5) + b"K" + row("1", None) + b"N" + row("2", "x"), Update(5, ("1", None), False, ("2", "x"))),
        (b"U" + number(5) + b"O" + row("1", "y") + b"N" + row("1", "…"), Update(5, ("1", "y"), True, ("1", unchanged))),
        (b"D" + number(5) + b"K" + row("1", None), Delete(5, ("1", None), False)),
        (b"T" + number(2) + b"\1" + number(5) + number(6), Truncate((5, 6))),
        (b"O" + struct.pack(">Q", 1) + text("origin"), None),
    ],
)  # fmt: skip
def test_a_message_is_decoded(payload: bytes, message: object) -> None:
    assert decode(payload) == message


def test_a_message_that_protocol_1_does_not_have_is_an_error() -> None:
    with pytest.raises(SluiceError, match="S"):
        decode(b"S\0\0\0\1")


def array_text(value: object) -> str:
    """A list as Postgres writes it, with everything in quotes."""
    if isinstance(value, list):
        return "{" + ",".join(map(array_text, value)) + "}"
    if value is None:
        return "NULL"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.lists(st.lists(st.none() | st.text(), min_size=1)))
def test_an_array_comes_back_whatever_is_in_it(found: list[list[str | None]]) -> None:
    assert values.by_name["_text"](array_text(found)) == found


# What becomes of messages.

products = Relation(
    5, "public", "products", "default", (Column("id", 23, True), Column("name", 25, False), Column("photo", 17, False))
)


def envelopes(*messages: object, relation: Relation = products) -> list[tuple[str | None, Envelope | None]]:
    """The records of one transaction, keys and values; each message is one position after the one before it."""
    made = Envelopes(Origin("shop", "shop"), frozenset({("public", "products")}), lambda found: ("id",))
    begun = [Begin(100, epoch, 9), relation, *messages, Commit(100, 108, epoch)]
    return [
        (record.key, None if record.value is None else json.loads(record.value))
        for lsn, message in enumerate(begun)
        for _, record in made.records(message, lsn)  # type: ignore[arg-type]
    ]


def brief(found: list[tuple[str | None, Envelope | None]]) -> list[tuple[Any, ...]]:
    return [
        (key, value and (value["op"], value["before"], value["after"], value["transaction"]["total_order"]))
        for key, value in found
    ]


def test_a_change_of_the_key_is_a_delete_a_tombstone_and_a_create_at_one_position() -> None:
    found = envelopes(Update(5, ("1", None, None), False, ("2", "x", None)))
    gone, new = {"id": 1, "name": None, "photo": None}, {"id": 2, "name": "x", "photo": None}
    assert brief(found) == [
        ('{"id":1}', ("d", gone, None, 1)),
        ('{"id":1}', None),
        ('{"id":2}', ("c", None, new, 2)),
    ]
    assert {value["source"]["lsn"] for _, value in found if value} == {2}


def test_a_value_that_was_not_sent_is_taken_from_the_old_row_or_said_to_be_unavailable() -> None:
    whole = Update(5, ("1", "old", "\\x00ff"), True, ("1", "new", unchanged))
    ((_, told),) = envelopes(whole)
    assert told
    assert told["after"] == {"id": 1, "name": "new", "photo": "AP8="}
    ((_, untold),) = envelopes(Update(5, None, False, ("1", unchanged, unchanged)))
    assert untold
    assert untold["after"]["name"] == "__debezium_unavailable_value"
    assert untold["after"]["photo"] == values.placeholder(values.binary) != "AP8="


def test_what_is_outside_of_the_replica_identity_is_not_taken_for_null() -> None:
    found = envelopes(Update(5, ("1", None, None), False, ("2", unchanged, None)))
    assert found[-1][1]
    assert found[-1][1]["after"]["name"] == "__debezium_unavailable_value"


def test_a_transaction_that_is_sent_again_gives_the_same_records() -> None:
    messages = [Insert(5, ("1", "a", None)), Truncate((5,)), Insert(5, ("1", "b", None))]

    def told() -> list[Any]:
        kept = ("before", "after", "transaction", "op", "source")
        return [(key, value and {name: value[name] for name in kept}) for key, value in envelopes(*messages)]

    assert told() == told()
    assert [each[1]["transaction"]["total_order"] for each in told()] == [1, 2, 3]
    assert told()[0][1]["transaction"] == {"id": "9:100", "total_order": 1, "data_collection_order": 1}


def test_a_domain_is_what_lies_beneath_it() -> None:
    relation = Relation(5, "public", "products", "default", (Column("id", 16_384, True),))
    made = Envelopes(Origin("shop", "shop"), frozenset({("public", "products")}), lambda found: ("id",))
    for message in (Type(16_384, "pg_catalog", "int4"), relation, Begin(1, epoch, 1)):
        made.records(message, 1)
    assert [record.key for _, record in made.records(Insert(5, ("7",)), 1)] == ['{"id":7}']


def test_a_table_that_loses_its_key_or_its_name_ends_the_capture_with_a_word_on_it() -> None:
    keyless = Relation(5, "public", "products", "default", (Column("id", 23, False),))
    with pytest.raises(SluiceError, match="has no primary key"):
        envelopes(relation=keyless)
    renamed = Relation(5, "public", "goods", "default", products.columns)
    with pytest.raises(SluiceError, match=r"public\.products was renamed to public\.goods"):
        envelopes(renamed)


def test_topics_are_named_after_tables_and_two_tables_never_share_one() -> None:
    assert topics_of("My-Shop", [("public", "Orders")]) == {("public", "Orders"): "my_shop_orders"}
    with pytest.raises(UsageError, match="Two tables would go to the topic shop_orders"):
        topics_of("shop", [("public", "orders"), ("old", "orders")])
    with pytest.raises(UsageError, match="give a --topic-prefix"):
        topics_of("", [("public", "1st")])
    with pytest.raises(UsageError, match=r"sluice_orders, .* reserved for Sluice; give another --topic-prefix"):
        topics_of("sluice", [("public", "orders")])


# A real server.


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One server for all; each test has a database of its own."""
    made = Postgres()
    try:
        yield made.start()
    finally:
        made.remove()


numbers = itertools.count(1)


@dataclass
class Shop:
    """A database, the log that it is captured into, and what was said meanwhile."""

    server: Postgres
    name: str
    log: Log
    events: list[Progress] = field(default_factory=list)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs statements, each its own transaction; the rows of the last."""
        return [self.server.execute(statement, self.name) for statement in statements][-1]

    def capture(self, *tables: str, **options: Any) -> Capture:
        return Capture(
            database=Database(self.server.address(self.name)),
            log=self.log,
            tables=[("public", table) for table in tables or ("products",)],
            slot=self.name,
            publication=self.name,
            prefix="shop",
            listener=self.events.append,
            **options,
        )

    def once(self, *tables: str, new_snapshot: bool = False, **options: Any) -> None:
        """What `--once` does."""
        self.capture(*tables, **options).begin(new_snapshot=new_snapshot).run(threading.Event(), once=True)

    @contextmanager
    def refusing_appends(self, topic: str) -> Iterator[None]:
        """Another writer has a topic, and what is appended to it meanwhile says so."""
        self.log.lock_seconds = 0.1
        with (
            FileLock(self.log.folder(topic, 0) / ".lock"),
            FileLock(self.log.folder(topic, 1) / ".lock"),
            pytest.raises(LogError, match=f"Another writer has locked topic {topic}"),
        ):
            yield

    @contextmanager
    def following(self, stream: Stream) -> Iterator[None]:
        """A stream that is followed meanwhile; what it raises is raised at the end."""
        stop, errors = threading.Event(), []

        def follow() -> None:
            try:
                stream.run(stop)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test reports it
                errors.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(patience_seconds)
        assert not thread.is_alive()
        if errors:
            raise errors[0]

    def command(self, *options: str, tables: str = "public.products") -> "subprocess.Popen[str]":
        """The command as a user starts it."""
        names = ["--tables", tables, "--slot", self.name, "--topic-prefix", "shop"]
        return subprocess.Popen(
            [sys.executable, "-m", "sluice.cli", "capture", "postgres", *names, *options],
            env=os.environ
            | {"SLUICE_POSTGRES": self.server.address(self.name), "SLUICE_LOG": str(self.log.root.resolve())},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records(self, table: str = "products") -> list[tuple[str | None, Envelope | None]]:
        """The keys and envelopes of a topic, partition by partition."""
        topic = f"shop_{table}"
        if not self.log.exists(topic):
            return []
        return [
            (record.key, None if record.value is None else json.loads(record.value))
            for partition in self.log.partitions(topic)
            for record in self.log.read(topic, partition)
        ]

    def count(self, table: str = "products") -> int:
        """How many records a topic has."""
        topic = f"shop_{table}"
        partitions = self.log.partitions(topic) if self.log.exists(topic) else []
        return sum(self.log.end_offset(topic, partition) for partition in partitions)

    def envelopes(self, table: str = "products") -> list[Envelope]:
        """The envelopes of a topic in the order that they say: as silver.history orders them."""
        return sorted((value for _, value in self.records(table) if value), key=place)

    def ops(self, table: str = "products") -> str:
        return "".join(each["op"] for each in self.envelopes(table))

    def folded(self, table: str = "products") -> list[Envelope]:
        """The rows that the records of a topic leave."""
        rows: dict[str, Envelope] = {}
        for each in self.envelopes(table):
            if each["op"] == "t":
                rows.clear()
            elif each["op"] == "d":
                rows.pop(str(each["before"]["id"]), None)
            else:
                rows[str(each["after"]["id"])] = each["after"]
        return sorted(rows.values(), key=lambda each: int(each["id"]))

    def rows(self, table: str = "products") -> list[Envelope]:
        """The rows that the database has."""
        return [found for (found,) in self.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY id")]

    def confirmed(self) -> int:
        return int(self.slot("(confirmed_flush_lsn - '0/0')::bigint"))

    def slot(self, column: str) -> Any:
        found = self.execute(f"SELECT {column} FROM pg_replication_slots WHERE slot_name = '{self.name}'")
        return found[0][0] if found else None

    def drop_slot(self) -> None:
        """Drops the slot; the server gives one up only a moment after its reader has gone."""
        eventually(lambda: not self.slot("active"), "the slot's reader has gone")
        self.server.execute(f"SELECT pg_drop_replication_slot('{self.name}')")

    def warnings(self) -> str:
        return " ".join(each.message for each in self.events if each.kind == "warning")


def place(envelope: Envelope) -> tuple[int, int]:
    return envelope["source"]["lsn"], (envelope["transaction"] or {}).get("total_order", 0)


@pytest.fixture
def shop(server: Postgres, tmp_path: Path) -> Iterator[Shop]:
    """A database with three products, and an empty log."""
    made = Shop(server, f"shop_{next(numbers)}", Log(tmp_path / "log", partitions=2))
    server.execute(f"CREATE DATABASE {made.name}")
    made.execute(
        "CREATE TABLE products (id int PRIMARY KEY, name text, stock int NOT NULL DEFAULT 0)",
        "INSERT INTO products VALUES (1, 'pen', 10), (2, 'ink', 20), (3, 'pad', 30)",
    )
    yield made
    if made.slot("true"):
        made.drop_slot()
    server.execute(f"DROP DATABASE {made.name} WITH (FORCE)")


def test_a_snapshot_and_then_every_change_in_the_order_of_its_commit(shop: Shop) -> None:
    shop.once()
    shop.execute(
        "UPDATE products SET stock = 9 WHERE id = 1",
        "BEGIN; INSERT INTO products VALUES (4, 'cap'); DELETE FROM products WHERE id = 2; COMMIT",
        "UPDATE products SET id = 30 WHERE id = 3",
        "TRUNCATE products",
        "INSERT INTO products VALUES (5, 'end')",
    )
    shop.once()
    found = shop.envelopes()
    assert shop.ops() == "rrrucddctc"
    assert found[3]["after"] == {"id": 1, "name": "pen", "stock": 9}
    assert found[3]["before"] is None
    assert found[5]["before"]["id"] == 2
    assert [each["before"] or each["after"] for each in found[6:8]] == [
        {"id": 3, "name": None, "stock": None},
        {"id": 30, "name": "pad", "stock": 30},
    ]
    assert place(found[6])[0] == place(found[7])[0]
    assert [each["transaction"]["total_order"] for each in found[3:]] == [1, 1, 2, 1, 2, 1, 1]
    assert shop.folded() == shop.rows() == [{"id": 5, "name": "end", "stock": 0}]
    tombstones = [key for key, value in shop.records() if value is None]
    assert sorted(map(str, tombstones)) == ['{"id":2}', '{"id":3}']


def test_an_envelope_has_what_debezium_says(shop: Shop) -> None:
    shop.once()
    shop.execute("UPDATE products SET stock = 9 WHERE id = 1")
    shop.once()
    *_, snapshot, change = shop.envelopes()
    assert list(change) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    source = change["source"]
    said = {name: source[name] for name in ("connector", "name", "db", "schema", "table", "snapshot")}
    assert said == {
        "connector": "postgresql",
        "name": "shop",
        "db": shop.name,
        "schema": "public",
        "table": "products",
        "snapshot": "false",
    }
    assert source["ts_ms"] == source["ts_us"] // 1000
    assert abs(source["ts_ms"] / 1000 - time.time()) < 600
    assert change["transaction"]["id"].startswith(f"{source['txId']}:")
    assert (snapshot["source"]["snapshot"], snapshot["transaction"], snapshot["op"]) == ("true", None, "r")


def test_values_are_the_same_in_the_snapshot_and_in_the_stream(shop: Shop) -> None:
    shop.execute(
        "CREATE TYPE mood AS ENUM ('happy', 'so so')",
        "CREATE DOMAIN amount AS int CHECK (VALUE > 0)",
        "CREATE TABLE kinds (id bigint PRIMARY KEY, price numeric(12,2), big numeric, ratio double precision, "
        "small real, odd double precision, is_new boolean, day date, at timestamp, at_zone timestamptz, "
        "never timestamptz, clock time, long interval, bytes bytea, doc jsonb, unique_id uuid, tags text[], "
        "grid int[][], bounds int[], moments timestamptz[], feels mood, feelings mood[], n amount, code char(4), "
        'at_host inet, during daterange, whole int4range, spans tstzrange[], letters "char"[], nothing text, '
        "twice int GENERATED ALWAYS AS (3) STORED)",
    )
    insert = (
        "INSERT INTO kinds VALUES ({}, 12.30, 123456789012345678901234567890.5, 0.1, 1.1, 'NaN', true, '2026-03-01', "
        "'2026-03-01 10:00:00.123456', '2026-03-01 10:00:00+02', 'infinity', '10:00', '1 day 2 hours', '\\x00ff', "
        "'{{\"a\": 1}}', '0e37df36-f698-11e6-8dd4-cb9ced3df976', ARRAY['a', NULL, 'b, \"c\" \\', 'NULL'], "
        "'{{{{1,2}},{{3,4}}}}', '[0:1]={{5,6}}', ARRAY['2026-03-01 10:00:00+00'::timestamptz], 'so so', "
        "ARRAY['happy']::mood[], 7, 'ab', '10.0.0.1', '[2026-01-01,)', '[1,5)', "
        "ARRAY['[2026-01-01 00:00+00,)'::tstzrange], '{{x}}', NULL)"
    )
    shop.execute(insert.format(1))
    shop.once("kinds")
    shop.execute(insert.format(2))
    shop.once("kinds")
    first, second = (each["after"] for each in shop.envelopes("kinds"))
    assert first | {"id": 2} == second
    assert first == {
        "id": 1,
        "price": "12.30",
        "big": "123456789012345678901234567890.5",
        "ratio": 0.1,
        "small": 1.1,
        "odd": "NaN",
        "is_new": True,
        "day": "2026-03-01",
        "at": "2026-03-01T10:00:00.123456Z",
        "at_zone": "2026-03-01T08:00:00Z",
        "never": "infinity",
        "clock": "10:00:00",
        "long": "P1DT2H",
        "bytes": "AP8=",
        "doc": '{"a": 1}',
        "unique_id": "0e37df36-f698-11e6-8dd4-cb9ced3df976",
        "tags": ["a", None, 'b, "c" \\', "NULL"],
        "grid": [[1, 2], [3, 4]],
        "bounds": [5, 6],
        "moments": ["2026-03-01T10:00:00Z"],
        "feels": "so so",
        "feelings": "{happy}",
        "n": 7,
        "code": "ab  ",
        "at_host": "10.0.0.1",
        "during": "[2026-01-01,)",
        "whole": "[1,5)",
        "spans": '{"[\\"2026-01-01 00:00:00+00\\",)"}',
        "letters": "{x}",
        "nothing": None,
    }


class Load:
    """Clients that insert, update, move and delete rows until stopped; each row counts its own changes."""

    def __init__(self, shop: Shop, clients: int = 2) -> None:
        self.shop = shop
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(client,)) for client in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(patience_seconds)

    def work(self, client: int) -> None:
        with self.shop.server.connect(self.shop.name) as connection, connection.cursor() as cursor:
            for turn in itertools.count():
                if self.stopped.wait(0.005):
                    return
                new = 1000 + turn * 10 + client
                old = 1000 + (turn * 7 % (turn + 1)) * 10 + client
                # Several statements at once are one transaction. The trigger counts each change of a row.
                cursor.execute(
                    f"INSERT INTO products VALUES ({new}, 'new', 0); "
                    f"UPDATE products SET stock = stock + 1 WHERE id = {old}; "
                    f"UPDATE products SET stock = stock + 1 WHERE id IN (1, 2, 3) AND id % 2 = {client % 2}; "
                    + (f"DELETE FROM products WHERE id = {old}" if turn % 5 == 4 else "")
                )


logged = (
    "CREATE TABLE done (n bigint GENERATED ALWAYS AS IDENTITY, id int, op text, stock int)",
    "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO done (id, op, stock) VALUES (coalesce(NEW.id, OLD.id), lower(left(TG_OP, 1)), NEW.stock); "
    "RETURN NULL; END $$",
    "CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON products FOR EACH ROW EXECUTE FUNCTION note()",
)


def every_change(shop: Shop) -> set[tuple[int, str, int | None]]:
    """Every change that the database itself noted."""
    return {(key, {"i": "c"}.get(op, op), stock) for key, op, stock in shop.execute("SELECT id, op, stock FROM done")}


def every_captured(shop: Shop) -> set[tuple[int, str, int | None]]:
    """Every change that came by the stream."""
    return {
        ((each["after"] or each["before"])["id"], each["op"], each["after"] and each["after"]["stock"])
        for each in shop.envelopes()
        if each["op"] in "cud"
    }


def test_the_snapshot_and_the_stream_meet_without_a_gap(shop: Shop) -> None:
    with Load(shop):
        eventually(lambda: len(shop.rows()) > 100, "the load runs")
        stream = shop.capture().begin()
        with shop.following(stream):
            count = len(shop.rows())
            eventually(lambda: len(shop.rows()) > count + 100, "the load goes on")
    shop.once()
    assert shop.folded() == shop.rows()
    # Stocks only grow by ones: the row of the snapshot and the updates after it have no hole and no overlap.
    for key in (1, 2, 3):
        stocks = [each["after"]["stock"] for each in shop.envelopes() if each["after"] and each["after"]["id"] == key]
        assert stocks == list(range(stocks[0], stocks[0] + len(stocks)))
        assert len(stocks) > 20


def test_a_change_under_way_while_the_slot_is_made_comes_after_the_row_of_the_snapshot(shop: Shop) -> None:
    shop.execute("CREATE TABLE other (id int)")

    def waiting() -> int:
        (count,) = shop.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event = 'transactionid'"
        )[0]
        return int(count)

    with (
        shop.server.connect(shop.name) as first,
        shop.server.connect(shop.name) as second,
        shop.server.connect(shop.name) as third,
    ):
        for connection in (first, second, third):
            connection.autocommit = False
        first.cursor().execute("INSERT INTO other VALUES (1)")
        begun: list[Stream] = []
        thread = threading.Thread(target=lambda: begun.append(shop.capture().begin()))
        thread.start()
        # The slot waits for those that it finds; one that begins meanwhile it follows from its first change on, which
        # lies before the position at which the slot is consistent.
        eventually(waiting, "the slot waits for the first transaction")
        second.cursor().execute("INSERT INTO other VALUES (2)")
        first.commit()
        eventually(
            lambda: waiting() and shop.execute("SELECT count(*) FROM other")[0] == (1,), "it waits for the second"
        )
        time.sleep(0.1)
        third.cursor().execute("UPDATE products SET name = 'new' WHERE id = 1")
        second.commit()
        thread.join(patience_seconds)
        assert len(begun) == 1
        third.commit()
    consistent = shop.confirmed()
    begun[0].run(threading.Event(), once=True)
    (update,) = [each for each in shop.envelopes() if each["op"] == "u"]
    assert update["source"]["lsn"] < consistent
    assert shop.ops() == "rrru"
    assert shop.folded() == shop.rows()


@pytest.mark.process
def test_nothing_is_lost_when_the_reader_is_killed_again_and_again_under_load(shop: Shop) -> None:
    shop.once()
    shop.execute(*logged)
    with Load(shop):
        for _ in range(3):
            before = shop.count()
            process = shop.command()
            eventually(lambda so_far=before: shop.count() > so_far + 100, "it captures")  # type: ignore[misc]
            process.kill()
            process.communicate()
    shop.once()
    changed = every_change(shop)
    assert len(changed) > 1000
    assert every_captured(shop) == changed
    assert shop.folded() == shop.rows()
    # What came twice says the same at the same place.
    said: dict[tuple[int, int], set[str]] = {}
    for each in shop.envelopes():
        if each["op"] != "r":
            said.setdefault(place(each), set()).add(json.dumps([each["op"], each["before"], each["after"]]))
    assert all(len(each) == 1 for each in said.values())


@pytest.mark.process
def test_a_snapshot_that_is_killed_begins_again_and_what_was_deleted_meanwhile_is_gone(shop: Shop) -> None:
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    shop.log.create("shop_orders")
    with FileLock(shop.log.folder("shop_orders", 0) / ".lock"), FileLock(shop.log.folder("shop_orders", 1) / ".lock"):
        process = shop.command(tables="public.products,public.orders")
        eventually(lambda: shop.count() == 3, "the first table is in the log, and the second waits")
        process.kill()
        process.communicate()
    assert not shop.slot("true")
    eventually(lambda: not shop.execute("SELECT 1 FROM pg_replication_slots"), "the temporary slot has gone")
    shop.execute("DELETE FROM products WHERE id = 2")
    shop.once("products", "orders")
    assert (shop.ops().count("r"), shop.ops().count("t")) == (5, 1)
    assert (shop.folded(), shop.folded("orders")) == (shop.rows(), shop.rows("orders"))


def test_a_position_is_confirmed_only_when_everything_up_to_it_is_in_the_log(shop: Shop) -> None:
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    shop.once("products", "orders")
    # Postgres writes for itself, too: what is before the transaction may be confirmed meanwhile.
    begun = shop.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint")[0][0]
    shop.execute("BEGIN; INSERT INTO products VALUES (4, 'cap'); INSERT INTO orders VALUES (1), (2), (3), (4); COMMIT")
    with shop.refusing_appends("shop_orders"):
        shop.once("products", "orders")
    assert shop.ops() == "rrrc"
    assert shop.confirmed() <= begun
    shop.once("products", "orders")
    # The transaction comes whole; what was in the log of it comes twice, at the same place.
    assert shop.ops() == "rrrcc"
    assert place(shop.envelopes()[-1]) == place(shop.envelopes()[-2])
    assert shop.ops("orders") == "cccc"
    assert [each["transaction"]["total_order"] for each in shop.envelopes("orders")] == [2, 3, 4, 5]
    eventually(lambda: shop.confirmed() > begun, "the server has heard of it")


def test_a_large_transaction_goes_to_the_log_in_parts(shop: Shop) -> None:
    shop.once()
    shop.execute("INSERT INTO products SELECT g, 'x', 0 FROM generate_series(10, 5009) g")
    shop.once(batch_records=500)
    assert len(list(shop.log.root.glob("*/0/*.jsonl"))) >= 10
    orders = [each["transaction"]["total_order"] for each in shop.envelopes() if each["op"] == "c"]
    assert orders == list(range(1, 5001))


class Watched(Stream):
    """A stream that notes whether, when it reads on, the driver could confirm by itself what is not durable."""

    def take(self, cursor: "ReplicationCursor", message: "ReplicationMessage") -> None:
        super().take(cursor, message)
        is_old = message.data_start <= self.confirmed_lsn
        self.seen = [*getattr(self, "seen", []), (is_old, self.read_lsn > self.confirmed_lsn)]


def test_a_transaction_that_overlaps_the_confirmed_one_lets_nothing_be_confirmed_too_early(shop: Shop) -> None:
    stream = shop.capture().begin()
    watched = Watched(stream.capture, stream.envelopes, stream.topics, stream.batch)
    with shop.following(watched), shop.server.connect(shop.name) as longer:
        longer.autocommit = False
        longer.cursor().execute("INSERT INTO products VALUES (9, 'longer')")
        shop.execute("INSERT INTO products VALUES (7, 'confirmed')")
        eventually(lambda: "c" in shop.ops() and not stream.batch.count, "the first is in the log")
        with shop.server.connect(shop.name) as other:
            other.cursor().execute("INSERT INTO products VALUES (8, 'waits')")
            longer.commit()
        eventually(lambda: shop.ops().count("c") == 3, "all are in the log")
    assert (True, False) in watched.seen, "no message was older than what was confirmed, so nothing was tested"
    assert (False, True) in watched.seen
    assert (True, True) not in watched.seen


def test_a_column_that_is_added_dropped_or_changed_is_followed(shop: Shop) -> None:
    stream = shop.capture().begin()
    with shop.following(stream):
        shop.execute(
            "UPDATE products SET stock = 1 WHERE id = 1",
            "ALTER TABLE products ADD COLUMN colour text DEFAULT 'red'",
            "UPDATE products SET stock = 2 WHERE id = 1",
            "ALTER TABLE products DROP COLUMN name",
            "ALTER TABLE products ALTER COLUMN stock TYPE text",
            "UPDATE products SET stock = 'three' WHERE id = 1",
            "ALTER TABLE products RENAME COLUMN colour TO paint",
            "INSERT INTO products VALUES (4, 'four', 'blue')",
        )
        eventually(lambda: "c" in shop.ops(), "the last is captured")
    assert [each["after"] for each in shop.envelopes()[3:]] == [
        {"id": 1, "name": "pen", "stock": 1},
        {"id": 1, "name": "pen", "stock": 2, "colour": "red"},
        {"id": 1, "stock": "three", "colour": "red"},
        {"id": 4, "stock": "four", "paint": "blue"},
    ]


def test_a_large_value_that_did_not_change_is_unavailable_unless_the_replica_identity_is_full(shop: Shop) -> None:
    shop.execute(
        "ALTER TABLE products ALTER COLUMN name SET STORAGE EXTERNAL",
        "UPDATE products SET name = repeat('long ', 5000) WHERE id = 1",
    )
    shop.once()
    assert "public.products has large values" in shop.warnings()
    shop.execute("UPDATE products SET stock = 1 WHERE id = 1")
    shop.once()
    assert shop.envelopes()[-1]["after"]["name"] == "__debezium_unavailable_value"
    assert "does not carry public.products.name" in shop.warnings()
    assert "ALTER TABLE public.products REPLICA IDENTITY FULL" in shop.warnings()
    shop.events.clear()
    shop.execute("ALTER TABLE products REPLICA IDENTITY FULL", "UPDATE products SET stock = 2 WHERE id = 1")
    shop.once()
    last = shop.envelopes()[-1]
    assert last["after"] == {"id": 1, "name": "long " * 5000, "stock": 2}
    assert last["before"] == {"id": 1, "name": "long " * 5000, "stock": 1}
    assert not shop.warnings()


def test_silver_takes_a_large_value_that_did_not_change_from_before(shop: Shop, lakehouse: Lakehouse) -> None:
    shop.log = lakehouse.log
    shop.execute("ALTER TABLE products ALTER COLUMN name SET STORAGE EXTERNAL")
    shop.execute("UPDATE products SET name = repeat('long ', 5000) WHERE id = 1")
    shop.once()
    shop.execute("UPDATE products SET stock = 1 WHERE id = 1")
    shop.once()
    assert shop.envelopes()[-1]["after"]["name"] == "__debezium_unavailable_value"
    products = silver.history(
        "products",
        source=bronze.topic("shop_products"),
        format="debezium",
        schema="id int, name string, stock int",
        keys=["id"],
    )
    lakehouse.declare(products).run()
    found = lakehouse.table("silver.products").where("is_current AND id = 1").select("name", "stock").collect()
    assert [tuple(row) for row in found] == [("long " * 5000, 1)]


def test_a_key_that_changes_under_a_full_replica_identity(shop: Shop) -> None:
    shop.execute("ALTER TABLE products REPLICA IDENTITY FULL")
    shop.once()
    shop.execute("UPDATE products SET id = 30 WHERE id = 3", "UPDATE products SET stock = 0 WHERE id = 30")
    shop.once()
    assert shop.ops() == "rrrdcu"
    assert shop.folded() == shop.rows()


partitioned = (
    "CREATE TABLE sales (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE sales_2 PARTITION OF sales FOR VALUES FROM (10) TO (20)",
    "INSERT INTO sales VALUES (1, 1), (11, 1)",
)


def test_a_partitioned_table_goes_to_one_topic(shop: Shop) -> None:
    shop.execute(*partitioned)
    shop.once("sales")
    shop.execute("UPDATE sales SET n = 2", "UPDATE sales SET id = 12 WHERE id = 1", "DELETE FROM sales WHERE id = 11")
    shop.once("sales")
    assert shop.folded("sales") == shop.rows("sales") == [{"id": 12, "n": 2}]
    assert "public.sales is partitioned" in shop.warnings()


def test_what_a_partition_takes_with_it_is_gone_after_a_new_snapshot(shop: Shop) -> None:
    shop.execute(*partitioned)
    shop.once("sales")
    shop.execute("DROP TABLE sales_2", "UPDATE sales SET n = 2")
    shop.once("sales")
    # Postgres says nothing of it.
    assert shop.folded("sales") == [{"id": 1, "n": 2}, {"id": 11, "n": 1}]
    shop.once("sales", new_snapshot=True)
    assert shop.folded("sales") == shop.rows("sales") == [{"id": 1, "n": 2}]


def test_idle_tables_do_not_hold_back_what_others_write(shop: Shop) -> None:
    # What is published and not captured arrives too, and must be confirmed as well.
    shop.execute(
        "CREATE TABLE other (filler text)",
        "CREATE TABLE published (filler text)",
        f"CREATE PUBLICATION {shop.name} FOR TABLE products, published",
    )
    stream = shop.capture(report_seconds=0.2).begin()
    with shop.following(stream):
        for _ in range(3):
            shop.execute(
                "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)",
                "INSERT INTO published SELECT repeat('x', 1000) FROM generate_series(1, 50)",
            )
        written = int(shop.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint")[0][0])
        eventually(lambda: shop.confirmed() >= written, "what others wrote is confirmed")
        shop.execute("CHECKPOINT", "SELECT pg_log_standby_snapshot()" if newer(shop) else "CHECKPOINT")
        eventually(
            lambda: int(shop.slot("(pg_current_wal_lsn() - restart_lsn)::bigint")) < 2 << 20,
            "the slot retains little",
        )
    progress = [each.detail for each in shop.events if each.kind == "progress"]
    assert {"retained_wal_bytes", "confirmed_lsn", "wal_status"} <= set(progress[-1])


def newer(shop: Shop) -> bool:
    """Whether the server can write on demand what lets a slot move on."""
    return bool(shop.execute("SELECT count(*) > 0 FROM pg_proc WHERE proname = 'pg_log_standby_snapshot'")[0][0])


def test_a_slot_that_retains_much_is_reported(shop: Shop) -> None:
    shop.execute("CREATE TABLE other (filler text)")
    stream = shop.capture(report_seconds=0.1, retained_bytes_warned=1 << 20).begin()
    with shop.following(stream), shop.server.connect(shop.name) as longer:
        longer.autocommit = False
        longer.cursor().execute("INSERT INTO products VALUES (9, 'never ends')")
        shop.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 3000)", "CHECKPOINT")
        eventually(lambda: "retains" in shop.warnings(), "the warning")
        longer.rollback()
    assert "pg_stat_activity" in shop.warnings()


@contextmanager
def little_wal_kept(server: Postgres) -> Iterator[None]:
    """Slots may hold back one megabyte."""
    try:
        server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        server.execute("SELECT pg_reload_conf()")
        yield
    finally:
        server.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        server.execute("SELECT pg_reload_conf()")


def lose_slot(shop: Shop) -> None:
    """Writes until the slot is invalidated."""
    with little_wal_kept(shop.server):
        shop.execute("CREATE TABLE other (filler text)")

        def lost() -> bool:
            shop.execute("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 3000)", "CHECKPOINT")
            return str(shop.slot("wal_status")) == "lost"

        eventually(lost, "the slot is lost")


def test_a_slot_that_was_invalidated_is_an_error_until_a_new_snapshot_is_asked_for(shop: Shop) -> None:
    shop.once()
    shop.execute("DELETE FROM products WHERE id = 1", "INSERT INTO products VALUES (4, 'cap')")
    lose_slot(shop)
    with pytest.raises(SlotLost, match=r"max_slot_wal_keep_size allows.*--new-snapshot"):
        shop.once()
    shop.once(new_snapshot=True)
    assert shop.folded() == shop.rows()
    shop.execute("UPDATE products SET stock = 7 WHERE id = 4")
    shop.once()
    assert shop.folded() == shop.rows()


@pytest.mark.process
def test_a_slot_that_is_invalidated_under_its_reader_is_reported_by_the_reader(shop: Shop) -> None:
    process = shop.command("--json")
    assert process.stdout
    eventually(lambda: shop.slot("active"), "it follows")
    process.send_signal(signal.SIGSTOP)
    shop.execute("INSERT INTO products VALUES (4, 'cap')")
    lose_slot(shop)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=patience_seconds)
    assert process.returncode == 1
    assert "was invalidated" in errors
    assert "--new-snapshot" in errors
    assert "Traceback" not in errors


def test_a_slot_that_somebody_dropped_is_an_error_once_changes_were_captured(shop: Shop) -> None:
    shop.once()
    shop.execute("UPDATE products SET stock = 0 WHERE id = 1")
    shop.once()
    shop.drop_slot()
    shop.execute("DELETE FROM products WHERE id = 2")
    with pytest.raises(SlotLost, match="is gone"):
        shop.once()
    shop.once(new_snapshot=True)
    assert shop.folded() == shop.rows()


@pytest.mark.parametrize("table", ["products", "orders"])
def test_a_slot_that_somebody_dropped_is_an_error_once_a_snapshot_is_complete(shop: Shop, table: str) -> None:
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, stock int)")
    shop.once(table)
    shop.drop_slot()
    shop.execute("INSERT INTO orders VALUES (1, 0)", "UPDATE products SET stock = 1", "UPDATE products SET stock = 2")
    count = shop.count(table)
    with pytest.raises(SlotLost, match=r"is gone.*--new-snapshot"):
        shop.once(table)
    assert shop.count(table) == count
    shop.once(table, new_snapshot=True)
    assert shop.folded(table) == shop.rows(table)


def test_a_new_snapshot_that_was_asked_for_begins_again_without_being_asked_for_twice(shop: Shop) -> None:
    shop.once()
    shop.drop_slot()
    shop.execute("DELETE FROM products WHERE id = 2")
    with shop.refusing_appends("shop_products"):
        shop.once(new_snapshot=True)
    shop.once()
    assert shop.folded() == shop.rows()
    shop.drop_slot()
    with pytest.raises(SlotLost, match="is gone"):
        shop.once()


def test_a_snapshot_that_cannot_make_its_slot_begins_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SluiceError("all replication slots are in use")

    with monkeypatch.context() as patched:
        patched.setattr("sluice.ingest.capture.snapshot.require_slot", full)
        with pytest.raises(SluiceError, match="in use"):
            shop.once()
    assert shop.ops() == "rrr"
    shop.once()
    assert shop.folded() == shop.rows()


@pytest.mark.parametrize("new_snapshot", [False, True])
def test_a_server_that_went_back_behind_what_was_captured_is_refused(shop: Shop, new_snapshot: bool) -> None:
    shop.once()
    shop.execute("UPDATE products SET stock = 0 WHERE id = 1")
    shop.once()
    key, change = next((key, each) for key, each in shop.records() if each is not None and each["op"] == "u")
    # As from before a restore: the server's log was longer then.
    ahead = change | {"source": change["source"] | {"lsn": 2**60}}
    shop.log.append("shop_products", [Record(json.dumps(ahead).encode(), key=key)])
    with pytest.raises(SluiceError, match="restored to an earlier state"):
        shop.once(new_snapshot=new_snapshot)


def test_a_topic_that_was_made_again_while_it_was_captured_needs_a_new_snapshot(shop: Shop) -> None:
    stream = shop.capture().begin()
    shutil.rmtree(shop.log.root / "shop_products")
    shop.execute("UPDATE products SET stock = 0 WHERE id = 1")
    stream.run(threading.Event(), once=True)
    assert shop.count() == 1
    with pytest.raises(UsageError, match=r"shop_products was made again since the snapshot.*--new-snapshot"):
        shop.once()
    shop.once(new_snapshot=True)
    assert shop.folded() == shop.rows()
    shop.once()


def test_a_snapshot_of_an_older_release_is_complete_once_its_slot_is_followed(shop: Shop) -> None:
    shop.once()
    shutil.rmtree(shop.log.root / captures_topic)
    shop.once()
    shop.drop_slot()
    with pytest.raises(SlotLost, match="is gone"):
        shop.once()


def test_changes_of_an_older_release_are_known_by_their_offset_and_not_by_a_clock(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", partitions=2)
    row, change = b'{"source":{"snapshot":"true"}}', b'{"source":{"snapshot":"false"}}'
    later = datetime.now(UTC) + timedelta(hours=1)
    log.append("shop_products", [Record(row, key="1", timestamp=later)])
    assert not is_followed(log, "shop_products", None)
    log.append("shop_products", [Record(change, key="4")])
    assert log.tail("shop_products", 1)[0].value == row
    assert is_followed(log, "shop_products", None)


def test_a_new_snapshot_that_fails_takes_nothing_away(shop: Shop) -> None:
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    shop.once("products", "orders")
    shop.log.lock_seconds = 0.1
    shop.execute("DELETE FROM products WHERE id = 2")
    with (
        FileLock(shop.log.folder("shop_orders", 0) / ".lock"),
        FileLock(shop.log.folder("shop_orders", 1) / ".lock"),
        pytest.raises(LogError, match="Another writer has locked topic shop_orders"),
    ):
        shop.once("products", "orders", new_snapshot=True)
    assert shop.ops() == "rrrrr"
    # The slot is still where it was, so nothing has to be begun again.
    shop.once("products", "orders")
    assert "".join(sorted(shop.ops())) == "drrrrr"
    assert shop.folded() == shop.rows()
    shop.once("products", "orders", new_snapshot=True)
    assert shop.ops().count("t") == 1
    assert (shop.folded(), shop.folded("orders")) == (shop.rows(), shop.rows("orders"))


@pytest.mark.process
def test_sigterm_ends_after_the_transaction_under_way(shop: Shop) -> None:
    shop.once()
    shop.execute("INSERT INTO products SELECT g, 'x', 0 FROM generate_series(10, 40009) g")
    process = shop.command()
    eventually(lambda: shop.count() > 3, "the first part is in the log")
    process.terminate()
    _, errors = process.communicate(timeout=patience_seconds)
    assert process.returncode == 0
    assert "the slot retains" in errors
    assert shop.count() == 40003
    shop.once()
    assert shop.count() == 40003


@pytest.mark.process
@pytest.mark.servers
def test_a_server_that_crashes_ends_the_reader_with_a_word_on_it_and_the_next_start_goes_on(tmp_path: Path) -> None:
    server = Postgres()
    try:
        shop = Shop(server.start(), "postgres", Log(tmp_path / "log", partitions=2))
        shop.execute("CREATE TABLE products (id int PRIMARY KEY, name text, stock int)")
        process = shop.command()
        eventually(lambda: shop.slot("active"), "it follows")
        shop.execute("INSERT INTO products VALUES (1, 'pen', 0)")
        eventually(lambda: shop.ops() == "c", "it is captured")
        server.kill()
        _, errors = process.communicate(timeout=patience_seconds)
        assert process.returncode == 1
        assert "goes on where it stopped" in " ".join(errors.split())
        server.start()
        shop.execute("INSERT INTO products VALUES (2, 'ink', 0)")
        shop.once()
        assert shop.folded() == shop.rows()
        # The same server, not set up for capture.
        server.execute("ALTER SYSTEM SET wal_level = 'replica'")
        server.execute("SELECT pg_drop_replication_slot('postgres')")
        server.stop()
        server.start()
        with pytest.raises(SluiceError, match=r"wal_level is replica.*ALTER SYSTEM SET wal_level = 'logical'"):
            shop.once()
    finally:
        server.remove()


@pytest.mark.parametrize("when", ["streaming", "snapshot"])
def test_a_server_that_does_not_answer_any_more_ends_the_reader(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # The least that Postgres's own client can wait is two seconds.
    monkeypatch.setattr(database_module, "watch_seconds", 0.1)
    monkeypatch.setattr(lost_server, "silent_seconds_max", 2)
    shop.execute("INSERT INTO products SELECT g, repeat('x', 100), 0 FROM generate_series(10, 9999) g")
    with relayed(shop.server.address(shop.name)) as (address, goes_on):

        def lose(progress: Progress) -> None:
            # A table's first rows are in the log.
            if progress.kind == when and (when == "streaming" or progress.detail):
                goes_on.clear()

        capture = replace(shop.capture(batch_records=100), database=Database(address), listener=lose)
        with pytest.raises(SluiceError, match=r"127\.0\.0\.1:\d+ does not answer any more"):
            capture.begin().run(threading.Event())
    shop.once()
    assert shop.folded() == shop.rows()


def test_wrong_use_says_what_to_do(shop: Shop) -> None:
    shop.execute("CREATE TABLE keyless (n int)", "CREATE VIEW seen AS SELECT 1 AS id")
    for table, says in {
        "keyless": "public.keyless has no primary key, so its rows cannot be told apart. Give it one: ALTER TABLE",
        "nowhere": "There is no table public.nowhere",
        "seen": "is no table whose changes are logged",
    }.items():
        with pytest.raises(UsageError, match=says):
            shop.once(table)
        shop.execute(f"DROP PUBLICATION IF EXISTS {shop.name}")
    shop.execute("CREATE TABLE nameless (id int PRIMARY KEY)", "ALTER TABLE nameless REPLICA IDENTITY NOTHING")
    with pytest.raises(UsageError, match="REPLICA IDENTITY NOTHING"):
        shop.once("nameless")
    shop.execute(f"DROP PUBLICATION {shop.name}")
    shop.once()
    with pytest.raises(UsageError, match=r"The publication .* lacks public\.nameless"):
        shop.once("products", "nameless")
    shop.execute(f"ALTER PUBLICATION {shop.name} ADD TABLE nameless", "ALTER TABLE nameless REPLICA IDENTITY DEFAULT")
    with pytest.raises(UsageError, match="has no topic shop_nameless"):
        shop.once("products", "nameless")
    shop.execute(f"ALTER PUBLICATION {shop.name} SET (publish = 'insert')")
    with pytest.raises(UsageError, match="leaves out some kinds of changes"):
        shop.once()


def test_a_second_reader_of_a_slot_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.ingest.capture.database.active_seconds_max", 0.2)
    with shop.following(shop.capture().begin()):
        eventually(lambda: shop.slot("active"), "it follows")
        with pytest.raises(SluiceError, match="Another process reads the slot"):
            shop.once()


@pytest.mark.process
def test_the_command_tells_its_progress_to_machines(shop: Shop) -> None:
    output, errors = shop.command("--once", "--json").communicate(timeout=patience_seconds)
    assert [json.loads(line)["kind"] for line in output.splitlines()][-1] == "done"
    assert not errors


@pytest.mark.parametrize(
    ("address", "says", "code"),
    [
        ("postgresql://me:secret@127.0.0.1:1/none", "Postgres cannot be reached", 1),
        ("postgresql://me:secret%zz@127.0.0.1/none", "SLUICE_POSTGRES is no address", 2),
    ],
)
def test_an_address_that_does_not_work_is_reported_without_its_password(
    tmp_path: Path, address: str, says: str, code: int
) -> None:
    capture = ("capture", "postgres", "--tables", "public.products")
    done = sluice(*capture, here=tmp_path, environment={"SLUICE_POSTGRES": address})
    assert says in " ".join(done.stderr.split())
    assert (done.returncode, "secret" in done.stderr) == (code, False)


@pytest.mark.process
def test_without_the_driver_the_extra_is_named(tmp_path: Path) -> None:
    without = "import sys; sys.modules['psycopg2'] = None; from sluice.cli import main; main()"
    command = [sys.executable, "-c", without, "capture", "postgres", "--tables", "public.products"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "sluice-lakehouse[capture]" in done.stderr
    assert "Traceback" not in done.stderr


def test_silver_makes_a_history_of_what_was_captured(shop: Shop, lakehouse: Lakehouse) -> None:
    shop.log = lakehouse.log
    shop.execute("ALTER TABLE products ADD price numeric(10,2), ADD since date, ADD seen timestamptz, ADD ratio float8")
    shop.execute("UPDATE products SET price = 1.5, since = '2026-03-01', seen = '2026-03-01 10:00+02', ratio = 'NaN'")
    shop.once()
    topic = bronze.topic("shop_products")
    history = silver.history(
        "products",
        source=topic,
        format="debezium",
        schema="id int, name string, stock int, price decimal(10,2), since date, seen timestamp, ratio double",
        keys=["id"],
    )
    lakehouse.declare(topic, history)

    def current() -> list[Any]:
        columns = ("id", "name", "stock", "CAST(price AS string)", "CAST(since AS string)", "CAST(seen AS string)")
        found = lakehouse.table("silver.products").where("is_current").selectExpr(*columns).collect()
        return sorted(tuple(row) for row in found)

    def expected() -> list[Any]:
        columns = "id, name, stock, price::text, since::text, (seen AT TIME ZONE 'UTC')::text"
        return sorted(shop.execute(f"SELECT {columns} FROM products WHERE id < 99"))

    shop.execute(
        "UPDATE products SET stock = 5 WHERE id = 1",
        "UPDATE products SET id = 20 WHERE id = 2",
        "BEGIN; DELETE FROM products WHERE id = 3; INSERT INTO products VALUES (3, 'again'); COMMIT",
    )
    shop.once()
    shop.execute("DELETE FROM products WHERE id = 1", "INSERT INTO products (id, seen) VALUES (99, 'infinity')")
    # The position is lost, and with it the delete: the new snapshot says who is gone.
    shop.once(new_snapshot=True)
    lakehouse.run()
    assert current() == expected()
    versions = lakehouse.table("silver.products").orderBy("id", "valid_from").select("id", "stock", "is_current")
    assert [tuple(row) for row in versions.collect()] == [
        (1, 10, False),
        (1, 5, False),
        (2, 20, False),
        (3, 30, False),
        (3, 0, True),
        (20, 20, True),
    ]
    assert all(each.balanced for each in lakehouse.audits())
    # A time that Spark cannot hold is reported, and not taken for none.
    assert [each[:2] for each in lakehouse.fates() if each[0] == "quarantined"] == [
        ("quarantined", "invalid_time_seen")
    ]
