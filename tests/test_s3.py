"""Tables on S3: the same rows as on files, one writer at a time, and no commit lost where two believe to be the one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pytest

from infra.servers import S3 as Server  # noqa: N811 - beside the S3 that the lake is on
from infra.servers import Running, running
from sluice import scaffold
from sluice.engine.catalogue import load
from sluice.engine.runner import Runner
from sluice.errors import LakeLocked, SluiceError, UsageError
from sluice.log import Log, Record
from sluice.operate.query import query
from sluice.operate.search import search
from sluice.storage import bucket, lease
from sluice.storage.delta import Lake
from sluice.storage.lock import is_locked, lake_lock
from sluice.storage.s3 import S3
from tests.commands import sluice, sluice_process
from tests.end_to_end.scaffolded import content
from tests.servers.commanded import answered, request
from tests.servers.s3 import Guarded, Unreliable, proxied, unconditional
from tests.waiting import eventually, patience_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

conditional = "sluice.logstore.S3ConditionalLogStore"
plain = "io.delta.storage.S3SingleDriverLogStore"
# Long enough for a loaded machine to renew it, short enough to wait for.
lease_seconds = 15.0
aws = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
aws_places = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Guarded]]:
    """A store with TLS and users; this process and its children find it by AWS's variables."""
    with running(Guarded(tmp_path_factory.mktemp("s3") / "s3")) as started, pytest.MonkeyPatch.context() as patch:
        for name in (*aws, *aws_places):
            patch.delenv(name, raising=False)
        for name, value in started.server.settings().items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        yield started


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running[Server]]:
    """A separate store that may be killed."""
    with running(Server(tmp_path_factory.mktemp("s3") / "unguarded")) as started:
        yield started


# Two drivers that both believe to be the one.


@dataclass
class Driver:
    """A process with its own JVM that executes commands."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, name: str, folder: Path) -> "Driver":
        folder.mkdir()
        command = [sys.executable, "-m", "tests.servers.committer", name]
        environment = os.environ | {"SLUICE_LAKE": "s3a://contended/lake", "PYTHONPATH": str(Path.cwd())}
        return cls(
            subprocess.Popen(
                command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )

    def send(self, *words: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        with self.process:
            self.process.communicate(timeout=patience_seconds)


@pytest.fixture(scope="module")
def drivers(server: Running[Guarded], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Driver]]:
    bucket.require(S3.of("s3a://contended/lake"), make=True)
    folder = tmp_path_factory.mktemp("drivers")
    started = [Driver.start(name, folder / name) for name in ("a", "b")]
    try:
        assert [each.answer() for each in started] == ["ready", "ready"]
        yield started
    finally:
        for each in started:
            each.end()


def at_once(drivers: list[Driver], turn: int, *words: str) -> list[str]:
    """What each answers when all get the same command; they take turns in getting it first."""
    for each in drivers if turn % 2 else reversed(drivers):
        each.send(*words)
    return [each.answer() for each in drivers]


def contended(drivers: list[Driver], store: str, versions: int) -> Iterator[list[str]]:
    """The answers of two drivers that write the same versions of a log."""
    log = f"s3a://contended/lake/{store}/_delta_log"
    for turn in range(versions):
        yield at_once(drivers, turn, "write", store, f"{log}/{turn:020}.json")


def test_of_two_drivers_that_commit_one_version_one_wins(drivers: list[Driver]) -> None:
    found = list(contended(drivers, conditional, 60))
    assert {tuple(sorted(each)) for each in found} == {("refused", "won")}, found
    # Neither was always ahead: it is the store that decided.
    assert set(Counter(answers[0] for answers in found)) == {"won", "refused"}
    for turn, answers in enumerate(found):
        name = f"{conditional}/_delta_log/{turn:020}.json"
        assert json.loads(Lake("s3a://contended/lake").files.read(name)) == {
            "commitInfo": {"by": "a" if answers[0] == "won" else "b"}
        }


def test_without_the_condition_commits_are_lost(drivers: list[Driver]) -> None:
    """What the test above would find if the log store did not ask."""
    assert ["won", "won"] in contended(drivers, plain, 60)


def test_what_two_drivers_land_from_the_same_state_lands_once(drivers: list[Driver]) -> None:
    lake = Lake("s3a://contended/lake")
    first, second = drivers
    first.send("look")
    first.answer()
    first.send("append", "0")
    assert first.answer() == "won"
    for offset in range(1, 5):
        assert len(set(at_once(drivers, offset, "look"))) == 1
        answers = at_once(drivers, offset, "append", str(offset))
        assert answers.count("won") == 1, answers
    # One that slept, and begins its write when the other's is long done.
    at_once(drivers, 0, "look")
    first.send("append", "5")
    assert first.answer() == "won"
    second.send("append", "5")
    assert second.answer().startswith("Superseded")
    offsets = query(lake, 'SELECT "offset" FROM bronze.contended ORDER BY 1').rows
    assert offsets == [(offset,) for offset in range(6)]
    # It looks again, and goes on from there.
    second.send("look")
    second.answer()
    second.send("append", "6")
    assert second.answer() == "won"
    assert lake.row_count("bronze.contended") == 7


# The lease.


@pytest.fixture
def store(server: Running[Guarded], request: pytest.FixtureRequest) -> Any:
    """A separate place for a lease."""
    root = f"s3a://leases/{request.node.name}"
    bucket.require(S3.of(root), make=True)
    return S3.of(root).store(5)


def acquired(store: Any, notify: Callable[[str], None] = lambda _: None) -> lease.Lease:
    return lease.take(store, 3, lease.free(store, 3, notify))


def test_a_lease_is_renewed_refused_released_and_counted(store: Any) -> None:
    first = acquired(store)
    with pytest.raises(LakeLocked, match=f"Another sluice .*:{os.getpid()}:"):
        acquired(store)
    assert lease.is_taken(store)
    first.release()
    assert not lease.is_taken(store)
    said: list[str] = []
    second = acquired(store, said.append)
    assert said == [], "a released one is not waited for"
    assert second.seen.state.epoch == 2
    second.release()


def test_a_lease_that_nobody_renews_is_taken_over_after_its_length(store: Any) -> None:
    lease.put(store, lease.LeaseState(epoch=4, holder="dead"), None)
    since = time.monotonic()
    said: list[str] = []
    taken = acquired(store, said.append)
    assert said == ["dead owns the lake but does not renew its lease; taking over after 3 seconds …"]
    assert time.monotonic() - since >= 3
    assert taken.seen.state.epoch == 5
    taken.release()


def test_of_many_that_want_an_abandoned_lease_one_gets_it(store: Any) -> None:
    lease.put(store, lease.LeaseState(epoch=1, holder="dead"), None)
    got: list[lease.Lease | None] = []

    def want() -> None:
        try:
            got.append(acquired(store))
        except LakeLocked:
            got.append(None)

    threads = [threading.Thread(target=want) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (winner,) = [each for each in got if each]
    winner.release()


def test_an_answer_that_was_lost_is_known_again(store: Any) -> None:
    mine = lease.LeaseState(epoch=1, holder="me")
    obstore.put(store, lease.name, mine.model_dump_json().encode())
    again = lease.put(store, mine, None)
    assert again is not None
    assert again.state == mine
    assert lease.put(store, lease.LeaseState(epoch=1, holder="other"), None) is None


def test_a_holder_that_cannot_reach_the_store_ends_with_its_jvm(unguarded: Running[Server], tmp_path: Path) -> None:
    holder = (
        "import subprocess, sys, time; from sluice.storage.lock import lake_lock\n"
        "with lake_lock('s3a://sluice/alone', lease_seconds=3) as lock:\n"
        "    lock.lease.jvm = subprocess.Popen(['sleep', '600'])\n"
        "    print(lock.lease.jvm.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    environment = os.environ | unguarded.server.settings()
    environment.pop("SLUICE_LAKE")
    process = subprocess.Popen(
        [sys.executable, "-c", holder], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    jvm = int(process.stdout.readline())
    unguarded.kill()
    with process:
        _, said = process.communicate(timeout=patience_seconds)
    unguarded.start()
    assert process.returncode == 1
    assert "The lake's lease could not be renewed" in said
    eventually(lambda: not is_running(jvm))


def is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip()[:1] not in ("", "Z")


# What is said when something is wrong.


def said_by(root: str, *, make: bool = False) -> str:
    with pytest.raises((SluiceError, UsageError)) as refused:
        bucket.require(S3.of(root), make=make)
    return str(refused.value)


def test_what_is_wrong_with_a_bucket_is_said(server: Running[Guarded], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "There is no bucket nothing-there" in said_by("s3a://nothing-there/lake")
    server.server.add_user("guest", "guests-secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "guest")
    assert "the secret is not the key's. Check AWS_SECRET_ACCESS_KEY" in said_by("s3a://sluice/lake")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guests-secret")
    assert "the key has no permission" in said_by("s3a://sluice/lake")
    assert "the key has no permission" in said_by("s3a://mine/lake", make=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    assert "it does not know the key. Check AWS_ACCESS_KEY_ID" in said_by("s3a://sluice/lake")
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert "No object store answers at https://127.0.0.1" in (said := said_by("s3a://sluice/lake"))
    assert "certificate" in said
    monkeypatch.setenv("AWS_CA_BUNDLE", "nowhere.pem")
    assert "AWS_CA_BUNDLE is nowhere.pem, and there is no such file" in said_by("s3a://sluice/lake")
    monkeypatch.setenv("AWS_CA_BUNDLE", "")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert "No object store answers at http://127.0.0.1:1" in said_by("s3a://sluice/lake")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "AWS_SECRET_ACCESS_KEY is not set" in said_by("s3a://sluice/lake")


def test_a_store_that_ignores_conditions_is_found_out(
    server: Running[Guarded], unguarded: Running[Server], tmp_path: Path
) -> None:
    scaffold.write(tmp_path)
    Log(tmp_path / ".sluice" / "log").append("orders", [Record(b"{}")])
    with unconditional(unguarded.server) as address:
        known = unguarded.server.settings() | {"AWS_CA_BUNDLE": ""}
        trusted = sluice("doctor", "--json", here=tmp_path, environment=known)
        assert trusted.returncode == 0, trusted.stdout
        assert [each["check"] for each in json.loads(trusted.stdout)][-2:] == ["lake", "conditional writes"]
        doubted = sluice("doctor", "--json", here=tmp_path, environment=known | {"AWS_ENDPOINT_URL": address})
        assert doubted.returncode == 1
        found = {each["check"]: each for each in json.loads(doubted.stdout)}
        assert found["lake"]["ok"]
        assert not found["conditional writes"]["ok"]
        assert "succeeded with the same If-None-Match" in found["conditional writes"]["found"]
        refused = sluice("run", here=tmp_path, environment=known | {"AWS_ENDPOINT_URL": address})
        assert refused.returncode == 1
        assert "SLUICE_SINGLE_WRITER=true" in refused.stderr
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (known | {"AWS_ENDPOINT_URL": address}).items():
                patch.setenv(name, value)
            with lake_lock("s3a://sluice/lake", is_single_writer=True) as lock:
                assert lock.lease is None


# A project.


class OnS3:
    """The project that `sluice init` writes, with its tables on S3, and its twin on files, from the same log."""

    def __init__(self, folder: Path, spark: "SparkSession") -> None:
        self.project = folder / "project"
        scaffold.write(self.project)
        self.log = Log(self.project / ".sluice" / "log")
        self.lake = Lake("s3a://sluice-made-by-the-run/lake")
        self.twin = Lake(str(folder / "twin"))
        self.runner = Runner(spark, self.twin, self.log, load(self.project), batch_records_max=1_000_000)
        self.is_like = False
        self.looked_at: object = None
        self.environment = {"SLUICE_LAKE": self.lake.root, "SLUICE_LEASE_SECONDS": str(lease_seconds)}

    def publish(self, topic: str, lines: list[bytes]) -> None:
        self.log.append(topic, [Record(line) for line in lines])

    def orders(self, first: int, count: int) -> None:
        """More orders; every tenth comes twice."""
        numbers = [number for each in range(first, first + count) for number in [each] * (2 if each % 10 == 0 else 1)]
        self.publish("orders", [json.dumps(order(number)).encode() for number in numbers])

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = sluice(*arguments, here=self.project, environment=self.environment)
        assert done.returncode == 0, done.stderr
        return done

    def with_spark_of(self, driver: Driver, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command with a Spark for S3, which the session of the tests is not."""
        driver.send("command", request(arguments, self.project, self.environment))
        done = answered(arguments, driver.answer())
        assert done.returncode == 0, done.stderr
        return done

    def answer(self, *arguments: str) -> Any:
        return json.loads(self.sluice(*arguments, "--json").stdout)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "sluice.cli", "run", *arguments],
            cwd=self.project,
            env=os.environ | self.environment,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def catch_up(self) -> None:
        """The twin computes what the log has by now."""
        self.runner.until_caught_up()
        self.expected = content(self.twin)

    def is_like_its_twin(self) -> bool:
        """Whether every table is there, and has the twin's rows; polled, so what is as it was is not read again."""
        commits = {name: self.lake.last_commit(name) for name in self.expected}
        looked_at = {name: commit and commit.version for name, commit in commits.items()}, self.expected
        if None not in commits.values() and looked_at != self.looked_at:
            self.is_like = content(self.lake) == self.expected
            self.looked_at = looked_at
        return self.is_like


def order(number: int) -> dict[str, Any]:
    placed_at = f"2026-03-02T{number % 24:02}:00:00Z"
    return {"order_id": f"n{number}", "placed_at": placed_at, "product_id": "tea", "quantity": 1}


@pytest.fixture(scope="module")
def on_s3(server: Running[Guarded], spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> OnS3:
    made = OnS3(tmp_path_factory.mktemp("on-s3"), spark)
    for topic in ("products", "orders"):
        made.publish(topic, (made.project / f"{topic}.jsonl").read_bytes().splitlines())
    made.catch_up()
    return made


@pytest.fixture(scope="module")
def driver(on_s3: OnS3) -> "Iterator[subprocess.Popen[str]]":
    """A run that goes on, and has caught up."""
    process = on_s3.start("--continuous")
    try:
        eventually(
            lambda: process.poll() is not None or (bucket_is_there(on_s3) and on_s3.is_like_its_twin()), pause_seconds=1
        )
        assert process.poll() is None, process.communicate()[1]
        yield process
    finally:
        with process:
            process.kill()


def bucket_is_there(on_s3: OnS3) -> bool:
    try:
        return not bucket.require(S3.of(on_s3.lake.root))
    except SluiceError:
        return False


def test_a_project_on_s3_has_the_tables_that_it_has_on_files(on_s3: OnS3, driver: object) -> None:
    assert content(on_s3.lake) == on_s3.expected
    assert on_s3.lake.tables() == on_s3.twin.tables()
    assert is_locked(on_s3.lake.root)
    assert (on_s3.project / ".sluice" / ".spark.log").exists()
    states = {each["dataset"]: each for each in on_s3.answer("status")}
    assert (states["bronze.orders"]["rows"], states["bronze.orders"]["lag"]) == (6, 0)
    assert all(each["balanced"] for each in on_s3.answer("audit"))
    assert on_s3.answer("query", "SELECT count(*)::int AS orders FROM silver.orders") == [{"orders": 4}]
    assert "no run is under way" not in {each["check"]: each["found"] for each in on_s3.answer("doctor")}["lake"]


def test_a_check_on_s3_is_asked_of_the_run_and_its_report_is_there(on_s3: OnS3, driver: object) -> None:
    found = on_s3.answer("check", "silver.orders")
    assert {each["dataset"] for each in found} == {"silver.orders"}
    index = on_s3.answer("report")["index"]
    assert index == f"{on_s3.lake.root}/_reports/index.html"
    assert "silver.orders.html" in on_s3.lake.files.read("_reports/index.html")
    assert "silver.orders.html" in on_s3.sluice("report", "--show", "index.html").stdout
    lease_file = ("report", "--show", "../_lease.json")
    assert sluice(*lease_file, here=on_s3.project, environment=on_s3.environment).returncode == 2
    assert on_s3.lake.files.below("_requests") == []


def test_a_replay_on_s3_is_promoted_and_rolled_back(on_s3: OnS3, driver: object, drivers: list[Driver]) -> None:
    declared = on_s3.project / "pipelines" / "gold.py"
    before, text = content(on_s3.lake)["gold.revenue_daily"], declared.read_text()
    declared.write_text(
        text.replace('"sum(quantity * product.price_euro)"', '"sum(2 * quantity * product.price_euro)"')
    )
    try:
        start = ("replay", "start", "gold.revenue_daily", "--because", "a test", "--json")
        replay = json.loads(on_s3.with_spark_of(drivers[0], *start).stdout)
        assert replay["state"] == "built"
        assert [each["updated"] for each in replay["compared"]] == [3]
        assert on_s3.answer("replay", "promote", replay["name"]) == {"gold.revenue_daily": 3}
        assert content(on_s3.lake)["gold.revenue_daily"] != before
        assert on_s3.answer("rollback", replay["name"], "--because", "it was a test") == {"gold.revenue_daily": 3}
        on_s3.sluice("replay", "drop", replay["name"])
        assert on_s3.answer("replay", "list") == []
    finally:
        declared.write_text(text)
    # A run under way reads the declarations again when it is asked for something.
    on_s3.answer("check", "gold.revenue_daily")
    assert content(on_s3.lake)["gold.revenue_daily"] == before


def test_an_erasure_leaves_nothing_in_the_bucket_and_a_second_lake_of_the_log_follows(
    on_s3: OnS3, driver: object
) -> None:
    on_s3.publish("orders", [json.dumps(order(0) | {"order_id": "subject-4711"}).encode()])
    on_s3.catch_up()
    eventually(on_s3.is_like_its_twin, pause_seconds=1)
    verify = ("erase", "--verify", "subject-4711", "--json")
    found = sluice(*verify, here=on_s3.project, environment=on_s3.environment)
    assert found.returncode == 1
    assert any(each["file"].startswith(on_s3.lake.root) for each in json.loads(found.stdout))
    done = on_s3.answer("erase", "orders", "--where", "record ->> 'order_id' = 'subject-4711'", "--reason", "a test")
    assert done == {"topic": "orders", "records": 1, "unknown_fields": [], "in_the_way": []}
    assert on_s3.answer("erase", "--verify", "subject-4711") == []
    on_s3.catch_up()
    assert content(on_s3.lake) == on_s3.expected
    assert search(on_s3.twin, on_s3.log, "subject-4711") == []


def test_a_store_that_is_killed_under_a_run_and_comes_back_has_lost_nothing(
    on_s3: OnS3, driver: "subprocess.Popen[str]", server: Running[Guarded]
) -> None:
    landed = data_files(on_s3, server)
    on_s3.orders(0, 30)
    eventually(lambda: data_files(on_s3, server) > landed)
    server.kill()
    server.start()
    on_s3.catch_up()
    eventually(lambda: driver.poll() is not None or on_s3.is_like_its_twin(), pause_seconds=3)
    assert driver.poll() is None, driver.communicate()[1]
    assert all(each["balanced"] for each in on_s3.answer("audit"))


def test_a_driver_that_slept_through_its_lease_ends_and_doubles_nothing(
    on_s3: OnS3, driver: "subprocess.Popen[str]", drivers: list[Driver], server: Running[Guarded]
) -> None:
    """The zombie: it is stopped with a landing begun, and wakes up when another has landed the same records."""
    landed = data_files(on_s3, server)
    on_s3.orders(100, 30)
    eventually(lambda: data_files(on_s3, server) > landed)
    processes = [driver.pid, jvm_of(driver.pid)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        done = on_s3.with_spark_of(drivers[0], "run")
        assert f":{driver.pid}:" in done.stderr, "it waited for the lease"
    finally:
        for pid in reversed(processes):
            os.kill(pid, signal.SIGCONT)
    _, said = driver.communicate(timeout=patience_seconds)
    assert driver.returncode == 1
    assert "This run ended at once" in said
    eventually(lambda: not is_running(processes[1]))
    on_s3.catch_up()
    assert content(on_s3.lake) == on_s3.expected
    assert all(each["balanced"] for each in on_s3.answer("audit"))


def test_replies_that_are_lost_and_writes_that_come_twice_change_nothing(
    unguarded: Running[Server], spark: "SparkSession", tmp_path: Path
) -> None:
    """The store has done what the driver never hears of; to try again must not double it, nor take it for another's."""
    on_s3 = OnS3(tmp_path, spark)
    on_s3.environment |= unguarded.server.settings() | {"SLUICE_LAKE": on_s3.lake.root, "AWS_CA_BUNDLE": ""}
    network = Unreliable(unguarded.server, seed=7)
    with proxied(network) as address, pytest.MonkeyPatch.context() as patch:
        for name, value in on_s3.environment.items():
            patch.setenv(name, value)
        struck = on_s3.environment | {"AWS_ENDPOINT_URL": address}
        for number in range(2):
            on_s3.orders(10 * number, 10)
            done = sluice_process("run", here=on_s3.project, environment=struck)
            # It may ask to be run again, and never takes a lost reply for a store that ignores conditions.
            assert "does not support conditional writes" not in done.stderr
        network.is_calm = True
        # By the same address, so that it takes over the JVM of the run before.
        done = sluice_process("run", here=on_s3.project, environment=struck)
        assert done.returncode == 0, done.stderr
        on_s3.catch_up()
        assert content(on_s3.lake) == on_s3.expected
        assert all(each["balanced"] for each in on_s3.answer("audit"))
    assert {"commit, lost", "commit, twice"} <= set(network.struck), network.struck


def data_files(on_s3: OnS3, server: Running[Guarded]) -> int:
    """How many files of data bronze.orders has, committed or not: they lie in the server's folder."""
    bucket_name = on_s3.lake.root.split("/")[2]
    return len(list((server.server.data / bucket_name / "lake" / "bronze" / "orders").glob("*.parquet")))


def jvm_of(pid: int) -> int:
    """The child that is Java."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    # A name may have spaces.
    found = [line.split(maxsplit=2) for line in listed.splitlines()]
    return next(int(child) for child, parent, name in found if int(parent) == pid and name == "java")
