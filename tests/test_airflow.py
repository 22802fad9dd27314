"""Airflow runs the lakehouse: a real one, on loopback, with the project that `sluice init` writes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from infra.servers import Postgres, free_port, running
from sluice import scaffold
from sluice.log import Log, Record
from sluice.operate.audit import audit
from sluice.operate.query import query
from sluice.storage.delta import Lake
from tests import commands
from tests.damage import computed_wrong
from tests.waiting import eventually, patience_seconds

pytestmark = [pytest.mark.servers, pytest.mark.spark]
repository = Path(__file__).parents[1]
python_of_airflow = repository / ".venv-airflow" / "bin" / "python"
sluice = Path(sys.executable).with_name("sluice")
chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
screenshots = os.environ.get("KEEP_SCREENSHOTS")
dags = {
    "run_continuously",
    "compute_silver",
    "compute_gold",
    "replay",
    "rollback",
    "quality",
    "maintenance",
    "release_quarantine",
}


class Airflow:
    """A running Airflow, by its REST interface, and the project that it runs."""

    def __init__(self, folder: Path, patience_seconds: int = 600, **environment: str) -> None:
        self.environment = environment
        self.patience_seconds = patience_seconds
        self.project = folder / "project"
        self.home = folder / "airflow"
        self.told = folder / "told.txt"
        self.port = free_port()
        self.pid = 0
        self.token = ""
        scaffold.write(self.project)
        self.log = Log(self.project / ".sluice" / "log")
        self.lake = Lake(str(self.project / ".sluice" / "lake"))
        for topic in ("products", "orders"):
            lines = (self.project / f"{topic}.jsonl").read_bytes().splitlines()
            self.log.append(topic, [Record(line) for line in lines])

    def start(self) -> "subprocess.Popen[bytes]":
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            **{name: value for name, value in os.environ.items() if name in commands.kept_variables},
            "LAKEHOUSE_PROJECT": str(self.project),
            # A changed declaration waits for its replay.
            "SLUICE_CHANGED_DECLARATIONS": "hold",
            "LAKEHOUSE_SLUICE": str(sluice),
            "LAKEHOUSE_CONSOLE_URL": "http://127.0.0.1:8321/",
            "PYTHONPATH": f"{repository / 'dags'}:{repository / 'tests' / 'airflow'}:{repository}",
            "LAKEHOUSE_NOTIFIER": "told.ToFile",
            # Every run of a DAG that has a deadline is late.
            "LAKEHOUSE_DEADLINE_MINUTES": "0.05",
            "LAKEHOUSE_NOTIFIER_ARGUMENTS": json.dumps({"path": str(self.told), "text": "{text}"}),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            # No DAG changes.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            **self.environment,
        }
        command = [str(python_of_airflow), "-m", "infra.airflow.start", "--home", str(self.home)]
        command += ["--patience-seconds", str(self.patience_seconds)]
        with open(self.home.with_suffix(".txt"), "wb") as said:
            return subprocess.Popen(
                [*command, "--port", str(self.port)],
                cwd=repository,
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.home.with_suffix(".txt").read_text(errors="replace")[-3000:]

    def page(self, path: str) -> str:
        """A page, as text; an HTTPError for a refusal."""
        return self.answer("GET", path).decode()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of the REST interface; an HTTPError for a refusal."""
        return json.loads(self.answer(method, path, body) or "null")

    def answer(self, method: str, path: str, body: Any = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        for _ in range(10):
            try:
                with urllib.request.urlopen(request, timeout=patience_seconds) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                # SQLite lets one write at a time; who comes meanwhile is asked to come again.
                if error.code != 503:
                    raise
                time.sleep(2)
        raise AssertionError(f"{path} was never served\n{self.said()}")

    def is_healthy(self) -> bool:
        try:
            health = self.ask("GET", "/api/v2/monitor/health")
        except OSError:
            return False
        return all(each["status"] == "healthy" for each in health.values())

    def log_in(self) -> None:
        password = json.loads((self.home / "passwords.json").read_text())["admin"]
        self.token = self.ask("POST", "/auth/token", {"username": "admin", "password": password})["access_token"]

    def unpause(self, dag: str, *, paused: bool = False) -> None:
        self.ask("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def unpause_for_others(self, dag: str) -> None:
        """Lets runs begin that somebody asks for, and not the one that is due: what that did would be done twice."""
        known = self.ask("GET", f"/api/v2/dags/{dag}")
        if known["next_dagrun_logical_date"]:
            names = ("logical_date", "data_interval_start", "data_interval_end")
            due = {name: known[f"next_dagrun_{name}"] for name in names}
            run = self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", due)["dag_run_id"]
            self.ask("PATCH", f"/api/v2/dags/{dag}/dagRuns/{run}", {"state": "success"})
        self.unpause(dag)

    def trigger(self, dag: str, **form: Any) -> str:
        body = {"logical_date": None, "conf": form}
        return str(self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def tasks(self, dag: str, run: str = "~") -> list[dict[str, Any]]:
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances?limit=200"
        return list(self.ask("GET", path)["task_instances"])

    def states(self, dag: str, run: str = "~") -> dict[str, str | None]:
        return {task["task_id"]: task["state"] for task in self.tasks(dag, run)}

    def result(self, dag: str, run: str, task: str) -> Any:
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        return self.ask("GET", path)["value"]

    def wait_for_end(self, dag: str, run: str) -> str:
        """The state in which a run ends."""
        ended = ("success", "failed")
        path = f"/api/v2/dags/{dag}/dagRuns/{run}"
        self.wait(lambda: self.ask("GET", path)["state"] in ended, f"{dag} to end", told=lambda: self.states(dag, run))
        return str(self.ask("GET", path)["state"])

    def wait(
        self,
        is_true: Callable[[], Any],
        what: str,
        told: Callable[[], Any] = lambda: "",
    ) -> None:
        eventually(is_true, lambda: f"{what}: {told()}\n{self.said()}", 1)

    def orders(self) -> int:
        """How many orders gold counts."""
        if self.lake.last_commit("gold.revenue_daily") is None:
            return 0
        return int(query(self.lake, "SELECT coalesce(sum(orders), 0) FROM gold.revenue_daily").rows[0][0])

    def order(self, *numbers: int, days: Sequence[int] = (1,), quantity: int = 1) -> None:
        """Appends orders, each of a day of March."""
        first = datetime(2026, 3, 1, 9, tzinfo=UTC)
        records = [
            {
                "order_id": f"a{number}",
                "placed_at": (first + timedelta(days=day - 1)).isoformat(),
                "product_id": "tea",
                "quantity": quantity,
            }
            for number, day in zip(numbers, days, strict=True)
        ]
        self.log.append("orders", [Record(json.dumps(record).encode()) for record in records])

    def scheduler(self) -> int:
        """The scheduler of this Airflow; 0 when there is none."""
        command = ["pgrep", "-P", str(self.pid), "-f", "airflow scheduler"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(found.stdout.split()[0]) if found.stdout else 0

    def driver(self) -> int | None:
        """The process that runs continuously."""
        command = ["pgrep", "-f", f"run --continuous --attached --json --project {self.project}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(found.stdout.split()[0]) if found.stdout else None


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """A database of Airflow's own, on Postgres: SQLite takes one write at a time, which its backfill does not bear."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        # Postgres has a user of its own, who must come to its data.
        Path(folder).chmod(0o711)
        with running(Postgres(Path(folder, "postgres"))) as postgres:
            yield postgres.server.url.replace("postgresql://", "postgresql+psycopg2://")


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[Airflow]:
    """An Airflow that is healthy and has read the DAGs; ended with all of its processes."""
    folder = tmp_path_factory.mktemp("airflow")
    with started(Airflow(folder, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=database)) as found:
        found.wait(lambda: dags <= {each["dag_id"] for each in found.ask("GET", "/api/v2/dags")["dags"]}, "the DAGs")
        yield found


@contextmanager
def started(found: Airflow) -> Iterator[Airflow]:
    assert python_of_airflow.exists(), "Airflow is not installed: make .venv-airflow/.installed"
    process = found.start()
    found.pid = process.pid
    try:
        found.wait(found.is_healthy, "a healthy Airflow")
        found.log_in()
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(300)
        found.wait(lambda: found.driver() is None, "the driver to end with Airflow")


def test_every_dag_is_read_and_nobody_is_let_in_without_a_password(airflow: Airflow) -> None:
    assert airflow.ask("GET", "/api/v2/importErrors")["import_errors"] == []
    assert {each["dag_id"] for each in airflow.ask("GET", "/api/v2/dags")["dags"]} == dags
    assert all(each["is_paused"] for each in airflow.ask("GET", "/api/v2/dags")["dags"])
    stranger = Airflow.__new__(Airflow)
    stranger.port, stranger.token = airflow.port, "nothing"
    with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
        stranger.ask("GET", "/api/v2/dags")
    secret = [path for path in airflow.home.iterdir() if path.is_file() and path.stat().st_mode & 0o077]
    assert secret == []


def test_the_assets_are_the_datasets(airflow: Airflow) -> None:
    assets = {each["name"]: each for each in airflow.ask("GET", "/api/v2/assets?limit=100")["assets"]}
    assert {"bronze.orders", "silver.orders", "silver.priced_orders", "gold.revenue_daily"} <= set(assets)
    gold = assets["gold.revenue_daily"]["extra"]
    assert gold["meaning"] == load(airflow.project).by_name["gold.revenue_daily"].meaning
    assert gold["grain"] == ["product", "window_start"]
    assert gold["console"] == "http://127.0.0.1:8321/tables/gold.revenue_daily"


class Teller:
    """A Python of Airflow's environment, with the modules of the DAGs."""

    def __init__(self, home: Path) -> None:
        path = f"{repository / 'dags'}:{repository / 'tests' / 'airflow'}"
        environment = {"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(home), "PYTHONPATH": path}
        command = [str(python_of_airflow), "-m", "asked"]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def told(self, home: Path, lines: str, **more: str) -> str:
        """What lines of Python print, with Airflow's home in that folder."""
        assert self.process.stdin
        assert self.process.stdout
        to = home / "printed.txt"
        request = {"lines": lines, "environment": {"AIRFLOW_HOME": str(home), **more}, "to": str(to)}
        self.process.stdin.write(f"{json.dumps(request)}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "0\n", to.read_text() if to.exists() else "it printed nothing"
        return to.read_text()


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teller]:
    found = Teller(tmp_path_factory.mktemp("teller"))
    with found.process:
        yield found


def test_without_its_connection_a_run_gets_no_note(teller: Teller, tmp_path: Path) -> None:
    said = teller.told(tmp_path, "from lakehouse import notes\nnotes.keep('compute_gold', 'a run', 'a note')")
    assert said == "There is no connection lakehouse_airflow, so the run gets no note.\n"


def test_a_note_has_what_failed_first_and_no_more_than_airflow_takes(teller: Teller, tmp_path: Path) -> None:
    changed = {f"gold.table_{n}": n for n in range(100)} | {"gold.failed": None}
    checked = [{"dataset": "gold.table_99", "passed": 3, "broken": None, "checked_at": "2026-03-01 10:00"}]
    said = teller.told(tmp_path, f"from lakehouse import notes\nprint(notes.of_day({changed}, {checked}))")
    assert said.startswith(
        "**4,950 rows changed**\n\n- gold.failed: was not recomputed; not checked yet\n"
        "- gold.table_99: 99; 3 checks passed (2026-03-01 10:00)\n- gold.table_98: 98; not checked yet\n"
    )
    assert said.endswith("\n- …\n")
    assert len(said.strip()) <= 1000
    held = f"from lakehouse import notes\nprint(notes.of_day({dict.fromkeys('ab')}, [], {{'a'}}))"
    assert "- b: was not recomputed; not checked yet\n- a: is on hold; " in teller.told(tmp_path, held)


def test_an_asset_has_the_columns_and_the_owner_that_are_declared(teller: Teller, tmp_path: Path) -> None:
    columns = [
        {"name": "day", "type": "date", "unit": None, "meaning": "The day in New York."},
        {"name": "delay", "type": "double", "unit": "minutes", "meaning": ""},
        {"name": "note", "type": None},
    ]
    node = {"name": "gold.days", "layer": "gold", "owner": "ops", "grain": ["day"], "meaning": "", "columns": columns}
    said = teller.told(tmp_path, f"from lakehouse.defaults import asset\nprint(asset({node}).extra)")
    expected = {"day": "date: The day in New York.", "delay": "double in minutes", "note": ""}
    assert said == f"{ {'owner': 'ops', 'columns': expected, 'grain': ['day']} }\n"


asked_for_a_day = """
import compute
from airflow.sdk.exceptions import AirflowException

compute.get_current_context = lambda: {"ti": type("", (), {"xcom_push": lambda self, *given: print(*given)})()}
for name in ("gold.held", "gold.blocked", "gold.failed"):
    try:
        compute.recomputed(name, "2026-03-01", "2026-03-02")
    except AirflowException as error:
        print(type(error).__name__, error)
"""


def test_a_day_of_a_table_on_hold_is_skipped_and_one_of_a_blocked_table_fails(teller: Teller, tmp_path: Path) -> None:
    step = {"action": "hold", "because": "declaration changed", "blocked": None}
    plan = [{"name": "gold.held", **step}, {"name": "gold.blocked", **step, "blocked": "it failed"}]
    command = tmp_path / "sluice"
    answers = {"catalogue": "echo '[]'", "run": "exit 1", "plan": f"echo '{json.dumps(plan)}'"}
    cases = " ".join(f"{name}) {answer};;" for name, answer in answers.items())
    command.write_text(f"#!/bin/sh\ncase $1 in {cases} esac\n")
    command.chmod(0o755)
    said = teller.told(tmp_path, asked_for_a_day, LAKEHOUSE_SLUICE=str(command)).splitlines()
    assert [line for line in said if not line.startswith("$")] == [
        "on_hold declaration changed",
        "AirflowSkipException gold.held is on hold: declaration changed. A replay that is promoted ends that.",
        *["AirflowException sluice run ended with 1; see the log above"] * 2,
    ]


beats = """
from run_continuously import Reporter

class Airflow:
    dag_id, is_paused, wrong = "run_continuously", False, {"get_dag", "blocked"}

    def fail(self, what):
        if what in self.wrong:
            raise OSError(f"{what}: database is locked")

    def get_dag(self, dag_id):
        self.fail("get_dag")
        return self

    def set(self, key, value):
        self.fail(key)
        print("kept", key, value)

airflow = Airflow()
reporter = Reporter({"ti": airflow, "task_state_store": airflow})

def beat(**now):
    vars(airflow).update(now)
    print(reporter.beat())
"""
status_of_one = [{"dataset": "gold.a", "lag": 2, "held": "blocked: it failed"}]


def test_a_report_that_fails_is_tried_at_the_next_beat_and_the_driver_goes_on(teller: Teller, tmp_path: Path) -> None:
    command, told = tmp_path / "sluice", tmp_path / "told.txt"
    command.write_text(f"#!/bin/sh\ntest -e {tmp_path}/there && echo '{json.dumps(status_of_one)}'\n")
    command.chmod(0o755)
    lines = f"""{beats}
beat()
open("{tmp_path}/there", "w").close()
beat()
beat(wrong=set())
beat(is_paused=True)
reporter.reported = 0.0
beat()
reporter.state.wrong = {{"progress"}}
reporter.heard('{{"kind": "run"}}\\n')
"""
    notifier = {"LAKEHOUSE_NOTIFIER": "told.ToFile"}
    notifier["LAKEHOUSE_NOTIFIER_ARGUMENTS"] = json.dumps({"path": str(told), "text": "{text}"})
    said = teller.told(tmp_path, lines, LAKEHOUSE_SLUICE=str(command), **notifier).splitlines()
    asked = "It failed to ask whether the DAG is paused, and is tried again: OSError: get_dag: database is locked"
    assert [line for line in said if not line.startswith("$")] == [
        "It failed to report, and is tried again: AirflowException: sluice status ended with 1; see the log above",
        *(asked, "True"),
        "kept lag {'gold.a': 2}",
        "It failed to report, and is tried again: OSError: blocked: database is locked",
        *(asked, "True"),
        "kept lag {'gold.a': 2}",
        "kept blocked {'gold.a': 'blocked: it failed'}",
        "lag {'gold.a': 2}",
        "True",
        # It was reported a moment ago.
        "False",
        *("kept lag {'gold.a': 2}", "kept blocked {'gold.a': 'blocked: it failed'}", "lag {'gold.a': 2}", "False"),
        '{"kind": "run"}',
        "It failed to keep the progress, and is tried again: OSError: progress: database is locked",
    ]
    assert told.read_text() == "gold.a is blocked: it failed\n"


wrong_forms: list[tuple[str, dict[str, Any]]] = [
    ("replay", {"datasets": ["gold.nothing"], "because": "to see"}),
    ("replay", {"datasets": ["gold.revenue_daily"], "because": ""}),
    ("replay", {"datasets": ["gold.revenue_daily"], "because": "to see", "since": "yesterday; rm -rf /"}),
    ("replay", {"datasets": ["gold.revenue_daily"], "because": "to see", "mode": "at once"}),
    ("release_quarantine", {"dataset": "silver.orders", "because": "to see", "reason": "'; DROP TABLE x"}),
    ("maintenance", {"log_keep_days": 0}),
]


@pytest.mark.parametrize(("dag", "form"), wrong_forms)
def test_a_form_with_wrong_values_is_refused(airflow: Airflow, dag: str, form: dict[str, Any]) -> None:
    with pytest.raises(urllib.error.HTTPError, match=r"400|422"):
        airflow.trigger(dag, **form)


def test_a_driver_that_dies_comes_back_and_nothing_is_lost(airflow: Airflow) -> None:
    airflow.unpause("run_continuously")
    airflow.wait(lambda: airflow.orders() == 4, "the first orders in gold")
    before = airflow.driver()
    assert before is not None
    second = commands.sluice("run", "--continuous", here=airflow.project)
    assert second.returncode == 1
    assert "is writing the lake" in second.stderr
    assert "Wait for it, or stop it." in second.stderr
    os.kill(before, signal.SIGKILL)
    airflow.order(1)
    airflow.wait(lambda: airflow.orders() == 5, "the order that came while the driver was dead")
    assert airflow.driver() not in (None, before)
    (task,) = airflow.tasks("run_continuously")
    # The lock is the JVM's until it has ended, so a try that comes before that is refused.
    assert task["state"] == "running"
    assert task["try_number"] >= 2
    catalogue = load(airflow.project)
    assert all(each.balanced for each in audit(airflow.lake, catalogue))


def test_days_are_filled_back_while_the_continuous_run_goes_on(airflow: Airflow) -> None:
    """Every row of some days is wrong; the backfill puts them right, and counts what it changed."""
    airflow.order(*range(101, 109), days=range(1, 9))
    airflow.wait(lambda: airflow.orders() == 13, "an order for each day")
    asked = commands.sluice("check", "gold.revenue_daily", here=airflow.project)
    assert asked.returncode == 0, asked.stderr
    # None beyond: a sample of all rows is recomputed by another test.
    where = "revenue_euro > 0 AND window_start < '2026-03-04T00:00:00Z'"
    assert computed_wrong(airflow.lake, "gold.revenue_daily", f"UPDATE SET revenue_euro = 0 WHERE {where}") >= 3
    within = "FROM gold.revenue_daily WHERE window_start < TIMESTAMPTZ '2026-03-04 00:00:00Z'"
    rows = query(airflow.lake, f"SELECT count(*) {within}").rows[0][0]
    airflow.unpause_for_others("compute_gold")
    body = {
        "dag_id": "compute_gold",
        "from_date": "2026-03-01T00:00:00Z",
        "to_date": "2026-03-03T00:00:00Z",
        # The third waits.
        "max_active_runs": 2,
        "run_on_latest_version": True,
    }
    airflow.ask("POST", "/api/v2/backfills", body)

    def runs() -> list[dict[str, Any]]:
        found = airflow.ask("GET", "/api/v2/dags/compute_gold/dagRuns?limit=100")["dag_runs"]
        return [each for each in found if each["run_type"] == "backfill"]

    airflow.order(200, days=[8])
    airflow.wait(lambda: len(runs()) >= 3 and all(each["state"] == "success" for each in runs()), "the backfill")
    airflow.wait(lambda: airflow.orders() == 14, "the order that came during the backfill")
    assert query(airflow.lake, f"SELECT count(*) {within} AND revenue_euro = 0").rows == [(0,)]
    changed = [
        airflow.result("compute_gold", each["dag_run_id"], "gold.revenue_daily")["gold.revenue_daily"]
        for each in runs()
    ]
    assert sum(changed) == rows
    notes = [note_of(airflow, each) for each in runs()]
    for note, count in zip(notes, changed, strict=True):
        assert note.startswith(f"**{count} rows changed**\n\n- gold.revenue_daily: {count}; ")
        assert re.search(r"; \d+ checks passed \(20\d\d-\d\d-\d\d \d\d:\d\d\)$", note)
    airflow.unpause("compute_gold", paused=True)


def note_of(airflow: Airflow, run: dict[str, Any]) -> str:
    """The note of a run; its task ends a little after those that decide about the run."""
    path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}"
    airflow.wait(
        lambda: airflow.ask("GET", path)["note"],
        "the note",
        told=lambda: airflow.states(run["dag_id"], run["dag_run_id"]),
    )
    return str(airflow.ask("GET", path)["note"])


def test_a_replay_goes_through_form_difference_approval_and_rollback(airflow: Airflow) -> None:
    declared = airflow.project / "pipelines" / "gold.py"
    declared.write_text(declared.read_text().replace('"sum(quantity)"', '"sum(quantity * 12)"'))
    for dag in ("replay", "rollback"):
        airflow.unpause(dag)
    run = airflow.trigger("replay", datasets=["gold.revenue_daily"], because="dozens", mode="compare, then promote")
    airflow.wait(lambda: airflow.states("replay", run).get("approve") == "awaiting_input", "the question")
    path = f"/api/v2/dags/replay/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
    told = airflow.ask("GET", path)
    assert "| gold.revenue_daily | 0 |" in told["body"]
    assert "quantity" in told["body"]
    dozens = "SELECT sum(quantity) > 100 FROM gold.revenue_daily"
    assert query(airflow.lake, dozens).rows == [(False,)]
    # Until the scheduler knows that the question's process has ended, an answer is lost and the question comes again.
    question = f"TaskInstanceKey(dag_id='replay', task_id='approve', run_id='{run}'"
    ended = f"Received executor event with state success for task instance {question}"
    airflow.wait(lambda: ended in (airflow.home / "scheduler.log").read_text(), "the question's process to end")
    airflow.ask("PATCH", path, {"chosen_options": ["Approve"]})
    assert airflow.wait_for_end("replay", run) == "success"
    assert query(airflow.lake, dozens).rows == [(True,)]
    run = airflow.trigger("rollback", datasets=["gold.revenue_daily"], because="not dozens")
    assert airflow.wait_for_end("rollback", run) == "success"
    assert query(airflow.lake, dozens).rows == [(False,)]
    # The project still declares what was rejected, so the table is on hold: a day of it is skipped without an alert.
    told_before = airflow.told.read_text() if airflow.told.exists() else ""
    airflow.unpause("compute_gold")
    day = airflow.ask("POST", "/api/v2/dags/compute_gold/dagRuns", {"logical_date": "2026-03-02T06:00:00Z"})
    assert airflow.wait_for_end("compute_gold", day["dag_run_id"]) == "success"
    assert airflow.states("compute_gold", day["dag_run_id"])["gold.revenue_daily"] == "skipped"
    assert "- gold.revenue_daily: is on hold; " in note_of(airflow, day)
    told = airflow.told.read_text() if airflow.told.exists() else ""
    assert "recomputing gold" not in told.removeprefix(told_before)
    airflow.unpause("compute_gold", paused=True)
    declared.write_text(declared.read_text().replace('"sum(quantity * 12)"', '"sum(quantity)"'))


def test_the_report_and_the_audit_are_shown_to_logged_in_users(airflow: Airflow) -> None:
    assert "gold.revenue_daily" in airflow.page("/lakehouse/reports/gold.revenue_daily.html")
    assert "Everything adds up." in airflow.page("/lakehouse/audit")
    for path in ("/lakehouse/reports/nothing.html", "/lakehouse/reports/..%2F.lock"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            airflow.page(path)
    stranger = Airflow.__new__(Airflow)
    stranger.port, stranger.token = airflow.port, "nothing"
    with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
        stranger.page("/lakehouse/reports/index.html")
    task = airflow.tasks("run_continuously")[0]
    path = f"/api/v2/dags/run_continuously/dagRuns/{task['dag_run_id']}/taskInstances/supervise/links"
    links = airflow.ask("GET", path)["extra_links"]
    assert links["Data Docs"] == "/lakehouse/reports/index.html"
    assert links["Audit"] == "/lakehouse/audit"


def test_what_is_critical_stops_what_is_downstream_and_only_that(airflow: Airflow) -> None:
    suite = airflow.project / "expectations" / "silver" / "products.py"
    suite.write_text(
        "from sluice.expect import expect, suite\n\nexpectations = suite(\n"
        '    "silver.products", expect("table_row_count_to_be_between", max_value=1, severity="critical")\n)\n'
    )
    airflow.unpause_for_others("quality")
    run = airflow.trigger("quality")
    assert airflow.wait_for_end("quality", run) in ("failed", "success")
    states = airflow.states("quality", run)
    assert states == {
        "silver.orders": "success",
        "silver.products_changes": "success",
        "silver.products": "failed",
        "silver.priced_orders": "upstream_failed",
        "gold.revenue_daily": "upstream_failed",
        "recompute": "success",
        "report": "success",
    }
    assert "silver.products" in (airflow.project / ".sluice" / "lake" / "_reports" / "index.html").read_text()
    airflow.wait(airflow.told.exists, "the alert")
    assert f"the quality of tables: quality.silver.products failed, {run}" in airflow.told.read_text()
    late = "quality: a run is not done 0:00:03 after it was queued"
    airflow.wait(lambda: late in airflow.told.read_text(), "the missed deadline to be told")
    airflow.unpause("quality", paused=True)
    # A day whose rows are refused fails, though the task of its note comes last and does not.
    computed_wrong(airflow.lake, "silver.products", "UPDATE SET name = 'Coffee' WHERE product_id = 'tea'")
    airflow.unpause_for_others("compute_silver")
    day = airflow.ask("POST", "/api/v2/dags/compute_silver/dagRuns", {"logical_date": "2026-01-02T06:00:00Z"})
    assert airflow.wait_for_end("compute_silver", day["dag_run_id"]) == "failed"
    assert "- silver.products: was not recomputed; broken: table_row_count_to_be_between (20" in note_of(airflow, day)
    airflow.unpause("compute_silver", paused=True)
    suite.unlink()
    part = ("--since", "2026-01-01", "--until", "2026-01-02")
    repaired = commands.sluice("run", "silver.products", *part, here=airflow.project)
    assert repaired.returncode == 0, repaired.stderr
    assert query(airflow.lake, "SELECT count(*) FROM silver.products WHERE name = 'Coffee'").rows == [(0,)]


def is_taken_in(airflow: Airflow, number: int) -> bool:
    sql = f"SELECT count(*) FROM silver.orders WHERE order_id = 'a{number}'"
    return query(airflow.lake, sql).rows == [(1,)]


def test_what_is_held_is_released_and_tables_are_maintained(airflow: Airflow) -> None:
    airflow.order(300, quantity=-1)
    fates = "SELECT count(*) FROM silver._fates WHERE reason = 'quantity_be_between'"
    airflow.wait(lambda: query(airflow.lake, fates).rows == [(1,)], "the order in quarantine")
    for dag in ("release_quarantine", "maintenance"):
        airflow.unpause_for_others(dag)
    run = airflow.trigger(
        "release_quarantine", dataset="silver.orders", reason="quantity_be_between", because="a return"
    )
    assert airflow.wait_for_end("release_quarantine", run) == "success"
    airflow.wait(partial(is_taken_in, airflow, 300), "the order to be taken in")
    assert query(airflow.lake, fates).rows == [(0,)]
    # Each comes into a file of its own.
    for number in (301, 302):
        airflow.order(number)
        airflow.wait(partial(is_taken_in, airflow, number), "the order to be taken in")
    before = query(airflow.lake, "SELECT * FROM silver.orders ORDER BY order_id").rows
    run = airflow.trigger("maintenance")
    assert airflow.wait_for_end("maintenance", run) == "success"
    assert airflow.result("maintenance", run, "maintain")["tables"]["silver.orders"]["compacted"] >= 2
    assert query(airflow.lake, "SELECT * FROM silver.orders ORDER BY order_id").rows == before


def test_on_sqlite_a_scheduler_that_dies_or_hangs_is_started_again(tmp_path: Path) -> None:
    """The default database. What failed once: a scheduler that waits for ever is no sign of its end."""
    # It has no DAG to read.
    (tmp_path / "dags").mkdir()
    settings = {"CORE__DAGS_FOLDER": str(tmp_path / "dags"), "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "5"}
    with started(Airflow(tmp_path, 30, **{f"AIRFLOW__{name}": value for name, value in settings.items()})) as found:
        first = found.scheduler()
        os.kill(first, signal.SIGSTOP)
        found.wait(lambda: found.scheduler() not in (0, first), "another scheduler")
        found.wait(found.is_healthy, "a healthy Airflow again")
        assert "scheduler gives no sign of life; it is started again" in found.said()


@pytest.mark.browser
def test_people_see_the_dags_the_assets_the_form_and_the_backfill(airflow: Airflow, tmp_path: Path) -> None:
    """A real browser; with KEEP_SCREENSHOTS a folder, what it saw is kept there for the documentation."""
    from playwright.sync_api import sync_playwright

    assert chromium, "There is no Chromium. Run: python -m infra.servers install --for-tests"
    kept = Path(screenshots) if screenshots else tmp_path
    address = f"http://127.0.0.1:{airflow.port}"
    assets = airflow.ask("GET", "/api/v2/assets?limit=100")["assets"]
    (gold,) = [each["id"] for each in assets if each["name"] == "gold.revenue_daily"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(address)
        page.fill("input[name=username]", "admin")
        page.fill("input[name=password]", json.loads((airflow.home / "passwords.json").read_text())["admin"])
        page.click("button[type=submit]")
        page.wait_for_url(f"{address}/", wait_until="networkidle")
        for name, path, seen in (
            ("dags", "/dags", "run_continuously"),
            ("assets", "/assets", "gold.revenue_daily"),
            ("dag", "/dags/compute_silver", "silver.priced_orders"),
        ):
            page.goto(f"{address}{path}")
            page.get_by_text(seen).first.wait_for(timeout=patience_seconds * 1000)
            page.wait_for_timeout(2_000)
            page.screenshot(path=kept / f"airflow-{name}.png")
        page.goto(f"{address}/assets/{gold}")
        page.get_by_text("Task Dependencies").click()
        page.get_by_text("bronze.orders").first.wait_for(timeout=patience_seconds * 1000)
        # Only what is in view is drawn, and the first view does not always hold all.
        page.locator(".react-flow__controls-fitview").click()
        page.get_by_text("silver.priced_orders").first.wait_for(timeout=patience_seconds * 1000)
        page.wait_for_timeout(2_000)
        page.screenshot(path=kept / "airflow-asset-graph.png")
        page.goto(f"{address}/dags/replay")
        page.get_by_role("button", name="Trigger").first.click()
        page.get_by_text("Why").first.wait_for(timeout=patience_seconds * 1000)
        page.wait_for_timeout(1_000)
        page.screenshot(path=kept / "airflow-replay.png")
        page.goto(f"{address}/dags/compute_gold")
        page.get_by_role("button", name="Trigger").first.click()
        page.get_by_role("dialog").get_by_text("Backfill", exact=True).click()
        page.wait_for_timeout(1_000)
        page.screenshot(path=kept / "airflow-backfill.png")
        browser.close()
    assert all(
        (kept / f"airflow-{name}.png").stat().st_size > 20_000
        for name in ("dags", "assets", "asset-graph", "dag", "replay", "backfill")
    )


def test_a_pause_stops_the_driver_cleanly(airflow: Airflow) -> None:
    airflow.unpause("run_continuously", paused=True)
    airflow.wait(lambda: airflow.driver() is None, "the driver to stop")
    airflow.wait(lambda: airflow.states("run_continuously") == {"supervise": "success"}, "a clean end")


def load(project: Path) -> Any:
    from sluice.engine.catalogue import load as load_catalogue

    return load_catalogue(project)
