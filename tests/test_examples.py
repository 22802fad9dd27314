"""The examples are run as they are."""

import copy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

examples = Path(__file__).parents[1] / "examples"


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
