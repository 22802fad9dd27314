"""The examples are run as they are."""

import copy
import io
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import nbformat
import pytest
from nbclient import NotebookClient

from sluice import Project
from sluice.errors import LogError
from tests.kit import at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

examples = Path(__file__).parents[1] / "examples"


def asked(name: str, command_id: str, **fields: object) -> bytes:
    return json.dumps({"command": name, "command_id": command_id, "flight": "UA1", **fields}).encode()


def rows_of(project: Project, sql: str) -> list[tuple[object, ...]]:
    return [tuple(each) for each in project.query(sql).rows]


def test_the_tables_of_seats_are_what_was_decided(spark: "SparkSession", tmp_path: Path) -> None:
    shutil.copytree(examples / "seats", tmp_path, dirs_exist_ok=True)
    commands = [
        asked("open_flight", "c-1", seats=2),
        asked("sell_seat", "c-2", seat="1A", passenger="Ada"),
        asked("sell_seat", "c-3", seat="1A", passenger="Bob"),
        asked("sell_seat", "c-4", seat="1B", passenger="Bob"),
        asked("return_seat", "c-5", seat="1A"),
        asked("sell_seat", "c-6", seat="1A", passenger="Bob"),
        asked("sell_seat", "c-7", seat="1C", passenger="Cem", expected_version=2),
    ]
    with Project(tmp_path, spark=spark) as project:
        with project.decider("seats") as seats:
            seats.decide(commands[:5])
            seats.decide(commands)
        project.run()
        state = rows_of(project, "SELECT seats, list_sort(sold), version, is_gapless, is_sold_once FROM gold.flights")
        assert state == [(2, ["1A", "1B"], 5, True, True)]
        tickets = rows_of(project, "SELECT * FROM gold.tickets_by_passenger ORDER BY passenger")
        assert tickets == [("Ada", 1), ("Bob", 2)]
        refused = rows_of(project, "SELECT command_id, reason FROM silver.seat_rejections ORDER BY command_id")
        assert refused == [("c-3", "seat_is_free"), ("c-7", "expected_version")]
        assert project.audit().balanced
        # A copy of an earlier time would decide again what was decided.
        segments = sorted((tmp_path / ".sluice/log/seat_decisions/0").glob("*.jsonl"))
        last = segments[-1].read_bytes()
        segments[-1].unlink()
        with pytest.raises(LogError, match="ends before decisions that have landed"):
            project.decider("seats")
        # So would another topic of this name, however far it has come.
        segments[-1].write_bytes(last)
        described = tmp_path / ".sluice/log/seat_decisions/topic.json"
        described.write_text(json.dumps(json.loads(described.read_text()) | {"id": "another"}))
        with pytest.raises(LogError, match="was made again, without decisions that have landed"):
            project.decider("seats")


@dataclass
class Machines:
    """The machines' reports, in Avro."""

    project: Project

    def report(self, name: str, machine: str, *readings: tuple[float, float]) -> None:
        """Appends a report of readings: the minutes since the first day began, and the degrees."""
        taken = [{"read_at": at(minutes / 60), "degrees": degrees} for minutes, degrees in readings]
        report = {"report_id": name, "sent_at": taken[-1]["read_at"], "readings": taken}
        written = io.BytesIO()
        fastavro.schemaless_writer(written, self.schema, report)
        self.project.append("machine_reports", [written.getvalue()], key=machine)

    @cached_property
    def schema(self) -> Any:
        return fastavro.schema.load_schema(str(examples / "machines" / "schemas" / "report.avsc"))

    def alerts(self) -> list[tuple[object, ...]]:
        return rows_of(self.project, "SELECT query_id, machine, degrees, engineer FROM silver.alerts ORDER BY ALL")

    def overheated(self) -> list[tuple[object, ...]]:
        return rows_of(self.project, "SELECT machine, degrees_before, degrees_after FROM silver.overheated ORDER BY 1")

    def silent(self) -> list[tuple[object, ...]]:
        return rows_of(self.project, "SELECT machine, degrees, _state FROM silver.silent ORDER BY 1, match_start")


def test_a_late_report_changes_what_is_known_of_a_machine(spark: "SparkSession", tmp_path: Path) -> None:
    shutil.copytree(examples / "machines", tmp_path, dirs_exist_ok=True)
    with Project(tmp_path, spark=spark) as project:
        machines = Machines(project)
        machines.report("r1", "press", (0, 40), (10, 42), (20, 44), (30, 46))
        machines.report("r2", "lathe", (0, 40), (10, 42), (30, 46))
        machines.report("r3", "lathe", (100, 41))
        machines.report("r4", "press", (100, 41))
        project.standing.add("silver.alerts", "hot", "degrees > 45", past=True, attributes={"engineer": "Ada"})
        project.run()
        assert machines.overheated() == [("press", 40, 46)]
        lathe, press = [(name, 41, "open") for name in ("lathe", "press")]
        assert machines.silent() == [("lathe", 46, "complete"), lathe, ("press", 46, "complete"), press]
        assert machines.alerts() == [("hot", name, 46, "Ada") for name in ("lathe", "press")]
        # What was missing: the lathe got hotter, and was never silent.
        machines.report("r5", "lathe", (20, 44), (60, 48))
        machines.report("r5", "lathe", (20, 44), (60, 48))
        project.run()
        assert machines.overheated() == [("lathe", 40, 46), ("press", 40, 46)]
        assert machines.silent() == [lathe, ("press", 46, "complete"), press]
        assert machines.alerts()[:2] == [("hot", "lathe", 46, "Ada"), ("hot", "lathe", 48, "Ada")]
        assert project.audit().balanced


@pytest.mark.spark
@pytest.mark.parametrize("path", sorted(examples.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_runs_and_keeps_no_output(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    written = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    ran = copy.deepcopy(written)
    NotebookClient(ran, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in written.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    shown = "\n".join(str(output) for cell in ran.cells if cell.cell_type == "code" for output in cell.outputs)
    assert "because of products/" in shown
    assert "Decimal('54.50')" in shown
    assert "Decimal('56.00')" in shown
