"""What is broken is named in a sentence, without a traceback, and does not break what is beside it."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sluice import scaffold
from sluice.errors import UsageError
from sluice.log import Log, Record
from sluice.operate.query import query
from sluice.operate.status import status
from sluice.storage.delta import Lake
from tests.commands import sluice, sluice_process
from tests.kit import Lakehouse
from tests.shop import sales
from tests.test_receivers import listening, records_of, token
from tests.waiting import eventually


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three tables, one of which has an unreadable log, and folders that are none."""
    for name in ("sound", "broken", "empty"):
        write_deltalake(str(tmp_path / "silver" / name), pa.table({"id": ["a"]}))
    for commit in (tmp_path / "silver" / "broken" / "_delta_log").glob("*.json"):
        commit.write_text("{")
    for commit in (tmp_path / "silver" / "empty" / "_delta_log").glob("*.json"):
        commit.unlink()
    for stray in ("notes", "my folder", 'with"quote'):
        (tmp_path / "silver" / stray).mkdir()
        (tmp_path / "silver" / stray / "readme.txt").write_text("no table")
    (tmp_path / "gold").mkdir()
    (tmp_path / "gold" / "file").write_text("no folder")
    return Lake(str(tmp_path))


def test_a_broken_table_is_named_and_the_others_are_read(lake: Lake) -> None:
    assert query(lake, "SELECT * FROM silver.sound").rows == [("a",)]
    with pytest.raises(UsageError, match=r"silver\.broken cannot be read"):
        query(lake, "SELECT * FROM silver.broken")
    assert lake.tables() == ["silver.broken", "silver.sound"]


def test_a_broken_table_does_not_hide_the_state_of_others(lakehouse: Lakehouse) -> None:
    lakehouse.declare(sales)
    for commit in Path(lakehouse.lake.root, "silver", "sales", "_delta_log").glob("*.json"):
        commit.unlink()
    folder = Path(lakehouse.lake.root, "silver", "sales", "_delta_log")
    folder.mkdir(parents=True)
    (folder / f"{0:020}.json").write_text("{")
    held = {state.dataset: state.held or "" for state in status(lakehouse.lake, lakehouse.log, lakehouse.catalogue)}
    assert held["silver.sales"].startswith("cannot be read: ")
    lakehouse.publish("sales", {"id": "a"})
    events = {event.name: event for event in lakehouse.runner().until_caught_up()}
    assert events["bronze.sales"].rows.inserted == 1
    assert events["silver.sales"].blocked


@pytest.fixture
def torn(tmp_path: Path) -> tuple[Log, Path, bytes]:
    """A topic of one partition whose last segment ends in the middle of a line, and what it held."""
    log = Log(tmp_path / "log", partitions=1)
    log.append("t", [Record(b"a"), Record(b"b")])
    path = log.segments("t")[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    return log, path, content


@pytest.mark.process
def test_the_http_receiver_is_unavailable_while_its_last_segment_is_torn(
    tmp_path: Path, torn: tuple[Log, Path, bytes]
) -> None:
    log, path, content = torn
    with listening(tmp_path, "http", "--port", "0") as receiver:
        address = receiver.hears(r"(http://127\.0\.0\.1:\d+)")
        request = urllib.request.Request(f"{address}/topics/t", b"c", {"Authorization": f"Bearer {token}"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        assert refused.value.code == 503
        # The fault is for the operator of the receiver, not for the client.
        assert "segment" not in refused.value.read().decode()
        receiver.hears(r"(ends in the middle of a line)")
        path.write_bytes(content)
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 201
    assert [record.value for record in records_of(log, "t")] == [b"a", b"b", b"c"]


@pytest.mark.process
def test_the_statsd_receiver_waits_while_its_last_segment_is_torn(
    tmp_path: Path, torn: tuple[Log, Path, bytes]
) -> None:
    log, path, content = torn
    with listening(tmp_path, "statsd", "--port", "0", "--topic", "t", "--flush-seconds", "0.2") as receiver:
        port = int(receiver.hears(r"127\.0\.0\.1:(\d+)"))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"visits:1|c", ("127.0.0.1", port))
        receiver.hears(r"(ends in the middle of a line)")
        path.write_bytes(content)
        eventually(lambda: len(records_of(log, "t")) == 3, "the metric")
        assert receiver.ends(signal.SIGTERM) == 0


@pytest.mark.process
@pytest.mark.usefixtures("spark_for_commands")
def test_a_run_whose_jvm_is_killed_says_so_and_the_next_one_ends_it(tmp_path: Path) -> None:
    scaffold.write(tmp_path)
    log = Log(tmp_path / ".sluice" / "log")
    for topic in ("products", "orders"):
        log.append(topic, [Record(line) for line in (tmp_path / f"{topic}.jsonl").read_bytes().splitlines()])
    root = Path(__file__).resolve().parents[1]
    struck = [sys.executable, "-m", "tests.faults.points", "kill the JVM", "before commit rows", "3", "--"]
    done = subprocess.run([*struck, "run", "--project", str(tmp_path)], cwd=root, capture_output=True, check=False)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "Traceback" not in said
    assert "its JVM ended" in " ".join(said.split())
    again = sluice("run", here=tmp_path)
    assert again.returncode == 0, again.stderr
    found = query(Lake(str(tmp_path / ".sluice" / "lake")), "SELECT sum(orders) FROM gold.revenue_daily")
    assert found.rows[0][0] == 4


@pytest.mark.process
def test_a_jvm_that_does_not_start_says_why(tmp_path: Path) -> None:
    scaffold.write(tmp_path)
    line = (tmp_path / "products.jsonl").read_bytes().splitlines()[0]
    Log(tmp_path / ".sluice" / "log").append("products", [Record(line)])
    # One of the session's own options names another one.
    environment = {"SLUICE_JAVA_OPTIONS": "-XX:+UseSerialGC"}
    done = sluice_process("run", here=tmp_path, environment=environment)
    assert done.returncode == 1
    said = r"Spark did not start: .*Multiple garbage collectors selected\. Check SLUICE_DRIVER_MEMORY and"
    assert re.search(said, " ".join(done.stderr.split())), done.stderr
