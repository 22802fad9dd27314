"""Start Airflow for this lakehouse on loopback: database, pool, secrets, then all of its processes, until stopped.

    python -m infra.airflow.start --home .sluice/airflow

It runs with the Python of Airflow's own environment. SQLite is the default; another database is one setting
(`AIRFLOW__DATABASE__SQL_ALCHEMY_CONN`).
"""

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

project = Path(__file__).parents[2]
ends_within_seconds = 150
start_seconds_max = 180
notes_user = "notes"
looks_every_seconds = 5
# How often within five minutes a process is restarted before the whole gives up.
starts_max = 5
# What serves logs to other machines listens on every address, and there is no other machine.
processes = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}


def main() -> None:
    """Prepares what is missing and becomes Airflow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=project / ".sluice" / "airflow")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--tasks", type=int, default=4, help="how many tasks may run at once, the continuous one included"
    )
    parser.add_argument(
        "--patience-seconds",
        type=float,
        default=180,
        help="how long a process may give no sign of life before it is started again",
    )
    options = parser.parse_args()
    # Only the owner may read what is written here, passwords included.
    os.umask(0o077)
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    environment = settings(home, options.port, options.tasks) | os.environ
    keep_password(home, notes_user, secret(home, "notes_password"))
    # Airflow starts its own processes by name.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    airflow = str(Path(sys.executable).with_name("airflow"))
    run(airflow, environment, "db", "migrate")
    run(airflow, environment, "pools", "set", "lakehouse", "2", "what computes or checks tables")
    print(f"Airflow: http://127.0.0.1:{options.port}  user admin, password in {password_file(home)}", flush=True)
    sys.exit(supervise(airflow, environment, home, f"http://127.0.0.1:{options.port}", options.patience_seconds))


class Process:
    """One of Airflow's processes, restarted when it ended or its heartbeat stopped."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.name, self.command, self.environment, self.log = name, command, environment, log
        self.starts: list[float] = []
        self.start()

    def start(self) -> None:
        self.starts.append(time.monotonic())
        self.healthy_at = time.monotonic()
        self.was_healthy = False
        with open(self.log, "ab") as said:
            # A separate session: Ctrl-C reaches only this process, which ends the others in order.
            self.running = subprocess.Popen(
                self.command, env=self.environment, stdout=said, stderr=said, start_new_session=True
            )

    def is_silent(self, patience_seconds: float) -> bool:
        """True when its last heartbeat is too old; a start takes long on a busy machine."""
        patience = patience_seconds if self.was_healthy else max(patience_seconds, start_seconds_max)
        return time.monotonic() > self.healthy_at + patience

    @property
    def has_ended(self) -> bool:
        return self.running.poll() is not None

    @property
    def keeps_ending(self) -> bool:
        """True when a restart would not help."""
        recent = [each for each in self.starts if each > time.monotonic() - 300]
        return len(recent) > starts_max

    def end(self) -> None:
        """Ends it with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()


def supervise(airflow: str, environment: dict[str, str], home: Path, address: str, patience_seconds: float) -> int:
    """Runs all processes until stopped, or until one of them keeps ending.

    A failed scheduler waits for its tasks, and the continuous one does not end, so its heartbeat is watched too.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    running = [
        Process(name, [airflow, *arguments], environment, home / f"{name}.log") for name, arguments in processes.items()
    ]
    lost: list[Process] = []
    while not lost and not stop.wait(looks_every_seconds):
        healthy = healthy_processes(address)
        for process in running:
            if process.name in healthy:
                process.healthy_at = time.monotonic()
                process.was_healthy = True
            elif process.is_silent(patience_seconds):
                print(f"{process.name} gives no sign of life; it is started again", file=sys.stderr, flush=True)
                process.end()
        lost = [process for process in running if process.has_ended and process.keeps_ending]
        for process in running:
            if process.has_ended and not lost:
                print(f"{process.name} ended; it is started again", file=sys.stderr, flush=True)
                process.end()
                process.start()
    for process in running:
        process.running.terminate()
    for process in running:
        try:
            process.running.wait(ends_within_seconds)
        except subprocess.TimeoutExpired:
            process.end()
    if lost:
        print(f"Error: {lost[0].name} keeps ending; see {lost[0].log}", file=sys.stderr)
    return 1 if lost else 0


def healthy_processes(address: str) -> set[str]:
    """The processes with a recent heartbeat, according to the API server; if that is silent, all except it."""
    try:
        with urllib.request.urlopen(f"{address}/api/v2/monitor/health", timeout=10) as answer:
            found = json.loads(answer.read())
    except (OSError, ValueError):
        return set(processes) - {"api-server"}
    known = {name.replace("_", "-") for name, each in found.items() if each and each.get("status") == "healthy"}
    return known | {"api-server"}


def settings(home: Path, port: int, tasks: int) -> dict[str, str]:
    """What is set unless the environment says otherwise: loopback, few processes, no admin without a password."""
    address = f"http://127.0.0.1:{port}"
    return {
        "AIRFLOW_HOME": str(home),
        # What a deadline calls runs in the triggerer.
        "PYTHONPATH": str(project / "dags"),
        "LAKEHOUSE_PROJECT": str(project),
        "LAKEHOUSE_SLUICE": str(project / ".venv" / "bin" / "sluice"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(project / "infra" / "airflow" / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # A busy machine takes long to import what a task needs; a task whose DAG is not read in time waits a minute.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "180",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(tasks),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": secret(home, "fernet_key"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(password_file(home)),
        # Who writes the notes of runs may use DAGs, and no more.
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,{notes_user}:user",
        "AIRFLOW_CONN_LAKEHOUSE_AIRFLOW": json.dumps(
            {
                "conn_type": "http",
                "host": "127.0.0.1",
                "port": port,
                "login": notes_user,
                "password": secret(home, "notes_password"),
            }
        ),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secret(home, "api_secret"),
        "AIRFLOW__API_AUTH__JWT_SECRET": secret(home, "jwt_secret"),
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def password_file(home: Path) -> Path:
    return home / "passwords.json"


def keep_password(home: Path, user: str, password: str) -> None:
    """Gives a user a password that is known before Airflow starts; those of all others are left as they are."""
    path = password_file(home)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | {user: password}) + "\n")


def secret(home: Path, name: str) -> str:
    """A secret that is made once and kept where only its owner can read it."""
    path = home / f".{name}"
    if not path.exists():
        # 32 bytes in url-safe base64 is also what Fernet takes.
        text = secrets.token_urlsafe(32) + "="
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    return path.read_text()


def run(airflow: str, environment: dict[str, str], *arguments: str) -> None:
    """One command of Airflow, whose output is shown only when it fails."""
    done = subprocess.run([airflow, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"Error: airflow {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
