"""The servers, real ones: each does its work, comes back after a crash, and can be reached from this machine alone."""

import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.error import S3Error
from minio.signer import sign_v4_s3

from infra.servers import S3, Connect, Kafka, Postgres, Running, SparkMaster, SparkWorker, free_port, running
from infra.servers.postgres import database, program, require_entrance, user
from infra.servers.s3 import access_key, bucket, region
from infra.servers.server import cache
from infra.servers.stack import Stack, default_ports
from sluice import bronze, silver
from sluice.errors import SluiceError, UsageError
from sluice.log import KafkaLog, KafkaSecurity
from sluice.runtime.settings import read_settings
from tests.infra.listeners import listeners
from tests.kit import Lakehouse
from tests.waiting import eventually, patience_seconds

loopback = {"127.0.0.1"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not pytest's own, which only its owner may pass through: Postgres has a user of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_no_connection_is_given_the_port_of_a_server_that_is_killed() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 32_768
    assert all(free_port() < first for _ in range(200))


@pytest.fixture(scope="module")
def kafka(folder: Path) -> Iterator[Running[Kafka]]:
    with running(Kafka(folder / "kafka")) as started:
        yield started


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[Running[Postgres]]:
    with running(Postgres(folder / "postgres")) as started:
        yield started


def test_kafka_has_what_it_took_when_it_was_killed(kafka: Running[Kafka]) -> None:
    make_topic(kafka.server, "kept")
    producer = Producer({"bootstrap.servers": kafka.server.address, "acks": "all"})
    for number in range(100):
        producer.produce("kept", key=str(number % 7), value=str(number))
    assert producer.flush(30) == 0
    kafka.kill()
    assert not kafka.server.is_healthy()
    kafka.start()
    assert sorted(int(value) for value in values_of(kafka.server, "kept", 100)) == list(range(100))
    assert listeners(kafka.pid) == loopback


def test_a_topic_that_nobody_made_is_not_made_by_its_name(kafka: Running[Kafka]) -> None:
    AdminClient({"bootstrap.servers": kafka.server.address}).list_topics("mistyped", timeout=10)
    assert "mistyped" not in AdminClient({"bootstrap.servers": kafka.server.address}).list_topics(timeout=10).topics


@pytest.mark.servers
def test_s3_refuses_a_wrong_key_and_has_its_objects_after_a_crash(folder: Path) -> None:
    with running(S3(folder / "s3")) as s3:
        client = Minio(s3.server.address, access_key, s3.server.secret_key, secure=False)
        client.make_bucket("made-here")
        client.put_object("made-here", "a/b", io.BytesIO(b"kept"), 4)
        for key, code in ((s3.server.secret_key[::-1], "SignatureDoesNotMatch"), (None, "AccessDenied")):
            with pytest.raises(S3Error) as refused:
                Minio(s3.server.address, access_key if key else None, key, secure=False).list_objects(
                    "made-here"
                ).__next__()
            assert refused.value.code == code
        s3.kill()
        s3.start()
        assert client.get_object("made-here", "a/b").data == b"kept"
        assert {each.name for each in client.list_buckets()} == {"made-here", "sluice"}
        assert listeners(s3.pid) == loopback


@pytest.mark.servers
def test_of_writers_that_want_the_same_name_on_s3_one_gets_it(folder: Path) -> None:
    """Delta's commits hang on one request of S3: write this object only if it is not there."""
    with running(S3(folder / "s3-race")) as s3, ThreadPoolExecutor(8) as pool:
        for commit in range(20):
            answers = pool.map(
                lambda writer, name=f"lake/{commit}.json": put_if_absent(s3.server, name, writer), range(8)
            )
            assert Counter(answers) == {200: 1, 412: 7}


@pytest.mark.servers
def test_debezium_on_connect_makes_a_history(
    folder: Path, kafka: Running[Kafka], postgres: Running[Postgres], lakehouse: Lakehouse
) -> None:
    sql(postgres.server, "CREATE TABLE orders (order_id int PRIMARY KEY, state text, note text)")
    sql(postgres.server, "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL")
    sql(postgres.server, "INSERT INTO orders VALUES (1, 'placed', repeat('long ', 5000)), (2, 'placed', '')")
    with running(Connect(folder / "connect", kafka=kafka.server.address)) as connect:
        post(connect.server, "connectors", {"name": "orders", "config": connector(postgres.server)})
        assert [change(value) for value in values_of(kafka.server, "shop.public.orders", 2)] == [("r", "placed")] * 2
        for statement in (
            "UPDATE orders SET state = 'sent' WHERE order_id = 1",
            "UPDATE orders SET order_id = 20 WHERE order_id = 2",
            "DELETE FROM orders WHERE order_id = 1",
            "INSERT INTO orders VALUES (1, 'again', '')",
        ):
            sql(postgres.server, statement)
        # Each row that goes, and each key that changes, is followed by a tombstone.
        values_of(kafka.server, "shop.public.orders", 9)
        assert listeners(connect.pid) == loopback
    lakehouse.log = KafkaLog(kafka.server.address, KafkaSecurity())
    orders = silver.history(
        "orders",
        source=bronze.topic("orders", topic="shop.public.orders"),
        format="debezium",
        schema="order_id int, state string, note string",
        keys=["order_id"],
    )
    lakehouse.declare(orders).run()
    found = lakehouse.table("silver.orders").orderBy("order_id", "valid_from")
    assert [tuple(row) for row in found.selectExpr("order_id", "state", "length(note)", "is_current").collect()] == [
        (1, "placed", 25_000, False),
        (1, "sent", 25_000, False),
        (1, "again", 0, True),
        (2, "placed", 0, False),
        (20, "placed", 0, True),
    ]
    assert all(each.balanced for each in lakehouse.audits())


def test_postgres_wants_its_password_and_has_its_rows_after_a_crash(postgres: Running[Postgres]) -> None:
    sql(postgres.server, "CREATE TABLE kept AS SELECT 1 AS one")
    with pytest.raises(subprocess.CalledProcessError, match="password authentication failed"):
        sql(postgres.server, "SELECT 1", password="wrong")
    postgres.kill()
    postgres.start()
    assert sql(postgres.server, "SELECT one FROM kept") == "1"
    assert sql(postgres.server, "SHOW wal_level") == "logical"
    assert listeners(postgres.pid) == loopback


def test_a_folder_that_postgres_cannot_enter_is_said_before_it_fails(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        require_entrance(tmp_path / "data")
        return
    tmp_path.chmod(0o700)
    with pytest.raises(SluiceError, match="may not enter"):
        require_entrance(tmp_path / "data")


def test_a_master_whose_pages_are_there_before_what_they_say_is_not_healthy_yet(tmp_path: Path) -> None:
    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Empty) as pages:
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        assert not SparkMaster(tmp_path, web_port=pages.server_port).is_healthy()
        pages.shutdown()


@pytest.mark.servers
def test_a_master_has_two_workers(folder: Path) -> None:
    with running(SparkMaster(folder / "master")) as master:
        address = master.server.address
        with (
            running(SparkWorker(folder / "worker-1", master=address)) as one,
            running(SparkWorker(folder / "worker-2", master=address)) as two,
        ):
            assert master.server.workers() == 2
            for process in (master, one, two):
                assert listeners(process.pid) == loopback


@pytest.mark.servers
def test_a_port_that_is_taken_is_said_before_the_other_is_taken_for_ours(postgres: Running[Postgres]) -> None:
    server = S3(postgres.server.folder.with_name("s3-second"), postgres.server.port)
    with pytest.raises(SluiceError, match=f"Port {server.port} is taken"), running(server):
        pass


@pytest.mark.servers
def test_a_server_that_does_not_start_says_why(folder: Path) -> None:
    server = Postgres(folder / "postgres-old")
    server.prepare()
    (server.data / "PG_VERSION").write_text("9.0\n")
    with pytest.raises(SluiceError, match=r"(?s)Postgres did not become healthy.*9\.0"), running(server):
        pass


@pytest.mark.servers
def test_a_stack_starts_in_order_comes_back_and_ends(folder: Path) -> None:
    stack = Stack(folder / "stack")
    stack.change_ports({name: free_port() for name in default_ports})
    try:
        assert stack.up(["s3", "postgres"]) == ["postgres", "s3"]
        states = {each.name: each for each in stack.status()}
        assert {name for name, each in states.items() if each.healthy} == {"postgres", "s3"}
        assert states["kafka"].state == "STOPPED"
        with pytest.raises(UsageError, match="while servers run"):
            stack.change_ports({"kafka": 1})
        assert set(sourced(stack.settings_file)) >= {
            "SLUICE_POSTGRES",
            "SLUICE_LAKE",
            "AWS_ENDPOINT_URL",
            "AWS_SECRET_ACCESS_KEY",
        }
        assert private(stack.settings_file)
        assert private(folder / "stack" / "s3" / ".secret_key")
        assert private(folder / "stack" / "postgres" / ".password")
        assert "SECRET" not in (folder / "stack" / "supervisord.conf").read_text()
        # What is killed is started again, by the supervisor.
        os.kill(states["s3"].pid, signal.SIGKILL)
        eventually(lambda: {each.name: each for each in stack.status()}["s3"].pid not in (0, states["s3"].pid))
        stack.wait_for("s3")
    finally:
        stack.down()
    assert {each.state for each in stack.status()} == {"STOPPED"}
    assert not any(is_running(each.pid) for each in states.values() if each.pid)
    assert (folder / "stack" / "postgres" / "data" / "PG_VERSION").exists()


def test_names_and_ports_that_do_not_exist_are_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server kafak"):
        Stack(tmp_path).chosen(["kafak"])
    with pytest.raises(UsageError, match="No port is called kafak"):
        Stack(tmp_path).change_ports({"kafak": 1})
    assert Stack(tmp_path).chosen(["spark"]) == ["spark-master", "spark-worker-1", "spark-worker-2"]


@pytest.mark.process
def test_what_is_not_installed_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_SERVERS", str(tmp_path))
    assert cache() == tmp_path
    # The engine knows that this is no mistake in the name of a setting of its own.
    read_settings(tmp_path)
    for server in (Kafka(tmp_path / "kafka"), S3(tmp_path / "s3")):
        with pytest.raises(SluiceError, match=r"Run: python -m infra\.servers install"):
            server.command()


def make_topic(server: Kafka, name: str) -> None:
    client = AdminClient({"bootstrap.servers": server.address})
    client.create_topics([NewTopic(name, 2, 1)])[name].result(30)


def values_of(server: Kafka, topic: str, count: int) -> list[bytes]:
    """The first values of a topic that is there or comes, in the order of their partition."""
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "test", "enable.auto.commit": False})
    try:
        deadline = time.monotonic() + patience_seconds
        partitions: list[int] = []
        while not partitions:
            assert time.monotonic() < deadline, f"{topic} was never made"
            known = consumer.list_topics(timeout=10).topics
            partitions = list(known[topic].partitions) if topic in known else []
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[bytes] = []
        while len(found) < count:
            assert time.monotonic() < deadline, f"{topic} has only {found}"
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
        return found
    finally:
        consumer.close()


def connector(server: Postgres) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": user,
        "database.password": server.password,
        "database.dbname": database,
        "plugin.name": "pgoutput",
        "topic.prefix": "shop",
        "table.include.list": "public.orders",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }


def put_if_absent(server: S3, name: str, writer: int) -> int:
    """The status with which S3 answers."""
    body = f"writer {writer}".encode()
    digest = hashlib.sha256(body).hexdigest()
    now = datetime.now(UTC)
    url = urlsplit(f"http://{server.address}/{bucket}/{name}")
    headers: dict[str, Any] = {
        "Host": server.address,
        "If-None-Match": "*",
        "x-amz-content-sha256": digest,
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
    }
    signed: dict[str, Any] = sign_v4_s3(
        method="PUT",
        url=url,
        region=region,
        headers=headers,
        credentials=Credentials(access_key, server.secret_key),
        content_sha256=digest,
        date=now,
    )
    connection = HTTPConnection(server.address, timeout=30)
    try:
        connection.request("PUT", url.path, body, signed)
        return connection.getresponse().status
    finally:
        connection.close()


def change(value: bytes) -> tuple[str, str]:
    """What was done, and the state after it."""
    found = json.loads(value)
    return found["op"], found["after"]["state"]


def post(server: Connect, path: str, body: object) -> None:
    request = urllib.request.Request(
        f"http://{server.address}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201


def sql(server: Postgres, text: str, password: str | None = None) -> str:
    """What psql answers; a CalledProcessError with what it complains of."""
    command = [program("psql"), "-h", "127.0.0.1", "-p", str(server.port), "-U", user, "-d", database]
    done = subprocess.run(
        [*command, "-v", "ON_ERROR_STOP=1", "-Atqc", text],
        env={**os.environ, "PGPASSWORD": password or server.password},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, done.stderr)
    return done.stdout.strip()


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def sourced(path: Path) -> list[str]:
    """The names that a shell knows after it has sourced the file."""
    done = subprocess.run(["sh", "-c", f". {path} && env"], env={}, capture_output=True, text=True, check=True)
    return [line.partition("=")[0] for line in done.stdout.splitlines()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
