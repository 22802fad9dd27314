"""How many commands are decided in a second, how long an answer takes, and what a start costs.

    python -m benchmarks.commands --seconds 10 --start 1000000

Commands sell seats of many flights by HTTP, one in each request, over connections that stay open. The receiver is a
process of its own, and the clients are threads of this one: they share the machine's cores.
"""

import argparse
import http.client
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from sluice.engine.catalogue import load
from sluice.log import Log, Record
from sluice.model.commands import Commands
from sluice.operate.commands import Decider

example = Path(__file__).parents[1] / "examples" / "seats"
token = secrets.token_hex(16)
flights, seats = 200, 1000


@contextmanager
def receiver(project: Path) -> Iterator[int]:
    """The port of a receiver that decides the commands of the example."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.cli", "listen", "http", "--port", "0", "--commands", "seats"],
        cwd=project,
        env=os.environ | {"SLUICE_LOG": str(project / "log"), "SLUICE_HTTP_TOKEN": token},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr or ():
            found = re.search(r"Listening on http://127\.0\.0\.1:(\d+)", line)
            if found:
                break
        else:
            raise SystemExit("The receiver did not start.")
        yield int(found[1])
    finally:
        process.terminate()
        process.wait()


class Client(threading.Thread):
    """Sends one command after the other until the end, and keeps how long each answer took."""

    def __init__(self, port: int, name: str, until: float) -> None:
        super().__init__()
        self.port, self.own_name, self.until = port, name, until
        self.seconds: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        number = 0
        while time.perf_counter() < self.until:
            number += 1
            start = time.perf_counter()
            status = ask(connection, sale(f"{self.own_name}-{number}", number))
            self.seconds.append(time.perf_counter() - start)
            if status not in (201, 422):
                raise SystemExit(f"The receiver answered {status}.")


def sale(command_id: str, number: int) -> dict[str, str]:
    flight, seat = hash((command_id, number)) % flights, hash((number, command_id)) % seats
    fields = {"flight": f"F{flight}", "seat": str(seat), "passenger": "Ada"}
    return {"command": "sell_seat", "command_id": command_id, **fields}


def ask(connection: http.client.HTTPConnection, command: object) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    connection.request("POST", "/commands/seats", json.dumps(command), headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def latencies(port: int, clients: int, seconds: float) -> list[float]:
    """How long each answer took, with so many clients at once."""
    until = time.perf_counter() + seconds
    running = [Client(port, f"{clients}-{number}-{until}", until) for number in range(clients)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return [taken for each in running for taken in each.seconds]


def seconds_of_start(folder: Path, commands: Commands, decisions: int) -> tuple[float, float]:
    """How long a decider takes to read so many decisions, and how many bytes of memory each takes then."""
    log = Log(folder)
    owned = log.own("seat_decisions", "seats")
    for base in range(0, decisions, 1000):
        owned.append([Record(decision(number), key=f"F{number % 20_000}") for number in range(base, base + 1000)])
    owned.close()
    before, start = resident_bytes(), time.perf_counter()
    with Decider(log, commands) as decider:
        if decider.decisions != decisions:
            raise SystemExit(f"{decider.decisions} decisions were read.")
        return time.perf_counter() - start, (resident_bytes() - before) / decisions


def decision(number: int) -> bytes:
    turn, flight = divmod(number, 20_000)
    said: dict[str, object] = {"command_id": f"c-{number:012}", "command": "sell_seat", "outcome": "accepted"}
    said |= {"version": turn + 1, "event": "seat_sold" if turn else "flight_opened", "flight": f"F{flight}"}
    said |= {"decided_at": "2026-01-01T00:00:00Z", "seat": str(turn), "passenger": "Ada"}
    return json.dumps(said).encode()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--start", type=int, default=1_000_000)
    options = parser.parse_args()
    table = Table("clients", "commands/s", "p50 ms", "p99 ms")
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        project = Path(folder, "seats")
        shutil.copytree(example, project)
        with receiver(project) as port:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            for number in range(flights):
                opening = {"command": "open_flight", "command_id": f"o{number}", "flight": f"F{number}", "seats": seats}
                if ask(connection, opening) != 201:
                    raise SystemExit("A flight was not opened.")
            for clients in (1, 10, 50):
                taken = latencies(port, clients, options.seconds)
                p99 = quantiles(taken, n=100)[98]
                rate = len(taken) / options.seconds
                table.add_row(str(clients), f"{rate:,.0f}", f"{median(taken) * 1000:.1f}", f"{p99 * 1000:.1f}")
        started, each = seconds_of_start(Path(folder, "log"), load(example).commands_of("seats"), options.start)
    Console().print(table)
    Console().print(f"A start with {options.start:,} decisions: {started:.1f} s, {each:.0f} bytes of memory each.")


if __name__ == "__main__":
    main()
