"""The JVM of a command waits for the next one, which gives what it would give with a JVM of its own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest

from sluice import Project
from sluice.errors import SluiceError
from sluice.runtime import jvm
from sluice.runtime.session import scratch_prefix
from sluice.runtime.settings import read_settings
from sluice.storage.lock import is_locked
from tests.commands import sluice_process
from tests.forked import sluice_forked
from tests.waiting import eventually

pytestmark = pytest.mark.process

keep = {"SLUICE_KEEP_SPARK_MINUTES": "20"}
names_py = """
def label(name: str) -> str:
    return "{prefix} " + name
"""
products_py = """
from sluice import bronze, silver

products = silver.events(
    "products", source=bronze.topic("products"), schema="product_id string, name string", keys=["product_id"]
)
"""
labels_py = """
from pyspark.sql import functions as F
from names import label
from pipelines import products
from sluice import gold


def shape(rows):
    return rows.select("product_id", F.udf(label)("name").alias("label"))


labels = gold.view("labels", inputs={"rows": products.products}, keys=["product_id"], shape=shape)
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project that ran once, and whose JVM waits; its name is no ASCII, and no locale says how it is written."""
    folder = tmp_path_factory.mktemp("kept") / "größe"
    (folder / "pipelines").mkdir(parents=True)
    (folder / "pipelines" / "__init__.py").touch()
    (folder / "pipelines" / "products.py").write_text(products_py)
    (folder / "pipelines" / "labels.py").write_text(labels_py)
    (folder / "names.py").write_text(names_py.format(prefix="the"))
    with Project(folder) as project:
        project.append("products", [{"product_id": name, "name": name} for name in ("cup", "tea")])
    prepared = sluice_process("prepare", here=folder)
    assert prepared.returncode == 0, prepared.stderr
    run(folder)
    yield folder
    end_waiting(folder)


def command(*arguments: str, here: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    with as_typed(here):
        return sluice_process(*arguments, here=here, environment=keep | environment)


def refused(*arguments: str, here: Path) -> str:
    """What a command says that ends before it needs a JVM."""
    with as_typed(here):
        done = sluice_forked(*arguments, here=here, environment=keep)
    assert done.returncode == 1
    return done.stderr


@contextmanager
def as_typed(folder: Path) -> Iterator[None]:
    """The folder and the variables of every command; the tests have another variable each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LC_ALL", "C")
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        yield


def run(folder: Path, **environment: str) -> str:
    done = command("run", here=folder, **environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def read(folder: Path) -> None:
    explained = command("explain", "silver.products", "product_id=tea", here=folder)
    assert explained.returncode == 0, explained.stderr


def labels(folder: Path) -> list[str]:
    with Project(folder) as project:
        return sorted(row[0] for row in project.query("SELECT label FROM gold.labels").rows)


@contextmanager
def waiting(folder: Path) -> Iterator[jvm.Jvm | None]:
    """The JVM that waits for a command; it goes on to wait."""
    with as_typed(folder), jvm.place(read_settings(folder, {"keep_spark_minutes": 20})) as place:
        assert place is not None
        yield place.jvm


def pid_of_waiting(folder: Path) -> int | None:
    with waiting(folder) as found:
        return found.process.pid if found else None


# The JVMs that a command started which only reads.
of_readers: set[int] = set()


def waits(folder: Path, starts: Callable[[Path], object] | None = None) -> int:
    """The process of a JVM that waits, and that such a command started; where none does, it is started."""
    pid = pid_of_waiting(folder)
    if pid is None or (starts and (starts is read) != (pid in of_readers)):
        end_waiting(folder)
        starts = starts or run
        starts(folder)
        pid = pid_of_waiting(folder)
        assert pid is not None
        if starts is read:
            of_readers.add(pid)
    return pid


def end_waiting(folder: Path) -> None:
    with as_typed(folder), jvm.place(read_settings(folder, {"keep_spark_minutes": 20})) as place:
        assert place is not None
        found = place.take()
        if found:
            found.end()


@contextmanager
def continuous(folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A run that goes on until it is killed, at the latest at the end."""
    with as_typed(folder):
        arguments = [sys.executable, "-m", "sluice.cli", "run", "--continuous"]
        process = subprocess.Popen(arguments, cwd=folder, env=os.environ | keep, stderr=subprocess.PIPE)
    with process:
        try:
            yield process
        finally:
            process.kill()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_next_command_takes_the_jvm_of_the_last(shop: Path) -> None:
    with waiting(shop) as before:
        assert before is not None
        pid, sessions = before.process.pid, before.sessions
    assert not is_locked(str(shop / ".sluice" / "lake"))
    assert "Nothing new" in run(shop)
    read(shop)
    with waiting(shop) as after:
        assert after is not None
        assert (after.process.pid, after.sessions) == (pid, sessions + 2)


def test_a_jvm_reads_its_classes_from_the_archive(shop: Path) -> None:
    process = Path(f"/proc/{waits(shop)}")
    options = process.joinpath("cmdline").read_text().split("\0")
    (archive,) = (each.partition("=")[2] for each in options if each.startswith("-XX:SharedArchiveFile="))
    assert archive in process.joinpath("maps").read_text(), "the JVM refused it"


def test_of_a_jvm_whose_time_is_over_nothing_is_left_and_of_one_that_reads_its_folder(shop: Path) -> None:
    waits(shop, run)
    with as_typed(shop), jvm.place(read_settings(shop, {"keep_spark_minutes": 20})) as place:
        assert place is not None
        assert place.jvm is not None
        found, sockets = place.jvm, place.path
        gone = found.scratch.with_name(f"{found.scratch.name}-gone")
        gone.mkdir()
        (gone / "pid").write_text("999999999")
        # Its command reads, and does not lock the lake; the run starts a JVM of its own.
        run(shop, SLUICE_KEEP_SPARK_MINUTES="0.05")
        assert not gone.exists()
        eventually(lambda: not [*sockets.parent.glob(f"{sockets.name}*")], "the end of its time")
        assert (found.scratch / "pid").read_text() == str(found.process.pid)
        assert scratches(shop) == [found.scratch]


def scratches(folder: Path) -> list[Path]:
    """The folders of the JVMs of runs on this lake."""
    return [*Path(tempfile.gettempdir()).glob(f"{scratch_prefix(read_settings(folder, {}))}*")]


def test_another_environment_has_another_jvm_and_one_waits(shop: Path) -> None:
    before = waits(shop)
    run(shop, SALT="1g")
    assert not is_running(before)
    # It is not the one that commands without the variable want.
    assert pid_of_waiting(shop) is None
    assert is_running(waits(shop, read))


@pytest.mark.parametrize("variable", ["SLUICE_DRIVER_MEMORY", "AWS_ACCESS_KEY_ID"])
def test_other_settings_and_variables_have_another_jvm(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = jvm.fingerprint(read_settings(tmp_path))
    monkeypatch.setenv(variable, "1g")
    assert jvm.fingerprint(read_settings(tmp_path)) != before


def test_a_newer_installation_has_another_jvm(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_settings(shop, {})
    before = jvm.fingerprint(settings)
    assert jvm.fingerprint(settings) == before
    monkeypatch.setattr(pyspark, "__version__", "9.9.9")
    assert jvm.fingerprint(settings) != before


def test_who_may_only_read_a_lake_keeps_no_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: str) -> int:
        raise SluiceError(f"The lake {root} cannot be written: Permission denied.")

    monkeypatch.setattr(jvm, "lock_file", refuse)
    settings = read_settings(tmp_path)
    Path(settings.lake_root).mkdir(parents=True)
    with jvm.place(settings) as place:
        assert place is not None
        assert place.lock_file is None
    with pytest.raises(SluiceError), jvm.place(settings, writes=True):
        pass


def test_reading_a_lake_that_is_not_there_makes_none(tmp_path: Path) -> None:
    settings = read_settings(tmp_path)
    with jvm.place(settings):
        assert not Path(settings.lake_root).exists()


def test_changed_code_is_run_as_it_is_now(shop: Path) -> None:
    before = waits(shop)
    assert labels(shop)[0].startswith("the ")
    (shop / "names.py").write_text(names_py.format(prefix="some"))
    run(shop)
    assert labels(shop)[0].startswith("some ")
    assert pid_of_waiting(shop) == before


@pytest.mark.parametrize("starts", [read, run])
def test_a_command_that_is_killed_ends_the_jvm_that_it_took_and_the_lock_lasts_until_then(
    shop: Path, starts: Callable[[Path], object]
) -> None:
    pid = waits(shop, starts)
    lake = str(shop / ".sluice" / "lake")
    with continuous(shop) as process:
        eventually(lambda: is_locked(lake), "the lock")
        # The JVM has it too, and nobody else gets either.
        assert f"Another sluice (process {process.pid}) is writing the lake" in refused("run", here=shop)
        assert is_running(pid)
        os.kill(pid, signal.SIGSTOP)
        process.kill()
    try:
        assert is_locked(lake)
        refused("run", here=shop)
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not is_running(pid), "the end of the JVM")
    eventually(lambda: not is_locked(lake), "the end of the lock")
    assert pid_of_waiting(shop) is None
    assert waits(shop, run) != pid


def test_a_lake_that_was_removed_is_made_again(shop: Path) -> None:
    before, known = waits(shop), labels(shop)
    shutil.rmtree(shop / ".sluice" / "lake")
    # Its lock is of a file that is gone.
    run(shop)
    assert labels(shop) == known
    assert not is_running(before)
    assert pid_of_waiting(shop) not in (None, before)
    # The tables alone: the lock is the same, and the tables are others at the same paths.
    again = pid_of_waiting(shop)
    for layer in ("bronze", "silver", "gold"):
        shutil.rmtree(shop / ".sluice" / "lake" / layer)
    run(shop)
    assert labels(shop) == known
    assert pid_of_waiting(shop) == again


def test_the_jvm_ends_with_its_keeper(shop: Path) -> None:
    waits(shop)
    with as_typed(shop), jvm.place(read_settings(shop, {"keep_spark_minutes": 20})) as place:
        assert place is not None
        assert place.jvm is not None
        pid, socket = place.jvm.process.pid, str(place.path)
    for process in Path("/proc").glob("[0-9]*"):
        # Others end meanwhile.
        with suppress(OSError):
            if f"keeper.py\0{socket}\0" in (process / "cmdline").read_text(errors="replace"):
                os.kill(int(process.name), signal.SIGKILL)
    eventually(lambda: not is_running(pid), "the end of the JVM")
    assert pid_of_waiting(shop) is None
    assert waits(shop, run) != pid


def test_a_jvm_that_ended_while_it_waited_is_not_used(shop: Path) -> None:
    pid = waits(shop)
    os.kill(pid, signal.SIGKILL)
    run(shop)
    assert pid_of_waiting(shop) not in (None, pid)


def test_what_was_started_with_too_many_sessions_ends(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = waits(shop)
    monkeypatch.setattr(jvm, "sessions_max", 1)
    assert pid_of_waiting(shop) == pid
    assert not is_running(pid)


def test_nothing_waits_in_a_folder_that_others_can_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"sluice-{os.getuid()}"
    assert jvm.folder_for_sockets() == folder
    folder.chmod(0o750)
    assert jvm.folder_for_sockets() is None
    folder.rmdir()
    (tmp_path / "other").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "other")
    assert jvm.folder_for_sockets() is None
    with jvm.place(read_settings(tmp_path, {"keep_spark_minutes": 20})) as place:
        assert place is None
