"""Rounds of faults: a small lakehouse lives on through them, and after each it has every acknowledged record once.

In each round something is written to the log while a fault strikes the writer or a file, and then tables are computed
while another strikes the run. The seed of a life says which: it replays them.
"""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from unittest import mock

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sluice import gold
from sluice.engine import blocked, refresh
from sluice.engine import runner as run
from sluice.errors import LogError, SluiceError
from sluice.log import Log, Record, StoredRecord
from sluice.storage.delta import Lake
from tests.faults import points
from tests.forked import imported, process_of
from tests.kit import Lakehouse, at, rows_of, text
from tests.shop import priced, prices, sales

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pyspark.sql import SparkSession

sold = gold.aggregate("sold", source=priced, group_by=["product"], measures={"pieces": "sum(pieces)"})
token = "a-token-of-the-faults-0123456789abcdef"
hostile = [
    b"{",
    b"\xff\xfe",
    b"",
    b'{"id":null}',
    b'{"id":"' + b"x" * 5000 + b'"}',
    b"[" * 3000,
    b'{"id":"a"}{"id":"b"}',
]
commits = ("replace_rows", "append_rows", "merge_rows", "move_cursor")


class Crash(BaseException):
    """The end of a run in the middle, as a SIGKILL is: nothing of the engine catches it."""


@dataclass
class Life:
    """A lakehouse under faults: what was acknowledged, and what was tried how often."""

    spark: "SparkSession"
    folder: Path
    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    acknowledged: set[str] = field(default_factory=set)
    sent: int = 0
    # How often a disk had no room for what was to be written.
    refused: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        # What is not the lakehouse's stays off its disk, which may be full.
        self.outside = self.folder.with_name(f"{self.folder.name}-outside")
        self.outside.mkdir()
        self.restarted()

    def restarted(self) -> Lakehouse:
        """The lakehouse, as a process that starts now finds it."""
        self.lakehouse = Lakehouse(self.spark, self.folder, partitions=2).declare(sales, prices, priced, sold)
        return self.lakehouse

    @property
    def log(self) -> Log:
        return self.lakehouse.log  # type: ignore[no-any-return]

    def round(self) -> str:
        """One round of any faults."""
        return self.round_of(self.chance.choice(list(writings)), self.chance.choice(list(runnings)))

    def round_of(self, writing: str, running: str) -> str:
        """One round; returns what was tried in it. AssertionError where a promise is broken."""
        writings[writing](self)
        runnings[running](self)
        for tried in (writing, running):
            self.tried[tried] += 1
        self.require_all_is_well()
        return f"{writing}; {running}"

    def some_sales(self, count: int | None = None) -> list[bytes]:
        """New sales, each of a day and a product, as JSON."""
        found = []
        for _ in range(count or self.chance.randint(1, 6)):
            self.sent += 1
            sale = {"id": f"s{self.sent}", "product": self.chance.choice("abc"), "pieces": self.chance.randint(1, 9)}
            found.append(json.dumps(sale | {"sold_at": text(self.chance.uniform(0, 48))}).encode())
        return found

    def acknowledge(self, values: list[bytes]) -> None:
        self.acknowledged |= {json.loads(value)["id"] for value in values}

    def require_all_is_well(self) -> None:
        lakehouse = self.restarted()
        lakehouse.run()
        assert all(each.balanced for each in lakehouse.audits()), lakehouse.audits()
        assert all(each.balanced for each in lakehouse.laws()), lakehouse.laws()
        rows = Counter(row["id"] for row in lakehouse.table("silver.sales").select("id").collect())
        assert set(rows.values()) <= {1}
        missing = self.acknowledged - set(rows)
        assert not missing, f"acknowledged and missing: {sorted(missing)}"
        assert rows_of(lakehouse.table("gold.sold"), "product", "pieces") == self.expected()

    def expected(self) -> list[tuple[str, int]]:
        """The pieces that were sold of each product, by the log alone: the first record of each key counts."""
        first: dict[str, dict[str, Any]] = {}
        for record in sorted(self.stored("sales"), key=lambda each: (each.timestamp, each.partition, each.offset)):
            sale = usable(record.value)
            if sale is not None:
                first.setdefault(sale["id"], sale)
        totals: Counter[str] = Counter()
        for sale in first.values():
            totals[sale["product"]] += sale["pieces"]
        return sorted(totals.items())

    def stored(self, topic: str) -> list[StoredRecord]:
        if not self.log.exists(topic):
            return []
        return [each for partition in self.log.partitions(topic) for each in self.log.read(topic, partition)]


def usable(value: bytes | None) -> dict[str, Any] | None:
    """A sale that silver accepts; what is hostile has no product."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "product" in found else None


# Faults of those who write to the log.


def nothing(life: Life) -> None:
    """Sales that nothing happens to."""
    append(life, life.some_sales())


def append(life: Life, values: list[bytes], hours: float = 50) -> None:
    life.log.append("sales", [Record(value, timestamp=at(hours)) for value in values])
    life.acknowledge(values)


def clock_jumps(life: Life) -> None:
    """The clock of a writer goes forward by days and back."""
    for hours in (900, 60, 700):
        append(life, life.some_sales(2), hours)


def hostile_values(life: Life) -> None:
    life.log.append("sales", [Record(value, timestamp=at(50)) for value in [*life.chance.sample(hostile, 3), None]])
    price = {"product": life.chance.choice("abc"), "changed_at": text(life.chance.uniform(0, 40)), "price": 3}
    life.log.append("prices", [Record(json.dumps(price).encode(), timestamp=at(50))])


def writer(life: Life, kind: str, limit: int | None = None, strikes_at: int | None = None) -> bool:
    """A command that appends, and is struck at a point of the log; whether it was done."""
    values = life.some_sales()
    file = life.outside / "lines.jsonl"
    file.write_bytes(b"\n".join(values) + b"\n")
    point, count = life.chance.choice(points.of_log), strikes_at or life.chance.randint(1, 3)
    with struck(life, kind, point, count, ["log", "append", "sales", str(file)], limit) as (process, said):
        found = said.read()
        process.join()
    assert "Traceback" not in found, found
    if process.exitcode == 0:
        life.acknowledge(values)
    return process.exitcode == 0


def writer_on_full_disk(life: Life) -> None:
    """A disk that has little room, or none: what is acknowledged is there, and half of a segment is no segment."""
    with full_disk(life):
        life.refused += not writer(life, "eio", strikes_at=1_000_000)


def receiver(life: Life, kind: str) -> None:
    """The HTTP receiver is struck while it is sent sales; a client sends again what was not acknowledged."""
    point, count = life.chance.choice(points.of_log), life.chance.randint(1, 6)
    with listening(life, kind, point, count) as address:
        for value in life.some_sales(4):
            if posted(address, value):
                life.acknowledge([value])


def receiver_stopped(life: Life) -> None:
    """The receiver is stopped for a while, and goes on."""
    with listening(life, "kill", "before append", 1_000_000) as address:
        pid = int(address.rpartition("#")[2])
        os.kill(pid, signal.SIGSTOP)
        assert not posted(address, b"{}", seconds=0.3)
        os.kill(pid, signal.SIGCONT)
        for value in life.some_sales(2):
            assert posted(address, value)
            life.acknowledge([value])


@contextmanager
def listening(life: Life, kind: str, point: str, count: int) -> Iterator[str]:
    """The receiver as a process of its own; its address, with its pid behind a #."""
    with struck(life, kind, point, count, ["listen", "http", "--port", "0", "--create"]) as (process, said):
        address = next(word for line in said for word in line.split() if word.startswith("http://"))
        yield f"{address.rstrip('.,')}#{process.pid}"


def posted(address: str, value: bytes, seconds: float = 10) -> bool:
    """Whether the receiver acknowledged a record."""
    root = address.rpartition("#")[0]
    request = urllib.request.Request(f"{root}/topics/sales", value, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return bool(answer.status == 201)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def struck(  # noqa: PLR0917 - what strikes, and what is struck
    life: Life, kind: str, point: str, count: int, arguments: list[str], limit: int | None = None
) -> Iterator[tuple[BaseProcess, TextIO]]:
    """A command as a process of its own that a fault strikes, and what it says; it is ended at the end."""
    reader, writer = imported.Pipe(duplex=False)
    process = process_of(run_struck, (environment(life), writer, limit, kind, point, count, arguments))
    process.start()
    writer.close()
    with open(reader.fileno(), encoding="utf-8", closefd=False) as said:
        try:
            yield process, said
        finally:
            process.terminate()
            process.join(10)
            process.kill()
            process.join()
    reader.close()


def run_struck(environment: dict[str, str], said: "Connection", limit: int | None, *fault_and_arguments: Any) -> None:
    """What the process does."""
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(said.fileno(), sys.stderr.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    points.run(*fault_and_arguments)


def environment(life: Life) -> dict[str, str]:
    own = {"SLUICE_LOG": str(life.log.root), "SLUICE_HTTP_TOKEN": token}
    return {name: text for name, text in os.environ.items() if not name.startswith("SLUICE_")} | own


def damaged_file(life: Life, damage: Callable[[Life, Path], None]) -> None:
    """A segment is damaged before it lands: nothing of it lands, and all of it when it was restored."""
    for _ in range(3):
        append(life, life.some_sales(4))
    path = life.chance.choice(life.log.segments("sales")).path
    content = path.read_bytes()
    before = accepted(life)
    damage(life, path)
    try:
        life.restarted().run()
    except LogError:
        assert accepted(life) >= before
    path.write_bytes(content)


def accepted(life: Life) -> int:
    """How many sales silver has."""
    return life.lakehouse.table("silver.sales").count() if "silver.sales" in life.lakehouse.lake.tables() else 0


def flip(life: Life, path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = life.chance.randrange(len(content))
    content[place] ^= 1 << life.chance.randrange(8)
    path.write_bytes(content)


def cut(life: Life, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: life.chance.randrange(len(content))])


def delete(_life: Life, path: Path) -> None:
    path.unlink()


@contextmanager
def small_disk(outer: Path) -> Iterator[Path]:
    """A folder on a separate disk, which can be filled; a plain folder where no disk can be mounted."""
    folder = outer / "life"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        yield folder
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def full_disk(life: Life) -> Iterator[None]:
    """Leaves at most some kilobytes free on the lakehouse's disk for a while, where it has a disk of its own."""
    if not life.folder.is_mount():
        yield
        return
    ballast = life.folder / "ballast"
    free = shutil.disk_usage(life.folder).free
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(4096, free - 4096 * life.chance.choice([0, 1, 2, 4, 8, 16, 32, 64])))
    try:
        yield
    finally:
        ballast.unlink()


writings: dict[str, Callable[[Life], object]] = {
    "nothing strikes the writer": nothing,
    "the writer's clock jumps": clock_jumps,
    "hostile values": hostile_values,
    "SIGKILL of a writer": lambda life: writer(life, "kill"),
    "EIO in a writer": lambda life: writer(life, "eio"),
    "a full disk in a writer": lambda life: writer(life, "no space"),
    "a short write in a writer": lambda life: writer(life, "kill", limit=life.chance.randint(1, 400)),
    "a disk that is full while a writer appends": writer_on_full_disk,
    "SIGKILL of the receiver": lambda life: receiver(life, "kill"),
    "EIO in the receiver": lambda life: receiver(life, "eio"),
    "SIGSTOP of the receiver": receiver_stopped,
    "a flipped bit in a segment": lambda life: damaged_file(life, flip),
    "a segment cut short": lambda life: damaged_file(life, cut),
    "a deleted segment": lambda life: damaged_file(life, delete),
}


# Faults of a run.


def left_alone(life: Life) -> None:
    life.restarted().run()


def crashed(life: Life, moment: str) -> None:
    """The run ends before or after one of its commits, and so does the one that follows it."""
    for _ in range(2):
        with crash_at(moment, life.chance.randint(1, 6)):
            try:
                life.restarted().run()
            except Crash:
                continue


@contextmanager
def crash_at(moment: str, count: int) -> Iterator[None]:
    """Ends a run at its `count`th commit, as a kill does: what is written then is there, and nothing after it."""
    left = [count]

    def crashing(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and moment == "before":
                raise Crash
            done = original(*arguments, **options)
            if left[0] == 0:
                raise Crash
            return done

        return called

    patches = [mock.patch.object(Lake, name, crashing(getattr(Lake, name))) for name in commits]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def run_on_full_disk(life: Life) -> None:
    """A run that finds no room blocks what it cannot write, and does it when there is room."""
    with full_disk(life):
        try:
            life.restarted().run()
        except (SluiceError, OSError, PySparkException, Py4JError, DeltaError):
            life.refused += 1


def clock_of_run_jumps(life: Life) -> None:
    """The clock by which a run judges what is late, revised or blocked goes forward by a year, and back by two."""
    for days in (400, -400):
        with clock_shifted(timedelta(days=days)):
            life.restarted().run()


@contextmanager
def clock_shifted(by: timedelta) -> Iterator[None]:
    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + by

    with ExitStack() as stack:
        for module in (blocked, refresh, run):
            stack.enter_context(mock.patch.object(module, "datetime", Shifted))
        yield


def rebuilt(life: Life) -> None:
    """A rebuild changes nothing."""
    life.restarted().run()
    done = life.lakehouse.run(rebuild=True)
    assert all(event.rows.total == 0 for event in done.values()), done


runnings: dict[str, Callable[[Life], None]] = {
    "nothing strikes the run": left_alone,
    "the run ends before a commit": lambda life: crashed(life, "before"),
    "the run ends after a commit": lambda life: crashed(life, "after"),
    "a disk that is full while tables are written": run_on_full_disk,
    "the run's clock jumps": clock_of_run_jumps,
    "a rebuild": rebuilt,
}


def lived(life: Life, rounds: int | None, until: float | None = None) -> Iterator[str]:
    """Rounds, so many or until a time; each says what was tried in it."""
    number = 0
    while number < rounds if rounds is not None else time.monotonic() < (until or 0):
        number += 1
        yield life.round()
